"""Crashes of a keeper while it ships: a replica has the state before, or after.

Cases: the log is rewound, near or behind its checkpoint; its retention is shortened and files are
deleted; the log is a new branch. The replica crashes or loses power at every step of its disk. Then
the disk of the log is lost, and the log that is restored from the replica alone is read at every
epoch. Afterwards shipping continues until the replica is level.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from faults.faults import Crash, FaultyFiles, Phase
from internals import checkpoint_now, log_of, merge_trace, traces_of
from soak import tried

import nosync_nb
from nosync_nb import Session, TimeError
from nosync_nb.files.filesystem import Files
from nosync_nb.session.durability import replication
from nosync_nb.session.state.worker import BackgroundWorker
from nosync_nb.store import store
from nosync_nb.store.log import writer
from nosync_nb.store.replication import config
from nosync_nb.store.replication.agent.log_source import LogSource
from nosync_nb.store.replication.agent.shipper import Shipper
from nosync_nb.store.replication.backends.folder import FolderReplica
from nosync_nb.store.replication.protocol import LogName
from nosync_nb.store.replication.restore import restore

pytestmark = [pytest.mark.usefixtures("own_key", "single_threaded", "no_disk")]

Rows = list[tuple[int, ...]]


def fail_to_start(*_: Any) -> Any:
    raise OSError("none is asked for")


@pytest.fixture
def single_threaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs nothing in the background, and makes small files and segments."""
    monkeypatch.setattr(replication, "start_keeper", fail_to_start)
    monkeypatch.setattr(BackgroundWorker, "submit", lambda *_, **__: False)
    monkeypatch.setattr(store, "SPILL_BYTES", 200)
    monkeypatch.setattr(store, "SETTLED_BYTES", 100)
    monkeypatch.setattr(writer, "SEGMENT_BYTES_MAX", 2048)
    monkeypatch.setattr("nosync_nb.trace.compaction.YOUNG_ROWS", 2)


class Contents(NamedTuple):
    """The contents of a log: its last epoch, and the rows at each readable epoch."""

    now: int
    rows: dict[int, tuple[Rows, Rows]]

    def within(self, other: Contents) -> bool:
        """Returns True if all rows equal those of the other contents, up to the same epoch."""
        same = all(other.rows.get(at) in (rows, None) for at, rows in self.rows.items())
        return self.now == other.now and same


def contents_of(session: Session) -> Contents:
    readable = [epoch for some in session["data"].history() for epoch in some]
    assert readable == [epoch for some in session["sums"].history() for epoch in some]
    for at in {*range(session.now + 1)} - {*readable}:
        with pytest.raises(TimeError):
            session["data"].rows(at=at)

    def rows(name: str, at: int) -> Rows:
        return sorted(map(tuple, session[name].rows(at=at)))

    return Contents(session.now, {at: (rows("data", at), rows("sums", at)) for at in readable})


def commit(session: Session, *, shift: int = 0) -> None:
    i = session.now + 1
    session.inputs["data"].insert([(i % 3, i + shift), (i % 3, 7)])
    if i > 4:
        session.inputs["data"].remove([((i - 4) % 3, 7)])
    session.commit()


def merge_and_checkpoint(session: Session) -> None:
    for number in list(traces_of(session)):
        merge_trace(session, number)
    checkpoint_now(session)


def prepare_log(path: Path) -> Session:
    session = nosync_nb.open(path)
    data = session.input("data", "k int, v int")
    session.stage("sums", data.group_by("k").agg(n="count(*)", total="sum(v)"))
    for _ in range(40):
        commit(session)
        if session.now % 8 == 0:
            merge_and_checkpoint(session)
    return session


def rewind_and_commit(session: Session, to: int) -> None:
    session.rewind(to=to)
    commit(session, shift=100)


def shorten_retention(session: Session) -> None:
    """Shortens the retention; the third checkpoint deletes the files of the past."""
    session.retain = 2
    for _ in range(3):
        commit(session)
        merge_and_checkpoint(session)


ACTS: dict[str, Callable[[Session], None]] = {
    "goes back a little": lambda session: rewind_and_commit(session, 39),
    "goes back behind its checkpoint": lambda session: rewind_and_commit(session, 21),
    "goes back twice": lambda session: (
        rewind_and_commit(session, 30),
        rewind_and_commit(session, 12),
    )[0],
    "lets its past go": shorten_retention,
}


def shipper_of(session: Session, root: Path, files: Files | None = None) -> Shipper:
    log = log_of(session)
    source = LogSource(session.path, log.generation)
    root.mkdir(exist_ok=True)
    replica = FolderReplica(str(root), source.log_id, files=files)
    name = LogName(session.path, config.config_signer(Files()))
    return Shipper(source, replica, name, lambda vote: None)


def ship(shipper: Shipper) -> None:
    while shipper.ship():
        pass


def restore_from(replica: Path, path: str) -> Contents | None:
    """Restores a log from its replica alone; returns None if the replica acknowledged nothing."""
    root, lost = replica.with_name("aside"), Path(f"{path}.lost")
    shutil.copytree(replica, root)
    Path(path).rename(lost)
    try:
        settings = config.checked_config([root.as_uri()], None, log=path)
        if restore.restore_log(path, settings) is None:
            return None
        with nosync_nb.open(path, takeover=True) as session:
            read = contents_of(session)
            commit(session)  # operator state is restored as well
            after = contents_of(session)
            assert after.now == read.now + 1
            data, sums = after.rows[after.now]
            groups = {k: [v for g, v in data if g == k] for k, _ in data}
            assert sums == sorted((k, len(some), sum(some)) for k, some in groups.items())
            return read
    except restore.QuorumUnavailableError as missing:
        if "it has acknowledged nothing" not in str(missing):
            raise
        return None
    finally:
        shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(root)
        lost.rename(path)


class CrashingShipper:
    """Ships to a replica that crashes at each step, and restores from it."""

    def __init__(self, session: Session, level: Path, phase: Phase, *, power: bool) -> None:
        self.session, self.level, self.phase, self.power = session, level, phase, power
        self.root = level.with_name("replica")

    def steps(self) -> int:
        disk = self.begun(0)
        before = len(disk.steps)
        ship(shipper_of(self.session, self.root, disk))
        return len(disk.steps) - before

    def begun(self, seed: int) -> FaultyFiles:
        shutil.rmtree(self.root, ignore_errors=True)
        if self.level.exists():
            shutil.copytree(self.level, self.root)
        return FaultyFiles(seed=seed)

    def found(self, at: int) -> Contents | None:
        """Returns the contents after a crash at a step, and then ships the rest."""
        disk = self.begun(at)
        shipper = shipper_of(self.session, self.root, disk)
        disk.crash_in(at, self.phase)
        with pytest.raises(Crash):
            ship(shipper)
        if self.power:
            disk.lose_power(str(self.root))
        disk.go_on()
        read = restore_from(self.root, self.session.path)
        ship(shipper_of(self.session, self.root))
        return read


@pytest.mark.fault(27, 33)
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize(
    ("phase", "power"), [("before", False), ("inside", False), ("after", False), ("after", True)]
)
def test_crash_in_shipping_leaves_the_state_before_or_after(
    tmp_path: Path, act: str, phase: Phase, power: bool
) -> None:
    level = tmp_path / "level"
    with prepare_log(tmp_path / "log") as session:
        session.sync()
        ship(shipper_of(session, level))
        before = contents_of(session)
        ACTS[act](session)
        session.sync()
        after = contents_of(session)
        assert before != after
        cut = CrashingShipper(session, level, phase, power=power)
        steps, found = cut.steps(), set()
        assert steps > 5
        for at in range(1, steps + 1, tried(3, 1)):
            read = cut.found(at)
            assert read is not None, at
            found.add(kind_of(read, before, after, at))
        last = restore_from(cut.root, session.path)
        assert last is not None
        assert kind_of(last, before, after, steps) == "after"
        assert "before" in found


def kind_of(read: Contents, before: Contents, after: Contents, at: int) -> str:
    """Returns "before", "after", or "between" two frames of the act."""
    for epoch, rows in read.rows.items():
        assert rows in (before.rows.get(epoch), after.rows.get(epoch)), (at, epoch)
    if read.within(before):
        return "before"
    return "after" if read.within(after) else "between"


@pytest.mark.fault(27, 33)
@pytest.mark.parametrize("phase", ["before", "inside", "after"])
def test_crash_in_shipping_a_branch_leaves_all_or_nothing(tmp_path: Path, phase: Phase) -> None:
    with prepare_log(tmp_path / "log") as parent:
        branch = parent.branch("what_if", at=21)
        commit(branch, shift=100)
        branch.sync()
        whole = contents_of(branch)
        cut = CrashingShipper(branch, tmp_path / "nothing", phase, power=False)
        steps, found = cut.steps(), []
        for at in range(1, steps + 1):
            read = cut.found(at)
            found.append(read)
            assert read is None or read.within(whole), at
        assert restore_from(cut.root, branch.path) == whole
        assert None in found
        branch.close()
