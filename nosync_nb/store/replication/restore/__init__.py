"""Reads lost logs, missing files and repairs back from replicas."""
