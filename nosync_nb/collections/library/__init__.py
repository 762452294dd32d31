"""Functions that compose operators of collections: graph algorithms, windows, as-of joins."""
