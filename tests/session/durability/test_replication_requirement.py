"""The replication requirement of each level: an epoch waits for it, and the rest comes last."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checks.sessions import past_rows
from internals import catalog_of, checkpoint_now, files_with, log_of, settle_background

import nosync_nb
from nosync_nb import Session, StageError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.records import file_references
from nosync_nb.store.replication import comparison, config
from nosync_nb.store.replication.agent.log_source import LogSource
from nosync_nb.store.replication.agent.shipper import Shipper
from nosync_nb.store.replication.backends.folder import FolderReplica
from nosync_nb.store.replication.protocol import LogName

WAIT_S = 120.0


pytestmark = pytest.mark.usefixtures("own_key", "large_from_ten_rows")


@pytest.fixture
def session(session: Session) -> Session:
    """A log without replicas; the level of `local` is disk, that of `kept` the default."""
    define(session, "disk")
    return session


def define(session: Session, persist: str | None) -> None:
    orders = session.input("orders", "customer int, amount int")
    define_local(session, persist)
    session.stage("kept", orders.filter("amount > 1").distinct())


def define_local(session: Session, persist: str | None) -> None:
    """Defines `local` at a level."""
    totals = session["orders"].group_by("customer").agg(total="sum(amount)")
    session.stage("local", totals, persist=persist)


def feed(session: Session, epochs: int = 4) -> None:
    for epoch in range(epochs):
        session["orders"].insert([(c, 10 * epoch + c) for c in range(30)])
        session.commit()
    session.sync()


def shipper_to(session: Session, tmp_path: Path, **more: Any) -> tuple[Shipper, FolderReplica]:
    """Returns a shipper to a replica in a folder, for this thread."""
    source = LogSource(session.path, log_of(session).generation)
    folder = tmp_path / "r"
    folder.mkdir(exist_ok=True)
    replica = FolderReplica(str(folder), source.log_id)
    name = LogName(session.path, config.config_signer(Files()))
    return Shipper(source, replica, name, lambda why: None, **more), replica


def files_at(replica: FolderReplica) -> set[str]:
    """The row files that a replica has."""
    return {name for name in replica.held().files if name.endswith(".arrow")}


def local_files(session: Session) -> set[str]:
    """The files that the log references for the disk stage."""
    return named_files(session, "local")


def named_files(session: Session, name: str) -> set[str]:
    """The files that the log references for a collection, without those of unpublished merges."""
    log = log_of(session)
    view = LogSource(session.path, log.generation).current_view()
    assert view is not None
    return files_with(session, name) & view.files.keys()


@pytest.mark.parametrize("checkpointed", [False, True])
def test_disk_stage_is_shipped_after_everything_else(
    session: Session, tmp_path: Path, checkpointed: bool
) -> None:
    feed(session)
    if checkpointed:
        checkpoint_now(session)
    local = local_files(session)
    assert local
    head = log_of(session).head.seq
    progress: list[tuple[int, int]] = []

    def tell(shipper: Shipper) -> None:
        position = shipper.acknowledged
        progress.append((0 if position is None else position.seq, len(files_at(replica) & local)))

    shipper, replica = shipper_to(session, tmp_path, tell=tell)
    assert shipper.ship()
    assert shipper.acknowledged is not None
    assert shipper.acknowledged.seq == head
    assert named_files(session, "orders") | named_files(session, "kept") <= files_at(replica)
    assert not files_at(replica) & local
    session["orders"].insert([(1, 1)])
    session.commit(wait="disk")
    assert shipper.ship()  # required files are shipped first again
    assert not files_at(replica) & local
    while shipper.ship():
        pass
    assert local <= files_at(replica)
    assert shipper.last_bytes == 0
    assert {count for seq, count in progress if seq < head} == {0}


@pytest.mark.fault(33, 35)
@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("read_first", [None, "kept", "local"])
def test_disk_stage_is_recomputed_after_a_lost_disk_and_others_are_read(
    session: Session, tmp_path: Path, checkpointed: bool, read_first: str | None
) -> None:
    feed(session)
    if checkpointed:
        checkpoint_now(session)
        feed(session, 1)
    local = local_files(session)
    shipper, replica = shipper_to(session, tmp_path)
    shipper.ship()
    assert local
    assert not files_at(replica) & local
    expected = {name: past_rows(session, name) for name in ("orders", "kept", "local")}
    session.close()
    shutil.rmtree(session.path)
    url = f"file://{tmp_path}/r"
    with nosync_nb.open(session.path, replicas=[url]) as again:
        if read_first:
            found = past_rows(again, read_first)
            assert {e: rows for e, rows in found.items() if e in expected[read_first]} == (
                expected[read_first]
            )
        again["orders"].insert([(99, 7)])
        again.commit(wait="replicas", timeout=WAIT_S)
        assert again.recovery.stages["kept"] == "read"
        assert again.recovery.stages["local"] in ("recompute", "extend")
        for name, each in expected.items():
            assert {e: rows for e, rows in past_rows(again, name).items() if e in each} == each
        assert (99, 7) in [tuple(row) for row in again["local"].rows()]
        settle_background(again)


def test_replica_without_optional_files_is_behind_and_not_damaged(
    session: Session, tmp_path: Path
) -> None:
    feed(session)
    checkpoint_now(session)
    shipper, replica = shipper_to(session, tmp_path)
    shipper.ship()
    (address,) = config.checked_config([f"file://{tmp_path}/r"], None, log=session.path).replicas
    (copy,) = comparison.verified_local_files(session.path, [address]).replicas
    assert not copy.damage
    for name in named_files(session, "kept"):
        (file,) = Path(replica.folder).rglob(name)
        file.unlink()
    (copy,) = comparison.verified_local_files(session.path, [address]).replicas
    assert {each.file for each in copy.damage} <= files_with(session, "kept")
    assert copy.damage


@pytest.fixture
def replicated(tmp_path: Path) -> Iterator[Callable[[str | None], Session]]:
    """Opens a log with a replica and a keeper; `local` has the requested level."""
    sessions: list[Session] = []

    def opened(persist: str | None) -> Session:
        session = nosync_nb.open(tmp_path / "log", replicas=[f"file://{tmp_path}/r"])
        sessions.append(session)
        define(session, persist)
        feed(session)
        session.sync("replicas", timeout=WAIT_S)
        return session

    yield opened
    for session in sessions:
        session.close()


Replicated = Callable[[str | None], Session]


def test_frontier_of_a_disk_stage_on_replicas_is_zero(replicated: Replicated) -> None:
    session = replicated("disk")
    now = session.now
    assert session.frontiers["orders"].replicas == session.frontiers["kept"].replicas == now
    assert session.frontiers["local"] == (now, now, 0)
    for stage in (None, "local", "kept"):
        assert session.recovery_frontier("disk", stage=stage) == now


def test_disk_stage_can_move_to_replicas_and_not_back(replicated: Replicated) -> None:
    session = replicated("disk")
    local = local_files(session)
    define_local(session, "replicas")
    session.sync("replicas", timeout=WAIT_S)
    assert session.frontiers["local"].replicas == session.now
    assert local <= {path.name for path in Path(session.path).parent.joinpath("r").rglob("*")}
    with pytest.raises(
        StageError, match="persist cannot be lowered from 'replicas' to 'disk'"
    ) as caught:
        define_local(session, "disk")
    assert "session.drop('local')" in (caught.value.hint or "")
    assert session.frontiers["local"].replicas == session.now


def test_default_level_cannot_be_lowered_where_there_are_replicas(
    replicated: Replicated, tmp_path: Path
) -> None:
    session = replicated(None)
    assert session.frontiers["local"].replicas == session.now
    with pytest.raises(StageError, match="persist cannot be lowered from 'replicas' to 'disk'"):
        define_local(session, "disk")
    with nosync_nb.open(tmp_path / "alone") as alone:
        define(alone, None)
        define_local(alone, "disk")
        assert catalog_of(alone)["local"].on_disk


def test_stale_disk_stage_is_required_on_replicas(replicated: Replicated) -> None:
    session = replicated("disk")
    local = local_files(session)
    orders = session["orders"].group_by("customer").agg(total="max(amount)")
    session.stage("local", orders, persist="disk")
    session.sync("replicas", timeout=WAIT_S)
    assert session.frontiers["local@1"].replicas == session.now
    assert session.frontiers["local"].replicas == 0
    assert local <= {path.name for path in Path(session.path).parent.joinpath("r").rglob("*")}


def test_file_ships_last_if_only_optional_logs_reference_it() -> None:
    named = [{"a": {1}, "b": {1, 3}, "c": {1}}, {"a": {2}, "c": {3}, "d": {3}}]
    assert file_references.ships_last({1, 2}, named) == {"a"}
    assert file_references.ships_last({1, 2, 3}, named) == {"a", "b", "c", "d"}
    assert file_references.ships_last(set(), named) == set()


def test_nondeterministic_stage_is_required_on_replicas_at_any_level(
    session: Session, tmp_path: Path
) -> None:
    drawn = session["orders"].map(lambda row: (row.customer, row.amount), "a int, b int")
    session.stage("drawn", drawn, nondeterministic=True, persist="disk")
    feed(session)
    shipper, replica = shipper_to(session, tmp_path)
    shipper.ship()
    assert named_files(session, "drawn") <= files_at(replica)
    assert not files_at(replica) & local_files(session)
