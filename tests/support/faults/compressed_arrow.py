"""Arrow as an untrusted writer uses it: with compressed buffers, which NoSync never writes."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa


class CompressingIpc:
    """Arrow's messages with compressed buffers, as an untrusted writer makes them."""

    def __init__(self, codec: str) -> None:
        self._options = pa.ipc.IpcWriteOptions(compression=codec)

    def __getattr__(self, name: str) -> Any:
        return getattr(pa.ipc, name)

    def new_file(self, sink: Any, schema: pa.Schema) -> Any:
        return pa.ipc.new_file(sink, schema, options=self._options)


class CompressingArrow:
    """Arrow, whose files are compressed."""

    def __init__(self, codec: str) -> None:
        self.ipc = CompressingIpc(codec)

    def __getattr__(self, name: str) -> Any:
        return getattr(pa, name)


def compressed(batch: pa.RecordBatch, codec: str) -> pa.Buffer:
    """A record batch as a message, as `serialize` gives it."""
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    reader = pa.BufferReader(sink.getvalue())
    pa.ipc.read_message(reader)
    return pa.ipc.read_message(reader).serialize()
