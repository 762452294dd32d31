"""Everything that needs Spark: sessions, ingest, kernels on executors, expressions, views."""
