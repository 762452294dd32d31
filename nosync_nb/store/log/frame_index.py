"""Kept: the frames of a log that can be read at all, as segments before them were trimmed.

They reach back to the oldest checkpoint that is there, at least, and some more if there are few:
what a checkpoint holds is not needed a second time, but by who goes back a little. A checkpoint
ends the segment before it, unless that is short, which goes with the checkpoint after the next.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from nosync_nb.errors import CorruptLogError, DurabilityError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.log import checkpoint, segments, tail
from nosync_nb.store.log.checkpoint import HEADER_BYTES
from nosync_nb.store.log.frames import Frame, Mark, Position, check_frame
from nosync_nb.store.log.segments import Chain, Segment

FIRST_BYTES = 1 << 12


def checkpoint_states(files: Files, folder: str) -> list[tuple[int, bytes]]:
    """The checkpoints that are kept and can be read, oldest first, each with its last frame."""
    made = []
    for name in reversed(checkpoint.checkpoint_names(files.names(folder))):
        state = checkpoint.read_checkpoint(files, folder, name)
        if isinstance(state, checkpoint.Checkpoint):
            made.append((state.mark.seq, state.payload))
    return made


def retained_frames(
    files: Files,
    folder: str,
    head: Mark,
    enough: Callable[[Sequence[Frame]], bool] = lambda frames: False,
) -> list[Frame]:
    """Every frame that is kept, up to a mark, in order.

    Failure: 1. Someone goes back an epoch, and lists the segments. 2. The worker trims the oldest.
    3. It is to be read, and is gone. Hence what went meanwhile is not asked for again.

    Args:
        head: as far as frames were written, by who asks; segments may be trimmed meanwhile.
        enough: told of the frames of a segment, whether those before are needed as well.

    Raises:
        CorruptLogError: one is damaged or missing.

    Cost: some us a frame; at most what follows two checkpoints, and two segments of short frames.
    """
    while True:
        names = files.names(folder)
        try:
            return _read(files, folder, names, head, enough)
        except (CorruptLogError, DurabilityError):
            if set(names) <= set(files.names(folder)):
                raise


def first_retained(files: Files, folder: str, head: Mark) -> Frame | None:
    """The first frame that is kept; None if none is, it is damaged or was trimmed meanwhile.

    Cost: one read of a few kB, whatever follows.
    """
    try:
        kept, _ = _segments(files, folder, files.names(folder), head)
        if not kept or kept[0].start.offset >= head.offset:
            return None
        start = kept[0].start
        position, at = Position(start.seq + 1, start.offset), kept[0].local(start.offset)
        file = files.open(os.path.join(folder, kept[0].name))
        try:
            frame = check_frame(file.read_at(at, FIRST_BYTES), position)
            if isinstance(frame, int):
                frame = check_frame(file.read_at(at, frame), position)
        finally:
            file.close()
    except (CorruptLogError, DurabilityError):
        return None
    return None if isinstance(frame, int) else frame


def _segments(
    files: Files, folder: str, names: Sequence[str], head: Mark
) -> tuple[list[Segment], Chain]:
    """The segments of a listing that hold what is kept, oldest first, and what they are of.

    Raises:
        CorruptLogError: one that is needed is missing.
    """
    since = 0
    for name in reversed(checkpoint.checkpoint_names(names)):
        file = files.open(os.path.join(folder, name))
        try:
            mark = checkpoint.mark_of(file.read_at(0, HEADER_BYTES))
        finally:
            file.close()
        if mark is not None:
            since = mark.offset
            break
    chain = segments.linked_segments(files, folder, names, since=since)
    if chain.missing is not None and not chain.live:
        raise CorruptLogError(f"'{os.path.join(folder, chain.missing)}' is missing")
    if not chain.live or chain.live[0].start.offset > head.offset:
        return [], chain
    older, _ = segments.previous_segments(files, folder, chain.live[0].before, 0)
    return [*older, *chain.live], chain


def _read(
    files: Files,
    folder: str,
    names: Sequence[str],
    head: Mark,
    enough: Callable[[Sequence[Frame]], bool],
) -> list[Frame]:
    """See `kept`; of the files of a listing."""
    every, chain = _segments(files, folder, names, head)
    read: list[Frame] = []
    upto, after = head.offset, None
    for segment in reversed(every):
        own = chain._replace(live=[segment], detached=[] if after else chain.detached)
        some = tail.read_tail(files, folder, own, segment.start, upto=upto).frames
        if after is not None and (some[-1].end if some else segment.start) != after:
            raise CorruptLogError(
                f"'{os.path.join(folder, segment.name)}' does not end where the next one begins",
                hint="restore the file from a copy; nothing in the segments was changed",
            )
        read = [*some, *read]
        if enough(some):
            break
        upto, after = segment.start.offset, segment.start
    return read
