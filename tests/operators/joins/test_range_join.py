"""Range join kernel against a model: bounds, negative counts, equal hashes, loops, counters.

All kinds of joins in SQL are compared with DuckDB in tests/collections/sql/test_joins.py.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks.checking import count, run
from hypothesis import given
from hypothesis import strategies as st
from models import model
from models.batch_model import weak_hashes
from models.model import Bag

import nosync_nb
from nosync_nb import Collection, Session, StageError
from nosync_nb.operators import RangeJoin, Step, range_join
from nosync_nb.operators.range_join import Bounds, IntervalCodes
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Updates, arrange

pytestmark = pytest.mark.usefixtures("no_disk")

POINT = ("string", "bigint", "int")
INTERVAL = ("string", "bigint", "bigint")
LEAST = -(2**63)
numbers = st.none() | st.integers(-3, 9) | st.sampled_from([LEAST, LEAST + 1, -LEAST - 1, 2**57])
points = st.tuples(st.none() | st.sampled_from("xy"), numbers, st.none() | st.integers(0, 1))
intervals = st.tuples(st.none() | st.sampled_from("xy"), numbers, numbers)
POOLS = {"a": points, "b": intervals}
TYPES = {"a": POINT, "b": INTERVAL}

Match = Callable[[Any, Any, Any], bool]
WHERE: dict[str, tuple[str, Match]] = {
    "between": ("v BETWEEN low AND high", lambda v, low, high: low <= v <= high),
    "strict": ("v > low AND v < high", lambda v, low, high: low < v < high),
    "half_open": ("v >= low AND v < high", lambda v, low, high: low <= v < high),
    "above": ("v > low", lambda v, low, high: v > low),
    "not_above": ("v <= high", lambda v, low, high: v <= high),
}


def joined(a: Collection, b: Collection, where: str, *, keys: bool) -> Collection:
    left = a.select(*(f"{c} AS {n}" for c, n in zip(a.schema.names, ("k", "v", "n"), strict=True)))
    names = ("j", "low", "high")
    right = b.select(*(f"{c} AS {n}" for c, n in zip(b.schema.names, names, strict=True)))
    if keys:
        return left.join(right, on={"k": "j"}, where=where)
    return left.join(right.drop("j"), where=where)


def pairs(a: Bag, b: Bag, match: Match, *, keys: bool, used: str) -> Bag:
    found = []
    for row, n in a.items():
        for other, m in b.items():
            named = zip(("low", "high"), other[1:], strict=True)
            wanted = [row[1], *(bound for name, bound in named if name in used)]
            if None in wanted or (keys and (row[0] is None or row[0] != other[0])):
                continue
            if match(row[1], other[1], other[2]):
                found.append(((*row, *other[1:]), n * m))
    return model.summed(found)


@pytest.mark.parametrize("keys", [False, True], ids=["no_keys", "keys"])
@pytest.mark.parametrize("name", WHERE)
@given(st.data())
def test_range_join_with_negative_counts_equals_model(
    name: str, keys: bool, data: st.DataObject
) -> None:
    where, match = WHERE[name]
    run(
        data,
        TYPES,
        lambda a, b: joined(a, b, where, keys=keys).concat(
            joined(a.negate(), b, where, keys=keys).filter("n = 1")
        ),
        lambda a, b: model.concat(
            pairs(a, b, match, keys=keys, used=where),
            model.negated(
                {r: n for r, n in pairs(a, b, match, keys=keys, used=where).items() if r[2] == 1}
            ),
        ),
        pools=POOLS,
    )


@given(st.data())
def test_keys_with_equal_hashes_are_not_mixed(data: st.DataObject) -> None:
    where, match = WHERE["between"]
    with weak_hashes():
        run(
            data,
            TYPES,
            lambda a, b: joined(a, b, where, keys=True),
            lambda a, b: pairs(a, b, match, keys=True, used=where),
            pools=POOLS,
        )


@given(st.data())
def test_range_join_works_inside_loop(data: st.DataObject) -> None:
    """A point moves to the upper bounds of its intervals until nothing changes."""

    def build(a: Collection, b: Collection) -> Collection:
        def step(found: Collection) -> Collection:
            moved = joined(found, b, "v BETWEEN low AND high", keys=True)
            return moved.select("k AS c0", "high AS c1", "n AS c2").concat(a).distinct()

        return a.iterate(step)

    def oracle(a: Bag, b: Bag) -> Bag:
        def onward(found: Bag) -> Bag:
            met = pairs(found, b, lambda v, low, high: low <= v <= high, keys=True, used="low high")
            moved = model.mapped(met, lambda row: (row[0], row[4], row[2]))
            return model.distinct(model.concat(moved, a))

        return model.iterated(a, onward)

    run(data, TYPES, build, oracle, pools=POOLS)


WHOLE = st.integers(LEAST, -LEAST - 1)
NEAR = st.integers(0, 300)


@pytest.mark.parametrize("values", [WHOLE, NEAR], ids=["whole", "near"])
@given(st.data())
def test_lookup_of_points_reads_their_intervals_only(
    values: st.SearchStrategy[int], data: st.DataObject
) -> None:
    """A lookup in the tree of intervals finds each interval once, and reads no others."""
    bounds = data.draw(st.lists(st.tuples(values, values), min_size=1))
    low, high = (np.array(each, np.int64) for each in zip(*bounds, strict=True))
    near = [value + step for pair in bounds for value in pair for step in (-1, 0, 1)]
    code = sorted({v for v in near if LEAST <= v < -LEAST} | {*data.draw(st.lists(values))})
    ends = Bounds(0, 1)
    types = ("bigint", "bigint")
    join = RangeJoin(("bigint",), (*types, "bigint"), (), (), 0, ends, 2, [(0, 0), (1, 0), (1, 1)])
    step = Step([None, None], [None, None], [None, None], ())
    ones = np.ones(len(low), np.int64)
    coded = IntervalCodes(types, ends).apply(Updates([low, high], ones), step)
    trace = Trace.from_batch(arrange(join.layouts[1], coded))
    expected = Counter((v, *pair) for v in code for pair in bounds if pair[0] <= v <= pair[1])
    total: Counter[Any] = Counter()
    for value in code:  # each alone, because many points are looked up in another way
        alone = Updates([np.array([value], np.int64)], np.ones(1, np.int64))
        found = join.pairs(0, arrange(join.layouts[0], alone), trace, step)
        for row, n in rows_of(found) if found is not None else ():
            total[row] += n
    assert total == expected
    if values is NEAR:
        read = step.touched - len(code)
        small = 4 * len(code) if trace.rows_count <= 4 else 0
        assert read <= len(expected) + small * trace.rows_count


def rows_of(found: tuple[Updates, list[Any]]) -> list[tuple[Any, int]]:
    columns = [column.tolist() for column in found[0].columns]
    return list(zip(zip(*columns, strict=True), found[0].diff.tolist(), strict=True))


KINDS_OF_VALUES: dict[str, Callable[[int], str]] = {
    "bigint": lambda i: f"{i}L",
    "int": str,
    "double": lambda i: f"{i / 4}D" if i % 7 else "double('NaN')",
    "float": lambda i: f"float({i / 4})",
    "decimal(9,2)": lambda i: f"{i}.25",
    "decimal(38,4)": lambda i: f"cast({i}.5 as decimal(38,4))",
    "string": lambda i: f"'a long common prefix {chr(97 + i)}'",
    "date": lambda i: f"date_add(date'2026-01-01', {i})",
    "timestamp": lambda i: f"timestamp'2026-01-01 00:{i:02}:00'",
    "interval day to second": lambda i: f"interval '{i}' second * 1",
    "boolean": lambda i: str(i % 2 == 0),
}


@pytest.mark.parametrize("type_", KINDS_OF_VALUES)
def test_values_of_each_type_are_between_their_bounds(tmp_path: Path, type_: str) -> None:
    """The pairs are those of the same condition as a filter of all pairs."""
    value = KINDS_OF_VALUES[type_]
    draw = random.Random(type_)
    with nosync_nb.open(tmp_path / "log") as session:
        a, b = session.input("a", "i int"), session.input("b", "j int, m int")
        case = " ".join(f"WHEN {i} THEN {value(i)}" for i in range(20))
        left = a.select("i", f"CASE i {case} END AS v")
        right = b.select("j", "m", f"CASE j {case} END AS low", f"CASE m {case} END AS high")
        for text in ("v BETWEEN low AND high", "v > low AND v < high", "v >= low", "v < high"):
            name = "".join(filter(str.isalnum, text))
            session.stage(f"r{name}", left.join(right, where=text))
            session.stage(f"c{name}", left.join(right, where=f"({text}) OR i < -1"))
        for epoch in range(5):
            a.insert([(draw.choice([None, *range(20)]),) for _ in range(8)])
            b.insert([(draw.randrange(20), draw.randrange(20)) for _ in range(8)])
            session.commit()
            a.remove(a.rows()[:3])
            session.commit()
            for name in [name for name in session.stages if name.startswith("r")]:
                assert shown(session[name]) == shown(session[f"c{name[1:]}"]), name
                assert epoch < 2 or "AND" in name or len(session[name]) > 3


def shown(stage: Collection) -> Counter[str]:
    """The rows as text, because NaN does not equal itself in Python."""
    return Counter({repr(row): n for row, n in count(stage).items()})


def test_change_touches_its_matches_only(tmp_path: Path) -> None:
    """The work for a row does not depend on the number of rows, for either side."""
    touched = []
    for size in (1_000, 30_000):
        with nosync_nb.open(tmp_path / str(size), spark_rows=10**9) as session:
            a, b = (
                session.input("a", "v bigint, n int"),
                session.input("b", "low bigint, high bigint"),
            )
            a.insert([(10 * i, i) for i in range(size)])
            b.insert([(10 * i + 5, 10 * i + 25 + i % 7) for i in range(size)])
            session.commit()
            session.stage("found", a.join(b, where="v BETWEEN low AND high"))
            middle = 5 * size + 3
            spent = []
            for change in (
                lambda a=a, m=middle: a.insert([(m, -1)]),
                lambda b=b, m=middle: b.insert([(m, m + 20)]),
                lambda a=a, m=middle: a.remove([(m, -1)]),
                lambda b=b, m=middle: b.remove([(m, m + 20)]),
            ):
                before = session.stats["touched"]
                change()
                session.commit()
                spent.append(session.stats["touched"] - before)
            touched.append(spent)
    assert touched[0] == touched[1]
    assert max(touched[1]) < 20


def test_many_points_are_looked_up_together(tmp_path: Path) -> None:
    size = 3_000
    with nosync_nb.open(tmp_path / "log", spark_rows=10**9) as session:
        a, b = session.input("a", "v bigint"), session.input("b", "low bigint, high bigint")
        b.insert([(3 * i, 3 * i + 1) for i in range(size)])
        session.stage("found", a.join(b, where="v BETWEEN low AND high"))
        session.commit()
        before = session.stats["touched"]
        a.insert([(i,) for i in range(3 * size)])
        session.commit()
        assert len(session["found"]) == 2 * size
        assert session.stats["touched"] - before < 20 * size


def test_one_comparison_without_key_is_limited(session: Session, monkeypatch: Any) -> None:
    monkeypatch.setattr(range_join, "CROSS_ROWS_MAX", 99)
    a, b = session.input("a", "v int"), session.input("b", "low int")
    session.stage("found", a.join(b, where="v >= low"))
    a.insert([(i,) for i in range(10)])
    b.insert([(0,)])
    session.commit()
    b.insert([(0,) for _ in range(3)] + [(-i,) for i in range(10)])
    with pytest.raises(StageError, match="more than 99 rows") as caught:
        session.commit()
    assert "BETWEEN" in str(caught.value.hint)
    session.discard()
    assert len(session["found"]) == 10
