"""Access to stages from Spark: DataFrames, temp views and a data source."""
