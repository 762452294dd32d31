"""Reads back from replicas: lost logs, missing files, and repairs."""
