"""As of: the traces of a graph as they were at an epoch of the past. Pure planning.

Whoever goes back asks for every trace of the graph of now, as of an epoch, out of what is there:

    layers      those that end at or before the epoch are what they were, with their files
    frames      one that reaches beyond it is what it was without what was changed since, as far as
                frames are kept (`recent.py`, `undone.py`)
    history     of a named collection the changes of every epoch are kept; they are summed up and
                arranged when somebody looks (`deferred.Remembered`)
    nothing     what an operator remembers, and what a part without a name holds, has no history:
                its node is run once over its inputs as of then, and is told in `bare` or `refused`

So it costs nothing in the size of what is held: no row is made, no file opened.

Invariant: the layers of a trace that is given ascend and end at the epoch, and no two are of the
same epochs but one from which another one takes what was changed since.

Failure: 1. A definition arranges a collection of a thousand epochs anew, as one layer of now. 2.
Somebody goes back to before, and takes the trace, which has no layer of then, for an empty one.
Hence a trace tells of an epoch only if its first layer begins no later.

Failure: 1. A stage stops, and its parts without a name with it; later it goes on, in one step. 2.
Layers of such a part end before an epoch in between, and are taken for what it held then, which it
never did. Hence a part is as old as the stages that it is for, and gaps of these are its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from nosync_nb.dataflow.graph import Node
from nosync_nb.dataflow.runtime.historical_inputs import HistoricalInputs
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import TimeError
from nosync_nb.store.lazy_layer import HistoryLayer
from nosync_nb.store.log import Frame
from nosync_nb.store.undo import RecentFrames, Since, ended_logs, subtract_undone
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Layout
from nosync_nb.trace.epoch_ranges import EpochRanges, Interval, check_readable


class GraphAtEpoch(NamedTuple):
    """A graph as of an epoch.

    Attributes:
        traces: by number, with layers that end at the epoch; of what is in the two sets below some
            are not there.
        bare: nodes of named collections that have their rows, and nothing of what they remember.
        refused: nodes that have nothing: parts without a name, and stages that are `unread`.
        unread: stages that cannot be read at the epoch, as they were defined later or had stopped;
            those that go on are computed from what they read.
        taken: by log, all that was changed since, of those from which it was taken.
    """

    epoch: int
    traces: Mapping[int, Trace]
    bare: frozenset[int] = frozenset()
    refused: frozenset[int] = frozenset()
    unread: frozenset[str] = frozenset()
    taken: Mapping[int, Since] = {}

    @property
    def whole(self) -> bool:
        """Whether all is there, and nothing has to be run."""
        return not (self.bare or self.refused or self.unread)


def plan_as_of(
    seen: Snapshot, epoch: int, *, frames: Iterable[Frame] = (), moved: bool = False
) -> GraphAtEpoch:
    """Everything that a snapshot has, as of one of its epochs.

    Args:
        seen: compiled, with all that operators remember; of one that is not, as a reader's, only
            its last epoch, without what they do.
        frames: those that are kept of its log; without them only the other ways are gone.
        moved: its graph is an earlier one, and its traces are not all that this had.

    Raises:
        TimeError: there is no such epoch, or an input cannot be read there; names what can be.

    Cost: O(nodes), each some us.
    """
    if not 0 <= epoch <= seen.epoch:
        raise TimeError(f"epoch {epoch} is not readable", hint=f"epochs 0 to {seen.epoch} are")
    if epoch == seen.epoch and not moved:
        held = seen.version.traces
        now = {n: held.get(n) or Trace(layout) for n, layout in seen.graph.layouts()}
        # Who only reads has compiled nothing, and nothing of what operators remember.
        unknown = [node.id for node in seen.graph if node.state and node.operator is None]
        return GraphAtEpoch(epoch, now, bare=frozenset(unknown))
    return _Backward(seen, epoch, RecentFrames(frames, epoch)).planned()


class _Backward:
    """What is known of nodes while they are gone through, in the order of the graph."""

    def __init__(self, seen: Snapshot, epoch: int, recent: RecentFrames) -> None:
        self.seen, self.epoch, self.recent = seen, epoch, recent
        self.traces: dict[int, Trace] = {}
        self.bare: set[int] = set()
        self.refused: set[int] = set()
        self.unread: set[str] = set()
        self.unwritten = seen.graph.unwritten  # no frame tells what changed it
        self.past = HistoricalInputs(seen.history, seen.epoch)
        self.behind = self._behind()
        self.taken: dict[int, Since] = {}

    def planned(self) -> GraphAtEpoch:
        for node in self.seen.graph:
            if node.name is not None:
                self._named(node, self.seen.catalog[node.name])
            elif node.id in self.behind or not self._had(node, node.layouts()):
                self.refused.add(node.id)
        sets = frozenset(self.bare), frozenset(self.refused), frozenset(self.unread)
        return GraphAtEpoch(self.epoch, self.traces, *sets, self.taken)

    def _named(self, node: Node, stage: Stage) -> None:
        """A named collection: its rows come out of its log, if not of its layers."""
        assert node.log is not None
        at = min(self.epoch, self.seen.last(stage))
        readable = self.past.readable([node])
        begins = stage.is_input and at < stage.begin  # it was empty before it was declared
        if at not in readable and not begins:
            if stage.is_input:
                check_readable(stage.name, at, readable)
            self.unread.add(stage.name)
            self.refused.add(node.id)
            return
        for layout, number in node.traces.items():
            trace = self.seen.version.traces.get(number) or Trace(layout)
            made = Trace(layout) if begins else self._cut(trace, node.log, number)
            self.traces[number] = made or self._remembered(node.log, trace, at, readable)
        own = [each for each in node.layouts() if each[0] in node.state]
        if not self._had(node, own):
            self.bare.add(node.id)

    def _had(self, node: Node, layouts: Iterable[tuple[int, Layout]]) -> bool:
        """Takes traces without a history as they were; whether all of them could be had."""
        made = {}
        for number, layout in layouts:
            log = number if number in node.state or node.log is None else node.log
            cut = self._cut(self.seen.version.traces.get(number) or Trace(layout), log, number)
            if cut is None:
                return False
            made[number] = cut
        self.traces.update(made)
        return True

    def _cut(self, trace: Trace, log: int, number: int) -> Trace | None:
        """A trace as it was, by its layers and what frames say; None if they do not tell."""
        if not any(each.lower <= self.epoch < each.upper - 1 for each in trace.layers):
            return subtract_undone(trace, self.epoch, ())
        since = None if {log, number} & self.unwritten else self.recent.since(log, number)
        cut = None if since is None else subtract_undone(trace, self.epoch, since)
        if cut is not None and since is not None:
            self.taken[log] = since
        return cut

    def _remembered(self, log: int, trace: Trace, at: int, readable: EpochRanges) -> Trace:
        """A trace out of the log that feeds it: the layers that were there, and what followed."""
        layers = ended_logs(trace, at)
        lower = layers[-1].upper if layers else 0
        if layers and lower - 1 not in readable:
            layers, lower = [], 0
        if lower <= at:
            rows_count = max(1, trace.rows_count)
            after = lower - 1 if layers else None
            history = self.seen.history
            layers.append(
                HistoryLayer(trace.layout, history, log, Interval(lower, at + 1), after, rows_count)
            )
        return Trace(trace.layout, tuple(layers))

    def _behind(self) -> set[int]:
        """The parts without a name that stood still at the epoch, with all that they were for."""
        graph, catalog = self.seen.graph, self.seen.catalog
        stood = {
            node.id
            for name, node in graph.named.items()
            if any(lower <= self.epoch < upper for lower, upper in catalog[name].gaps)
        }
        if not stood:
            return stood
        read: dict[int, list[int]] = {}
        for node in graph:
            for i in node.inputs:
                read.setdefault(i, []).append(node.id)
        for node in reversed(graph.nodes.values()):
            if node.name is None and any(i in stood for i in read.get(node.id, ())):
                stood.add(node.id)
        return stood
