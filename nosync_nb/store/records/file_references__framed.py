"""Framed: what one frame, or one checkpoint, names; read once for all who follow the same log.

Each replica is shipped to by somebody of its own, who reads the log himself, and a recovery reads
what each of them holds: the same bytes come by as often as there are replicas. What small ones name
is kept for the next one who asks; it follows from the bytes alone.

Memory: `_KNOWN_MAX` frames and as many checkpoints, of `_SMALL_BYTES` each at most, and
`_STRETCHES_MAX` stretches of the log of `_STRETCH_BYTES`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from nosync_nb.store import ownership_history
from nosync_nb.store.log import frames
from nosync_nb.store.log.frames import Damage, Frame, Mark
from nosync_nb.store.records import file_references, file_references__owed, payloads
from nosync_nb.store.records.file_references import FileReference
from nosync_nb.store.records.file_references__owed import Namers

_SMALL_BYTES = 1 << 13
_KNOWN_MAX = 1 << 8
_STRETCH_BYTES = 1 << 15
_STRETCHES_MAX = 1 << 5


class FrameFiles(NamedTuple):
    """The epoch of a frame, the files that it names, and for whom; nobody changes them.

    `said` is what it says of what is owed last; None if nothing.
    """

    epoch: int
    files: Mapping[str, FileReference]
    namers: Namers
    said: file_references__owed.ReplicationRequirement | None


class CheckpointFiles(NamedTuple):
    """The same of a checkpoint, and who owned the log before."""

    epoch: int
    files: Mapping[str, FileReference]
    namers: Namers
    said: file_references__owed.ReplicationRequirement | None
    reigns: ownership_history.Reigns


def scan_frames(data: bytes, origin: int, before: Mark) -> tuple[Sequence[Frame], Damage | None]:
    """The frames of a stretch of the log; see `frames.scan`."""
    return (_known_stretch if len(data) <= _STRETCH_BYTES else frames.scan_buffer)(
        data, origin, before
    )


def files_of_frame(payload: bytes | memoryview) -> FrameFiles:
    """What the payload of a frame names.

    Raises:
        CorruptLogError: it makes no sense.
    """
    if isinstance(payload, bytes) and len(payload) <= _SMALL_BYTES:
        return _known_frame(payload)
    return _frame(payload)


def files_of_checkpoint(payload: bytes) -> CheckpointFiles:
    """What the payload of a checkpoint names.

    Raises:
        CorruptLogError: it makes no sense.
    """
    return (_known_checkpoint if len(payload) <= _SMALL_BYTES else _checkpoint)(payload)


def _frame(data: bytes | memoryview) -> FrameFiles:
    payload = payloads.decode_payload(data)
    changes = payloads.entries_by_log([payload])
    files, namers = (
        file_references.file_references({}, [changes]),
        file_references__owed.required_by_changes(changes),
    )
    return FrameFiles(payload.epoch, files, namers, file_references__owed.requirement_of(payload))


def _checkpoint(data: bytes) -> CheckpointFiles:
    payload = payloads.decode_payload(data)
    files, namers = (
        file_references.file_references(payload.meta, ()),
        file_references__owed.required_by_checkpoint(payload),
    )
    reigns = ownership_history.decode_ownership(payload.meta)
    return CheckpointFiles(
        payload.epoch, files, namers, file_references__owed.requirement_of(payload), reigns
    )


_known_stretch = lru_cache(_STRETCHES_MAX)(frames.scan_buffer)
_known_frame = lru_cache(_KNOWN_MAX)(_frame)
_known_checkpoint = lru_cache(_KNOWN_MAX)(_checkpoint)
