"""Measures queries of TPC-H that are kept up to date over refreshes."""
