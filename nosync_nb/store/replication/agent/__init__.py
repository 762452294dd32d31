"""The keeper: it ships the log, counts acknowledgements, and scrubs."""
