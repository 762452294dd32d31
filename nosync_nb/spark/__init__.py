"""Connects NoSync to Spark. No other package imports PySpark.

Promises: executors run the same kernels over blocks of rows, with the same results. All jobs have a
tag and can be cancelled. A Spark session of the user is used, and never stopped. Owns: the Spark
sessions that it started, the files sent to executors, the temp views, and the snapshots served to
their readers. Imports: store, dataflow, collections, operators, expressions, trace, rows, files,
errors.
"""

from nosync_nb.spark.spark_session import is_session, require_session

__all__ = ["is_session", "require_session"]
