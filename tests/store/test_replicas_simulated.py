"""Lives of a log with three replicas, each decided by a seed: what was promised is there."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from replica_world import ACTIONS, World

SEEDS = int(os.environ.get("NOSYNC_SEEDS", "40"))
STEPS = 200


@pytest.mark.fault(1, 12, 16, 20, 24, 27, 29, 30, 31, 32, 33, 35)
@pytest.mark.usefixtures("no_disk")
def test_whatever_fails_what_was_announced_is_on_the_replicas(tmp_path: Path) -> None:
    did: Counter[str] = Counter()
    for seed in range(SEEDS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        world = World(folder, seed)
        try:
            world.run(STEPS)
        except BaseException as error:
            error.add_note(f"seed {seed}, after {sum(world.did.values())} steps")
            raise
        did += world.did
        world.log.close()
    assert {*ACTIONS, "undecided", "cut", "refused", "fenced", "old"} <= did.keys()
