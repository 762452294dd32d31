"""Simulated lives of a log with three replicas: every promise holds.

`NOSYNC_SEEDS` sets the number of lives, `NOSYNC_SEED` repeats one of them. The usual number
contains every action, fault and disk step, which each chunk asserts; `make soak` runs 100 000.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import pytest
from internals import asked_here
from machines.replica_world import ACTIONS, FAULTS, STEPS, World
from soak import tried

SEEDS = int(os.environ.get("NOSYNC_SEEDS", tried("2000", soak="100000")))
CHUNK = 200
LIFE_STEPS = 200
BROKEN_ONCE = (5177, 7796, 8312, 203233, 339948)
"""Lives beyond a usual run that once broke a promise, used a disk that was set aside, recreated a
copy for ever, or could not use a copy that was truncated inside its last frame."""


def run_lives(seeds: range) -> Counter[str]:
    """Runs some lives; returns the counts of their events."""
    did: Counter[str] = Counter()
    with asked_here():
        for seed in seeds:
            world = World(seed)
            try:
                world.run(LIFE_STEPS)
            except BaseException as error:
                error.add_note(
                    f"NOSYNC_SEED={seed}, after {sum(map(world.did.__getitem__, ACTIONS))} steps"
                )
                raise
            did += world.did
            world.log.close()
    return did


def seed_ranges() -> list[range]:
    """The seeds of this run in chunks; in each full one every kind of event occurs."""
    if one := os.environ.get("NOSYNC_SEED"):
        return [range(int(one), int(one) + 1)]
    return [range(first, min(SEEDS, first + CHUNK)) for first in range(0, SEEDS, CHUNK)]


@pytest.mark.slow
@pytest.mark.fault(1, 12, 16, 20, 24, 27, 29, 30, 31, 32, 33, 35, 42)
@pytest.mark.parametrize(
    "seeds", seed_ranges(), ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}"
)
def test_announced_epochs_survive_any_faults(
    seeds: range, record_property: Callable[[str, object], None]
) -> None:
    did = run_lives(seeds)
    record_property("lives", [len(seeds), dict(did)])
    if len(seeds) == CHUNK:
        expected = {*ACTIONS, *FAULTS, *(f"disk: {step}" for step in STEPS)}
        assert not expected - {what for what, count in did.items() if count}


@pytest.mark.parametrize("seed", BROKEN_ONCE)
def test_seeds_that_once_broke_a_promise_pass(seed: int) -> None:
    run_lives(range(seed, seed + 1))


def test_seed_determines_simulation() -> None:
    assert run_lives(range(3, 5)) == run_lives(range(3, 5)) != run_lives(range(5, 7))
