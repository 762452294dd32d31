"""Merges elsewhere: large layers are merged by the keeper, which proposes files, and proven here.

A worker that merges many rows takes turns of the interpreter, of a core and of memory away from who
commits. Where a log has replicas it has a keeper, and that merges as well as anybody: it gets the
files of the layers, and says which files it has made of them. Nobody waits for it: the worker goes
on with what is younger, and looks at a proposal when there is one. A log without a keeper, and
whatever goes wrong with one, leaves the merge to the worker.

IMPORTANT: what another process says is a proposal. Its files are compared with their checksums,
have to ascend without overlap, and have to add up to what was merged: the sums of counts, and of
counts times hashes of rows, are those of the layers, as merging changes neither. Who asked takes
them in the place of the layers only if these are still live, like files that he wrote himself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from nosync_nb.dataflow.runtime.delta import ArrangedChange
from nosync_nb.errors import CorruptLogError
from nosync_nb.store.replication.agent.offloaded_merges import LINE_MAX, MergeProposal, MergeRequest
from nosync_nb.store.store import Store
from nosync_nb.trace import Layer
from nosync_nb.trace.batch import Batch, Layout
from nosync_nb.trace.parts.part_file import FRAME, PartRef, frame_rows

LARGE_ROWS = 1 << 20
"""From so many rows on a merge is asked for: fewer take the worker a fraction of a second."""

LOOSE = 8
"""At most one in so many of them is in memory, and written first."""

SILENT_S = 60.0
"""How long nothing is heard of merges until the worker does them himself."""

STEP_ROWS = 1 << 18
"""So many rows are added up at once: between two steps others get the interpreter."""


class OffloadedMerge(NamedTuple):
    """A merge: of which trace, and of which layers, that are claimed for it."""

    number: int
    layout: Layout
    inputs: tuple[Layer, ...]

    @property
    def is_large(self) -> bool:
        """Whether it is worth a keeper's while: many rows, most of which lie in files."""
        count = sum(layer.rows_count for layer in self.inputs)
        loose = sum(layer.rows_count for layer in self.inputs if not layer.files)
        return count >= LARGE_ROWS and loose * LOOSE <= count

    def stem(self, count: int) -> str:
        """How the names of its files begin, if it makes so many rows."""
        stem = f"trace{self.number}-{self.inputs[0].lower}-{self.inputs[-1].upper}"
        framed = 2 * sum(frame_rows(layer.files) for layer in self.inputs) >= count
        return FRAME + stem if framed else stem

    def release(self) -> None:
        """Others may merge the layers again."""
        for layer in self.inputs:
            layer.release()


class MergeProposals:
    """What a keeper was asked for, and what he says of it; any thread may say and ask.

    A proposal that nobody waits for any more is kept: its files have to go.

    Args:
        told: called, without a lock, when there is something to be taken.
    """

    def __init__(self, told: Callable[[], object]) -> None:
        self._told = told
        self._lock = threading.RLock()
        self._waiting: dict[int, OffloadedMerge] = {}  # with `_lock`, as what follows
        self._answers: list[tuple[OffloadedMerge, tuple[PartRef, ...]]] = []
        self._unwanted: set[str] = set()
        self._last = 0
        self._heard = 0.0
        self._silent = False

    def begin(self, merging: OffloadedMerge) -> int:
        """The number of a merge that is about to be asked for."""
        with self._lock:
            if not self._waiting:
                self._heard = time.monotonic()
            self._last += 1
            self._waiting[self._last] = merging
            return self._last

    def cancel(self, merge: int) -> bool:
        """Takes back one that could not be asked for; whether it still waited."""
        with self._lock:
            return self._waiting.pop(merge, None) is not None

    def hear(self, said: MergeProposal) -> None:
        """Takes what a keeper says."""
        with self._lock:
            self._silent, self._heard = False, time.monotonic()
            merging = self._waiting.pop(said.merge, None) if said.done else None
            if merging is not None:
                self._answers.append((merging, said.files))
            elif said.done:
                self._unwanted.update(ref.path for ref in said.files)
        if said.done:
            self._told()

    def lose(self, *, silent: bool = False) -> None:
        """Nothing comes of what a keeper was asked for: he has ended, or says nothing."""
        with self._lock:
            self._silent = silent
            self._answers += ((each, ()) for each in self._waiting.values())
            self._waiting.clear()
            some = bool(self._answers)
        if some:
            self._told()

    def overdue(self) -> None:
        """Sees whether a keeper has said nothing for long; then he is not asked until he does."""
        if self._answers:  # whoever was to take them has failed
            self._told()
        if self._waiting and time.monotonic() - self._heard >= SILENT_S:
            self.lose(silent=True)

    @property
    def silent(self) -> bool:
        """Whether he is not to be asked."""
        return self._silent

    def next(self) -> tuple[OffloadedMerge, tuple[PartRef, ...]] | None:
        """A merge of which all was said, with its files; none if it came to nothing."""
        with self._lock:
            return self._answers.pop(0) if self._answers else None

    def unwanted(self) -> set[str]:
        """The files that came when nobody waited for them any more, once."""
        with self._lock:
            unwanted, self._unwanted = self._unwanted, set()
            return unwanted


class OffloadedMerges:
    """Has large merges done by the keeper of a log.

    Args:
        told: see `MergeProposals`.
        ask: writes a line to him; whether there is one who can read it.

    Attributes:
        proposals: where his answers come.
    """

    def __init__(
        self, store: Store, told: Callable[[], object], ask: Callable[[bytes], bool]
    ) -> None:
        self.proposals = MergeProposals(told)
        self._store, self._ask = store, ask

    def ask(self, merging: OffloadedMerge) -> bool:
        """Asks for a merge of layers that all lie in files; whether he was asked."""
        merge = self.proposals.begin(merging)
        layers = tuple(layer.files for layer in merging.inputs)
        stem = merging.stem(sum(layer.rows_count for layer in merging.inputs))
        name = f"{stem}-g{self._store.log.generation}"
        line = MergeRequest(merge, name, merging.layout, layers).line
        sent = len(line) <= LINE_MAX and self._ask(line)
        return sent or not self.proposals.cancel(merge)

    @property
    def ready(self) -> bool:
        """Whether there is a keeper who can be asked."""
        return not self.proposals.silent and self._ask(b"")

    def proven(self, merging: OffloadedMerge, files: tuple[PartRef, ...]) -> ArrangedChange | None:
        """The files of a proposal, mapped; None if they are not the merge."""
        parts: tuple[Batch, ...] = ()
        with suppress(CorruptLogError):
            parts = tuple(self._store.checked_part(ref, merging.layout) for ref in files)
        merged = (part for layer in merging.inputs for part in layer.parts)
        if parts and _ascends(files, parts) and merge_checksum(parts) == merge_checksum(merged):
            return ArrangedChange(parts, files)
        return None


def merge_checksum(parts: Iterable[Batch]) -> tuple[int, int]:
    """What merging does not change of rows: the sum of their counts, and of counts times hashes.

    Cost: O(n), a step at a time.
    """
    count = hashes = 0
    for part in parts:
        for start in range(0, len(part), STEP_ROWS):
            step = part.slice(start, start + STEP_ROWS)
            diff = np.ascontiguousarray(step.diff)
            count += int(diff.sum())
            hashes += int(np.dot(step.rhash, diff.view(np.uint64)))  # beyond 64 bits it wraps
    return count, hashes % 2**64


def _ascends(files: tuple[PartRef, ...], parts: tuple[Batch, ...]) -> bool:
    """Whether parts are disjoint and ascend, each of them and one after the other."""
    if any(before.high > after.low for before, after in pairwise(files)):
        return False
    return all(bool((part.khash[1:] >= part.khash[:-1]).all()) for part in parts)
