"""Conversion of inserted data: shapes are matched by name, values are exact or refused."""

from __future__ import annotations

import math
import struct
from collections import namedtuple
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from row_strategies import typed_values

from nosync_nb.errors import SchemaError
from nosync_nb.rows import Schema, arrow_type, encode, infer_schema, to_columns, to_pylist
from nosync_nb.rows.encoding import encode_column

FLIGHTS = Schema.parse("carrier string, flight int, delay double")
ROWS = [("AA", 1, 2.5), ("UA", 2, None)]
TWO = Schema.parse("a int, b int")


class Flight(NamedTuple):
    delay: float | None
    carrier: str
    flight: int


def read(rows: Any, schema: Schema) -> list[tuple[Any, ...]]:
    """Converts rows to columns and back."""
    columns, n = to_columns(rows, schema, "input 'flights'")
    lists = [to_pylist(c, t) for c, t in zip(columns, schema.types, strict=True)]
    assert {len(values) for values in lists} == {n}
    return list(zip(*lists, strict=True))


def one(value: Any, type_: str) -> Any:
    """Converts one value to a column and back."""
    return read([(value,)], Schema([("x", type_)]))[0][0]


@pytest.mark.parametrize(
    "rows",
    [
        ROWS,
        tuple(ROWS),
        iter(ROWS),
        [list(row) for row in ROWS],
        [dict(zip(FLIGHTS.names, row, strict=True)) for row in ROWS],
        [{"delay": d, "FLIGHT": f, "carrier": c} for c, f, d in ROWS],
        [Flight(d, c, f) for c, f, d in ROWS],
        {"flight": [1, 2], "carrier": ["AA", "UA"], "delay": [2.5, None]},
        {"flight": np.array([1, 2]), "carrier": pa.array(["AA", "UA"]), "delay": (2.5, None)},
        pd.DataFrame({"delay": [2.5, None], "carrier": ["AA", "UA"], "flight": [1.0, 2.0]}),
        pa.table({"flight": [1, 2], "carrier": ["AA", "UA"], "delay": [2.5, None]}),
        pa.table([["AA", "UA"], pa.array([1, 2], pa.int32()), [2.5, None]], FLIGHTS.arrow),
        pa.record_batch({"flight": [1, 2], "carrier": ["AA", "UA"], "delay": [2.5, None]}),
    ],
    ids=lambda rows: type(rows).__name__,
)
def test_every_shape_holds_the_same_rows(rows: Any) -> None:
    assert read(rows, FLIGHTS) == ROWS


def test_named_tuples_with_renamed_fields_are_positional() -> None:
    schema = Schema.parse("class string, n int")
    renamed = namedtuple("row", ["class", "n"], rename=True)
    assert read([renamed("x", 1)], schema) == [("x", 1)]


def test_structured_and_square_numpy_arrays_are_rows() -> None:
    assert read(np.array([[1, 2], [3, 4]]), TWO) == [(1, 2), (3, 4)]
    assert read(np.array([(2, 1)], [("b", "i4"), ("a", "i8")]), TWO) == [(1, 2)]


def test_empty_data_has_no_rows() -> None:
    empties = (
        [],
        {"a": [], "b": []},
        pa.table({"a": [], "b": []}),
        pd.DataFrame(columns=["a", "b"]),
    )
    for rows in empties:
        assert read(rows, TWO) == []


def test_dicts_of_one_column_are_rows() -> None:
    columns, n = to_columns([{"a": 1}, {"a": None}], Schema.parse("a int"), "")
    assert (to_pylist(columns[0], "int"), n) == ([1, None], 2)


class Streaming:
    """A single column of a library that exports Arrow streams."""

    def __arrow_c_stream__(self, requested: object = None) -> object:
        raise TypeError("it is one column\nand no table")


@pytest.mark.parametrize(
    ("rows", "message", "hint"),
    [
        ([(1, 2), (3,)], "row 1 has 1 values for 2 columns", "the columns are a, b"),
        ([{"a": 1}], "row 0: column 'b' is missing", "fill it with None"),
        ([{"a": 1, "b": 2}, {"a": 1, "c": 2}], "row 1: unknown column 'c'", "columns are a, b"),
        ((1, 2), "row 0 is 1, not a tuple or dict", r"[(...)]"),
        ({"a": 1, "b": 2}, "column 'a': 1 is not a column", "[{...}]"),
        ({"a": [1], "b": []}, "columns differ in length: a 1, b 0", None),
        ("text", "'text' is not a list of rows or a table", "a list of tuples"),
        (7, "7 is not a list of rows or a table", "a list of tuples"),
        (pa.table({"a": [1]}), "column 'b' is missing", "fill it with None"),
        (pd.DataFrame({"a": [1], "b": [1], "z": [1]}), "unknown column 'z'", "columns are a, b"),
        (pa.table([[1], [2]], ["a", "A"]), "column 'a' occurs twice", None),
        ([(1, "x")], "column 'b', row 0: 'x' is not a valid int", "strings are not parsed"),
        (Streaming(), "a Streaming is not a table: it is one column", ".to_frame()"),
    ],
)
def test_mismatched_data_is_refused_with_remedy(rows: Any, message: str, hint: str | None) -> None:
    with pytest.raises(SchemaError) as caught:
        to_columns(rows, TWO, "input 'flights'")
    assert str(caught.value).startswith(f"input 'flights': {message}")
    assert (hint or "") in (caught.value.hint or "")


def test_scalar_for_one_column_gets_a_hint() -> None:
    with pytest.raises(SchemaError, match="row 0 is 5") as caught:
        to_columns([5], Schema.parse("x int"), "xs")
    assert caught.value.hint == "write a tuple of one: (5,)"


@pytest.mark.parametrize(
    ("value", "type_", "expected"),
    [
        (517.0, "int", 517),
        (np.int64(5), "tinyint", 5),
        (np.float32(2), "bigint", 2),
        (Decimal("3.00"), "int", 3),
        (2**53, "double", float(2**53)),
        (0.1, "float", float(np.float32(0.1))),
        (1, "decimal(5,2)", Decimal("1.00")),
        (0.5, "decimal(5,2)", Decimal("0.50")),
        (Decimal("1e2"), "decimal(5,2)", Decimal("100.00")),
        (np.str_("x"), "string", "x"),
        (bytearray(b"x"), "binary", b"x"),
        (np.bool_(True), "boolean", True),
        (datetime(2024, 2, 29), "date", date(2024, 2, 29)),
        (np.datetime64("2024-02-29"), "date", date(2024, 2, 29)),
        (pd.Timestamp("2024-02-29"), "date", date(2024, 2, 29)),
        (datetime(2024, 1, 1), "timestamp", datetime(2024, 1, 1, tzinfo=UTC)),
        (datetime(2024, 1, 1), "timestamp_ntz", datetime(2024, 1, 1)),
        (pd.NaT, "timestamp", None),
        (np.datetime64("NaT"), "timestamp_ntz", None),
        (pd.NA, "int", None),
        ([1, None], "array<bigint>", [1, None]),
        ((1, "x"), "struct<a:int,b:string>", {"a": 1, "b": "x"}),
        ({"a": 1.0}, "map<string,int>", {"a": 1}),
    ],
)
def test_values_are_converted_exactly(value: Any, type_: str, expected: Any) -> None:
    found = one(value, type_)
    assert expected == found
    assert type(found) is type(expected)


def test_time_zones_are_converted_to_utc() -> None:
    there = datetime(2024, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    assert one(there, "timestamp") == datetime(2024, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "type_", "message"),
    [
        (300, "tinyint", "300 does not fit tinyint"),
        (2**63, "bigint", "does not fit bigint"),
        (True, "int", "True is not a valid int"),
        (1, "boolean", "1 is not a valid boolean"),
        (517.5, "int", "517.5 is not exactly int"),
        (math.nan, "int", "nan is not a valid int"),
        (math.inf, "bigint", "inf is not exactly bigint"),
        (2**53 + 1, "double", "is not exactly double"),
        (10**400, "double", "does not fit double"),
        (1e300, "float", "does not fit float"),
        (0.1, "decimal(5,2)", "is not exactly decimal"),
        (Decimal("1000"), "decimal(5,2)", "does not fit decimal"),
        (Decimal("1e99999"), "decimal(5,2)", "does not fit decimal"),
        (Decimal("NaN"), "decimal(5,2)", "is not a valid decimal"),
        (True, "decimal(5,2)", "True is not a valid decimal"),
        ("1.5", "decimal(5,2)", "'1.5' is not a valid decimal"),
        (np.bool_(True), "double", "is not a valid double"),
        ("1.5", "double", "'1.5' is not a valid double"),
        ("1.5", "float", "'1.5' is not a valid float"),
        (1, "string", "1 is not a valid string"),
        ("\ud800", "string", "half a surrogate pair"),
        ("x", "binary", "'x' is not a valid binary"),
        ("2024-01-01", "date", "is not a valid date"),
        (datetime(2024, 1, 1, 5), "date", "not exactly a date"),
        (date(2024, 1, 1), "timestamp", "is not a valid timestamp"),
        (datetime(2024, 1, 1, tzinfo=UTC), "timestamp_ntz", "has a time zone"),
        (pd.Timestamp("2024-01-01 00:00:00.000000001"), "timestamp_ntz", "is not exactly"),
        (np.datetime64("2024-01-01T00:00:00.000000001"), "timestamp", "is not exactly"),
        ("abc", "array<string>", "is not a valid array"),
        ([300], "array<tinyint>", "does not fit tinyint"),
        ({"a": 1}, "struct<b:int>", "does not have the fields"),
        ({None: 1}, "map<string,int>", "has a null as key"),
        ([("a", 1), ("a", 2)], "map<string,int>", "has a key twice"),
        ([1], "map<string,int>", "is not a valid map"),
        (["ab"], "map<string,string>", "is not a valid map"),
        (2.0**53, "bigint", r"is a float of 2\^53 or more"),
        (np.float32(2**60), "bigint", r"is a float of 2\^53 or more"),
        (2.0**53, "decimal(20,0)", "cannot hold all digits"),
        (1.5, "decimal(38,18)", "cannot hold all digits"),
        ([2.0**53], "array<bigint>", r"is a float of 2\^53 or more"),
        ({"a": 1}, "struct<a:int,b:int>", "does not have the fields"),
    ],
)
def test_unfit_value_error_names_column_and_row(value: Any, type_: str, message: str) -> None:
    with pytest.raises(SchemaError, match="input 's': column 'x', row 1: .*" + message) as caught:
        to_columns([(None,), (value,)], Schema([("x", type_)]), "input 's'")
    assert caught.value.hint


def test_nan_is_null_only_from_pandas() -> None:
    schema = Schema.parse("x double")
    frame = pd.DataFrame({"x": [math.nan, 1.0]})
    assert read(frame, schema) == [(None,), (1.0,)]
    assert read({"x": frame["x"]}, schema) == [(None,), (1.0,)]
    for rows in ([(math.nan,)], pa.table({"x": [math.nan]}), {"x": np.array([math.nan])}):
        assert math.isnan(read(rows, schema)[0][0])


STRANGE = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]


@pytest.mark.parametrize("type_", ["double", "float"])
@pytest.mark.parametrize("others", [[], [None], [1.0], [None] * 5000])
def test_nan_and_zero_are_canonical_from_every_source(
    type_: str, others: list[float | None]
) -> None:
    values = [*others, STRANGE, -0.0]
    array = pa.array(values, arrow_type(type_))
    ways: list[Any] = [[(v,) for v in values], pa.table({"x": array}), {"x": values}]
    if None not in others:
        ways.append({"x": np.array(values)})
    for rows in ways:
        *_, nan, zero = (row[0] for row in read(rows, Schema([("x", type_)])))
        assert struct.pack("<d", nan) == struct.pack("<d", math.nan)
        assert struct.pack("<d", zero) == struct.pack("<d", 0.0)


def test_pandas_columns_convert_exactly() -> None:
    schema = Schema.parse("i int, s string, t timestamp_ntz, d date, o bigint, c string, n tinyint")
    frame = pd.DataFrame(
        {
            "i": [517.0, math.nan],
            "s": ["x", None],
            "t": [pd.Timestamp("2024-01-01"), pd.NaT],
            "d": [pd.Timestamp("2024-01-01"), pd.NaT],
            "o": pd.Series([1, None], dtype=object),
            "c": pd.Series(["a", None], dtype="category"),
            "n": pd.Series([5, None], dtype="Int64"),
        }
    )
    first = (517, "x", datetime(2024, 1, 1), date(2024, 1, 1), 1, "a", 5)
    assert read(frame, schema) == [first, (None,) * 7]
    with pytest.raises(SchemaError, match=r"column 'i', row 1: 1\.5 is not exactly int"):
        to_columns(pd.DataFrame({"i": [1.0, 1.5]}), Schema.parse("i int"), "s")


@pytest.mark.parametrize(
    ("array", "type_", "row"),
    [
        (pa.array([1, 300]), "tinyint", 1),
        (pa.array([1.0, math.nan]), "int", 1),
        (pa.array([0.5, 1e300]), "float", 1),
        (pa.array([2**53 + 1]), "double", 0),
        (pa.array([True]), "int", 0),
        (pa.array([1]), "boolean", 0),
        (pa.array([1]), "string", 0),
        (pa.array(["1"]), "int", 0),
        (pa.array([datetime(2024, 1, 1, 5)]), "date", 0),
        (pa.array([datetime(2024, 1, 1, tzinfo=UTC)]), "timestamp_ntz", 0),
        (pa.array([Decimal("1.25")]), "decimal(5,1)", 0),
        (pa.array([[1, 300]]), "array<tinyint>", 0),
    ],
)
def test_unfit_arrow_value_error_names_column_and_row(
    array: pa.Array, type_: str, row: int
) -> None:
    with pytest.raises(SchemaError, match=f"column 'x', row {row}: "):
        to_columns(pa.table({"x": array}), Schema([("x", type_)]), "s")


@pytest.mark.parametrize(
    ("array", "type_", "expected"),
    [
        (pa.array([127]), "tinyint", 127),
        (pa.array([2.0]), "int", 2),
        (pa.array([0.1]), "float", float(np.float32(0.1))),
        (pa.array([2**60]), "double", 2.0**60),
        (pa.array(["x"]).dictionary_encode(), "string", "x"),
        (pa.array(["x"], pa.string_view()), "string", "x"),
        (pa.array([b"ab"], pa.binary(2)), "binary", b"ab"),
        (pa.array([None]), "array<int>", None),
        (pa.array([0], pa.timestamp("ns")), "timestamp_ntz", datetime(1970, 1, 1)),
        (pa.array([0], pa.date64()), "date", date(1970, 1, 1)),
        (pa.array([2**64 - 1], pa.uint64()), "decimal(20,0)", Decimal(2**64 - 1)),
        (pa.array([[1]], pa.large_list(pa.int8())), "array<bigint>", [1]),
        (pa.chunked_array([[1], [2]]), "int", 1),
    ],
)
def test_fitting_arrow_values_are_cast(array: Any, type_: str, expected: Any) -> None:
    assert read(pa.table({"x": array}), Schema([("x", type_)]))[0][0] == expected


@pytest.mark.parametrize("n", [3, 10_000])
def test_memory_of_caller_is_not_referenced(n: int) -> None:
    schema = Schema.parse("x bigint, y double, z array<double>")
    x, y, z = np.arange(n), np.ones(n), np.full(n, -0.0)
    nested = pa.ListArray.from_arrays(pa.array(np.arange(n + 1), pa.int32()), pa.array(z))
    columns, _ = to_columns(pa.table({"x": x, "y": y, "z": nested}), schema, "s")
    assert math.copysign(1, z[0]) == -1
    for array in (x, y, z):
        array[:] = 9
    assert to_pylist(columns[0], "bigint")[1] == 1
    assert to_pylist(columns[1], "double")[1] == 1.0
    assert to_pylist(columns[2], "array<double>")[1] == [0.0]
    assert math.copysign(1, to_pylist(columns[2], "array<double>")[1][0]) == 1


def test_lists_are_copied_at_the_call() -> None:
    rows = [[1, 2]]
    columns, _ = to_columns(rows, TWO, "s")
    rows[0][0] = 9
    assert to_pylist(columns[0], "int") == [1]


@given(typed_values())
def test_arrow_and_python_values_convert_equally(
    drawn: tuple[str, list[Any]],
) -> None:
    type_, items = drawn
    schema = Schema([("x", type_)])
    expected = [encode(value, type_) for value in items]
    array = pa.array(items, arrow_type(type_))
    (column,), n = to_columns(pa.table({"x": array}), schema, "s")
    assert (expected, len(items)) == (encode_column(column, type_), n)
    try:
        natural = [(value,) for value in to_pylist(array, type_)]
    except SchemaError:
        return  # a time beyond Python's years
    except (ValueError, OverflowError):
        return  # the same in a nested value
    (column,), _ = to_columns(natural, schema, "s")
    assert expected == encode_column(column, type_)


@pytest.mark.parametrize(
    ("rows", "ddl"),
    [
        (pa.table({"a": pa.array([1], pa.int8()), "b": [["x"]]}), "a tinyint, b array<string>"),
        (pd.DataFrame({"a": [1], "b": ["x"], "c": [1.5]}), "a bigint, b string, c double"),
        (pd.DataFrame({"t": pd.to_datetime(["2024-01-01"])}), "t timestamp_ntz"),
        (pd.DataFrame({"o": pd.Series([None, 1], dtype=object)}), "o bigint"),
        ([{"a": 1, "b": None}, {"a": 1.5, "b": "x"}], "a double, b string"),
        (
            [Flight(None, "AA", 1), Flight(2.5, "UA", 2)],
            "delay double, carrier string, flight bigint",
        ),
        ({"a": [True], "d": np.array([1], np.int16)}, "a boolean, d smallint"),
        (
            [{"x": {"k": [1]}, "y": Flight(1.0, "a", 2)}],
            "x map<string,array<bigint>>, y struct<delay:double,carrier:string,flight:bigint>",
        ),
        (
            [
                {
                    "m": Decimal("1.5"),
                    "t": datetime(2024, 1, 1),
                    "u": datetime(2024, 1, 1, tzinfo=UTC),
                }
            ],
            "m decimal(38,18), t timestamp_ntz, u timestamp",
        ),
    ],
)
def test_schema_is_inferred_from_data(rows: Any, ddl: str) -> None:
    assert infer_schema(rows) == Schema.parse(ddl)


def test_pandas_period_is_refused() -> None:
    months = pd.DataFrame({"a": pd.period_range("2024-01", periods=2, freq="M")})
    for rows in (months, {"a": months["a"]}, pa.table(months)):
        for type_ in ("bigint", "string"):
            with pytest.raises(SchemaError, match=r"column 'a': .*\(period\[M\]\)") as caught:
                to_columns(rows, Schema([("a", type_)]), "input 'x'")
            assert ".astype(str)" in (caught.value.hint or "")
    text = months.astype(str)
    assert infer_schema(text) == Schema.parse("a string")
    assert read(text, infer_schema(text)) == [("2024-01",), ("2024-02",)]


@pytest.mark.parametrize(
    "rows",
    [pd.DataFrame({1: [5], ("a", 2): ["x"]}), {1: [5], ("a", 2): ["x"]}, [{1: 5, ("a", 2): "x"}]],
    ids=["pandas", "columns", "dicts"],
)
def test_other_column_names_become_text(rows: Any) -> None:
    schema = infer_schema(rows)
    assert schema.names == ("1", "('a', 2)")
    assert read(rows, schema) == [(5, "x")]
    with pytest.raises(SchemaError, match="unknown column 2"):
        to_columns({2: [5], ("a", 2): ["x"]}, schema, "input 'x'")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no rows to infer the columns from"),
        ([(1, 2)], "row 0 has no column names"),
        ([{"a": None}], "column 'a' has only nulls"),
        ([{"a": 1}, {"a": "x"}], "column 'a': its values have different types, bigint and string"),
        ([{"a": 1}, {"b": 1}], "row 1 and row 0 differ in column 'a'"),
        ([{"a": object}], "column 'a': .* has no Spark SQL type"),
        (pa.table({"a": [None]}), "column 'a': columns of Arrow type null have no Spark SQL type"),
        ({"a": 1}, "column 'a': 1 is not a column"),
        (
            pd.DataFrame({"a": [1 + 2j]}),
            r"column 'a': \(1\+2j\) of type complex has no Spark SQL type",
        ),
        (pd.DataFrame({"a": [pd.Period("2024-01", "M")]}), r"column 'a': .*\(period\[M\]\)"),
        (7, "7 has no columns"),
    ],
)
def test_schema_of_unnamed_or_untyped_data_is_refused(rows: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        infer_schema(rows)
