"""The table of functions: from a call to its node."""
