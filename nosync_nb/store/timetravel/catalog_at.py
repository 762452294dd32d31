"""The catalog and the graph of a log at an epoch, for a branch that forks there and for a rewind.

Data are taken from the epoch, definitions are the current ones. `trace_plan` plans the traces; this
module derives the stages and nodes that belong to them.

A branch (`branch_catalog`): a stage that can be read at the epoch continues from there. A live
stage that cannot be read there is marked with a gap that covers its last epoch (`Stage.has`).
Therefore it is computed from its inputs before the first write. A stopped stage that cannot be read
there is forgotten, an earlier version is omitted, and an input that was declared later is empty.

A rewind (`rewound_catalog`, `rewound_graph`): a live stage without a known state at the epoch is
computed from its inputs. Any other such stage becomes unreadable.

A node with missing operator state is written without a plan, like one that another release planned
differently. Therefore it is run once over its inputs before the first write, here and after any
opening (`session/recovery/recover.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from nosync_nb.dataflow.graph import Graph, Node
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import FrozenState, Stage, StaleState
from nosync_nb.dataflow.state_reader import collection_state
from nosync_nb.store.timetravel.trace_plan import GraphAtEpoch
from nosync_nb.trace import empty_batch
from nosync_nb.trace.batch import Batch, arrange, concat_updates


class BranchCatalog(NamedTuple):
    """The stages and the nodes of a log that begins at an epoch."""

    catalog: dict[str, Stage]
    graph: Graph


def branch_catalog(seen: Snapshot, made: GraphAtEpoch) -> BranchCatalog:
    """Returns the catalog of a snapshot, and its graph, at an epoch; see the module.

    Cost: O(nodes).
    """
    stages = {name: _branch_stage(stage, made) for name, stage in seen.catalog.items()}
    catalog = {name: stage for name, stage in stages.items() if stage is not None}
    nodes = [
        _branch_node(node, made)
        for node in seen.graph
        if (node.id not in made.refused if node.name is None else node.name in catalog)
    ]
    numbers, memory, unwritten = seen.graph.numbers, seen.graph.memory, seen.graph.unwritten
    return BranchCatalog(catalog, Graph(nodes, numbers, memory=memory, unwritten=unwritten))


def _branch_stage(stage: Stage, earlier: GraphAtEpoch) -> Stage | None:
    """Returns a stage at the epoch; None if it has no epoch to read and none to compute."""
    epoch, unread = earlier.epoch, stage.name in earlier.unread
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


def _branch_node(node: Node, earlier: GraphAtEpoch) -> Node:
    bare = node.id in earlier.bare or node.id in earlier.refused
    return node.earlier(earlier.epoch, bare=bare)


def rewound_catalog(catalog: Mapping[str, Stage], earlier: GraphAtEpoch) -> dict[str, Stage]:
    """Returns the current stages as they continue from an epoch."""
    return {name: _rewound_stage(each, earlier) for name, each in catalog.items()}


def _rewound_stage(stage: Stage, earlier: GraphAtEpoch) -> Stage:
    """Returns a stage as it continues from an epoch; the same object if it is unchanged."""
    if stage.scaled is not None:  # because that position may be in the undone epochs
        stage = replace(stage, scaled=None)
    epoch, life = earlier.epoch, stage.life
    if isinstance(life, StaleState | FrozenState) and life.since > epoch:
        stage = replace(stage, life=replace(life, since=epoch))
    if stage.name in earlier.unread and stage.live:
        return replace(stage, begin=epoch, gaps=())
    if stage.name in earlier.unread:
        why = f"it is not known what it was at epoch {epoch}"
        return replace(stage, begin=0).forgotten(why, epoch)
    gaps = tuple(each for each in stage.gaps if each[0] < epoch)
    begin = min(stage.begin, epoch)
    if (begin, gaps) != (stage.begin, stage.gaps):
        stage = replace(stage, begin=begin, gaps=gaps)
    return stage


def rewound_graph(graph: Graph, catalog: Mapping[str, Stage], earlier: GraphAtEpoch) -> Graph:
    """Returns the current nodes that exist at an epoch; the same object if all are unchanged.

    Args:
        catalog: the catalog before the rewind.
    """
    nodes = [_rewound_node(node, catalog, earlier) for node in graph]
    if all(rewound is node for rewound, node in zip(nodes, graph, strict=True)):
        return graph
    remaining = [node for node in nodes if node is not None]
    memory, unwritten = graph.memory, graph.unwritten
    return Graph(remaining, graph.numbers, graph.made, memory=memory, unwritten=unwritten)


def _rewound_node(node: Node, catalog: Mapping[str, Stage], earlier: GraphAtEpoch) -> Node | None:
    """Returns a node at an epoch; None if it must be rebuilt from scratch."""
    from_scratch = node.name is None or (catalog[node.name].live and node.name in earlier.unread)
    if node.id in earlier.refused and from_scratch:
        return None
    stopped_later = node.stopped is not None and node.stopped > earlier.epoch
    bare = node.id in earlier.bare or node.id in earlier.refused
    if not (stopped_later or bare):
        return node
    stopped = earlier.epoch if stopped_later else node.stopped
    if bare:
        return replace(node, stopped=stopped, plan="", state=(), operator=None, inputs=())
    return replace(node, stopped=stopped)


def rewind_difference(was: Snapshot, now: Snapshot, name: str) -> Batch:
    """Returns the change of a collection by a rewind.

    Cost: in the undone changes; in all of its rows if it was recomputed.
    """
    before, after = was.graph.named[name], now.graph.named[name]
    layout, last = after.log_layout, was.last(was.stage(name))
    if after.log == before.log and after.log is not None and now.epoch < last:
        undone = was.history.changes(after.log, now.epoch, last)
        parts = [each.updates.negated() for each in undone]
    else:
        parts = [
            collection_state(was, name, last).updates.negated(),
            collection_state(now, name, now.epoch).updates,
        ]
    return arrange(layout, concat_updates(parts, layout.types)) if parts else empty_batch(layout)
