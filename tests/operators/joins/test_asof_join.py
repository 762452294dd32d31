"""As-of join kernel: ties, negative counts, equal hashes and loops against a model.

The results for times of all kinds are in test_windows.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checks.checking import run
from hypothesis import given
from hypothesis import strategies as st
from models import model
from models.batch_model import weak_hashes
from models.model import Bag

import nosync_nb
from nosync_nb import Collection
from nosync_nb.collections.library import windows
from nosync_nb.operators import asof_join

pytestmark = pytest.mark.usefixtures("no_disk")


@pytest.fixture(scope="module")
def small_first_lookup() -> Iterator[None]:
    """Makes the first lookup so small that a second one is needed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asof_join, "_LOOK", 1)
        patch.setattr(asof_join, "_FURTHER", 2)
        yield


def asof_rows(left: Bag, right: Bag, tolerance: int | None = None) -> Bag:
    """Rows (key, time, x) with y of the last (key, time, y) at or before their time."""
    there = [r for r, n in right.items() if n > 0 and None not in r[:2]]
    found = []
    for row, n in left.items():
        near = [
            r
            for r in there
            if row[1] is not None
            and r[0] == row[0]
            and r[1] <= row[1]
            and (tolerance is None or row[1] - r[1] <= tolerance)
        ]
        best = max(near, key=lambda r: (r[1], model.order(r[2]))) if near else (None,)
        if n > 0:
            found.append(((*row, best[-1]), n))
    return model.summed(found)


def joined(a: Collection, b: Collection, tolerance: int | None = None) -> Collection:
    """The join of the model `latest`."""
    other = b.select(*(f"{old} AS {new}" for old, new in zip(b.schema.names, PLAIN, strict=True)))
    return windows.asof_join(a, other, on={"c0": "k"}, time={"c1": "t"}, tolerance=tolerance).drop(
        "t"
    )


PLAIN = ("k", "t", "v")
SIDE = ("string", "bigint", "int")
LEAST = -(2**63)
rows = st.tuples(
    st.none() | st.sampled_from("xyz"),
    st.none() | st.integers(0, 5) | st.sampled_from([LEAST, -LEAST - 1]),
    st.none() | st.integers(0, 2),
)


@pytest.mark.usefixtures("small_first_lookup")
@given(st.data(), st.none() | st.sampled_from([0, 2, 2**64]))
def test_negative_count_is_no_match_in_asof_join(
    data: st.DataObject, tolerance: int | None
) -> None:
    run(
        data,
        {"a": SIDE, "b": SIDE},
        lambda a, b: joined(a.concat(b.negate()), b.concat(a.negate()), tolerance),
        lambda a, b: asof_rows(
            model.concat(a, model.negated(b)), model.concat(b, model.negated(a)), tolerance
        ),
        pools={"a": rows, "b": rows},
    )


@pytest.mark.usefixtures("small_first_lookup")
@given(st.data())
def test_keys_with_equal_hashes_have_own_matches(data: st.DataObject) -> None:
    with weak_hashes():
        run(data, {"a": SIDE, "b": SIDE}, joined, asof_rows, pools={"a": rows, "b": rows})


@given(st.data())
def test_asof_join_works_inside_loop(data: st.DataObject) -> None:
    """Rows continue with their matches until nothing changes."""

    def build(a: Collection, b: Collection) -> Collection:
        return a.iterate(
            lambda found: joined(found, b).select("c0", "c1", "v AS c2").concat(a).distinct()
        )

    def oracle(a: Bag, b: Bag) -> Bag:
        def onward(found: Bag) -> Bag:
            met = model.mapped(asof_rows(found, b), lambda r: (r[0], r[1], r[3]))
            return model.distinct(model.concat(met, a))

        return model.iterated(a, onward)

    run(data, {"a": SIDE, "b": SIDE}, build, oracle, pools={"a": rows, "b": rows})


def test_change_touches_neighbours_only(tmp_path: Path) -> None:
    touched = []
    for size in (1_000, 30_000):
        with nosync_nb.open(tmp_path / str(size), spark_rows=10**9) as session:
            trades = session.input("trades", "k string, at bigint, n int")
            quotes = session.input("quotes", "k string, at bigint, price int")
            trades.insert([("x", 10 * i, i) for i in range(size)])
            quotes.insert([("x", 10 * i + 5, i) for i in range(size)])
            session.commit()
            session.stage("last", windows.asof_join(trades, quotes, on="k", time="at"))
            spent: list[int] = []
            middle = 5 * size

            def tick(change: Any, into: list[int] = spent, of: Any = session) -> None:
                before = of.stats["touched"]
                change()
                of.commit()
                into.append(of.stats["touched"] - before)

            tick(lambda t=trades, m=middle: t.insert([("x", m + 7, -1)]))
            tick(lambda q=quotes, m=middle: q.insert([("x", m + 6, -1)]))
            tick(lambda t=trades, m=middle: t.remove([("x", m + 7, -1)]))
            tick(lambda q=quotes, m=middle: q.remove([("x", m + 6, -1)]))
            touched.append(spent)
    assert all(more <= less + 20 for less, more in zip(*touched, strict=True))
    assert max(touched[1]) < 60


def test_many_changes_of_one_key_read_its_rows_few_times(tmp_path: Path) -> None:
    size = 2_000
    with nosync_nb.open(tmp_path / "log", spark_rows=10**9) as session:
        trades = session.input("trades", "at int, n int")
        quotes = session.input("quotes", "at int, price int")
        trades.insert([(i, i) for i in range(size)])
        quotes.insert([(i, i) for i in range(size)])
        session.commit()
        last = session.stage("last", windows.asof_join(trades, quotes, time="at"))
        before = session.stats["touched"]
        quotes.remove([(i, i) for i in range(1, size)])
        session.commit()
        assert session.stats["touched"] - before < 20 * size
        assert set(last.rows()) == {(i, i, 0) for i in range(size)}
