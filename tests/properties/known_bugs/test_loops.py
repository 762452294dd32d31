"""Known bugs of loops."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from checks.checking import EDGES, change, closure, count, merge_all
from hypothesis import given
from hypothesis import strategies as st
from internals import settle_background, traces_of

from nosync_nb import Collection, Session
from nosync_nb.operators.iterate import loop
from nosync_nb.operators.iterate.divergence import DivergenceDetector
from nosync_nb.operators.iterate.nested_trace import equal_runs
from nosync_nb.trace import compaction

pytestmark = pytest.mark.usefixtures("no_disk")


def reachable(roots: Collection, edges: Collection) -> Collection:
    return roots.iterate(
        lambda r: r.join(edges, on={"node": "src"}).select("dst as node").concat(roots).distinct()
    )


# -- times -----------------------------------------------------------------------------------------


def is_before(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """True if a time is at most another in every loop."""
    return all(a <= b for a, b in zip(one, other, strict=True))


def test_round_runs_after_all_earlier_rounds(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[int, ...]] = []
    begin = DivergenceDetector.begin_round

    def record_round(watch: DivergenceDetector, time: tuple[int, ...]) -> None:
        begun.append(time)
        begin(watch, time)

    monkeypatch.setattr(DivergenceDetector, "begin_round", record_round)
    monkeypatch.setattr(loop, "FREE_WORK", 1 << 60)  # keeps the loop from restarting on all rows
    edges = session.input("edges", EDGES)
    session.stage(
        "paths",
        edges.iterate(
            lambda paths: (
                closure(paths).filter("src < dst or src - dst > 2").concat(edges).distinct()
            )
        ),
    )
    unordered = 0
    for diffs in ({(i, i + 1): 1 for i in range(6)}, {(5, 0): 1}, {(2, 3): -1, (2, 4): 1}):
        begun.clear()
        change(session, edges, diffs)
        inner = [time for time in begun if len(time) == 2]
        for first, second in combinations(inner, 2):
            assert not is_before(second, first), f"{second} ran after {first}"
            unordered += not is_before(first, second)
    assert unordered > 10, "the rounds did not try much"


times = st.tuples(*[st.integers(0, 3)] * 3)


@given(st.lists(times, min_size=1, max_size=40))
def test_rows_of_one_time_are_gathered_once(
    given_: list[tuple[int, ...]],
) -> None:
    found = equal_runs([np.array(column, np.int32) for column in zip(*given_, strict=True)])
    assert [given_[row] for row, _ in found] == sorted(set(given_))
    assert sorted(int(i) for _, index in found for i in index) == list(range(len(given_)))
    assert all(given_[int(i)] == given_[row] for row, index in found for i in index)


def test_bound_of_three_rounds_is_reached_in_nested_loop(session: Session) -> None:
    """Three arrivals make an alarm, two none, so no pair of times leaves a trace of their bound.

    A row arrives once both its numbers are counted down, `far` by the outer loop and `near` by the
    inner one. The rows of (1, 0) and (0, 2) are there; then comes that of (0, 1): the bound of all
    three, (1, 2), is no bound of it and one other.
    """

    def inner(rows: Collection) -> Collection:
        nearer = rows.select("n", "far", "greatest(near - 1, 0) as near")
        arrived = rows.filter("n > 0 and far = 0 and near = 0").select("0 as n")
        alarm = arrived.threshold(lambda count: int(count >= 3)).select(
            "n", "0 as far", "0 as near"
        )
        return nearer.concat(alarm).distinct()

    def outer(rows: Collection) -> Collection:
        nearer = rows.select("n", "greatest(far - 1, 0) as far", "near")
        return nearer.concat(rows.iterate(inner).filter("n = 0")).distinct()

    rows = session.input("rows", "n int, far int, near int")
    alarms = session.stage("alarms", rows.iterate(outer).filter("n = 0").select("n"))
    change(session, rows, {(1, 1, 0): 1, (2, 0, 2): 1})
    assert count(alarms) == {}
    change(session, rows, {(3, 0, 1): 1})
    assert count(alarms) == {(0,): 1}
    change(session, rows, {(1, 1, 0): -1})
    assert count(alarms) == {}


# -- what cancels ----------------------------------------------------------------------------------


def test_cancelling_pairs_do_not_circulate_in_loop(session: Session) -> None:
    """Each round moves all rows on, so that the loop ends only if rows cancel within a round."""
    a, b = session.input("a", "x int"), session.input("b", "x int")

    def moved(value: Collection) -> Collection:
        return value.select("x + 1 as x").concat(a, b.negate())

    none = a.filter("false")
    stage = session.stage("stage", none.iterate(moved))
    nested = session.stage("nested", none.iterate(lambda v: moved(v.iterate(moved))))
    for n in range(3):
        is_before = session.stats["touched"]
        a.insert([(n,)])
        change(session, b, {(n,): 1})
        assert count(stage) == count(nested) == {}
        assert session.stats["touched"] - is_before < 100


def test_loop_survives_drop_of_equal_loop(session: Session) -> None:
    edges, roots = session.input("edges", EDGES), session.input("roots", "node int")
    session.stage("one", reachable(roots, edges))
    two = session.stage("two", reachable(roots, edges))
    roots.insert([(1,)])
    change(session, edges, {(1, 2): 1, (2, 3): 1, (3, 2): 1})
    session.drop("one")
    change(session, edges, {(3, 4): 1})
    assert count(two) == {(n,): 1 for n in (1, 2, 3, 4)}
    again = session.stage("again", reachable(roots, edges))
    change(session, edges, {(1, 2): -1})
    assert count(two) == count(again) == {(1,): 1}
    session.drop("two")
    change(session, edges, {(1, 3): 1})
    assert count(again) == {(n,): 1 for n in (1, 2, 3, 4)}


def test_cancelled_rows_of_closure_do_not_pile_up(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "JOINED_MAX", 8)  # the number of epochs of an unordered layer
    edges = session.input("edges", EDGES)
    session.stage("paths", closure(edges))
    chain = {(i, i + 1): 1 for i in range(12)}
    stored = []
    for _ in range(80):
        change(session, edges, chain)
        change(session, edges, dict.fromkeys(chain, -1))
        settle_background(session)
        stored.append(sum(trace.rows_count for trace in traces_of(session).values()))
    # An epoch has 324 rows in four traces and the input's; all epochs have 160 times as many.
    # Unfull and unmerged layers hold some 30 epochs: 9876 rows, and 11268 where a layer begins with
    # the second half of a pair. In 800 epochs it is no more.
    assert max(stored) < 160 * (4 * 78 + 12) // 3
    merge_all(session)
    assert [trace.rows_count for trace in traces_of(session).values() if trace.rows_count] == []
