"""Documented examples of Spark, varied at the edges of types."""

from __future__ import annotations

import decimal
import math
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


def of(sql: str, schema: str, *values: Any) -> list[Any]:
    e = compiled(sql, schema)
    assert e.local, e.why
    type_ = schema.split(" ", 1)[1]
    return rows.to_pylist(e.evaluate([column_of(list(values), type_)], len(values)), e.type)


@pytest.mark.parametrize("name", OF_DOUBLES)
def test_functions_of_doubles_equal_c_library(name: str) -> None:
    least = 1e-9 if name.startswith("l") else -1.0
    values = np.random.default_rng(1).uniform(least, 1.0, 2000).tolist()
    function = getattr(math, {"ln": "log"}.get(name, name))
    assert of(f"{name}(x)", "x double", *values) == [function(each) for each in values]
    assert of(f"{name}(x)", "x double", values[0]) == [function(values[0])]


def test_pow_and_atan2_equal_c_library() -> None:
    values = np.random.default_rng(2).uniform(0.1, 9.0, 2000).tolist()
    assert of("pow(x, 1.7)", "x double", *values) == [math.pow(each, 1.7) for each in values]
    assert of("atan2(x, -2.5)", "x double", *values) == [math.atan2(x, -2.5) for x in values]


def test_cube_root_is_exact_or_nearest_double() -> None:
    cubes = [float(n) ** 3 for n in range(-2000, 2001)]
    assert of("cbrt(x)", "x double", *cubes) == [float(n) for n in range(-2000, 2001)]
    draw = np.random.default_rng(1)
    some = draw.uniform(1, 10, 300) * 10.0 ** draw.integers(-320, 308, 300)
    with decimal.localcontext(prec=50):
        third = decimal.Decimal(1) / 3
        nearest = [float(decimal.Decimal(x) ** third) for x in some.tolist()]
    assert of("cbrt(x)", "x double", *some.tolist()) == nearest
    assert of("cbrt(x)", "x double", np.inf, -np.inf, None) == [np.inf, -np.inf, None]


def test_overlay_before_start_keeps_text() -> None:
    least = -(2**31)
    sql = "overlay('Spark SQL' placing '_' from x for 0)"
    assert of(sql, "x int", least, -1, 5) == ["_Spark SQL", "_L", "Spar_k SQL"]
    given = of("overlay('Spark SQL' placing '_' from -5 for x)", "x int", 2**31 - 1, 0, -7)
    assert given == ["_", "_k SQL", "_ SQL"]


def test_make_timestamp_uses_31_bits_of_seconds() -> None:
    sql = "unix_micros(make_timestamp(1970, 1, 1, 0, 0, x))"
    kept = of(sql, "x decimal(16,6)", *map(decimal.Decimal, ("4294967301.5", "-2147483643.25")))
    assert kept == [5_500_000, 4_750_000]
    for seconds in ("-0.5", "60.5", "9999999999.999999"):
        with pytest.raises(ExpressionError, match="the time does not exist"):
            of(sql, "x decimal(16,6)", decimal.Decimal(seconds))


def test_levenshtein_with_column_limit_needs_spark() -> None:
    assert not compiled("levenshtein('a', 'b', x)", "x int").local
    assert of("levenshtein(x, 'kitten', 2)", "x string", "sitting", "kittens") == [-1, 1]


def test_timestamp_bounds_are_exact() -> None:
    last, least, month = 9_223_372_036_854, -(2**63), 31 * 86_400 * 10**6
    assert of("unix_seconds(timestamp_seconds(x))", "x bigint", last, -last) == [last, -last]
    moved = "unix_micros(timestampadd(month, -1, timestamp_micros(x)))"
    assert of(moved, "x bigint", least + month) == [least]
    for sql, beyond in (
        ("timestamp_seconds(x)", last + 1),
        ("timestamp_seconds(x)", -last - 1),
        (moved, least + month - 1),
    ):
        with pytest.raises(ExpressionError, match="overflow"):
            of(sql, "x bigint", beyond)


def test_json_tinyint_wraps_from_128() -> None:
    given = of("from_json(x, 'a tinyint').a", "x string", *(f'{{"a":{n}}}' for n in (127, 128)))
    assert given == [127, -128]


def test_hash_of_bytes_is_signed_from_128() -> None:
    assert of("hash(x)", "x binary", b"\x7f", b"\x80") == [1185089389, 775851899]


def test_try_functions_check_divisor_first() -> None:
    assert of("try_divide(1 / x, x)", "x int", 0, 2, None) == [None, 0.25, None]
    assert of("try_mod(5 % x, x)", "x bigint", 0, 3) == [None, 2]
    with pytest.raises(ExpressionError, match="division by zero in the row x=0"):
        of("try_divide(1 / x, x + 1)", "x int", 1, 0)


def test_overflow_of_units_is_error_beside_null_time() -> None:
    sql = "timestampadd(day, x * 3, cast(null as timestamp))"
    assert of(sql, "x int", 1, None) == [None, None]
    with pytest.raises(ExpressionError, match="overflow in the row x=2147483647"):
        of(sql, "x int", 2**31 - 1)


def test_units_added_to_null_time_do_not_overflow() -> None:
    for unit in ("day", "month"):
        sql = f"timestampadd({unit}, x, if(x < 0, timestamp '2000-01-01', null))"
        assert of(sql, "x bigint", 2**63 - 1, 5, None) == [None] * 3
        with pytest.raises(ExpressionError, match="overflow in the row x=-9223372036854775808"):
            of(sql, "x bigint", 1, -(2**63))


def test_null_test_evaluates_its_argument() -> None:
    for sql in ("cast(cast(x as date) as string) is null", "to_date(x, 'yyyy-MM-dd') is not null"):
        with pytest.raises(ExpressionError, match="in the row x=''"):
            of(sql, "x string", "2013-01-01", "")


def test_concatenation_evaluates_every_operand() -> None:
    with pytest.raises(ExpressionError, match="overflow in the row x=-128"):
        of("if(x > 0, 'a', null) || bin(-x)", "x tinyint", 1, -128)
    assert of("concat(if(x > 0, 'a', null), bin(-x))", "x tinyint", -1, -3) == [None, None]


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
    assert of(tried, "x int", none, 294_247) == [None, 9_223_372_036_854_000_000]
    with pytest.raises(ExpressionError, match="overflow"):
        of("try_make_timestamp(x, 1, 11, 4, 0, 54)", "x int", 294_247)


def test_constant_out_of_range_fails_only_if_used() -> None:
    sql = "if(x > 0, cast(floor(cast(3000000000 as decimal(20,0))) as int), 1)"
    assert of(sql, "x int", -1, None) == [1, 1]
    with pytest.raises(ExpressionError, match="the value is out of range for int in the row x=7"):
        of(sql, "x int", -1, 7)


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
            found = of(sql, "x decimal(10,2)", two, *nulls)
            assert (sql, found[0]) == (sql, expected)


def test_comparison_with_null_evaluates_left_side_only() -> None:
    for sql in ("null > cast(x as int)", "null + cast(x as int)", "null = cast(x as int)"):
        assert of(sql, "x string", "a", "1") == [None, None]
    sided = ("cast(x as int) = null", "cast(x as int) < null", "cast(x as int) + null")
    for sql in (*sided, "null <=> cast(x as int)", "if(x = 'a', null, 1) = cast(x as int)"):
        with pytest.raises(ExpressionError, match="is not of type int"):
            of(sql, "x string", "b")


def test_cast_of_constant_expression_is_computed() -> None:
    sql = "x + cast(months_between(date '2013-03-01', date '2013-01-01') as decimal(4,1))"
    assert of(sql, "x int", 1) == [decimal.Decimal(3)]


def test_integers_are_rounded_to_tens() -> None:
    assert of("round(x, -1)", "x int", 14, 15, 25, -25, None) == [10, 20, 30, -30, None]
    assert of("bround(x, -1)", "x int", 14, 15, 25, -25, None) == [10, 20, 20, -20, None]


def test_like_pattern_matches_other_characters_literally() -> None:
    e = compiled("x like 'a_b.d%'", "x string")
    texts = ["axb.de", "axbcde", "aéb.d", None] * rows.SMALL
    found = rows.to_pylist(e.evaluate([column_of(texts, "string")], len(texts)), e.type)
    assert found[:4] == of("x like 'a_b.d%'", "x string", *texts[:4]) == [True, False, True, None]
    assert found == found[:4] * rows.SMALL


def test_empty_array_overlaps_nothing() -> None:
    assert of("arrays_overlap(x, slice(x, 1, 0))", "x array<int>", [None], [1], []) == [False] * 3
    assert of("arrays_overlap(slice(x, 1, 0), x)", "x array<int>", [None], [1], []) == [False] * 3


def test_decimal_of_19_places_is_exact() -> None:
    one, largest = decimal.Decimal("1." + 19 * "0"), 2**31 - 1
    assert of("cast(x as decimal(38,19))", "x int", 1, largest) == [one, one * largest]


def test_quotient_of_constants_may_exceed_64_bits() -> None:
    sql = "x / (ceil(1.5) / cast(2.5D as decimal(20,4)))"
    assert of(sql, "x decimal(4,1)", decimal.Decimal(2)) == [decimal.Decimal("2.5")]


def test_least_bigint_may_be_negated_as_decimal() -> None:
    least, decimals = -(2**63), "cast(x as decimal(20,0))"
    assert of(f"abs({decimals})", "x bigint", least, None, -5) == [2**63, None, 5]
    assert of(f"-{decimals}", "x bigint", least, None, -5) == [2**63, None, 5]


@pytest.mark.parametrize(
    ("sql", "type_", "value", "expected"),
    [
        ("element_at(x, 3)", "array<int>", [1, 2, 3], 3),
        ("element_at(x, -3)", "array<int>", [1, 2, 3], 1),
        ("get_json_object(x, '$.a[*].b')", "string", '{"a":[{"b":1},{"b":2}]}', "[1,2]"),
        ("get_json_object(x, '$.a[*].b')", "string", '{"a":[{"b":1},{"c":2}]}', "1"),
        ("from_json(x, 'a array<string>').a", "string", '{"a":{"b":1}}', None),
    ],
)
def test_last_element_and_single_match_of_json_path(
    sql: str, type_: str, value: Any, expected: Any
) -> None:
    assert of(sql, f"x {type_}", value) == [expected]


def test_replacement_accepts_groups_of_two_digits() -> None:
    groups = "".join(f"({letter})" for letter in "abcdefghijkl")
    sql = f"regexp_replace(x, '{groups}', '$12 $1 $13')"
    assert of(sql, "x string", "abcdefghijkl") == ["l a a3"]
    sql = "regexp_replace(x, '(a)', '$1')"
    assert of(sql, "x string", "abc") == ["abc"]


@pytest.mark.parametrize("text", ["x 02:03", "1 02:x", "1 02:03:04", "1:02 03"])
def test_malformed_interval_is_left_to_spark(text: str) -> None:
    sql, schema = f"x + interval '{text}' day to minute", Schema.parse("x timestamp_ntz")
    assert not compile_expression(sql, schema, types=lambda *_: ["timestamp_ntz"]).local


def test_intermediate_sum_may_leave_type() -> None:
    sql = "abs(x) - 2147483647 - 2"
    assert of(sql, "x int", -5, 1, 3) == [-2147483644, -2147483648, -2147483646]
    with pytest.raises(ExpressionError, match="overflow in the row x=0"):
        of(sql, "x int", -5, 0, 3)


def test_branches_of_text_keep_row_order_in_large_columns() -> None:
    given = of("if(x <> 0, upper(cast(10 div x as string)), 'z')", "x int", *[1, 0, 2] * rows.SMALL)
    assert given == ["10", "z", "5"] * rows.SMALL


def test_capital_sigma_at_word_end_is_lowered() -> None:
    young = ("AΣ.\u1c8a", "\u1c8aΣ", "AΣ.\U00010d70", "AΣ\U00010d69b", "İΣ\u1c89")
    expected = ["aσ.\u1c8a", "\u1c8aς", "aσ.\U00010d70", "aσ\U00010d69b", "i̇σ\u1c8a"]
    assert of("lower(x)", "x string", *young) == expected


def test_decimals_are_rounded_once() -> None:
    tenth = "cast(x as decimal(38,9))"
    assert of(f"1.5 / {tenth}", "x string", "10000000000000000000000000000.5") == [
        decimal.Decimal("1e-28")
    ]
    product = f"cast('9007199254740991.99115044' as decimal(38,8)) * {tenth}"
    expected = decimal.Decimal("81129638414606681616079254907278.306836")
    assert of(product, "x string", "9007199254740992") == [expected]


@pytest.mark.parametrize("ansi", [True, False])
def test_date_out_of_timestamp_range_is_error_in_every_function(ansi: bool) -> None:
    for sql in ("to_date", "try_to_timestamp", "try_to_date", "unix_timestamp"):
        schema, settings = Schema.parse("x string"), SqlSettings("UTC", ansi=ansi)
        e = compile_expression(f"{sql}(x, 'yyyy-MM-dd')", schema, settings=settings)
        assert e.evaluate([column_of(["+294247-01-10"], "string")], 1) is not None
        for far in ("+294247-01-11", "-290308-12-21"):
            with pytest.raises(ExpressionError, match="overflow"):
                e.evaluate([column_of([far], "string")], 1)


def test_short_circuit_evaluates_common_part_per_row() -> None:
    for sql in (
        "false and (-x between 1 and 2)",
        "x > 0 and (-x between 1 and 2)",
        "cast(null as int) + nullif(-x, 1) = 3",
        "case when (x > 0 and -x between 1 and 2) then 1 end = 1",
    ):
        with pytest.raises(ExpressionError, match="overflow in the row x=-2147483648"):
            of(sql, "x int", 1, -(2**31))
    for sql in (
        "case when x > 0 then -x between 1 and 2 else false end",
        "if(x > 0, nullif(-x, 1), 3) <> 3",
        "coalesce(x < 0, nullif(-x, 1) = 1) and x > 0 and false",
    ):
        assert of(sql, "x int", -(2**31)) == [False]


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
        assert of(f"x in ({texts})", f"x {type_}", *values) == [True, True, False, None]
        assert of(f"x not in ({texts})", f"x {type_}", *values) == [False, False, True, None]
        assert of(f"x in ({texts}, null)", f"x {type_}", *values) == [True, True, None, None]
        sql = f"exists(array(x), v -> v in ({texts}))"
        assert of(sql, f"x {type_}", *values) == [True, True, False, None]
        assert of(f"case when x in ({texts}) then 1 else 2 end", f"x {type_}", *values) == [
            *(1, 1, 2, 2)
        ]
    assert of(f"case x when {type_}('NaN') then 1 else 2 end", f"x {type_}", *values) == [
        *(1, 2, 2, 2)
    ]
    assert of(f"x in (cast(1 as {type_}))", f"x {type_}", *values) == [False, True, False, None]


def test_float_is_rounded_as_double() -> None:
    texts = ("1.005", "2.675", "0.285", "-1.005", "0.125", "0.375", "16777216.5")
    floats = [float(np.float32(text)) for text in texts]

    def single(*values: float) -> list[float]:
        return [float(np.float32(value)) for value in values]

    whole = 16777216.0
    assert of("round(x, 2)", "x float", *floats) == single(
        *(1.0, 2.67, 0.28, -1.0, 0.13, 0.38, whole)
    )
    assert of("bround(x, 2)", "x float", *floats) == single(
        *(1.0, 2.67, 0.28, -1.0, 0.12, 0.38, whole)
    )
    assert of("round(x, -38)", "x float", 3.4028234663852886e38, np.inf) == [*single(3e38), np.inf]
    assert of("round(x, 2)", "x double", 1.005, 2.675) == [1.01, 2.68]


@pytest.mark.parametrize("sql", ["nullif()", "to_binary()", "try_to_binary()", "format_string(1)"])
def test_call_without_arguments_is_left_to_spark(sql: str) -> None:
    assert not compiled(sql, "x int").local


def test_format_without_values_is_its_text() -> None:
    assert of("concat(format_string('a%%'), cast(x as string))", "x int", 1) == ["a%1"]
