"""Stepping over epochs: a page of the past costs what changed."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from checks.touched import sorted_rows
from hypothesis import given
from hypothesis import strategies as st
from internals import checkpoint_now, on_first, settle_background, store_of

import nosync_nb
from nosync_nb import NegativeMultiplicityError, Session, TimeError
from nosync_nb.store import store
from nosync_nb.trace import paging
from nosync_nb.trace.history import incremental_seek, sections
from nosync_widgets.views.time_slider import TravelView

MEMORY = os.environ.get("PYTEST_DEBUG_TEMPROOT")
N = 90_000
EPOCHS = 24
CHANGED = 10
SPARE = 2_000
"""The rows that a step may sort; the stage has fifty times as many."""


@contextmanager
def count_rows() -> Iterator[Callable[[], tuple[int, int]]]:
    """Counts the rows that are sorted, and those that are scanned for the first rows."""
    scanned = [0]

    def count(rows: int) -> None:
        scanned[0] += rows

    with sorted_rows() as ordered, pytest.MonkeyPatch.context() as patch:
        on_first(patch, count)
        yield lambda: (ordered[0], scanned[0])


def work_of(act: Callable[[], Any]) -> tuple[int, int]:
    """The numbers of rows that an act sorts and scans."""
    with count_rows() as counted:
        act()
        return counted()


def rows_table(first: int, count: int) -> pa.Table:
    ids = np.arange(first, first + count)
    return pa.table({"id": ids, "x": (ids * 7919) % 1_000_003})


@pytest.fixture
def large_session(session: Session) -> Session:
    """Stages over a large load and small changes, some of them in a pack."""
    rows = session.input("rows", "id bigint, x bigint")
    session.stage("valid", rows.filter("x >= 0"))
    session.stage("best", rows.group_by("id").top(1, by="x desc"))
    rows.insert(rows_table(0, N))
    session.commit()
    for epoch in range(EPOCHS):
        rows.remove(rows_table(epoch * CHANGED, CHANGED))
        rows.insert(rows_table(N + epoch * CHANGED, CHANGED))
        session.commit()
        if epoch == EPOCHS // 2:
            checkpoint_now(session)
    settle_background(session)
    return session


def first_rows(epoch: int, count: int) -> list[tuple[int, int]]:
    """The first rows of the large stage at an epoch."""
    removed = (epoch - 1) * CHANGED
    return [(i, (i * 7919) % 1_000_003) for i in range(removed, removed + count)]


@pytest.mark.parametrize("stage", ["valid", "best"])
def test_slider_step_costs_the_change_and_not_the_stage(large_session: Session, stage: str) -> None:
    view = TravelView(large_session, stage)
    view.travel(EPOCHS)
    for epoch in (EPOCHS - 1, EPOCHS - 2, 3, 4, 2, 20, 19, 5):
        ordered, scanned = work_of(lambda epoch=epoch: view.travel(epoch))
        assert ordered <= SPARE
        assert scanned <= SPARE
        assert view.page["rows"][0][0] == str((epoch - 1) * CHANGED)
        assert (view.page["added"], view.page["removed"]) == (CHANGED, CHANGED)
    view.close()


def test_slider_over_several_stages_costs_the_changes(large_session: Session) -> None:
    view = TravelView(large_session, "valid", beside=["best", "rows"])
    view.travel(EPOCHS)
    for epoch in (EPOCHS - 1, 3, 4, 20):
        ordered, scanned = work_of(lambda epoch=epoch: view.travel(epoch))
        assert max(ordered, scanned) <= 3 * SPARE
        assert [page["rows"][0] for page in view.page["beside"]] == [view.page["rows"][0]] * 2
    view.close()


def test_past_reads_sort_no_large_stage(large_session: Session) -> None:
    known = large_session["valid"]
    for at in (EPOCHS, 3, 14, 2, 1):
        found: list[Any] = []
        ordered, _ = work_of(lambda at=at, found=found: found.append(known.rows(at=at, limit=5)))
        assert [tuple(row) for row in found[0]] == first_rows(at, 5)
        assert ordered <= SPARE
        ordered, scanned = work_of(lambda at=at, found=found: found.append(known.count(at=at)))
        assert found[1] == N
        assert ordered <= SPARE
        assert scanned == 0


def test_step_back_over_a_large_load_skips_it(large_session: Session) -> None:
    large_session["rows"].insert(rows_table(10**6, 70_000))
    large_session.commit()
    large_session["rows"].insert([(-1, 0)])
    large_session.commit()
    settle_background(large_session)
    view = TravelView(large_session, "valid")
    for epoch in (EPOCHS, large_session.now, EPOCHS, 5):
        ordered, _ = work_of(lambda epoch=epoch: view.travel(epoch))
        assert ordered <= SPARE
    assert large_session["valid"].count(at=EPOCHS + 1) == N
    view.close()


def test_stage_of_many_small_loads_is_sorted_once(session: Session) -> None:
    """A middle epoch is far from both ends; its neighbours are read from it."""
    rows = session.input("rows", "id bigint, x bigint")
    for epoch in range(60):
        rows.insert(rows_table(epoch * 1000, 1000))
        session.commit()
        if epoch % 25 == 24:
            checkpoint_now(session)
    settle_background(session)
    look: Any = None
    for at in [1, 59, 2, 57, *range(3, 57, 2)]:
        look = session.cursor(session["rows"], at, look)
        assert look.count() == at * 1000
        assert len(look.trace.layers) <= incremental_seek.MANY_LAYERS + 4
    view = TravelView(session, "rows")
    view.travel(30)
    for epoch in (31, 32, 31, 30, 29, 28, 31):
        ordered, _ = work_of(lambda epoch=epoch: view.travel(epoch))
        assert ordered <= 8 * 1000  # three steps, the displayed change, and their merge
    assert rows.count(at=31) == 31_000
    view.close()


def test_steps_in_a_reopened_session_are_as_cheap(large_session: Session) -> None:
    path = store_of(large_session).path
    large_session.close()
    with nosync_nb.open(path) as session, nosync_nb.open(path, mode="r") as reader:
        for each in (session, reader):
            view = TravelView(each, "valid")
            view.travel(EPOCHS)
            for epoch in (3, 4, 20):
                ordered, scanned = work_of(lambda view=view, epoch=epoch: view.travel(epoch))
                assert max(ordered, scanned) <= SPARE
                assert view.page["rows"][0][0] == str((epoch - 1) * CHANGED)
            view.close()


def test_cursor_from_before_a_rewind_is_not_reused(large_session: Session) -> None:
    view = TravelView(large_session, "valid")
    view.travel(EPOCHS)
    large_session.rewind(to=5)
    for _ in range(EPOCHS):
        large_session["rows"].insert([(-1, 0)])
        large_session.commit()
    view.travel(EPOCHS)
    assert view.page["rows"][0] == ["-1", "0"]
    assert large_session["valid"].count(at=EPOCHS) == N + EPOCHS - 5
    view.close()


def test_cursor_of_a_branch_is_not_reused_in_its_parent(large_session: Session) -> None:
    branch = large_session.branch("other", at=5)
    for _ in range(10):
        branch["rows"].insert([(-1, 0)])
        branch.commit()
    cursor = large_session.cursor(large_session["valid"], 12)
    assert branch.cursor(branch["valid"], 11, cursor).count() == N + 6
    view = TravelView(large_session, "valid")
    view.travel(12)
    view.move(branch, "other")
    view.travel(11)
    assert view.page["rows"][0] == ["-1", "0"]
    view.move(large_session, None)
    view.travel(11)
    assert view.page["rows"][0][0] == str(10 * CHANGED)
    view.close()
    branch.close()


ROW = st.tuples(st.integers(0, 9), st.sampled_from(["a", "b"]))


@given(
    epochs=st.lists(
        st.lists(st.tuples(ROW, st.sampled_from([-1, 1, 1, 2])), max_size=16),
        min_size=2,
        max_size=8,
    ),
    packs=st.sets(st.integers(0, 7), max_size=3),
    seed=st.integers(0, 2**16),
    small=st.sampled_from([0, 8192]),
)
def test_any_order_of_epochs_shows_each_as_it_was(
    epochs: list[list[Any]], packs: set[int], seed: int, small: int
) -> None:
    """Loads are in files or not, and rows cancel out or have negative counts."""
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory(dir=MEMORY) as folder,
        nosync_nb.open(Path(folder) / "log") as session,
    ):
        patch.setattr(paging, "SMALL_ROWS", small)
        patch.setattr(store, "SPILL_ROWS", 6)
        patch.setattr(sections, "LARGE", 6)
        patch.setattr(incremental_seek, "FEW_ROWS", 3)
        patch.setattr(incremental_seek, "MANY_LAYERS", 2)
        rows = session.input("rows", "n bigint, name string")
        session.stage("all", rows.filter("n >= 0"))
        states: list[Counter[Any]] = [Counter()]
        for number, changes in enumerate(epochs):
            state = Counter(states[-1])
            for row, copies in changes:
                (rows.insert if copies > 0 else rows.remove)([row] * abs(copies))
                state[row] += copies
            session.commit()
            states.append(Counter({row: n for row, n in state.items() if n}))
            if number in packs:
                checkpoint_now(session)
        settle_background(session)
        walk_over(session, states, Random(seed))


def walk_over(session: Session, states: list[Counter[Any]], random: Random) -> None:
    """Reads random epochs, each with a cursor derived from the previous one."""
    cursors: dict[str, Any] = {"rows": None, "all": None}
    for at in random.choices(range(len(states)), k=12):
        for name, before in cursors.items():
            state, collection = states[at], session[name]
            cursor = session.cursor(collection, at, before)
            cursors[name] = cursor
            if min(state.values(), default=0) < 0:
                for read in (cursor.count, lambda c=collection, e=at: c.rows(at=e, limit=3)):
                    with pytest.raises(NegativeMultiplicityError):
                        read()
                with pytest.raises(NegativeMultiplicityError):
                    cursor.page(((0, True),), 0, 3)
                continue
            every = sorted(state.elements())
            assert cursor.count() == collection.count(at=at) == len(every)
            assert [tuple(row) for row in cursor.page((), 0, 5)] == every[:5]
            downwards = sorted(every, key=lambda row: -row[0])
            assert [tuple(row) for row in cursor.page(((0, True),), 0, 5)] == downwards[:5]
            assert [tuple(row) for row in collection.rows(at=at, limit=4)] == every[:4]


def test_slider_reads_thinned_epochs_where_they_are_readable(session: Session) -> None:
    rows = session.input("rows", "id bigint, x bigint")
    rows.insert(rows_table(0, 3000))
    for _ in range(300):
        session.commit()
        rows.insert([(-1, 0)])
    session.commit()
    view = TravelView(session, "rows")
    view.travel(100)
    session.retain = 20
    checkpoint_now(session)
    settle_background(session)
    readable = rows.history()
    assert readable[0].step > 1, "old epochs cannot be told apart"
    for at in (readable[0][3], readable[0][7], readable[-1][-3], readable[0][1]):
        assert rows.count(at=at) == 3000 + at - 1
        view.travel(at)
        assert view.epoch == at
        assert view.page["rows"][: min(at - 1, 5)] == [["-1", "0"]] * min(at - 1, 5)
    apart = next(at for at in range(readable[0][0] + 1, readable[0][-1]) if at not in readable[0])
    with pytest.raises(TimeError):
        rows.rows(at=apart, limit=3)
    view.close()
