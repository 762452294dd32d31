"""Shared state of a session: lock, snapshot, redo records, worker."""
