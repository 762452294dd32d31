"""Streams: streaming DataFrames, whose micro-batches Spark hands on one by one.

It does so in a thread of its own. What it has handed on is in the checkpoint of the query, which
Spark writes when who takes a micro-batch has returned: the last one may come twice, after a kill
between the two, and under the same number.

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


class _Handing(threading.local):
    """Whether this thread takes a micro-batch."""

    on = False

    def __enter__(self) -> None:
        self.on = True

    def __exit__(self, *_: object) -> None:
        self.on = False


handing = _Handing()
"""In a `with` block the DataFrames of this thread are those of micro-batches."""


TRIGGERS = ("processingTime", "availableNow", "once")
"""When batches are made; `continuous` makes none."""


def check_stream(frame: Any, schema: Schema, name: str, trigger: Mapping[str, Any]) -> None:
    """Raises unless the rows of a DataFrame can become those of an input, one batch at a time.

    Raises:
        SchemaError: it is no streaming one, or has other columns; there is no such trigger.
        NosyncError: it is one of Spark Connect.
    """
    what = f"stream into '{name}'"
    unknown = [each for each in trigger if each not in TRIGGERS]
    if unknown:
        raise SchemaError(
            f"{what}: there is no trigger {unknown[0]!r}",
            hint=f"those of Spark's writers are {', '.join(TRIGGERS)}",
        )
    if getattr(frame, "isStreaming", None) is not True:
        raise SchemaError(
            f"{what}: {type(frame).__name__} is no streaming DataFrame",
            hint="make one with spark.readStream; insert(rows) takes other DataFrames",
        )
    if is_connect(frame.sparkSession):
        raise NosyncError(
            f"{what}: of Spark Connect, which hands batches on where its server is, not here",
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
    """Starts a query that hands its micro-batches on; Spark's `StreamingQuery`.

    Args:
        name: of the input, for errors.
        take: gets the rows of one, and its number; if it raises, the query ends.
        checkpoint: a folder or a URL where Spark keeps how far it is.
        trigger: when batches are made, as `DataStreamWriter.trigger` takes it.

    Raises:
        NosyncError: Spark refuses it, and why.
    """
    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
    try:
        if trigger:
            writer = writer.trigger(**trigger)
        return writer.start()
    except Exception as error:
        raise error_translation.query_error(error, f"stream into {name}") from error


def drain_batch(frame: Any) -> None:
    """Executes a micro-batch whose rows are known: the query keeps what it is told by them."""
    frame.write.format("noop").mode("overwrite").save()
