"""Merges, checkpoints, downsampling of history, and disk usage."""
