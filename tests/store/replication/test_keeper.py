"""The keeper and its owner: the owner file decides if the owner is alive."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from io import FileIO
from pathlib import Path

import pytest

from nosync_nb.files.filesystem import Files
from nosync_nb.store.log import owner
from nosync_nb.store.log.owner import HostIdentity, LastWriter, LogOwner
from nosync_nb.store.replication.agent import keeper

WAIT_S = 60.0


def write_live_owner(folder: Path) -> LogOwner:
    """Writes this process as the owner."""
    own = LogOwner(
        HostIdentity().identity(),
        3,
        0,
        "pytest",
        0,
        closed=False,
        released=False,
        wrote=LastWriter(),
    )
    owner.write_owner(Files(), str(folder), own)
    return own


def released(folder: Path) -> None:
    owner.write_owner(Files(), str(folder), write_live_owner(folder)._replace(released=True))


def replaced(folder: Path) -> None:
    owner.write_owner(Files(), str(folder), write_live_owner(folder)._replace(generation=4))


def gone(folder: Path) -> None:
    write_live_owner(folder)
    (folder / "owner").unlink()


@pytest.mark.fault(24, 26)
@pytest.mark.parametrize("end", [released, replaced, gone])
def test_keeper_does_not_wait_for_ended_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: Callable[[Path], None]
) -> None:
    """A child of the owner may hold the other end of the pipe."""
    monkeypatch.setattr(keeper, "_LOOK_S", 0.01)
    read, write = os.pipe()
    alive: list[bool] = []
    with FileIO(read) as news:

        def ask() -> None:
            alive.append(keeper.owner_is_alive(Files(), str(tmp_path), 3, news))

        write_live_owner(tmp_path)
        os.write(write, b"!")
        ask()
        assert alive == [True]
        end(tmp_path)
        waiting = threading.Thread(target=ask)
        waiting.start()
        waiting.join(WAIT_S)
        try:
            assert alive == [True, False]
        finally:
            os.close(write)
            waiting.join()
