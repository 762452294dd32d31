"""The keeper process, which ships the log, counts acknowledgements, and scrubs."""
