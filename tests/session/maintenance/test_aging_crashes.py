"""Crashes while history is downsampled and files are deleted.

Whatever was done by then: every epoch that can be read is as it was, every other one says so with
those that are near, a pin is kept. Who goes on has the same past in the end as if nothing had come
between, and no file stays that nothing names.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from faults.faults import Crash, FaultyFiles, HastyFiles, Phase, opener
from internals import checkpoint_now, merge_trace, services_of, traces_of
from soak import tried

from nosync_nb import Session, TimeError
from nosync_nb.files.filesystem import Files
from nosync_nb.files.safe_names import FOLDERS
from nosync_nb.session.state.worker import BackgroundWorker
from nosync_nb.store import store
from nosync_nb.store.log import Log, writer
from nosync_nb.store.log.owner import HostIdentity

EPOCHS, PINNED = 60, 7

pytestmark = [
    pytest.mark.usefixtures("own_key", "small"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Opens = Callable[[Files], Session]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing happens in other threads, little is a file or a merge, each opening is a new boot."""
    boots, identity = itertools.count(), HostIdentity.identity
    monkeypatch.setattr(
        HostIdentity, "identity", lambda self: identity(self)._replace(boot=f"boot {next(boots)}")
    )
    monkeypatch.setattr(Log, "open", partial(Log.open, background=False))
    monkeypatch.setattr(BackgroundWorker, "submit", lambda *_, **__: False)
    monkeypatch.setattr(store, "SPILL_BYTES", 200)
    monkeypatch.setattr(store, "SETTLED_BYTES", 100)
    monkeypatch.setattr(writer, "SEGMENT_BYTES_MAX", 4096)
    monkeypatch.setattr("nosync_nb.trace.compaction.YOUNG_ROWS", 2)


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Opens:
    """Opens the log of the test on another disk, from whoever had it."""
    return opener(monkeypatch, tmp_path / "log", left=True)


def commit(session: Session) -> None:
    epoch = session.now + 1
    session.inputs["numbers"].insert([(epoch,)])
    if epoch > 10:
        session.inputs["numbers"].remove([(epoch - 10,)])
    session.commit()


def prepared(session: Session) -> None:
    numbers = session.input("numbers", "x bigint")
    session.stage("sums", numbers.group_by().agg(n="count(*)", total="sum(x)"))
    while session.now < EPOCHS:
        commit(session)
        if session.now % 12 == 0:
            checkpoint_now(session)
    session.pin(PINNED, "mine")


def merged(session: Session) -> None:
    for number in list(traces_of(session)):
        merge_trace(session, number)


def thinned(session: Session) -> Iterator[None]:
    """Less of the past is kept; with the third checkpoint what it lay in is deleted."""
    session.retain = 2
    yield
    for _ in range(3):
        commit(session)
        merged(session)
        checkpoint_now(session)
        yield


def readable(session: Session) -> list[int]:
    """The epochs that can be read, each of which is right; all others say so."""
    there = [each for some in session["numbers"].history() for each in some]
    for epoch in range(session.now + 1):
        if epoch not in there:
            with pytest.raises(TimeError) as told:
                session["numbers"].rows(at=epoch)
            assert "nearest epochs" in str(told.value.hint)
            continue
        wanted = [*range(max(1, epoch - 9), epoch + 1)]
        assert [row.x for row in session["numbers"].rows(at=epoch)] == wanted, epoch
        ((count, total),) = session["sums"].rows(at=epoch)
        assert (count, total or 0) == (len(wanted), sum(wanted)), epoch
    return there


def check(session: Session) -> None:
    """Goes on to the end, whatever was done: then the past and the files are those of anybody."""
    there = readable(session)
    assert {PINNED, session.now} <= {*there}
    assert session.now >= EPOCHS
    assert len(there) in (session.now + 1, *range(1, 40)), len(there)
    assert session.verify().whole
    for _ in thinned(session):
        pass
    assert len(readable(session)) < 40
    assert PINNED in readable(session)
    inner = {os.path.join(session.path, each) for each in FOLDERS.values()}
    there_now = {name for each in inner if os.path.isdir(each) for name in os.listdir(each)}
    assert there_now <= services_of(session).publisher.named_files


@pytest.fixture
def kept(on: Opens, tmp_path: Path) -> Path:
    """The log before anything of its past is let go, to be copied."""
    with on(HastyFiles()) as session:
        prepared(session)
    return (tmp_path / "log").rename(tmp_path / "kept")


def steps_of(on: Opens, kept: Path, log: Path) -> tuple[int, set[str]]:
    """How many steps of the disk there are, and what they do."""
    shutil.copytree(kept, log)
    disk = FaultyFiles()
    session = on(disk)
    before = len(disk.steps)
    for _ in thinned(session):
        pass
    steps = disk.steps[before:]
    session.close()
    shutil.rmtree(log)
    return len(steps), {f"{step.action} {step.name.partition('-')[0]}" for step in steps}


def cut_short(on: Opens, kept: Path, log: Path, at: int, phase: Phase) -> FaultyFiles:
    """The disk of a log that is thinned until one of its steps; its process goes no further."""
    shutil.copytree(kept, log)
    disk = FaultyFiles(seed=at)
    session = on(disk)
    disk.crash_in(at, phase)
    with pytest.raises(Crash):
        for _ in thinned(session):
            pass
    return disk


@pytest.mark.fault(6)
@pytest.mark.parametrize("phase", ["before", "inside", "after"])
def test_a_process_that_dies_while_the_past_is_thinned_and_deleted(
    on: Opens, kept: Path, tmp_path: Path, phase: Phase
) -> None:
    log = tmp_path / "log"
    steps, kinds = steps_of(on, kept, log)
    assert {"unlink segment", "rename checkpoint"} <= kinds
    deleted = [kind for kind in kinds if kind.startswith("unlink") and "segment" not in kind]
    assert deleted
    for at in range(1, steps + 1, tried(7, 1)):
        disk = cut_short(on, kept, log, at, phase)
        disk.go_on()
        with on(HastyFiles()) as again:
            check(again)
        shutil.rmtree(log)


@pytest.mark.fault(8)
@pytest.mark.parametrize("phase", ["before", "after"])
def test_power_that_fails_while_the_past_is_thinned_and_deleted(
    on: Opens, kept: Path, tmp_path: Path, phase: Phase
) -> None:
    log = tmp_path / "log"
    steps, _ = steps_of(on, kept, log)
    for at in range(1, steps + 1, tried(7, 1)):
        disk = cut_short(on, kept, log, at, phase)
        disk.lose_power(str(log))
        with on(HastyFiles()) as again:
            check(again)
        shutil.rmtree(log)


@pytest.mark.fault(6, 9)
def test_a_checkpoint_that_nobody_goes_back_to_any_more_is_no_damage(
    on: Opens, kept: Path, tmp_path: Path
) -> None:
    """It comes back with the power, or was left by who died: files that it names are deleted."""
    log = tmp_path / "log"
    shutil.copytree(kept, log)
    with on(HastyFiles()) as session:
        older = {path: path.read_bytes() for path in log.glob("checkpoint-*")}
        assert older
        for _ in thinned(session):
            pass
        for path, data in older.items():
            assert not path.exists()
            path.write_bytes(data)
        assert session.verify().damage == ()
    with on(HastyFiles()) as again:
        assert not [path for path in older if path.exists()]
        assert len([*log.glob("checkpoint-*")]) == 2
        assert again.verify().damage == ()
        check(again)
