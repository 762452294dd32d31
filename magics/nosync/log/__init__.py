"""Which log belongs to the notebook, and what the log remembers of it."""
