"""Converts user data to columns: shapes of rows, types, libraries, file formats."""
