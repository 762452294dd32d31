"""Arrow messages with compressed buffers, as an untrusted writer may send them."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa


class CompressingIpc:
    def __init__(self, codec: str) -> None:
        self._options = pa.ipc.IpcWriteOptions(compression=codec)

    def __getattr__(self, name: str) -> Any:
        return getattr(pa.ipc, name)

    def new_file(self, sink: Any, schema: pa.Schema) -> Any:
        return pa.ipc.new_file(sink, schema, options=self._options)


class CompressingArrow:
    """Arrow that compresses its files."""

    def __init__(self, codec: str) -> None:
        self.ipc = CompressingIpc(codec)

    def __getattr__(self, name: str) -> Any:
        return getattr(pa, name)


def compressed(batch: pa.RecordBatch, codec: str) -> pa.Buffer:
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    reader = pa.BufferReader(sink.getvalue())
    pa.ipc.read_message(reader)
    return pa.ipc.read_message(reader).serialize()
