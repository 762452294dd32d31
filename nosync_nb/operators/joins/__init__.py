"""Equi-joins of two or many collections, as-of joins."""
