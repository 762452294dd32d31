"""Tables out of the bytes of files: Parquet, CSV and JSON lines.

Texts are read with the types of the columns that they are for, so that `007` in a column of texts
stays that. Names and types are not checked here: whoever takes the table does that.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable

import pyarrow as pa

from nosync_nb.errors import SchemaError
from nosync_nb.rows.schema import Schema

KINDS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
"""What is read, by the ending of the file's name."""


def kind_of(path: str) -> str | None:
    """What a file holds by its name; None: nothing that is read."""
    return KINDS.get(os.path.splitext(path)[1].lower())


class _Source(io.BytesIO):
    """The bytes of a file, which tell how many of them are read.

    Threads: who reads holds a lock of its own.
    """

    def __init__(self, data: bytes, told: Callable[[int], None]) -> None:
        super().__init__(data)
        self._told = told

    def read(self, size: int | None = -1) -> bytes:
        """Reads so many bytes more, or all."""
        part = super().read(size)
        self._told(len(part))
        return part


def table_of(data: bytes, path: str, schema: Schema, read: Callable[[int], None]) -> pa.Table:
    """The table in a file.

    Args:
        path: for its ending, and for messages.
        schema: of the columns that are wanted.
        read: told how many bytes more were taken to be decoded, in any thread.

    Raises:
        SchemaError: it is not what its name says, or texts are no values of their columns.
    """
    source = pa.PythonFile(_Source(data, read), mode="r")
    kind = kind_of(path)
    try:
        if kind == "parquet":
            from pyarrow import parquet

            return parquet.read_table(source)
        if not data.strip():
            return schema.arrow.empty_table()
        if kind == "csv":
            from pyarrow import csv

            types = {field.name: field.type for field in schema.arrow}
            return csv.read_csv(source, convert_options=csv.ConvertOptions(column_types=types))
        from pyarrow import json

        return json.read_json(source, parse_options=json.ParseOptions(explicit_schema=schema.arrow))
    except (pa.ArrowException, OSError, ValueError) as error:
        said = str(error).strip().partition("\n")[0]
        raise SchemaError(
            f"'{path}' cannot be read as {kind}: {said}",
            hint="write it anew; a file that is replaced is read again",
        ) from None
