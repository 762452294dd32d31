"""Plans the traces of a graph as of a past epoch. Pure: reads and writes nothing.

A rewind needs every trace of the current graph as of an epoch. The sources are:

    layers      layers that end at or before the epoch are unchanged, with their files
    frames      a layer that reaches beyond the epoch, without the later changes, if their frames
                are retained (`point_in_time.py`)
    history     the changes of every epoch of a named collection; they are summed up and arranged
                at the first lookup (`lazy_layer.HistoryLayer`)
    nothing     operator state, and rows of a part without a name, have no history: the node is run
                once over its inputs at that epoch, and is listed in `bare` or `refused`

So the cost does not depend on the size of the state: no row is built, no file opened.

Invariant: the layers of each resulting trace ascend and end at the epoch. No two have the same
epochs, except a layer and the one that subtracts its later changes.

Failure: 1. A definition arranges a collection of a thousand epochs from scratch, as one layer at
the current epoch. 2. A rewind to an earlier epoch uses the trace, which has no layer of that epoch,
as if it were empty. Therefore a trace is used for an epoch only if its first layer begins no later.

Failure: 1. A stage stops, and its parts without a name with it; later it catches up in one step. 2.
Layers of such a part end before a skipped epoch, and are used as its contents at that epoch, which
it never had. Therefore a part is as old as the stages that use it, and has the gaps of these
stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from nosync_nb.dataflow.graph import Node
from nosync_nb.dataflow.runtime.historical_inputs import HistoricalInputs
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import TimeError
from nosync_nb.store.log import Frame
from nosync_nb.store.point_in_time import (
    LogHistory,
    RecentFrames,
    Since,
    reaches_beyond,
    trace_from_history,
    trace_from_layers,
)
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Layout
from nosync_nb.trace.epoch_ranges import check_readable


class GraphAtEpoch(NamedTuple):
    """A graph at an epoch.

    Attributes:
        traces: the traces by number, with layers that end at the epoch. Some traces of nodes in the
            two sets below are missing.
        bare: nodes of named collections that have their rows, but no operator state.
        refused: nodes that have nothing: parts without a name, and stages that are `unread`.
        unread: stages that cannot be read at the epoch, because they were defined later or had
            stopped; live ones are computed from their inputs.
        taken: the later changes that were subtracted from the traces of each log.
    """

    epoch: int
    traces: Mapping[int, Trace]
    bare: frozenset[int] = frozenset()
    refused: frozenset[int] = frozenset()
    unread: frozenset[str] = frozenset()
    taken: Mapping[int, Since] = {}

    @property
    def is_complete(self) -> bool:
        """True if nothing is missing, and no node must be run."""
        return not (self.bare or self.refused or self.unread)


def plan_as_of(
    seen: Snapshot, epoch: int, *, frames: Iterable[Frame] = (), moved: bool = False
) -> GraphAtEpoch:
    """Returns the graph of a snapshot at one of its epochs.

    Args:
        seen: a compiled snapshot, with operator state. A reader's snapshot is not compiled; it can
            only be planned at its last epoch, without operator state.
        frames: the retained frames of its log; without them the other sources are used.
        moved: True if the graph of the snapshot is an earlier one, so that traces may be missing.

    Raises:
        TimeError: the epoch does not exist, or an input cannot be read there; names readable ones.

    Cost: O(nodes), a few us each.
    """
    if not 0 <= epoch <= seen.epoch:
        raise TimeError(f"epoch {epoch} is not readable", hint=f"epochs 0 to {seen.epoch} are")
    if epoch == seen.epoch and not moved:
        traces = seen.version.traces
        now = {n: traces.get(n) or Trace(layout) for n, layout in seen.graph.layouts()}
        # A reader has not compiled its graph, and has no operator state.
        unknown = [node.id for node in seen.graph if node.state and node.operator is None]
        return GraphAtEpoch(epoch, now, bare=frozenset(unknown))
    return _GraphPlanner(seen, epoch, RecentFrames(frames, epoch)).plan()


class _GraphPlanner:
    """The state of the planning, which visits the nodes in the order of the graph."""

    def __init__(self, seen: Snapshot, epoch: int, recent: RecentFrames) -> None:
        self.seen, self.epoch, self.recent = seen, epoch, recent
        self.traces: dict[int, Trace] = {}
        self.bare: set[int] = set()
        self.refused: set[int] = set()
        self.unread: set[str] = set()
        self.unwritten = seen.graph.unwritten  # frames do not contain their changes
        self.past = HistoricalInputs(seen.history, seen.epoch)
        self.stopped = self._stopped_nodes()
        self.taken: dict[int, Since] = {}

    def plan(self) -> GraphAtEpoch:
        for node in self.seen.graph:
            if node.name is not None:
                self._plan_named(node, self.seen.catalog[node.name])
            elif node.id in self.stopped or not self._plan_traces(node, node.layouts()):
                self.refused.add(node.id)
        sets = frozenset(self.bare), frozenset(self.refused), frozenset(self.unread)
        return GraphAtEpoch(self.epoch, self.traces, *sets, self.taken)

    def _plan_named(self, node: Node, stage: Stage) -> None:
        """Plans a named collection: its rows come from its layers, or else from its log."""
        assert node.log is not None
        upto = min(self.epoch, self.seen.last(stage))
        readable = self.past.readable([node])
        is_undeclared = stage.is_input and upto < stage.begin  # it was empty
        if upto not in readable and not is_undeclared:
            if stage.is_input:
                check_readable(stage.name, upto, readable)
            self.unread.add(stage.name)
            self.refused.add(node.id)
            return
        past = LogHistory(self.seen.history, node.log, upto)
        for layout, number in node.traces.items():
            trace = self.seen.version.traces.get(number) or Trace(layout)
            if is_undeclared:
                self.traces[number] = Trace(layout)
            else:
                earlier = self._trace_from_layers(trace, node.log, number)
                self.traces[number] = earlier or trace_from_history(trace, past)
        own = [each for each in node.layouts() if each[0] in node.state]
        if not self._plan_traces(node, own):
            self.bare.add(node.id)

    def _plan_traces(self, node: Node, layouts: Iterable[tuple[int, Layout]]) -> bool:
        """Plans traces without a history; returns True if all of them can be restored."""
        planned = {}
        for number, layout in layouts:
            log = number if number in node.state or node.log is None else node.log
            trace = self.seen.version.traces.get(number) or Trace(layout)
            earlier = self._trace_from_layers(trace, log, number)
            if earlier is None:
                return False
            planned[number] = earlier
        self.traces.update(planned)
        return True

    def _trace_from_layers(self, trace: Trace, log: int, number: int) -> Trace | None:
        """Returns a trace at the epoch from layers and frames; None if these do not suffice."""
        in_frames = not {log, number} & self.unwritten
        later = self.recent.of_trace(log, number) if in_frames else None
        earlier = trace_from_layers(trace, self.epoch, later)
        if earlier is not None and later is not None and reaches_beyond(trace, self.epoch):
            self.taken[log] = later.since
        return earlier

    def _stopped_nodes(self) -> set[int]:
        """Returns the nodes with a gap at the epoch, and the unnamed parts that feed them."""
        graph, catalog = self.seen.graph, self.seen.catalog
        stopped = {
            node.id
            for name, node in graph.named.items()
            if any(lower <= self.epoch < upper for lower, upper in catalog[name].gaps)
        }
        if not stopped:
            return stopped
        read: dict[int, list[int]] = {}
        for node in graph:
            for i in node.inputs:
                read.setdefault(i, []).append(node.id)
        for node in reversed(graph.nodes.values()):
            if node.name is None and any(i in stopped for i in read.get(node.id, ())):
                stopped.add(node.id)
        return stopped
