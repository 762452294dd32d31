"""Stages as DataFrames, temp views and a data source."""
