"""Aggregate calls in expressions, and the aggregates that exist."""
