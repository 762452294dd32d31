"""Crashes of a keeper while it ships: a replica has the state before, or after.

What is done: the log goes back, near or behind its checkpoint; less of its past is kept, and files
are deleted; it is a branch, and all of it is new. The replica dies at every step of its disk, or
loses its power there; the log's own disk is lost then, and what comes back from the replica alone
is read at every epoch. Shipping goes on where it ended, and the replica is level.
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

pytestmark = [pytest.mark.usefixtures("own_key", "small", "no_disk")]

Rows = list[tuple[int, ...]]


def not_started(*_: Any) -> Any:
    raise OSError("none is asked for")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing happens elsewhere, and little is a file or a segment already."""
    monkeypatch.setattr(replication, "start_keeper", not_started)
    monkeypatch.setattr(BackgroundWorker, "submit", lambda *_, **__: False)
    monkeypatch.setattr(store, "SPILL_BYTES", 200)
    monkeypatch.setattr(store, "SETTLED_BYTES", 100)
    monkeypatch.setattr(writer, "SEGMENT_BYTES_MAX", 2048)
    monkeypatch.setattr("nosync_nb.trace.compaction.YOUNG_ROWS", 2)


class Seen(NamedTuple):
    """What somebody reads of a log: its epoch, and the rows at each that can be read."""

    now: int
    rows: dict[int, tuple[Rows, Rows]]

    def within(self, other: Seen) -> bool:
        """Whether all of it is what the other one has there, with no more epochs."""
        same = all(other.rows.get(at) in (rows, None) for at, rows in self.rows.items())
        return self.now == other.now and same


def seen(session: Session) -> Seen:
    there = [epoch for some in session["data"].history() for epoch in some]
    assert there == [epoch for some in session["sums"].history() for epoch in some]
    for at in {*range(session.now + 1)} - {*there}:
        with pytest.raises(TimeError):
            session["data"].rows(at=at)

    def rows(name: str, at: int) -> Rows:
        return sorted(map(tuple, session[name].rows(at=at)))

    return Seen(session.now, {at: (rows("data", at), rows("sums", at)) for at in there})


def commit(session: Session, *, shift: int = 0) -> None:
    i = session.now + 1
    session.inputs["data"].insert([(i % 3, i + shift), (i % 3, 7)])
    if i > 4:
        session.inputs["data"].remove([((i - 4) % 3, 7)])
    session.commit()


def checkpoint(session: Session) -> None:
    for number in list(traces_of(session)):
        merge_trace(session, number)
    checkpoint_now(session)


def made(path: Path) -> Session:
    session = nosync_nb.open(path)
    data = session.input("data", "k int, v int")
    session.stage("sums", data.group_by("k").agg(n="count(*)", total="sum(v)"))
    for _ in range(40):
        commit(session)
        if session.now % 8 == 0:
            checkpoint(session)
    return session


def back(session: Session, to: int) -> None:
    session.rewind(to=to)
    commit(session, shift=100)


def forgets(session: Session) -> None:
    """Less of the past is kept; with the third checkpoint what it lay in is deleted."""
    session.retain = 2
    for _ in range(3):
        commit(session)
        checkpoint(session)


ACTS: dict[str, Callable[[Session], None]] = {
    "goes back a little": lambda session: back(session, 39),
    "goes back behind its checkpoint": lambda session: back(session, 21),
    "goes back twice": lambda session: (back(session, 30), back(session, 12))[0],
    "lets its past go": forgets,
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


def came_back(replica: Path, path: str) -> Seen | None:
    """What comes back of a log from its replica alone; None: it has acknowledged nothing."""
    root, lost = replica.with_name("aside"), Path(f"{path}.lost")
    shutil.copytree(replica, root)
    Path(path).rename(lost)
    try:
        told = config.checked_config([root.as_uri()], None, log=path)
        if restore.restore_log(path, told) is None:
            return None
        with nosync_nb.open(path, takeover=True) as session:
            read = seen(session)
            commit(session)  # what operators remember is there as well
            after = seen(session)
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


class Cut:
    """Ships to a replica that dies at each step, and sees what is there then."""

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

    def found(self, at: int) -> Seen | None:
        """What comes back if it dies at a step; then it is brought level."""
        disk = self.begun(at)
        shipper = shipper_of(self.session, self.root, disk)
        disk.crash_in(at, self.phase)
        with pytest.raises(Crash):
            ship(shipper)
        if self.power:
            disk.lose_power(str(self.root))
        disk.go_on()
        read = came_back(self.root, self.session.path)
        ship(shipper_of(self.session, self.root))
        return read


@pytest.mark.fault(27, 33)
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize(
    ("phase", "power"), [("before", False), ("inside", False), ("after", False), ("after", True)]
)
def test_a_replica_holds_what_was_before_or_what_is_after(
    tmp_path: Path, act: str, phase: Phase, power: bool
) -> None:
    level = tmp_path / "level"
    with made(tmp_path / "log") as session:
        session.sync()
        ship(shipper_of(session, level))
        before = seen(session)
        ACTS[act](session)
        session.sync()
        after = seen(session)
        assert before != after
        cut = Cut(session, level, phase, power=power)
        steps, found = cut.steps(), set()
        assert steps > 5
        for at in range(1, steps + 1, tried(3, 1)):
            read = cut.found(at)
            assert read is not None, at
            found.add(kind_of(read, before, after, at))
        last = came_back(cut.root, session.path)
        assert last is not None
        assert kind_of(last, before, after, steps) == "after"
        assert "before" in found


def kind_of(read: Seen, before: Seen, after: Seen, at: int) -> str:
    """Before, after, or between two frames of what was done, as the log itself was."""
    for epoch, rows in read.rows.items():
        assert rows in (before.rows.get(epoch), after.rows.get(epoch)), (at, epoch)
    if read.within(before):
        return "before"
    return "after" if read.within(after) else "between"


@pytest.mark.fault(27, 33)
@pytest.mark.parametrize("phase", ["before", "inside", "after"])
def test_a_branch_comes_back_from_a_replica_whole_or_not_at_all(
    tmp_path: Path, phase: Phase
) -> None:
    with made(tmp_path / "log") as parent:
        branch = parent.branch("what_if", at=21)
        commit(branch, shift=100)
        branch.sync()
        whole = seen(branch)
        cut = Cut(branch, tmp_path / "nothing", phase, power=False)
        steps, found = cut.steps(), []
        for at in range(1, steps + 1):
            read = cut.found(at)
            found.append(read)
            assert read is None or read.within(whole), at
        assert came_back(cut.root, branch.path) == whole
        assert None in found
        branch.close()
