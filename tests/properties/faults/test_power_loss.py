"""Power failures at every step of a session.

The disk records every sync. At the failure each unsynced file and name is old, new or torn. All
promised epochs and definitions must be there, and the next epoch must be right.
"""

from __future__ import annotations

import atexit
import itertools
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from faults.faults import Crash, FaultyFiles, HastyFiles, Phase, on_disk
from internals import checkpoint_now, merge_trace, traces_of

import nosync_nb
from nosync_nb import Session
from nosync_nb.files.filesystem import Files
from nosync_nb.session.maintenance import maintenance
from nosync_nb.session.state.worker import BackgroundWorker
from nosync_nb.store import store
from nosync_nb.store.log import Log
from nosync_nb.store.log.owner import HostIdentity
from nosync_nb.store.store import Store

PHASES: tuple[Phase, ...] = ("before", "inside", "after")
"""Each test strikes every third step, so that all together strike every step."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every layer becomes a file, no other thread works, each opening is a new boot."""
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "key"))
    for place in (store, maintenance):
        monkeypatch.setattr(place, "SPILL_ROWS", 5)
    monkeypatch.setattr(store, "SPILL_BYTES", 200)
    monkeypatch.setattr(store, "SETTLED_BYTES", 100)
    monkeypatch.setattr("nosync_nb.trace.compaction.YOUNG_ROWS", 2)
    monkeypatch.setattr(Log, "open", partial(Log.open, background=False))
    monkeypatch.setattr(
        BackgroundWorker, "submit", lambda *_, **__: False
    )  # the program merges and checkpoints
    boots = itertools.count()
    identity = HostIdentity.identity
    monkeypatch.setattr(
        HostIdentity, "identity", lambda self: identity(self)._replace(boot=f"boot {next(boots)}")
    )


@pytest.fixture
def open_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Session]:
    """Opens the log of the test on a disk, like a new process."""
    opening = Store.open

    def open_(disk: Files) -> Session:
        with monkeypatch.context() as patch:
            patch.setattr(Store, "open", on_disk(opening, disk))
            session = nosync_nb.open(tmp_path / "log", takeover=True)
        atexit.unregister(session.close)
        return session

    return open_


class Promise:
    """The promises to a program: the last durable epoch, and the definitions."""

    def __init__(self) -> None:
        self.durable = 0
        self.stages: set[str] = set()
        self.maybe: set[str] = set()


def program(session: Session, promise: Promise) -> None:
    """Five epochs of an input of keys and one of numbers; some wait for the disk."""

    def define(name: str, collection: Any) -> None:
        promise.maybe.add(name)
        session.stage(name, collection)
        session.sync()
        promise.stages.add(name)

    promise.maybe |= {"numbers", "names"}
    numbers = session.input("numbers", "k int, v int")
    names = session.input("names", "k int, name string", key="k")
    define("joined", numbers.join(names, on="k"))
    for epoch in range(1, 6):
        numbers.insert([(k, epoch) for k in range(8)])
        names.upsert([(k % 4, f"n{epoch}") for k in range(epoch)])
        if epoch == 4:
            numbers.remove([(k, 2) for k in range(8)])
        session.commit(wait="disk" if epoch in (2, 5) else None)
        promise.durable = epoch if epoch in (2, 5) else promise.durable
        if epoch == 1:
            define("sums", session["joined"].group_by("name").agg(total="sum(v)", n="count(*)"))
        if epoch == 3:
            checkpoint_now(session)
            promise.durable = 3
            define("late", numbers.group_by("k").agg(most="max(v)"))
            for number in list(traces_of(session)):
                merge_trace(session, number)
    checkpoint_now(session)


def expected(epoch: int) -> dict[str, list[Any]]:
    """The rows of every collection after an epoch."""
    numbers = sorted((k, e) for e in range(1, epoch + 1) for k in range(8) if e != 2 or epoch < 4)
    names = {k % 4: f"n{e}" for e in range(1, epoch + 1) for k in range(e)}
    joined = sorted((k, v, names[k]) for k, v in numbers if k in names)
    groups = {name: [v for _, v, n in joined if n == name] for _, _, name in joined}
    return {
        "numbers": numbers,
        "names": sorted(names.items()),
        "joined": joined,
        "sums": sorted((name, sum(vs), len(vs)) for name, vs in groups.items()),
        "late": sorted({k: max(v for k2, v in numbers if k2 == k) for k, _ in numbers}.items()),
    }


def check(session: Session, promise: Promise) -> None:
    """Compares the recovered session with the promises."""
    assert session.now >= promise.durable
    assert promise.stages <= set(session.info.reads) <= promise.maybe
    assert session.recovery.recomputed == 0
    for name in session.info.reads:
        for at in session[name].history()[0]:
            assert [tuple(row) for row in session[name].rows(at=at)] == expected(at)[name]
        assert session[name].rows() == session[name].rows(at=session.now)


def steps(open_on: Callable[..., Session], path: Path) -> int:
    """The number of steps of the program."""
    disk = FaultyFiles()
    program(open_on(disk), Promise())
    shutil.rmtree(path)
    return len(disk.steps)


# The finalizer of a lost log writes to its folder, and the powerless disk refuses that, too.
@pytest.mark.fault(6, 8)
@pytest.mark.filterwarnings("ignore:.*Log.__del__:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("phase", PHASES)
def test_power_failure_at_any_step_keeps_every_promise(
    open_on: Callable[..., Session], tmp_path: Path, phase: Phase
) -> None:
    path = tmp_path / "log"
    count = steps(open_on, path)
    assert count > 100
    for at in range(1 + PHASES.index(phase), count + 1, len(PHASES)):
        disk, promise = FaultyFiles(crash_at=at, crash_phase=phase, seed=at), Promise()
        try:
            program(open_on(disk), promise)
        except Crash:
            disk.lose_power(str(path))
        session = open_on(HastyFiles())
        try:
            check(session, promise)
            if "numbers" in session:
                session["numbers"].insert([(9, 9)])
                session.commit()
                rows = [tuple(row) for row in session["numbers"].rows()]
                assert rows == sorted([*expected(session.now - 1)["numbers"], (9, 9)])
                if "late" in session:
                    assert (9, 9) in [tuple(row) for row in session["late"].rows()]
        except AssertionError as error:
            error.add_note(f"step {at} of {count}: {disk.steps[at - 1]}, {phase}")
            raise
        session.close()
        shutil.rmtree(path)


@pytest.mark.fault(8)
def test_simulated_power_failure_loses_unsynced_epochs(
    open_on: Callable[..., Session], tmp_path: Path
) -> None:
    """An unsynced epoch may be lost or kept; otherwise the test above would prove nothing."""
    found = set()
    for seed in range(30):
        disk = FaultyFiles(seed=seed)
        session = open_on(disk)
        numbers = session.input("numbers", "k int, v int")
        session.sync()
        numbers.insert([(1, 1)])
        session.commit()
        disk.lose_power(str(tmp_path / "log"))
        after = open_on(HastyFiles())
        found.add(after.now)
        after.close()
        shutil.rmtree(tmp_path / "log")
    assert found == {0, 1}
