"""Simulated lives of a log with three replicas: every promise holds.

`NOSYNC_SEEDS` says how many lives are tried, `NOSYNC_SEED` tries one of them again. So many are a
slice in which every action, fault and step of a disk occurs, as each piece of it asserts; `make
soak` lives 100 000.
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
"""Lives beyond those of a usual run in which a promise was broken, or asked of a disk put aside, or
a copy that was made anew as it is told to was told so again, for ever, or one that was cut inside
the end of a frame was of no use."""


def lived(seeds: range) -> Counter[str]:
    """Lives some lives; returns what happened in them."""
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


def asked() -> list[range]:
    """The seeds of this run, in pieces; in each whole one everything happens that may."""
    if one := os.environ.get("NOSYNC_SEED"):
        return [range(int(one), int(one) + 1)]
    return [range(first, min(SEEDS, first + CHUNK)) for first in range(0, SEEDS, CHUNK)]


@pytest.mark.slow
@pytest.mark.fault(1, 12, 16, 20, 24, 27, 29, 30, 31, 32, 33, 35, 42)
@pytest.mark.parametrize("seeds", asked(), ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_announced_epochs_survive_any_faults(
    seeds: range, record_property: Callable[[str, object], None]
) -> None:
    did = lived(seeds)
    record_property("lives", [len(seeds), dict(did)])
    if len(seeds) == CHUNK:
        expected = {*ACTIONS, *FAULTS, *(f"disk: {step}" for step in STEPS)}
        assert not expected - {what for what, count in did.items() if count}


@pytest.mark.parametrize("seed", BROKEN_ONCE)
def test_seeds_that_once_broke_a_promise_pass(seed: int) -> None:
    lived(range(seed, seed + 1))


def test_seed_determines_simulation() -> None:
    assert lived(range(3, 5)) == lived(range(3, 5)) != lived(range(5, 7))
