"""Typed nodes over columns, and their evaluation in process."""
