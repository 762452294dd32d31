"""Values and expressions for comparing intervals with Spark.

Rows combine the values of all columns at random, with a fixed seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from nosync_nb.rows import Schema, objects
from nosync_nb.rows.types import UNIT

DDL = (
    "i int, l bigint, b tinyint, d double, f float, p decimal(10,2), q decimal(38,10),"
    " ts timestamp, tv timestamp, tn timestamp_ntz, dt date, dv date,"
    " ym interval year to month, yy interval year, mm interval month,"
    " x interval day to second, z interval day to second, dd interval day,"
    " hm interval hour to minute, ss interval second, dh interval day to hour"
)
SCHEMA = Schema.parse(DDL)

_DAY = 86_400_000_000
_LONG, _INT = 2**63 - 1, 2**31 - 1
_WHOLE = [0, 1, -1, 2, 3, 7, -12, 100]
_MICROS = [0, 1, -1, 999_999, -1_500_000, _DAY, -_DAY, 3 * _DAY + 1, 59_999_999, -3_600_000_000]
_MICROS += [93_784_567_891, -93_784_567_891, 10_000_000, 36_000_000_000, 1_000_000]
_TIMES = [0, -1, 1_357_016_767_890_000, 951_782_400_000_000, -2_208_988_800_000_001, 86_399_999_999]
_MONTHS = [0, 1, -1, 5, -5, 11, 12, -12, 13, -13, 25, 1200, 7]
_VALUES: dict[str, list[Any]] = {
    "int": [*_WHOLE, 40_000],
    "bigint": [*_WHOLE, 123_456],
    "tinyint": [0, 1, -1, 127, -128, 3],
    "double": [0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, 1e-3, 3.3, -7.25, 0.1],
    "float": [0.0, 1.0, -0.5, 2.5, 0.25],
    "decimal(10,2)": [Decimal(t) for t in ("0", "1", "-1", "0.5", "-0.5", "1.25", "3.33", "0.01")],
    "decimal(38,10)": [Decimal(t) for t in ("0", "1", "-2.5", "0.0000000001", "12.3456789012")],
    "timestamp": _TIMES,
    "timestamp_ntz": _TIMES,
    "date": [0, -1, 1, 15_764, 19_782, -25_567, 11_016, -719_162],
}
_FAR: dict[str, list[Any]] = {
    "int": [_INT, -_INT - 1],
    "bigint": [_LONG, -_LONG - 1, 2**40],
    "double": [float("inf"), float("-inf"), float("nan"), 1e300, 1e12],
    "float": [float("inf"), float("nan"), 2.0**100],
    "decimal(10,2)": [Decimal("99999999.99")],
    "decimal(38,10)": [Decimal("9" * 28 + "." + "9" * 10)],
    "timestamp": [253_402_300_799_999_999, -62_135_596_800_000_000, _LONG, -_LONG - 1],
    "timestamp_ntz": [253_402_300_799_999_999, _LONG],
    "date": [3_000_000, 2_932_896, _INT, -_INT - 1, 106_751_991],
}


def _of(type_: str, *, far: bool) -> list[Any]:
    if not type_.startswith("interval"):
        return _VALUES[type_] + (_FAR.get(type_, []) if far else [])
    if type_.endswith(("month", "year")):
        values = _MONTHS + ([_INT, -_INT - 1, 10**6] if far else [])
    else:
        values = _MICROS + ([_LONG, -_LONG - 1, 2**60] if far else [])
    unit = UNIT.get(type_, 1)
    return [abs(value) // unit * (unit if value >= 0 else -unit) for value in values]


def columns(count: int, *, far: bool, seed: int = 1) -> list[Any]:
    """Columns with a number of rows; `far` adds values that overflow."""
    draw = random.Random(seed)
    made = []
    for type_ in SCHEMA.types:
        values = [None, *_of(type_, far=far)]
        made.append(objects([draw.choice(values) for _ in range(count)]))
    return made


TIMES_ = ("ts", "tn", "dt")
_TIME, _MONTH = ("x", "dd", "hm", "ss", "dh"), ("ym", "yy", "mm")
_NUMBERS = ("i", "l", "b", "d", "f", "p", "q", "2", "-3", "1.5", "2.5D", "0.1")
_LITERALS = (
    "interval 1 day", "interval 2 weeks", "interval -90 minutes", "interval '1.5' second",
    "interval 3 hours", "interval '-1 02:03:04.5' day to second", "interval '10:20' hour to minute",
    "interval 1 day 2 hours", "interval 5 months", "interval -2 years",
    "interval '1-2' year to month",
)  # fmt: skip


def every() -> Iterator[str]:
    yield from _LITERALS
    yield from _between()
    yield from _arithmetic()
    yield from _compared()
    yield from _cast()
    yield from _called()


def _between() -> Iterator[str]:
    for a, b in (
        ("ts", "tv"),
        ("dt", "dv"),
        ("ts", "dt"),
        ("dt", "tv"),
        ("tn", "dt"),
        ("dt", "tn"),
    ):
        yield f"{a} - {b}"  # fmt: skip
    yield "tn - timestamp_ntz '2020-01-01 00:00:00'"
    yield "ts - timestamp '2020-01-01 00:00:00' > interval 1 day"
    yield "dt - date '2020-01-01'"
    for time in TIMES_:
        for interval in (*_TIME, *_MONTH):
            yield f"{time} + {interval}"
            yield f"{time} - {interval}"
            yield f"{interval} + {time}"
        yield f"{time} + interval 1 hour * i"
        yield f"{time} - i * interval 1 day"


def _arithmetic() -> Iterator[str]:
    for kind in (_TIME, _MONTH):
        for a in kind:
            yield f"-{a}"
            yield f"+{a}"
            yield f"abs({a})"
            yield f"sign({a})"
            yield f"signum({a})"
            for b in kind:
                yield f"{a} + {b}"
                yield f"{a} - {b}"
            for number in _NUMBERS:
                yield f"{a} * {number}"
                yield f"{number} * {a}"
                yield f"{a} / {number}"
    for literal in _LITERALS:
        own = "ym" if "year" in literal or "month" in literal else "x"
        yield f"{own} + {literal}"
        yield f"{literal} - {own}"
        yield f"{literal} * i"
        yield f"{literal} / 3"
        yield f"- {literal}"
    for a in ("x", "dd", "ym"):
        yield f"try_add({a}, {a})"
        yield f"try_subtract({a}, {a})"
        yield f"try_multiply({a}, l)"
        yield f"try_divide({a}, i)"
        yield f"try_divide({a}, d)"
    yield "try_add(ts, x)"
    yield "try_subtract(dt, ym)"
    yield "(ts - tv) / 2"
    yield "(ts - tv) + x"
    yield "tv + (ts - tv)"
    yield "(dt - dv) * 2"


def _compared() -> Iterator[str]:
    for kind in (_TIME, _MONTH):
        for a in kind:
            for op in ("=", "<>", "<", "<=", ">", ">=", "<=>"):
                yield f"{a} {op} {kind[0]}"
            yield f"{a} is null"
            yield f"coalesce({a}, {kind[0]})"
            yield f"greatest({a}, {kind[0]})"
            yield f"least({a}, {kind[-1]})"
            yield f"nullif({a}, {kind[0]})"
            yield f"if(i > 0, {a}, {kind[1]})"
            yield f"case when i > 0 then {a} when i < 0 then {kind[0]} end"
            yield f"hash({a})"
            yield f"xxhash64({a}, {kind[0]})"
            yield f"array({a}, {kind[0]})"
            yield f"array_contains(array({a}), {kind[0]})"
            yield f"cast(array({a}, null) as string)"
            yield f"to_json(named_struct('a', {a}))"
            yield f"named_struct('a', {a}).a"
            yield f"transform(array({a}), v -> v * 2)"
            yield f"sort_array(array({a}, {kind[0]}))"
    yield "x between interval 0 second and interval 1 day"
    yield "x in (interval 1 day, interval '1.5' second)"
    yield "ym in (interval 1 year, null)"
    yield "x > interval 1 hour and ym < interval 1 year"


def _cast() -> Iterator[str]:
    for a in (*_TIME, *_MONTH):
        yield f"cast({a} as string)"
        yield f"{a} || '!'"
    units = ("day", "hour", "minute", "second")
    for target in ("day", "hour", "day to minute", "second", "day to second", "hour to second"):
        for a in _TIME:
            yield f"cast({a} as interval {target})"
            yield f"cast(cast({a} as interval {target}) as string)"
    for target in ("year", "month", "year to month"):
        for a in _MONTH:
            yield f"cast(cast({a} as interval {target}) as string)"
    for unit in (*units, "year", "month"):
        for a in ("i", "l", "b"):
            yield f"cast({a} as interval {unit})"
            yield f"try_cast({a} as interval {unit})"
    for a in ("dd", "ss", "yy", "mm"):
        for target in ("tinyint", "smallint", "int", "bigint"):
            yield f"cast({a} as {target})"
            yield f"try_cast({a} as {target})"
    yield "cast(interval 3 day as int)"
    yield "cast(5 as interval hour)"
    yield "cast(null as interval day)"


def _called() -> Iterator[str]:
    parts = {"day": ("x", "dd", "dh"), "hour": ("x", "hm", "dh"), "minute": ("x", "hm")}
    parts |= {"second": ("x", "ss"), "year": ("ym", "yy"), "month": ("ym", "mm")}
    for part, over in parts.items():
        for a in over:
            yield f"extract({part} from {a})"
            yield f"date_part('{part}', {a})"
    for given in ("", "i", "i, b", "i, b, b", "i, b, b, p", "1, 2, 3, 4.005", "i, i, i, i"):
        yield f"make_dt_interval({given})"
    for given in ("", "i", "i, b", "b, i"):
        yield f"make_ym_interval({given})"
