"""Durability levels, recovery frontiers and replication of a session."""
