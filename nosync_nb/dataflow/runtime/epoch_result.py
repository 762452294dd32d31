"""Drafts: what follows from an epoch, before anybody sees it.

A `VersionState` is all that is visible after an epoch: traces by number. A `EpochResult` is made
over one, and becomes the next; until then it is nobody else's, so dropping it undoes all.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from nosync_nb.dataflow.graph import other_inputs
from nosync_nb.dataflow.runtime.delta import ArrangedChange, Delta, is_recent_layer
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
"""The rows of a layer in files, whatever they are."""


class VersionState(NamedTuple):
    """What is visible after an epoch."""

    epoch: int
    traces: Mapping[int, Trace]


class StageWork(NamedTuple):
    """What a stage did in an epoch, for people and for counters."""

    rows_out: int
    touched: int
    seconds: float
    placement: str
    why: str = ""
    """Why it ran there: the reason of the operator that had most rows, `weighed` of them."""
    weighed: int = 0


class EpochResult:
    """The state after an epoch, not yet visible.

    `largest`: no layer that the epoch made has more rows; one in files counts as endless. `due`:
    the traces of which layers may have to be merged; `stalls`: how often that could not wait;
    `cleared`: the traces that held something and were emptied before what is logged for them;
    `spare`: the files that its frame needs, and none of its traces.
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
        """Appends a layer to a trace."""
        trace = self.traces.get(number) or empty
        if layer.files or (trace.layers and trace.layers[-1].upper > layer.lower):
            self._appended(number, trace, trace.appended(layer), 0)
        else:
            self._appended(number, trace, *append_layer(trace, layer))

    def extend(self, number: int, empty: Trace, updates: Updates) -> None:
        """Appends few updates to a trace, in any order."""
        trace, epoch = self.traces.get(number) or empty, self.epoch
        if trace.layers and trace.layers[-1].upper > epoch:
            self.append(number, empty, is_recent_layer(updates, trace.layout, epoch))
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
        """Notes what has become of a trace."""
        self.merged += merged
        layers = trace.layers
        if len(layers) != len(before.layers) and is_due(trace):
            self.due.append(number)
            if len(layers) > STALL_LAYERS:  # they do not wait for the worker
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
        """Empties traces."""
        for number in numbers:
            trace = self.traces.get(number)
            if trace is not None and trace.layers:
                self.traces[number] = Trace(trace.layout)
                self.cleared.append(number)

    def forget(self, numbers: Iterable[int]) -> None:
        """Has some traces no more, as nobody needs them."""
        for number in numbers:
            self.traces.pop(number, None)

    def keep(self, numbers: Iterable[int]) -> None:
        """Has these traces and no other."""
        self.traces = {number: self.traces[number] for number in numbers if number in self.traces}

    def spares(self, files: Iterable[str]) -> None:
        """Notes files that its frame needs; its traces may need them too."""
        self.spare = set(files)

    def unlog(self, number: int) -> None:
        """Writes nothing to a log."""
        self.logged = [each for each in self.logged if each[0] != number]

    def of_logs(self, numbers: AbstractSet[int]) -> EpochResult:
        """What of it is to be written: changes of some logs, without traces."""
        part = EpochResult(VersionState(self.epoch, {}), self.epoch)
        part.logged = [each for each in self.logged if each[0] in numbers]
        part.cleared = [number for number in self.cleared if number in numbers]
        part.work = self.work
        return part

    def since(self, version: VersionState) -> dict[int, Trace]:
        """The traces that are other than in a version."""
        return other_inputs(self.traces, version.traces)

    def over(self, version: VersionState, before: VersionState) -> None:
        """Has what it changed of a version in the place of that in another one."""
        self.traces = {**version.traces, **self.since(before)}

    def version(self) -> VersionState:
        """The version this draft becomes."""
        return VersionState(self.epoch, self.traces)
