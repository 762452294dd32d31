"""Finds the log of the notebook, and the facts that the log records about it."""
