"""Persist levels, frontiers and replication of a session."""
