"""Spark's access to stages: DataFrames, temp views and a data source."""
