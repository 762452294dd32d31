"""State that the services of a session share: lock, snapshot, redo records, worker."""
