"""Resolves the names of a query: from its syntax tree to relational algebra."""
