"""Streaming DataFrames: Spark passes on their micro-batches one by one.

Spark does so in a thread of its own. The query's checkpoint records its progress, and Spark writes
it after the function that takes a micro-batch returns. After a kill between the two, the last
micro-batch is delivered twice, with the same number.

The DataFrame of a micro-batch belongs to a copy of the user's session, which ends with the query:
no view is made there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from nosync_nb.errors import NosyncError, SchemaError
from nosync_nb.rows import Schema
from nosync_nb.spark import error_translation, ingest
from nosync_nb.spark.launch import is_connect


class _MicroBatch(threading.local):
    """Records whether this thread is processing a micro-batch."""

    on = False

    def __enter__(self) -> None:
        self.on = True

    def __exit__(self, *_: object) -> None:
        self.on = False


handing = _MicroBatch()
"""In a `with` block the DataFrames of this thread are those of micro-batches."""


TRIGGERS = ("processingTime", "availableNow", "once")
"""The supported triggers; `continuous` makes no batches."""


def check_stream(frame: Any, schema: Schema, name: str, trigger: Mapping[str, Any]) -> None:
    """Raises unless the rows of a DataFrame can become those of an input, one batch at a time.

    Raises:
        SchemaError: the DataFrame is not streaming or has other columns, or the trigger is unknown.
        NosyncError: the DataFrame is one of Spark Connect.
    """
    what = f"stream into '{name}'"
    unknown = [each for each in trigger if each not in TRIGGERS]
    if unknown:
        raise SchemaError(
            f"{what}: there is no trigger {unknown[0]!r}",
            hint=f"use one of {', '.join(TRIGGERS)}",
        )
    if getattr(frame, "isStreaming", None) is not True:
        raise SchemaError(
            f"{what}: {type(frame).__name__} is not a streaming DataFrame",
            hint="create one with spark.readStream, or insert other DataFrames with insert(rows)",
        )
    if is_connect(frame.sparkSession):
        raise NosyncError(
            f"{what}: Spark Connect processes batches at its server, not in this process",
            hint="use a classic Spark session, or write files and watch() their folder",
        )
    ingest.check_columns(frame, schema, name)


def start_query(
    frame: Any,
    take: Callable[[Any, int], None],
    checkpoint: str,
    trigger: Mapping[str, Any],
    *,
    name: str,
) -> Any:
    """Starts a query that passes on its micro-batches. Returns Spark's `StreamingQuery`.

    Args:
        name: the input's name, for errors.
        take: called with the rows of a batch and its number; if it raises, the query ends.
        checkpoint: a folder or a URL where Spark records its progress.
        trigger: when batches are made, as `DataStreamWriter.trigger` takes it.

    Raises:
        NosyncError: Spark refuses the query; has the reason.
    """
    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
    try:
        if trigger:
            writer = writer.trigger(**trigger)
        return writer.start()
    except Exception as error:
        raise error_translation.query_error(error, f"stream into {name}") from error


def drain_batch(frame: Any) -> None:
    """Executes a micro-batch whose rows are already committed, so that the query advances."""
    frame.write.format("noop").mode("overwrite").save()
