"""Measured properties: leaks, work, damage."""
