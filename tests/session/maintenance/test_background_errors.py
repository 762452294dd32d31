"""Errors of background work: each task with empty, one-row and large state.

An error is reported once, names the task and the stage, refuses no call, and stops only dependent
work. The task is retried later, and is listed until it succeeds.
"""

from __future__ import annotations

import errno
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from internals import (
    checkpoint_now,
    drain_background,
    graph_of,
    history_of,
    lose_patience,
    merge_trace,
    offloaded_merges_of,
    services_of,
    settle_background,
    traces_of,
)
from soak import SOAK

import nosync_nb
from nosync_nb import DurabilityError, Session
from nosync_nb.files.filesystem import File
from nosync_nb.session.maintenance import disk_usage, maintenance
from nosync_nb.store import store
from nosync_nb.store.store import Store
from nosync_nb.trace.history import pack_plans
from nosync_nb.trace.history.history import History

pytestmark = pytest.mark.usefixtures("own_key", "no_disk", "large_from_ten_rows")

NAMES = ("data", "kept", "seen", "sums", "pairs")
SIZES = {"empty": 0, "one row": 1, "large": 40}
ROUNDS = 3


@pytest.fixture(autouse=True)
def spill_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spills layers of a few hundred bytes to files."""
    monkeypatch.setattr(store, "SPILL_BYTES", 800)
    monkeypatch.setattr(store, "SETTLED_BYTES", 200)


def define(session: Session) -> None:
    data = session.input("data", "k bigint, v bigint")
    session.stage("kept", data.filter("k >= 0"), persist="memory")
    session.stage("seen", data.select("k + 1 as k").distinct(), persist="memory")
    sums = session.stage("sums", data.group_by("k").agg(total="sum(v)"))
    session.stage("pairs", data.join(sums, on="k"))


def feed(session: Session, count: int) -> None:
    """Commits epochs after which the input has `count` rows; some are empty, some remove all."""
    data = session.inputs["data"]
    for _ in range(ROUNDS):
        data.insert([(k, session.now) for k in range(max(count, 1))])
        session.commit()
        data.clear()
        session.commit()
        session.commit()
    data.insert([(k, -session.now) for k in range(count)])
    session.commit()


def past_rows(session: Session) -> dict[str, dict[int, list[Any]]]:
    """The rows of every collection at each readable epoch."""
    return {
        name: {e: sorted(session[name].rows(e)) for each in session[name].history() for e in each}
        for name in NAMES
    }


def from_scratch(rows: list[Any]) -> dict[str, list[Any]]:
    """The rows of every collection, computed from the rows of the input."""
    totals: dict[int, int] = {}
    for k, v in rows:
        totals[k] = totals.get(k, 0) + v
    return {
        "data": sorted(rows),
        "kept": sorted(rows),
        "seen": sorted({(k + 1,) for k, _ in rows}),
        "sums": sorted(totals.items()),
        "pairs": sorted((k, v, totals[k]) for k, v in rows),
    }


def check_past(session: Session) -> None:
    found = past_rows(session)
    for epoch, rows in found["data"].items():
        expected = from_scratch([tuple(row) for row in rows])
        for name in NAMES:
            if epoch in found[name]:
                assert [tuple(r) for r in found[name][epoch]] == expected[name], (name, epoch)
    assert {session.now} <= {*found["pairs"]}


# -- the tasks -------------------------------------------------------------------------------------


def submit(session: Session, task: Callable[[], Any], name: str) -> None:
    services_of(session).worker.submit(object(), task, name=name)


def merge_all(session: Session) -> None:
    for number in traces_of(session):
        submit(session, lambda number=number: merge_trace(session, number), "merging")
    services_of(session).maintenance.plan_merges(traces_of(session))


def lose_proposals(session: Session) -> None:
    """Requests merges from the keeper, which are lost."""
    merges = offloaded_merges_of(session)
    for number, trace in traces_of(session).items():
        for layer in trace.layers:
            layer.claim()
        if trace.layers:
            merges.register(maintenance.OffloadedMerge(number, trace.layout, trace.layers))
    merges.lose()


def plan_checkpoint(session: Session) -> None:
    lose_patience(session)
    services_of(session).maintenance.plan_checkpoint()


def shorten_memory_history(session: Session) -> None:
    """Lowers replay_rows, so that the history of memory stages is combined."""
    session.replay_rows = 3
    plan_checkpoint(session)


def combine_packs(session: Session) -> None:
    """Writes enough packs that sums over them are written."""
    for epoch in range(17):
        session.inputs["data"].insert([(1, epoch)])
        session.inputs["data"].remove([(1, epoch)])
        session.commit()
        plan_checkpoint(session)
        drain_background(session)


def shorten_retention(session: Session) -> None:
    session.retain = 4
    combine_packs(session)


def reduce_budget(session: Session) -> None:
    plan_checkpoint(session)
    drain_background(session)
    session.budget = disk_usage.minimum_bytes(services_of(session).publisher) + 1000
    combine_packs(session)


def return_memory(session: Session) -> None:
    services_of(session).maintenance.plan_giving_back()


def rebuild_state(session: Session) -> None:
    plan_checkpoint(session)
    drain_background(session)
    session.rewind(to=session.now - 2)


def demote_and_restore(session: Session) -> None:
    """Demotes stages as a backlog of replicas does, and restores them."""
    owners = services_of(session)

    def change() -> None:
        with owners.writer_lock.lock:
            owners.backlog_policy.scale_back(["sums", "pairs"])
            owners.backlog_policy.owe()

    submit(session, change, "scaling")
    owners.backlog_policy.submit_if_due()


TASKS = {
    "merges": merge_all,
    "merges of the keeper": lose_proposals,
    "checkpoint and packing": plan_checkpoint,
    "sums of the past in memory": shorten_memory_history,
    "sums of packs": combine_packs,
    "thinning": shorten_retention,
    "budget": reduce_budget,
    "memory": return_memory,
    "operator state": rebuild_state,
    "scaling": demote_and_restore,
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("task", TASKS)
def test_background_task_succeeds_with_any_state(task: str, size: str, tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        define(session)
        feed(session, SIZES[size])
        TASKS[task](session)
        settle_background(session)
        assert services_of(session).worker.failures.failed_tasks() == ()
        check_past(session)
        feed(session, SIZES[size])
        TASKS[task](session)
        settle_background(session)
        check_past(session)
    with nosync_nb.open(tmp_path / "log") as session:
        check_past(session)
        feed(session, SIZES[size])
        check_past(session)


def test_history_of_an_empty_memory_stage_is_combined(tmp_path: Path) -> None:
    """The changes of its first epochs cancel out."""
    with nosync_nb.open(tmp_path / "log") as session:
        session.replay_rows = 5
        data = session.input("data", "k bigint")
        session.stage("kept", data.filter("k >= 0"), persist="memory")
        for epoch in range(6):
            data.insert([(epoch,)])
            session.commit()
            data.clear()
            session.commit()
        node = graph_of(session).named["kept"]
        assert node.log is not None
        epoch = history_of(session).excess(node.log, session.replay_rows)
        assert epoch is not None
        assert session["kept"].rows(epoch) == []
        checkpoint_now(session)
        assert services_of(session).worker.failures.failed_tasks() == ()
        assert [each.start for each in session["kept"].history()] == [epoch]
        assert [session["kept"].rows(e) for e in range(epoch, session.now + 1)] == [
            session["data"].rows(e) for e in range(epoch, session.now + 1)
        ]


# -- errors ----------------------------------------------------------------------------------------


class Fault(NamedTuple):
    """A step that raises.

    Attributes:
        step: owner and name of the function that raises.
        task: the background work that calls it.
        named: start of the report.
        checkpoint: True if a checkpoint is written nevertheless.
    """

    step: tuple[Any, str]
    task: Callable[[Session], None]
    named: str
    checkpoint: bool | None = None


def make_layers(session: Session) -> None:
    """Commits epochs whose layers are due to be merged."""
    feed(session, SIZES["large"])
    services_of(session).maintenance.plan_merges(traces_of(session))


def set_budget(session: Session) -> None:
    services_of(session).retention_service.bound("1 GB")
    plan_checkpoint(session)


FAULTS = {
    "merge": Fault(
        (maintenance, "merge_ranges"), make_layers, "merging the layers of (stage|input) '"
    ),
    "proposal": Fault(
        (maintenance, "merge_ranges"), lose_proposals, "merging the layers of (stage|input) '"
    ),
    "packing": Fault(
        (pack_plans, "sections_of"),
        plan_checkpoint,
        r"writing a checkpoint: .*\(while packing (stage|input) '",
        checkpoint=False,
    ),
    "settling": Fault(
        (Store, "write_layers"),
        plan_checkpoint,
        r"writing a checkpoint: .*\(while writing (stage|input) '.* to files\)",
        checkpoint=False,
    ),
    "checkpoint": Fault(
        (Store, "checkpoint_payload"), plan_checkpoint, "writing a checkpoint: ", checkpoint=False
    ),
    "sum": Fault(
        (History, "shorten"),
        shorten_memory_history,
        "combining the history of stage 'kept': ",
        checkpoint=True,
    ),
    "thinning": Fault(
        (History, "tidy"), plan_checkpoint, "downsampling history: ", checkpoint=True
    ),
    "budget": Fault(
        (disk_usage, "over_budget"), set_budget, "reducing history to the budget: ", checkpoint=True
    ),
    "memory": Fault(
        (maintenance, "release_memory"), return_memory, "returning memory to the system: "
    ),
}
ERRORS = [
    RuntimeError("a fault of ours"),
    MemoryError("refused"),
    DurabilityError("the disk is full", errno=errno.ENOSPC),
]


def warnings_of(act: Callable[[], Any]) -> list[str]:
    """Returns the warnings of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    return [str(each.message) for each in caught]


def commit_one(session: Session) -> int:
    session.inputs["data"].insert([(1000, session.now)])
    return session.commit()


@pytest.mark.fault(47)
@pytest.mark.parametrize(
    ("name", "error"),
    [
        pytest.param(name, error, id=f"{name}-{type(error).__name__}")
        for number, name in enumerate(FAULTS)
        for turn, error in enumerate(ERRORS)
        if SOAK or turn == number % len(ERRORS)
    ],
)
def test_background_error_is_reported_once_and_stops_only_dependent_work(
    name: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = FAULTS[name]
    monkeypatch.setattr(maintenance, "PATIENCE_FRAMES", 8)

    def fail(*_: Any, **__: Any) -> Any:
        raise type(error)(*error.args)

    with nosync_nb.open(tmp_path / "log") as session:
        define(session)
        feed(session, 30)
        owners, works = services_of(session), session.stats
        owners.worker.settle()
        before, merges = works["checkpoints"], works["merges"]
        with monkeypatch.context() as patch:
            patch.setattr(*fault.step, fail)
            reports = warnings_of(lambda: fault.task(session))
            owners.worker.drain()
            reports += warnings_of(lambda: commit_one(session))
            assert re.match(f"background work failed: {fault.named}", reports[0]), reports[0]
            assert "\nHint: " in reports[0]
            if fault.checkpoint is not None:
                assert (works["checkpoints"] > before) == fault.checkpoint
            lose_patience(session)
            reports += warnings_of(lambda: fault.task(session))
            owners.worker.drain()
            reports += warnings_of(lambda: commit_one(session))
            owners.worker.drain()
            reports += [failure.warning for failure in owners.worker.failures.take_unreported()]
            assert len(reports) == len(owners.worker.failures.failed_tasks()), (
                "each was reported once"
            )
            if name not in ("merge", "proposal"):
                feed(session, 30)
                merge_all(session)
                owners.worker.drain()
                assert works["merges"] > merges, "merges continue"
        for _ in range(9):
            commit_one(session)
        lose_patience(session)
        fault.task(session)
        owners.worker.drain()
        feed(session, SIZES["large"])
        merge_all(session)
        owners.worker.drain()
        assert owners.worker.failures.failed_tasks() == (), "the task succeeded at last"
        check_past(session)
    with nosync_nb.open(tmp_path / "log") as session:
        check_past(session)


@pytest.mark.fault(16)
def test_log_error_stops_commits_besides_background_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise DurabilityError("the disk is full", errno=errno.ENOSPC)

    with nosync_nb.open(tmp_path / "log") as session:
        define(session)
        feed(session, 1)
        session.sync()
        with monkeypatch.context() as patch:
            patch.setattr(File, "append", full)
            services_of(session).maintenance.plan_checkpoint()
            drain_background(session)
            now = session.now
            with pytest.raises(DurabilityError, match="the disk is full"):
                commit_one(session)
            assert session.now == now
        with pytest.warns(UserWarning, match="writing a checkpoint: the disk is full"):
            assert session.commit() == now + 1
        check_past(session)


def test_failed_checkpoint_is_retried_after_the_log_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "PATIENCE_FRAMES", 5)
    monkeypatch.setattr("nosync_nb.store.log.checkpoint.FRAMES_MAX", 3)
    attempts: list[int] = []
    real = Store.checkpoint_payload

    def fail(*_: Any) -> Any:
        attempts.append(session.now)
        raise RuntimeError("a fault of ours")

    with nosync_nb.open(tmp_path / "log") as session:
        define(session)
        monkeypatch.setattr(Store, "checkpoint_payload", fail)
        reports = []
        for _ in range(12):
            reports += warnings_of(lambda: commit_one(session))
            drain_background(session)
        assert len(reports) == 1
        assert 2 <= len(attempts) <= 3
        (failure,) = services_of(session).worker.failures.failed_tasks()
        assert failure.times == len(attempts)
        assert f"failed at {failure}".count("writing a checkpoint") == 1
        monkeypatch.setattr(Store, "checkpoint_payload", real)
        for _ in range(12):
            commit_one(session)
            drain_background(session)
        assert services_of(session).worker.failures.failed_tasks() == ()
        assert session.stats["checkpoints"] > 0
