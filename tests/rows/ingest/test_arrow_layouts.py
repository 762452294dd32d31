"""Arrow tables of any library: rows are accepted exactly, or refused by column."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

import nosync_nb
from nosync_nb.errors import SchemaError
from nosync_nb.rows import Schema, infer_schema, to_columns, to_pylist

DAY, TIME = date(2024, 2, 29), datetime(2024, 2, 29, 12, 30, 15, 250_000)
UTC_TIME = TIME.replace(tzinfo=UTC)
LISTS: list[Any] = [[1, None], None, [], [3]]
TEXTS = ["a", None, "", "a long text that no view keeps inside itself, é"]
BYTES = [b"a", None, b"", b"long bytes that no view keeps inside itself"]
D = Decimal

TAKEN: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {
    "bool": (pa.bool_(), [True, None, False, True], [True, None, False, True]),
    **{
        str(t): (t, [0, None, 1, 127], [0, None, 1, 127])
        for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64())
    },
    **{
        str(t): (t, [0, None, 1, 255], [0, None, 1, 255])
        for t in (pa.uint8(), pa.uint16(), pa.uint32())
    },
    "uint64": (pa.uint64(), [0, None, 1, 2**64 - 1], [D(0), None, D(1), D(2**64 - 1)]),
    "half": (pa.float16(), [np.float16(0.5), None, np.float16(2), None], [0.5, None, 2.0, None]),
    "float": (pa.float32(), [0.5, None, 2.0, float("inf")], [0.5, None, 2.0, float("inf")]),
    "double": (pa.float64(), [0.1, None, -2.0, 1e300], [0.1, None, -2.0, 1e300]),
    **{str(t): (t, TEXTS, TEXTS) for t in (pa.string(), pa.large_string(), pa.string_view())},
    **{str(t): (t, BYTES, BYTES) for t in (pa.binary(), pa.large_binary(), pa.binary_view())},
    "fixed": (pa.binary(2), [b"ab", None, b"cd", b"\0\0"], [b"ab", None, b"cd", b"\0\0"]),
    **{
        f"decimal of {t.bit_width}": (
            t,
            [D("1.50"), None, D("0"), D("-9.99")],
            [D("1.50"), None, D("0.00"), D("-9.99")],
        )
        for t in (
            pa.decimal32(5, 2),
            pa.decimal64(12, 2),
            pa.decimal128(20, 2),
            pa.decimal256(30, 2),
        )
    },
    "date32": (pa.date32(), [DAY, None, DAY, DAY], [DAY, None, DAY, DAY]),
    "date64": (pa.date64(), [DAY, None, DAY, DAY], [DAY, None, DAY, DAY]),
    **{
        f"time in {unit}": (pa.timestamp(unit), [TIME, None, TIME, TIME], [TIME, None, TIME, TIME])
        for unit in ("ms", "us", "ns")
    },
    "time in s": (
        pa.timestamp("s"),
        [datetime(2024, 1, 1), None] * 2,
        [datetime(2024, 1, 1), None] * 2,
    ),
    "instant": (pa.timestamp("ms", "America/New_York"), [UTC_TIME, None] * 2, [UTC_TIME, None] * 2),
    **{
        str(t): (t, LISTS, LISTS)
        for inner in (pa.int64(), pa.int8())
        for t in (
            pa.list_(inner),
            pa.large_list(inner),
            pa.list_view(inner),
            pa.large_list_view(inner),
        )
    },
    "fixed list": (
        pa.list_(pa.int64(), 2),
        [[1, 2], None, [3, None], [5, 6]],
        [[1, 2], None, [3, None], [5, 6]],
    ),
    "views in views": (
        pa.list_view(pa.large_list_view(pa.string_view())),
        [[["a"], None], None, [], [[], [None, TEXTS[3]]]],
        [[["a"], None], None, [], [[], [None, TEXTS[3]]]],
    ),
    "views in a struct": (
        pa.struct([("a", pa.list_view(pa.int32())), ("b", pa.string_view())]),
        [{"a": [1], "b": "x"}, None, {"a": None, "b": None}, {"a": [], "b": ""}],
        [{"a": [1], "b": "x"}, None, {"a": None, "b": None}, {"a": [], "b": ""}],
    ),
    "struct": (
        pa.struct([("a", pa.int32())]),
        [{"a": 1}, None, {"a": None}, {"a": 2}],
        [{"a": 1}, None, {"a": None}, {"a": 2}],
    ),
    "map": (
        pa.map_(pa.string(), pa.int64()),
        [[("a", 1)], None, [], [("b", None)]],
        [{"a": 1}, None, {}, {"b": None}],
    ),
    "map to views": (
        pa.map_(pa.string_view(), pa.list_view(pa.int64())),
        [[("a", [1])], None, [], [("b", None)]],
        [{"a": [1]}, None, {}, {"b": None}],
    ),
}
"""Per type four values, the second one null, and their Python values."""

REFUSED: dict[str, pa.Array] = {
    "time32": pa.array([time(1)], pa.time32("s")),
    "time64": pa.array([time(1)], pa.time64("us")),
    "interval": pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
    "null": pa.nulls(2),
    "nulls in lists": pa.array([[None]]),
    "decimal of 76 digits": pa.array([D(1)], pa.decimal256(76, 0)),
    "union": pa.UnionArray.from_dense(
        pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])]
    ),
}


def array(name: str) -> pa.Array:
    type_, values, _ = TAKEN[name]
    return pa.array(values, type_)


def layouts_of(name: str) -> dict[str, tuple[Any, list[Any]]]:
    """The array of a type in every Arrow layout, with its values."""
    whole, values = array(name), TAKEN[name][2]
    found: dict[str, tuple[Any, list[Any]]] = {
        "whole": (whole, values),
        "sliced": (whole.slice(1, 3), values[1:]),
        "tail": (whole.slice(3), values[3:]),
        "chunked": (
            pa.chunked_array([whole.slice(0, 1), whole.slice(1), whole.slice(0, 0)]),
            values,
        ),
        "empty": (whole.slice(2, 0), []),
        "no chunk": (pa.chunked_array([], whole.type), []),
        "all null": (pa.nulls(3, whole.type), [None] * 3),
    }
    places = pa.array([0, None, 2, 3], pa.int8())
    found["dictionary"] = (
        pa.DictionaryArray.from_arrays(places, whole),
        [values[0], None, *values[2:]],
    )
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3, 5, 6], pa.int32()), whole)
    spread = [values[i] for i in (0, 0, 1, 2, 2, 3)]
    found["runs"] = runs, spread
    found["runs sliced"] = runs.slice(1, 4), spread[1:5]
    return found


@pytest.mark.parametrize("name", TAKEN)
def test_every_arrow_type_is_accepted_in_every_layout(name: str) -> None:
    type_ = infer_schema(pa.table({"x": array(name)})).types[0]
    for shape, (held, expected) in layouts_of(name).items():
        table = pa.table({"x": held})
        assert infer_schema(table).types == (type_,), shape
        columns, n = to_columns(table, Schema([("x", type_)]), "input 'x'")
        assert n == len(expected), shape
        assert to_pylist(columns[0], type_) == expected, shape


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_arrow_type_is_refused_by_column(name: str) -> None:
    with pytest.raises(SchemaError, match="column 'x'"):
        infer_schema(pa.table({"x": REFUSED[name]}))


def wide() -> tuple[pa.Table, list[dict[str, Any]]]:
    """One table of all types with a key, and its rows."""
    columns: dict[str, Any] = {"id": pa.array([1, 2, 3, 4])}
    expected: dict[str, list[Any]] = {"id": [1, 2, 3, 4]}
    for at, name in enumerate(TAKEN):
        columns[f"c{at}"], expected[f"c{at}"] = array(name), TAKEN[name][2]
    listed = [dict(zip(expected, row, strict=True)) for row in zip(*expected.values(), strict=True)]
    return pa.table(columns), listed


def rows_read(collection: Any) -> list[dict[str, Any]]:
    """The rows of a collection, checked against its Arrow table."""
    rows = [dict(zip(collection.schema.names, row, strict=True)) for row in collection.rows()]
    collection.to_arrow().validate(full=True)
    assert collection.to_arrow().num_rows == len(rows)
    return sorted(rows, key=lambda row: row["id"])


def test_table_of_every_type_round_trips_through_every_method(tmp_path: Path) -> None:
    table, expected = wide()
    with nosync_nb.open(str(tmp_path / "log")) as session:
        plain, keyed = session.input("plain", table), session.input("keyed", table, key="id")
        made, upserted = session.input("made", table), session.input("upserted", table, key="id")
        plain.insert(table.slice(0, 2))
        plain.insert(table.slice(2))
        keyed.insert(table)
        made.set(pa.concat_tables([table.slice(0, 3), table.slice(3)]))
        upserted.upsert(table)
        session.commit()
        upserted.upsert(table.slice(1, 2))
        made.set(table)
        plain.insert(table.slice(0, 0))
        session.commit()
        for each in (plain, keyed, made, upserted):
            assert rows_read(each) == expected
        plain.remove(table)
        keyed.delete(table.select(["id"]))
        session.commit()
        assert (plain.count(), keyed.count()) == (0, 0)
    with nosync_nb.open(str(tmp_path / "log"), mode="r") as session:
        assert rows_read(session["made"]) == rows_read(session["upserted"]) == expected


def malformed_arrays() -> dict[str, pa.Array]:
    """Arrays with bounds, sizes or texts that contradict their types."""

    def offsets(*values: int) -> pa.Buffer:
        return pa.py_buffer(np.array(values, np.int32))

    data = pa.array([1, 2, 3])
    return {
        "text": pa.Array.from_buffers(
            pa.string(), 2, [None, offsets(0, 9, 3), pa.py_buffer(b"abc")]
        ),
        "half a character": pa.Array.from_buffers(
            pa.string(), 1, [None, offsets(0, 1), pa.py_buffer(b"\xc3")]
        ),
        "list": pa.Array.from_buffers(
            pa.list_(pa.int64()), 2, [None, offsets(0, 7, 3)], children=[data]
        ),
        "list view": pa.Array.from_buffers(
            pa.list_view(pa.int64()), 2, [None, offsets(0, 2), offsets(2, 9)], children=[data]
        ),
        "dictionary": pa.DictionaryArray.from_arrays(pa.array([0, 5]), pa.array(["a"]), safe=False),
    }


@pytest.mark.parametrize("name", malformed_arrays())
def test_malformed_array_is_refused_and_nothing_is_pending(name: str, tmp_path: Path) -> None:
    bad = malformed_arrays()[name]
    with nosync_nb.open(str(tmp_path / "log")) as session:
        data = session.input("data", pa.schema([("x", bad.type)]).empty_table())
        with pytest.raises(SchemaError, match="column 'x'"):
            data.insert(pa.Table.from_arrays([bad], ["x"]))
        assert not session.pending
        data.insert([(None,)])
        assert session.commit() == 1
        assert data.rows() == [(None,)]


POLARS: dict[str, tuple[Callable[[], pl.Series], list[Any]]] = {
    "categorical": (lambda: pl.Series(["b", None, "a"], dtype=pl.Categorical), ["b", None, "a"]),
    "enum": (lambda: pl.Series(["b", None, "a"], dtype=pl.Enum(["a", "b"])), ["b", None, "a"]),
    "list of enums": (
        lambda: pl.Series([["b"], None, ["a", None]], dtype=pl.List(pl.Enum(["a", "b"]))),
        [["b"], None, ["a", None]],
    ),
    "text": (lambda: pl.Series(["b", None, "a" * 40]), ["b", None, "a" * 40]),
    "list": (lambda: pl.Series([[1], None, []], dtype=pl.List(pl.Int16)), [[1], None, []]),
    "array": (
        lambda: pl.Series([[1, 2], None, [3, 4]], dtype=pl.Array(pl.Int64, 2)),
        [[1, 2], None, [3, 4]],
    ),
    "struct": (
        lambda: pl.Series([{"a": 1, "b": "x"}, None, {"a": 2, "b": None}]),
        [{"a": 1, "b": "x"}, None, {"a": 2, "b": None}],
    ),
    "decimal": (lambda: pl.Series([D("1.5"), None, D("2.0")]), [D("1.5"), None, D("2.0")]),
    "date": (lambda: pl.Series([DAY, None, DAY]), [DAY, None, DAY]),
    "time": (lambda: pl.Series([TIME, None, TIME]), [TIME, None, TIME]),
    "bytes": (lambda: pl.Series([b"a", None, b""]), [b"a", None, b""]),
    "bool": (lambda: pl.Series([True, None, False]), [True, None, False]),
    "uint64": (lambda: pl.Series([1, None, 3], dtype=pl.UInt64), [D(1), None, D(3)]),
}


def round_trip(rows: Any) -> list[Any]:
    schema = infer_schema(rows)
    columns, _ = to_columns(rows, schema, "input 'x'")
    return list(
        zip(*(to_pylist(c, t) for c, t in zip(columns, schema.types, strict=True)), strict=True)
    )


@pytest.mark.parametrize("name", POLARS)
def test_polars_columns_are_accepted_in_every_layout(name: str) -> None:
    make, expected = POLARS[name]
    frame = pl.DataFrame({"x": make()})
    tuples = [(value,) for value in expected]
    assert round_trip(frame) == tuples
    assert round_trip(frame[1:]) == tuples[1:]
    assert round_trip(pl.concat([frame, frame[:1]], rechunk=False)) == [*tuples, tuples[0]]
    assert round_trip(frame[:0]) == []
    assert round_trip({"x": make().to_arrow()}) == tuples


def test_duckdb_relations_are_accepted() -> None:
    relation = duckdb.sql(
        "select * from (values"
        " (1, 'a', [1, null], {'k': 1.5::decimal(5,2)}, map {'m': 1}, 'x'::enum('x', 'y'),"
        " date '2024-02-29', 2::utinyint),"
        " (2, null, null, null, null, null, null, null)) t(id, s, l, r, m, e, d, u)"
    )
    assert round_trip(relation) == [
        (1, "a", [1, None], {"k": D("1.50")}, {"m": 1}, "x", DAY, 2),
        (2, *[None] * 7),
    ]
    assert round_trip(duckdb.sql("select 1::bigint as x where false")) == []


def test_pandas_columns_are_accepted() -> None:
    frame = pd.DataFrame(
        {
            "category": pd.Categorical(["b", None, "a"]),
            "arrow": pd.array([[1], None, []], pd.ArrowDtype(pa.list_view(pa.int64()))),
            "view": pd.array(["x", None, "y" * 40], pd.ArrowDtype(pa.string_view())),
            "nullable": pd.array([1, None, 3], "Int32"),
            "zoned": pd.to_datetime(["2024-02-29", None, "2024-03-01"], utc=True),
        }
    )
    first, second = datetime(2024, 2, 29, tzinfo=UTC), datetime(2024, 3, 1, tzinfo=UTC)
    expected = [("b", [1], "x", 1, first), (None,) * 5, ("a", [], "y" * 40, 3, second)]
    assert round_trip(frame) == expected
    assert round_trip(frame.iloc[1:]) == expected[1:]


def test_numpy_records_are_matched_by_name() -> None:
    kind = [
        ("n", ">i4"),
        ("t", "M8[ns]"),
        ("s", "U3"),
        ("p", [("x", "f4"), ("y", "i2")]),
        ("a", "i8", 2),
    ]
    rows = np.array([(1, "2024-02-29T12:30:15.25", "ab", (0.5, 2), [1, 2])], kind)
    expected = [(1, TIME, "ab", {"x": 0.5, "y": 2}, [1, 2])]
    assert round_trip(rows) == round_trip(rows.view(np.recarray)) == expected
    assert round_trip(rows[:0][["n", "t"]]) == []


@pytest.mark.parametrize(
    ("rows", "hint"),
    [
        (lambda: pl.LazyFrame({"x": [1]}), ".collect()"),
        (lambda: pl.Series("x", [1]), ".to_frame()"),
        (lambda: ds.dataset(pa.table({"x": [1]})), ".to_table()"),
        (lambda: pd.DataFrame({"x": [1]}).groupby("x"), ".agg(...)"),
    ],
)
def test_unfinished_tables_are_refused_with_hint(rows: Any, hint: str) -> None:
    for refused in (
        lambda: infer_schema(rows()),
        lambda: to_columns(rows(), Schema([("x", "bigint")]), ""),
    ):
        with pytest.raises(SchemaError) as caught:
            refused()
        assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    "rows",
    [
        lambda: pl.DataFrame({"x": [None, None]}),
        lambda: pa.table({"x": [None]}),
        lambda: pd.DataFrame({"x": [None, None]}),
        lambda: [{"x": None}],
        lambda: {"x": [None]},
    ],
)
def test_all_null_column_needs_a_named_type(
    rows: Any,
) -> None:
    with pytest.raises(SchemaError, match="column 'x'") as caught:
        infer_schema(rows())
    assert "name type" in str(caught.value.hint)
    for type_ in ("bigint", "string", "array<int>", "struct<a:int>", "date", "decimal(5,2)"):
        columns, n = to_columns(rows(), Schema([("x", type_)]), "")
        assert to_pylist(columns[0], type_) == [None] * n


def test_null_in_dictionary_values_stays_null() -> None:
    held = pa.DictionaryArray.from_arrays(pa.array([1, 0, None]), pa.array(["a", None]))
    assert round_trip(pa.table({"x": held})) == [(None,), ("a",), (None,)]
    assert round_trip(pa.table({"x": pc.run_end_encode(pa.array(["a", "a", None]))})) == [
        ("a",),
        ("a",),
        (None,),
    ]
