"""Typed nodes over columns, generators, and their evaluation in process."""
