"""Forms of SELECT: equal column names, BY NAME, generators of written rows, fields, and ranks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nosync_nb
from nosync_nb import Session
from nosync_nb.collections.session_protocol import definition_of
from nosync_nb.errors import SqlError


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with nosync_nb.open(tmp_path / "log") as opened:
        opened.input("t", "a int, b string")
        opened.input("u", "a int, d int")
        opened["t"].insert([(1, "x"), (2, "y"), (2, "y"), (None, None)])
        opened["u"].insert([(1, 10), (2, 20), (3, None)])
        opened.commit()
        yield opened


def values(collection: Any) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in collection.rows()]


def refused(session: Session, text: str) -> SqlError:
    with pytest.raises(SqlError) as raised:
        session.sql(text)
    assert raised.value.hint
    assert "^" in str(raised.value)
    return raised.value


# -- columns with equal names ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("SELECT a, a, a FROM t", ("a", "a_1", "a_2")),
        ("SELECT a, a, a AS a_1 FROM t", ("a", "a_2", "a_1")),
        ("SELECT a, A FROM t", ("a", "A_1")),
        ("SELECT * FROM t, u WHERE t.a = u.a", ("a", "b", "a_1", "d")),
        ("SELECT * FROM (SELECT t.a, t.* FROM t)", ("a", "a_1", "b")),
    ],
)
def test_equal_names_of_a_query_are_numbered(
    session: Session, query: str, names: tuple[str, ...]
) -> None:
    assert session.sql(query).schema.names == names
    [result] = session.execute(query)
    assert result.collection is not None
    assert result.collection.schema.names == names


def test_stage_in_python_uses_the_numbered_names(session: Session, tmp_path: Path) -> None:
    pairs = session.sql("SELECT * FROM t, u WHERE t.a = u.a")
    session.stage("pairs", pairs)
    session.stage("sums", session["pairs"].select("a + a_1 AS s", "b"))
    session["u"].insert([(1, 11)])
    session.commit()
    expected = [(2, "x"), (2, "x"), (4, "y"), (4, "y")]
    assert values(session["sums"]) == expected
    session.close()
    with nosync_nb.open(tmp_path / "log") as again:
        assert values(again["sums"]) == expected
        query = "CREATE VIEW pairs AS SELECT t.a, b, u.a AS a_1, d FROM t, u WHERE t.a = u.a"
        assert again.execute(query)[0].report.status == "unchanged"


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW v AS SELECT a, a FROM t",
        "CREATE OR REPLACE TEMP VIEW v AS SELECT t.a, t.* FROM t",
        "CREATE VIEW v AS SELECT * FROM t JOIN u ON t.a = u.a",
    ],
)
def test_view_with_equal_names_is_refused(session: Session, statement: str) -> None:
    with pytest.raises(SqlError, match="COLUMN_ALREADY_EXISTS"):
        session.execute(statement)
    assert "v" not in session.stages


def test_insert_of_equal_names_is_by_position_and_refused_by_name(session: Session) -> None:
    session.execute("INSERT INTO u SELECT a, a FROM t WHERE b = 'x'")
    assert (1, 1) in values(session["u"])
    before = values(session["u"])
    with pytest.raises(SqlError):
        session.execute("INSERT INTO u BY NAME SELECT a, a, 1 AS d FROM t")
    assert values(session["u"]) == before


def test_reference_to_one_of_several_columns_is_ambiguous(session: Session) -> None:
    error = refused(session, "SELECT a FROM (SELECT t.a, u.a FROM t, u)")
    assert "[AMBIGUOUS_REFERENCE]" in str(error)
    assert values(session.sql("SELECT b FROM (SELECT t.a, u.a, b FROM t, u WHERE d = 10)"))
    same = session.sql("SELECT a FROM (SELECT t.a, t.* FROM t) WHERE a = 1")
    assert values(same) == [(1,)]


# -- UNION BY NAME ---------------------------------------------------------------------------------


def test_union_by_name_fills_missing_columns_with_nulls(session: Session) -> None:
    query = "SELECT a, b FROM t WHERE a = 1 UNION ALL BY NAME SELECT d, A FROM u WHERE a = 1"
    union = session.sql(query)
    assert union.schema.names == ("a", "b", "d")
    assert values(union) == [(1, None, 10), (1, "x", None)]
    session["u"].insert([(1, 99)])
    session.commit()
    assert values(union) == [(1, None, 10), (1, None, 99), (1, "x", None)]


def test_union_by_name_of_equal_names_and_other_operations_are_refused(session: Session) -> None:
    query = "SELECT a, a FROM t UNION BY NAME SELECT a FROM u"
    assert "[AMBIGUOUS_REFERENCE]" in str(refused(session, query))
    query = "SELECT a FROM t INTERSECT BY NAME SELECT a FROM u"
    assert "[PARSE_SYNTAX_ERROR]" in str(refused(session, query))


# -- generators ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "condition"),
    [
        ("SELECT stack(0, 1)", "DATATYPE_MISMATCH.VALUE_OUT_OF_RANGE"),
        ("SELECT stack('x', 1)", "DATATYPE_MISMATCH.UNEXPECTED_INPUT_TYPE"),
        ("SELECT stack(2)", "WRONG_NUM_ARGS"),
        ("SELECT stack(2, a, 1, b, 2) FROM t", "DATATYPE_MISMATCH.STACK_COLUMN_DIFF_TYPES"),
        ("SELECT json_tuple(b) FROM t", "WRONG_NUM_ARGS.WITHOUT_SUGGESTION"),
        ("SELECT json_tuple(b, b) FROM t", "UNSUPPORTED_FEATURE"),
        ("SELECT json_tuple(NULL, 'a')", "DATATYPE_MISMATCH.NON_STRING_TYPE"),
        ("SELECT * FROM t LATERAL VIEW explode(array(a))", "PARSE_SYNTAX_ERROR"),
        ("TABLE t |> LIMIT a |> LIMIT 2", "PARSE_SYNTAX_ERROR"),
        ("SELECT a FROM t LIMIT a", "INVALID_LIMIT_LIKE_EXPRESSION"),
        ("SELECT a FROM t SORT BY z", "UNRESOLVED_COLUMN"),
        ("SELECT a FROM t WHERE (a, b) = (1, 2)", "DATATYPE_MISMATCH.BINARY_OP_DIFF_TYPES"),
        ("VALUES (1), ('a')", "INVALID_INLINE_TABLE.INCOMPATIBLE_TYPES_IN_INLINE_TABLE"),
    ],
)
def test_wrong_form_is_refused_with_class_of_spark(
    session: Session, query: str, condition: str
) -> None:
    with pytest.raises(SqlError) as raised:
        session.sql(query)
    assert f"[{condition}]" in str(raised.value)
    assert raised.value.hint


def test_sort_by_and_distribute_by_have_no_effect(session: Session) -> None:
    plain = session.sql("SELECT a, count(*) AS n FROM t GROUP BY a")
    for clause in ("SORT BY n DESC", "DISTRIBUTE BY a, sum(a)", "CLUSTER BY a"):
        query = f"SELECT a, count(*) AS n FROM t GROUP BY a {clause}"
        same = definition_of("sorted", session.sql(query))
        assert same.fingerprint({"t": "1"}) == definition_of("plain", plain).fingerprint({"t": "1"})


@pytest.mark.parametrize("query", ["TABLE t", "TABLE t |> SELECT a", "VALUES (1) |> SELECT col1"])
def test_table_and_values_begin_a_statement(session: Session, query: str) -> None:
    [result] = session.execute(query)
    assert result.statement == "SELECT"
    assert result.count == session.sql(query).count()
    session.execute(f"CREATE VIEW v AS {query}")
    assert session["v"].count() == result.count


def test_explanation_of_equal_names_is_that_of_the_display(session: Session) -> None:
    [explained] = session.execute("EXPLAIN SELECT a, a FROM t")
    assert "a_1" in explained.text
    assert "a_1" in str(session.explain("SELECT a, a FROM t"))


def test_stack_and_json_tuple_are_maintained(session: Session) -> None:
    stacked = session.sql("SELECT a, k, v FROM u LATERAL VIEW stack(2, 'a', a, 'd', d) s AS k, v")
    fields = session.sql("""SELECT a, f.* FROM t, LATERAL json_tuple('{"p": 1}', 'p', 'q') AS f""")
    session.stage("stacked", stacked)
    session.stage("fields", fields)
    session["u"].remove([(1, 10), (2, 20)])
    session["t"].remove([(2, "y"), (2, "y"), (None, None)])
    session.commit()
    assert values(session["stacked"]) == [(3, "a", 3), (3, "d", None)]
    assert session["fields"].schema.names == ("a", "c0", "c1")
    assert values(session["fields"]) == [(1, "1", None)]


def test_comparison_of_rows_is_a_join_key(session: Session) -> None:
    """`(a, b) = (c, d)` compares the fields, so nulls are equal as in structs."""
    query = "SELECT t.a, d FROM t JOIN u ON (t.a, 20) = (u.a, u.d)"
    joined = definition_of("join", session.sql(query))
    assert not any("named_struct" in str(part.params) for part in joined.walk())
    assert values(session.sql(query)) == [(2, 20), (2, 20)]
    listed = "SELECT a FROM t WHERE (a, b) {} ((1, 'x'))"
    assert values(session.sql(listed.format("IN"))) == [(1,)]
    assert values(session.sql(listed.format("NOT IN"))) == [(None,), (2,), (2,)]
    assert values(session.sql("SELECT a FROM t WHERE NOT ((a, b) IN ((1, 'x'), (2, 'y')))")) == [
        (None,)
    ]
    nulls = "SELECT b FROM t WHERE (a, b) = (nullif(1, 1), nullif('x', 'x'))"
    assert values(session.sql(nulls)) == [(None,)]


# -- equal meaning in both languages ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "python"),
    [
        ("SELECT a + 1 AS x FROM t", lambda t: t.select("a + 1 AS x")),
        ("SELECT a + 1 AS x FROM t", lambda t: t.select("a+1 as x")),
        ("SELECT a, b, a + 1 AS x FROM t", lambda t: t.with_columns(x="a + 1")),
        ("SELECT a, b, a + 1 AS x FROM t", lambda t: t.select("a", "b", "a + 1 AS x")),
        ("SELECT upper(b) AS x FROM t WHERE a > 1", lambda t: t.filter("A>1").select("UPPER(b) x")),
    ],
)
def test_stage_of_equal_meaning_is_unchanged(session: Session, query: str, python: Any) -> None:
    written = python(session["t"])
    [report] = session.define({"s": written})
    assert report.status == "new"
    [result] = session.execute(f"CREATE VIEW s AS {query}")
    assert result.report.status == "unchanged"
    [report] = session.define({"r": session.sql(query)})
    [report] = session.define({"r": python(session["t"])})
    assert report.status == "unchanged"
    assert report.name == "r"


def test_stage_of_another_meaning_is_changed(session: Session) -> None:
    session.define({"s": session["t"].select("a + 1 AS x")})
    [report] = session.define({"s": session.sql("SELECT a + 2 AS x FROM t")})
    assert report.status == "changed"
    [report] = session.define({"s": session.sql("SELECT a + 2 AS X FROM t")})
    assert report.status == "changed"
    [report] = session.define({"s": session["t"].filter("b = 'x'")})
    [report] = session.define({"s": session["t"].filter("b = 'X'")})
    assert report.status == "changed"


# -- ranks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "test", "ties"),
    [
        ("row_number()", "{} <= 2", False),
        ("row_number()", "2 >= {}", False),
        ("rank()", "{} <= 2", True),
        ("rank()", "{} < 3", True),
        ("rank()", "{} = 2", True),
        ("dense_rank()", "{} = 1", True),
    ],
)
@pytest.mark.parametrize("is_outer", [False, True])
def test_first_ranks_are_planned_as_top(
    session: Session, function: str, test: str, ties: bool, is_outer: bool
) -> None:
    call = f"{function} OVER (PARTITION BY a ORDER BY d)"
    query = f"SELECT * FROM u QUALIFY {test.format(call)}"
    if is_outer:
        query = f"SELECT * FROM (SELECT *, {call} AS r FROM u) WHERE {test.format('r')}"
    found = [p for p in definition_of("ranks", session.sql(query)).walk() if p.op == "top"]
    assert [bool(part.params.get("ties")) for part in found] == [ties]


@pytest.mark.parametrize("test", ["dense_rank() {} <= 2", "rank() {} > 2", "rank() {} <= a"])
def test_other_ranks_are_not_planned_as_top(session: Session, test: str) -> None:
    query = f"SELECT * FROM u QUALIFY {test.format('OVER (ORDER BY d)')}"
    assert "top" not in {part.op for part in definition_of("ranks", session.sql(query)).walk()}


def ranked(rows: list[tuple[int, int | None]], k: int) -> list[tuple[int, int | None, int]]:
    """The rows of rank `k` and below in each group of the first column, with their rank."""
    found = []
    for group, value in rows:
        peers = [other for key, other in rows if key == group]
        place = (value is not None, value or 0)
        rank = 1 + sum((other is not None, other or 0) < place for other in peers)
        if rank <= k:
            found.append((group, value, rank))
    return sorted(found, key=repr)


@pytest.mark.parametrize("seed", range(6))
def test_rank_of_at_most_k_follows_changes(session: Session, seed: int) -> None:
    rng = random.Random(seed)
    k = rng.randint(1, 4)
    query = f"SELECT a, d, rank() OVER (PARTITION BY a ORDER BY d) AS r FROM u QUALIFY r <= {k}"
    session.stage("first", session.sql(query))
    rows: list[tuple[int, int | None]] = [(1, 10), (2, 20), (3, None)]
    for _ in range(12):
        count = rng.randint(0, 9)
        new = [(rng.randint(1, 3), rng.choice([None, 1, 2, 2, 3, 4, 5])) for _ in range(count)]
        gone = rng.sample(rows, rng.randint(0, len(rows)))
        for row in gone:
            rows.remove(row)
        rows += new
        session["u"].insert(new)
        session["u"].remove(gone)
        session.commit()
        assert sorted(values(session["first"]), key=repr) == ranked(rows, k)


def test_rank_of_at_most_k_touches_few_rows_of_a_large_group(session: Session) -> None:
    window = "OVER (PARTITION BY a ORDER BY d)"
    session.stage("first", session.sql(f"SELECT * FROM u QUALIFY rank() {window} <= 3"))
    session["u"].insert([(7, i // 2) for i in range(20_000)])
    session.commit()
    before = session.stats["touched"]
    session["u"].insert([(7, 5)])
    session.commit()
    session["u"].remove([(7, 0)])
    session.commit()
    assert session.stats["touched"] - before < 200
    assert [row for row in values(session["first"]) if row[0] == 7] == [(7, 0), (7, 1), (7, 1)]
