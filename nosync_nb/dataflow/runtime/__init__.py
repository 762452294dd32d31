"""The execution of one epoch: changes, executors, result."""
