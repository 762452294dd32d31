"""`frontiers` and `recovery_frontier`: what each class of failure would leave."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.faults import FaultyFiles, Step, on_disk
from internals import services_of

import nosync_nb
from nosync_nb import Session, StageError
from nosync_nb.store.store import Store


class UnsyncedDisk(FaultyFiles):
    """A disk that accepts writes and syncs nothing while it is `stuck`."""

    def __init__(self) -> None:
        super().__init__(error_at=self._error_at)
        self.stuck = False

    def _error_at(self, step: Step) -> int | None:
        return errno.EIO if self.stuck and step.action == "sync" else None


@pytest.fixture
def disk() -> UnsyncedDisk:
    return UnsyncedDisk()


@pytest.fixture
def session(
    disk: UnsyncedDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Session]:
    with monkeypatch.context() as patch:
        patch.setattr(Store, "open", on_disk(Store.open, disk))
        opened = nosync_nb.open(tmp_path / "log")
    with opened:
        edges = opened.input("edges", "src int, dst int")
        opened.stage("degrees", edges.group_by("src").agg(n="count(*)"))
        edges.insert([(1, 2), (1, 3)])
        opened.commit(wait="disk")
        yield opened
        disk.stuck = False


def frontiers(session: Session, stage: str | None = None) -> tuple[int, int, int]:
    """The epochs that each class of failure leaves."""
    kernel = session.recovery_frontier("kernel", stage=stage)
    power = session.recovery_frontier("power", stage=stage)
    return kernel, power, session.recovery_frontier("disk", stage=stage)


def add(session: Session, *rows: tuple[int, int]) -> None:
    session.inputs["edges"].insert(list(rows))
    session.commit()


def test_unsynced_definition_lowers_the_frontier_of_its_stage_alone(
    session: Session, disk: UnsyncedDisk
) -> None:
    assert frontiers(session) == frontiers(session, "degrees") == (1, 1, 0)
    disk.stuck = True
    session.stage("late", session["degrees"].filter("n > 1"))
    assert frontiers(session, "late") == (1, 0, 0)
    assert session.frontiers["late"] == (1, 0, None)
    assert frontiers(session, "degrees") == frontiers(session) == (1, 1, 0)
    add(session, (2, 3))
    assert frontiers(session) == frontiers(session, "degrees") == (2, 1, 0)
    disk.stuck = False
    session.sync()
    assert frontiers(session, "late") == frontiers(session) == (2, 2, 0)
    assert session.frontiers["late"] == (2, 2, None)


def test_renamed_stage_keeps_its_frontier_and_an_edited_one_starts_over(
    session: Session, disk: UnsyncedDisk
) -> None:
    disk.stuck = True
    session.rename("degrees", "counts")
    assert frontiers(session, "counts") == (1, 1, 0)
    session.stage("counts", session["edges"].group_by("dst").agg(n="count(*)"))
    assert frontiers(session, "counts") == (1, 0, 0)
    assert frontiers(session, "counts@1") == (1, 1, 0)
    assert frontiers(session) == (1, 1, 0)


def test_definition_offsets_are_restored_after_opening(
    session: Session, disk: UnsyncedDisk, tmp_path: Path
) -> None:
    session.stage("late", session["degrees"].filter("n > 1"))
    session.sync()
    with nosync_nb.open(tmp_path / "log", mode="r") as reader:
        assert frontiers(reader, "late") == (1, 1, 0)
        definitions = services_of(reader).publisher.defined
        assert definitions == services_of(session).publisher.defined
        assert len({each.frame for each in definitions.values()}) == 3


def test_synced_definition_raises_only_its_own_frontier(
    session: Session, disk: UnsyncedDisk
) -> None:
    for i in range(20):
        session.stage(f"s{i}", session["edges"].filter(f"src > {i}"))
    session.sync()
    for i in range(10):
        add(session, (i, i))
        session.sync()
        assert frontiers(session) == (i + 2, i + 2, 0)
    disk.stuck = True
    session.stage("late", session["s3"].filter("src > 7"))
    assert frontiers(session, "late") == (11, 0, 0)
    assert frontiers(session, "s3") == (11, 11, 0)
    disk.stuck = False
    session.sync()
    assert frontiers(session, "late") == (11, 11, 0)


def test_unknown_stage_or_failure_is_refused(session: Session) -> None:
    with pytest.raises(StageError, match="there is no stage or input 'degree'"):
        session.recovery_frontier("power", stage="degree")
    with pytest.raises(StageError, match="unknown kind of failure 'fire'"):
        session.recovery_frontier("fire")  # type: ignore[arg-type]


def test_stale_memory_stage_lowers_no_frontier(session: Session) -> None:
    session.define({"kept": session["edges"].filter("src > 0")}, persist="memory")
    add(session, (5, 5))
    session.define({"kept": session["edges"].filter("src > 1")})
    add(session, (6, 6))
    session.sync()
    assert session.recovery_frontier("power") == session.now
