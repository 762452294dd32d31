"""Expressions without Spark: forms of columns, names, errors, and cases that need Spark."""

from __future__ import annotations

import json
import pickle
import re
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from internals import services_of
from sql_cases import interval_cases, json_cases, nested_cases, text_cases
from sql_cases.expression_cases import all_cases
from sql_cases.expression_frames import RECORD, digests, local_cases, results, values

from nosync_nb import Session, rows
from nosync_nb.errors import ExpressionError, NosyncError
from nosync_nb.expressions import Expression, SqlSettings, compile_expression, expand_select
from nosync_nb.expressions.functions.registry import FUNCTIONS, OPERATORS
from nosync_nb.rows import Column, Schema, objects

MODULES = (nested_cases, text_cases, json_cases)
FLIGHTS = Schema.parse(
    "carrier string, dep_delay double, distance bigint, seats int, day date, `a b` int,Late boolean"
)


def compiled(sql: str, **more: Any) -> Expression:
    return compile_expression(sql, FLIGHTS, **more)


def strings(sqls: Any, schema: Schema) -> list[str]:
    return ["string" for _ in sqls]


def column(*items: Any) -> Column:
    return objects(list(items))


def evaluate(sql: str, ddl: str, *columns: Column) -> list[Any]:
    """Evaluates over columns in any form; returns Python values."""
    e = compile_expression(sql, Schema.parse(ddl))
    return rows.to_pylist(e.evaluate(list(columns), len(columns[0])), e.type)


# -- the table


def test_every_table_entry_has_case_compared_with_spark() -> None:
    texts = " ".join(case.sql for case in all_cases())
    texts += " ".join(sql for module in MODULES for sql, _ in module.every())
    texts += " ".join(interval_cases.every())
    for name in FUNCTIONS:
        assert re.search(rf"\b{name}\(", texts), name
    for name in OPERATORS:
        assert name == "neg" or name in texts, name


def test_every_case_gives_recorded_value() -> None:
    """Comparison needs Spark; this test checks that no result has changed since the last one."""
    recorded, found = json.loads(RECORD.read_text()), digests()
    changed = {sql: (recorded.get(sql), now) for sql, now in found.items()}
    assert {sql: pair for sql, pair in changed.items() if pair[0] != pair[1]} == {}, (
        "pass vs_spark/test_functions.py, then run tests/support/sql_cases/expression_frames.py"
    )
    assert recorded.keys() == found.keys()


def test_small_columns_without_nulls_give_same_values() -> None:
    own = values()
    for case, e, found, fine in results():
        keep = np.ones(own.n, np.bool_) if fine is None else fine.copy()
        for c in e.columns:
            nulls = rows.null_mask(own.columns[c])
            keep &= True if nulls is None else ~nulls
        at = np.flatnonzero(keep)
        for some in (at, at[len(at) // 2 :][:10]):
            plain: list[Any] = [None] * len(own.columns)
            for c in e.columns:
                arrow = own.arrays[c].take(pa.array(some))
                plain[c] = rows.from_arrow(arrow, own.schema.types[c])
            got = e.evaluate(plain, len(some))
            assert rows.equal(rows.take(found, some), got, e.type).all(), case


def test_large_columns_give_values_of_small_ones() -> None:
    own = values()
    copies = rows.SMALL // own.n + 2
    for case, e, found, fine in results():
        keep = np.ones(own.n, np.bool_) if fine is None else fine
        every = np.tile(keep, copies)
        if every.sum() <= rows.SMALL:
            continue
        wide: list[Any] = [None] * len(own.columns)
        for c in e.columns:
            large = pa.concat_arrays([own.arrays[c]] * copies).filter(pa.array(every))
            wide[c] = rows.from_arrow(large, own.schema.types[c])
        got = e.evaluate(wide, int(every.sum()))
        assert len(got) == every.sum()
        first = rows.mask(found, keep)
        assert rows.equal(first, rows.slice_(got, 0, len(first)), e.type).all(), case


def test_expressions_accept_zero_rows() -> None:
    own = values()
    nothing = [rows.empty(t) for t in own.schema.types]
    for case, e in local_cases():
        assert (case.sql, 0) == (case.sql, len(e.evaluate(nothing, 0)))


def test_columns_with_nulls_have_form_of_their_size() -> None:
    e = compiled("seats + 1")
    few = e.evaluate([None, None, None, column(1, None)], 2)
    assert few.tolist() == [2, None]
    assert few.dtype == object
    many = pa.array([1, None] * 3000, pa.int32())
    large = e.evaluate([None, None, None, many], 6000)
    assert large.type == pa.int32()
    assert large[:2].to_pylist() == [2, None]
    assert e.evaluate([None, None, None, np.arange(3, dtype=np.int32)], 3).dtype == np.int32


def test_forms_may_be_mixed_in_one_batch() -> None:
    ddl = "a string, b string, n int"
    found = evaluate("a || b || n", ddl, pa.array(["x", "y"]), column("p", None), np.array([1, 2]))
    assert found == ["xp1", None]
    big = 5000
    text, number = objects(["x"] * big), pa.array([None, 7] * (big // 2), pa.int32())
    found = evaluate("if(n = 7, a, b)", ddl, text, pa.array(["z"] * big), number)
    assert found[:2] == ["z", "x"]


def test_arrow_columns_are_read_at_their_offset() -> None:
    whole = pa.array([None, True, False, None, True, False, True, None, True, True, None])
    assert evaluate("not a", "a boolean", whole.slice(3, 6)) == [
        None, False, True, False, None, False,
    ]  # fmt: skip
    numbers = pa.array([1.5, None, 2.5, None], pa.float64())
    assert evaluate("a * 2", "a double", numbers.slice(1, 3)) == [None, 5.0, None]


def test_results_are_canonical() -> None:
    found = compile_expression("-a", Schema.parse("a double")).evaluate([np.array([0.0, 1.0])], 2)
    assert not np.signbit(found[0])
    e = compile_expression("a - b", Schema.parse("a double, b double"))
    infinite = np.array([np.inf] * 100)
    assert set(e.evaluate([infinite, infinite], 100).view(np.uint64)) == {0x7FF8000000000000}


# -- meaning


def test_nan_is_greatest_and_equal_to_itself() -> None:
    a, b = np.array([np.nan, 1.0, np.nan]), np.array([1.0, np.nan, np.nan])
    assert evaluate("a > b", "a double, b double", a, b) == [True, False, False]
    assert evaluate("a = b", "a double, b double", a, b) == [False, False, True]
    assert evaluate("a > 5", "a double, b double", a, b) == [True, False, True]


def test_unused_branch_does_not_raise() -> None:
    a, b = np.array([6, 5, 4]), np.array([2, 0, 1])
    ddl = "a bigint, b bigint"
    assert evaluate("if(b = 0, null, a / b)", ddl, a, b) == [3.0, None, 4.0]
    assert evaluate("b <> 0 and a / b > 3", ddl, a, b) == [False, False, True]
    assert evaluate("b = 0 or a / b > 3", ddl, a, b) == [False, True, True]
    assert evaluate("case when b = 0 then -1 else a div b end", ddl, a, b) == [3, -1, 4]
    assert evaluate("coalesce(nullif(b, 0), a div b)", ddl, a, np.array([2, 1, 1])) == [2, 1, 1]


def test_operand_beside_null_is_not_evaluated() -> None:
    ddl = "a int, b int"
    assert evaluate("a + 1 div b", ddl, column(None, 5), column(0, 1)) == [None, 6]


def test_integers_beyond_fast_range_are_exact() -> None:
    big = 2**62
    assert evaluate("a + b * 2", "a bigint, b bigint", np.array([big]), np.array([-big // 2])) == [
        0
    ]
    with pytest.raises(ExpressionError, match="overflow in the row a=4611686018427387904, b=1"):
        evaluate("a * 2 - b", "a bigint, b bigint", np.array([1, big]), np.array([0, 1]))


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("distance / seats", "division by zero in the row distance=5, seats=0"),
        ("distance % seats", "remainder by zero in the row distance=5, seats=0"),
        (
            "cast(distance * 1000 as int)",
            "the value is out of range for int in the row distance=3000000",
        ),
        ("cast(carrier as int)", "'AA' is not of type int in the row carrier='AA'"),
        ("distance * 4000000000000", "overflow in the row distance=3000000"),
        ("seats < 1 and 1 / seats > 1 or late", "division by zero in the row seats=0, Late=False"),
    ],
)
def test_error_names_expression_and_row(sql: str, said: str) -> None:
    seats = np.array([0, 2] if "distance=5" in said else [1, 0], np.int32)
    columns = [column("1", "AA"), column(1.0, 2.0), np.array([5, 3_000_000]), seats]
    with pytest.raises(ExpressionError, match=said) as caught:
        compiled(sql).evaluate([*columns, seats, seats, np.array([True, False])], 2)
    assert sql in str(caught.value)
    assert caught.value.hint


# -- names


def test_columns_are_found_by_exact_name_then_case_insensitively() -> None:
    both = Schema.parse("x int, X int, Y int")
    assert compile_expression("X", both).columns == (1,)
    assert compile_expression("y", both).columns == (2,)
    assert compile_expression("y", both).name == "Y"
    assert compiled("`a b` + DISTANCE").references == ("distance", "a b")
    assert compiled("late").is_column


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("distance", "distance"),
        ("distance as d", "d"),
        ("distance * 2 AS twice", "twice"),
        ("distance * 2 twice", "twice"),
        ("distance * 2 as `two times`", "two times"),
        ("distance * 2", None),
    ],
)
def test_alias_is_name_and_no_part_of_text(sql: str, name: str | None) -> None:
    e = compiled(sql)
    assert e.name == name
    assert e.sql in ("distance", "distance * 2")


def test_operators_bind_as_in_spark() -> None:
    schema = Schema.parse("i int, j int, x binary")
    columns = [rows.objects([-8, 1]), rows.objects([1, 0]), rows.objects([b"\x1f", b"a"])]

    def of(sql: str) -> list[Any]:
        e = compile_expression(sql, schema)
        return rows.to_pylist(e.evaluate(columns, 2), e.type)

    assert of("i >>> j + 1 | 1") == [2**30 - 1, 1]
    assert of("x = X  '1f'") == [True, False]
    assert of("array(i, 5)[j]") == [5, 1]
    assert compile_expression("array(i, 5)[j]", schema).references == ("i", "j")


def test_columns_named_like_functions_and_types_are_columns() -> None:
    schema = Schema.parse("year int, date date, count bigint, type string, hour int, `order` int")
    assert compile_expression("year + 1", schema).type == "int"
    assert compile_expression("year(date) = year", schema).columns == (0, 1)
    assert compile_expression("count > 3 and type = 'x'", schema).columns == (2, 3)
    assert compile_expression("`order` - hour", schema).columns == (4, 5)
    assert compile_expression("date >= '2013-01-01'", schema).local


def test_lambda_variable_hides_column_inside_lambda_only() -> None:
    schema = Schema.parse("a array<int>, x int, y int")
    columns = {
        "transform(a, x -> x + 1)": (0,),
        "filter(array(x, 1), x -> x > 0)": (1,),
        "x + size(filter(a, x -> x > y))": (0, 1, 2),
        "exists(a, x -> exists(array(x, y), y -> x = y))": (0, 2),
    }
    compiled = {sql: compile_expression(sql, schema) for sql in columns}
    assert {sql: each.columns for sql, each in compiled.items()} == columns
    assert all(each.local for each in compiled.values())


def test_unknown_column_names_nearest_and_all_columns() -> None:
    with pytest.raises(ExpressionError, match="no column 'dep_dely'") as caught:
        compiled("dep_dely > 60")
    assert "did you mean 'dep_delay'?" in str(caught.value.hint)
    assert "carrier, dep_delay, distance" in str(caught.value.hint)
    with pytest.raises(ExpressionError, match="no column 'nowhere'"):
        compiled("regexp_replace(nowhere, 'a', 'b')", types=strings)
    with pytest.raises(ExpressionError, match="ambiguous"):
        compile_expression("XY", Schema.parse("Xy int, xY int"))


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("dep_delay >", "something is missing after '>' at position 11"),
        ("dep_delay > (distance", r"expected '\)' near 'distance' at position 14"),
        ("carrier = 'AA", "a string is not closed at position 11"),
        ("distance seats late", "did not expect 'late' at position 16"),
        ("distance, seats", "it is 2 expressions"),
        ("distance from flights", "more than one expression"),
        ("distinct carrier", "more than one expression"),
        ("distance; seats", "more than one expression"),
        ("", "it is empty"),
        ("  ", "it is empty"),
        ("1eBD", "a literal that begins like a number is not a number"),
        ("distance + 1ebd", "a literal that begins like a number is not a number"),
        ("1e", "only Spark evaluates 1e, which is not a number"),
        ("distance + 1.5e", "only Spark evaluates 1.5e, which is not a number"),
    ],
)
def test_syntax_error_names_position(sql: str, said: str) -> None:
    with pytest.raises(ExpressionError, match=said):
        compiled(sql)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("sum(distance) > 3", "sum is an aggregate"),
        ("count(*)", "count is an aggregate"),
        ("row_number() over (order by distance)", "window"),
        ("explode(array(1, 2))", "explode generates several rows"),
        ("distance > (select 1)", "subquery"),
        ("distance in (select 1)", "subquery"),
        ("distance > :limit", "parameter"),
        ("* > 3", "cannot read|stands for columns"),
        ("null", "null alone has no type"),
    ],
)
def test_aggregates_windows_and_subqueries_are_refused(sql: str, said: str) -> None:
    with pytest.raises(ExpressionError, match=said) as caught:
        compiled(sql, types=strings)
    assert isinstance(caught.value, NosyncError)


def test_star_is_replaced_by_columns() -> None:
    schema = Schema.parse("a int, `b c` int, d int")
    assert expand_select(["*"], schema) == ["`a`", "`b c`", "`d`"]
    assert expand_select(["* except (D)", "a + 1 as x"], schema) == ["`a`", "`b c`", "a + 1 as x"]
    with pytest.raises(ExpressionError, match="no column 'x'"):
        expand_select(["* except (x)"], schema)


# -- identity


def test_fingerprint_ignores_space_comments_case_and_alias() -> None:
    one = compiled("UPPER(carrier)='AA' and not Late")
    other = compiled("upper( CARRIER ) == 'AA' -- why\n AND ! late as x")
    assert one.fingerprint == other.fingerprint
    assert compiled("carrier = 'aa'").fingerprint != compiled("carrier = 'AA'").fingerprint
    assert compiled("distance - 1").fingerprint != compiled("distance -1 -1").fingerprint


def test_expressions_survive_pickling() -> None:
    for e in (compiled("distance * 2 as x"), compiled("date_format(day, 'w')", types=strings)):
        again = pickle.loads(pickle.dumps(e))
        for name in ("sql", "name", "type", "columns", "local", "fingerprint", "deterministic"):
            assert getattr(e, name) == getattr(again, name)


@pytest.mark.parametrize(
    ("sql", "deterministic"),
    [
        ("rand()", False), ("distance + rand()", False), ("current_timestamp", False),
        ("now()", False), ("current_date", False), ("localtimestamp", False), ("uuid()", False),
        ("unix_timestamp()", False), ("monotonically_increasing_id()", False),
        ("mask(carrier)", True), ("distance + 1", True),
    ],
)  # fmt: skip
def test_nondeterministic_expressions_are_marked(sql: str, *, deterministic: bool) -> None:
    assert compiled(sql, types=strings).deterministic is deterministic


@pytest.mark.parametrize(
    "sql",
    [
        "text", "Text = 'x'", "upper(text) as text", "v <> 'some text'", "v = 'x as char (3)'",
        "`text`", "s.text", "transform(a, text -> upper(text))",
        "case when text is null then 'text' else text end",
    ],
)  # fmt: skip
def test_names_like_types_are_columns_or_strings(sql: str) -> None:
    schema = Schema.parse("v string, text string, s struct<text: string>, a array<string>")
    assert compile_expression(sql, schema).local


# -- what is left to Spark


@pytest.mark.parametrize(
    "sql",
    [
        "carrier::varchar(3)", "cast(carrier as  char (3))", "cast(carrier as text)",
        "carrier::text", "cast(array(carrier) as array<text>)", "to_csv(struct(carrier))",
        "carrier || distance - 1", "dep_delay = distance between 1 and 2",
        "cast(carrier as varchar(3))", "date_format(day, 'w')", "to_date(carrier, 'EEE d')",
        "day + interval (seats) day",
    ],
)  # fmt: skip
def test_unsupported_expressions_are_left_to_spark(sql: str) -> None:
    e = compiled(sql, types=strings)
    assert not e.local
    assert e.type == "string"
    assert e.why
    with pytest.raises(ExpressionError, match="only Spark evaluates"):
        e.evaluate([], 0)
    with pytest.raises(ExpressionError, match="no Spark session") as caught:
        compiled(sql)
    assert "spark" in str(caught.value.hint)


def test_interval_of_months_and_days_is_refused() -> None:
    with pytest.raises(ExpressionError, match=r"a column cannot hold its type interval\n"):
        compiled("make_interval(1)", types=lambda *_: ["interval"])


def test_timestamps_with_zone_are_evaluated_in_process_in_utc_only() -> None:
    schema = Schema.parse("t timestamp, n timestamp_ntz")
    for sql, here in (("hour(t)", False), ("hour(n)", True), ("t > n", False), ("t = t", True)):
        e = compile_expression(sql, schema, types=strings, settings=SqlSettings("Europe/Berlin"))
        assert (sql, e.local) == (sql, here)
        assert compile_expression(sql, schema).local


def test_decimals_are_exact_and_bounded() -> None:
    ddl = "p decimal(15,2), f decimal(15,2), t decimal(15,2)"
    price, off, tax = (column(Decimal(text)) for text in ("38269.80", "0.07", "0.02"))
    found = evaluate("p * (1 - f) * (1 + t)", ddl, price, off, tax)
    assert found == [Decimal("36302.732280")]
    wide = "p decimal(38,0)"
    most = column(Decimal("9" * 38), None)
    assert evaluate("p - 1", wide, most) == [Decimal("9" * 37 + "8"), None]
    with pytest.raises(ExpressionError, match="overflow in the row p="):
        evaluate("p + 1", wide, most)
    with pytest.raises(ExpressionError, match="division by zero in the row p=Decimal"):
        evaluate("1.5 / p", wide, column(Decimal(1), Decimal(0)))


def test_add_months_overflows_at_last_date() -> None:
    later = compile_expression("add_months(d, 1)", Schema.parse("d date"))
    last, beyond = (np.array([2**31 - n], np.int32) for n in (31, 30))
    assert later.evaluate([last], 1).tolist() == [2**31 - 1]
    with pytest.raises(ExpressionError, match="overflow"):
        later.evaluate([beyond], 1)


def test_failing_constant_fails_only_for_rows_that_use_it() -> None:
    assert evaluate("if(a > 0, a, cast('x' as int))", "a int", column(1, 2)) == [1, 2]
    with pytest.raises(ExpressionError, match="'x' is not of type int in the row a=-1"):
        evaluate("if(a > 0, a, cast('x' as int))", "a int", column(1, -1))


def test_text_compared_with_number_needs_no_spark_and_fails_on_its_row(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services_of(session).spark_connection, "require", None)
    orders = session.input("orders", "sku string, amount double")
    session.stage("oops", orders.filter("sku > 5 and amount = 'abc'"))
    for sku, what in (("apple", "'apple' is not of type bigint"), ("7", "'abc' is not of type")):
        orders.insert([(sku, 1.0)])
        with pytest.raises(ExpressionError, match=what):
            session.commit()
        session.discard()
    orders.insert([("3", 1.0)])
    session.commit()
    assert session["oops"].rows() == []


def test_empty_pattern_splits_into_characters() -> None:
    for limit, pieces in (
        ("", ["a", "b", "c"]),
        (", 0", ["a", "b", "c"]),
        (", -1", ["a", "b", "c"]),
        (", 1", ["abc"]),
        (", 2", ["a", "bc"]),
        (", 3", ["a", "b", "c"]),
        (", 4", ["a", "b", "c"]),
    ):
        assert evaluate(f"split(x, ''{limit})", "x string", column("abc")) == [pieces], limit


def test_nested_columns_are_passed_on_and_tested_for_null() -> None:
    schema = Schema.parse("d decimal(10,2), m array<int>")
    assert compile_expression("d as e", schema).local
    assert compile_expression("m", schema).type == "array<int>"
    nested = pa.array([[1], None], pa.list_(pa.int32()))
    e = compile_expression("m is null", schema)
    assert e.evaluate([None, nested], 2).tolist() == [False, True]


@pytest.mark.parametrize("sql", ["a + 9223372036854775807", "9223372036854775807 + a"])
def test_greatest_literal_does_not_wrap_in_small_batches(sql: str) -> None:
    assert evaluate(sql, "a bigint", np.array([0, -1])) == [2**63 - 1, 2**63 - 2]
    with pytest.raises(ExpressionError, match="overflow"):
        evaluate(sql, "a bigint", np.array([0, 1]))
    with pytest.raises(ExpressionError, match="overflow"):
        evaluate("-9223372036854775807 - 1 - a", "a bigint", np.array([1]))


@pytest.mark.parametrize("type_", ["tinyint", "smallint", "int", "bigint"])
@pytest.mark.parametrize("sign", ["+", "-", "*"])
def test_small_batches_overflow_exactly_at_bounds(type_: str, sign: str) -> None:
    """Literals of every size: those near the bounds leave no range that is safe from overflow."""
    bits = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}[type_]
    least, greatest = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    edges = [least, least + 1, -2, -1, 0, 1, 2, greatest // 2 + 1, greatest - 1, greatest]
    dtype = np.dtype(f"int{bits}")
    for literal in edges[1:]:
        sql = f"a {sign} cast({literal} as {type_})"
        for x in edges:
            wanted = {"+": x + literal, "-": x - literal, "*": x * literal}[sign]
            given = np.array([x], dtype)
            if least <= wanted <= greatest:
                assert evaluate(sql, f"a {type_}", given) == [wanted]
            else:
                with pytest.raises(ExpressionError, match="overflow"):
                    evaluate(sql, f"a {type_}", given)
