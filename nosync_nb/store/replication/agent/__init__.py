"""The keeper: ships the log, counts acknowledgements, scrubs."""
