"""Snapshot: all that a reader needs to see, behind one reference.

A commit, a definition, a merge makes a new snapshot and publishes it by one assignment; a reader
takes the session's snapshot once and works on it, however long, without a lock. It is not what
writers decide with: those hold the session's lock, under which nothing else is published.

Invariant: `graph`, `catalog` and `history` are of one definition, and `history` has every epoch up
to that of `version`. Hence what is published is complete before: the changes of an epoch are in
the history, then the epoch is visible.

Failure: 1. A reader takes the graph, and the number of a stage's log from it. 2. Somebody drops the
stage, and the history forgets the log. 3. The reader asks the history, and gets an empty stage.
Hence a snapshot has a history of its own: the lists of changes are shared, as they only grow.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import NamedTuple

from nosync_nb.dataflow.graph import Graph, Node
from nosync_nb.dataflow.runtime.epoch_result import VersionState
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import StageError
from nosync_nb.trace import Trace
from nosync_nb.trace.history.history import History


class Snapshot(NamedTuple):
    """The traces, what they belong to, and the past, at one moment. Nothing of it is changed.

    IMPORTANT: `history` is what `seen` makes, which no later definition or pack changes.
    """

    version: VersionState
    graph: Graph
    catalog: Mapping[str, Stage]
    history: History

    @property
    def epoch(self) -> int:
        """The last epoch."""
        return self.version.epoch

    @property
    def reads(self) -> dict[str, tuple[str, ...]]:
        """What each named collection reads, by name."""
        stages = self.catalog.values()
        return {s.name: s.definition.references if s.definition else () for s in stages}

    def advanced(self, version: VersionState) -> Snapshot:
        """The snapshot after an epoch or a merge. Cost: below 1 us."""
        return Snapshot(version, self.graph, self.catalog, self.history)

    def stage(self, name: str) -> Stage:
        """A named collection.

        Raises:
            StageError: if there is none; names a near one.
        """
        stage = self.catalog.get(name)
        if stage is None:
            raise unknown_name_error(self.catalog, name)
        return stage

    def last(self, stage: Stage) -> int:
        """The last epoch of a stage: that of the snapshot, unless it has stopped."""
        return stage.last(self.epoch)

    def contents(self, name: str) -> Trace:
        """Any trace of a named collection, as it is now."""
        layout, number = next(iter(self.graph.named[name].traces.items()))
        return self.version.traces.get(number) or Trace(layout)


def visible_columns(history: History) -> History:
    """A history as it is now, and with all that is appended to it before its next pack."""
    return copy.copy(history)


def unknown_name_error(catalog: Mapping[str, Stage], name: str) -> StageError:
    """The error of a name that is not known."""
    near = get_close_matches(name, catalog, 1)
    known = f"did you mean '{near[0]}'? " if near else ""
    return StageError(
        f"there is no stage or input '{name}'",
        hint=f"{known}known are: {', '.join(catalog) or 'none'}",
        stage=name,
    )


def named_logs(nodes: Iterable[Node]) -> dict[int, str]:
    """The logs of named collections among some nodes; they have a history."""
    return {n.log: n.name for n in nodes if n.name and n.log is not None}


def hidden_columns(history: History, logs: Mapping[int, str], catalog: Mapping[str, Stage]) -> None:
    """Makes unreadable what cannot be told apart: epochs before a stage, and those it skipped."""
    for number, name in logs.items():
        history.begin(number, catalog[name].begin)
        for lower, upper in catalog[name].gaps:
            history.hide(number, lower, upper)
