"""Typed nodes over columns, and how they are evaluated here."""
