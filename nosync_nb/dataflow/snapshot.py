"""The snapshot: everything that a reader needs, behind one reference.

A commit, a definition or a merge creates a new snapshot, and publishes it with one assignment. A
reader takes the session's snapshot once, and may use it for any time without a lock. A writer holds
the session's lock, so no other thread publishes a snapshot while it works.

The functions at the end read the rows of a named collection in a snapshot, at the current or at a
past epoch.

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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import NamedTuple

from nosync_nb.collections.position import Epoch
from nosync_nb.dataflow.graph import Graph, Node
from nosync_nb.dataflow.runtime.epoch_result import VersionState
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import CorruptLogError, StageError, TimeError
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Batch
from nosync_nb.trace.epoch_ranges import EpochRanges, check_readable
from nosync_nb.trace.history.history import History
from nosync_nb.trace.history.incremental_seek import NearbyState, nearby_state


class Snapshot(NamedTuple):
    """The state of a session at one moment: version, graph, catalog and history. Immutable.

    IMPORTANT: `history` comes from `visible_columns`, so no later definition or pack changes it.

    Attributes:
        rewinds: the number of rewinds of the log before it; the number of an epoch is unique only
            together with it.
    """

    version: VersionState
    graph: Graph
    catalog: Mapping[str, Stage]
    history: History
    rewinds: int = 0

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
        """Returns the snapshot after an epoch or a merge.

        Cost: below 1 us.
        """
        return Snapshot(version, self.graph, self.catalog, self.history, self.rewinds)

    def numbered_epoch(self, log: str) -> Epoch:
        """Returns the last epoch as a number that remembers which epoch it denotes.

        Args:
            log: the id of the log, in hex.
        """
        return Epoch(self.version.epoch, log, self.rewinds, self.graph.change_logs)

    def stage(self, name: str) -> Stage:
        """Returns a named collection.

        Raises:
            StageError: if the name is unknown; the hint names a similar one.
        """
        stage = self.catalog.get(name)
        if stage is None:
            raise unknown_name_error(self.catalog, name)
        return stage

    def last(self, stage: Stage) -> int:
        """Returns the last epoch of a stage: that of the snapshot, unless the stage has stopped."""
        return stage.last(self.epoch)

    def contents(self, name: str) -> Trace:
        """Returns one of the traces of a named collection, at its current epoch."""
        layout, number = next(iter(self.graph.named[name].traces.items()))
        return self.version.traces.get(number) or Trace(layout)


def visible_columns(history: History) -> History:
    """Returns a copy of a history, which shares its lists of changes.

    The copy also has later appends, up to the next pack.
    """
    return copy.copy(history)


def unknown_name_error(catalog: Mapping[str, Stage], name: str) -> StageError:
    """Returns the error for an unknown name of a stage or input, with a similar name as hint."""
    near = get_close_matches(name, catalog, 1)
    known = f"did you mean '{near[0]}'? " if near else ""
    return StageError(
        f"there is no stage or input '{name}'",
        hint=f"{known}the stages and inputs are: {', '.join(catalog) or 'none'}",
        stage=name,
    )


def named_logs(nodes: Iterable[Node]) -> dict[int, str]:
    """Returns the names of collections by the number of their log; these logs have a history."""
    return {n.log: n.name for n in nodes if n.name and n.log is not None}


def hidden_columns(history: History, logs: Mapping[int, str], catalog: Mapping[str, Stage]) -> None:
    """Hides epochs of some logs in a history: those before the stage began, and its gaps.

    Args:
        logs: the names of the collections, by the number of their log.
    """
    for number, name in logs.items():
        history.start_at(number, catalog[name].begin)
        for lower, upper in catalog[name].gaps:
            history.hide(number, lower, upper)


def collection_state(seen: Snapshot, name: str, epoch: int) -> Batch:
    """Returns the rows of a named collection at an epoch; see `trace_at`."""
    trace = trace_at(seen, name, epoch)[1]
    with _name_in_errors(seen.stage(name)):
        return trace.consolidated()


@contextmanager
def _name_in_errors(stage: Stage) -> Iterator[None]:
    """Adds the name of the collection to the error of a damaged file."""
    try:
        yield
    except CorruptLogError as error:
        kind = "input" if stage.is_input else "stage"
        error.add_note(f"It has rows of {kind} '{stage.name}'.")
        raise


def rows_count(seen: Snapshot, name: str, epoch: int) -> int:
    """Returns the number of rows of a named collection at an epoch, duplicates included.

    It is 0 if the collection cannot be read there, as after a rewind to before all epochs of a
    stage that has stopped.
    """
    try:
        return int(collection_state(seen, name, epoch).diff.sum())
    except TimeError:
        return 0


def trace_at(
    seen: Snapshot, name: str, at: int | None, known: Iterable[NearbyState] = ()
) -> tuple[int, Trace]:
    """Returns the number of an epoch, and a trace with the state of a collection at that epoch.

    Args:
        at: the epoch; `None` means the last one.
        known: states of the collection at other epochs, from a cache of the caller.

    Raises:
        TimeError: if the collection cannot be read at the epoch.
        CorruptLogError: if a file is missing or damaged; names the file and the collection.

    Cost: in proportion to the changes since the nearest epoch whose state is known.
    """
    stage, node = seen.stage(name), seen.graph.named[name]
    last = seen.last(stage)
    epoch = (last if stage.frozen else seen.epoch) if at is None else at
    now = _current_trace(seen, name, stage)
    if epoch == last and stage.has(epoch):
        return epoch, Trace(node.log_layout) if now is None else now
    assert node.log is not None
    check_epoch(seen, stage, epoch)
    nearest = [*known] if now is None else [NearbyState(last, now), *known]
    with _name_in_errors(stage):
        return epoch, nearby_state(seen.history, node.log, node.log_layout, epoch, nearest)


def _current_trace(seen: Snapshot, name: str, stage: Stage) -> Trace | None:
    """Returns a trace of a named collection at its last epoch; None if no trace has it."""
    if not stage.has(seen.last(stage)):
        return None
    numbers = seen.graph.named[name].traces.values()
    traces = (seen.version.traces.get(number) for number in numbers)
    return next((trace for trace in traces if trace is not None), None)


def last_shown(seen: Snapshot, stage: Stage) -> int | None:
    """Returns the last epoch at which a stopped stage can be read; None if there is none."""
    last, log = seen.last(stage), seen.graph.named[stage.name].log
    if stage.has(last):
        return last
    epochs = [] if log is None else seen.history.epochs(log, last)
    return epochs[-1][-1] if epochs else None


def has_lost_state(stage: Stage, epoch: int) -> bool:
    """Returns True if a stage was in memory only, and its rows at an epoch are lost."""
    return stage.in_memory and any(lower <= epoch < upper for lower, upper in stage.gaps)


def check_epoch(seen: Snapshot, stage: Stage, epoch: int) -> None:
    """Raises TimeError, with the reason and a hint, if a stage cannot be read at an epoch."""
    last = seen.last(stage)
    log = seen.graph.named[stage.name].log
    readable = [] if log is None or stage.reason is None else seen.history.epochs(log, last)
    forgotten = has_lost_state(stage, epoch)
    if stage.reason is not None and (epoch > last or not (readable or forgotten)):
        was = f", or read its last rows: .rows(at={readable[-1][-1]})" if readable else ""
        raise TimeError(
            f"stage '{stage.name}' is stale since epoch {last}: {stage.reason}",
            hint=f"run the cell that defines it{was}",
        )
    if forgotten:
        raise TimeError(
            f"stage '{stage.name}' was stored in memory only, and its rows are lost",
            hint="run the cell that defines it; from another process, read it in the session that"
            " owns the log",
        )
    check_readable(stage.name, epoch, EpochRanges.from_ranges(range(stage.begin, last + 1)))
