"""State, catalog and branches at an epoch."""
