"""Aggregate calls in expressions, and the aggregates there are."""
