"""Silence around our own calls of Spark: its errors are told once, by us.

PySpark writes every error that knows its expression to standard error, as JSON with the whole stack
of the JVM, before anybody can catch it. Of what the user's own code makes Spark do it goes on so.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_here = threading.local()


def _heard(record: logging.LogRecord) -> bool:
    return not getattr(_here, "depth", 0)


@contextmanager
def quiet() -> Iterator[None]:
    """A block in which PySpark logs no errors of this thread."""
    try:
        from pyspark.logger import PySparkLogger
    except ImportError:
        yield
        return
    for name in _LOGGERS:
        PySparkLogger.getLogger(name).addFilter(_heard)  # the second time it is there
    _here.depth = getattr(_here, "depth", 0) + 1
    try:
        yield
    finally:
        _here.depth -= 1
