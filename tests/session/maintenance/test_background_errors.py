"""Errors of background work: each task with empty, one-row and large state.

An error is reported once, names the task and the stage, refuses nothing, and stops only what
depends on it. The same task is tried again later, and until it succeeds it is listed.
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
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of a few hundred bytes lie in files."""
    monkeypatch.setattr(store, "SPILL_BYTES", 800)
    monkeypatch.setattr(store, "SETTLED_BYTES", 200)


def define(session: Session) -> None:
    data = session.input("data", "k bigint, v bigint")
    session.stage("kept", data.filter("k >= 0"), persist="memory")
    session.stage("seen", data.select("k + 1 as k").distinct(), persist="memory")
    sums = session.stage("sums", data.group_by("k").agg(total="sum(v)"))
    session.stage("pairs", data.join(sums, on="k"))


def feed(session: Session, count: int) -> None:
    """Epochs after which an input has so many rows; some bring nothing, some end what was there."""
    data = session.inputs["data"]
    for _ in range(ROUNDS):
        data.insert([(k, session.now) for k in range(max(count, 1))])
        session.commit()
        data.clear()
        session.commit()
        session.commit()
    data.insert([(k, -session.now) for k in range(count)])
    session.commit()


def past(session: Session) -> dict[str, dict[int, list[Any]]]:
    """Every collection at each epoch that can be read."""
    return {
        name: {e: sorted(session[name].rows(e)) for each in session[name].history() for e in each}
        for name in NAMES
    }


def scratch(rows: list[Any]) -> dict[str, list[Any]]:
    """What every collection is if it is computed from the rows of the input."""
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


def is_right(session: Session) -> None:
    found = past(session)
    for epoch, rows in found["data"].items():
        expected = scratch([tuple(row) for row in rows])
        for name in NAMES:
            if epoch in found[name]:
                assert [tuple(r) for r in found[name][epoch]] == expected[name], (name, epoch)
    assert {session.now} <= {*found["pairs"]}


# -- the tasks -------------------------------------------------------------------------------------


def submit(session: Session, task: Callable[[], Any], name: str) -> None:
    services_of(session).worker.submit(object(), task, name=name)


def merged(session: Session) -> None:
    for number in traces_of(session):
        submit(session, lambda number=number: merge_trace(session, number), "merging")
    services_of(session).upkeep.plan_merges(traces_of(session))


def proposed(session: Session) -> None:
    """Merges that the keeper was asked for, of which nothing came."""
    proposals = services_of(session).replication.merges.proposals
    for number, trace in traces_of(session).items():
        for layer in trace.layers:
            layer.claim()
        if trace.layers:
            proposals.register(maintenance.OffloadedMerge(number, trace.layout, trace.layers))
    proposals.lose()


def checkpointed(session: Session) -> None:
    lose_patience(session)
    services_of(session).upkeep.plan_checkpoint()


def summed_up(session: Session) -> None:
    """The past of stages in memory, of which a restart would not bring back so much."""
    session.replay_rows = 3
    checkpointed(session)


def tidied(session: Session) -> None:
    """So many packs that sums over them are written."""
    for epoch in range(17):
        session.inputs["data"].insert([(1, epoch)])
        session.inputs["data"].remove([(1, epoch)])
        session.commit()
        checkpointed(session)
        drain_background(session)


def thinned(session: Session) -> None:
    session.retain = 4
    tidied(session)


def fitted(session: Session) -> None:
    checkpointed(session)
    drain_background(session)
    session.budget = disk_usage.minimum_bytes(services_of(session).publisher) + 1000
    tidied(session)


def gave_back(session: Session) -> None:
    services_of(session).upkeep.plan_giving_back()


def rebuilt(session: Session) -> None:
    checkpointed(session)
    drain_background(session)
    session.rewind(to=session.now - 2)


def scaled(session: Session) -> None:
    """What a backlog of replicas makes of stages, and the way back."""
    owners = services_of(session)

    def change() -> None:
        with owners.gate.lock:
            owners.scaling.scale_back(["sums", "pairs"])
            owners.scaling.owe()

    submit(session, change, "scaling")
    owners.scaling.submit_if_due()


TASKS = {
    "merges": merged,
    "merges of the keeper": proposed,
    "checkpoint and packing": checkpointed,
    "sums of the past in memory": summed_up,
    "sums of packs": tidied,
    "thinning": thinned,
    "budget": fitted,
    "memory": gave_back,
    "operator state": rebuilt,
    "scaling": scaled,
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("task", TASKS)
def test_a_background_task_succeeds_whatever_there_is(task: str, size: str, tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        define(session)
        feed(session, SIZES[size])
        TASKS[task](session)
        settle_background(session)
        assert services_of(session).worker.failures.failed_tasks() == ()
        is_right(session)
        feed(session, SIZES[size])
        TASKS[task](session)  # what was done is done again
        settle_background(session)
        is_right(session)
    with nosync_nb.open(tmp_path / "log") as session:
        is_right(session)
        feed(session, SIZES[size])
        is_right(session)


def test_the_past_of_a_stage_in_memory_that_is_empty_is_summed_up(tmp_path: Path) -> None:
    """The sum of no changes: those of the stage's first epochs cancel one another."""
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
        step: where it is, and its name.
        task: which background work meets it.
        named: what the report says.
        checkpoint: whether a checkpoint is written all the same.
    """

    step: tuple[Any, str]
    task: Callable[[Session], None]
    named: str
    checkpoint: bool | None = None


def grown(session: Session) -> None:
    """Epochs whose layers are due to be merged."""
    feed(session, SIZES["large"])
    services_of(session).upkeep.plan_merges(traces_of(session))


def bounded(session: Session) -> None:
    services_of(session).retaining.bound("1 GB")
    checkpointed(session)


FAULTS = {
    "merge": Fault((maintenance, "merge_ranges"), grown, "merging the layers of (stage|input) '"),
    "proposal": Fault(
        (maintenance, "merge_ranges"), proposed, "merging the layers of (stage|input) '"
    ),
    "packing": Fault(
        (pack_plans, "sections_of"),
        checkpointed,
        r"writing a checkpoint: .*\(while packing (stage|input) '",
        checkpoint=False,
    ),
    "settling": Fault(
        (Store, "write_layers"),
        checkpointed,
        r"writing a checkpoint: .*\(while writing (stage|input) '.* to files\)",
        checkpoint=False,
    ),
    "checkpoint": Fault(
        (Store, "checkpoint_payload"), checkpointed, "writing a checkpoint: ", checkpoint=False
    ),
    "sum": Fault(
        (History, "shorten"), summed_up, "combining the history of stage 'kept': ", checkpoint=True
    ),
    "thinning": Fault((History, "tidy"), checkpointed, "downsampling history: ", checkpoint=True),
    "budget": Fault(
        (disk_usage, "over_budget"),
        bounded,
        "reducing history to the budget: ",
        checkpoint=True,
    ),
    "memory": Fault((maintenance, "release_memory"), gave_back, "returning memory to the system: "),
}
ERRORS = [
    RuntimeError("a fault of ours"),
    MemoryError("refused"),
    DurabilityError("the disk is full", errno=errno.ENOSPC),
]


def noted(act: Callable[[], Any]) -> list[str]:
    """What a call warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    return [str(each.message) for each in caught]


def one_more(session: Session) -> int:
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
def test_an_error_in_the_background_is_reported_once_and_stops_what_depends_on_it_alone(
    name: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = FAULTS[name]
    monkeypatch.setattr(maintenance, "PATIENCE_FRAMES", 8)

    def fails(*_: Any, **__: Any) -> Any:
        raise type(error)(*error.args)

    with nosync_nb.open(tmp_path / "log") as session:
        define(session)
        feed(session, 30)
        owners, works = services_of(session), session.stats
        owners.worker.settle()
        before, merges = works["checkpoints"], works["merges"]
        with monkeypatch.context() as patch:
            patch.setattr(*fault.step, fails)
            told = noted(lambda: fault.task(session))
            owners.worker.drain()
            told += noted(lambda: one_more(session))
            assert re.match(f"background work failed: {fault.named}", told[0]), told[0]
            assert "\nHint: " in told[0]
            if fault.checkpoint is not None:
                assert (works["checkpoints"] > before) == fault.checkpoint
            lose_patience(session)
            told += noted(lambda: fault.task(session))
            owners.worker.drain()
            told += noted(lambda: one_more(session))
            owners.worker.drain()
            told += [failure.warning for failure in owners.worker.failures.take_unreported()]
            assert len(told) == len(owners.worker.failures.failed_tasks()), "each was reported once"
            if name not in ("merge", "proposal"):
                feed(session, 30)
                merged(session)
                owners.worker.drain()
                assert works["merges"] > merges, "merges go on"
        for _ in range(9):
            one_more(session)
        lose_patience(session)
        fault.task(session)
        owners.worker.drain()
        feed(session, SIZES["large"])
        merged(session)
        owners.worker.drain()
        assert owners.worker.failures.failed_tasks() == (), "it was done at last"
        is_right(session)
    with nosync_nb.open(tmp_path / "log") as session:
        is_right(session)


@pytest.mark.fault(16)
def test_an_error_of_the_log_itself_stops_commits_whatever_becomes_of_background_work(
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
            services_of(session).upkeep.plan_checkpoint()
            drain_background(session)
            now = session.now
            with pytest.raises(DurabilityError, match="the disk is full"):
                one_more(session)
            assert session.now == now
        with pytest.warns(UserWarning, match="writing a checkpoint: the disk is full"):
            assert session.commit() == now + 1
        is_right(session)


def test_a_failed_checkpoint_is_tried_again_when_the_log_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "PATIENCE_FRAMES", 5)
    monkeypatch.setattr("nosync_nb.store.log.checkpoint.FRAMES_MAX", 3)
    tried: list[int] = []
    real = Store.checkpoint_payload

    def fails(*_: Any) -> Any:
        tried.append(session.now)
        raise RuntimeError("a fault of ours")

    with nosync_nb.open(tmp_path / "log") as session:
        define(session)
        monkeypatch.setattr(Store, "checkpoint_payload", fails)
        told = []
        for _ in range(12):
            told += noted(lambda: one_more(session))
            drain_background(session)
        assert len(told) == 1
        assert 2 <= len(tried) <= 3
        (failure,) = services_of(session).worker.failures.failed_tasks()
        assert failure.times == len(tried)
        assert f"failed at {failure}".count("writing a checkpoint") == 1
        monkeypatch.setattr(Store, "checkpoint_payload", real)
        for _ in range(12):
            one_more(session)
            drain_background(session)
        assert services_of(session).worker.failures.failed_tasks() == ()
        assert session.stats["checkpoints"] > 0
