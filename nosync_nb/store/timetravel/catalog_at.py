"""The catalog and the graph of a log at an epoch, for a branch that forks there and for a rewind.

Data are taken from the epoch. Definitions are the current ones, or those that computed the epoch
(`historical_catalog`). `trace_plan` plans the traces; this module derives the stages and nodes that
belong to them.

A stage that can be read at the epoch continues from there. A live stage that cannot be read there
is computed from its inputs. A rewind does so before its frame is written. A branch does so before
its first write, because a gap marks the last epoch of the stage (`Stage.has`). A stopped stage that
cannot be read there has no readable epoch after a rewind, and is omitted from a branch. An input
that was declared later is empty.

A node with missing operator state is written without a plan, like one that another release planned
differently. Therefore it is run once over its inputs before the first write, as after any opening
(`session/recovery/recover.py`).

Each definition, and each rewind, records the whole catalog in a frame. An epoch was computed by the
last catalog that was written before it, among the epochs that no rewind has undone. Epochs before
the retained frames have no known catalog, because no catalog is retained for the past alone.

The number of a log is never reused. So the rows of a stage at an epoch are read under its number at
that epoch, even if it was renamed. The operator state is available for nodes that have not changed
since. A stage that was dropped later is computed from its inputs, like a stage that was defined
later. If an input was dropped later, its rows are lost, and the catalog cannot be used.

Failure: 1. A stage stops; an epoch follows; the stage resumes and catches up. 2. A rewind takes the
graph of that epoch, in which the stage is stopped, with the current layers, which contain the
epoch. Therefore a node that was stopped at that epoch and has advanced since is restored from its
history up to the stop, and not from its layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from nosync_nb.dataflow.graph import Graph, Node
from nosync_nb.dataflow.runtime.epoch_result import VersionState
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import FrozenState, Stage, StaleState
from nosync_nb.errors import TimeError, TrustError
from nosync_nb.store.catalog import signature as signing
from nosync_nb.store.catalog.validation import check_catalog
from nosync_nb.store.log.frame_index import checkpoint_states, retained_frames
from nosync_nb.store.records import payloads
from nosync_nb.store.records.payloads import Payload
from nosync_nb.store.safe_decoding import guarded_decoding
from nosync_nb.store.store import Store
from nosync_nb.store.timetravel.trace_plan import GraphAtEpoch
from nosync_nb.trace.history.history import History

_STATE = 1 << 16
"""The kind of a checkpoint in a list of frames; it sorts after the last frame that it covers."""


class LogAtEpoch(NamedTuple):
    """The stages and the nodes of a log that continues from an epoch."""

    catalog: dict[str, Stage]
    graph: Graph


def catalog_of_branch(seen: Snapshot, earlier: GraphAtEpoch) -> LogAtEpoch:
    """Returns the catalog of a snapshot, and its graph, for a log that begins at an epoch.

    Cost: O(nodes).
    """
    stages = {name: _stage_of_branch(stage, earlier) for name, stage in seen.catalog.items()}
    catalog = {name: stage for name, stage in stages.items() if stage is not None}
    nodes = [
        _node_at(node, earlier)
        for node in seen.graph
        if (node.id not in earlier.refused if node.name is None else node.name in catalog)
    ]
    numbers, memory, unwritten = seen.graph.numbers, seen.graph.memory, seen.graph.unwritten
    return LogAtEpoch(catalog, Graph(nodes, numbers, memory=memory, unwritten=unwritten))


def _stage_of_branch(stage: Stage, earlier: GraphAtEpoch) -> Stage | None:
    """Returns a stage at the epoch; None if it can neither be read nor computed there."""
    epoch, is_unread = earlier.epoch, stage.name in earlier.unread
    if is_unread and stage.frozen:
        return None
    at_epoch = _stage_at(stage, epoch)
    if stage.is_input and stage.begin > epoch:
        return replace(at_epoch, begin=0)
    return replace(at_epoch, begin=epoch, gaps=((0, epoch + 1),)) if is_unread else at_epoch


def rewound_catalog(catalog: Mapping[str, Stage], earlier: GraphAtEpoch) -> dict[str, Stage]:
    """Returns the current stages as they continue from an epoch in the same log."""
    return {name: _rewound_stage(each, earlier) for name, each in catalog.items()}


def _rewound_stage(stage: Stage, earlier: GraphAtEpoch) -> Stage:
    """Returns a stage as it continues from an epoch; the same object if it is unchanged."""
    epoch, at_epoch = earlier.epoch, _stage_at(stage, earlier.epoch)
    if stage.name not in earlier.unread:
        return at_epoch
    if stage.live:
        return replace(at_epoch, begin=epoch, gaps=())
    why = f"its rows at epoch {epoch} are not known"
    return replace(at_epoch, begin=0).forgotten(why, epoch)


def _stage_at(stage: Stage, epoch: int) -> Stage:
    """Returns a stage without its later epochs; the same object if it has none."""
    life = stage.life
    if isinstance(life, StaleState | FrozenState) and life.since > epoch:
        life = replace(life, since=epoch)
    gaps = tuple((low, min(high, epoch + 1)) for low, high in stage.gaps if low <= epoch)
    begin = min(stage.begin, epoch)
    if (life, gaps, begin, None) == (stage.life, stage.gaps, stage.begin, stage.scaled):
        return stage
    return replace(stage, life=life, gaps=gaps, begin=begin, scaled=None)


def rewound_graph(graph: Graph, catalog: Mapping[str, Stage], earlier: GraphAtEpoch) -> Graph:
    """Returns the current nodes that exist at an epoch; the same object if all are unchanged.

    Args:
        catalog: the catalog before the rewind.
    """
    nodes = [
        _node_at(node, earlier)
        for node in graph
        if node.id not in earlier.refused
        or (node.name is not None and not _is_recomputed(catalog[node.name], earlier))
    ]
    if len(nodes) == len(graph.nodes) and all(
        rewound is node for rewound, node in zip(nodes, graph, strict=True)
    ):
        return graph
    memory, unwritten = graph.memory, graph.unwritten
    return Graph(nodes, graph.numbers, graph.made, memory=memory, unwritten=unwritten)


def _is_recomputed(stage: Stage, earlier: GraphAtEpoch) -> bool:
    return stage.live and stage.name in earlier.unread


def _node_at(node: Node, earlier: GraphAtEpoch) -> Node:
    """Returns a node at an epoch; the same object if it is unchanged."""
    stopped = node.stopped if node.stopped is None else min(node.stopped, earlier.epoch)
    if node.id in earlier.bare or node.id in earlier.refused:
        return replace(node, stopped=stopped, plan="", state=(), operator=None, inputs=())
    return node if stopped == node.stopped else replace(node, stopped=stopped)


class HistoricalCatalog(NamedTuple):
    """A catalog as it was written at an epoch, and its signature."""

    epoch: int
    catalog: Mapping[str, Any]
    signature: Any


def historical_catalog(store: Store, epoch: int, now: int) -> HistoricalCatalog:
    """Returns the catalog that computed an epoch; for epoch 0, the catalog that computed epoch 1.

    A definition after the commit of an epoch, and before the next one, does not belong to it.

    Args:
        now: the last epoch.

    Raises:
        TimeError: no retained frame has the catalog; the hint names the first epoch with a known
            one.
        CorruptLogError: a frame is damaged.

    Cost: a few us for each retained frame, plus the read of two checkpoints.
    """
    known = _catalogs_by_epoch(store, now)
    if epoch not in known:
        since = f"those of epoch {min(known)} and later are; " if known else ""
        raise TimeError(
            f"the definitions at epoch {epoch} are no longer stored",
            hint=f"{since}omit definitions='then' to use the current definitions",
        )
    return known[epoch]


def _catalogs_by_epoch(store: Store, now: int) -> dict[int, HistoricalCatalog]:
    """Returns the known catalogs by epoch; each one computed its epoch."""
    files, folder = store.files, store.log.path
    frames = retained_frames(files, folder, store.log.head)
    steps = [(frame.position.seq, frame.kind, frame.payload) for frame in frames]
    steps += [(seq, _STATE, payload) for seq, payload in checkpoint_states(files, folder)]
    known: dict[int, HistoricalCatalog] = {}
    current: HistoricalCatalog | None = None
    for seq, kind, data in sorted(steps, key=lambda each: each[:2]):
        epoch = payloads.payload_epoch(data)
        if kind == payloads.EPOCH and current is not None:
            known[epoch] = current
            known.update({0: current} if epoch == 1 else {})
        if kind == payloads.REWIND:
            known = {at: each for at, each in known.items() if at <= epoch and epoch}
        if kind in payloads.DEFINES or (kind == _STATE and current is None):
            current = _recorded_catalog(payloads.decode_payload(data))
            if kind == _STATE and not seq and current is not None:  # the log began with it
                known[epoch] = current
    if current is not None and not now:
        known[0] = current
    return known


def _recorded_catalog(payload: Payload) -> HistoricalCatalog | None:
    meta = payload.meta
    if "catalog" not in meta:
        return None
    return HistoricalCatalog(payload.epoch, meta["catalog"], meta.get("signed"))


def with_historical_catalog(seen: Snapshot, was: HistoricalCatalog, log_id: bytes) -> Snapshot:
    """Returns a snapshot with an earlier catalog and its graph, to be planned at one of its epochs.

    Nothing in the catalog is compiled, and none of the user's functions is loaded.

    Raises:
        TimeError: an input in the catalog was dropped later.
        TrustError: the catalog is unsigned, or signed with another key.
        CorruptLogError: the catalog is malformed.

    Cost: O(nodes), a few us each.
    """
    check_catalog(was.catalog, was.epoch)
    origin = signing.judge_signature(
        signing.own_key()[0], log_id, was.epoch, was.catalog, was.signature
    )
    if not origin.is_by_this_user:
        raise TrustError(
            f"the definitions at epoch {was.epoch} cannot be used: {origin.why}",
            hint="omit definitions='then' to use the current definitions",
        )
    with guarded_decoding("an earlier catalog"):
        catalog = payloads.catalog_from_json(was.catalog, log_id, None)
        nodes = [*payloads.restored_nodes(was.catalog)]
    return _EarlierGraph(seen, catalog).snapshot(nodes)


class _EarlierGraph:
    """Maps the nodes of an earlier catalog to current nodes."""

    def __init__(self, seen: Snapshot, catalog: dict[str, Stage]) -> None:
        self.seen, self.catalog = seen, catalog
        self.history: History = seen.history.copied(())
        self.logs = {node.log: node for node in seen.graph.named.values() if node.log is not None}
        self.moved: set[int] = set()  # traces that were changed since
        # The level of an unnamed part follows from its readers, which are unknown for that epoch.
        every = [*catalog.values(), *seen.catalog.values()]
        self.shared = not any(stage.options.persist for stage in every)

    def snapshot(self, nodes: Iterable[Node]) -> Snapshot:
        mapped = [made for node in nodes if (made := self._mapped_node(node)) is not None]
        memory = frozenset(name for name, stage in self.catalog.items() if stage.in_memory)
        graph = Graph(mapped, self.seen.graph.numbers, memory=memory)
        traces = self.seen.version.traces
        version = VersionState(
            self.seen.epoch, {n: trace for n, trace in traces.items() if n not in self.moved}
        )
        return Snapshot(version, graph, self.catalog, self.history, self.seen.rewinds)

    def _mapped_node(self, node: Node) -> Node | None:
        """Returns a node at that epoch: the current one if it is unchanged, else one without state.

        Returns None for an unnamed part that may have changed, because its contents are unknown.
        """
        now = self.seen.graph.nodes.get(node.id)
        if node.name is None:
            return _unchanged_node(node, now) if self.shared else None
        assert node.log is not None
        stage, current = self.catalog[node.name], self.logs.get(node.log)
        bare = replace(node, stage=node.name, state=(), plan="")
        if current is None:
            self._handle_lost_rows(stage, node)
            return bare
        assert current.name is not None
        today = self.seen.catalog[current.name]
        gaps = tuple(sorted({*stage.gaps, *today.gaps}))
        self.catalog[node.name] = replace(stage, gaps=gaps)
        if current.stopped != node.stopped or today.in_memory != stage.in_memory:
            self.moved.update(node.traces.values())
            return bare
        return _unchanged_node(node, now) or bare

    def _handle_lost_rows(self, stage: Stage, node: Node) -> None:
        """Hides the lost history of a dropped stage; raises TimeError for a dropped input."""
        if stage.is_input:
            raise TimeError(
                f"input '{stage.name}', which existed at that epoch, was dropped later: its"
                " rows are deleted",
                hint="omit definitions='then' to use the current definitions",
            )
        assert node.log is not None
        self.history.start_at(node.log, self.seen.epoch + 1)


def _unchanged_node(node: Node, now: Node | None) -> Node | None:
    """Returns the current node with its earlier arrangements, if its contents are unchanged."""
    if now is None or (now.state and now.operator is None):
        return None
    if (node.fingerprint, node.plan, node.log, node.state, node.stopped) != (
        now.fingerprint,
        now.plan,
        now.log,
        now.state,
        now.stopped,
    ):
        return None
    return replace(now, name=node.name, stage=node.name or now.stage, traces=node.traces)
