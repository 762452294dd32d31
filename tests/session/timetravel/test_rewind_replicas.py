"""Rewinds and replicas: their later epochs are undone, and a lost log is restored after it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import nosync_nb
from nosync_nb import Session

WAIT_S = 60


pytestmark = pytest.mark.usefixtures("own_key")


def commit(session: Session) -> None:
    i = session.now + 1
    session.inputs["data"].insert([(i % 3, i)])
    session.commit()


def test_replica_follows_a_rewind_and_a_lost_log_is_restored(tmp_path: Path) -> None:
    folder, copy = tmp_path / "log", tmp_path / "copy"
    with nosync_nb.open(folder, replicas=[copy.as_uri()]) as session:
        data = session.input("data", "k int, v int")
        session.stage("sums", data.group_by("k").agg(n="count(*)", total="sum(v)"))
        for _ in range(8):
            commit(session)
        session.sync("replicas", timeout=WAIT_S)
        then = sorted(session["sums"].rows(at=5))
        (before,) = session.replicas.status()
        assert (before.epoch, before.state) == (8, "level")
        session.rewind(to=5)
        # Whatever the copy has received, it is not ahead of the session.
        assert session.replicas.status()[0].epoch <= 5
        assert session.recovery_frontier("disk") <= 5
        session.sync("replicas", timeout=WAIT_S)
        (after,) = session.replicas.status()
        assert (after.epoch, after.state) == (5, "level")
        assert session.recovery_frontier("disk") == 5
        commit(session)
        session.sync("replicas", timeout=WAIT_S)
        now = sorted(session["sums"].rows())
        verified = session.verify()
        assert not verified.damage
        # The checkpoint that a rewind requests, and its pack, may not be shipped yet.
        (held,) = verified.replicas
        assert (held.state in ("level", "behind"), held.damage) == (True, ())
    shutil.rmtree(folder)
    with nosync_nb.open(folder, replicas=[copy.as_uri()]) as again:
        assert again.now == 6
        assert sorted(again["sums"].rows()) == now
        assert sorted(again["sums"].rows(at=5)) == then
        commit(again)
        assert again.now == 7
