"""Reads tables from the bytes of files: Parquet, CSV and JSON lines.

Text is parsed with the types of the requested columns, so that `007` in a column of text stays
text. The caller checks names and types.
"""

from __future__ import annotations

import csv as csv_lines
import io
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

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
"""The supported formats, by the extension of the file's name."""

NEWLINE = b"\n"

_SOUGHT_BYTES = 1 << 26
_RECORD = re.compile(r"Row #(\d+)")
_COLUMN = re.compile(r"In CSV column #(\d+)")
_UNSUPPORTED = re.compile(r"conversion to (.*) is not supported")
_VALUE = re.compile(r"CSV conversion error to [^:]*: invalid value ('.*')$")
_PREFIX = re.compile(
    r"^(In CSV column #\d+: )?(CSV parse error: )?(Row #\d+: )?(CSV conversion error to [^:]*: )?"
)
_LINE = re.compile(rb"[^\n]*\S[^\n]*(\n|$)")
_JSON_COLUMN = re.compile(r"Column\(/([^)]*)\) ")
_JSON_PREFIX = re.compile(r"^(JSON parse error: )?(Column\([^)]*\) )?| in row \d+$")


def kind_of(path: str) -> str | None:
    """Returns the format of a file by the extension of its name; None if it is not supported."""
    return KINDS.get(os.path.splitext(path)[1].lower())


class _Source(io.BytesIO):
    """The bytes of a file; reports the number of bytes that are read.

    Threads: a reader holds a lock of its own.
    """

    def __init__(self, data: bytes, told: Callable[[int], None]) -> None:
        super().__init__(data)
        self._told = told

    def read(self, size: int | None = -1) -> bytes:
        """Reads at most `size` bytes, or all remaining bytes."""
        part = super().read(size)
        self._told(len(part))
        return part


def table_of(data: bytes, path: str, schema: Schema, read: Callable[[int], None]) -> pa.Table:
    """Returns the table in a file.

    Args:
        path: determines the format by its extension; also for messages.
        schema: the requested columns.
        read: called with the number of further bytes that were decoded, in any thread.

    Raises:
        SchemaError: if the content does not have the format of the file's name, or if a text is not
            a value of its column.
    """
    source = pa.PythonFile(_Source(data, read), mode="r")
    kind = kind_of(path)
    try:
        if kind == "parquet":
            from pyarrow import parquet

            return parquet.read_table(source)
        if not data.strip():
            return schema.arrow.empty_table()
        return _csv(data, source, schema) if kind == "csv" else _json(source, schema)
    except (pa.ArrowException, OSError, ValueError) as error:
        text = str(error).strip().partition("\n")[0]
        hint = "replace the file, and it is read again"
        if kind == "csv":
            text = _csv_error(data, schema) or text
        elif kind == "json":
            text = _json_error(data, schema, text)
        if isinstance(error, pa.ArrowNotImplementedError):
            hint = "write Parquet, which holds every type"
        raise SchemaError(f"'{path}' cannot be read as {kind}: {text}", hint=hint) from None


def _csv(data: bytes, source: Any, schema: Schema, *, threads: bool = True) -> pa.Table:
    """Parses CSV; types are matched to columns by name, also in another case."""
    from pyarrow import csv

    types = {}
    for name in _header(data):
        with suppress(SchemaError):  # the caller refuses unknown columns
            types[name] = schema.arrow.field(schema.index(name)).type
    return csv.read_csv(
        source,
        read_options=csv.ReadOptions(use_threads=threads),
        convert_options=csv.ConvertOptions(column_types=types),
    )


def _json(source: Any, schema: Schema) -> pa.Table:
    from pyarrow import json

    return json.read_json(source, parse_options=json.ParseOptions(explicit_schema=schema.arrow))


def _records(data: bytes) -> Iterator[tuple[int, list[str]]]:
    """Yields the non-empty records of a CSV file, each with the line on which it begins."""
    text = io.TextIOWrapper(io.BytesIO(data), "utf-8-sig", "replace", newline="")
    reader, line = csv_lines.reader(text), 1
    with suppress(csv_lines.Error):
        for record in reader:
            if record:
                yield line, record
            line = reader.line_num + 1


def _header(data: bytes) -> list[str]:
    return next((record for _, record in _records(data)), [])


def _csv_error(data: bytes, schema: Schema) -> str:
    """Returns a description of the error in a CSV file, with line and column; empty if unknown.

    Cost: parses the file again in one thread, because Arrow numbers records only then.
    """
    try:
        _csv(data, io.BytesIO(data), schema, threads=False)
    except (pa.ArrowException, ValueError) as error:
        text = str(error).strip().partition("\n")[0]
    else:
        return ""
    names, where = _header(data), []
    record, column = _RECORD.search(text), _COLUMN.search(text)
    if record is not None:
        at = int(record[1]) - 1  # Arrow counts from 1, and the header is record 1
        line = next((line for line, _ in islice(_records(data), at, None)), None)
        where += [] if line is None else [f"line {line}"]
    if column is not None and int(column[1]) < len(names):
        name = names[int(column[1])]
        where.append(f"column {name!r}")
        with suppress(SchemaError):
            type_ = schema.fields[schema.index(name)].type
            text = _VALUE.sub(lambda value: f"{value[1]} is not a valid {type_}", text)
    where += _unsupported(text, schema)
    return ": ".join([*filter(None, [", ".join(where)]), _PREFIX.sub("", text)])


def _unsupported(text: str, schema: Schema) -> list[str]:
    """Returns the first column whose type Arrow cannot parse, if that is the error."""
    type_ = _UNSUPPORTED.search(text)
    if type_ is None:
        return []
    return [f"column {field.name!r}" for field in schema.arrow if str(field.type) == type_[1]][:1]


def _json_error(data: bytes, schema: Schema, text: str) -> str:
    """Returns a description of the error in JSON lines, with the line.

    Arrow counts rows only within a block. Therefore the line is found by bisection: the shortest
    prefix of the file that fails ends with it.

    Cost: parses the file about twenty times; a file above `_SOUGHT_BYTES` is not parsed again.
    """
    unsupported = _unsupported(text, schema)
    if unsupported or len(data) > _SOUGHT_BYTES:
        return ": ".join([*unsupported, text])
    ends = [line.end() for line in _LINE.finditer(data)]
    low, high = 0, len(ends) - 1
    while low < high:
        middle = (low + high) // 2
        try:
            _json(io.BytesIO(data[: ends[middle]]), schema)
            low = middle + 1
        except (pa.ArrowException, ValueError):
            high = middle
    try:
        _json(io.BytesIO(data[: ends[low]]), schema)
    except (pa.ArrowException, ValueError) as error:
        text = str(error).strip().partition("\n")[0]
    column = _JSON_COLUMN.search(text)
    where = f"line {1 + data.count(NEWLINE, 0, ends[low] - 1)}"
    if column is not None:
        where += f", column {column[1].replace('/', '.')!r}"
    return f"{where}: {_JSON_PREFIX.sub('', text)}"
