"""Random loops: at every epoch equal to evaluation from scratch.

Bounded random loops are in test_random_programs.py. Here a loop ends only when nothing changes any
more, also after removals. Graphs are dense, so that a node is still reachable in more rounds after
an edge is removed.
"""

from __future__ import annotations

from itertools import product

import pytest
from checks.checking import Build, Oracle, check
from hypothesis import given
from hypothesis import strategies as st
from models import model
from models.model import Bag, Row
from strategies import Change, Epoch

from nosync_nb import Collection
from nosync_nb.collections.collection import iterate_together
from nosync_nb.collections.session_protocol import session_of

NODES = (0, 1, 2, 3)
EDGES = [*product(NODES, NODES), (None, 0), (0, None)]
SCHEMAS = {"a": "c0 int, c1 int", "b": "d0 int"}


@st.composite
def graphs(draw: st.DrawFn) -> list[Epoch]:
    """Epochs of a graph and its roots; each row occurs 0, 1 or 2 times."""
    pools: dict[str, list[Row]] = {"a": EDGES, "b": [(node,) for node in (*NODES, None)]}
    held: dict[str, Bag] = {name: model.bag() for name in pools}
    epochs = []
    for _ in range(draw(st.integers(2, 4), label="epochs")):
        calls = {}
        for name, pool in pools.items():
            few = [0, 0, 0, 0, 1] if name == "b" else draw(st.sampled_from([[0, 1, 2], [0, 0, 1]]))
            count = st.lists(st.sampled_from(few), min_size=len(pool), max_size=len(pool))
            after = model.summed(zip(pool, draw(count, label=name), strict=True))
            new, old = after - held[name], held[name] - after
            calls[name] = [Change(True, model.rows(new)), Change(False, model.rows(old))]
            held[name] = after
        epochs.append(Epoch(calls, dict(held)))
    return epochs


def check_loop(data: st.DataObject, build: Build, oracle: Oracle) -> None:
    """Draws a history and compares a loop with its model."""
    history = data.draw(graphs(), label="history")
    check(history, SCHEMAS, build, oracle, data.draw(st.integers(0, 2), label="defined at"))


pytestmark = pytest.mark.usefixtures("no_disk")


def step(nodes: Collection, edges: Collection) -> Collection:
    """The targets of the edges from some nodes."""
    return nodes.join(edges, on={"d0": "c0"}).select("c1 as d0")


def step_bag(nodes: Bag, edges: Bag) -> Bag:
    return model.mapped(model.join(nodes, edges, [(0, 0)], "inner", (1, 2)), lambda row: row[1:])


def union(*bags: Bag) -> Bag:
    return model.distinct(model.concat(*bags))


@given(st.data())
def test_fixpoint_equals_that_of_current_rows(data: st.DataObject) -> None:
    """Reachable nodes, and the ends of all paths: each loop converges at every epoch."""

    def onward(paths: Collection, edges: Collection) -> Collection:
        on = edges.rename({"c0": "m0", "c1": "m1"})
        return paths.join(on, on={"c1": "m0"}).select("c0", "m1 as c1").concat(edges).distinct()

    def build(edges: Collection, roots: Collection) -> Collection:
        paths = edges.iterate(lambda held: onward(held, edges))
        reached = roots.iterate(lambda held: step(held, edges).concat(roots).distinct())
        return reached.concat(paths.select("c1 as d0"))

    def oracle(edges: Bag, roots: Bag) -> Bag:
        def longer(held: Bag) -> Bag:
            joined = model.join(held, edges, [(1, 0)], "inner", (2, 2))
            return union(model.mapped(joined, lambda row: (row[0], row[2])), edges)

        paths = model.iterated(edges, longer)
        reached = model.iterated(roots, lambda held: union(step_bag(held, edges), roots))
        return model.concat(reached, model.mapped(paths, lambda row: row[1:]))

    check_loop(data, build, oracle)


@given(st.data())
def test_nested_fixpoint_may_retract_rows_of_inner_loop(data: st.DataObject) -> None:
    """Edges without a successor or a predecessor are dropped, round by round."""

    def trimmed(edges: Collection) -> Collection:
        starts = edges.select("c1 as d0").distinct()
        further = starts.iterate(lambda held: step(held, edges).concat(starts).distinct())
        kept = edges.join(further, on={"c0": "d0"}, how="semi")
        return kept.join(edges.select("c0 as e0").distinct(), on={"c1": "e0"}, how="semi")

    def trim(edges: Bag) -> Bag:
        starts = model.distinct(model.mapped(edges, lambda row: row[1:]))
        further = model.iterated(starts, lambda held: union(step_bag(held, edges), starts))
        kept = model.join(edges, further, [(0, 0)], "semi", (2, 1))
        firsts = model.distinct(model.mapped(edges, lambda row: row[:1]))
        return model.join(kept, firsts, [(1, 0)], "semi", (2, 1))

    def oracle(edges: Bag, roots: Bag) -> Bag:
        return step_bag(roots, model.iterated(edges, trim))

    check_loop(data, lambda edges, roots: step(roots, edges.iterate(trimmed)), oracle)


@given(st.data(), st.sampled_from([None, 1, 3]), st.booleans())
def test_mutually_recursive_variables_share_rounds(
    data: st.DataObject, rounds: int | None, swapped: bool
) -> None:
    """Nodes that are reachable in an even and in an odd number of steps, and in both.

    The start of `odd` is gone in the next round, so that it may circulate for ever.
    """
    odd = "false" if rounds is None else "d0 > 2"

    def build(edges: Collection, roots: Collection) -> Collection:
        found = iterate_together(
            session_of(edges),
            lambda even, odd, both: (
                step(odd, edges).concat(roots).distinct(),
                step(even, edges).distinct(),
                odd.join(even, on="d0", how="semi").concat(both).distinct(),
            ),
            rounds,
            {"even": roots, "odd": roots.filter(odd), "both": roots.filter("false")},
        )
        if swapped:
            return found["both"].concat(found["odd"].negate()).concat(found["odd"])
        return found["even"].concat(found["both"])

    def oracle(edges: Bag, roots: Bag) -> Bag:
        none = model.bag()
        starts = model.filtered(roots, lambda row: row[0] is not None and row[0] > 2)
        state, done = (roots, none if rounds is None else starts, none), 0
        while rounds is None or done < rounds:
            even, odd, both = state
            after = (
                union(step_bag(odd, edges), roots),
                model.distinct(step_bag(even, edges)),
                union(model.join(odd, even, [(0, 0)], "semi", (1, 1)), both),
            )
            if after == state:
                break
            state, done = after, done + 1
        return state[2] if swapped else model.concat(state[0], state[2])

    check_loop(data, build, oracle)
