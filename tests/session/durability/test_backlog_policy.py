"""The replication backlog: beyond its limit, stages that can be recomputed are sent last."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from checks.sessions import past_rows
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
from nosync_nb.session.durability.backlog_policy import demotion_candidates
from nosync_nb.session.durability.replication import (
    ReplicaStatus,
    ReplicationService,
    demoted_stages,
)
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
    """Defines stages that can be recomputed at various costs, and some that cannot."""
    orders = session.input("orders", "customer int, amount int")
    few = session.stage("few", orders.filter("customer < 20").distinct())
    session.stage("over", few.filter("amount > 1").distinct())
    session.stage("totals", orders.group_by("customer").agg(total="sum(amount)"))
    session.stage("wanted", orders.filter("amount > 2").distinct(), persist=wanted_level(session))
    drawn = orders.map(lambda row: (row.customer, row.amount), "a int, b int")
    session.stage("drawn", drawn, nondeterministic=True)


def wanted_level(session: Session) -> str | None:
    """The level of a stage that is wanted on replicas: None if the log has no replicas."""
    return "replicas" if services_of(session).replication.settings.replicas else None


def feed(session: Session, epochs: int = 4, *, wait: Any = None) -> None:
    for _ in range(epochs):
        orders = session["orders"]
        orders.insert([(c, 10 * session.now + c) for c in range(30)])  # type: ignore[attr-defined]
        session.commit(wait=wait, timeout=WAIT_S if wait else None)
    session.sync()


def demote(session: Session, *names: str) -> None:
    owners = services_of(session)
    with owners.writer_lock.lock:
        owners.backlog_policy.scale_back(names)
    session.sync()


def require_replicas(session: Session) -> None:
    owners = services_of(session)
    with owners.writer_lock.lock:
        owners.backlog_policy.owe()
    session.sync()


def named_files(session: Session, name: str) -> set[str]:
    """The row files that the log references for a stage."""
    view = LogSource(session.path, log_of(session).generation).current_view()
    assert view is not None
    return files_with(session, name) & view.files.keys()


def demoted(session: Session) -> set[str]:
    return {*demoted_stages(catalog_of(session))}


def demoted_in_log(session: Session) -> list[set[str]]:
    """The stages that are demoted after each definition, according to the log."""
    store = store_of(session)
    frames = retained_frames(store.files, store.log.path, store.log.head)
    metas = [
        payloads.decode_payload(each.payload).meta
        for each in frames
        if each.kind in payloads.DEFINES
    ]
    return [{s["name"] for s in each["catalog"]["stages"] if "scaled" in s} for each in metas]


@pytest.fixture
def unreplicated(tmp_path: Path) -> Iterator[Session]:
    """A log without a keeper, which the tests ship themselves."""
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


def wait_until(session: Session, holds: Callable[[], bool]) -> None:
    """Waits until messages of the keeper satisfy a condition."""
    heard = services_of(session).replication.heard
    with heard:
        assert heard.wait_for(holds, WAIT_S), session.replicas.status()


@pytest.mark.parametrize("checkpointed", [False, True])
def test_demoted_stages_are_shipped_last_until_they_are_required_again(
    unreplicated: Session, tmp_path: Path, checkpointed: bool
) -> None:
    feed(unreplicated)
    shipper, replica = shipper_to(unreplicated, tmp_path / "r")
    demote(unreplicated, "few", "totals")
    if checkpointed:
        checkpoint_now(unreplicated)
    shipper.ship()
    last = named_files(unreplicated, "few") | named_files(unreplicated, "totals")
    arrived = replica.held().files.keys()
    assert last
    assert not last & arrived
    assert (
        named_files(unreplicated, "over")
        | named_files(unreplicated, "wanted")
        | named_files(unreplicated, "orders")
        <= arrived
    )
    assert shipper.acknowledged is not None
    assert shipper.acknowledged.seq == log_of(unreplicated).head.seq
    assert shipper.ship()
    assert len(replica.held().files.keys() - arrived) == 1
    require_replicas(unreplicated)
    (address,) = config.checked_config(
        [f"file://{tmp_path}/r"], None, log=unreplicated.path
    ).replicas
    (copy,) = comparison.verified_local_files(unreplicated.path, [address]).replicas
    assert (copy.state, copy.damage) == ("behind", ())
    shipper.ship()
    assert (
        named_files(unreplicated, "few") | named_files(unreplicated, "totals")
        <= replica.held().files.keys()
    )
    assert shipper.acknowledged.seq == log_of(unreplicated).head.seq
    for name in named_files(unreplicated, "few"):
        (file,) = Path(replica.folder).rglob(name)
        file.unlink()
    (copy,) = comparison.verified_local_files(unreplicated.path, [address]).replicas
    assert {each.file for each in copy.damage} == named_files(unreplicated, "few")


@pytest.mark.fault(33)
@pytest.mark.parametrize("checkpointed", [False, True])
def test_demoted_stages_are_recomputed_after_a_lost_disk(
    unreplicated: Session, tmp_path: Path, checkpointed: bool
) -> None:
    feed(unreplicated, 2)
    shipper, _ = shipper_to(unreplicated, tmp_path / "r")
    while shipper.ship():
        pass
    demote(unreplicated, "few", "over")
    feed(unreplicated, 2)
    if checkpointed:
        checkpoint_now(unreplicated)
    shipper.ship()
    names = ("orders", "few", "over", "totals", "wanted", "drawn")
    expected = {name: past_rows(unreplicated, name) for name in names}
    unreplicated.close()
    shutil.rmtree(unreplicated.path)
    with nosync_nb.open(unreplicated.path, replicas=[f"file://{tmp_path}/r"]) as again:
        (note,) = [note for note in again.recovery.notes if "replication backlog" in note]
        assert "few (after epoch 0), over (after epoch 0)" in note
        again["orders"].insert([(99, 7)])  # type: ignore[attr-defined]
        again.commit(wait="replicas", timeout=WAIT_S)
        ways = dict(again.recovery.stages)
        assert {ways.pop("few"), ways.pop("over")} <= {"extend", "recompute"}
        assert {*ways.values()} == {"read"}
        for name, each in expected.items():
            assert {e: rows for e, rows in past_rows(again, name).items() if e in each} == each
        wait_until(
            again, lambda: not demoted(again) and again.frontiers["few"].replicas == again.now
        )
        settle_background(again)


def test_frontier_of_a_demoted_stage_stops_and_others_continue(
    replicated: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    # without a known backlog the policy changes nothing
    monkeypatch.setattr(ReplicationService, "backlog", lambda self: None)
    feed(replicated, 3, wait="replicas")
    before = replicated.now
    demote(replicated, "few")
    assert replicated.frontiers["few"].replicas == before
    feed(replicated, 2, wait="replicas")
    now = replicated.now
    assert replicated.frontiers["few"] == (now, now, before)
    assert replicated.frontiers["over"].replicas == replicated.frontiers["orders"].replicas == now
    for stage in (None, "few", "over"):
        assert replicated.recovery_frontier("disk", stage=stage) == now
    require_replicas(replicated)
    assert replicated.frontiers["few"].replicas in (before, now)
    replicated.sync("replicas", timeout=WAIT_S)
    assert replicated.frontiers["few"].replicas == now


def test_backlog_demotes_the_cheapest_stages_until_it_has_fallen(
    replicated: Session, tmp_path: Path
) -> None:
    feed(replicated, wait="replicas")
    before, reported = replicated.now, []

    def lowered() -> set[str]:
        """The stages whose frontier on replicas is lower than reported before."""
        reported.append({name: each.replicas or 0 for name, each in replicated.frontiers.items()})
        return {n for n, most in reported[-1].items() if most < max(each[n] for each in reported)}

    (tmp_path / "r").rename(tmp_path / "away")
    (tmp_path / "r").write_text("")  # prevents a folder of that name
    replicated.backlog_bytes = 2000
    feed(replicated)
    everything = {"few", "over", "totals"}
    wait_until(replicated, lambda: not lowered() and demoted(replicated) == everything)
    steps = [after for before, after in pairwise(demoted_in_log(replicated)) if after != before]
    assert [len(each) for each in steps] == [1, 3]
    assert steps[0] == {"over"}
    assert replicated.frontiers["few"].replicas == before
    feed(replicated)
    (tmp_path / "r").unlink()
    (tmp_path / "away").rename(tmp_path / "r")
    replicated.sync("replicas", timeout=WAIT_S)
    wait_until(replicated, lambda: not lowered() and not demoted(replicated))
    replicated.backlog_bytes = None  # files of a later merge could exceed the limit as well
    settle_background(replicated)
    wait_until(replicated, lambda: not demoted(replicated))
    replicated.sync("replicas", timeout=WAIT_S)
    assert {each.replicas for each in replicated.frontiers.values()} == {replicated.now}
    (copy,) = replicated.replicas.status()
    assert (copy.behind_bytes, copy.last_bytes) == (0, 0)


def test_checkpoint_reduces_memory_and_backlog_of_superseded_changes(
    opened: Callable[..., Session], tmp_path: Path
) -> None:
    session = opened()
    define_prices(session)
    session.sync()
    settle_background(session)
    shipper, replica = shipper_to(session, tmp_path / "r")
    while shipper.ship():
        pass
    update_prices(session)
    (tmp_path / "r").rename(tmp_path / "away")
    (tmp_path / "r").write_text("")  # prevents a folder of that name
    with pytest.raises(DurabilityError):
        shipper.ship()
    backlog, memory = shipper.backlog_bytes, bytes_in_memory(session)
    publisher = services_of(session).publisher
    superseded = publisher.garbage.retired - publisher.store.history.files()
    expected = {name: past_rows(session, name) for name in ("prices", "cheap")}
    assert superseded
    checkpoint_now(session)
    with pytest.raises(DurabilityError):
        shipper.ship()
    assert shipper.backlog_bytes < backlog
    assert bytes_in_memory(session) < memory
    assert {name: past_rows(session, name) for name in expected} == expected
    (tmp_path / "r").unlink()
    (tmp_path / "away").rename(tmp_path / "r")
    sent = shipper.bytes_sent
    while shipper.ship():
        pass
    assert shipper.bytes_sent - sent < backlog
    assert not superseded & replica.held().files.keys()


def test_laggard_beyond_the_quorum_causes_a_checkpoint(tmp_path: Path) -> None:
    urls = [f"file://{tmp_path}/{name}" for name in ("r", "late")]
    with nosync_nb.open(tmp_path / "log", replicas=urls, quorum=1) as session:
        define_prices(session)
        wait_until(session, lambda: all(c.behind == 0 for c in copies(session)))
        (tmp_path / "late").rename(tmp_path / "away")
        (tmp_path / "late").write_text("")  # prevents a folder of that name
        before = session.stats["checkpoints"]
        update_prices(session)
        settle_background(session)
        assert session.stats["checkpoints"] == before
        session.backlog_bytes = 1
        update_prices(session)
        wait_until(session, lambda: session.stats["checkpoints"] > before)
        session.sync("replicas", timeout=WAIT_S)
        assert session.recovery_frontier("disk") == session.now


def copies(session: Session) -> list[ReplicaStatus]:
    return session.replicas.status()


def define_prices(session: Session) -> None:
    """Defines an input of which each epoch replaces all rows."""
    session.input("notes", "text int")
    prices = session.input("prices", "item int, price int", key="item")
    session.stage("cheap", prices.filter("price < 1900").distinct())
    update_prices(session)


def update_prices(session: Session) -> None:
    """Commits epochs that replace all prices, and waits for the merges."""
    prices = session.inputs["prices"]
    for _ in range(16):
        prices.upsert([(item, item + session.now) for item in range(1000)])
        session.inputs["notes"].insert([(each,) for each in range(9)])
        session.commit(wait="disk")
    settle_background(session)


def bytes_in_memory(session: Session) -> int:
    """The bytes of past changes that are in memory and not in files."""
    changes = [c for tail in tails_of(history_of(session)).values() for _, c in tail]
    batches = (
        c.data if isinstance(c, EncodedChange) else c
        for c in changes
        if not isinstance(c, FiledChange)
    )
    return sum(column.nbytes for batch in batches for column in batch.columns)


def test_stages_that_cannot_be_recomputed_are_never_demoted(opened: Callable[..., Session]) -> None:
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
    assert costs["few"] < costs["both"]  # its input is recomputed as well


def test_changed_or_rewound_stage_is_required_again(opened: Callable[..., Session]) -> None:
    session = opened()
    define(session)
    feed(session)
    demote(session, "few", "totals", "wanted")
    session.stage("few", session["orders"].filter("customer < 19").distinct())
    session.stage("over", session["few"].filter("amount > 1").distinct())
    assert demoted(session) == {"totals", "wanted"}
    session.stage("totals", session["orders"].group_by("customer").agg(total="sum(amount)"))
    assert demoted(session) == {"totals", "wanted"}  # unchanged
    session.rewind(to=2)
    assert demoted(session) == set()


def test_demotion_is_restored_after_a_restart(opened: Callable[..., Session]) -> None:
    session = opened()
    define(session)
    feed(session)
    demote(session, "totals")
    session.close()
    again = opened()
    assert demoted(again) == {"totals"}
    assert any("replication backlog" in note for note in again.recovery.notes)
    assert "totals (after epoch 0)" in str(again.recovery)
