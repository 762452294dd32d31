"""Recovery frontiers: compared with simulated worlds."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nosync_nb.errors import TimeError
from nosync_nb.store.durability import UNBOUNDED, Frontier, FrontierNode, exact_uppers
from nosync_nb.trace.epoch_ranges import EpochRanges, Interval, check_readable, inclusive

LAST = 5  # epochs of the simulated worlds

intervals = st.builds(Interval, st.integers(0, 9), st.integers(0, 9))
sets = st.sets(st.integers(0, 12))


def test_frontiers_are_inclusive_and_epoch_0_is_complete() -> None:
    assert [inclusive(upper) for upper in (0, 1, 2, 8)] == [0, 0, 1, 7]
    assert Frontier(memory=7, disk=6, replicas=0) == (7, 6, 0)


@given(intervals, intervals)
def test_intervals_are_sets_of_epochs(one: Interval, other: Interval) -> None:
    def inside(interval: Interval) -> set[int]:
        return {epoch for epoch in range(12) if epoch in interval}

    assert inside(one) == set(range(one.lower, one.upper))
    assert one.is_empty == (not inside(one))
    assert inside(one.intersection(other)) == inside(one) & inside(other)
    assert str(Interval(3, 5)) == "[3, 5)"


@given(st.lists(st.integers(0, 9), min_size=1, unique=True).map(sorted))
def test_adjacent_intervals_merge(cuts: list[int]) -> None:
    parts = [Interval(a, b) for a, b in itertools.pairwise(cuts)]
    whole = Interval(cuts[0], cuts[-1])
    if parts:
        merged = parts[0]
        for part in parts[1:]:
            merged = merged.merged(part)
        assert merged == whole


@given(sets, sets, st.integers(-2, 14))
def test_epoch_ranges_are_sets(one: set[int], other: set[int], epoch: int) -> None:
    made = EpochRanges(one)
    assert list(made) == sorted(one)
    assert bool(made) == bool(one)
    assert all(a.stop < b.start for a, b in itertools.pairwise(made.ranges))
    assert made == EpochRanges.from_ranges(*(range(e, e + 1) for e in one))
    assert (epoch in made) == (epoch in one)
    assert list(made & EpochRanges(other)) == sorted(one & other)
    below = max((e for e in one if e <= epoch), default=None)
    above = min((e for e in one if e >= epoch), default=None)
    assert made.nearest(epoch) == (below, above)


def test_epoch_ranges_print_as_inclusive_ranges() -> None:
    assert str(EpochRanges.from_ranges(range(32, 41), range(8), range(16, 17))) == "0-7, 16, 32-40"
    assert str(EpochRanges()) == "none"
    assert hash(EpochRanges([1])) == hash(EpochRanges([1]))


def test_unreadable_epoch_error_names_neighbours() -> None:
    readable = EpochRanges.from_ranges(range(4), range(7, 10))
    check_readable("orders", 3, readable)
    with pytest.raises(TimeError, match="stage 'orders': epoch 5 is not readable, only 0-3, 7-9"):
        check_readable("orders", 5, readable)
    with pytest.raises(TimeError) as caught:
        check_readable("orders", 11, readable)
    assert caught.value.hint == "read at 9"


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, FrontierNode]:
    """Graphs of 2 to 7 stages; a third of the edges are feedback edges."""
    names = [f"s{i}" for i in range(draw(st.integers(2, 7)))]
    uppers = st.integers(0, LAST)
    nodes = {}
    for i, name in enumerate(names):
        near = draw(st.sets(st.sampled_from(names[:i]), max_size=3)) if i else set()
        back = draw(st.sets(st.sampled_from(names), max_size=1)) if near else set()
        nodes[name] = FrontierNode(
            tuple(sorted(near | back)),
            draw(uppers),
            draw(st.booleans()),
            draw(uppers | st.just(0)),
            draw(st.integers(0, LAST)),
            draw(uppers | st.just(UNBOUNDED)),
        )
    return nodes


World = dict[tuple[str, int], Any]


def new_tokens(nodes: Iterable[str], what: str) -> World:
    """A different token for each stage and epoch."""
    return {(name, epoch): (what, name, epoch) for name in nodes for epoch in range(LAST)}


def simulate(
    nodes: dict[str, FrontierNode], codes: World, dice: World, sources: World, known: dict[Any, int]
) -> World:
    """The value of every stage at every epoch: a function of its code, inputs, history and dice.

    Loops run for a fixed number of rounds. `known` numbers the values of all worlds: equal values
    have equal numbers.
    """
    values: World = {}
    for epoch in range(LAST):
        now: dict[str, Any] = dict.fromkeys(nodes)
        for turn in range(len(nodes) + 1):
            keys = {
                name: (
                    (name, epoch, turn, values.get((name, epoch - 1))),
                    tuple(now[q] for q in node.inputs),
                    sources[name, epoch] if not node.inputs else codes[name, epoch],
                    dice[name, epoch] if node.inputs and not node.determinate else None,
                )
                for name, node in nodes.items()
            }
            now = {name: known.setdefault(key, len(known)) for name, key in keys.items()}
        values.update({(name, epoch): value for name, value in now.items()})
    return values


def retained_or(lost: World, held: World, uppers: dict[str, int]) -> World:
    """The old values below each upper, and other values above it."""
    return {at: held[at] if at[1] < uppers[at[0]] else lost[at] for at in held}


def random_graph(pick: Random) -> dict[str, FrontierNode]:
    """A random graph of the same kind, uniformly drawn."""
    names = [f"s{i}" for i in range(pick.randrange(2, 8))]
    nodes = {}
    for i, name in enumerate(names):
        near = set(pick.sample(names[:i], pick.randrange(min(i, 3) + 1)))
        back = {pick.choice(names)} if near and pick.random() < 1 / 3 else set()
        logged, kept = (pick.randrange(LAST + 1) for _ in range(2))
        nodes[name] = FrontierNode(
            tuple(sorted(near | back)),
            logged,
            pick.random() < 0.5,
            kept if pick.random() < 0.5 else 0,
            pick.randrange(LAST + 1),
            pick.choice([UNBOUNDED, UNBOUNDED, UNBOUNDED, pick.randrange(LAST + 1)]),
        )
    return nodes


@pytest.mark.fault(35, 36)
@given(graphs())
def test_exact_uppers_are_consistent_exact_and_maximal(nodes: dict[str, FrontierNode]) -> None:
    check_uppers(nodes)


@settings(max_examples=12 * settings.default.max_examples)
@given(st.integers(0, 2**32))
def test_exact_uppers_hold_on_hundreds_of_graphs(seed: int) -> None:
    check_uppers(random_graph(Random(seed)))


def check_uppers(nodes: dict[str, FrontierNode]) -> None:
    """Asserts that the exact epochs are consistent with the world after a loss, and maximal."""
    found = exact_uppers(nodes)
    kept = {p: min(found[p], node.logged) for p, node in nodes.items()}
    codes, known = new_tokens(nodes, "code"), dict[Any, int]()
    dice, sources = new_tokens(nodes, "dice"), new_tokens(nodes, "source")
    before = simulate(nodes, codes, dice, sources, known)
    rolled = {p: max(n.nondeterminants, kept[p]) for p, n in nodes.items()}
    given_again = {p: max(n.logged, n.replayable) for p, n in nodes.items()}
    defined = {p: n.defined for p, n in nodes.items()}
    after = simulate(
        nodes,
        retained_or(new_tokens(nodes, "new code"), codes, defined),
        retained_or(new_tokens(nodes, "new dice"), dice, rolled),
        retained_or(new_tokens(nodes, "new source"), sources, given_again),
        known,
    )
    for p, exact in found.items():
        same = [epoch for epoch in range(LAST) if before[p, epoch] == after[p, epoch]]
        assert same == list(range(min(exact, LAST)))


@given(graphs())
def test_exact_uppers_are_greatest_fixpoint(nodes: dict[str, FrontierNode]) -> None:
    exact = dict.fromkeys(nodes, UNBOUNDED)
    for _ in range(len(nodes) + 1):
        for name, node in nodes.items():
            exact[name] = min([node.own_upper, *(exact[q] for q in node.inputs)])
    assert exact_uppers(nodes) == exact


def test_determinate_stages_over_replayable_inputs_lose_nothing() -> None:
    nodes = {
        "input": FrontierNode((), 0, replayable=UNBOUNDED),
        "loop": FrontierNode(("input", "loop"), 0),
    }
    assert exact_uppers(nodes) == {"input": UNBOUNDED, "loop": UNBOUNDED}
