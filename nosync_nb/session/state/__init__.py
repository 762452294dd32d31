"""State that the services of a session share: lock, snapshot, transactions, worker, reports."""
