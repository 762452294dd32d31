"""Values of every type that other libraries handle badly, and the exports that refuse them."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from nosync_nb.rows import arrow_type
from nosync_nb.rows.types import nested_parts

NAN = math.nan
LARGE = 6844033375485878447
"""An integer that a float rounds to ...272."""

LEAST, MOST = -(1 << 63), (1 << 63) - 1


class Case(NamedTuple):
    """Values of a type.

    Attributes:
        type: of the column.
        values: Python values, or the numbers that columns store for a fixed type.
        refused: the export formats that refuse the values.
    """

    type: str
    values: list[Any]
    refused: tuple[str, ...] = ()

    @property
    def array(self) -> pa.Array:
        return _array(self.values, self.type)


def _array(values: list[Any], type_: str) -> pa.Array:
    """Converts values to Arrow; numbers stand for days, microseconds and months."""
    kind = arrow_type(type_)
    given = [value for value in values if value is not None]
    if type_ == "date" or pa.types.is_temporal(kind):
        numbers = given and all(isinstance(value, int) for value in given)
        wide = pa.int32() if type_ == "date" else pa.int64()
        return pa.array(values, wide).view(kind) if numbers else pa.array(values, kind)
    if type_.startswith("array<") and all(isinstance(value, list) for value in given):
        items = [item for value in given for item in value]
        ends, end = [], 0
        for value in values:
            ends.append(None if value is None else end)
            end += len(value or ())
        part = _array(items, nested_parts(type_)[0][1])
        return pa.ListArray.from_arrays(pa.array([*ends, end], pa.int32()), part).cast(kind)
    return pa.array(values, kind)


_DAYS = [date(1, 1, 1), date(9999, 12, 31), date(1970, 1, 1), None]
_ZONED = [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, UTC), None]
_PLAIN = [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999), None]
_LAPSES = [timedelta(microseconds=1), -timedelta(days=100_000), None]
_MONDAY, _NOON = date(2024, 1, 1), datetime(2024, 1, 1, 12, tzinfo=UTC)
_DUCKDB = ("duckdb",)  # its intervals leave it as months, days and nanoseconds
_NUMPY = ("pandas numpy",)  # has no null in floats

CASES: dict[str, Case] = {
    "boolean": Case("boolean", [True, False, None]),
    "tinyint": Case("tinyint", [-128, 127, None]),
    "smallint": Case("smallint", [-(1 << 15), (1 << 15) - 1, None]),
    "int": Case("int", [-(1 << 31), (1 << 31) - 1, None]),
    "bigint without null": Case("bigint", [LEAST, MOST, LARGE, (1 << 53) + 1]),
    "bigint, small, with null": Case("bigint", [1 - (1 << 53), (1 << 53) - 1, None]),
    "bigint, large, with null": Case("bigint", [LARGE, None], _NUMPY),
    "bigint, rounded to 2^53": Case("bigint", [(1 << 53) + 1, None], _NUMPY),
    "bigint, extreme, with null": Case("bigint", [LEAST, MOST, None], _NUMPY),
    "float": Case("float", [0.0, 2.0**-149, 2.0**127, math.inf, -math.inf, None]),
    "float with NaN": Case("float", [NAN, 1.0], _NUMPY),
    "double": Case("double", [0.1, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, None]),
    "double with NaN": Case("double", [NAN, 1.0], _NUMPY),
    "double with NaN and null": Case("double", [NAN, 1.0, None], _NUMPY),
    "string": Case("string", ["", "a\0b", "ä\U0001f600", "NaN", "None", "1", None]),
    "binary": Case("binary", [b"", b"\0\xff", None]),
    "date": Case("date", _DAYS),
    "date beyond Python": Case("date", [-(1 << 31), (1 << 31) - 1, None], _NUMPY),
    "timestamp": Case("timestamp", _ZONED),
    "timestamp beyond Python": Case("timestamp", [LEAST + 2, MOST - 1, None]),
    "least timestamp": Case("timestamp", [LEAST, 0, None], _NUMPY),
    "timestamp_ntz": Case("timestamp_ntz", _PLAIN),
    "least timestamp_ntz": Case("timestamp_ntz", [LEAST, 0], _NUMPY),
    "decimal(5,2)": Case("decimal(5,2)", [Decimal("999.99"), Decimal("-0.01"), None]),
    "decimal(20,0)": Case("decimal(20,0)", [Decimal(LARGE), None]),
    "decimal(38,0)": Case("decimal(38,0)", [Decimal(10**38 - 1), Decimal(1 - 10**38), None]),
    "decimal(38,18)": Case("decimal(38,18)", [Decimal("1.000000000000000001"), None]),
    "decimal(38,38)": Case("decimal(38,38)", [Decimal("0.5"), Decimal(10).scaleb(-39), None]),
    "interval day to second": Case("interval day to second", _LAPSES, _DUCKDB),
    "least interval": Case("interval day to second", [LEAST, MOST], (*_DUCKDB, *_NUMPY)),
    "interval day": Case("interval day", [timedelta(days=3), None], _DUCKDB),
    "interval year to month": Case("interval year to month", [13, -1, None]),
    "interval year": Case("interval year", [12, None]),
    "array<bigint>": Case("array<bigint>", [[1, None], [], None, [LARGE, None], [MOST]]),
    "array<double>": Case("array<double>", [[1.0, 0.1], [], None]),
    "array<double> with null": Case("array<double>", [[1.0, None], [], None], _NUMPY),
    "array<double> with NaN": Case("array<double>", [[1.0, NAN], None]),
    "array<float> with both": Case("array<float>", [[1.5, NAN, None]], _NUMPY),
    "array<boolean>": Case("array<boolean>", [[True, None], None]),
    "array<string>": Case("array<string>", [["a", None], [], None]),
    "array<binary>": Case("array<binary>", [[b"a", None], [], None]),
    "array<date>": Case("array<date>", [[_MONDAY, None], [date(1, 1, 1)], None]),
    "array<timestamp>": Case("array<timestamp>", [[_NOON, None], None]),
    "array of far times": Case("array<timestamp>", [[MOST - 1, None], None], _NUMPY),
    "array<timestamp_ntz>": Case("array<timestamp_ntz>", [[datetime(2024, 1, 1), None], None]),
    "array<decimal(5,2)>": Case("array<decimal(5,2)>", [[Decimal("1.50"), None], None]),
    "array of lapses": Case("array<interval day to second>", [[_LAPSES[0], None]], _DUCKDB),
    "array of months": Case("array<interval year to month>", [[5, None], None]),
    "array<array<bigint>>": Case("array<array<bigint>>", [[[LARGE, None], None, []], None]),
    "array of structs": Case(
        "array<struct<a:bigint,b:double>>",
        [[{"a": LARGE, "b": None}, {"a": None, "b": NAN}, None], None],
    ),
    "struct<a:bigint,b:string>": Case(
        "struct<a:bigint,b:string>", [{"a": LARGE, "b": "x"}, {"a": None, "b": None}, None]
    ),
    "struct<a:double>": Case("struct<a:double>", [{"a": NAN}, {"a": None}, None]),
    "struct<a:date,b:timestamp>": Case(
        "struct<a:date,b:timestamp>", [{"a": _MONDAY, "b": _NOON}, {"a": None, "b": None}, None]
    ),
    "struct of a lapse": Case(
        "struct<a:interval day to second>", [{"a": _LAPSES[0]}, {"a": None}, None], _DUCKDB
    ),
    "struct<a:array<double>>": Case("struct<a:array<double>>", [{"a": [1.0, None]}, None], _NUMPY),
    "map<string,bigint>": Case("map<string,bigint>", [[("a", LARGE), ("b", None)], [], None]),
    "map<bigint,double>": Case("map<bigint,double>", [[(1, None), (LARGE, NAN)], [], None]),
    "map of arrays": Case("map<int,array<double>>", [[(1, [1.0, None])], None], _NUMPY),
    "map of structs": Case("map<string,struct<a:int>>", [[("x", {"a": 1})], [("y", None)], None]),
    "map<timestamp,date>": Case("map<timestamp,date>", [[(_NOON, _MONDAY)], None]),
    "struct of the least lapse": Case(
        "struct<a:interval day to second>", [{"a": LEAST}], (*_DUCKDB, *_NUMPY)
    ),
    "map of months": Case("map<interval year to month,bigint>", [[(5, LARGE), (7, None)]]),
}
