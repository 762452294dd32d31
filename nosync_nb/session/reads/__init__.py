"""Reads of collections: rows, pages, explain, compare."""
