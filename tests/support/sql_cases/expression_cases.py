"""Values and expressions for comparing the table of functions with Spark.

Each case is an expression over columns `x_<type>` and `y_<type>`, which run through all pairs of
`VALUES`. If a row may raise, the case has a twin that is null there instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from nosync_nb.rows import Column, Schema, from_arrow, objects
from nosync_nb.rows.arrow import from_python_values
from sql_cases import datetime_cases, number_format_cases
from sql_cases.function_cases import Case
from sql_cases.scalar_cases import scalar_cases

INTEGERS = ("tinyint", "smallint", "int", "bigint")
NUMBERS = (*INTEGERS, "float", "double")
TIMES = ("date", "timestamp", "timestamp_ntz")
ALL = (*NUMBERS, *TIMES, "boolean", "string")
DECIMALS = ("decimal(10,2)", "decimal(18,0)", "decimal(26,6)", "decimal(38,10)")
COMPARED = (*DECIMALS, "binary")
"""Types without a fixed length."""

_WHOLE = [None, 0, 1, -1, 2, -3, 7, 10, 100, 113]
_REAL = [None, 0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.4999999, 1e-30, 1e30, 100.0, -7.25]
_DAYS = [None, 0, -1, 1, 15706, 15764, 15765, 11016, 11381, -25567, -719162, -719163, 2932896]
_DAYS += [-800_000, 3_000_000, 19_782, 19_783, 16_800]
_MICROS = [None, 0, -1, 1, 1_357_016_767_890_000, -1_000_001, -86_400_000_000, 86_399_999_999]
_MICROS += [951_782_400_000_000, 253_402_300_799_999_999, -62_135_596_800_000_000]
_MICROS += [-2_208_988_800_000_001, 4_102_444_800_000_000]


def _limits(bits: int) -> list[int]:
    top = 2 ** (bits - 1)
    return [-top, 1 - top, top - 1, top - 2, top // 2]


_EXACT = ["0", "1", "-1", "2", "-3", "7", "100", "113", "2147483647", "-2147483648", "46340"]
_CENTS = [*_EXACT[:8], "1.5", "2.50", "-0.5", "-7.25", "0.01", "-0.01", "99999999.99"]
_MICRO = [*_EXACT, "1.5", "2.5", "-0.5", "0.000001", "2.500001", "9223372036854775807"]
_MICRO += ["-9223372036854775808", "9007199254740993", "999999999999999999.999999"]


def _decimals(texts: list[str]) -> list[object]:
    return [None, *map(Decimal, texts)]


VALUES: dict[str, list[object]] = {
    "decimal(10,2)": _decimals(_CENTS),
    "decimal(18,0)": _decimals([*_EXACT, "9" * 18, "-" + "9" * 18, "9007199254740993"]),
    "decimal(26,6)": _decimals(_MICRO),
    "decimal(38,10)": _decimals(
        [*_MICRO, "0.0000000001", "9" * 28 + "." + "9" * 10, "-" + "9" * 28]
    ),
    "binary": [
        None, b"", b"\0", b"a", b"ab", b"abc", b"b", b"\x1f", b"\x7f", b"\x80", b"\xff\0", b"A",
    ],
    "tinyint": _WHOLE + _limits(8),
    "smallint": [*_WHOLE, *_limits(16), 181, 182, -182],
    "int": [*_WHOLE, *_limits(32), 46340, 46341, -46341, 3_000_000],
    "bigint": [*_WHOLE, *_limits(64), 3037000499, 3037000500, -3037000500, 2**53 + 1, 2**31],
    "float": [*_REAL, float("inf"), float("-inf"), float("nan"), 2.0**31, 2.0**63, 16777216.0],
    "double": [
        *_REAL,
        *(float("inf"), float("-inf"), float("nan"), 5e-324, 1.7976931348623157e308, 0.1 + 0.2),
        *(2147483647.5, 2147483648.0, -2147483648.5, 2.0**63, -(2.0**63), 1e300, 1e15 + 0.25),
        *(0.285, 1.005, 2.675, 1234567.895, -0.285, 0.045, 4503599627370497.5, 127.5, 32767.9),
    ],
    "boolean": [None, True, False],
    "date": list(_DAYS),
    "timestamp": list(_MICROS),
    "timestamp_ntz": list(_MICROS),
    "string": [
        *(None, "", " ", "a", "A", "abc", "ABC", " abc  ", "aa", "aaa", "%", "a_c", "a%c", "axc"),
        *("é", "Éa", "ß", "ΑΣ", "Σ", "ΑΣ.", "😀x", "😀", "İ", "ŉ", "Ǆ", "\u1c8a", "\U00010d70"),
        *("12", " 12 ", "-5", "+7", "0", "1.5", " 1.5d", ".5", "5.", "1e3", "1e", "0x1p3", "inf"),
        *("-Infinity", "NaN", "+nan", "true", "T", "no", " YES ", "1", "2", "2147483648", "-129"),
        *("9223372036854775807", "9223372036854775808", "00012", "١", "1_0", "--1", "a\nc", "\ta"),
        *("2013-01-01", "2013-2-3", "2013", "2013-13-01", "2013-02-30", "2012-02-29", "0001-01-01"),
        *(
            "2013-01-01T10:00", "2013-01-01 x", "2013-01-01x", "+12013-01-01", "-0001-01-01",
            "20130",
        ),
        *("2013-1", " 2013-01-01 ", "\u00a0 12", "12\u2003", "\x0012", "12\x7f", "x" * 40),
        *("true\x7f", "\x0bno", "2013-01-01\x7f", "\x852013", "1\x85", "0X.8P-1d", "-0x1p9999"),
        *("1e400", "-1e-400", "4.35", "infinity", "1 2", "99999-01-01", "9999999-12-31"),
    ],
}  # fmt: skip

_LENGTH = max(map(len, VALUES.values()))
_SQUARE = max(len(values) for type_, values in VALUES.items() if type_ != "string")


def column_of(values: Sequence[Any], type_: str) -> Column:
    """The column of values in the form of `to_python_values`."""
    return from_arrow(from_python_values(values, type_), type_)


def label(type_: str) -> str:
    return re.sub(r"\W+", "_", type_).strip("_")


def columns(
    pairs: list[tuple[int, int]], types: tuple[str, ...] = (*ALL, *COMPARED)
) -> tuple[Schema, list]:
    """Returns the schema and the columns of object form for pairs of value numbers."""
    fields, made = [], []
    for side, name in enumerate("xy"):
        for type_ in types:
            values = VALUES[type_]
            column = [values[pair[side] % len(values)] for pair in pairs]
            if type_ == "float":
                column = [None if v is None else float(np.float32(v)) for v in column]
            fields.append((f"{name}_{label(type_)}", type_))
            made.append(objects(column))
    return Schema(fields), made


def all_pairs() -> list[tuple[int, int]]:
    """Returns the pairs of value numbers: all of the first ones, some of the many texts."""
    square = [(i, j) for i in range(_SQUARE) for j in range(_SQUARE)]
    rest = [(i, i * 7 % _LENGTH) for i in range(_SQUARE, _LENGTH)]
    return [*square, *rest, *((j, i) for i, j in rest)]


def _pairs(types: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for a in types:
        for b in types:
            yield f"x_{a}", f"y_{b}"


def arithmetic_cases() -> Iterator[Case]:
    """Every operator of numbers on equal types, and some on all pairs of types."""
    twins = {"+": "try_add", "-": "try_subtract", "*": "try_multiply"}
    twins |= {"/": "try_divide", "%": "try_mod"}
    for number, (x, y) in enumerate(_pairs(NUMBERS)):
        chosen = list(twins) if x[2:] == y[2:] else [list(twins)[(number + k) % 5] for k in (0, 2)]
        for op in chosen:
            yield Case(f"{x} {op} {y}", f"{twins[op]}({x}, {y})")
    for x, y in _pairs(INTEGERS):
        over = f"({x} = cast('-9223372036854775808' as bigint) and {y} = -1)"
        yield Case(f"{x} div {y}", f"case when {y} <> 0 and not {over} then {x} div {y} end")
        yield Case(f"pmod({x}, {y})", f"case when {y} <> 0 then pmod({x}, {y}) end")
        yield Case(f"mod({x}, {y})", f"try_mod({x}, {y})")
    for type_ in NUMBERS:
        x, zero = f"x_{type_}", f"cast(0 as {type_})"
        below = f"try_subtract({zero}, {x})"
        yield Case(f"-{x}", below)
        yield Case(f"negative({x})", below)
        yield Case(f"positive({x})")
        yield Case(f"abs({x})", f"case when {x} < 0 then {below} else {x} end")
        yield Case(f"sqrt({x})")
        yield Case(f"sign({x})")
        yield Case(f"signum({x})")
        inside = f"not ({x} >= 9223372036854775807D or {x} < -9223372036854775808D) or isnan({x})"
        for name in ("floor", "ceil", "ceiling"):
            twin = None if type_ in INTEGERS else f"case when {inside} then {name}({x}) end"
            yield Case(f"{name}({x})", twin)
        yield Case(f"round({x})")
        yield Case(f"{x} + 1", f"try_add({x}, 1)")
        yield Case(f"2 * {x} - 7", f"try_subtract(try_multiply(2, {x}), 7)")
        yield Case(f"{x} / 60.0", f"try_divide({x}, 60.0)")
        yield Case(f"{x} / 7", f"try_divide({x}, 7)")
        yield Case(f"{x} + 1.5D", f"try_add({x}, 1.5D)")
    for scale in range(10):
        yield Case(f"round(x_double, {scale})")
        yield Case(f"round(try_divide(x_double, y_double), {scale})")
    yield Case("round(x_int, 2)")


def comparison_cases() -> Iterator[Case]:
    """Comparisons of values of the same type, of mixed ones, and with literals."""
    for type_ in ALL:
        x, y = f"x_{type_}", f"y_{type_}"
        for op in ("=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>"):
            yield Case(f"{x} {op} {y}")
        yield Case(f"{x} between {y} and {x}")
        yield Case(f"{x} is null")
        yield Case(f"{x} is not null")
        yield Case(f"isnull({x})")
        yield Case(f"isnotnull({x})")
        yield Case(f"equal_null({x}, {y})")
        yield Case(f"{x} is distinct from {y}")
        yield Case(f"nullif({x}, {y})")
        yield Case(f"coalesce({x}, {y})")
        yield Case(f"nvl({x}, {y})")
        yield Case(f"ifnull({x}, {y})")
        yield Case(f"nvl2({x}, {y}, {x})")
        yield Case(f"if(x_boolean, {x}, {y})")
        yield Case(f"case when {x} < {y} then {x} when {x} > {y} then {y} end")
        yield Case(f"case when x_boolean then null else {y} end")
        if type_ != "string":
            yield Case(f"greatest({x}, {y})")
            yield Case(f"least({x}, {y})")
            yield Case(f"greatest({x}, {y}, null)")
    mixed = ["{} < {}", "{} >= {}", "{} = {}", "{} <=> {}", "coalesce({}, {})", "nullif({}, {})"]
    mixed += ["greatest({}, {})", "least({}, {})", "if(x_boolean, {}, {})", "{} <> {}"]
    for k, (a, b) in enumerate([*_pairs(NUMBERS), *_pairs(TIMES)]):
        if a[2:] != b[2:]:
            for step in (0, 3, 7):
                yield Case(mixed[(k + step) % len(mixed)].format(a, b))
    yield from _beside_literals()
    yield from _exact_cases()
    for number in NUMBERS:
        yield Case(f"x_{number} in (1, 2, null)")
        yield Case(f"x_{number} in (1, 2, 7, 10, 100, -1, -3, 0, 113, 5)")
        yield Case(f"x_{number} not in (1, 100)")
        yield Case(f"x_{number} in (1, 3000000000)")
        yield Case(f"x_{number} between 1 and 100")
        yield Case(f"x_{number} in ('1', '2')")
        yield Case(f"case x_{number} when 1 then 'one' when 2 then 'two' else 'more' end")
        yield Case(f"nullif(x_{number}, 0)")
        yield Case(f"coalesce(x_{number}, 0)")
        yield Case(f"coalesce(x_{number}, 1.5D)")
        yield Case(f"if(x_boolean, x_{number}, null)")
    yield Case("isnan(x_float)")
    yield Case("isnan(x_double)")
    yield Case("x_boolean = true")
    yield Case("x_boolean <=> false")
    yield Case("x_boolean in (true)")
    yield Case("x_double in (1e300, 2.5)")
    yield Case("x_string in ('a', 'abc', '12')")
    yield Case("x_string not in ('a', null)")
    yield Case("x_string = 'abc'")
    yield Case("'abc' <= x_string")


_OPERATORS = ("=", "<>", "<", "<=", ">", ">=", "<=>")


def _beside_literals() -> Iterator[Case]:
    """Comparisons of numbers with literals of every kind."""
    for n, number in enumerate(NUMBERS):
        for k, literal in enumerate(("2", "-3", "3000000000", "1e3", "2.5D", "'7'", "2.0", "100")):
            for step in (0, 3):
                yield Case(f"x_{number} {_OPERATORS[(n + k + step) % 7]} {literal}")
                yield Case(f"{literal} {_OPERATORS[(n + k + step + 1) % 7]} x_{number}")
        for op in _OPERATORS:
            if op not in ("=", "<>", "<=>") or number in ("float", "double"):
                yield Case(f"x_{number} {op} 2.5")
                yield Case(f"-0.5 {op} x_{number}")
    for op in _OPERATORS:
        yield Case(f"x_double {op} 100")
        yield Case(f"x_int {op} 100")


def _exact_cases() -> Iterator[Case]:
    """Comparisons of decimals and of bytes."""
    for type_ in COMPARED:
        x, y = f"x_{label(type_)}", f"y_{label(type_)}"
        for op in ("=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>"):
            yield Case(f"{x} {op} {y}")
        yield Case(f"{x} between {y} and {x}")
        yield Case(f"{x} is distinct from {y}")
        yield Case(f"equal_null({x}, {y})")
        yield Case(f"case when {x} < {y} then 1 when {x} > {y} then 2 end")
    for k, (a, b) in enumerate([*_pairs(DECIMALS), *_pairs((*DECIMALS, *INTEGERS))]):
        if a[2:] != b[2:]:
            for step in (0, 3):
                yield Case(f"x_{label(a[2:])} {_OPERATORS[(k + step) % 7]} y_{label(b[2:])}")
    for k, type_ in enumerate(DECIMALS):
        x = f"x_{label(type_)}"
        for n, literal in enumerate(("2", "-3", "3000000000", "2.5", "-0.5", "7.000", "0.0000001")):
            yield Case(f"{x} {_OPERATORS[(n + k) % 7]} {literal}")
            yield Case(f"{literal} {_OPERATORS[(n + k + 2) % 7]} {x}")
        yield Case(f"{x} in (1, 2.5, -3)")
        yield Case(f"{x} not in (2.5, null)")
        yield Case(f"{x} in (100)")
        yield Case(f"{x} between -0.5 and 100")
        yield Case(f"case {x} when 1 then 'one' when 2.5 then 'more' end")
    for number in INTEGERS:
        yield Case(f"x_{number} = 2.5")
        yield Case(f"-0.5 <=> x_{number}")
        yield Case(f"x_{number} in (1.5, 2)")
    for literal in ("X''", "X'00'", "x'1f'", "X'6162'", "X'123'", "X'FF00'"):
        yield Case(f"x_binary >= {literal}")
        yield Case(f"{literal} = x_binary")
    yield Case("x_binary in (X'61', X'FF', X'80')")
    yield Case("x_binary not in (X'61', null)")


def logic_cases() -> Iterator[Case]:
    x, y = "x_boolean", "y_boolean"
    for text in ("x and y", "x or y", "not x", "! x", "x is true", "x is not true", "x is false"):
        yield Case(text.replace("x", x).replace(" y", f" {y}"))
    yield Case("x_boolean and null")
    yield Case("x_boolean or null")
    yield Case("x_boolean is not false")
    yield Case("not (x_boolean and y_boolean) or x_int > y_int")
    yield Case("boolean(x_int)")
    yield Case("y_int <> 0 and x_int / y_int > 1")
    yield Case("y_int = 0 or x_int % y_int = 1")
    yield Case("if(y_double = 0, null, x_double / y_double)")
    yield Case("case when y_int = 0 then -1 when x_int > y_int then x_bigint / y_int else 0 end")
    yield Case("coalesce(x_int, 1 / y_int)", "case when x_int is not null or y_int <> 0 then "
               "coalesce(x_int, 1 / nullif(y_int, 0)) end")  # fmt: skip
    yield Case("x_int + 1 / y_int", "case when y_int <> 0 then x_int + 1 / nullif(y_int, 0) end")
    yield Case("x_boolean and 1 / y_int > 0", "case when x_boolean = false or y_int is null or "
               "y_int <> 0 then x_boolean and 1 / nullif(y_int, 0) > 0 end")  # fmt: skip
    yield Case("nvl(x_string, 'none') = 'none'")
    yield Case("if(x_string like 'a%', upper(x_string), concat(x_string, '!'))")
    yield Case("if(x_boolean, 'yes', 'no')")
    yield Case("case when x_int > y_int then x_string when x_boolean then 'b' end")
    yield Case("coalesce(x_string, y_string, 'z')")


def cast_cases() -> Iterator[Case]:
    for a in ALL:
        for b in ALL:
            if a != b:
                yield Case(f"cast(x_{a} as {b})", f"try_cast(x_{a} as {b})")
    for b in ("boolean", "tinyint", "smallint", "int", "bigint", "float", "double"):
        yield Case(f"{b}(x_double)", f"try_cast(x_double as {b})")
    yield Case("string(x_int)")
    yield Case("date(x_string)", "try_cast(x_string as date)")
    yield Case("x_string::bigint", "try_cast(x_string as bigint)")
    yield Case("to_date(x_string)", "try_cast(x_string as date)")
    yield Case("to_date(x_timestamp)")
    yield Case("x_string = 12", "try_cast(x_string as bigint) = 12")
    yield Case("x_string < x_double", "try_cast(x_string as double) < x_double")
    yield Case("x_string = x_date", "try_cast(x_string as date) = x_date")
    yield Case("x_string + 1", "try_add(try_cast(x_string as bigint), 1)")


def text_cases() -> Iterator[Case]:
    x, y = "x_string", "y_string"
    for name in ("upper", "ucase", "lower", "lcase", "length", "len", "char_length", "reverse"):
        yield Case(f"{name}({x})")
    for name in ("character_length", "trim", "ltrim", "rtrim"):
        yield Case(f"{name}({x})")
    for op in ("like 'a%'", "like '%c'", "like '%a%'", "like 'a_c'", "like '%'", "like ''"):
        yield Case(f"{x} {op}")
    for op in (
        "like 'abc'",
        "not like 'a%c'",
        "like '_'",
        "like '%_a%'",
        "like '%.%'",
        "like 'é_'",
    ):
        yield Case(f"{x} {op}")  # fmt: skip
    for name in ("startswith", "endswith", "contains", "instr"):
        for part in ("a", "", "bc", "😀", "abc "):
            yield Case(f"{name}({x}, '{part}')")
    for part in ("a", "", "c", "😀"):
        yield Case(f"locate('{part}', {x})")
    for start in (-50, -3, -1, 0, 1, 2, 5):
        yield Case(f"substring({x}, {start})")
        for length in (-1, 0, 1, 3, 2147483647):
            yield Case(f"substring({x}, {start}, {length})")
    yield Case(f"substr({x}, 1, 2)")
    for n in (-1, 0, 1, 3, 50):
        yield Case(f"left({x}, {n})")
        yield Case(f"right({x}, {n})")
        yield Case(f"repeat({x}, {n})")
        yield Case(f"lpad({x}, {n})")
        yield Case(f"rpad({x}, {n})")
        yield Case(f"lpad({x}, {n}, 'xyz')")
        yield Case(f"rpad({x}, {n}, '😀')")
        yield Case(f"rpad({x}, {n}, '')")
    for old, new in (("a", "b"), ("", "b"), ("aa", ""), ("a", "aa"), ("😀", "é")):
        yield Case(f"replace({x}, '{old}', '{new}')")
    yield Case(f"replace({x}, 'a')")
    yield Case(f"concat({x}, {y})")
    yield Case(f"concat({x})")
    yield Case(f"concat({x}, '-', {y}, x_int, y_boolean)")
    yield Case(f"{x} || {y}")
    yield Case(f"{x} || '!' || x_date")
    yield Case("length(x_int)")
    yield Case("upper(trim(x_string)) = 'ABC'")


_PARTS = ("year", "quarter", "month", "day")


def date_cases() -> Iterator[Case]:
    parts = [
        "year", "quarter", "month", "day", "dayofmonth", "dayofyear", "dayofweek", "weekday",
        "last_day",
    ]  # fmt: skip
    for type_ in TIMES:
        for name in parts:
            yield Case(f"{name}(x_{type_})")
        for name in ("hour", "minute", "second"):
            yield Case(f"{name}(x_{type_})")
        for unit in ("year", "QUARTER", "mon", "month", "week", "mm", "yy"):
            yield Case(f"trunc(x_{type_}, '{unit}')")
        units = [
            "year", "quarter", "month", "week", "day", "dd", "hour", "minute", "second",
            "millisecond", "yyyy",
        ]  # fmt: skip
        for unit in units:
            yield Case(f"date_trunc('{unit}', x_{type_})")
        yield Case(f"datediff(x_{type_}, y_date)")
        yield Case(f"date_add(x_{type_}, 30)")
    for unit in ("year", "quarter", "month", "day", "hour", "minute"):
        yield Case(f"extract({unit} from x_timestamp)")
    yield Case("unix_micros(x_timestamp)")
    yield Case("timestamp_micros(unix_micros(x_timestamp) - pmod(unix_micros(x_timestamp), 7L))")
    yield Case("date_diff(x_date, y_date)")
    for number in ("tinyint", "smallint", "int"):
        yield Case(f"date_add(x_date, y_{number})")
        yield Case(f"date_sub(x_date, y_{number})")
        yield Case(f"x_date + y_{number}")
        yield Case(f"y_{number} + x_date")
        yield Case(f"x_date - y_{number}")
    yield Case("dateadd(x_date, 1)")
    for op in ("=", "<", ">=", "<=>"):
        yield Case(f"x_date {op} '2013-01-01'")
        yield Case(f"x_date {op} date '2013-01-01'")
        yield Case(f"x_timestamp {op} '2013-01-01 05:06:07.89'")
        yield Case(f"x_timestamp {op} timestamp '2013-01-01 05:06:07Z'")
        yield Case(f"x_timestamp_ntz {op} timestamp_ntz '2013-01-01 05:06:07'")
        yield Case(f"x_timestamp {op} date '2013-01-01'")
        yield Case(f"'2013-01-01' {op} x_date")
    yield Case("x_date between '2013-01-01' and '2014-01-01'")
    yield Case("x_date in ('2013-01-01', '1970-01-01')")
    yield Case("year(x_date) * 100 + month(x_date)")


LATER = (datetime_cases, number_format_cases)
"""Modules with cases of their own. A run compares a part of them with Spark, a soak all."""


def all_cases() -> list[Case]:
    """Returns every case once."""
    makers = (arithmetic_cases, comparison_cases, logic_cases, cast_cases, text_cases, date_cases)
    cases = [case for make in makers for case in make()]
    cases += [Case(*pair) for pair in scalar_cases()]
    cases += [case for module in LATER for case in module.every()]
    return list(dict.fromkeys(cases))
