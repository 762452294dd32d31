"""Crashes while history is downsampled and files are deleted.

After a crash at any step, every readable epoch has its rows, every other one names the nearest
readable epochs, and a pin is retained. Continuing from there ends with the same past as without the
crash, and without unreferenced files.
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
    pytest.mark.usefixtures("own_key", "single_threaded"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Opens = Callable[[Files], Session]


@pytest.fixture
def single_threaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs nothing in other threads, makes small files, and makes each opening a new boot."""
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
def open_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Opens:
    """Opens the log of the test on another disk, and takes it over."""
    return opener(monkeypatch, tmp_path / "log", left=True)


def commit(session: Session) -> None:
    epoch = session.now + 1
    session.inputs["numbers"].insert([(epoch,)])
    if epoch > 10:
        session.inputs["numbers"].remove([(epoch - 10,)])
    session.commit()


def prepare_log(session: Session) -> None:
    numbers = session.input("numbers", "x bigint")
    session.stage("sums", numbers.group_by().agg(n="count(*)", total="sum(x)"))
    while session.now < EPOCHS:
        commit(session)
        if session.now % 12 == 0:
            checkpoint_now(session)
    session.pin(PINNED, "mine")


def merge_all(session: Session) -> None:
    for number in list(traces_of(session)):
        merge_trace(session, number)


def shorten_retention(session: Session) -> Iterator[None]:
    """Shortens the retention; the third checkpoint deletes the files of the past."""
    session.retain = 2
    yield
    for _ in range(3):
        commit(session)
        merge_all(session)
        checkpoint_now(session)
        yield


def readable_epochs(session: Session) -> list[int]:
    """Returns the readable epochs and checks their rows; all others raise with a hint."""
    readable_epochs = [each for some in session["numbers"].history() for each in some]
    for epoch in range(session.now + 1):
        if epoch not in readable_epochs:
            with pytest.raises(TimeError) as raised:
                session["numbers"].rows(at=epoch)
            assert "nearest epochs" in str(raised.value.hint)
            continue
        wanted = [*range(max(1, epoch - 9), epoch + 1)]
        assert [row.x for row in session["numbers"].rows(at=epoch)] == wanted, epoch
        ((count, total),) = session["sums"].rows(at=epoch)
        assert (count, total or 0) == (len(wanted), sum(wanted)), epoch
    return readable_epochs


def check_and_finish(session: Session) -> None:
    """Continues to the end, and checks that past and files equal those without a crash."""
    readable = readable_epochs(session)
    assert {PINNED, session.now} <= {*readable}
    assert session.now >= EPOCHS
    assert len(readable) in (session.now + 1, *range(1, 40)), len(readable)
    assert session.verify().whole
    for _ in shorten_retention(session):
        pass
    assert len(readable_epochs(session)) < 40
    assert PINNED in readable_epochs(session)
    inner = {os.path.join(session.path, each) for each in FOLDERS.values()}
    files = {name for each in inner if os.path.isdir(each) for name in os.listdir(each)}
    assert files <= services_of(session).publisher.named_files


@pytest.fixture
def saved_log(open_on: Opens, tmp_path: Path) -> Path:
    """The log before its history is thinned."""
    with open_on(HastyFiles()) as session:
        prepare_log(session)
    return (tmp_path / "log").rename(tmp_path / "kept")


def steps_of(open_on: Opens, saved_log: Path, log: Path) -> tuple[int, set[str]]:
    """Returns the number of disk steps, and their kinds."""
    shutil.copytree(saved_log, log)
    disk = FaultyFiles()
    session = open_on(disk)
    before = len(disk.steps)
    for _ in shorten_retention(session):
        pass
    steps = disk.steps[before:]
    session.close()
    shutil.rmtree(log)
    return len(steps), {f"{step.action} {step.name.partition('-')[0]}" for step in steps}


def crash_at(open_on: Opens, saved_log: Path, log: Path, at: int, phase: Phase) -> FaultyFiles:
    """Thins a log until a crash at a step of its disk; returns the disk."""
    shutil.copytree(saved_log, log)
    disk = FaultyFiles(seed=at)
    session = open_on(disk)
    disk.crash_in(at, phase)
    with pytest.raises(Crash):
        for _ in shorten_retention(session):
            pass
    return disk


@pytest.mark.fault(6, 8)
@pytest.mark.parametrize(
    ("phase", "power"),
    [("before", False), ("inside", False), ("after", False), ("before", True), ("after", True)],
)
def test_crash_while_history_is_thinned_leaves_readable_epochs_right(
    open_on: Opens, saved_log: Path, tmp_path: Path, phase: Phase, power: bool
) -> None:
    """The process crashes at each step, and the machine loses power as well if `power`."""
    log = tmp_path / "log"
    steps, kinds = steps_of(open_on, saved_log, log)
    assert {"unlink segment", "rename checkpoint"} <= kinds
    assert [kind for kind in kinds if kind.startswith("unlink") and "segment" not in kind]
    for at in range(1, steps + 1, tried(7, 1)):
        disk = crash_at(open_on, saved_log, log, at, phase)
        if power:
            disk.lose_power(str(log))
        else:
            disk.go_on()
        with open_on(HastyFiles()) as again:
            check_and_finish(again)
        shutil.rmtree(log)


@pytest.mark.fault(6, 9)
def test_superseded_checkpoint_that_reappears_is_no_damage(
    open_on: Opens, saved_log: Path, tmp_path: Path
) -> None:
    """It reappears after a power loss or was left by a crash; files that it names are deleted."""
    log = tmp_path / "log"
    shutil.copytree(saved_log, log)
    with open_on(HastyFiles()) as session:
        older = {path: path.read_bytes() for path in log.glob("checkpoint-*")}
        assert older
        for _ in shorten_retention(session):
            pass
        for path, data in older.items():
            assert not path.exists()
            path.write_bytes(data)
        assert session.verify().damage == ()
    with open_on(HastyFiles()) as again:
        assert not [path for path in older if path.exists()]
        assert len([*log.glob("checkpoint-*")]) == 2
        assert again.verify().damage == ()
        check_and_finish(again)
