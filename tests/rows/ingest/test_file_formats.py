"""Files of tables: what is read, and the position of what cannot be read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nosync_nb import SchemaError
from nosync_nb.rows import Schema, to_columns, to_pylist
from nosync_nb.rows.ingest import file_formats

ANY = "a string, b bigint"


def read(data: bytes, name: str, ddl: str) -> list[tuple[Any, ...]]:
    """The rows of a file, as an input takes them."""
    schema = Schema.parse(ddl)
    table = file_formats.table_of(data, name, schema, lambda _: None)
    columns, _ = to_columns(table, schema, "input 'files'")
    lists = (to_pylist(c, t) for c, t in zip(columns, schema.types, strict=True))
    return list(zip(*lists, strict=True))


CSV = {
    "a value of another type": (
        b"a,b\n1,2\n3,x\n",
        ANY,
        "line 3, column 'b': 'x' is not a valid bigint",
    ),
    "after empty lines": (
        b"a,b\n\n1,2\n\n\n3,x\n",
        ANY,
        "line 6, column 'b': 'x' is not a valid bigint",
    ),
    "after a value of two lines": (b'a,b\n"1\n5",2\n3,x', ANY, "line 4, column 'b': 'x' is no"),
    "in a value of two lines": (
        b'b,a\nx,"1\n5"\n',
        ANY,
        "line 2, column 'b': 'x' is not a valid bigint",
    ),
    "a name in another case": (b"A,B\n1,x\n", ANY, "line 2, column 'B': 'x' is not a valid bigint"),
    "with a byte order mark": (b"\xef\xbb\xbfb,a\nx,1\n", ANY, "line 2, column 'b': 'x' is no"),
    "a number that is too large": (
        b"b\n300\n",
        "b tinyint",
        "line 2, column 'b': '300' is not a valid tin",
    ),
    "a time": (
        b"t\n2024-13-01\n",
        "t timestamp_ntz",
        "line 2, column 't': '2024-13-01' is not a valid t",
    ),
    "a decimal": (b"d\n1.255\n", "d decimal(5,2)", "line 2, column 'd': Rescaling"),
    "bytes that are no text": (b"a,b\n1,2\n\xff,3\n", ANY, "line 3, column 'a': invalid UTF8"),
    "too few values": (b"a,b\n1,2\n3\n", ANY, "line 3: Expected 2 columns, got 1: 3"),
    "too many values": (b"a,b\n1,2\n3,4,5\n", ANY, "line 3: Expected 2 columns, got 3: 3,4,5"),
    "a type that text has not": (
        b"a,l\n1,2\n",
        "a int, l array<int>",
        "column 'l': CSV conversion",
    ),
    "far down": (b"a,b\n" + b"1,2\n" * 400_000 + b"3,x\n", ANY, "line 400002, column 'b': 'x' is"),
}


@pytest.mark.parametrize(("data", "ddl", "message"), CSV.values(), ids=list(CSV))
def test_csv_error_names_line_and_column(data: bytes, ddl: str, message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        read(data, "f.csv", ddl)
    assert str(caught.value).startswith(f"'f.csv' cannot be read as csv: {message}")
    assert caught.value.hint


JSON = {
    "a value of another type": ([{"x": 1}, {"x": "y"}], "x bigint", "line 2, column 'x': changed"),
    "a fraction": ([{"x": 1}, {"x": 1.5}], "x bigint", "line 2: Failed to convert JSON to int64"),
    "a nested value": (
        [{"x": {"a": 1}}] * 5 + [{"x": {"a": "q"}}], "x struct<a:bigint>",
        "line 6, column 'x.a': changed from number to string",
    ),
    "a map": ([{"x": {"a": 1}}], "x map<string,int>", "column 'x': JSON conversion to map"),
    "far down": ([{"x": 1}] * 20_000 + [{"x": "y"}], "x bigint", "line 20001, column 'x'"),
}  # fmt: skip


@pytest.mark.parametrize(("objects", "ddl", "message"), JSON.values(), ids=list(JSON))
def test_json_error_names_line(objects: list[Any], ddl: str, message: str) -> None:
    data = "\n".join(map(json.dumps, objects)).encode()
    with pytest.raises(SchemaError) as caught:
        read(data, "f.json", ddl)
    assert str(caught.value).startswith(f"'f.json' cannot be read as json: {message}")
    assert caught.value.hint


def test_empty_json_lines_are_counted() -> None:
    with pytest.raises(SchemaError, match="line 5, column 'x': changed from number to string"):
        read(b'\n{"x": 1}\n\n\n{"x": "y"}\n{"x": "z"}\n', "f.jsonl", "x bigint")


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ({"a": 1, "b": 2}, "leave out b or declare it"),
        ({"a": 1, "b": {"c": [1]}, "d": 2}, "leave out b, d or declare it"),
    ],
)
def test_nested_json_with_other_fields_is_refused_with_hint(value: Any, hint: str) -> None:
    with pytest.raises(
        SchemaError, match=r"column 'x', row 0: .* does not have the fields"
    ) as caught:
        read(json.dumps({"x": value}).encode(), "f.json", "x struct<a:bigint>")
    assert caught.value.hint == hint


def test_csv_columns_have_declared_types_in_any_case() -> None:
    assert read(b"A,b\n007,1\n", "f.csv", ANY) == [("007", 1)]
    with pytest.raises(SchemaError, match="unknown column 'c'"):
        read(b"A,c\n007,1\n", "f.csv", ANY)
