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
"""Rows of pages and changes that a step may sort, of a stage that has fifty times as many."""


@contextmanager
def seen_rows() -> Iterator[Callable[[], tuple[int, int]]]:
    """Counts the rows that are sorted, and those that first rows are looked for among."""
    looked = [0]

    def count(rows: int) -> None:
        looked[0] += rows

    with sorted_rows() as ordered, pytest.MonkeyPatch.context() as patch:
        on_first(patch, count)
        yield lambda: (ordered[0], looked[0])


def work(act: Callable[[], Any]) -> tuple[int, int]:
    """The rows that were sorted, and looked at, for something."""
    with seen_rows() as counted:
        act()
        return counted()


def table(first: int, count: int) -> pa.Table:
    ids = np.arange(first, first + count)
    return pa.table({"id": ids, "x": (ids * 7919) % 1_000_003})


@pytest.fixture
def large(session: Session) -> Session:
    """A stage of a large load and of small changes, some of them in a pack."""
    rows = session.input("rows", "id bigint, x bigint")
    session.stage("known", rows.filter("x >= 0"))
    session.stage("best", rows.group_by("id").top(1, by="x desc"))
    rows.insert(table(0, N))
    session.commit()
    for epoch in range(EPOCHS):
        rows.remove(table(epoch * CHANGED, CHANGED))
        rows.insert(table(N + epoch * CHANGED, CHANGED))
        session.commit()
        if epoch == EPOCHS // 2:
            checkpoint_now(session)
    settle_background(session)
    return session


def first_rows(epoch: int, count: int) -> list[tuple[int, int]]:
    """The first rows of the large stage at an epoch."""
    gone = (epoch - 1) * CHANGED
    return [(i, (i * 7919) % 1_000_003) for i in range(gone, gone + count)]


@pytest.mark.parametrize("stage", ["known", "best"])
def test_a_step_of_the_slider_costs_what_changed_and_not_the_stage(
    large: Session, stage: str
) -> None:
    view = TravelView(large, stage)
    view.travel(EPOCHS)
    for epoch in (EPOCHS - 1, EPOCHS - 2, 3, 4, 2, 20, 19, 5):
        ordered, looked = work(lambda epoch=epoch: view.travel(epoch))
        assert ordered <= SPARE
        assert looked <= SPARE
        assert view.page["rows"][0][0] == str((epoch - 1) * CHANGED)
        assert (view.page["added"], view.page["removed"]) == (CHANGED, CHANGED)
    view.close()


def test_several_stages_under_one_slider_cost_what_changed(large: Session) -> None:
    view = TravelView(large, "known", beside=["best", "rows"])
    view.travel(EPOCHS)
    for epoch in (EPOCHS - 1, 3, 4, 20):
        ordered, looked = work(lambda epoch=epoch: view.travel(epoch))
        assert max(ordered, looked) <= 3 * SPARE
        assert [page["rows"][0] for page in view.page["beside"]] == [view.page["rows"][0]] * 2
    view.close()


def test_reads_of_the_past_leave_a_large_stage_as_it_lies(large: Session) -> None:
    known = large["known"]
    for at in (EPOCHS, 3, 14, 2, 1):
        found: list[Any] = []
        ordered, _ = work(lambda at=at, found=found: found.append(known.rows(at=at, limit=5)))
        assert [tuple(row) for row in found[0]] == first_rows(at, 5)
        assert ordered <= SPARE
        ordered, looked = work(lambda at=at, found=found: found.append(known.count(at=at)))
        assert found[1] == N
        assert ordered <= SPARE
        assert looked == 0


def test_a_step_back_over_a_large_load_leaves_it_out(large: Session) -> None:
    large["rows"].insert(table(10**6, 70_000))
    large.commit()
    large["rows"].insert([(-1, 0)])
    large.commit()
    settle_background(large)
    view = TravelView(large, "known")
    for epoch in (EPOCHS, large.now, EPOCHS, 5):
        ordered, _ = work(lambda epoch=epoch: view.travel(epoch))
        assert ordered <= SPARE
    assert large["known"].count(at=EPOCHS + 1) == N
    view.close()


def test_a_stage_of_many_small_loads_is_put_in_order_once(session: Session) -> None:
    """An epoch in the middle is far from nothing and from now; those beside it are near to it."""
    rows = session.input("rows", "id bigint, x bigint")
    for epoch in range(60):
        rows.insert(table(epoch * 1000, 1000))
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
        ordered, _ = work(lambda epoch=epoch: view.travel(epoch))
        assert ordered <= 8 * 1000  # three steps, the change that is shown, and joining them
    assert rows.count(at=31) == 31_000
    view.close()


def test_a_step_from_a_session_that_was_opened_again_is_as_cheap(large: Session) -> None:
    path = store_of(large).path
    large.close()
    with nosync_nb.open(path) as session, nosync_nb.open(path, mode="r") as reader:
        for each in (session, reader):
            view = TravelView(each, "known")
            view.travel(EPOCHS)
            for epoch in (3, 4, 20):
                ordered, looked = work(lambda view=view, epoch=epoch: view.travel(epoch))
                assert max(ordered, looked) <= SPARE
                assert view.page["rows"][0][0] == str((epoch - 1) * CHANGED)
            view.close()


def test_what_was_seen_before_a_rewind_is_not_what_an_epoch_of_its_number_is(
    large: Session,
) -> None:
    view = TravelView(large, "known")
    view.travel(EPOCHS)
    large.rewind(to=5)
    for _ in range(EPOCHS):
        large["rows"].insert([(-1, 0)])
        large.commit()
    view.travel(EPOCHS)
    assert view.page["rows"][0] == ["-1", "0"]
    assert large["known"].count(at=EPOCHS) == N + EPOCHS - 5
    view.close()


def test_what_was_seen_in_a_branch_is_not_what_its_parent_has(large: Session) -> None:
    branch = large.branch("other", at=5)
    for _ in range(10):
        branch["rows"].insert([(-1, 0)])
        branch.commit()
    seen = large.cursor(large["known"], 12)
    assert branch.cursor(branch["known"], 11, seen).count() == N + 6
    view = TravelView(large, "known")
    view.travel(12)
    view.move(branch, "other")
    view.travel(11)
    assert view.page["rows"][0] == ["-1", "0"]
    view.move(large, None)
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
def test_any_way_over_the_epochs_shows_what_each_one_was(
    epochs: list[list[Any]], packs: set[int], seed: int, small: int
) -> None:
    """With loads in files and out of them, and rows that cancel or were never there."""
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
    """Looks at epochs one after the other, each out of the look before."""
    seen: dict[str, Any] = {"rows": None, "all": None}
    for at in random.choices(range(len(states)), k=12):
        for name, before in seen.items():
            state, collection = states[at], session[name]
            look = session.cursor(collection, at, before)
            seen[name] = look
            if min(state.values(), default=0) < 0:
                for read in (look.count, lambda c=collection, e=at: c.rows(at=e, limit=3)):
                    with pytest.raises(NegativeMultiplicityError):
                        read()
                with pytest.raises(NegativeMultiplicityError):
                    look.page(((0, True),), 0, 3)
                continue
            every = sorted(state.elements())
            assert look.count() == collection.count(at=at) == len(every)
            assert [tuple(row) for row in look.page((), 0, 5)] == every[:5]
            downwards = sorted(every, key=lambda row: -row[0])
            assert [tuple(row) for row in look.page(((0, True),), 0, 5)] == downwards[:5]
            assert [tuple(row) for row in collection.rows(at=at, limit=4)] == every[:4]


def test_what_is_coarse_by_now_is_read_where_it_can_be(session: Session) -> None:
    rows = session.input("rows", "id bigint, x bigint")
    rows.insert(table(0, 3000))
    for _ in range(300):
        session.commit()
        rows.insert([(-1, 0)])
    session.commit()
    view = TravelView(session, "rows")
    view.travel(100)
    session.retain = 20
    checkpoint_now(session)
    settle_background(session)
    known = rows.history()
    assert known[0].step > 1, "old epochs cannot be told apart"
    for at in (known[0][3], known[0][7], known[-1][-3], known[0][1]):
        assert rows.count(at=at) == 3000 + at - 1
        view.travel(at)
        assert view.epoch == at
        assert view.page["rows"][: min(at - 1, 5)] == [["-1", "0"]] * min(at - 1, 5)
    apart = next(at for at in range(known[0][0] + 1, known[0][-1]) if at not in known[0])
    with pytest.raises(TimeError):
        rows.rows(at=apart, limit=3)
    view.close()
