"""The handling of one cell: its transaction, its source, Spark code in it, and its errors."""
