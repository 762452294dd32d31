"""Documented examples of Spark, varied at the edges of types."""

from __future__ import annotations

import decimal
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from sql_cases.expression_cases import column_of

from nosync_nb import rows
from nosync_nb.errors import ExpressionError
from nosync_nb.expressions import Expression, SqlSettings, compile_expression
from nosync_nb.rows import Schema

OF_DOUBLES = ("exp", "expm1", "ln", "log10", "log1p", "sin", "cos", "tan")
OF_DOUBLES += ("asin", "acos", "atan", "sinh", "cosh", "tanh")


def compiled(sql: str, schema: str) -> Expression:
    return compile_expression(sql, Schema.parse(schema), types=lambda *_: ["int"])


def result(sql: str, schema: str, *values: Any) -> list[Any]:
    e = compiled(sql, schema)
    assert e.local, e.why
    type_ = schema.split(" ", 1)[1]
    return rows.to_pylist(e.evaluate([column_of(list(values), type_)], len(values)), e.type)


LEAST, MOST = -(2**31), 2**31 - 1
SECONDS = "unix_micros(make_timestamp(1970, 1, 1, 0, 0, x))"
OVERLAP = [[None], [1], []]
UNIT = "timestampadd({}, x, if(x < 0, timestamp '2000-01-01', null))"
ADDED_DAYS = "timestampadd(day, x * 3, cast(null as timestamp))"
GUARDED = "if(x > 0, cast(floor(cast(3000000000 as decimal(20,0))) as int), 1)"
SUM = "abs(x) - 2147483647 - 2"
TENTH = "cast(x as decimal(38,9))"
PRODUCT = f"cast('9007199254740991.99115044' as decimal(38,8)) * {TENTH}"
NEGATED = "cast(x as decimal(20,0))"
GROUPS = "".join(f"({letter})" for letter in "abcdefghijkl")
SIGMA = ["AΣ.\u1c8a", "\u1c8aΣ", "AΣ.\U00010d70", "AΣ\U00010d69b", "İΣ\u1c89"]
ONE = Decimal("1." + 19 * "0")

Case = tuple[str, str, list[Any], list[Any]]
VALUES: dict[str, list[Case]] = {
    "overlay before the start keeps the text": [
        ("overlay('Spark SQL' placing '_' from x for 0)", "int", [LEAST, -1, 5],
         ["_Spark SQL", "_L", "Spar_k SQL"]),
        ("overlay('Spark SQL' placing '_' from -5 for x)", "int", [MOST, 0, -7],
         ["_", "_k SQL", "_ SQL"]),
    ],
    "make_timestamp uses 31 bits of seconds": [
        (SECONDS, "decimal(16,6)", [Decimal("4294967301.5"), Decimal("-2147483643.25")],
         [5_500_000, 4_750_000]),
    ],
    "a tinyint of JSON wraps from 128": [
        ("from_json(x, 'a tinyint').a", "string", ['{"a":127}', '{"a":128}'], [127, -128]),
    ],
    "the hash of bytes is signed from 128": [
        ("hash(x)", "binary", [b"\x7f", b"\x80"], [1185089389, 775851899]),
    ],
    "try functions check the divisor first": [
        ("try_divide(1 / x, x)", "int", [0, 2, None], [None, 0.25, None]),
        ("try_mod(5 % x, x)", "bigint", [0, 3], [None, 2]),
    ],
    "units are computed beside a null time": [(ADDED_DAYS, "int", [1, None], [None, None])],
    "units added to a null time do not overflow": [
        (UNIT.format(unit), "bigint", [2**63 - 1, 5, None], [None] * 3) for unit in ("day", "month")
    ],
    "concatenation with null is null": [
        ("concat(if(x > 0, 'a', null), bin(-x))", "tinyint", [-1, -3], [None, None]),
    ],
    "an unused constant may be out of range": [(GUARDED, "int", [-1, None], [1, 1])],
    "a left null skips the right side": [
        (f"null {sign} cast(x as int)", "string", ["a", "1"], [None, None])
        for sign in (">", "+", "=")
    ],
    "a cast of a constant expression is computed": [
        ("x + cast(months_between(date '2013-03-01', date '2013-01-01') as decimal(4,1))", "int",
         [1], [Decimal(3)]),
    ],
    "integers are rounded to tens": [
        ("round(x, -1)", "int", [14, 15, 25, -25, None], [10, 20, 30, -30, None]),
        ("bround(x, -1)", "int", [14, 15, 25, -25, None], [10, 20, 20, -20, None]),
    ],
    "an empty array overlaps nothing": [
        ("arrays_overlap(x, slice(x, 1, 0))", "array<int>", OVERLAP, [False] * 3),
        ("arrays_overlap(slice(x, 1, 0), x)", "array<int>", OVERLAP, [False] * 3),
    ],
    "a decimal of 19 places is exact": [
        ("cast(x as decimal(38,19))", "int", [1, MOST], [ONE, ONE * MOST]),
    ],
    "a quotient of constants may exceed 64 bits": [
        ("x / (ceil(1.5) / cast(2.5D as decimal(20,4)))", "decimal(4,1)", [Decimal(2)],
         [Decimal("2.5")]),
    ],
    "the least bigint may be negated as a decimal": [
        (f"abs({NEGATED})", "bigint", [-(2**63), None, -5], [2**63, None, 5]),
        (f"-{NEGATED}", "bigint", [-(2**63), None, -5], [2**63, None, 5]),
    ],
    "the last element and a single match of a JSON path": [
        ("element_at(x, 3)", "array<int>", [[1, 2, 3]], [3]),
        ("element_at(x, -3)", "array<int>", [[1, 2, 3]], [1]),
        ("get_json_object(x, '$.a[*].b')", "string", ['{"a":[{"b":1},{"b":2}]}'], ["[1,2]"]),
        ("get_json_object(x, '$.a[*].b')", "string", ['{"a":[{"b":1},{"c":2}]}'], ["1"]),
        ("from_json(x, 'a array<string>').a", "string", ['{"a":{"b":1}}'], [None]),
    ],
    "a replacement accepts groups of two digits": [
        (f"regexp_replace(x, '{GROUPS}', '$12 $1 $13')", "string", ["abcdefghijkl"], ["l a a3"]),
        ("regexp_replace(x, '(a)', '$1')", "string", ["abc"], ["abc"]),
    ],
    "an intermediate sum may leave its type": [
        (SUM, "int", [-5, 1, 3], [-2147483644, -2147483648, -2147483646]),
    ],
    "branches of text keep the order of rows in large columns": [
        ("if(x <> 0, upper(cast(10 div x as string)), 'z')", "int", [1, 0, 2] * rows.SMALL,
         ["10", "z", "5"] * rows.SMALL),
    ],
    "a capital sigma at the end of a word is lowered": [
        ("lower(x)", "string", SIGMA,
         ["aσ.\u1c8a", "\u1c8aς", "aσ.\U00010d70", "aσ\U00010d69b", "i̇σ\u1c8a"]),
    ],
    "decimals are rounded once": [
        (f"1.5 / {TENTH}", "string", ["10000000000000000000000000000.5"], [Decimal("1e-28")]),
        (PRODUCT, "string", ["9007199254740992"],
         [Decimal("81129638414606681616079254907278.306836")]),
    ],
    "a branch that is not taken skips the common part": [
        (sql, "int", [LEAST], [False])
        for sql in (
            "case when x > 0 then -x between 1 and 2 else false end",
            "if(x > 0, nullif(-x, 1), 3) <> 3",
            "coalesce(x < 0, nullif(-x, 1) = 1) and x > 0 and false",
        )
    ],
    "a format without values is its text": [
        ("concat(format_string('a%%'), cast(x as string))", "int", [1], ["a%1"]),
    ],
}  # fmt: skip
ERRORS: dict[str, list[tuple[str, str, list[Any], str]]] = {
    "make_timestamp refuses other seconds": [
        (SECONDS, "decimal(16,6)", [Decimal(text)], "the time does not exist")
        for text in ("-0.5", "60.5", "9999999999.999999")
    ],
    "try functions evaluate the dividend": [
        ("try_divide(1 / x, x + 1)", "int", [1, 0], "division by zero in the row x=0"),
    ],
    "units overflow beside a null time": [
        (ADDED_DAYS, "int", [MOST], "overflow in the row x=2147483647"),
        *(
            (UNIT.format(unit), "bigint", [1, -(2**63)], f"overflow in the row x={-(2**63)}")
            for unit in ("day", "month")
        ),
    ],
    "a null test evaluates its argument": [
        (sql, "string", ["2013-01-01", ""], "in the row x=''")
        for sql in (
            "cast(cast(x as date) as string) is null", "to_date(x, 'yyyy-MM-dd') is not null",
        )
    ],
    "concatenation evaluates every operand": [
        ("if(x > 0, 'a', null) || bin(-x)", "tinyint", [1, -128], "overflow in the row x=-128"),
    ],
    "a used constant out of range fails": [
        (GUARDED, "int", [-1, 7], "the value is out of range for int in the row x=7"),
    ],
    "the left side of a comparison with null is evaluated": [
        (sql, "string", ["b"], "is not of type int")
        for sql in (
            "cast(x as int) = null", "cast(x as int) < null", "cast(x as int) + null",
            "null <=> cast(x as int)", "if(x = 'a', null, 1) = cast(x as int)",
        )
    ],
    "a final sum may not leave its type": [(SUM, "int", [-5, 0, 3], "overflow in the row x=0")],
    "a common part is evaluated on every row": [
        (sql, "int", [1, LEAST], "overflow in the row x=-2147483648")
        for sql in (
            "false and (-x between 1 and 2)", "x > 0 and (-x between 1 and 2)",
            "cast(null as int) + nullif(-x, 1) = 3",
            "case when (x > 0 and -x between 1 and 2) then 1 end = 1",
        )
    ],
}  # fmt: skip


@pytest.mark.parametrize("promise", VALUES)
def test_values_at_edge_of_type(promise: str) -> None:
    for sql, type_, given, expected in VALUES[promise]:
        assert (sql, result(sql, f"x {type_}", *given)) == (sql, expected)


@pytest.mark.parametrize("promise", ERRORS)
def test_error_at_edge_of_type(promise: str) -> None:
    for sql, type_, given, match in ERRORS[promise]:
        with pytest.raises(ExpressionError, match=match):
            result(sql, f"x {type_}", *given)


@pytest.mark.parametrize("name", OF_DOUBLES)
def test_functions_of_doubles_equal_c_library(name: str) -> None:
    least = 1e-9 if name.startswith("l") else -1.0
    values = np.random.default_rng(1).uniform(least, 1.0, 2000).tolist()
    function = getattr(math, {"ln": "log"}.get(name, name))
    assert result(f"{name}(x)", "x double", *values) == [function(each) for each in values]
    assert result(f"{name}(x)", "x double", values[0]) == [function(values[0])]


def test_pow_and_atan2_equal_c_library() -> None:
    values = np.random.default_rng(2).uniform(0.1, 9.0, 2000).tolist()
    assert result("pow(x, 1.7)", "x double", *values) == [math.pow(each, 1.7) for each in values]
    assert result("atan2(x, -2.5)", "x double", *values) == [math.atan2(x, -2.5) for x in values]


def test_cube_root_is_exact_or_nearest_double() -> None:
    cubes = [float(n) ** 3 for n in range(-2000, 2001)]
    assert result("cbrt(x)", "x double", *cubes) == [float(n) for n in range(-2000, 2001)]
    draw = np.random.default_rng(1)
    some = draw.uniform(1, 10, 300) * 10.0 ** draw.integers(-320, 308, 300)
    with decimal.localcontext(prec=50):
        third = decimal.Decimal(1) / 3
        nearest = [float(decimal.Decimal(x) ** third) for x in some.tolist()]
    assert result("cbrt(x)", "x double", *some.tolist()) == nearest
    assert result("cbrt(x)", "x double", np.inf, -np.inf, None) == [np.inf, -np.inf, None]


def test_levenshtein_with_column_limit_needs_spark() -> None:
    assert not compiled("levenshtein('a', 'b', x)", "x int").local
    assert result("levenshtein(x, 'kitten', 2)", "x string", "sitting", "kittens") == [-1, 1]


def test_timestamp_bounds_are_exact() -> None:
    last, least, month = 9_223_372_036_854, -(2**63), 31 * 86_400 * 10**6
    assert result("unix_seconds(timestamp_seconds(x))", "x bigint", last, -last) == [last, -last]
    moved = "unix_micros(timestampadd(month, -1, timestamp_micros(x)))"
    assert result(moved, "x bigint", least + month) == [least]
    for sql, beyond in (
        ("timestamp_seconds(x)", last + 1),
        ("timestamp_seconds(x)", -last - 1),
        (moved, least + month - 1),
    ):
        with pytest.raises(ExpressionError, match="overflow"):
            result(sql, "x bigint", beyond)


def test_year_out_of_range_is_error_or_null() -> None:
    far, none = 6_000_000, 10**9
    off, makes = SqlSettings("UTC", ansi=False), "make_date(x, 1, 1)"
    e = compile_expression(makes, Schema.parse("x int"), settings=off)
    assert rows.to_pylist(e.evaluate([column_of([2024, none], "int")], 2), "date")[1] is None
    for settings, match in ((off, "overflow"), (SqlSettings("UTC", ansi=True), "overflow")):
        e = compile_expression(makes, Schema.parse("x int"), settings=settings)
        with pytest.raises(ExpressionError, match=match):
            e.evaluate([column_of([far], "int")], 1)
    tried = "unix_micros(try_make_timestamp(x, 1, 10, 4, 0, 54))"
    assert result(tried, "x int", none, 294_247) == [None, 9_223_372_036_854_000_000]
    with pytest.raises(ExpressionError, match="overflow"):
        result("try_make_timestamp(x, 1, 11, 4, 0, 54)", "x int", 294_247)


def test_constant_may_exceed_64_bits() -> None:
    big, two = decimal.Decimal("99999999999999999999.50"), decimal.Decimal(2)
    for nulls in ((), (None,)):
        for sql, expected in (
            (f"if(x > 1, {big}, x)", big),
            (f"greatest(x, {big})", big),
            (f"greatest({big}, x)", big),
            (f"least(x, {big})", two),
            (f"abs(-{big}) - {big} + x", two),
            (f"bround({big}, 0) - x", decimal.Decimal("99999999999999999998")),
        ):
            found = result(sql, "x decimal(10,2)", two, *nulls)
            assert (sql, found[0]) == (sql, expected)


def test_like_pattern_matches_other_characters_literally() -> None:
    e = compiled("x like 'a_b.d%'", "x string")
    texts = ["axb.de", "axbcde", "aéb.d", None] * rows.SMALL
    found = rows.to_pylist(e.evaluate([column_of(texts, "string")], len(texts)), e.type)
    expected = [True, False, True, None]
    assert result("x like 'a_b.d%'", "x string", *texts[:4]) == expected
    assert found == expected * rows.SMALL


@pytest.mark.parametrize("text", ["x 02:03", "1 02:x", "1 02:03:04", "1:02 03"])
def test_malformed_interval_is_left_to_spark(text: str) -> None:
    sql, schema = f"x + interval '{text}' day to minute", Schema.parse("x timestamp_ntz")
    assert not compile_expression(sql, schema, types=lambda *_: ["timestamp_ntz"]).local


@pytest.mark.parametrize("ansi", [True, False])
def test_date_out_of_timestamp_range_is_error_in_every_function(ansi: bool) -> None:
    for sql in ("to_date", "try_to_timestamp", "try_to_date", "unix_timestamp"):
        schema, settings = Schema.parse("x string"), SqlSettings("UTC", ansi=ansi)
        e = compile_expression(f"{sql}(x, 'yyyy-MM-dd')", schema, settings=settings)
        assert e.evaluate([column_of(["+294247-01-10"], "string")], 1) is not None
        for far in ("+294247-01-11", "-290308-12-21"):
            with pytest.raises(ExpressionError, match="overflow"):
                e.evaluate([column_of([far], "string")], 1)


def test_computed_decimal_of_many_places_needs_spark() -> None:
    assert compiled("cast(x as int)", "x decimal(38,20)").local
    made = compiled("cast(cast(x as decimal(38,20)) as int)", "x int")
    assert (made.local, made.why) == (False, "cast of a computed decimal(38,20) to int")


@pytest.mark.parametrize("type_", ["double", "float"])
def test_nan_is_member_of_list_with_nan(type_: str) -> None:
    values = [np.nan, 1.0, 2.0, None]
    listed = f"{type_}('NaN'), cast(1 as {type_})"
    many = f"{listed}, {', '.join(f'cast({n} as {type_})' for n in range(10, 22))}"
    for texts in (listed, many):
        assert result(f"x in ({texts})", f"x {type_}", *values) == [True, True, False, None]
        assert result(f"x not in ({texts})", f"x {type_}", *values) == [False, False, True, None]
        assert result(f"x in ({texts}, null)", f"x {type_}", *values) == [True, True, None, None]
        sql = f"exists(array(x), v -> v in ({texts}))"
        assert result(sql, f"x {type_}", *values) == [True, True, False, None]
        assert result(f"case when x in ({texts}) then 1 else 2 end", f"x {type_}", *values) == [
            *(1, 1, 2, 2)
        ]
    assert result(f"case x when {type_}('NaN') then 1 else 2 end", f"x {type_}", *values) == [
        *(1, 2, 2, 2)
    ]
    assert result(f"x in (cast(1 as {type_}))", f"x {type_}", *values) == [False, True, False, None]


def test_float_is_rounded_as_double() -> None:
    texts = ("1.005", "2.675", "0.285", "-1.005", "0.125", "0.375", "16777216.5")
    floats = [float(np.float32(text)) for text in texts]

    def single(*values: float) -> list[float]:
        return [float(np.float32(value)) for value in values]

    whole = 16777216.0
    assert result("round(x, 2)", "x float", *floats) == single(
        *(1.0, 2.67, 0.28, -1.0, 0.13, 0.38, whole)
    )
    assert result("bround(x, 2)", "x float", *floats) == single(
        *(1.0, 2.67, 0.28, -1.0, 0.12, 0.38, whole)
    )
    greatest = float(np.finfo(np.float32).max)
    assert result("round(x, -38)", "x float", greatest, np.inf) == [*single(3e38), np.inf]
    assert result("round(x, 2)", "x double", 1.005, 2.675) == [1.01, 2.68]


@pytest.mark.parametrize("sql", ["nullif()", "to_binary()", "try_to_binary()", "format_string(1)"])
def test_call_without_arguments_is_left_to_spark(sql: str) -> None:
    assert not compiled(sql, "x int").local
