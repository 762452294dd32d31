"""Row hashes: equal to Spark's, in every physical form, for few rows and many."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from nosync_nb.errors import SchemaError
from nosync_nb.rows import arrow_type, from_arrow, hashes, objects, to_arrow, widen
from nosync_nb.rows.encoding import raw
from nosync_nb.rows.hashes import extend_hashes, hash_columns, spark_hash_sql

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "spark_hashes.json").read_text())
SCALARS = {vector["type"]: vector for vector in VECTORS["scalars"]}
MANY = 300


@pytest.fixture(
    autouse=True,
    scope="module",
    params=[(0, 1 << 20), (512, 1 << 20), (0, 200)],
    ids=["together", "one by one", "in slices"],
)
def _run_length(request: pytest.FixtureRequest) -> Iterator[None]:
    """Sets the numbers of texts of one length, and of rows, that are hashed together."""
    runs_min, slice_rows = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashes, "RUNS_MIN", runs_min)
        patch.setattr(hashes, "SLICE", slice_rows)
        yield


def parse(text: str | None, type_: str) -> Any:
    """Parses a value of the vectors into its form in a column."""
    if text is None:
        return None
    if type_ == "boolean":
        return text == "true"
    if type_ == "string":
        return text
    if type_ == "binary":
        return bytes.fromhex(text)
    if type_.startswith("decimal"):
        return Decimal(text)
    if type_ in ("float", "double"):
        return float(text) + 0.0
    if type_ == "date":
        return raw(date.fromisoformat(text), type_)
    if type_.startswith("timestamp"):
        return raw(datetime.fromisoformat(text), type_)
    return int(text)


def vector_column(type_: str) -> tuple[Any, np.ndarray[Any, Any]]:
    """Returns the values of a type in object form, and Spark's hashes of them."""
    vector = SCALARS[type_]
    hashes = np.array([int(text) for text in vector["hashes"]], np.uint64)
    return objects([parse(text, type_) for text in vector["values"]]), hashes


@pytest.mark.parametrize("type_", SCALARS)
def test_few_rows_hash_as_in_spark(type_: str) -> None:
    column, expected = vector_column(type_)
    n = len(column)
    assert expected.tolist() == hash_columns([column], [type_], n).tolist()
    assert expected.tolist() == hash_columns([to_arrow(column, type_)], [type_], n).tolist()


@pytest.mark.parametrize("type_", SCALARS)
def test_null_free_columns_hash_as_in_spark(type_: str) -> None:
    column, expected = vector_column(type_)
    column, n = column[:-1], len(column) - 1
    plain = from_arrow(to_arrow(column, type_), type_)
    assert expected[:-1].tolist() == hash_columns([plain], [type_], n).tolist()
    many = from_arrow(to_arrow(np.tile(column, MANY), type_), type_)
    assert np.tile(expected[:-1], MANY).tolist() == (
        hash_columns([many], [type_], n * MANY).tolist()
    )


@pytest.mark.parametrize("type_", SCALARS)
def test_many_rows_hash_as_in_spark(type_: str) -> None:
    column, hashes = vector_column(type_)
    many, n = np.tile(column, MANY), len(column) * MANY
    array, expected = to_arrow(many, type_), np.tile(hashes, MANY).tolist()
    assert expected == hash_columns([many], [type_], n).tolist()
    assert expected == hash_columns([array], [type_], n).tolist()
    assert expected[3:] == hash_columns([array.slice(3)], [type_], n - 3).tolist()


def test_position_of_null_changes_hash() -> None:
    pairs = VECTORS["pairs"]
    columns = [objects(list(values)) for values in zip(*pairs["rows"], strict=True)]
    expected = [int(text) for text in pairs["hashes"]]
    assert expected == hash_columns(columns, pairs["types"], len(expected)).tolist()
    assert len(set(expected)) == len(expected)


def wide_columns() -> list[Any]:
    """Returns 70 columns of 3 rows with nulls in both words of the bitmap."""
    rows = [
        [None if (r == 1 and i % 9 == 5) or (r == 2 and i == 66) else r * 100 + i for r in range(3)]
        for i in range(VECTORS["wide"]["columns"])
    ]
    return [objects(values) for values in rows]


def test_more_than_64_columns_have_second_bitmap() -> None:
    expected = [int(text) for text in VECTORS["wide"]["hashes"]]
    columns = wide_columns()
    assert expected == hash_columns(columns, ["bigint"] * len(columns), 3).tolist()


def test_widening_integers_keeps_hashes() -> None:
    column = np.array([-128, 0, 127], np.int8)
    expected = hash_columns([column], ["tinyint"], 3).tolist()
    for wider in ("smallint", "int", "bigint"):
        assert expected == hash_columns([widen(column, "tinyint", wider)], [wider], 3).tolist()


def test_strided_columns_hash_like_copies() -> None:
    column = np.arange(20)
    for n in (10, 1000):
        column = np.arange(2 * n)
        expected = hash_columns([column[::2].copy()], ["bigint"], n).tolist()
        assert expected == hash_columns([column[::2]], ["bigint"], n).tolist()


def test_rows_without_columns_have_equal_hashes() -> None:
    assert len(set(hash_columns([], [], 3).tolist())) == 1
    assert hash_columns([], [], 1000)[0] == hash_columns([], [], 1)[0]


def test_empty_column_has_no_hashes() -> None:
    assert hash_columns([np.empty(0, np.int64)], ["bigint"], 0).tolist() == []


def test_nested_values_hash_by_value() -> None:
    type_ = "array<struct<a:int,m:map<string,double>>>"
    rows = [
        [{"a": 1, "m": [("x", -0.0), ("y", 2.0)]}],
        [{"a": 1, "m": [("y", 2.0), ("x", 0.0)]}],
        [{"a": 1, "m": [("x", 0.0), ("y", None)]}],
        [],
        None,
    ]
    column = pa.array(rows, arrow_type(type_))
    hashes = hash_columns([column], [type_], 5).tolist()
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 4
    many = pa.concat_arrays([column] * MANY)
    assert hashes * MANY == hash_columns([many], [type_], 5 * MANY).tolist()


def test_nested_columns_have_no_hash_in_spark() -> None:
    with pytest.raises(SchemaError, match="no hash in Spark"):
        spark_hash_sql(["a"], ["array<int>"])


@pytest.mark.spark
def test_spark_agrees_with_vectors(spark: Any) -> None:
    rows = list(zip_longest(*(vector["values"] for vector in SCALARS.values())))
    names = [f"a {i}" for i in range(len(SCALARS))]
    casts = {"binary": "unhex({})", "timestamp": "cast({} || 'Z' as timestamp)"}
    frame = spark.createDataFrame(
        [(i, *row) for i, row in enumerate(rows)],
        "i int, " + ", ".join(f"`{name}` string" for name in names),
    )
    typed = frame.selectExpr(
        "i",
        *[
            casts.get(type_, f"cast({{}} as {type_})").format(f"`{name}`") + f" as `{name}`"
            for name, type_ in zip(names, SCALARS, strict=True)
        ],
    )
    hashes = [spark_hash_sql([name], [type_]) for name, type_ in zip(names, SCALARS, strict=True)]
    found = zip(*typed.orderBy("i").selectExpr(*hashes).collect(), strict=True)
    for (type_, vector), column in zip(SCALARS.items(), found, strict=True):
        expected = [int(text) for text in vector["hashes"]]
        assert expected == [value % 2**64 for value in column[: len(expected)]], type_


@pytest.mark.spark
def test_spark_agrees_on_null_bitmaps(spark: Any) -> None:
    names = [f"c{i}" for i in range(VECTORS["wide"]["columns"])]
    rule = "if(id = 1 and {i} % 9 = 5 or id = 2 and {i} = 66, null, id * 100 + {i}) as c{i}"
    frame = spark.range(3).selectExpr(*[rule.format(i=i) for i in range(len(names))])
    hashed = frame.selectExpr(spark_hash_sql(names, ["bigint"] * len(names))).collect()
    assert sorted(int(text) for text in VECTORS["wide"]["hashes"]) == sorted(
        row[0] % 2**64 for row in hashed
    )


@pytest.mark.parametrize("n", [5, 400])
def test_hashes_of_first_columns_extend_to_rows(n: int) -> None:
    first = objects([None if i % 3 == 0 else i for i in range(n)])
    last = [np.arange(n), objects([f"x{i}" for i in range(n)])]
    types = ["bigint", "bigint", "string"]
    start = hash_columns([first], types[:1], n)
    expected = hash_columns([first, *last], types, n).tolist()
    found = extend_hashes(start, last, types[1:], n)
    assert found is not None
    assert expected == found.tolist()
    assert hash_columns([first], types[:1], n).tolist() == start.tolist()
    assert extend_hashes(start, [first], types[:1], n) is None
