"""Work per epoch of loops: it depends on the change, not on the number of epochs.

A few graphs repeat, so the state does not grow. If nearly everything changes, the loop is
recomputed from scratch and later tries again, which may not cost more over time either.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from checks.checking import EDGES, held
from checks.touched import growth, work_of
from internals import traces_of

import nosync_nb
from nosync_nb import Collection
from nosync_nb.collections.library import graphs
from nosync_nb.operators.iterate import loop
from nosync_nb.trace import compaction
from nosync_nb.trace.compaction import STALL_LAYERS

pytestmark = pytest.mark.usefixtures("no_disk")

NODES, PERIOD = 20, 8
EPOCHS = 120
GROWTH_MAX = 1.35

LOOPS: dict[str, Any] = {
    "ranks": lambda edges: graphs.pagerank(edges, rounds=3),
    "parts": graphs.connected_components,
    "labels": lambda edges: graphs.label_propagation(edges, rounds=2),
    "core": lambda edges: graphs.k_core(edges, 2),
    "distances": lambda edges: graphs.distances(edges, roots(edges)),
    "circles": graphs.strongly_connected_components,
}


def roots(edges: Collection) -> Collection:
    """The start node."""
    return edges.filter("src = 0").select("src AS node")


@pytest.mark.parametrize("count", [pytest.param(1, id="sparse"), pytest.param(12, id="dense")])
@pytest.mark.parametrize("name", LOOPS)
def test_cost_of_loop_epoch_depends_on_change_only(
    name: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "INLINE_ROWS", 64)
    monkeypatch.setattr(compaction, "YOUNG_ROWS", 16)
    monkeypatch.setattr(compaction, "JOINED_MAX", 4)
    if count > 1:
        monkeypatch.setattr(loop, "FREE_WORK", 0)
        monkeypatch.setattr(loop, "SMALL_WORK", 0)
    chance = random.Random(1)

    def some(number: int) -> list[tuple[int, int]]:
        return [(chance.randrange(NODES), chance.randrange(NODES)) for _ in range(number)]

    base, turns = some(2 * NODES), [some(count) for _ in range(PERIOD)]
    with nosync_nb.open(tmp_path / "log") as session:
        edges = session.input("edges", EDGES)
        session.stage("stage", LOOPS[name](edges))
        edges.insert(base)
        session.commit()
        touched, ordered = work_of(
            session, lambda epoch: edges.set(base + turns[epoch % PERIOD]), EPOCHS
        )
        layers = [len(trace.layers) for trace in traces_of(session).values()]
        assert held(session["stage"]) == held(LOOPS[name](edges))
    assert growth(touched) <= GROWTH_MAX
    assert growth(ordered) <= GROWTH_MAX
    assert max(layers) <= STALL_LAYERS
