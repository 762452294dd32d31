"""Offloads large merges to the keeper, and verifies the files that it proposes.

A worker that merges many rows competes with commits for the interpreter, a core and memory. A log
with replicas has a keeper process, which can merge as well: it gets the files of the layers, and
answers with the files that it has made. No thread waits for it: the worker continues with younger
layers, and handles a proposal when it arrives. Without a keeper, and after any error of one, the
worker does the merge.

IMPORTANT: the answer of another process is a proposal. Its files are compared with their checksums,
must ascend without overlap, and must have the same sums as the merged layers: of counts, and of
counts times hashes of rows, because merging changes neither. They replace the layers only if these
are still live, like files that the worker wrote itself.
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
from nosync_nb.session.durability.replication import ReplicationService
from nosync_nb.store.replication.agent.offloaded_merges import LINE_MAX, MergeProposal, MergeRequest
from nosync_nb.store.store import Store
from nosync_nb.trace import Layer
from nosync_nb.trace.batch import Batch, Layout
from nosync_nb.trace.parts.part_file import FRAME, PartRef, frame_rows

LARGE_ROWS = 1 << 20
"""The fewest rows of an offloaded merge; the worker merges fewer in a fraction of a second."""

LOOSE = 8
"""At most one row in this many may be in memory; such rows are written to files first."""

SILENT_S = 60.0
"""Seconds without a message about merges after which the worker does them itself."""

STEP_ROWS = 1 << 18
"""Rows that are summed up in one step. Between steps other threads get the interpreter."""


class OffloadedMerge(NamedTuple):
    """A merge of layers of a trace, which are claimed for it."""

    number: int
    layout: Layout
    inputs: tuple[Layer, ...]

    @property
    def is_large(self) -> bool:
        """True if the merge is worth offloading: many rows, most of them in files."""
        count = sum(layer.rows_count for layer in self.inputs)
        loose = sum(layer.rows_count for layer in self.inputs if not layer.files)
        return count >= LARGE_ROWS and loose * LOOSE <= count

    def stem(self, count: int) -> str:
        """Returns the prefix of the names of its output files, which have `count` rows in total."""
        stem = f"trace{self.number}-{self.inputs[0].lower}-{self.inputs[-1].upper}"
        framed = 2 * sum(frame_rows(layer.files) for layer in self.inputs) >= count
        return FRAME + stem if framed else stem

    def release(self) -> None:
        """Releases the layers for other merges."""
        for layer in self.inputs:
            layer.release()


class OffloadedMerges:
    """The merges that were requested from the keeper of a log, and its answers.

    Any thread may call it. A proposal that came too late is recorded, because its files must be
    deleted.
    """

    def __init__(self, store: Store, replication: ReplicationService) -> None:
        self._store, self._replication = store, replication
        self._on_answer: list[Callable[[], object]] = []
        self._lock = threading.RLock()
        self._waiting: dict[int, OffloadedMerge] = {}  # guarded by `_lock`, as the attributes below
        self._answers: list[tuple[OffloadedMerge, tuple[PartRef, ...]]] = []
        self._unwanted: set[str] = set()
        self._last_number = 0
        self._last_answer = 0.0
        self._silent = False
        replication.on_merge(self.hear)

    def on_answer(self, notify: Callable[[], object]) -> None:
        """Registers a function to call, without a lock, when there is an answer to take."""
        self._on_answer.append(notify)

    def _notify(self) -> None:
        for notify in self._on_answer:
            notify()

    def register(self, merging: OffloadedMerge) -> int:
        """Registers a merge before it is requested; returns its number."""
        with self._lock:
            if not self._waiting:
                self._last_answer = time.monotonic()
            self._last_number += 1
            self._waiting[self._last_number] = merging
            return self._last_number

    def cancel(self, merge: int) -> bool:
        """Removes a merge that could not be requested; returns True if it was still waiting."""
        with self._lock:
            return self._waiting.pop(merge, None) is not None

    def hear(self, proposal: MergeProposal | None) -> None:
        """Handles an answer of the keeper, or the end of the keeper (None)."""
        if proposal is None:
            self.lose()
            return
        with self._lock:
            self._silent, self._last_answer = False, time.monotonic()
            merging = self._waiting.pop(proposal.merge, None) if proposal.done else None
            if merging is not None:
                self._answers.append((merging, proposal.files))
            elif proposal.done:
                self._unwanted.update(ref.path for ref in proposal.files)
        if proposal.done:
            self._notify()

    def lose(self, *, silent: bool = False) -> None:
        """Marks all requested merges as failed, because the keeper has ended or does not answer."""
        with self._lock:
            self._silent = silent
            self._answers += ((each, ()) for each in self._waiting.values())
            self._waiting.clear()
            answered = bool(self._answers)
        if answered:
            self._notify()

    def overdue(self) -> None:
        """Marks merges as failed if the keeper is silent; it gets no request until it answers."""
        if self._answers:  # an earlier attempt to take them has failed
            self._notify()
        if self._waiting and time.monotonic() - self._last_answer >= SILENT_S:
            self.lose(silent=True)

    def next(self) -> tuple[OffloadedMerge, tuple[PartRef, ...]] | None:
        """Returns the next answered merge with its files, if any; no files mean that it failed."""
        with self._lock:
            return self._answers.pop(0) if self._answers else None

    def unwanted(self) -> set[str]:
        """Returns the files of proposals that came too late, and forgets them."""
        with self._lock:
            unwanted, self._unwanted = self._unwanted, set()
            return unwanted

    def ask(self, merging: OffloadedMerge) -> bool:
        """Requests a merge of layers that are all in files; returns True if it was sent."""
        merge = self.register(merging)
        layers = tuple(layer.files for layer in merging.inputs)
        stem = merging.stem(sum(layer.rows_count for layer in merging.inputs))
        name = f"{stem}-g{self._store.log.generation}"
        line = MergeRequest(merge, name, merging.layout, layers).line
        sent = len(line) <= LINE_MAX and self._replication.ask(line)
        return sent or not self.cancel(merge)

    @property
    def ready(self) -> bool:
        """True if there is a keeper that takes requests."""
        return not self._silent and self._replication.ask(b"")

    def verified_parts(
        self, merging: OffloadedMerge, files: tuple[PartRef, ...]
    ) -> ArrangedChange | None:
        """Returns the memory-mapped files of a proposal; None if they are not the merged layers."""
        parts: tuple[Batch, ...] = ()
        with suppress(CorruptLogError):
            parts = tuple(self._store.checked_part(ref, merging.layout) for ref in files)
        merged = (part for layer in merging.inputs for part in layer.parts)
        if parts and _ascends(files, parts) and merge_checksum(parts) == merge_checksum(merged):
            return ArrangedChange(parts, files)
        return None


def merge_checksum(parts: Iterable[Batch]) -> tuple[int, int]:
    """Returns sums that merging does not change: of counts, and of counts times row hashes.

    Cost: O(n), in steps of `STEP_ROWS` rows.
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
    """Returns True if the rows of each part ascend, and the parts ascend without overlap."""
    if any(first.high > second.low for first, second in pairwise(files)):
        return False
    return all(bool((part.khash[1:] >= part.khash[:-1]).all()) for part in parts)
