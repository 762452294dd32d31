"""Measures SQL that is kept up to date, beside DuckDB, which computes it from scratch."""
