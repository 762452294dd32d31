"""Restart: every kind of state, from frames, from a checkpoint, after a clean close.

A test simulates a crash by opening with `takeover`: the former owner is not closed, and the new
one has only the bytes that were written.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from checks.sessions import values
from internals import (
    catalog_of,
    checkpoint_now,
    history_of,
    log_of,
    merge_trace,
    no_flush,
    on_second_checkpoint,
    other_versions,
    parts_folder,
    services_of,
    settle_background,
    store_of,
    traces_of,
)

import nosync_nb
from nosync_nb import FencedError, Session, StageError, TimeError
from nosync_nb.session.maintenance import maintenance
from nosync_nb.session.state.worker import BackgroundWorker
from nosync_nb.store import store
from nosync_nb.store.log import batch_codec, writer
from nosync_nb.store.log.owner import HostIdentity
from nosync_nb.trace.history.pack_plans import PackPlan, PackResult
from nosync_nb.trace.parts import part_file

pytestmark = pytest.mark.usefixtures("own_key")


class Restart:
    """Ends a session in one of four ways and opens its log again."""

    def __init__(self, how: str, opened: Callable[..., Session]) -> None:
        self.how, self.opened = how, opened

    def midway(self, session: Session) -> None:
        """Takes a checkpoint that is older than the rest of the test, if the case has one."""
        if self.how == "old checkpoint":
            checkpoint_now(session)

    def __call__(self, session: Session) -> Session:
        if self.how == "checkpoint":
            checkpoint_now(session)
        if self.how == "closed":
            session.close()
        after = self.opened(takeover=self.how != "closed")
        assert after is not session
        assert after.recovery.clean == (self.how == "closed")
        assert after.recovery.recomputed == 0
        assert after.now == session.now
        return after


@pytest.fixture(params=["frames", "checkpoint", "old checkpoint", "closed"])
def restart(request: pytest.FixtureRequest, opened: Callable[..., Session]) -> Restart:
    return Restart(request.param, opened)


# -- data ------------------------------------------------------------------------------------------


def test_rows_and_past_epochs_are_recovered(
    opened: Callable[..., Session], restart: Restart
) -> None:
    session = opened()
    numbers = session.input("numbers", "x int")
    session.stage("counts", numbers.group_by("x").agg(n="count(*)"))
    for x in (1, 1, 2):
        numbers.insert([(x,)])
        session.commit()
    restart.midway(session)
    numbers.remove([(1,)])
    session.commit()
    session = restart(session)
    assert [values(session["counts"], at) for at in range(5)] == [
        [],
        [(1, 1)],
        [(1, 2)],
        [(1, 2), (2, 1)],
        [(1, 1), (2, 1)],
    ]
    session["numbers"].insert([(2,), (3,)])
    session.commit()
    assert values(session["counts"]) == [(1, 1), (2, 2), (3, 1)]
    changes = session["counts"].changes(after=4).to_pylist()
    assert sorted(tuple(change.values()) for change in changes) == [
        (2, 1, -1),
        (2, 2, 1),
        (3, 1, 1),
    ]


def test_large_batches_are_recovered_from_files(
    opened: Callable[..., Session], restart: Restart, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SPILL_ROWS", 8)
    session = opened()
    left = session.input("left", "k int, v int")
    right = session.input("right", "k int, w int", key="k")
    left.insert([(x % 7, x) for x in range(50)])
    right.insert([(x, x * 10) for x in range(20)])
    session.commit()
    restart.midway(session)
    session.stage("joined", left.join(right, on="k"))  # arranges rows that exist already
    left.insert([(9, 99)])
    session.commit()
    session = restart(session)
    want = sorted([(x % 7, x, x % 7 * 10) for x in range(50)] + [(9, 99, 90)])
    assert values(session["joined"]) == want
    session["right"].delete([9])
    session["left"].insert([(1, 77)])
    session.commit()
    assert values(session["joined"]) == sorted([*want[:-1], (1, 77, 10)])
    assert values(session["joined"], 2) == want


def test_stage_defined_at_the_epoch_of_a_checkpoint_is_recovered(
    opened: Callable[..., Session], restart: Restart
) -> None:
    session = opened()
    numbers = session.input("numbers", "x int")
    numbers.insert([(1,), (1,), (2,)])
    session.commit()
    checkpoint_now(session)
    session.stage("sums", numbers.group_by().agg(total="sum(x)"))
    session.stage("same", numbers.filter("x > 0"))
    session = restart(session)
    assert values(session["sums"]) == values(session["sums"], 1) == [4]
    assert values(session["same"]) == values(session["same"], 1) == [1, 1, 2]
    session = restart(session)
    session["numbers"].insert([(3,)])
    session.commit()
    assert values(session["sums"]) == [7]
    assert values(session["same"], 1) == [1, 1, 2]


def test_checkpoint_during_a_definition_has_the_state_before_it(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened()
    numbers = session.input("numbers", "x int")
    numbers.insert([(1,), (2,)])
    session.commit()
    encode_payload = store_of(session).checkpoint_payload

    def define_and_encode(*arguments: Any) -> bytes:
        session.stage("late", numbers.filter("x > 1"))
        numbers.insert([(3,)])
        session.commit()
        return encode_payload(*arguments)

    monkeypatch.setattr(store_of(session), "checkpoint_payload", define_and_encode)
    checkpoint_now(session)
    session = opened(takeover=True)
    assert values(session["late"]) == [2, 3]
    assert values(session["late"], 1) == [2]
    assert values(session["numbers"], 1) == [1, 2]


def test_labels_times_and_load_keys_are_recovered(
    opened: Callable[..., Session], restart: Restart
) -> None:
    before = datetime.now(UTC)
    session = opened()
    days = session.input("days", "day int")
    for day in range(4):
        with session.epoch(once=f"day {day}", label=f"after {day}") as block:
            days.insert([(day,)])
        assert not block.skipped
        if day == 1:
            restart.midway(session)
    days.insert([(9,)], once="nine")
    session.commit()
    session = restart(session)
    assert [epoch.label for epoch in session.epochs()] == [
        None, "after 0", "after 1", "after 2", "after 3", None
    ]  # fmt: skip
    stamps = [epoch.committed_at for epoch in session.epochs()][1:]
    assert all(before <= stamp <= datetime.now(UTC) for stamp in stamps if stamp)
    assert values(session["days"], "after 1") == [0, 1]
    assert values(session["days"], before) == []
    assert values(session["days"], stamps[2]) == [0, 1, 2]
    assert session["days"].insert([(9,)], once="nine") == 0
    with session.epoch(once="day 2") as block:
        session["days"].insert([(2,)])
    assert block.skipped
    assert session.now == 5
    assert values(session["days"]) == [0, 1, 2, 3, 9]


# -- definitions -----------------------------------------------------------------------------------


def test_renamed_input_keeps_rows_past_and_load_keys(
    opened: Callable[..., Session], restart: Restart
) -> None:
    session = opened()
    numbers = session.input("numbers", "x int")
    session.stage("odd", numbers.filter("x % 2 = 1"))
    numbers.insert([(1,), (2,)], once="first")
    session.commit()
    restart.midway(session)
    session.rename("numbers", "values")
    session.rename("odd", "uneven")
    fresh = session.input("numbers", "x int")
    assert fresh.insert([(7,)], once="first") == 1
    session.commit()
    session = restart(session)
    assert values(session["uneven"]) == values(session["uneven"], 1) == [1]
    assert values(session["values"]) == [1, 2]
    assert values(session["numbers"]) == [7]
    assert session["values"].insert([(5,)], once="first") == 0
    session["values"].insert([(3,)])
    session["numbers"].insert([(9,)])
    session.commit()
    assert values(session["uneven"]) == [1, 3]
    assert session.info.reads == {"values": (), "uneven": ("values",), "numbers": ()}


def test_dropped_names_start_from_scratch_after_a_restart(
    opened: Callable[..., Session], restart: Restart
) -> None:
    session = opened()
    numbers = session.input("numbers", "x int")
    session.stage("odd", numbers.filter("x % 2 = 1"))
    numbers.insert([(1,)], once="first")
    session.commit()
    restart.midway(session)
    session.drop("numbers", cascade=True)
    session = restart(session)
    assert not session.stages
    assert not session.inputs
    numbers = session.input("numbers", "x int")
    assert numbers.insert([(3,)], once="first") == 1
    session.commit()
    session.stage("odd", numbers.filter("x % 2 = 1"))
    session = restart(session)
    assert values(session["odd"]) == [3]
    assert session["numbers"].insert([(3,)], once="first") == 0


@pytest.mark.fault(38)
def test_edited_stage_keeps_its_former_version_after_a_restart(
    opened: Callable[..., Session], restart: Restart
) -> None:
    session = opened()
    session.replay_rows = 0
    numbers = session.input("numbers", "x int")
    session.stage("large", numbers.filter("x > 1"))
    session.stage("how_many", session["large"].group_by().agg(n="count(*)"))
    numbers.insert([(1,), (2,), (3,)])
    session.commit()
    restart.midway(session)
    session.stage("large", numbers.filter("x > 2"))
    session = restart(session)
    session["numbers"].insert([(4,)])
    session.commit()
    session = restart(session)
    assert values(session["large"]) == [3, 4]
    assert values(session["how_many"]) == [2]
    assert values(session["large@1"]) == values(session["large@1"], 1) == [2, 3]
    assert values(session["how_many@1"]) == [2]
    assert session["large@1"].history() == [range(2)]
    with pytest.raises(TimeError, match="large@1"):
        session["large@1"].rows(at=2)
    session.rename("large", "big")
    session = restart(session)
    assert values(session["big@1"]) == [2, 3]
    session.drop("big", cascade=True)
    assert list(services_of(restart(session)).publisher.snapshot.reads) == ["numbers"]


@pytest.mark.fault(38)
def test_equal_definitions_change_nothing_after_a_restart(
    opened: Callable[..., Session], restart: Restart
) -> None:
    def define(session: Session) -> list[str]:
        numbers = session.input("numbers", "x int")
        reports = session.define(
            {
                "doubled": numbers.map(lambda row: (row.x * 2,), "y int"),
                "grouped": numbers.group_by("x").reduce(lambda key, rows: [(len(rows),)], "n int"),
            }
        )
        return [report.status for report in reports]

    session = opened()
    assert define(session) == ["new", "new"]
    session["numbers"].insert([(1,)])
    session.commit()
    session = restart(session)
    head = log_of(session).head
    assert define(session) == ["unchanged", "unchanged"]
    assert log_of(session).head == head
    session["numbers"].insert([(2,)])
    session.commit()
    assert values(session["doubled"]) == [2, 4]


# -- functions -------------------------------------------------------------------------------------


def define_functions(session: Session) -> None:
    numbers = session.input("numbers", "x int")
    session.define(
        {
            "doubled": numbers.map(lambda row: (row.x * 2,), "y int"),
            "inside": numbers.map(lambda row: (row.x % 2,), "y int")
            .group_by("y")
            .agg(n="count(*)"),
            "plain": numbers.filter("x > 1"),
        }
    )
    session.stage("reader", session["doubled"].distinct())


@pytest.fixture
def stale(opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session whose functions were stored with another version of Python."""
    session = opened()
    define_functions(session)
    session["numbers"].insert([(1,), (2,), (2,)])
    session.commit()
    session.close()
    pretend_python(monkeypatch, "4.0")
    return opened()


def pretend_python(patch: pytest.MonkeyPatch, python: str) -> None:
    """Pretends to be another version of Python."""
    other_versions(patch, python=python)


@pytest.mark.fault(38)
def test_stages_with_unloadable_functions_are_stale_and_others_continue(stale: Session) -> None:
    assert stale.recovery.stages == {
        "doubled": "stale", "inside": "stale", "plain": "read", "reader": "stale"
    }  # fmt: skip
    assert "this is 4.0" in stale.recovery.reasons["inside"]
    assert stale.recovery.reasons["reader"] == "it reads 'doubled', which is stale"
    assert values(stale["inside"]) == [(0, 2), (1, 1)]
    stale["numbers"].insert([(3,)])
    assert stale.commit() == 2
    assert values(stale["plain"]) == [2, 2, 3]
    assert stale.frontiers["inside"].memory == 1
    assert stale.recovery_frontier(stage="inside") == 1
    assert stale.recovery_frontier(stage="plain") == stale.recovery_frontier() == 2
    assert values(stale["doubled"], 1) == [2, 4, 4]
    with pytest.raises(TimeError, match="'doubled' is stale since epoch 1: a function"):
        stale["doubled"].rows()
    with pytest.raises(StageError, match="'late' cannot be computed: it reads 'doubled'"):
        stale.stage("late", stale["doubled"].filter("y > 1"))


@pytest.mark.parametrize("missed", [False, True])
def test_stale_stage_continues_or_catches_up_when_redefined(stale: Session, missed: bool) -> None:
    stale.replay_rows = 0
    for turn in (True, False):
        if missed is turn:
            stale["numbers"].insert([(3,)])
            stale.commit()
        if turn:
            define_functions(stale)
            assert [s.version for s in catalog_of(stale).values()] == [1, 1, 1, 1, 1]
            assert stale["doubled"].history() == [range(stale.now + 1)]
    assert "doubled@1" not in stale
    assert values(stale["doubled"]) == [2, 4, 4, 6]
    assert values(stale["inside"]) == [(0, 2), (1, 2)]
    assert values(stale["reader"]) == [2, 4, 6]
    assert values(stale["doubled"], 1) == [2, 4, 4]
    assert values(stale["inside"], 1) == [(0, 2), (1, 1)]
    stale["numbers"].remove([(2,)])
    stale.commit()
    assert values(stale["doubled"]) == [2, 4, 6]
    assert values(stale["inside"]) == [(0, 1), (1, 2)]
    assert values(stale["reader"]) == [2, 4, 6]


def test_stages_that_share_a_node_can_continue_one_by_one(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shared node lags behind, and the first stage needs its state at that epoch."""

    def define(session: Session, names: list[str]) -> None:
        shared = session["numbers"].map(lambda row: (row.x % 2,), "y int")
        stages = {"first": shared.group_by("y").agg(n="count(*)"), "second": shared.distinct()}
        session.define({name: stages[name] for name in names})

    session = opened()
    session.replay_rows = 0
    session.input("numbers", "x int")
    define(session, ["first", "second"])
    session["numbers"].insert([(2,)])
    session.commit()
    session.close()
    pretend_python(monkeypatch, "4.0")
    session = opened()
    session.replay_rows = 0
    session["numbers"].insert([(3,)])
    session.commit()
    define(session, ["second"])
    assert values(session["second"]) == [0, 1]
    session["numbers"].insert([(5,)])
    session.commit()
    assert values(session["second"]) == [0, 1]
    define(session, ["first"])
    assert values(session["first"]) == [(0, 1), (1, 2)]
    session["numbers"].remove([(2,)])
    session.commit()
    assert values(session["second"]) == [1]
    assert values(session["first"]) == [(1, 2)]


def test_unloaded_functions_stay_unchanged_in_the_log(
    stale: Session,
    opened: Callable[..., Session],
    restart: Restart,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stale.stage("another", stale["plain"].distinct())  # writes the catalog
    stale = restart(stale)
    pretend_python(monkeypatch, "{}.{}".format(*sys.version_info))
    session = restart(stale)
    assert set(session.recovery.stages.values()) == {"read"}
    session["numbers"].insert([(3,)])
    session.commit()
    assert values(session["doubled"]) == [2, 4, 4, 6]
    assert values(session["reader"]) == [2, 4, 6]


@pytest.mark.fault(38)
def test_stage_without_its_column_is_stale_until_the_column_returns(
    opened: Callable[..., Session], restart: Restart
) -> None:
    session = opened()
    session.replay_rows = 0
    people = session.input("people", "name string, age int, city string")
    session.stage("grown", people.filter("age >= 18"))
    session.stage("cities", session["grown"].group_by("city").agg(n="count(*)"))
    people.insert([("ann", 20, "rome"), ("bob", 30, "oslo")])
    session.commit()
    restart.midway(session)
    session.stage("grown", people.filter("age >= 18").select("name", "age"))
    session = restart(session)
    reason = session.recovery.reasons["cities"]
    assert reason == "it reads column 'city' (string) of 'grown', which now has no such column"
    session["people"].insert([("cy", 30, "rome")])
    session.commit()
    assert values(session["cities"], 1) == [("oslo", 1), ("rome", 1)]
    session.stage("grown", session["people"].filter("age >= 18"))
    assert values(session["cities"]) == [("oslo", 1), ("rome", 2)]
    session = restart(session)
    session["people"].insert([("di", 19, "oslo")])
    session.commit()
    assert values(session["cities"]) == [("oslo", 2), ("rome", 2)]


# -- files -----------------------------------------------------------------------------------------


def files(session: Session) -> set[str]:
    return {
        name
        for folder in (parts_folder(session), store_of(session).packs)
        for name in os.listdir(folder)
    }


def test_opening_deletes_only_unreferenced_files(
    opened: Callable[..., Session], restart: Restart, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SPILL_ROWS", 4)
    session = opened()
    numbers = session.input("numbers", "x int")
    session.stage("grouped", numbers.group_by("x").reduce(lambda k, rows: [(len(rows),)], "n int"))
    numbers.insert([(x,) for x in range(20)])
    session.commit()
    restart.midway(session)
    numbers.insert([(x,) for x in range(20)])
    session.commit()
    needed = files(session)
    Path(parts_folder(session), "trace9-1-2-g1-half.arrow").write_bytes(b"half")
    Path(store_of(session).packs, "pack-1-2-half.pack").write_bytes(b"half")
    Path(parts_folder(session), "mine.txt").write_bytes(b"mine")
    session = restart(session)
    assert needed - files(session) == set()
    assert not {name for name in files(session) if "half" in name}
    assert "mine.txt" in files(session)
    assert not session.recovery.notes
    assert values(session["grouped"]) == [(x, 2) for x in range(20)]
    assert values(session["grouped"], 1) == [(x, 1) for x in range(20)]


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spills batches of more than four rows to files, and merges layers early."""
    monkeypatch.setattr(store, "SPILL_ROWS", 4)
    monkeypatch.setattr(maintenance, "SPILL_ROWS", 4)
    monkeypatch.setattr("nosync_nb.trace.compaction.YOUNG_ROWS", 2)


def insert_in_tens(session: Session, rows_count: int) -> Iterator[int]:
    """Commits ten numbers per step and yields the first of them."""
    numbers = session.input("numbers", "x int")
    for start in range(0, rows_count, 10):
        numbers.insert([(x,) for x in range(start, start + 10)])
        session.commit()
        yield start


def test_merged_files_are_deleted_by_the_second_checkpoint(
    opened: Callable[..., Session], small_files: None
) -> None:
    session = opened()
    assert [*insert_in_tens(session, 60)][-1] == 50
    merge_trace(session, next(iter(traces_of(session))))
    settle_background(session)
    retired = set(services_of(session).publisher.garbage.retired)
    assert retired
    checkpoint_now(session)
    assert retired <= files(session)
    checkpoint_now(session)
    history = history_of(session).files()
    assert retired & files(session) == retired & history
    assert values(session["numbers"]) == list(range(60))
    assert values(session["numbers"], 2) == list(range(20))


def test_files_of_the_last_checkpoint_are_deleted_after_a_restart(
    opened: Callable[..., Session], small_files: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BackgroundWorker, "submit", lambda *_, **__: None)
    session = opened()
    assert [*insert_in_tens(session, 60)][-1] == 50
    merge_trace(session, next(iter(traces_of(session))))
    retired = set(services_of(session).publisher.garbage.retired)
    checkpoint_now(session)
    session.close()
    session = opened()
    assert retired <= files(session)
    session["numbers"].insert([(60,)])  # without a commit there is nothing to checkpoint
    session.commit()
    checkpoint_now(session)
    history = history_of(session).files()
    assert retired - history
    assert retired & files(session) == retired & history
    assert values(session["numbers"]) == list(range(61))


def test_files_of_undone_epochs_are_deleted_after_a_restart(
    opened: Callable[..., Session], small_files: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A background merge or checkpoint could delete the files earlier.
    monkeypatch.setattr(BackgroundWorker, "submit", lambda *_, **__: None)
    session = opened()
    steps = insert_in_tens(session, 60)
    while next(steps) < 20:
        pass
    checkpoint_now(session)
    before = files(session)
    assert [*steps][-1] == 50
    undone = files(session) - before
    session.rewind(3)
    session = opened(takeover=True)
    undone &= store_of(session).named - services_of(session).publisher.named_files
    assert undone
    assert undone <= files(session)
    session["numbers"].insert([(30,)])
    session.commit()
    for _ in range(2):
        checkpoint_now(session)
    assert not undone & files(session)
    assert values(session["numbers"]) == list(range(31))


@pytest.mark.parametrize("step", ["saved", "pack", "write_checkpoint"])
def test_checkpoint_without_memory_keeps_all_files(
    opened: Callable[..., Session], small_files: None, step: str
) -> None:
    session = opened()
    assert [*insert_in_tens(session, 60)][-1] == 50
    owners = services_of(session)
    owners.maintenance.merge(next(iter(owners.publisher.snapshot.version.traces)))
    owners.worker.settle()
    retired = owners.publisher.garbage.files
    assert retired
    owner_of = {"saved": owners.publisher.ledger, "pack": owners.publisher.store.history}

    def fail(*arguments: Any) -> None:
        raise MemoryError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner_of.get(step, owners.publisher.store.log), step, fail)
        with pytest.raises(MemoryError):
            owners.maintenance.checkpoint()
    assert retired <= owners.publisher.garbage.files
    for _ in range(2):
        owners.maintenance.checkpoint()
    history = owners.publisher.store.history.files()
    assert retired & files(session) == retired & history
    assert values(session["numbers"]) == list(range(60))


def test_checkpoint_before_a_damaged_one_is_used(
    opened: Callable[..., Session], small_files: None
) -> None:
    session = opened()
    for start in insert_in_tens(session, 80):
        merge_trace(session, next(iter(traces_of(session))))
        if start % 20:
            checkpoint_now(session)
    session.close()
    opened().close()  # sweeps, and must leave the files of the older checkpoint
    newest = sorted(Path(session.path).glob("checkpoint-*"))[-1]
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    for _ in range(2):  # the first opening must not delete files that the second needs
        session = opened()
        assert any(newest.name in note for note in session.recovery.notes)
        assert [values(session["numbers"], at)[-1] for at in range(1, 9)] == list(range(9, 80, 10))
        session.close()


@pytest.mark.fault(14)
def test_missing_file_is_reported_at_opening_and_loses_only_its_input(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SPILL_ROWS", 4)
    session = opened()
    large, small = session.input("large", "x int"), session.input("small", "x int")
    large.insert([(x,) for x in range(10)])
    small.insert([(1,)])
    session.commit()
    deleted = files(session)
    session.close()
    for name in deleted:
        Path(parts_folder(session), name).unlink()
    session = opened()
    (note,) = session.recovery.notes
    assert note.startswith("input 'large': '")
    assert "restore the file from a copy" in note
    assert all(name in note for name in deleted)
    assert values(session["small"]) == [1]
    with pytest.raises(nosync_nb.CorruptLogError, match="is missing"):
        session["large"].rows()


# -- the report ------------------------------------------------------------------------------------


@pytest.mark.fault(7)
def test_opening_neither_decodes_nor_maps_unneeded_batches(
    opened: Callable[..., Session], restart: Restart, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SPILL_ROWS", 8)
    session = opened()
    numbers = session.input("numbers", "x int")
    session.stage("large", numbers.filter("x >= 0").distinct())
    session.stage("sums", numbers.group_by().agg(total="sum(x)"))
    numbers.insert([(x,) for x in range(50)])
    session.commit()
    numbers.insert([(1,)])
    session.commit()
    if restart.how == "closed":
        session.close()
    elif restart.how == "checkpoint":
        checkpoint_now(session)
    touched: list[str] = []
    decode, map_ = batch_codec.decode_batch, part_file.open_part

    def decoded(*arguments: Any) -> Any:
        touched.append("decoded")
        return decode(*arguments)

    def mapped(*arguments: Any, **options: Any) -> Any:
        touched.append("mapped")
        return map_(*arguments, **options)

    monkeypatch.setattr(batch_codec, "decode_batch", decoded)
    monkeypatch.setattr(store, "open_part", mapped)
    session = opened(takeover=True)
    assert touched == []
    assert values(session["sums"]) == [1226]
    assert set(touched) == {"decoded"}


def test_recovery_report_lists_sources_and_counts(
    opened: Callable[..., Session], restart: Restart
) -> None:
    session = opened()
    assert session.recovery.fresh
    assert str(session.recovery) == "NoSync: new session: nothing to recover"
    session.stage("odd", session.input("numbers", "x int").filter("x % 2 = 1"))
    session["numbers"].insert([(1,)])
    session.commit()
    report = restart(session).recovery
    assert not report.fresh
    assert report.resumed_at == 1
    assert report.lost == []
    assert report.stages == {"odd": "read"}
    assert set(report.seconds) == {"fence and verify", "read", "restore"}
    title, *lines = str(report).splitlines()
    assert title.startswith("NoSync: recovered at epoch 1 in ")
    assert lines[0] == "  read          numbers, odd"
    assert lines[1] == "  recomputed    nothing"


@pytest.mark.fault(8)
def test_epochs_lost_in_a_power_failure_are_reported(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened()
    numbers = session.input("numbers", "x int")
    numbers.insert([(1,)])
    session.commit(wait="disk")
    with no_flush(log_of(session)):
        size = os.path.getsize(segment := sorted(Path(session.path).glob("segment-*"))[-1])
        for x in (2, 3):
            numbers.insert([(x,)])
            session.commit()
        os.truncate(segment, size)  # the tail was in the page cache only
        rebooted = HostIdentity().identity()._replace(boot="after the power came back")
        monkeypatch.setattr(HostIdentity, "identity", lambda self: rebooted)
        after = opened(takeover=True)
    assert after.now == 1
    assert after.recovery.lost == [2, 3]
    assert "2 epochs lost" in str(after.recovery)
    assert "epochs 2 to 3: committed, but not yet on disk when the power failed" in str(
        after.recovery
    )
    after["numbers"].insert([(4,)])
    assert after.commit() == 2
    assert values(after["numbers"]) == [1, 4]
    for write in (lambda: numbers.insert([(5,)]), session.commit):
        with pytest.raises(FencedError):
            write()


def test_log_size_does_not_grow_with_the_past(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    def segments(session: Session) -> int:
        return sum(name.startswith("segment-") for name in os.listdir(session.path))

    monkeypatch.setattr(writer, "SEGMENT_BYTES_MAX", 1000)
    session = opened()
    numbers = session.input("numbers", "x int")
    session.stage("sums", numbers.agg(total="sum(x)"))
    reader = opened(mode="r")
    counts = []
    for x in range(1, 121):
        numbers.insert([(x,)])
        session.commit()
        if x % 20 == 0:
            checkpoint_now(session)
            counts.append(segments(session))
    assert max(counts[2:]) < 1.5 * counts[1]
    for opened_session in (reader, opened(takeover=True)):
        assert opened_session.refresh() == 120
        assert [opened_session["sums"].rows(at=x)[0].total or 0 for x in range(121)] == [
            x * (x + 1) // 2 for x in range(121)
        ]


def test_concurrent_checkpoints_retain_the_whole_past(
    opened: Callable[..., Session], small_files: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened()
    list(insert_in_tens(session, 40))
    checkpoint = services_of(session).maintenance.checkpoint
    second, first_is_done = threading.Event(), threading.Event()
    on_second_checkpoint(session, second.set)
    other = threading.Thread(target=checkpoint)
    perform, caller = PackPlan.perform, threading.current_thread()

    def performed(plan: PackPlan, *arguments: Any) -> PackResult:
        packed = perform(plan, *arguments)
        if threading.current_thread() is caller:
            session.inputs["numbers"].insert([(x,) for x in range(40, 50)])
            session.commit()
            other.start()
            assert second.wait(60)
        else:
            second.set()
            assert first_is_done.wait(60)
        return packed

    with monkeypatch.context() as patch:
        patch.setattr(PackPlan, "perform", performed)
        checkpoint()
        first_is_done.set()
        other.join()
    session.inputs["numbers"].insert([(x,) for x in range(50, 60)])
    session.commit()  # the current state is not read from the past
    after = opened(takeover=True)
    assert [values(after["numbers"], at)[-1] for at in range(1, 7)] == list(range(9, 60, 10))


def test_files_referenced_only_by_old_frames_are_deleted_after_opening(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (store, maintenance):
        monkeypatch.setattr(place, "SPILL_ROWS", 4)
    monkeypatch.setattr(BackgroundWorker, "submit", lambda *_, **__: False)
    session = opened()
    rows = session.input("rows", "a int, b int")

    def define_with_bound(least: int) -> None:
        filtered = rows.filter(f"b >= {least}")
        session.stage("groups", filtered.group_by("a").agg(n="count(*)", most="max(b)"))

    define_with_bound(0)
    rows.insert([(i % 2, i) for i in range(8)])
    session.commit()
    define_with_bound(1)
    again = opened(takeover=True)
    where = parts_folder(again)
    before = {*os.listdir(where)}
    for _ in range(3):  # an opening may begin at the checkpoint before the newest one
        again.inputs["rows"].insert([(0, 1)])
        again.commit()
        checkpoint_now(again)
    garbage = services_of(again).publisher.garbage.files
    remaining = {*os.listdir(where)}
    assert before - remaining
    assert remaining <= services_of(again).publisher.named_files - garbage
    assert [tuple(row) for row in again["groups"].rows()] == [(0, 6, 6), (1, 4, 7)]
