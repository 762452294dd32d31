"""Recent: what the frames after an epoch have changed, to be taken from what is there now.

That is told of what frames hold themselves (`undone.py` takes it away). Of a trace that one of them
names files of, empties, or that a definition wrote to, nothing is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from nosync_nb.errors import CorruptLogError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.log import Frame, Log
from nosync_nb.store.log.frame_index import first_retained, retained_frames
from nosync_nb.store.records import payloads
from nosync_nb.store.records.payloads import PayloadEntry
from nosync_nb.store.undo__undone import Since

EPOCHS_MAX = 2048
"""So many epochs back frames are asked; further back few are kept, and there is much to undo."""


class FrameStore(Protocol):
    """A log with its disk; see `Store`."""

    files: Files
    log: Log


def recent_frames(
    store: FrameStore, epoch: int, now: int, rewinds: Iterable[tuple[int, int]]
) -> list[Frame]:
    """The frames after an epoch, and some before it, as far as they are kept, if it is recent.

    None if the first of them is not kept, or one is damaged: they only make cheap what can be had
    without them.

    Args:
        rewinds: the frame of each that is known, and the last epoch that it left.
    """
    if now - epoch > EPOCHS_MAX:
        return []

    def enough(frames: Sequence[Frame]) -> bool:
        # What is before an epoch up to this one says nothing of what follows; see `RecentFrames`.
        return any(
            each.kind == payloads.EPOCH and payloads.payload_epoch(each.payload) <= epoch
            for each in frames
        )

    oldest = first_retained(store.files, store.log.path, store.log.head)
    if oldest is not None and payloads.payload_epoch(oldest.payload) > epoch + 1:
        seq = oldest.position.seq
        if not any(seq <= frame and last <= epoch for frame, last in rewinds):
            return []  # epochs only count up from there
    try:
        return retained_frames(store.files, store.log.path, store.log.head, enough)
    except CorruptLogError:
        return []


class RecentFrames:
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
        self._changes: dict[int, list[tuple[int, PayloadEntry]]] = {}
        for frame in frames:
            at = payloads.payload_epoch(frame.payload)
            if frame.kind == payloads.EPOCH and at <= epoch:
                self._changes.clear()
                self.told = at == epoch
                self._odd.clear()  # what was defined before it counts
                continue
            if frame.kind == payloads.REWIND:
                self._leave(at)
            if at < epoch:
                continue
            payload = payloads.decode_payload(frame.payload)
            self.told |= frame.kind == payloads.EPOCH and payload.epoch == epoch + 1
            if frame.kind == payloads.EPOCH:
                for each in payload.entries:
                    self._add(payload.epoch, each)
            elif at > epoch:  # what a definition makes at the epoch itself is there then
                self._odd.update(payloads.entries_by_log([payload]))

    def _leave(self, last: int) -> None:
        """Takes none of what a rewind has left for what is there now."""
        self.told = last == self.epoch or (self.told and last > self.epoch)
        for number, own in self._changes.items():
            self._changes[number] = [each for each in own if each[0] <= last]

    def _add(self, epoch: int, each: PayloadEntry) -> None:
        if each.kind == payloads.INLINE:
            self._changes.setdefault(each.number, []).append((epoch, each))
        elif each.kind != payloads.CLOCKS:
            self._odd.add(each.number)

    def since(self, log: int, number: int) -> Since | None:
        """All changes of a trace after the epoch, oldest first; None if they are not told.

        Args:
            log, number: of the trace; of one without a log both are the same.
        """
        if not self.told or {log, number} & self._odd:
            return None
        return self._changes.get(log, ())
