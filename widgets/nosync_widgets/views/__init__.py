"""Implements the views that a user opens."""
