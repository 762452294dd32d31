"""Cut: a catalog and its graph as a log that begins at an epoch of the past has them.

Data go back, descriptions do not: the stages are those of now. One that can be read at the epoch
goes on from there. One that goes on and cannot be is marked by a gap that covers its last epoch
(`Stage.has`): it is computed from what it reads before anything else is written. One that has
stopped and cannot be read there is forgotten, an earlier version is left out, and an input that was
declared later is empty.

What is not there is not named: a node of which what it remembers is gone has no plan, and so is run
for it like one that another release planned otherwise (`session/recovery/recover.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from nosync_nb.dataflow.graph import Graph, Node
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import FrozenState, Stage, StaleState
from nosync_nb.store.timetravel.trace_plan import GraphAtEpoch


class BranchCatalog(NamedTuple):
    """The stages and the nodes of a log that begins at an epoch."""

    catalog: dict[str, Stage]
    graph: Graph


def branch_catalog(seen: Snapshot, made: GraphAtEpoch) -> BranchCatalog:
    """The catalog of a snapshot, and its graph, as of an epoch; see the module. Cost: O(nodes)."""
    stages = {name: _stage(stage, made) for name, stage in seen.catalog.items()}
    catalog = {name: stage for name, stage in stages.items() if stage is not None}
    nodes = [
        _node(node, made)
        for node in seen.graph
        if (node.id not in made.refused if node.name is None else node.name in catalog)
    ]
    numbers, memory, unwritten = seen.graph.numbers, seen.graph.memory, seen.graph.unwritten
    return BranchCatalog(catalog, Graph(nodes, numbers, memory=memory, unwritten=unwritten))


def _stage(stage: Stage, made: GraphAtEpoch) -> Stage | None:
    """A stage as of the epoch; None: there is nothing of it, nor will be."""
    epoch, unread = made.epoch, stage.name in made.unread
    gaps = tuple((low, min(high, epoch + 1)) for low, high in stage.gaps if low <= epoch)
    cut_off = replace(stage, begin=min(stage.begin, epoch), gaps=gaps, scaled=None)
    if isinstance(stage.life, FrozenState):
        life = replace(stage.life, since=min(stage.life.since, epoch))
        return None if unread else replace(cut_off, life=life)
    if isinstance(stage.life, StaleState):
        cut_off = replace(cut_off, life=replace(stage.life, since=min(stage.life.since, epoch)))
    if stage.is_input and stage.begin > epoch:
        return replace(cut_off, begin=0)
    return replace(cut_off, begin=epoch, gaps=((0, epoch + 1),)) if unread else cut_off


def _node(node: Node, made: GraphAtEpoch) -> Node:
    bare = node.id in made.bare or node.id in made.refused
    return node.earlier(made.epoch, bare=bare)
