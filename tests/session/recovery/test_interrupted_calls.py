"""Interrupts of calls that change several places: all of them, or none.

Struck is every opcode near one at which what an owner says changes, and every k-th of the others.
What the next entrance brings to an end may be half done; it is entered before anything is asked.
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


def struck(
    fresh: Callable[[], tuple[Callable[[], Any], Callable[[], Any]]], name: str
) -> Iterator[tuple[Any, Any, Any]]:
    """Strikes an act; yields what is said before, after, and after each of the strikes.

    Args:
        fresh: makes something new; gives what is struck, and what says how it is then.
    """
    for _ in range(2):  # what was done once is done with fewer opcodes
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


class Keeper:
    """Passes for a keeper's process, and says which replicas have how many frames."""

    stdin = None

    def __init__(self, frames: dict[int, int]) -> None:
        reading, self._writing = os.pipe()
        self.stdout = os.fdopen(reading, "rb")
        for number, seq in frames.items():
            said = {"replica": number, "condition": "level", "seq": seq, "incarnation": str(number)}
            os.write(self._writing, json.dumps(said).encode() + b"\n")
        self.killed = False

    def kill(self) -> None:
        if not self.killed:
            self.killed = True
            os.close(self._writing)

    def wait(self) -> int:
        return -9


@pytest.fixture
def keepers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Keeper]]:
    """What passed for keepers, in the order in which they were started."""
    started: list[Keeper] = []

    def start(folder: str, _generation: int) -> subprocess.Popen[bytes]:
        settings = json.loads((Path(folder) / "replicas").read_bytes().splitlines()[0])
        started.append(Keeper({n: 5 - n for n, _ in enumerate(settings["replicas"])}))
        return started[-1]  # type: ignore[return-value]

    monkeypatch.setattr(module, "start_keeper", start)
    monkeypatch.setattr(module, "_RETRY_S", 0.001)
    monkeypatch.setattr(module, "prepare_copy", lambda *_: None)
    yield started
    for each in started:
        each.kill()


@pytest.mark.fault(48)
def test_other_replicas_are_those_that_are_written_wherever_a_change_is_interrupted(
    session: Session, tmp_path: Path, keepers: list[Keeper]
) -> None:
    """Half a change would take the frames of one replica for those of another."""
    store = store_of(session)
    first = checked_config([f"file://{tmp_path}/r{i}" for i in range(3)], 2, log=session.path)
    second = checked_config([f"file://{tmp_path}/r{i}" for i in (2, 3)], 1, log=session.path)
    current: list[ReplicationService] = []

    def written() -> list[str]:
        said: ReplicaConfig = config.read_config(store.files, store.path, store.log.id)
        return [each.url for each in said.replicas]

    def heard(replication: ReplicationService, seqs: list[int]) -> bool:
        with replication.heard:
            return replication.heard.wait_for(
                lambda: [each.frame for each in replication.status()] == seqs, 60
            )

    def fresh() -> tuple[Callable[[], Any], Callable[[], Any]]:
        for each in current:
            each.close()
            keepers[-1].kill()
        replication = ReplicationService(
            services_of(session).publisher,
            ReplicaConfig(),
            lambda _: None,
            lambda: None,
            lambda: None,
        )
        current[:] = [replication]
        replication.change(first)
        assert heard(replication, [5, 4, 3])

        def says() -> Any:
            urls = [each.url for each in replication.settings.replicas]
            assert [each.url for each in replication.status()] == urls
            return urls

        return lambda: replication.change(second), says

    for before, after, found in struck(fresh, "replicas"):
        assert found in (before, after)
        assert found == written()
        replication = current[0]
        assert heard(replication, [5, 4, 3] if found == before else [5, 4])
        replication.change(second)
        assert heard(replication, [5, 4])
        assert not keepers[-1].killed
        assert replication.settings.without_former == second
    for each in current:
        each.close()


@pytest.mark.fault(48)
def test_an_inspector_that_replaces_another_is_the_one_or_the_other(session: Session) -> None:
    """Not nobody: the one before was asked for, and nobody took it away."""
    unnamed = session.input("numbers", "n int").filter("n > 1")
    listeners = services_of(session).listeners

    def fresh() -> tuple[Callable[[], Any], Callable[[], Any]]:
        done: list[None] = []
        unnamed.inspect(lambda *_: None)

        def act() -> None:
            unnamed.inspect(print)
            done.append(None)

        return act, lambda: (listeners.unnamed_inspectors, len(done))

    for _, _, (waiting, _) in struck(fresh, "inspect"):
        assert waiting == 1


@pytest.mark.fault(48)
def test_a_file_that_is_an_epoch_is_told_as_loaded_wherever_its_watch_is_interrupted(
    tmp_path: Path,
) -> None:
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

    for before, after, found in struck(fresh, "watch"):
        assert found in (before, (1, 1, True), after)
        ((session, watch),) = watched
        watch.look()
        assert (session.now, watch.loaded, "not loaded" in repr(watch)) == (
            1, {str(folder / "a.csv"): 1}, False
        )  # fmt: skip
    for session, watch in watched:
        watch.stop()
        session.close()
