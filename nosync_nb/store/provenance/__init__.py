"""Clocks: the input batches that each stage was made from."""
