"""Runs operators on Spark's executors: where each runs, with which cost, and how."""
