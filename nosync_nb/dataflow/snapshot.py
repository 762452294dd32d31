"""The snapshot: everything that a reader needs, behind one reference.

A commit, a definition or a merge creates a new snapshot and publishes it by one assignment. A
reader takes the session's snapshot once and works on it for any time, without a lock. Writers do
not decide by it: they hold the session's lock, under which no other snapshot is published.

Invariant: `graph`, `catalog` and `history` belong to one definition, and `history` has every epoch
up to that of `version`. Therefore the changes of an epoch enter the history before the epoch is
visible.

Failure: 1. A reader takes the graph, and the number of a stage's log from it. 2. Another thread
drops the stage, and the history forgets the log. 3. The reader asks the history, and gets an empty
stage. Therefore each snapshot has its own history: the lists of changes are shared, because they
only grow.
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
    """The traces, their graph and catalog, and the past, at one moment. It is immutable.

    IMPORTANT: `history` comes from `visible_columns`, so no later definition or pack changes it.
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
        """The inputs of each named collection, by name."""
        stages = self.catalog.values()
        return {s.name: s.definition.references if s.definition else () for s in stages}

    def advanced(self, version: VersionState) -> Snapshot:
        """Returns the snapshot after an epoch or a merge. Cost: below 1 us."""
        return Snapshot(version, self.graph, self.catalog, self.history)

    def stage(self, name: str) -> Stage:
        """Returns a named collection.

        Raises:
            StageError: the name is unknown; the message names a similar one.
        """
        stage = self.catalog.get(name)
        if stage is None:
            raise unknown_name_error(self.catalog, name)
        return stage

    def last(self, stage: Stage) -> int:
        """Returns the last epoch of a stage: that of the snapshot, unless the stage has stopped."""
        return stage.last(self.epoch)

    def contents(self, name: str) -> Trace:
        """Returns any trace of a named collection, at its current epoch."""
        layout, number = next(iter(self.graph.named[name].traces.items()))
        return self.version.traces.get(number) or Trace(layout)


def visible_columns(history: History) -> History:
    """Returns a view of a history: its current content, and all appends before its next pack."""
    return copy.copy(history)


def unknown_name_error(catalog: Mapping[str, Stage], name: str) -> StageError:
    """Returns the error for an unknown name."""
    near = get_close_matches(name, catalog, 1)
    known = f"did you mean '{near[0]}'? " if near else ""
    return StageError(
        f"there is no stage or input '{name}'",
        hint=f"{known}the stages and inputs are: {', '.join(catalog) or 'none'}",
        stage=name,
    )


def named_logs(nodes: Iterable[Node]) -> dict[int, str]:
    """Returns the logs of named collections among some nodes; they have a history."""
    return {n.log: n.name for n in nodes if n.name and n.log is not None}


def hidden_columns(history: History, logs: Mapping[int, str], catalog: Mapping[str, Stage]) -> None:
    """Hides the epochs that cannot be read separately: those before a stage, and skipped ones."""
    for number, name in logs.items():
        history.start_at(number, catalog[name].begin)
        for lower, upper in catalog[name].gaps:
            history.hide(number, lower, upper)
