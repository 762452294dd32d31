"""Operators on executors: placement, cost, exchange, tasks."""
