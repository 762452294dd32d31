"""Interrupts of calls that change several places: all of them, or none.

An interrupt is raised at every opcode near one that changes the reported state, and at every k-th
of the others. The next call may have to complete an interrupted change, so it runs before a check.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faults.every_opcode import Struck, count, strike
from internals import services_of, store_of

import nosync_nb
from nosync_nb import Session
from nosync_nb.session.durability import replication as module
from nosync_nb.session.durability.replication import ReplicationService
from nosync_nb.store.replication import config
from nosync_nb.store.replication.config import ReplicaConfig, checked_config

NEAR, FAR = 12, 30

pytestmark = [
    pytest.mark.usefixtures("no_disk", "own_key"),
    pytest.mark.filterwarnings(
        "ignore::pytest.PytestUnraisableExceptionWarning"
    ),  # what is raised in a finalizer
]


def strike_each(
    fresh: Callable[[], tuple[Callable[[], Any], Callable[[], Any]]], name: str
) -> Iterator[tuple[Any, Any, Any]]:
    """Interrupts an act; yields the state before, after, and after each of the interrupts.

    Args:
        fresh: makes new objects; returns the act, and a function that reports the state.
    """
    for _ in range(2):  # a second call runs fewer opcodes
        act, says = fresh()
        before = says()
        opcodes, changed = count(act, says)
        after = says()
    assert before != after
    near = {at + i for at in changed for i in range(-NEAR, NEAR)}
    first = random.Random(name).randrange(1, max(2, opcodes // FAR))
    numbers = {*near, *range(first, opcodes, max(1, opcodes // FAR))}
    for at in sorted(number for number in numbers if 0 < number <= opcodes):
        act, says = fresh()
        strike(act, at, Struck())
        yield before, after, says()


class FakeKeeper:
    """Replaces a keeper process, and reports how many frames each replica has."""

    stdin = None

    def __init__(self, frames: dict[int, int]) -> None:
        reading, self._writing = os.pipe()
        self.stdout = os.fdopen(reading, "rb")
        for number, seq in frames.items():
            state = {
                "replica": number,
                "condition": "level",
                "seq": seq,
                "incarnation": str(number),
            }
            os.write(self._writing, json.dumps(state).encode() + b"\n")
        self.killed = False

    def kill(self) -> None:
        if not self.killed:
            self.killed = True
            os.close(self._writing)

    def wait(self) -> int:
        return -9


@pytest.fixture
def keepers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeKeeper]]:
    """The fake keepers in the order in which they were started."""
    started: list[FakeKeeper] = []

    def start(folder: str, _generation: int) -> subprocess.Popen[bytes]:
        settings = json.loads((Path(folder) / "replicas").read_bytes().splitlines()[0])
        started.append(FakeKeeper({n: 5 - n for n, _ in enumerate(settings["replicas"])}))
        return started[-1]  # type: ignore[return-value]

    monkeypatch.setattr(module, "start_keeper", start)
    monkeypatch.setattr(module, "_RETRY_S", 0.001)
    monkeypatch.setattr(module, "prepare_copy", lambda *_: None)
    yield started
    for each in started:
        each.kill()


@pytest.mark.fault(48)
def test_interrupted_change_of_replicas_is_the_old_or_the_new_setting(
    session: Session, tmp_path: Path, keepers: list[FakeKeeper]
) -> None:
    """Half a change would count the frames of one replica for another."""
    store = store_of(session)
    first = checked_config([f"file://{tmp_path}/r{i}" for i in range(3)], 2, log=session.path)
    second = checked_config([f"file://{tmp_path}/r{i}" for i in (2, 3)], 1, log=session.path)
    current: list[ReplicationService] = []

    def written_urls() -> list[str]:
        state: ReplicaConfig = config.read_config(store.files, store.path, store.log.id)
        return [each.url for each in state.replicas]

    def heard(service: ReplicationService, seqs: list[int]) -> bool:
        with service.heard:
            return service.heard.wait_for(
                lambda: [each.frame for each in service.status()] == seqs, 60
            )

    def fresh() -> tuple[Callable[[], Any], Callable[[], Any]]:
        for each in current:
            each.close()
            keepers[-1].kill()
        service = ReplicationService(
            services_of(session).publisher, services_of(session).subscriptions, ReplicaConfig()
        )
        current[:] = [service]
        service.change(first)
        assert heard(service, [5, 4, 3])

        def says() -> Any:
            urls = [each.url for each in service.settings.replicas]
            assert [each.url for each in service.status()] == urls
            return urls

        return lambda: service.change(second), says

    for before, after, found in strike_each(fresh, "replicas"):
        assert found in (before, after)
        assert found == written_urls()
        service = current[0]
        assert heard(service, [5, 4, 3] if found == before else [5, 4])
        service.change(second)
        assert heard(service, [5, 4])
        assert not keepers[-1].killed
        assert service.settings.without_former == second
    for each in current:
        each.close()


@pytest.mark.fault(48)
def test_interrupted_replacement_of_an_inspector_leaves_one(session: Session) -> None:
    """The first inspector was not removed, so one of the two must remain."""
    unnamed = session.input("numbers", "n int").filter("n > 1")
    listeners = services_of(session).subscriptions

    def fresh() -> tuple[Callable[[], Any], Callable[[], Any]]:
        done: list[None] = []
        unnamed.inspect(lambda *_: None)

        def act() -> None:
            unnamed.inspect(print)
            done.append(None)

        return act, lambda: (listeners.unnamed_inspectors, len(done))

    for _, _, (waiting, _) in strike_each(fresh, "inspect"):
        assert waiting == 1


@pytest.mark.fault(48)
def test_interrupted_watch_reports_committed_files_as_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    watched = []

    def fresh() -> tuple[Callable[[], Any], Callable[[], Any]]:
        for session, watch in watched:
            watch.stop()
            session.close()
        number = len(list(tmp_path.iterdir()))
        session = nosync_nb.open(tmp_path / f"log{number}")
        numbers = session.input("numbers", "n int")
        path = folder / "a.csv"
        path.write_text("m\n1\n")
        os.utime(path, (1000, 1000))
        with pytest.warns(UserWarning, match="was not loaded"):
            watch = nosync_nb.watch(folder / "*.csv", numbers, every=3600)
        path.write_text("n\n1\n")
        os.utime(path, (2000, 2000))
        watched[:] = [(session, watch)]
        return watch.look, lambda: (session.now, len(watch.loaded), "not loaded" in repr(watch))

    for before, after, found in strike_each(fresh, "watch"):
        assert found in (before, (1, 1, True), after)
        ((session, watch),) = watched
        watch.look()
        assert (session.now, watch.loaded, "not loaded" in repr(watch)) == (
            1, {str(folder / "a.csv"): 1}, False
        )  # fmt: skip
    for session, watch in watched:
        watch.stop()
        session.close()
