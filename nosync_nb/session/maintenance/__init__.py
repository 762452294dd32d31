"""Merges, checkpoints, retention, disk usage, verification."""
