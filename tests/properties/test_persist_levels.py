"""Random durability levels: every acknowledged epoch is recovered.

The levels of stages change, and are demoted and restored at any moment. Their log is shipped to a
replica that fails at some call, and its disk is lost. Every acknowledged epoch is recovered, and
stages that require replication are read back, not recomputed.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from internals import (
    catalog_of,
    checkpoint_now,
    log_of,
    services_of,
    settle_background,
    snapshot_of,
)

import nosync_nb
from nosync_nb import Session
from nosync_nb.dataflow.stage import StageOptions
from nosync_nb.errors import DurabilityError
from nosync_nb.files.filesystem import Files
from nosync_nb.session.durability.backlog_policy import demotion_candidates
from nosync_nb.session.durability.replication import ReplicationService
from nosync_nb.store.replication import config
from nosync_nb.store.replication.agent.log_source import LogSource
from nosync_nb.store.replication.agent.shipper import Shipper
from nosync_nb.store.replication.backends.folder import FolderReplica
from nosync_nb.store.replication.protocol import LogName, OwnerTerm

pytestmark = pytest.mark.usefixtures("own_key", "large_from_ten_rows")

STAGES = ("totals", "over", "both", "few")
LEVELS = ("memory", "disk", "replicas")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("feed"), st.integers(1, 40)),
        st.tuples(st.just("ship"), st.integers(0, 12)),
        st.tuples(st.just("checkpoint"), st.just(0)),
        st.tuples(st.just("scale"), st.integers(0, 3)),
        st.tuples(st.sampled_from(STAGES), st.integers(1, 2)),
    ),
    min_size=2,
    max_size=10,
)


class Flaky(FolderReplica):
    """A replica that fails after a number of calls."""

    left = 1 << 30

    def _called(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise DurabilityError("it is gone")

    def store(self, term: OwnerTerm, name: str, offset: int, data: bytes, *, last: bool) -> None:
        self._called()
        super().store(term, name, offset, data, last=last)

    def append(self, term: OwnerTerm, name: str, offset: int, data: bytes) -> None:
        self._called()
        super().append(term, name, offset, data)

    def sync(self, term: OwnerTerm, seq: int | None) -> None:
        self._called()
        super().sync(term, seq)

    def takes(self, calls: int) -> None:
        """Fails after `calls` more calls."""
        self.left = calls


def define(session: Session, name: str, persist: str) -> None:
    """Defines a stage, or changes its durability level."""
    orders = session["orders"]
    if name == "totals":
        collection = orders.group_by("customer").agg(total="sum(amount)")
    elif name == "over":
        collection = session["totals"].filter("total > 20").distinct()
    elif name == "both":
        collection = session["totals"].join(orders, on="customer")
    else:
        collection = session["over"].group_by().agg(n="count(*)")
    # A session without replicas refuses persist="replicas" unless its check is bypassed.
    services_of(session).definitions.define_checked(
        {name: collection}, StageOptions(persist=persist)
    )


def rows_by_epoch(session: Session, name: str) -> dict[int, list[tuple[Any, ...]]]:
    """The rows of a collection at every readable epoch."""
    return {
        e: sorted(tuple(row) for row in session[name].rows(e))
        for each in session[name].history()
        for e in each
    }


class Shipped:
    """A session whose log the test ships, and the last acknowledged state."""

    def __init__(self, folder: Path, levels: list[str]) -> None:
        self.url = f"file://{folder}/r"
        (folder / "r").mkdir()
        self.session = nosync_nb.open(folder / "log")
        self.session.input("orders", "customer int, amount int")
        for name, level in zip(STAGES, levels, strict=True):
            define(self.session, name, level)
        log = log_of(self.session)
        source = LogSource(self.session.path, log.generation)
        self.replica = Flaky(str(folder / "r"), source.log_id)
        name = LogName(self.session.path, config.config_signer(Files()))
        self.shipper = Shipper(source, self.replica, name, lambda vote: None)
        self.expected: dict[str, dict[int, list[tuple[Any, ...]]]] = {}
        self.owed: set[str] = set()

    def step(self, what: str, how: int) -> None:
        session = self.session
        if what == "feed":
            session["orders"].insert([(c % 25, how + c) for c in range(how)])
            session.commit()
        elif what == "checkpoint":
            checkpoint_now(session)
        elif what == "ship":
            self.ship(how)
        elif what == "scale":
            self.scale(how)
        else:
            if not catalog_of(session)[what].in_memory or how == 2:
                define(session, what, LEVELS[how])

    def scale(self, most: int) -> None:
        """Demotes `most` stages; 0 restores all of them."""
        owners = services_of(self.session)
        with owners.writer_lock.lock:
            if most:
                owners.backlog_policy.scale_back(
                    sorted(demotion_candidates(snapshot_of(self.session)))[:most]
                )
            else:
                owners.backlog_policy.owe()

    def ship(self, calls: int) -> None:
        """Ships until the replica fails."""
        self.session.sync()
        self.replica.takes(calls)
        before = self.shipper.acknowledged
        with suppress(DurabilityError):
            while self.shipper.ship():
                pass
        known = self.shipper.acknowledged
        if known is not None and known != before:
            assert known.seq == log_of(self.session).head.seq
            self.expected = {n: rows_by_epoch(self.session, n) for n in ("orders", *STAGES)}
            catalog = catalog_of(self.session)
            self.owed = {n for n in self.expected if not catalog[n].on_disk}
            self.owed -= {n for n in self.expected if catalog[n].in_memory}


@pytest.fixture(autouse=True)
def no_shipping(monkeypatch: pytest.MonkeyPatch) -> None:
    """The restored session starts no keeper."""
    monkeypatch.setattr(ReplicationService, "start", lambda self: None)


@settings(max_examples=max(30, settings.default.max_examples))
@example(["replicas"] * 4, [("feed", 30), ("ship", 99), ("totals", 1), ("checkpoint", 0)])
@example(["disk"] * 4, [("feed", 30), ("checkpoint", 0), ("feed", 30), ("totals", 2)])
@example(["memory", "disk", "memory", "memory"], [("feed", 11)] * 3)
@example(["replicas"] * 4, [("feed", 30), ("ship", 99), ("scale", 2), ("feed", 31), ("ship", 5)])
@example(
    ["replicas"] * 4, [("feed", 30), ("scale", 3), ("checkpoint", 0), ("feed", 9), ("ship", 6)]
)
@given(st.lists(st.sampled_from(LEVELS), min_size=4, max_size=4), STEPS)
def test_acknowledged_epochs_return_after_lost_disk(
    levels: list[str], steps: list[tuple[str, int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shipped = Shipped(Path(folder), levels)
        with shipped.session:
            for what, how in (*steps, ("ship", 9)):
                shipped.step(what, how)
        path = shipped.session.path
        shutil.rmtree(path)
        if not shipped.expected:
            return
        with nosync_nb.open(path, replicas=[shipped.url]) as again:
            again["orders"].insert([(1, 1)])
            again.commit()
            for name, expected in shipped.expected.items():
                there = rows_by_epoch(again, name)
                assert expected.keys() <= there.keys()
                assert {e: there[e] for e in expected} == expected
            ran = {n for n, how in again.recovery.stages.items() if how != "read"}
            assert not ran & shipped.owed
            settle_background(again)
