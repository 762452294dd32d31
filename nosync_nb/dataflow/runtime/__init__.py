"""The execution of an epoch over a graph."""
