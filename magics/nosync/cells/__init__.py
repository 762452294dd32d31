"""Handles one cell: its transaction, its source, its display, its errors."""
