"""Recovers a log at opening, and repairs damaged files."""
