"""Joins in SQL on any condition beside DuckDB, over epochs of random changes of both sides."""

from __future__ import annotations

import datetime
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest
from checks.checking import count

import nosync_nb
from nosync_nb import Input, Session, StageError
from nosync_nb.operators import join, range_join

pytestmark = pytest.mark.usefixtures("no_disk")

LEFT = "k int, s string, x int, n int, y double, t timestamp, d decimal(10,2)"
RIGHT = "k int, s string, e string, lo int, hi int, y double, t timestamp, m decimal(12,4)"
CONDITIONS = {
    "between": "a.x BETWEEN b.lo AND b.hi",
    "strict": "a.x > b.lo AND a.x < b.hi",
    "key_and_between": "a.k = b.k AND a.x BETWEEN b.lo AND b.hi",
    "null_safe_key": "a.k IS NOT DISTINCT FROM b.k AND a.x BETWEEN b.lo AND b.hi",
    "two_keys": "a.k = b.k AND a.s = b.s AND a.x >= b.lo AND a.x < b.hi",
    "key_and_one_bound": "a.k = b.k AND a.x < b.lo",
    "one_bound": "a.y >= b.y",
    "one_strict_bound": "b.t < a.t",
    "band": "a.x BETWEEN b.lo - 2 AND b.lo + 2",
    "distance": "abs(a.x - b.lo) < 3",
    "distance_of_doubles": "abs(a.y - b.y) <= 1.5",
    "far": "abs(a.x - b.lo) > 5",
    "different": "a.k = b.k AND a.x <> b.lo",
    "different_text": "a.s <> b.e",
    "different_numbers": "a.k = b.k AND b.y <> a.x",
    "key_and_one_bound_of_text": "a.k = b.k AND b.s >= a.s",
    "difference": "a.x - b.lo BETWEEN 0 AND 4",
    "difference_on_right": "-2 <= b.lo - a.x AND a.k = b.k",
    "times": "b.t BETWEEN a.t - INTERVAL '1' HOUR AND a.t",
    "text": "a.s BETWEEN b.s AND b.e",
    "strict_text": "a.s > b.s AND a.s < b.e",
    "decimals": "a.d BETWEEN b.m - 1 AND b.m",
    "strict_decimals": "a.d > b.m - 1 AND a.d < b.m",
    "numbers_of_several_types": "a.x >= b.y AND a.x <= b.hi",
    "between_and_more": "a.x BETWEEN b.lo AND b.hi AND a.y <> b.y",
    "overlap": "a.x <= b.hi AND b.lo <= a.n",
    "strict_overlap": "a.k = b.k AND b.hi > a.x AND a.n > b.lo AND a.y <> b.y",
    "overlap_of_text": "a.s <= b.e AND b.s < concat(a.s, 'b')",
    "bounds_of_several_types": "a.x BETWEEN b.m AND b.y",
    "any": "a.x + b.lo > 7 OR a.k = b.k",
    "left_alone": "a.k = b.k AND a.x > 3",
    "right_alone": "a.x >= b.lo AND b.hi > 3",
    "constant": "1 = 0",
    "computed": "a.x * 2 BETWEEN b.lo + 1 AND b.hi * 2",
}
KINDS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
BOTH = ", ".join(
    f"{side}.{column.split()[0]} AS {side}{column.split()[0]}"
    for side, columns in (("a", LEFT), ("b", RIGHT))
    for column in columns.replace("10,2", "10").replace("12,4", "12").split(", ")
)
EXISTENCE = (
    "SELECT a.k, a.x, EXISTS (SELECT 1 FROM b WHERE {on}) FROM a",
    "SELECT a.* FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE {on})",
    "SELECT a.k, a.x, (SELECT count(*) FROM b WHERE {on}) FROM a",
    "SELECT a.k, a.x, (SELECT max(b.lo) FROM b WHERE {on}) FROM a",
    "SELECT a.k, b.lo FROM a, b WHERE {on} AND b.lo <> 2",
    "SELECT a.x, z.lo FROM a CROSS JOIN LATERAL (SELECT b.lo FROM b WHERE {on}) z",
)
NOON = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)


class Tables:
    """Two inputs and the tables of DuckDB with the same rows."""

    def __init__(self, session: Session, seed: int, rows: Any = None) -> None:
        self.session = session
        self.random = random.Random(seed)
        self.inputs: dict[str, Input] = {}
        self.rows: dict[str, list[Any]] = rows or {"a": [], "b": []}
        self.database = duckdb.connect()
        self.database.execute("SET TimeZone = 'UTC'")
        for name, columns in (("a", LEFT), ("b", RIGHT)):
            known = session.inputs.get(name)
            self.inputs[name] = session.input(name, columns) if known is None else known
            types = columns.replace("string", "varchar").replace("timestamp", "timestamptz")
            self.database.execute(f"CREATE TABLE {name} ({types})")

    def row(self, name: str) -> tuple[Any, ...]:
        """A random row; any value may be null."""
        draw = self.random
        whole = [draw.randrange(12) for _ in range(3)]
        text = [
            draw.choice(("", "b", "bb", "a long text of one", "a long text of two")) for _ in "12"
        ]
        real = draw.choice((0.0, -0.0, 1.5, 3.0, -2.5, float("inf"), float("nan"), 1e300))
        time = NOON + datetime.timedelta(minutes=draw.randrange(0, 300, 15))
        exact = Decimal(draw.randrange(-400, 800)) / 100
        values = [*whole[:1], *text[:1], *whole[1:], real, time, exact]
        if name == "b":
            values = [whole[0] % 3, *text, *whole[1:], real, time, exact]
        values[0] = whole[0] % 3
        return tuple(None if draw.random() < 0.1 else each for each in values)

    def change(self, most: int) -> None:
        """Commits an epoch of random changes."""
        for name, rows in self.rows.items():
            for _ in range(self.random.randint(0, most)):
                if rows and self.random.random() < 0.45:
                    row = rows.pop(self.random.randrange(len(rows)))
                    self.inputs[name].remove([row])
                else:
                    row = self.random.choice(rows) if rows and self.random.random() < 0.2 else None
                    row = row or self.row(name)
                    rows.append(row)
                    self.inputs[name].insert([row])
        self.session.commit()
        for name, rows in self.rows.items():
            self.database.execute(f"DELETE FROM {name}")
            if rows:
                marks = ", ".join("?" * len(rows[0]))
                self.database.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)

    def expected(self, query: str) -> Counter[Any]:
        """The rows of a query in DuckDB."""
        return Counter(plain(self.database.execute(query).fetchall()))


def plain(rows: Sequence[Any]) -> Iterator[tuple[str, ...]]:
    """Yields rows whose values compare by their text: NaN equals itself, and -0.0 equals 0.0."""
    for row in rows:
        yield tuple(shown(value) for value in row)


def shown(value: Any) -> str:
    if isinstance(value, float) and value == 0:
        return "0.0"
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).isoformat()
    return repr(value)


def found(stage: Any) -> Counter[Any]:
    return Counter(plain(stage.rows()))


@pytest.mark.parametrize("name", CONDITIONS)
def test_join_on_condition_equals_duckdb_at_every_epoch(session: Session, name: str) -> None:
    on = CONDITIONS[name]
    tables = Tables(session, seed=sum(map(ord, name)))
    queries = [f"SELECT {BOTH} FROM a {kind} b ON {on}" for kind in KINDS]
    queries += [f"SELECT * FROM a {kind} JOIN b ON {on}" for kind in ("SEMI", "ANTI")]
    queries += [each.format(on=on) for each in EXISTENCE]
    stages = [session.stage(f"q{i}", session.sql(query)) for i, query in enumerate(queries)]
    for most in (0, 8, 1, 2, 20, 3, 1, 30, 5):
        tables.change(most)
        for query, stage in zip(queries, stages, strict=True):
            assert found(stage) == tables.expected(query), query
    tables.inputs["b"].clear()
    tables.rows["b"].clear()
    tables.change(1)
    for query, stage in zip(queries, stages, strict=True):
        assert found(stage) == tables.expected(query), query


MEMBERSHIP = {
    "plain": ("a.x", "b.lo", "true"),
    "correlated": ("a.x", "b.lo", "b.k = a.k"),
    "correlated_by_range": ("a.x", "b.lo", "b.hi > a.n"),
    "two_values": ("(a.k, a.x)", "b.k, b.lo", "true"),
    "two_values_correlated": ("(a.k, a.x)", "b.k, b.lo", "b.s = a.s"),
    "computed": ("a.x + 1", "b.lo - 1", "b.hi > 3"),
    "constant": ("3", "b.lo", "b.k = a.k"),
    "null": ("cast(null as int)", "b.lo", "b.k = a.k"),
    "four_values": ("(a.k, a.x, a.n, a.s)", "b.k, b.lo, b.hi, b.s", "true"),
}


@pytest.mark.parametrize("name", MEMBERSHIP)
def test_membership_with_nulls_equals_its_definition_at_every_epoch(
    session: Session, name: str
) -> None:
    """NOT IN is true without a row that is equal or might be; on an empty side it is true."""
    values, columns, where = MEMBERSHIP[name]
    pairs = zip(values.strip("()").split(", "), columns.split(", "), strict=True)
    if name == "null":
        pairs = zip((values,), (columns,), strict=True)
    both = [f"({a} = {b})" for a, b in pairs]
    equal = f"EXISTS (SELECT 1 FROM b WHERE {' AND '.join(both)} AND {where})"
    maybe = " AND ".join(f"coalesce({each}, true)" for each in both)
    maybe = f"EXISTS (SELECT 1 FROM b WHERE {maybe} AND {where})"
    member = f"{values} IN (SELECT {columns} FROM b WHERE {where})"
    queries = {
        f"SELECT a.* FROM a WHERE {member}": f"SELECT a.* FROM a WHERE {equal}",
        f"SELECT a.* FROM a WHERE NOT {member}": f"SELECT a.* FROM a WHERE NOT {maybe}",
        # As a value, Spark returns false instead of null.
        f"SELECT a.k, a.x, {member} FROM a": f"SELECT a.k, a.x, {equal} FROM a",
        f"SELECT a.k, a.x, NOT {member} FROM a": f"SELECT a.k, a.x, NOT {maybe} FROM a",
    }
    tables = Tables(session, seed=sum(map(ord, name)))
    stages = {query: session.stage(f"q{i}", session.sql(query)) for i, query in enumerate(queries)}
    for most in (3, 0, 8, 1, 20, 2, 1, 6):
        tables.change(most)
        for query, stage in stages.items():
            assert found(stage) == tables.expected(queries[query]), query
    for name_, rows in tables.rows.items():
        rows.clear()
        tables.inputs[name_].clear()
        tables.change(4)
        for query, stage in stages.items():
            assert found(stage) == tables.expected(queries[query]), query


@pytest.mark.parametrize("where", ["true", "b.k = a.k", "b.hi > a.n"])
@pytest.mark.parametrize("sign", ["=", "<>", "<", "<=", ">", ">="])
def test_any_and_all_equal_duckdb_at_every_epoch(session: Session, sign: str, where: str) -> None:
    tests = [
        f"{value} {sign} {how} (SELECT {column} FROM b WHERE {where})"
        for how in ("ANY", "ALL")
        for value, column in (("a.x", "b.lo"), ("a.y", "b.y"))
    ]
    queries = [f"SELECT a.k, a.x, {test} FROM a" for test in tests]
    queries += [f"SELECT a.k, a.x FROM a WHERE {test}" for test in tests]
    queries += [f"SELECT a.k, a.x FROM a WHERE NOT {test}" for test in tests]
    tables = Tables(session, seed=len(where) + ord(sign[0]))
    stages = [session.stage(f"q{i}", session.sql(query)) for i, query in enumerate(queries)]
    for most in (3, 0, 8, 1, 20, 2):
        tables.change(most)
        for query, stage in zip(queries, stages, strict=True):
            assert found(stage) == tables.expected(query), query


@pytest.mark.parametrize(
    "where", ["b.k = a.k", "b.lo > a.x", "true", "b.k = a.k AND b.lo > a.x", "b.lo + a.x = 5"]
)
def test_value_of_several_rows_fails_its_epoch(session: Session, where: str) -> None:
    a, b = session.input("a", "k int, x int"), session.input("b", "k int, lo int")
    a.insert([(1, 2), (1, 2), (None, 3)])
    session.stage("value", session.sql(f"SELECT a.x, (SELECT lo FROM b WHERE {where}) v FROM a"))
    session.commit()
    b.insert([(1, 3)])
    session.commit()
    expected = count(session["value"])
    assert sum(expected.values()) == 3
    b.insert([(1, 3)])  # an equal row is another row
    with pytest.raises(StageError, match="SCALAR_SUBQUERY_TOO_MANY_ROWS"):
        session.commit()
    session.discard()
    assert count(session["value"]) == expected
    b.insert([(1, 9)])
    b.remove([(1, 3)])
    session.commit()
    assert sum(count(session["value"]).values()) == 3


def test_not_in_touches_changed_rows_only(tmp_path: Path) -> None:
    """One changed row costs the same for every number of rows, on both sides."""
    touched = []
    for size in (1_000, 20_000):
        with nosync_nb.open(tmp_path / str(size), spark_rows=10**9) as session:
            a, b = session.input("a", "x bigint, n int"), session.input("b", "y bigint")
            a.insert([(i, 0) for i in range(size)])
            b.insert([(2 * i,) for i in range(size)])
            session.commit()
            session.stage("odd", session.sql("SELECT * FROM a WHERE x NOT IN (SELECT y FROM b)"))
            spent = []
            for change in (
                lambda a=a, n=size: a.insert([(n + 1, 1)]),
                lambda a=a: a.insert([(None, 1)]),
                lambda b=b: b.insert([(11,)]),
                lambda b=b: b.remove([(2,)]),
            ):
                before = session.stats["touched"]
                change()
                session.commit()
                spent.append(session.stats["touched"] - before)
            touched.append(spent)
            assert len(session["odd"]) == size // 2 + 1
            b.insert([(None,)])
            session.commit()
            assert len(session["odd"]) == 0
    assert touched[0] == touched[1]
    assert max(touched[1]) < 40


SHARED = {
    "using": "SELECT k, a.x, b.lo FROM a {kind} b USING (k)",
    "using_two": "SELECT k, s, a.x, b.hi FROM a {kind} b USING (k, s)",
    "using_star": "SELECT * FROM (SELECT k, x FROM a) {kind} (SELECT k, lo FROM b) USING (k)",
    "natural": "SELECT * FROM (SELECT k, s, x FROM a) NATURAL {kind} (SELECT k, s, lo FROM b)",
    "nothing_shared": "SELECT * FROM (SELECT x FROM a) NATURAL {kind} (SELECT hi FROM b) d",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SHARED)
def test_columns_of_both_sides_are_merged(session: Session, name: str, kind: str) -> None:
    """USING and NATURAL return a shared column once, with the value of the side that has one."""
    query = SHARED[name].format(kind=kind)
    tables = Tables(session, seed=len(name) + len(kind))
    stage = session.stage("merged", session.sql(query))
    expected = query  # DuckDB refuses NATURAL without shared columns
    if name == "nothing_shared":
        expected = query.replace("NATURAL", "") + " ON true"
    for most in (0, 8, 2, 20, 5):
        tables.change(most)
        assert found(stage) == tables.expected(expected)


QUERIES = {
    "inner": "SELECT a.x, b.lo FROM a JOIN b ON a.k = b.k AND a.x BETWEEN b.lo AND b.hi",
    "full": "SELECT a.x, b.lo FROM a FULL JOIN b ON a.x BETWEEN b.lo AND b.hi AND a.y <> b.y",
    "overlap": "SELECT a.x, b.lo FROM a JOIN b ON a.x <= b.hi AND b.lo <= a.n",
    "not_in": "SELECT * FROM a WHERE x NOT IN (SELECT lo FROM b WHERE b.k = a.k)",
    "value": "SELECT a.x, (SELECT max(lo) FROM b WHERE b.lo > a.x) FROM a",
    "times": "SELECT a.k, b.k bk FROM a LEFT JOIN b ON b.t BETWEEN a.t - INTERVAL '1' HOUR AND a.t",
}


SEVERAL = (
    "SELECT one.x, two.x AS other FROM a one JOIN a two ON two.x BETWEEN one.x - 1 AND one.x + 1",
    "SELECT one.k, two.n FROM a one LEFT JOIN a two ON one.k = two.k AND one.x < two.x",
    "SELECT a.x, b.lo, c.hi FROM a, b, b c WHERE a.x BETWEEN b.lo AND b.hi AND c.k = a.k"
    " AND c.lo <= b.hi AND abs(c.hi - a.n) < 2",
    "SELECT a.x FROM a, b, b c WHERE b.lo < a.x AND c.k = b.k AND c.y > a.y"
    " AND NOT EXISTS (SELECT 1 FROM a d WHERE d.k = c.k AND d.x > b.hi AND d.n < a.n)",
    "SELECT a.k, count(*), max(b.hi) FROM a LEFT JOIN b ON a.t > b.t AND a.d < b.m GROUP BY a.k",
    "SELECT a.x, (SELECT count(*) FROM b WHERE b.lo < a.x AND b.hi IN (SELECT n FROM a e WHERE"
    " e.x > b.lo)) FROM a",
)


@pytest.mark.parametrize("seed", range(3))
def test_joins_of_several_tables_equal_duckdb_at_every_epoch(session: Session, seed: int) -> None:
    tables = Tables(session, seed)
    stages = [session.stage(f"q{i}", session.sql(query)) for i, query in enumerate(SEVERAL)]
    for most in (5, 0, 9, 1, 14, 2):
        tables.change(most)
        for query, stage in zip(SEVERAL, stages, strict=True):
            assert found(stage) == tables.expected(query), query


def test_joins_are_recovered_and_replayed_as_maintained(tmp_path: Path) -> None:
    """After a restart, a rewind and a branch, stages go on from the rows of that epoch."""
    past: dict[int, dict[str, Counter[Any]]] = {}
    with nosync_nb.open(tmp_path / "log", spark_rows=10**9) as session:
        tables = Tables(session, seed=7)
        for name, query in QUERIES.items():
            session.stage(name, session.sql(query))
        for most in (9, 3, 12, 1, 6):
            tables.change(most)
            past[session.now] = {name: found(session[name]) for name in QUERIES}
        rows = {name: list(each) for name, each in tables.rows.items()}
    with nosync_nb.open(tmp_path / "log", spark_rows=10**9) as session:
        assert {name: found(session[name]) for name in QUERIES} == past[session.now]
        for epoch, expected in past.items():
            for name, query in QUERIES.items():
                assert found(session[name].at(epoch)) == expected[name]
                assert found(session.sql(query).at(epoch)) == expected[name]
        tables = Tables(session, 8, rows)
        tables.change(8)
        for name, query in QUERIES.items():
            assert found(session[name]) == tables.expected(query), name
        session.rewind(to=2)
        assert {name: found(session[name]) for name in QUERIES} == past[2]
        session.inputs["b"].insert([tables.row("b") for _ in range(5)])
        session.commit()
        for name, query in QUERIES.items():
            assert found(session[name]) == found(session.sql(query)), name


@pytest.mark.spark
def test_bulk_runs_equal_runs_in_process(tmp_path: Path, spark: Any) -> None:
    results = []
    for rows in (10**9, 1):
        with nosync_nb.open(tmp_path / str(rows), spark=spark, spark_rows=rows) as session:
            tables = Tables(session, seed=11)
            tables.change(300)
            for name, query in QUERIES.items():
                session.stage(name, session.sql(query))
            for most in (9, 25):
                tables.change(most)
            results.append({name: found(session[name]) for name in QUERIES})
            assert all(results[-1].values())
    assert results[0] == results[1]


def test_existence_by_one_comparison_reads_one_row_of_other_side(tmp_path: Path) -> None:
    """The pairs of the comparison are millions; a left row is compared with the least bound."""
    size = 5_000
    with nosync_nb.open(tmp_path / "log", spark_rows=10**9) as session:
        a, b = session.input("a", "x bigint, n int"), session.input("b", "y bigint")
        a.insert([(i, 0) for i in range(size)])
        b.insert([(i,) for i in range(10, size)])
        session.commit()
        text = "SELECT x FROM a WHERE {}EXISTS (SELECT 1 FROM b WHERE b.y < a.x)"
        session.stage("some", session.sql(text.format("")))
        session.stage("none", session.sql(text.format("NOT ")))
        session.stage("any", session.sql("SELECT x FROM a WHERE x > ANY (SELECT y FROM b)"))
        session.commit()
        assert (len(session["some"]), len(session["none"])) == (size - 11, 11)
        before = session.stats["touched"]
        b.insert([(700,)])
        a.insert([(3, 1), (50, 1)])
        session.commit()
        assert session.stats["touched"] - before < 90
        assert count(session["any"]) == count(session["some"])
        b.remove([(10,)])
        session.commit()
        assert (len(session["some"]), len(session["none"])) == (size - 11, 13)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT x, m FROM a, (SELECT max(x) m FROM a)",
        "SELECT x, m FROM (SELECT max(x) m FROM a) t JOIN a ON a.x <= t.m",
        "SELECT x, m FROM a LEFT JOIN (SELECT x + 1 m FROM a ORDER BY x LIMIT 1) ON true",
        "SELECT x, (SELECT x FROM a ORDER BY x LIMIT 1) m FROM a",
        "SELECT x, m FROM a CROSS JOIN (SELECT 3 m)",
    ],
)
def test_join_with_one_row_is_no_cross_join(
    session: Session, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    """Its pairs are as many as the rows of the other side, so their number is not limited."""
    for module in (join, range_join):
        monkeypatch.setattr(module, "CROSS_ROWS_MAX", 5)
    a = session.input("a", "x int")
    stage = session.stage("pairs", session.sql(query))
    for i in range(4):
        a.insert([(i,) for i in range(30 * i, 30 * i + 30)])
        session.commit()
        assert len(stage) == 30 * i + 30
        assert count(stage) == count(session.sql(query))
