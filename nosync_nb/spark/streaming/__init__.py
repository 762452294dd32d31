"""Streaming DataFrames, micro-batch by micro-batch."""
