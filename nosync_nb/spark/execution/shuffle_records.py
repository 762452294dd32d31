"""The records of Spark's shuffle: blocks of updates, and the hash ranges that they belong to.

A block is a Spark row `(place, port, payload)`. `place` is the number of a range of the key hash,
and `port` that of the input or output. The payload has rows as an Arrow stream of one record batch,
of about `BLOCK_BYTES` at most. It includes the diffs, unless all are 1 as in every load. It
includes the hashes, if the receiver sorts the rows by hash.

A block with a negative port has no rows. Its payload is a report (`REPORT`) or an error. `ERROR` is
the port for errors of the last plan of a chain; errors of earlier plans have ports below `MARK`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from nosync_nb import rows
from nosync_nb.rows.array_ops import all_true
from nosync_nb.trace.batch import Hashes, Layout, Updates, concat_updates

BLOCKS_DDL = "place int, port int, payload binary"
BLOCK_BYTES = 8 << 20
REPORT, ERROR, MARK = -1, -2, -3

_ARROW = pa.schema([("place", pa.int32()), ("port", pa.int32()), ("payload", pa.binary())])
_HALF = np.uint64(32)
_DIFF, _HASH = "diff", "hash"
_EXTRA = {_DIFF: pa.int64(), _HASH: pa.uint64()}
_MARGIN = 1 << 10
"""An upper bound of the bytes of a stream in addition to its schema and its rows."""


class ShuffleRecord(NamedTuple):
    """A block of one range: rows, a report or an error."""

    place: int
    port: int
    payload: Any


def error_port(number: int) -> int:
    """Returns the port for errors of a plan; the last plan of a chain has the number 0."""
    return ERROR if not number else MARK - number


def is_error(port: int) -> bool:
    """Returns True if a port carries errors."""
    return port == ERROR or port < MARK


@dataclass(frozen=True)
class HashRanges:
    """A division of all key hashes into `count` ranges of equal width, ascending."""

    count: int

    def low(self, place: int) -> int:
        """Returns the least hash of a range; 2**64 for the number after the last range."""
        return -(-(place << 32) // self.count) << 32

    def bounds(self, place: int) -> tuple[int, int]:
        """Returns the interval `[low, high)` of the hashes of a range."""
        return self.low(place), self.low(place + 1)

    def places(self, khash: Hashes) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Returns the number of the range of each hash."""
        numbers = ((khash >> _HALF) * np.uint64(self.count)) >> _HALF
        return numbers.astype(np.int64)


def key_hash(layout: Layout, updates: Updates) -> Hashes:
    """Returns the hashes of rows over the key of a layout."""
    columns, types = updates.columns, layout.types
    if layout.key is not None:
        columns = [columns[i] for i in layout.key]
        types = tuple(types[i] for i in layout.key)
    return rows.hash_columns(columns, types, len(updates.diff))


def cut_by_range(
    updates: Updates,
    layout: Layout,
    ranges: HashRanges,
    port: int,
    most: int | None = None,
    *,
    hashed: bool = True,
) -> Iterator[ShuffleRecord]:
    """Yields blocks of limited size, each with rows of one range of the key hash.

    Args:
        most: the approximate maximum size of a block in bytes; by default `BLOCK_BYTES`.
        hashed: True to include the hashes of the rows.

    Cost: one hash and two copies of each row.
    """
    columns, diff = updates
    n = len(diff)
    if not n:
        return
    khash = key_hash(layout, updates)
    places = ranges.places(khash)
    counts = np.bincount(places, minlength=ranges.count)
    extra: dict[str, Any] = {}
    if not columns or not all_true(diff == 1):
        extra[_DIFF] = diff
    if hashed:
        extra[_HASH] = khash
    if counts.max() < n:
        kind: Any = np.uint16 if ranges.count <= 1 << 16 else np.int64
        order = places.astype(kind).argsort(kind="stable")
        columns = [rows.take(c, order) for c in columns]
        extra = {name: values.take(order) for name, values in extra.items()}
    arrays = [rows.to_arrow(c, t) for c, t in zip(columns, layout.types, strict=True)]
    arrays += map(pa.array, extra.values())
    schema = _schema(layout.types, tuple(extra))
    record = pa.record_batch(arrays, schema=schema)
    rows_max = max(1, n * (most or BLOCK_BYTES) // max(record.nbytes, 1))
    ends = counts.cumsum().tolist()
    start = 0
    for place, end in enumerate(ends):
        while start < end:
            stop = min(end, start + rows_max)
            yield ShuffleRecord(place, port, _encoded(record.slice(start, stop - start)))
            start = stop


def _encoded(record: pa.RecordBatch) -> pa.Buffer:
    """Returns a record batch as an Arrow stream.

    Cost: one copy.
    """
    size = record.schema.serialize().size + pa.ipc.get_record_batch_size(record)
    buffer = pa.allocate_buffer(size + _MARGIN)
    with pa.FixedSizeBufferWriter(buffer) as sink:
        with pa.ipc.new_stream(sink, record.schema) as stream:
            stream.write_batch(record)
        size = sink.tell()
    return buffer.slice(0, size)


class JoinedRecords(NamedTuple):
    """The concatenated updates of blocks, and their hashes; None if a block has no hashes."""

    updates: Updates
    khash: Hashes | None


def join_records(payloads: Sequence[Any], types: Sequence[str]) -> JoinedRecords:
    """Concatenates the updates in blocks."""
    each = [_decoded(payload, types) for payload in payloads]
    hashes = [khash for _, khash in each if khash is not None]
    khash = np.concatenate(hashes) if hashes and len(hashes) == len(each) else None
    return JoinedRecords(concat_updates([updates for updates, _ in each], types), khash)


def _decoded(payload: Any, types: Sequence[str]) -> JoinedRecords:
    with pa.ipc.open_stream(pa.py_buffer(payload)) as stream:
        record = stream.read_next_batch()
    columns = [rows.from_arrow(record.column(i), t) for i, t in enumerate(types)]
    names = record.schema.names[len(types) :]
    extra = {name: record.column(len(types) + i).to_numpy() for i, name in enumerate(names)}
    diff = extra[_DIFF] if _DIFF in extra else np.ones(record.num_rows, np.int64)
    return JoinedRecords(Updates(columns, diff), extra.get(_HASH))


@lru_cache(maxsize=256)
def _schema(types: tuple[str, ...], extra: tuple[str, ...]) -> pa.Schema:
    fields = [pa.field(f"c{i}", rows.arrow_type(t)) for i, t in enumerate(types)]
    return pa.schema([*fields, *(pa.field(name, _EXTRA[name]) for name in extra)])


def to_records(blocks: Iterable[ShuffleRecord]) -> Iterator[pa.RecordBatch]:
    """Converts each block to a record batch, so that few blocks are in memory at a time."""
    for place, port, payload in blocks:
        data = pa.py_buffer(payload)
        ends = pa.py_buffer(np.array([0, data.size], np.int32))
        column = pa.Array.from_buffers(pa.binary(), 1, [None, ends, data])
        numbers = [pa.array([place], pa.int32()), pa.array([port], pa.int32())]
        yield pa.record_batch([*numbers, column], schema=_ARROW)


def from_records(records: Iterable[pa.RecordBatch]) -> Iterator[ShuffleRecord]:
    """Converts record batches to blocks; payloads share memory with the batches."""
    for record in records:
        place, port = record.column(0).to_pylist(), record.column(1).to_pylist()
        payload = record.column(2)
        for i in range(record.num_rows):
            yield ShuffleRecord(place[i], port[i], payload[i].as_buffer())


def by_range_and_port(blocks: Iterable[ShuffleRecord]) -> dict[int, dict[int, list[Any]]]:
    """Returns the payloads of blocks by range, then by port; ranges ascend."""
    payloads: dict[int, dict[int, list[Any]]] = {}
    for place, port, payload in blocks:
        payloads.setdefault(place, {}).setdefault(port, []).append(payload)
    return dict(sorted(payloads.items()))
