"""Writes: inputs, transactions and commits, up to the published epoch."""
