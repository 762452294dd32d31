"""Measures the cost of replicas: for an epoch, after a kill, and after the loss of a disk."""
