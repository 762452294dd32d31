"""State, catalog and branches as of an epoch."""
