"""Replays frames during recovery, and skips those that a rewind has undone.

A replayed epoch counts with the definition that it was written for. After a rewind the log
continues from the epoch that the rewind names, as if no later epoch had been committed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from nosync_nb.errors import CorruptLogError
from nosync_nb.store.log import Frame
from nosync_nb.store.records import format_features, payloads
from nosync_nb.store.records.payloads import Payload, PayloadEntry

Changes = dict[int, list[tuple[int, PayloadEntry]]]
"""Entries by log or trace, each with its epoch, oldest first."""


class FrameContent(NamedTuple):
    """The decoded content of a frame."""

    seq: int
    kind: int
    payload: Payload


class FrameReplay:
    """Decodes frames in their order; each call continues after the previous one."""

    def __init__(self) -> None:
        self._pending: list[FrameContent] = []

    def contents_of(self, frames: Iterable[Frame]) -> list[FrameContent]:
        """Returns the contents of frames, in order.

        Replayed epochs are returned with the definition that they were written for. Those of a
        failed definition are dropped. If the frames end before the definition, the next call
        returns them.

        Raises:
            CorruptLogError: a frame makes no sense.
        """
        contents: list[FrameContent] = []
        unpack, new, plain = payloads.decode_payload, tuple.__new__, payloads.EPOCH
        for (seq, _), kind, data, _, _ in frames:  # runs for each frame of the log at every opening
            each = new(FrameContent, (seq, kind, unpack(data)))
            if kind == plain and not self._pending:
                contents.append(each)
                continue
            if each.kind not in payloads.KINDS:
                raise format_features.unknown_feature_error(f"a frame of kind {each.kind}")
            if each.kind == payloads.REPLAY:
                self._pending.append(each)
                continue
            count = each.payload.meta.get("replays", 0) if each.kind in payloads.DEFINES else 0
            if type(count) is not int or not 0 <= count <= len(self._pending):
                raise CorruptLogError(
                    f"frame {each.seq} defines stages with {count!r} replayed epochs, of which "
                    f"{len(self._pending)} precede it",
                    hint="restore the log from a copy",
                )
            contents += [*self._pending[len(self._pending) - count :], each]
            self._pending.clear()
        return contents


def rewind_target(tail: Iterable[FrameContent]) -> int | None:
    """Returns the earliest epoch that frames rewind to; None if there is no rewind."""
    return min((each.payload.epoch for each in tail if each.kind == payloads.REWIND), default=None)


def frame_changes(tail: Iterable[FrameContent]) -> Changes:
    """Returns the entries of frames, by log or trace, without those that a rewind has undone."""
    changes: Changes = {}
    run: list[Payload] = []
    for each in tail:
        if each.kind == payloads.REWIND:
            changes = _join_changes(changes, payloads.entries_by_log(run), each.payload.epoch)
            run = []
        run.append(each.payload)
    return (
        _join_changes(changes, payloads.entries_by_log(run))
        if changes
        else payloads.entries_by_log(run)
    )


def _join_changes(one: Changes, other: Changes, upto: int | None = None) -> Changes:
    """Returns changes and those that followed them, up to an epoch."""
    changes = {
        number: [*one.get(number, ()), *other.get(number, ())] for number in {**one, **other}
    }
    if upto is None:
        return changes
    remaining = (
        (number, [each for each in entries if each[0] <= upto])
        for number, entries in changes.items()
    )
    return {number: entries for number, entries in remaining if entries}
