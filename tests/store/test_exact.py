"""Exact prefixes, kept up while stages come, go and are written: the same as the plain version."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nosync_nb.store.durability.recovery_frontier import (
    UNBOUNDED,
    FailureClass,
    FrontierNode,
    Prefixes,
    surviving_epochs,
)
from nosync_nb.store.exact import ExactPrefixes


def both(upper: int) -> Prefixes:
    return Prefixes(upper, upper, upper)


def swept(nodes: dict[str, FrontierNode], failure: FailureClass) -> dict[str, int]:
    """The greatest solution by its definition: from above, until no equation lowers anything."""
    exact = dict.fromkeys(nodes, UNBOUNDED)
    while True:
        lowered = {
            name: min([node.own(failure), *(exact[q] for q in node.inputs)])
            for name, node in nodes.items()
        }
        if lowered == exact:
            return exact
        exact = lowered


def vertex(pick: Random, names: list[str]) -> FrontierNode:
    """A stage that reads any others, itself and later ones too."""
    inputs = pick.sample(names, min(len(names), pick.randrange(4)))
    logged, kept = (pick.choice([*range(6), UNBOUNDED]) for _ in range(2))
    defined = both(pick.choice([UNBOUNDED, UNBOUNDED, pick.randrange(6)]))
    drawn = pick.random() < 0.6, both(kept), pick.randrange(4), defined
    return FrontierNode(tuple(inputs), both(logged), *drawn)


def held(moving: ExactPrefixes, nodes: dict[str, FrontierNode]) -> None:
    """Asserts that what is kept up is what both plain versions give."""
    exact = swept(nodes, FailureClass.POWER)
    assert dict(moving.exact()) == exact
    found = surviving_epochs(nodes, FailureClass.POWER)
    assert {name: moving.survival(name) for name in nodes} == found


@settings(max_examples=12 * settings.default.max_examples)
@given(st.integers(0, 2**32))
def test_what_is_kept_up_is_the_greatest_solution_after_each_change(seed: int) -> None:
    pick = Random(seed)
    names = [f"s{i}" for i in range(pick.randrange(1, 9))]
    nodes = {name: vertex(pick, names) for name in names}
    moving = ExactPrefixes(FailureClass.POWER)
    moving.move(nodes)
    held(moving, nodes)
    for turn in range(4):
        names = [*nodes, f"n{turn}"]
        changed: dict[str, FrontierNode | None] = {
            name: vertex(pick, names)
            for name in {names[-1], *pick.sample(names, min(2, len(names)))}
        }
        there = {**nodes, **changed}
        read = {q for node in there.values() if node is not None for q in node.inputs}
        changed.update(dict.fromkeys(name for name in nodes if name not in read))
        nodes = {name: node for name, node in {**nodes, **changed}.items() if node is not None}
        moving.move(changed)
        held(moving, nodes)


def chains(lengths: int, count: int) -> dict[str, FrontierNode]:
    """Inputs of their own, each with a chain of determinate stages."""
    nodes = {}
    for chain in range(count):
        nodes[f"{chain}-0"] = FrontierNode((), both(3))
        for place in range(1, lengths):
            nodes[f"{chain}-{place}"] = FrontierNode((f"{chain}-{place - 1}",), both(3))
    return nodes


@pytest.mark.parametrize("count", [4, 64])
def test_a_change_costs_what_it_moves(count: int) -> None:
    moving = ExactPrefixes(FailureClass.DISK)
    moving.move(chains(10, count))
    before = moving.visits
    moving.move({"0-9": FrontierNode(("0-8",), both(9))})  # bounded by what it reads
    assert moving.visits == before
    moving.move({"0-0": FrontierNode((), both(7))})  # rises, with all that reads it
    assert moving.visits == before + 10
    assert moving.exact()["0-9"] == 7
    assert moving.exact()["1-9"] == 3
    before = moving.visits
    moving.move(
        {"0-5": FrontierNode(("0-4",), both(2), determinate=False)}
    )  # falls, with four more
    assert moving.visits == before + 5
    assert moving.exact()["0-4"] == 7
    assert moving.exact()["0-9"] == 2
    moving.move({"2-1": FrontierNode(("2-0",), both(1), determinate=False)})
    before = moving.visits
    moving.move(
        {"2-0": FrontierNode((), both(7))}
    )  # rises alone: it was not what bounds its reader
    assert moving.visits == before + 1


def test_a_loop_is_bounded_by_what_enters_it_not_by_itself() -> None:
    moving = ExactPrefixes(FailureClass.KERNEL)
    loop = {"in": FrontierNode((), both(2)), "a": FrontierNode(("in", "b"), both(0))}
    moving.move({**loop, "b": FrontierNode(("a",), both(0))})
    assert dict(moving.exact()) == {"in": 2, "a": 2, "b": 2}
    moving.move({"in": FrontierNode((), both(5))})
    assert dict(moving.exact()) == {"in": 5, "a": 5, "b": 5}
    moving.move({"in": FrontierNode((), both(1))})
    assert dict(moving.exact()) == {"in": 1, "a": 1, "b": 1}
