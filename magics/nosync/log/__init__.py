"""Finds the log of a notebook, and records facts of the notebook beside the log."""
