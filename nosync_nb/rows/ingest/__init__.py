"""User data to columns: shapes, types, libraries, file formats."""
