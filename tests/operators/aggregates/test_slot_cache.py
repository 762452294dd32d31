"""The cache of aggregate slots: never wrong, whatever happens to epochs."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any
from unittest import mock

import pytest
from internals import graph_of, known_of, traces_of

from nosync_nb import StageError
from nosync_nb.operators.aggregates import accumulators, slot_cache
from nosync_nb.trace import Trace


def lookups(session: Any, commit: Any) -> int:
    """The number of groups that the stage looks up in its trace during a commit."""
    count = 0
    stored = accumulators.stored

    def counted(trace: Trace, khash: Any, *rest: Any, **named: Any) -> Any:
        nonlocal count
        count += len(khash)
        return stored(trace, khash, *rest, **named)

    with mock.patch.object(accumulators, "stored", counted):
        commit()
    return count


def test_only_uncached_groups_are_looked_up(session: Any) -> None:
    rows = session.input("rows", "k string, x int")
    stage = session.stage("stage", rows.group_by("k").agg(n="count(*)", s="sum(x)"))
    rows.insert([("a", 1), ("b", 2)])
    assert lookups(session, session.commit) == 2
    rows.insert([("a", 5), ("b", 7), ("c", 1)])
    assert lookups(session, session.commit) == 1
    rows.remove([("a", 1), ("a", 5)])
    assert lookups(session, session.commit) == 0
    rows.insert([("a", 9)])
    assert lookups(session, session.commit) == 0
    assert stage.rows() == [("a", 1, 9), ("b", 2, 9), ("c", 1, 1)]


def test_failed_epoch_leaves_no_group_in_cache(session: Any) -> None:
    def picky(row: Any) -> tuple[int]:
        if row.n > 2:
            raise ValueError("three is too many")
        return (row.n,)

    rows = session.input("rows", "k string")
    stage = session.stage("stage", rows.group_by("k").agg(n="count(*)"))
    session.stage("picky", stage.map(picky, "n bigint"))
    rows.insert([("a",), ("b",), ("b",)])
    session.commit()
    rows.insert([("a",), ("b",)])
    with pytest.raises(StageError, match="three is too many"):
        session.commit()
    session.discard()
    rows.insert([("a",)])
    assert lookups(session, session.commit) == 1, "what the failed epoch took is looked up again"
    assert stage.rows() == [("a", 2), ("b", 2)]


def test_cache_is_bounded(session: Any) -> None:
    rows = session.input("rows", "k int")
    stage = session.stage("stage", rows.group_by("k").agg(n="count(*)"))
    with mock.patch.object(slot_cache, "GROUPS_MAX", 10):
        for i in range(40):
            rows.insert([(i % 25,), (i % 7,)])
            session.commit()
            (trace,) = (
                traces_of(session)[number] for node in graph_of(session) for number in node.state
            )
            assert known_of(trace.memos[0]) <= 12
    assert stage.rows() == expected_counts(rows)


def expected_counts(rows: Any) -> list[tuple[int, int]]:
    return sorted(Counter(row.k for row in rows.rows()).items())


@pytest.mark.parametrize("aggregates", [{"n": "count(*)"}, {"n": "count(x)", "s": "sum(x)"}])
def test_cached_groups_equal_groups_from_scratch(session: Any, aggregates: dict[str, str]) -> None:
    random_ = random.Random(5)
    rows = session.input("rows", "k string, d double, x bigint")
    definition = rows.group_by("k", "d").agg(**aggregates)
    stage = session.stage("stage", definition)
    there: list[Any] = []
    for epoch in range(120):
        for _ in range(random_.choice([1, 3, 90])):
            if there and random_.random() < 0.5:
                rows.remove([there.pop(random_.randrange(len(there)))])
            else:
                row = (
                    random_.choice("abcd"),
                    random_.choice([None, 0.5]),
                    random_.choice([1, None]),
                )
                there.append(row)
                rows.insert([row])
        session.commit()
        if epoch % 10 == 9:
            assert stage.rows() == definition.rows()
