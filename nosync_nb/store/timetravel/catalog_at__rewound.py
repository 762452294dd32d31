"""Rewound: the graph, the stages and the traces of now, as they go on from an earlier epoch.

*Data go back, definitions do not.* `asof` plans what each trace was; here is what becomes of what
it belongs to. A node that lacks what it remembers is written without a plan, as one that another
release keeps otherwise: so it is run once over its inputs before the first write, here and at any
opening. A stage that is not known at that epoch is computed from what it reads if it goes on; else
nothing of it can be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nosync_nb.dataflow.graph import Graph, Node
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import FrozenState, Stage, StaleState
from nosync_nb.dataflow.state_reader import collection_state
from nosync_nb.store.timetravel.trace_plan import GraphAtEpoch
from nosync_nb.trace import empty_batch
from nosync_nb.trace.batch import Batch, arrange, concat_updates


def rewound_catalog(catalog: Mapping[str, Stage], earlier: GraphAtEpoch) -> dict[str, Stage]:
    """The stages of now, as they go on from an epoch."""
    return {name: _stage_at(each, earlier) for name, each in catalog.items()}


def _stage_at(stage: Stage, earlier: GraphAtEpoch) -> Stage:
    """A stage as it goes on from an epoch; the same object if nothing is other."""
    if stage.scaled is not None:  # what replicas had is of epochs that are left
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
    """The nodes of now that are there at an epoch; the same object if they are as they are now.

    Args:
        catalog: as it was until now.
    """
    nodes = [_node_at(node, catalog, earlier) for node in graph]
    if all(made is node for made, node in zip(nodes, graph, strict=True)):
        return graph
    kept = [node for node in nodes if node is not None]
    memory, unwritten = graph.memory, graph.unwritten
    return Graph(kept, graph.numbers, graph.made, memory=memory, unwritten=unwritten)


def _node_at(node: Node, catalog: Mapping[str, Stage], earlier: GraphAtEpoch) -> Node | None:
    """A node at an epoch; None if it has to be made anew, with all that it has."""
    anew = node.name is None or (catalog[node.name].live and node.name in earlier.unread)
    if node.id in earlier.refused and anew:
        return None
    late = node.stopped is not None and node.stopped > earlier.epoch
    bare = node.id in earlier.bare or node.id in earlier.refused
    if not (late or bare):
        return node
    stopped = earlier.epoch if late else node.stopped
    if bare:
        return replace(node, stopped=stopped, plan="", state=(), operator=None, inputs=())
    return replace(node, stopped=stopped)


def rewind_difference(was: Snapshot, now: Snapshot, name: str) -> Batch:
    """What takes a collection from what it was to what it is, after a rewind.

    Cost: in what is left behind; in all that it holds if it was computed anew.
    """
    before, after = was.graph.named[name], now.graph.named[name]
    layout, last = after.log_layout, was.last(was.stage(name))
    if after.log == before.log and after.log is not None and now.epoch < last:
        left = was.history.changes(after.log, now.epoch, last)
        parts = [each.updates.negated() for each in left]
    else:
        parts = [
            collection_state(was, name, last).updates.negated(),
            collection_state(now, name, now.epoch).updates,
        ]
    return arrange(layout, concat_updates(parts, layout.types)) if parts else empty_batch(layout)
