"""Functions that are built from collections alone: graphs, windows of time, as-of joins."""
