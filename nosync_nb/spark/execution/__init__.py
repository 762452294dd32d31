"""Runs operators on Spark's executors: the cost model, the placement and the bulk runs."""
