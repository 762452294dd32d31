"""Constant rows: those of a table at a point in time, which were copied into the definition.

The rows are an Arrow stream, compressed and as text, because arguments of operators are JSON. Two
constants with equal rows are equal computations: `digest` identifies the rows by their hashes, so
it does not depend on the encoding of the stream. No other argument takes part in the fingerprint.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from nosync_nb import rows
from nosync_nb.errors import CorruptLogError
from nosync_nb.expressions import Types
from nosync_nb.operators.base import Operator, Step
from nosync_nb.operators.spec import DefinitionPart, Key, Places, Spec, every_column
from nosync_nb.trace.batch import Layout, Updates, arrange

LABELS = ("rows", "checksum", "table", "epoch")
"""The arguments that do not take part in the fingerprint."""

BYTES_MAX = 16 << 20
"""The most bytes of constant rows in the definition of a stage: each catalog in the log has them"""

_DIGEST_BYTES = 16


def constant_arguments(
    types: Sequence[str], updates: Updates, table: str, epoch: int
) -> dict[str, Any]:
    """Returns the arguments of the operator that returns some rows.

    Args:
        table: the name of the table that had the rows at `epoch`, for people.

    Cost: O(n log n) for n rows.
    """
    batch = arrange(Layout(tuple(types)), updates)
    arrays = [rows.to_arrow(c, t) for c, t in zip(batch.columns, types, strict=True)]
    arrays.append(rows.to_arrow(batch.diff, "bigint"))
    record = pa.RecordBatch.from_arrays(arrays, [f"c{i}" for i in range(len(arrays))])
    plain = io.BytesIO()
    with pa.ipc.new_stream(plain, record.schema) as writer:
        writer.write_batch(record)
    packed = pa.compress(plain.getvalue(), codec="zstd", asbytes=True)
    return {
        "columns": list(range(len(types))),
        "digest": _digest(batch.khash.tobytes(), batch.diff.tobytes()),
        "count": int(batch.diff.sum()),
        "checksum": _digest(plain.getvalue()),
        "rows": base64.b85encode(packed).decode("ascii"),
        "table": table,
        "epoch": epoch,
    }


def constant_bytes(parts: Sequence[DefinitionPart]) -> int:
    """Returns the bytes of all constant rows among the parts of a definition."""
    return sum(len(part.params["rows"]) for part in parts if part.op == SPEC.op)


def _digest(*pieces: bytes) -> str:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for each in pieces:
        digest.update(each)
    return digest.hexdigest()


class ConstantRows(Operator):
    """Returns rows in its first epoch, and no change later."""

    name = "constant"
    layouts = ()
    global_row = True
    spreads = False

    def __init__(self, types: tuple[str, ...], arguments: Mapping[str, Any]) -> None:
        self.types = types
        self._arguments = arguments

    def step(self, step: Step) -> Updates | None:
        if not step.first:
            return None
        record = _record(self._arguments)
        positions = self._arguments["columns"]
        columns = [
            rows.from_arrow(record.column(place), type_)
            for place, type_ in zip(positions, self.types, strict=True)
        ]
        diff = record.column(record.num_columns - 1).to_numpy(zero_copy_only=False)
        step.add_touched(len(diff))
        return Updates(columns, np.array(diff, np.int64))

    def exchange(self) -> Layout | None:
        return None


def _record(arguments: Mapping[str, Any]) -> pa.RecordBatch:
    """Decodes the rows.

    Raises:
        CorruptLogError: their checksum does not match.
    """
    try:
        packed = pa.BufferReader(base64.b85decode(arguments["rows"]))
        with pa.CompressedInputStream(packed, "zstd") as stream:
            data = stream.read()
    except (ValueError, OSError, pa.ArrowException):
        data = b""
    if _digest(data) != arguments["checksum"]:
        raise CorruptLogError(
            f"the copied rows of '{arguments['table']}' at epoch {arguments['epoch']} are damaged",
            hint="run the cell that defines the stage again",
        )
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()


def _build(part: DefinitionPart, types: Types | None) -> Operator:
    return ConstantRows(tuple(part.schema.types), part.params)


def _narrowed(part: DefinitionPart, remaining: Sequence[int]) -> Mapping[str, Any]:
    columns = part.params["columns"]
    return {**part.params, "columns": [columns[place] for place in remaining]}


def _reads(part: DefinitionPart, wanted: Places, types: Types | None) -> Sequence[Places]:
    return ()


def _key(part: DefinitionPart, below: Sequence[Key]) -> Key:
    return None


SPEC = Spec("constant", every_column, build=_build, key=_key, reads=_reads, narrowed=_narrowed)
