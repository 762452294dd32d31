"""The result of an epoch, before it is published.

A `VersionState` is the visible state after an epoch: the traces by number. An `EpochResult` is
built over a version. When it is published, it becomes the next version. Until then no other object
references it, so dropping it undoes the whole epoch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from nosync_nb.dataflow.graph import changed_items
from nosync_nb.dataflow.runtime.delta import ArrangedChange, Delta, unordered_layer
from nosync_nb.trace import (
    STALL_LAYERS,
    Layer,
    Trace,
    append_layer,
    append_young,
    is_due,
    relieve_backlog,
)
from nosync_nb.trace.batch import Layout, Updates
from nosync_nb.trace.compaction import grow_layer

ENDLESS = sys.maxsize
"""The value of `EpochResult.largest` if a layer is in files, whatever its row count is."""


class VersionState(NamedTuple):
    """The visible state after an epoch."""

    epoch: int
    traces: Mapping[int, Trace]


class StageWork(NamedTuple):
    """The work of a stage in an epoch, for status output.

    Attributes:
        rows_out: the number of rows in the change of the stage.
        touched: the number of rows that its operators touched.
        seconds: the duration of its operators.
        placement: the place where its operators ran.
        weighed: the number of rows in the cost estimate for which `why` is the reason.
        from_scratch: the number of operators that ran over the contents of their inputs, because
            that was cheaper than to follow the changes; see `large_epoch.py`.
    """

    rows_out: int
    touched: int
    seconds: float
    placement: str
    why: str = ""
    """The reason for the placement of the operator with the most rows in its cost estimate."""
    weighed: int = 0
    from_scratch: int = 0


class EpochResult:
    """The state after an epoch, which is not visible yet: a draft of the next version.

    Attributes:
        epoch: the number of the epoch.
        traces: the traces by number.
        deltas: the changes of nodes that later nodes may read, by number of the node.
        logged: the records of the epoch, as (number of the log or trace, layout, change).
        work: the work of each stage, by name.
        merged: the number of rows that were merged.
        stalls: the number of merges that could not wait for the background worker.
        due: the traces whose layers may have to be merged.
        cleared: the non-empty traces that were emptied; the log empties them before its records.
        spare: the files that only the frame of the epoch needs, and none of its traces.
        largest: the maximum row count of a layer of this epoch; `ENDLESS` if one is in files.
    """

    __slots__ = (
        "cleared",
        "deltas",
        "due",
        "epoch",
        "largest",
        "logged",
        "merged",
        "spare",
        "stalls",
        "traces",
        "work",
    )

    def __init__(self, version: VersionState, epoch: int, *, largest: int = ENDLESS) -> None:
        self.epoch = epoch
        self.traces: dict[int, Trace] = dict(version.traces)
        self.deltas: dict[int, Delta] = {}
        self.logged: list[tuple[int, Layout, ArrangedChange]] = []
        self.work: dict[str, StageWork] = {}
        self.merged = 0
        self.stalls = 0
        self.due: list[int] = []
        self.cleared: list[int] = []
        self.spare: set[str] = set()
        self.largest = largest

    def append(self, number: int, empty: Trace, layer: Layer) -> None:
        """Appends a layer to a trace.

        Args:
            empty: the trace to begin with, if the draft has none of this number.
        """
        trace = self.traces.get(number) or empty
        if layer.files or (trace.layers and trace.layers[-1].upper > layer.lower):
            self._appended(number, trace, trace.appended(layer), 0)
        else:
            self._appended(number, trace, *append_layer(trace, layer))

    def extend(self, number: int, empty: Trace, updates: Updates) -> None:
        """Appends a few unordered updates to a trace; see `append`."""
        trace, epoch = self.traces.get(number) or empty, self.epoch
        if trace.layers and trace.layers[-1].upper > epoch:
            self.append(number, empty, unordered_layer(updates, trace.layout, epoch))
            return
        grown = grow_layer(trace, updates, epoch)
        if grown is None:
            self._appended(number, trace, *append_young(trace, updates, epoch))
            return
        self.traces[number] = grown
        rows_count = grown.layers[-1].rows_count
        if rows_count > self.largest:
            self.largest = rows_count

    def _appended(self, number: int, before: Trace, trace: Trace, merged: int) -> None:
        """Records the new value of a trace, and merges layers if there are too many of them.

        Args:
            merged: the number of rows that were merged for the new value.
        """
        self.merged += merged
        layers = trace.layers
        if len(layers) != len(before.layers) and is_due(trace):
            self.due.append(number)
            if len(layers) > STALL_LAYERS:  # too many layers to wait for the worker
                trace, merged = relieve_backlog(trace)
                self.merged += merged
                self.stalls += merged > 0
        self.traces[number] = trace
        last = layers[-1]
        if last.files:
            self.largest = ENDLESS
        elif last.rows_count > self.largest:
            self.largest = last.rows_count

    def clear(self, numbers: Iterable[int]) -> None:
        """Empties some traces."""
        for number in numbers:
            trace = self.traces.get(number)
            if trace is not None and trace.layers:
                self.traces[number] = Trace(trace.layout)
                self.cleared.append(number)

    def forget(self, numbers: Iterable[int]) -> None:
        """Drops some traces."""
        for number in numbers:
            self.traces.pop(number, None)

    def keep(self, numbers: Iterable[int]) -> None:
        """Drops all traces except these."""
        self.traces = {number: self.traces[number] for number in numbers if number in self.traces}

    def spares(self, files: Iterable[str]) -> None:
        """Records files that the frame of the epoch needs; some of its traces may need them too."""
        self.spare = set(files)

    def unlog(self, number: int) -> None:
        """Removes the records of a log."""
        self.logged = [each for each in self.logged if each[0] != number]

    def of_logs(self, numbers: AbstractSet[int]) -> EpochResult:
        """Returns a draft with the records of some logs, and without traces, for writing."""
        part = EpochResult(VersionState(self.epoch, {}), self.epoch)
        part.logged = [each for each in self.logged if each[0] in numbers]
        part.cleared = [number for number in self.cleared if number in numbers]
        part.work = self.work
        return part

    def since(self, version: VersionState) -> dict[int, Trace]:
        """Returns the traces that differ from a version."""
        return changed_items(self.traces, version.traces)

    def over(self, version: VersionState, before: VersionState) -> None:
        """Rebases the draft: applies its changes of `before` to another version."""
        self.traces = {**version.traces, **self.since(before)}

    def version(self) -> VersionState:
        """Returns the version that this draft becomes."""
        return VersionState(self.epoch, self.traces)
