"""Batches: how many rows Spark hands to Python at a time, said for one job of ours.

Since 4.1 Spark looks after each row how many bytes a batch has come to, which takes it as long as
all else that it does for the row. Rows of numbers are all about as long, so to count them is
enough. A session is never configured: what is said here holds for the jobs of this thread, and
what the user has said himself goes first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from nosync_nb.rows.types import FIXED
from nosync_nb.spark.launch import Spark, is_connect
from nosync_nb.spark.spark_session import optimized_plan

ROWS = 1000
"""So many rows a batch has then; it is also the most blocks that a batch of blocks has."""

BLOCK_BYTES = 128 << 10
"""How large blocks are then, about, so that a batch of them has 128 MiB at most."""

_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_SAID = {_BYTES: str(2**31 - 1), _ROWS: str(ROWS)}  # Spark's word for: do not look
_PYTHON = re.compile("python|pandas|arrow", re.IGNORECASE)


def can_count_rows(spark: Spark, frame: Any, types: Sequence[str]) -> bool:
    """Whether batches of a frame need no look at their bytes.

    Not if it has columns of any length, or functions of the user in Python, which would be given
    other batches than they are used to; nor if the user has said how large batches are to be.

    Args:
        types: the columns that are handed over.

    Cost: some ms.
    """
    if is_connect(spark) or not all(type_ in FIXED for type_ in types):
        return False
    try:
        said = spark.conf.getAll
        if _ROWS in said or _BYTES in said:
            return False
        spark.conf.get(_BYTES)  # who does not know it does not look
        plan = optimized_plan(frame).toString()
    except Exception:  # what is wrong with a DataFrame shows when it is executed
        return False
    return _PYTHON.search(str(plan)) is None


@contextmanager
def rows_per_batch(spark: Spark, *, wanted: bool) -> Iterator[None]:
    """Has jobs that this thread starts inside count rows, not bytes, if that is wanted."""
    if not wanted:
        yield
        return
    context = spark.sparkContext
    before = {key: context.getLocalProperty(key) for key in _SAID}
    try:
        for key, value in _SAID.items():
            context.setLocalProperty(key, value)
        yield
    finally:
        for key, old in before.items():
            context.setLocalProperty(key, old)
