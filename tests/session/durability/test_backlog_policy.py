"""The replication backlog: beyond its limit, stages that can be recomputed are sent last."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from internals import (
    catalog_of,
    checkpoint_now,
    files_with,
    history_of,
    log_of,
    services_of,
    settle_background,
    snapshot_of,
    store_of,
    tails_of,
)

import nosync_nb
from nosync_nb import Session
from nosync_nb.errors import DurabilityError
from nosync_nb.files.filesystem import Files
from nosync_nb.session.durability.backlog_policy import BacklogPolicy, demotion_candidates
from nosync_nb.session.durability.replication_lag import ReplicaStatus, demoted_stages
from nosync_nb.store.log.frame_index import retained_frames
from nosync_nb.store.records import payloads
from nosync_nb.store.replication import comparison, config
from nosync_nb.store.replication.agent.log_source import LogSource
from nosync_nb.store.replication.agent.shipper import Shipper
from nosync_nb.store.replication.backends.folder import FolderReplica
from nosync_nb.store.replication.protocol import LogName
from nosync_nb.trace.history.sections import EncodedChange, FiledChange

WAIT_S = 120.0

pytestmark = pytest.mark.usefixtures("own_key", "large_from_ten_rows")


def define(session: Session) -> None:
    """Three stages that can be had again, from fewer and from more rows, and three that cannot."""
    orders = session.input("orders", "customer int, amount int")
    few = session.stage("few", orders.filter("customer < 20").distinct())
    session.stage("over", few.filter("amount > 1").distinct())
    session.stage("totals", orders.group_by("customer").agg(total="sum(amount)"))
    session.stage("wanted", orders.filter("amount > 2").distinct(), persist=explicit(session))
    drawn = orders.map(lambda row: (row.customer, row.amount), "a int, b int")
    session.stage("drawn", drawn, nondeterministic=True)


def explicit(session: Session) -> str | None:
    """What a stage is said to be kept on that is wanted on replicas; a log has them, or not."""
    return "replicas" if services_of(session).replication.settings.replicas else None


def feed(session: Session, epochs: int = 4, *, wait: Any = None) -> None:
    for _ in range(epochs):
        orders = session["orders"]
        orders.insert([(c, 10 * session.now + c) for c in range(30)])  # type: ignore[attr-defined]
        session.commit(wait=wait, timeout=WAIT_S if wait else None)
    session.sync()


def scale_back(session: Session, *names: str) -> None:
    owners = services_of(session)
    with owners.gate.lock:
        owners.scaling.scale_back(names)
    session.sync()


def owe(session: Session) -> None:
    owners = services_of(session)
    with owners.gate.lock:
        owners.scaling.owe()
    session.sync()


def past(session: Session, name: str) -> dict[int, list[tuple[Any, ...]]]:
    """A stage at every epoch that it can be read at."""
    return {
        e: sorted(tuple(row) for row in session[name].rows(e))
        for each in session[name].history()
        for e in each
    }


def of(session: Session, name: str) -> set[str]:
    """The files of rows that the log names for a stage."""
    view = LogSource(session.path, log_of(session).generation).current_view()
    assert view is not None
    return files_with(session, name) & view.files.keys()


def scaled_now(session: Session) -> set[str]:
    return {*demoted_stages(catalog_of(session))}


def said(session: Session) -> list[set[str]]:
    """Which stages were scaled back after each definition, as the log says it."""
    store = store_of(session)
    frames = retained_frames(store.files, store.log.path, store.log.head)
    metas = [
        payloads.decode_payload(each.payload).meta
        for each in frames
        if each.kind in payloads.DEFINES
    ]
    return [{s["name"] for s in each["catalog"]["stages"] if "scaled" in s} for each in metas]


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Session]:
    """A log that has no keeper, and is shipped by hand."""
    with nosync_nb.open(tmp_path / "log") as session:
        define(session)
        yield session


@pytest.fixture
def replicated(tmp_path: Path) -> Iterator[Session]:
    """A log with a replica and a keeper."""
    with nosync_nb.open(tmp_path / "log", replicas=[f"file://{tmp_path}/r"]) as session:
        define(session)
        yield session


def shipper_to(session: Session, folder: Path) -> tuple[Shipper, FolderReplica]:
    source = LogSource(session.path, log_of(session).generation)
    folder.mkdir(exist_ok=True)
    replica = FolderReplica(str(folder), source.log_id)
    name = LogName(session.path, config.config_signer(Files()))
    return Shipper(source, replica, name, lambda vote: None), replica


def until(session: Session, holds: Callable[[], bool]) -> None:
    """Waits until what a keeper says makes something hold."""
    heard = services_of(session).replication.heard
    with heard:
        assert heard.wait_for(holds, WAIT_S), session.replicas.status()


@pytest.mark.parametrize("checkpointed", [False, True])
def test_what_is_scaled_back_is_sent_when_all_else_is_there_until_it_is_owed_again(
    alone: Session, tmp_path: Path, checkpointed: bool
) -> None:
    feed(alone)
    shipper, replica = shipper_to(alone, tmp_path / "r")
    scale_back(alone, "few", "totals")
    if checkpointed:
        checkpoint_now(alone)
    shipper.ship()
    last = of(alone, "few") | of(alone, "totals")
    held = replica.held().files.keys()
    assert last
    assert not last & held
    assert of(alone, "over") | of(alone, "wanted") | of(alone, "orders") <= held
    assert shipper.acknowledged is not None
    assert shipper.acknowledged.seq == log_of(alone).head.seq
    assert shipper.ship()
    assert len(replica.held().files.keys() - held) == 1
    owe(alone)
    (address,) = config.checked_config([f"file://{tmp_path}/r"], None, log=alone.path).replicas
    (copy,) = comparison.verified_local_files(alone.path, [address]).replicas
    assert (copy.state, copy.damage) == ("behind", ())
    shipper.ship()
    assert of(alone, "few") | of(alone, "totals") <= replica.held().files.keys()
    assert shipper.acknowledged.seq == log_of(alone).head.seq
    for name in of(alone, "few"):
        (file,) = Path(replica.folder).rglob(name)
        file.unlink()
    (copy,) = comparison.verified_local_files(alone.path, [address]).replicas
    assert {each.file for each in copy.damage} == of(alone, "few")


@pytest.mark.fault(33)
@pytest.mark.parametrize("checkpointed", [False, True])
def test_after_a_lost_disk_what_was_scaled_back_is_run_again_and_nothing_else(
    alone: Session, tmp_path: Path, checkpointed: bool
) -> None:
    feed(alone, 2)
    shipper, _ = shipper_to(alone, tmp_path / "r")
    while shipper.ship():
        pass
    scale_back(alone, "few", "over")
    feed(alone, 2)
    if checkpointed:
        checkpoint_now(alone)
    shipper.ship()
    names = ("orders", "few", "over", "totals", "wanted", "drawn")
    expected = {name: past(alone, name) for name in names}
    alone.close()
    shutil.rmtree(alone.path)
    with nosync_nb.open(alone.path, replicas=[f"file://{tmp_path}/r"]) as again:
        (note,) = [note for note in again.recovery.notes if "scaled back" in note]
        assert "few (after epoch 0), over (after epoch 0)" in note
        again["orders"].insert([(99, 7)])  # type: ignore[attr-defined]
        again.commit(wait="replicas", timeout=WAIT_S)
        ways = dict(again.recovery.stages)
        assert {ways.pop("few"), ways.pop("over")} <= {"extend", "recompute"}
        assert {*ways.values()} == {"read"}
        for name, each in expected.items():
            assert {e: rows for e, rows in past(again, name).items() if e in each} == each
        until(again, lambda: not scaled_now(again) and again.frontiers["few"].replicas == again.now)
        settle_background(again)


def test_frontiers_of_what_is_scaled_back_stay_and_those_of_the_others_go_on(
    replicated: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        BacklogPolicy, "submit_if_due", lambda self: None
    )  # it stays as it is said here
    feed(replicated, 3, wait="replicas")
    before = replicated.now
    scale_back(replicated, "few")
    assert replicated.frontiers["few"].replicas == before
    feed(replicated, 2, wait="replicas")
    now = replicated.now
    assert replicated.frontiers["few"] == (now, now, before)
    assert replicated.frontiers["over"].replicas == replicated.frontiers["orders"].replicas == now
    for stage in (None, "few", "over"):
        assert replicated.recovery_frontier("disk", stage=stage) == now
    owe(replicated)
    assert replicated.frontiers["few"].replicas in (before, now)
    replicated.sync("replicas", timeout=WAIT_S)
    assert replicated.frontiers["few"].replicas == now


def test_a_backlog_scales_back_what_is_had_again_by_the_fewest_rows_until_it_has_fallen(
    replicated: Session, tmp_path: Path
) -> None:
    feed(replicated, wait="replicas")
    before, told = replicated.now, []

    def fallen() -> set[str]:
        """The stages whose frontier on replicas is lower than somebody was told."""
        told.append({name: each.replicas or 0 for name, each in replicated.frontiers.items()})
        return {n for n, most in told[-1].items() if most < max(each[n] for each in told)}

    (tmp_path / "r").rename(tmp_path / "away")
    (tmp_path / "r").write_text("")  # nothing can be made there
    replicated.backlog_bytes = 2000
    feed(replicated)
    everything = {"few", "over", "totals"}
    until(replicated, lambda: not fallen() and scaled_now(replicated) == everything)
    steps = [after for before, after in pairwise(said(replicated)) if after != before]
    assert [len(each) for each in steps] == [1, 3]
    assert steps[0] == {"over"}
    assert replicated.frontiers["few"].replicas == before
    feed(replicated)
    (tmp_path / "r").unlink()
    (tmp_path / "away").rename(tmp_path / "r")
    replicated.sync("replicas", timeout=WAIT_S)
    until(replicated, lambda: not fallen() and not scaled_now(replicated))
    replicated.backlog_bytes = None  # files that a merge writes now may be such a backlog as well
    settle_background(replicated)
    until(replicated, lambda: not scaled_now(replicated))
    replicated.sync("replicas", timeout=WAIT_S)
    assert {each.replicas for each in replicated.frontiers.values()} == {replicated.now}
    (copy,) = replicated.replicas.status()
    assert (copy.behind_bytes, copy.last_bytes) == (0, 0)


def test_a_checkpoint_takes_from_memory_and_from_the_queue_of_a_laggard_what_it_promotes(
    opened: Callable[..., Session], tmp_path: Path
) -> None:
    session = opened()
    priced(session)
    session.sync()
    settle_background(session)
    shipper, replica = shipper_to(session, tmp_path / "r")
    while shipper.ship():
        pass
    reprice(session)
    (tmp_path / "r").rename(tmp_path / "away")
    (tmp_path / "r").write_text("")  # nothing can be made there
    with pytest.raises(DurabilityError):
        shipper.ship()
    lacks, remembers = shipper.backlog_bytes, in_memory(session)
    publisher = services_of(session).publisher
    superseded = publisher.garbage.retired - publisher.store.history.files()
    expected = {name: past(session, name) for name in ("prices", "cheap")}
    assert superseded
    checkpoint_now(session)
    with pytest.raises(DurabilityError):
        shipper.ship()
    assert shipper.backlog_bytes < lacks
    assert in_memory(session) < remembers
    assert {name: past(session, name) for name in expected} == expected
    (tmp_path / "r").unlink()
    (tmp_path / "away").rename(tmp_path / "r")
    sent = shipper.bytes_sent
    while shipper.ship():
        pass
    assert shipper.bytes_sent - sent < lacks
    assert not superseded & replica.held().files.keys()


def test_a_laggard_beyond_the_quorum_has_a_checkpoint_written(
    tmp_path: Path,
) -> None:
    urls = [f"file://{tmp_path}/{name}" for name in ("r", "late")]
    with nosync_nb.open(tmp_path / "log", replicas=urls, quorum=1) as session:
        priced(session)
        until(session, lambda: all(c.behind == 0 for c in copies(session)))
        (tmp_path / "late").rename(tmp_path / "away")
        (tmp_path / "late").write_text("")  # nothing can be made there
        before = session.stats["checkpoints"]
        reprice(session)
        settle_background(session)
        assert session.stats["checkpoints"] == before
        session.backlog_bytes = 1
        reprice(session)
        until(session, lambda: session.stats["checkpoints"] > before)
        session.sync("replicas", timeout=WAIT_S)
        assert session.recovery_frontier("disk") == session.now


def copies(session: Session) -> list[ReplicaStatus]:
    return session.replicas.status()


def priced(session: Session) -> None:
    """Something of which each epoch takes the place of the one before."""
    session.input("notes", "said int")
    prices = session.input("prices", "item int, price int", key="item")
    session.stage("cheap", prices.filter("price < 1900").distinct())
    reprice(session)


def reprice(session: Session) -> None:
    """Epochs that say other prices of everything; what can be merged is."""
    prices = session.inputs["prices"]
    for _ in range(16):
        prices.upsert([(item, item + session.now) for item in range(1000)])
        session.inputs["notes"].insert([(each,) for each in range(9)])
        session.commit(wait="disk")
    settle_background(session)


def in_memory(session: Session) -> int:
    """The bytes of changes that the past keeps in this process, and not in files."""
    changes = [c for tail in tails_of(history_of(session)).values() for _, c in tail]
    batches = (
        c.data if isinstance(c, EncodedChange) else c
        for c in changes
        if not isinstance(c, FiledChange)
    )
    return sum(column.nbytes for batch in batches for column in batch.columns)


def test_what_is_not_had_again_as_it_was_is_never_scaled_back(
    opened: Callable[..., Session],
) -> None:
    session = opened()
    define(session)
    memory = session["orders"].filter("amount > 3").distinct()
    session.stage("passing", memory, persist="memory")
    session.stage("after", session["passing"].filter("amount > 4").distinct())
    session.stage("disk", session["orders"].filter("amount > 5").distinct(), persist="disk")
    session.stage("both", session["disk"].filter("amount > 6").distinct())
    session.stage("small", session["orders"].group_by().agg(n="count(*)"))
    feed(session)
    costs = demotion_candidates(snapshot_of(session))
    assert costs.keys() == {"few", "over", "totals", "wanted", "both"}
    assert costs["few"] < costs["both"]  # which is run after what it reads


def test_what_is_stopped_changed_or_wanted_is_owed_again(opened: Callable[..., Session]) -> None:
    session = opened()
    define(session)
    feed(session)
    scale_back(session, "few", "totals", "wanted")
    session.stage("few", session["orders"].filter("customer < 19").distinct())
    session.stage("over", session["few"].filter("amount > 1").distinct())
    assert scaled_now(session) == {"totals", "wanted"}
    session.stage("totals", session["orders"].group_by("customer").agg(total="sum(amount)"))
    assert scaled_now(session) == {"totals", "wanted"}  # it is as it was
    session.rewind(to=2)
    assert scaled_now(session) == set()


def test_what_is_scaled_back_is_so_after_a_restart(opened: Callable[..., Session]) -> None:
    session = opened()
    define(session)
    feed(session)
    scale_back(session, "totals")
    session.close()
    again = opened()
    assert scaled_now(again) == {"totals"}
    assert any("scaled back" in note for note in again.recovery.notes)
    assert "totals (after epoch 0)" in str(again.recovery)
