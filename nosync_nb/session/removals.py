"""Removals: whether rows that were taken away were there.

To look costs as much as a small epoch. So the first epochs after a pause are looked at at once,
unless they take many rows away; those by the worker, of a long loop many together, and what it
finds is told with the next epoch: a row that was not there is below 0 until it comes. What waits
when a loop ends is looked at when its cell ends, or the session is closed; until then reading the
input tells. Who merges layers looks at the same rows: what he knows of an epoch is not looked at
again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from nosync_nb.dataflow.runtime.delta import Delta
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import warn
from nosync_nb.session.state.pending_changes import PendingInputChanges, rows_to_remove
from nosync_nb.session.writes.missing_rows import repair_of
from nosync_nb.trace import stats
from nosync_nb.trace.batch import Updates, row_text

REMOVALS_FREE, REMOVALS_WAITING, REMOVALS_PAUSE_S = 8, 2048, 0.5
"""Epochs that are looked at at once, changes that wait then, and the pause after which anew."""

REMOVALS_ROWS = 1 << 17
"""Of how many rows changes wait then."""

REMOVALS_BEHIND = 4
"""So many times as much waits until it is looked at at once: the worker is not free."""

_WHOLE = 1024
"""An epoch that takes away more rows than these is not looked at at once: the worker does."""


class Removing(NamedTuple):
    """The calls on an input of which some take rows away, and what its epoch made of them."""

    changes: PendingInputChanges
    made: Delta | None


class Taken(NamedTuple):
    """The change of an input that takes rows away, and the epoch that it is in."""

    stage: Stage
    updates: Updates
    epoch: int


class Removals:
    """Rows that were taken away, until somebody looks. All of it is done with the gate's lock."""

    __slots__ = ("_free", "_large", "_last", "_rows", "_untold", "_waiting")

    def __init__(self) -> None:
        self._untold: list[str] = []
        self._waiting: list[Taken] = []
        self._free = REMOVALS_FREE
        self._last = 0.0
        self._rows = 0  # that wait
        self._large = False  # whether the worker is not to wait for more

    @property
    def many(self) -> bool:
        """Whether enough wait to be looked at together."""
        return self._large or self._waits(1)

    @property
    def lacking(self) -> bool:
        """Whether there is something to be told of rows that were not there."""
        return bool(self._untold)

    def lack(self, untold: Sequence[str]) -> None:
        """Something is to be told of rows that were not there."""
        self._untold += untold

    def tellable(self) -> list[str]:
        """All that is to be told; nothing is then."""
        untold, self._untold = self._untold, []
        return untold

    def due(self, removing: Sequence[Removing], epoch: int) -> list[Taken]:
        """What is to be looked at now: nothing, or all that waited and what an epoch changed."""
        now = time.monotonic()
        if now - self._last > REMOVALS_PAUSE_S:
            self._free = REMOVALS_FREE
        self._last = now
        before = self._rows
        for changes, made in removing:
            if made is None:  # what it takes away it brings
                continue
            if len(made) <= _WHOLE:
                updates = made.updates  # as its trace has them
            else:  # do not keep what it brought
                updates = rows_to_remove(changes.parts, changes.stage.schema.types)
            self._rows += len(updates.diff)
            self._waiting.append(tuple.__new__(Taken, (changes.stage, updates, epoch)))
        at_once = self._waits(REMOVALS_BEHIND)
        if self._free:
            self._free -= 1
            many = self._rows - before > _WHOLE
            self._large, at_once = self._large or many, at_once or not many
        return self.waiting() if at_once else []

    def _waits(self, times: int) -> bool:
        """Whether so many times as much waits as is looked at together."""
        few = self._rows < times * REMOVALS_ROWS
        return not few or len(self._waiting) >= times * REMOVALS_WAITING

    def waiting(self) -> list[Taken]:
        """All that waited; nothing does then."""
        waiting, self._waiting, self._rows, self._large = self._waiting, [], 0, False
        return waiting


def absent(removals: Sequence[Taken], snapshot: Snapshot) -> list[str]:
    """What is to be told of rows that were taken away and were not there, by input."""
    due: dict[str, list[Taken]] = {}
    for each in removals:
        due.setdefault(each.stage.name, []).append(each)
    every = (_absent_of(taken, snapshot) for taken in due.values())
    return [each for each in every if each is not None]


def tell(lacking: Sequence[str]) -> None:
    """Warns of rows that were not there."""
    for each in lacking:
        warn(each, stacklevel=None)


def _absent_of(removals: Sequence[Taken], snapshot: Snapshot) -> str | None:
    """Names a row that was taken away and was not there: reading the input will raise."""
    stage = removals[0].stage
    name, types = stage.name, stage.schema.types
    if name not in snapshot.catalog or snapshot.stage(name).schema.types != types:
        return None  # dropped meanwhile, or it has other columns
    contents = snapshot.contents(name)
    known = stats.nonnegative_until(contents)
    parts = [each.updates for each in removals if each.epoch >= known]
    lacking = stats.lacking(contents, rows_to_remove(parts, types)) if parts else None
    if lacking is None:
        return None
    row = row_text(lacking.columns, types)
    more = len(lacking.diff) - 1
    others = f", and {more} more row{'' if more == 1 else 's'} below 0" if more else ""
    return (
        f"input '{name}': row {row} was removed and was not there: it is there now"
        f" {int(lacking.diff[0])} times{others}\n"
        f"Hint: reading '{name}' raises until it is repaired: {repair_of(stage, lacking)}"
    )
