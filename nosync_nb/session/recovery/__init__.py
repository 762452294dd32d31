"""Opening a log: what is recovered, restored and repaired."""
