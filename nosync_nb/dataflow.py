"""The dataflow: runs the changes of one epoch through a graph and gives a draft of what follows.

A `Version` is all that is visible after an epoch: traces by number. An epoch builds a `Draft` over
it: each operator, in order, gets its inputs' changes (none: it is skipped), looks into traces, and
its output goes on. Nothing of a version is changed, so success is one assignment by the caller,
and failure drops the draft.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple, Protocol

from nosync_nb.batch import Batch, Layout, Updates, arrange, concat_updates, merge, no_updates
from nosync_nb.graph import Graph, Node
from nosync_nb.operators import Evaluate, Linear, Place, Step
from nosync_nb.trace import Layer, Trace, append
from nosync_nb.trace.parts import PartRef

SMALL_ROWS = 4096
"""A change of at most so many rows is small: it stays in this process, in the log's frame."""


class Version(NamedTuple):
    """What is visible after an epoch."""

    epoch: int
    traces: Mapping[int, Trace]


class Held(NamedTuple):
    """A change as parts disjoint in key hash, each with the file that holds it, if any."""

    parts: tuple[Batch, ...]
    refs: tuple[PartRef, ...] = ()


class Loose(NamedTuple):
    """Updates in files without order, as one operator leaves them for the next."""

    parts: tuple[Updates, ...]
    refs: tuple[PartRef, ...]


class Delta:
    """The change of one node in one epoch, in as many layouts as somebody asked for.

    Args:
        held: the change arranged, by layout.
        loose: the change as executors left it for the next operator.
        later: (change, row-wise operator, step): to be computed where it is needed, so that
            executors can do it on the way to the next operator.
        from_frame: whether it came as a Spark DataFrame.
    """

    __slots__ = ("_updates", "from_frame", "held", "later", "loose", "types")

    def __init__(
        self,
        types: tuple[str, ...],
        updates: Updates | None = None,
        held: dict[Layout, Held] | None = None,
        *,
        loose: Loose | None = None,
        later: tuple[Delta, Linear, Step] | None = None,
        from_frame: bool = False,
    ) -> None:
        self.types = types
        self._updates = updates
        self.held = held if held is not None else {}
        self.loose = loose
        self.later = later
        self.from_frame = from_frame

    def __len__(self) -> int:
        """The rows of the change; of one to be computed later, those it is computed from."""
        if self._updates is not None:
            return len(self._updates.diff)
        if self.later is not None:
            return len(self.later[0])
        if self.loose is not None:
            return sum(ref.rows for ref in self.loose.refs)
        return sum(len(p) for p in next(iter(self.held.values())).parts)

    @property
    def in_files(self) -> bool:
        """Whether the rows lie in part files, where executors can read them."""
        if self.later is not None:
            return self.later[0].in_files
        return self.loose is not None or any(held.refs for held in self.held.values())

    @property
    def updates(self) -> Updates:
        """The change as updates in any order."""
        if self._updates is None:
            if self.later is not None:
                source, operator, step = self.later
                step.deltas = (source.updates,)
                self._updates = operator.step(step) or no_updates(self.types)
            elif self.loose is not None:
                self._updates = concat_updates(self.loose.parts, self.types)
            else:
                held = next(iter(self.held.values()))
                self._updates = concat_updates([p.updates for p in held.parts], self.types)
        return self._updates

    def batch(self, layout: Layout) -> Batch:
        """The change arranged; consolidated even if the updates are not."""
        held = self.held.get(layout)
        if held is not None:
            return held.parts[0] if len(held.parts) == 1 else merge(layout, held.parts)
        other = next(iter(self.held.values()), None)
        if other is not None and len(other.parts) == 1:
            known = other.parts[0]
            batch = arrange(layout, known.updates, rhash=known.rhash)
        else:
            batch = arrange(layout, self.updates)
        self.held[layout] = Held((batch,))
        return batch

    def layer(self, layout: Layout, epoch: int) -> Layer:
        """The change as a layer over `[epoch, epoch + 1)`."""
        held = self.held.get(layout)
        if held is None or not held.refs:
            held = Held((self.batch(layout),))
        return Layer(epoch, epoch + 1, held.parts, held.refs)


class Done(NamedTuple):
    """What running one operator gave."""

    delta: Delta | None
    emitted: list[Held | None]
    touched: int
    placement: str


class Bulk(Protocol):
    """Runs an operator on Spark executors; see `nosync_nb.spark`."""

    def wants(self, node: Node, deltas: list[Delta | None], graph: Graph) -> bool:
        """Whether this run is for executors."""

    def run(
        self, node: Node, deltas: list[Delta | None], step: Step, graph: Graph, *, fuse: bool
    ) -> Done:
        """Runs it there; with `fuse`, leaves a row-wise operator to the one that reads it."""

    def inside(self, node: Node, step: Step) -> Place | None:
        """Where the kernels inside a loop may run; None: all of them here."""

    def cleanup(self) -> None:
        """Ends a run, whether it succeeded or not."""


class Work(NamedTuple):
    """What a stage did in an epoch, for people and for counters."""

    rows_out: int
    touched: int
    seconds: float
    placement: str


class Draft:
    """The state after an epoch, not yet visible."""

    __slots__ = ("deltas", "epoch", "logged", "merged", "traces", "work")

    def __init__(self, version: Version, epoch: int) -> None:
        self.epoch = epoch
        self.traces: dict[int, Trace] = dict(version.traces)
        self.deltas: dict[int, Delta] = {}
        self.logged: list[tuple[int, Layout, Held]] = []
        self.work: dict[str, Work] = {}
        self.merged = 0

    def version(self) -> Version:
        """The version this draft becomes."""
        return Version(self.epoch, self.traces)


class Runner:
    """Runs epochs and first runs over one graph.

    Args:
        evaluate: asks Spark for expressions that only it knows.
        bulk: decides on and performs runs on executors; None: all in process.
    """

    def __init__(
        self, graph: Graph, evaluate: Evaluate | None = None, bulk: Bulk | None = None
    ) -> None:
        self.graph = graph
        self.evaluate = evaluate
        self.bulk = bulk
        self.empty = {number: Trace(layout) for number, layout in graph.layouts()}

    def epoch(self, version: Version, inputs: Mapping[int, Delta], epoch: int) -> Draft:
        """Runs the changes of inputs through all stages.

        Cost: in proportion to the changes and what they touch, whatever the state holds.
        """
        draft = Draft(version, epoch)
        before = version.traces
        for node in self.graph:
            if node.frozen:
                continue
            if node.operator is None:
                delta = inputs.get(node.id)
                if delta is not None:
                    self._publish(node, delta, draft)
                continue
            deltas = [draft.deltas.get(i) for i in node.inputs]
            if any(d is not None for d in deltas):
                self._run(node, deltas, before, draft, first=False)
        return draft

    def first_run(self, version: Version, old: Graph, held: Graph | None = None) -> Draft:
        """Runs the nodes that `old` has not over everything their inputs hold now.

        The epoch does not advance. Traces that nodes of `old` were newly asked for are arranged
        from what they hold.
        """
        new = self.graph.nodes.keys() - old.nodes.keys()
        nodes = (held or old).nodes
        draft = Draft(version, version.epoch)
        whole: dict[int, Delta] = {}
        for node in self.graph:
            if node.id not in new:
                before = nodes.get(node.id)
                if before is not None:
                    self._rearrange(node, before, draft)
                continue
            if node.operator is None or node.frozen:
                continue
            deltas = [self._whole(i, draft, whole, new, nodes) for i in node.inputs]
            first = node.operator.global_row
            if first or any(d is not None for d in deltas):
                self._run(node, deltas, {}, draft, first=True)
        return draft

    def _contents(self, old: Node, draft: Draft) -> Delta:
        """Everything a node holds: as it lay before, in files if it did, and as rearranged."""
        delta = contents(old, draft.traces)
        for layout, number in self.graph.nodes[old.id].traces.items():
            trace = draft.traces.get(number)
            if layout not in delta.held and trace is not None and len(trace.layers) == 1:
                delta.held[layout] = Held(trace.layers[0].parts, trace.layers[0].files)
        return delta

    def _whole(
        self,
        node_id: int,
        draft: Draft,
        whole: dict[int, Delta],
        new: AbstractSet[int],
        before: Mapping[int, Node],
    ) -> Delta | None:
        """All that a node holds, as a change from nothing."""
        if node_id in new:
            return draft.deltas.get(node_id)
        if node_id not in whole:
            whole[node_id] = self._contents(before[node_id], draft)
        delta = whole[node_id]
        return delta if len(delta) else None

    def _rearrange(self, node: Node, old: Node, draft: Draft) -> None:
        """Makes the traces of a node that it did not have before."""
        missing = [each for each in node.traces.items() if each[1] not in old.traces.values()]
        delta = contents(old, draft.traces) if missing else None
        if delta:
            for layout, number in missing:
                layer = delta.layer(layout, draft.epoch)
                draft.traces[number] = self.empty[number].appended(layer)

    def _run(
        self,
        node: Node,
        deltas: list[Delta | None],
        before: Mapping[int, Trace],
        draft: Draft,
        *,
        first: bool,
    ) -> None:
        """Runs one operator, extends its own traces and publishes its output."""
        start = time.perf_counter()
        operator = node.operator
        assert operator is not None
        old: list[Trace | None] = []
        now: list[Trace | None] = []
        for layout, i in zip(operator.layouts, node.inputs, strict=True):
            number = None if layout is None else self.graph.nodes[i].traces[layout]
            old.append(None if number is None else before.get(number, self.empty[number]))
            now.append(None if number is None else draft.traces.get(number, self.empty[number]))
        state = [before.get(s, self.empty[s]) for s in node.state]
        step = Step((), old, now, state, stage=node.stage, first=first, evaluate=self.evaluate)
        if self.bulk is not None and self.bulk.wants(node, deltas, self.graph):
            fuse = node.log is None and isinstance(operator, Linear)
            done = self.bulk.run(node, deltas, step, self.graph, fuse=fuse)
        else:
            if not operator.spreads and self.bulk is not None:
                step.place = self.bulk.inside(node, step)
            done = in_process(node, deltas, step)
        for number, held in zip(node.state, done.emitted, strict=True):
            if held is not None:
                layout = self.empty[number].layout
                draft.logged.append((number, layout, held))
                layer = Layer(draft.epoch, draft.epoch + 1, held.parts, held.refs)
                self._append(number, layer, draft)
        rows_out = self._publish(node, done.delta, draft) if done.delta else 0
        self._account(node, done, rows_out, time.perf_counter() - start, draft)

    def _account(self, node: Node, done: Done, rows_out: int, seconds: float, draft: Draft) -> None:
        """Adds an operator's work to its stage's."""
        touched, placement = done.touched, done.placement
        rows_out = rows_out if node.name else 0
        old = draft.work.get(node.stage)
        if old is not None:
            touched, seconds = touched + old.touched, seconds + old.seconds
            placement = joined_placement(old.placement, placement)
            rows_out = rows_out if node.name else old.rows_out
        draft.work[node.stage] = Work(rows_out, touched, seconds, placement)

    def _publish(self, node: Node, delta: Delta, draft: Draft) -> int:
        """Makes a change the output of a node: logs it and appends it to the node's traces."""
        if node.log is None:
            draft.deltas[node.id] = delta
            return len(delta)
        layouts = (node.log_layout, *node.traces)
        filed = (delta.held[each] for each in layouts if each in delta.held)
        held = next((each for each in filed if each.refs), None)
        if held is None:
            # Any order consolidates, and what a trace has need not be arranged or written again;
            # the log's own order is made when history is packed or read.
            own = node.log_layout in node.traces
            batch = delta.batch(node.log_layout if own else next(iter(node.traces)))
            if not len(batch):
                return 0
            held = Held((batch,))
            delta = Delta(delta.types, batch.updates, delta.held)
        draft.deltas[node.id] = delta
        draft.logged.append((node.log, node.log_layout, held))
        for wanted, number in node.traces.items():
            self._append(number, delta.layer(wanted, draft.epoch), draft)
        return sum(map(len, held.parts))

    def _append(self, number: int, layer: Layer, draft: Draft) -> None:
        trace = draft.traces.get(number) or self.empty[number]
        if layer.files or (trace.layers and trace.layers[-1].upper > layer.lower):
            draft.traces[number] = trace.appended(layer)
            return
        draft.traces[number], merged = append(trace, layer)
        draft.merged += merged


def in_process(node: Node, deltas: list[Delta | None], step: Step) -> Done:
    """Runs an operator's kernel here."""
    operator = node.operator
    assert operator is not None
    given: list[Updates | Batch | None] = []
    for layout, delta in zip(operator.layouts, deltas, strict=True):
        if delta is None:
            given.append(None)
        else:
            given.append(delta.updates if layout is None else delta.batch(layout))
    step.deltas = given
    output = operator.step(step)
    emitted = [None if b is None or not len(b) else Held((b,)) for b in step.emitted]
    delta = None
    if output is not None and len(output.diff):
        delta = Delta(operator.types, output)
    return Done(delta, emitted, step.touched, step.placement or "in process")


def contents(node: Node, traces: Mapping[int, Trace]) -> Delta:
    """Everything a node holds, as one change; its layers' files are kept in sight."""
    for layout, number in node.traces.items():
        trace = traces.get(number)
        if trace is not None:
            return whole(node.types, layout, trace)
    return Delta(node.types, Trace(node.log_layout).updates())


def whole(types: tuple[str, ...], layout: Layout, trace: Trace) -> Delta:
    """All rows of a trace as one change."""
    layers = [layer for layer in trace.layers if layer.rows_count]
    if len(layers) == 1 and layers[0].files:
        return Delta(types, None, {layout: Held(layers[0].parts, layers[0].files)})
    batch = trace.consolidated()
    return Delta(types, batch.updates, {layout: Held((batch,))})


def joined_placement(old: str, new: str) -> str:
    """One text for the placements of several operators."""
    if not old or not new:
        return old or new
    return old if new in old else f"{old}, {new}"
