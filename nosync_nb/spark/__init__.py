"""Spark: everything that needs it. PySpark is imported here alone.

Promises: the same kernels over blocks of rows on executors, the same rows; jobs are tagged and can
be cancelled; a session of the user's is used and never stopped. Owns: sessions that it started,
what executors were sent, views and the answers to their readers. Imports: store, dataflow,
collections, operators, expressions, trace, rows, files, errors.
"""

from nosync_nb.spark.spark_session import is_session, require_session

__all__ = ["is_session", "require_session"]
