"""Recent: what the frames after an epoch have changed, to be taken away from what is there now.

A layer that reaches beyond an epoch is what it was once its changes since are taken from it: as
layers add up, they are one more layer, with all signs turned. So a trace of any size goes back by
what was changed since, also one that has no history. That works for what frames hold themselves. Of
a trace that one of them names files of, empties, or that a definition wrote to, nothing is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Protocol

from nosync_nb.errors import CorruptLogError
from nosync_nb.files.disk import Files
from nosync_nb.store import journal
from nosync_nb.store.deferred import Deferred
from nosync_nb.store.journal import Entry
from nosync_nb.store.log import Frame, Log, codec
from nosync_nb.store.log.kept import kept
from nosync_nb.trace import Layer
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange

EPOCHS_MAX = 2048
"""So many epochs back frames are asked; further back few are kept, and there is much to undo."""


class KeepsFrames(Protocol):
    """A log with its disk; see `Store`."""

    files: Files
    log: Log


def frames(store: KeepsFrames, epoch: int, now: int) -> list[Frame]:
    """The frames that are kept of a log, if an epoch is recent.

    None if one is damaged: they only make cheap what can be had without them.
    """
    if now - epoch > EPOCHS_MAX:
        return []
    try:
        return kept(store.files, store.log.path, store.log.head)
    except CorruptLogError:
        return []


class Recent:
    """What some frames say of the epochs after one.

    Args:
        frames: all that are kept, oldest first.
        epoch: that is gone back to.

    Attributes:
        told: whether the frames of all epochs after it are among them.
    """

    def __init__(self, frames: Iterable[Frame], epoch: int) -> None:
        self.epoch = epoch
        self.told = False
        self._odd: set[int] = set()
        self._changes: dict[int, list[tuple[int, Entry]]] = {}
        for frame in frames:
            at = journal.epoch_of(frame.payload)
            if frame.kind == journal.EPOCH and at <= epoch:
                self._changes.clear()
                self.told = at == epoch
                self._odd.clear()  # what was defined before it counts
                continue
            if frame.kind == journal.REWIND:  # what the frames before it tell of was left
                self.told = False
                self._changes.clear()
                continue
            if at < epoch:
                continue
            payload = journal.unpack(frame.payload)
            self.told |= frame.kind == journal.EPOCH and payload.epoch == epoch + 1
            if frame.kind == journal.EPOCH:
                for each in payload.entries:
                    self._add(payload.epoch, each)
            else:
                self._odd.update(journal.changes([payload]))

    def _add(self, epoch: int, each: Entry) -> None:
        if each.kind == journal.INLINE:
            self._changes.setdefault(each.number, []).append((epoch, each))
        elif each.kind != journal.CLOCKS:
            self._odd.add(each.number)

    def before(self, layer: Layer, log: int, number: int, layout: Layout) -> list[Layer] | None:
        """A layer that reaches beyond the epoch as it was then; None if that is not told.

        Its own rows keep their files, and what is taken from them is a layer behind it, so that no
        row is made here. Both end at the epoch, as neither tells of one before it.

        Args:
            log, number: of its trace; of one without a log both are the same.
        """
        epoch = self.epoch
        if not self.told or {log, number} & self._odd:
            return None
        since = [entry.data for e, entry in self._changes.get(log, ()) if e < layer.upper]
        undone, count = partial(_undone, since, layout), sum(map(codec.rows_count, since))
        rows_count = max(1, layer.rows_count)
        had = Deferred(layer.lower, epoch + 1, rows_count, lambda: layer.parts, layer.files)
        if not since:
            return [had]
        return [had, Deferred(epoch, epoch + 1, count, lambda: (undone(),))]


def _undone(since: Sequence[bytes | memoryview], layout: Layout) -> Batch:
    """Changes with their signs turned."""
    return arrange(layout, Updates(*codec.decode_many(since, layout.types)).negated())
