"""Reads older frames: all that are retained, or one by its position.

The retained frames reach back at least to the oldest checkpoint, and further if there are few. A
recovery does not need the frames before a checkpoint, but a short rewind does. A checkpoint ends
the current segment, unless this segment is short. A short segment continues until a later
checkpoint.

A position is an offset in the stream of frames. The file that contains it is found through the
links between segments, which are followed back only as far as necessary.
"""

from __future__ import annotations

import bisect
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import closing
from threading import Lock
from typing import TypeVar

from nosync_nb.errors import CorruptLogError, DurabilityError
from nosync_nb.files.filesystem import File, Files, close_all
from nosync_nb.store.log import checkpoint, frames, recovery, segments
from nosync_nb.store.log.checkpoint import HEADER_BYTES
from nosync_nb.store.log.frames import Frame, FramePosition, Mark, check_frame
from nosync_nb.store.log.segments import Chain, Segment

FIRST_BYTES = 1 << 12
_OPEN_FILES_MAX = 16
_FIRST_READ_BYTES = 4096

Read = TypeVar("Read")


def checkpoint_states(files: Files, folder: str) -> list[tuple[int, bytes]]:
    """Returns the readable checkpoints, oldest first, each with the number of its last frame."""
    states = []
    for name in reversed(checkpoint.checkpoint_names(files.names(folder))):
        state = checkpoint.read_checkpoint(files, folder, name)
        if isinstance(state, checkpoint.Checkpoint):
            states.append((state.mark.seq, state.payload))
    return states


def retained_frames(
    files: Files,
    folder: str,
    head: Mark,
    enough: Callable[[Sequence[Frame]], bool] = lambda frames: False,
) -> list[Frame]:
    """Returns every retained frame up to a mark, in order.

    Failure: 1. A rewind lists the segments. 2. The worker trims the oldest one. 3. The rewind
    cannot read it. Hence after an error the segments are listed again, and read without the deleted
    ones.

    Args:
        head: the mark up to which frames are returned. Segments may be trimmed meanwhile.
        enough: returns True if the frames before those of a segment are not needed.

    Raises:
        CorruptLogError: a frame is damaged or missing.

    Cost: a few us for each frame. These are at most the frames after two checkpoints, and two
    segments of short frames.
    """
    while True:
        names = files.names(folder)
        try:
            return _read_segments(files, folder, names, head, enough)
        except (CorruptLogError, DurabilityError):
            if set(names) <= set(files.names(folder)):
                raise


def first_retained(files: Files, folder: str, head: Mark) -> Frame | None:
    """Returns the first retained frame; None if it is missing, damaged, or was trimmed meanwhile.

    Cost: one read of a few kB, independent of the number of frames.
    """
    try:
        retained, _ = _retained_segments(files, folder, files.names(folder), head)
        if not retained or retained[0].start.offset >= head.offset:
            return None
        start = retained[0].start
        position, at = FramePosition(start.seq + 1, start.offset), retained[0].local(start.offset)
        with closing(files.open(os.path.join(folder, retained[0].name))) as file:
            frame = check_frame(file.read_at(at, FIRST_BYTES), position)
            if isinstance(frame, int):
                frame = check_frame(file.read_at(at, frame), position)
    except (CorruptLogError, DurabilityError):
        return None
    return None if isinstance(frame, int) else frame


def _retained_segments(
    files: Files, folder: str, names: Sequence[str], head: Mark
) -> tuple[list[Segment], Chain]:
    """Returns the segments with retained frames, oldest first, and the chain of the listing.

    Raises:
        CorruptLogError: a segment that is needed is missing.
    """
    since = 0
    for name in reversed(checkpoint.checkpoint_names(names)):
        with closing(files.open(os.path.join(folder, name))) as file:
            mark = checkpoint.mark_of(file.read_at(0, HEADER_BYTES))
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


def _read_segments(
    files: Files,
    folder: str,
    names: Sequence[str],
    head: Mark,
    enough: Callable[[Sequence[Frame]], bool],
) -> list[Frame]:
    """Reads the frames of the files of a listing; see `retained_frames`."""
    retained, chain = _retained_segments(files, folder, names, head)
    read: list[Frame] = []
    upto, after = head.offset, None
    for segment in reversed(retained):
        piece = chain._replace(live=[segment], detached=[] if after else chain.detached)
        more = recovery.read_tail(files, folder, piece, segment.start, upto=upto).frames
        if after is not None and (more[-1].end if more else segment.start) != after:
            raise CorruptLogError(
                f"'{os.path.join(folder, segment.name)}' does not end where the next one begins",
                hint="restore the file from a copy; nothing in the segments was changed",
            )
        read = [*more, *read]
        if enough(more):
            break
        upto, after = segment.start.offset, segment.start
    return read


class FrameReader:
    """Reads frames by position, and caches a few open files. Any thread may call it."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files, self._folder = files, folder
        self._older_segments: list[Segment] = []
        self._open_files: OrderedDict[str, File] = OrderedDict()
        self._lock = Lock()

    def frame(self, position: FramePosition, live: Sequence[Segment]) -> Frame:
        """Reads and verifies the frame at `position`.

        Args:
            live: the newest segments, ascending.

        Raises:
            CorruptLogError: the frame is damaged, or its file is missing.

        Cost: one system call, 8 us, for a frame up to 4 KiB.
        """
        return self._read(position, live, _frame_at)

    def mark(self, position: FramePosition, live: Sequence[Segment]) -> Mark:
        """Returns the mark after the frame at `position`; does not read a large payload.

        Raises:
            CorruptLogError: the frame is damaged where it is read, or its file is missing.
        """
        return self._read(position, live, _mark_at)

    def _read(
        self,
        position: FramePosition,
        live: Sequence[Segment],
        read: Callable[[File, int, FramePosition], Read],
    ) -> Read:
        """Calls `read` with the file of a frame and the offset in it; errors name both."""
        with self._lock:
            segment = self._find_segment(position.offset, live)
            at = segment.local(position.offset)
            try:
                return read(self._open_file(segment.name), at, position)
            except CorruptLogError as error:
                path = os.path.join(self._folder, segment.name)
                raise CorruptLogError(
                    f"'{path}' is damaged at byte {at}: {error}",
                    hint="restore the file from a copy",
                ) from None

    def close(self) -> None:
        """Closes the cached files."""
        with self._lock:
            opened = list(self._open_files.values())
            self._open_files.clear()
            close_all(opened)

    def _find_segment(self, offset: int, live: Sequence[Segment]) -> Segment:
        """Returns the segment that contains an offset, following links as far as needed."""
        candidates = (
            live if live and live[0].start.offset <= offset else self._reach_back(offset, live)
        )
        index = bisect.bisect_right(candidates, offset, key=lambda one: one.start.offset) - 1
        return candidates[index]

    def _reach_back(self, offset: int, live: Sequence[Segment]) -> list[Segment]:
        if self._older_segments and self._older_segments[-1].key != live[0].before:
            self._older_segments = []
        first = self._older_segments[0] if self._older_segments else live[0]
        if first.start.offset > offset:
            path, broken = segments.previous_segments(
                self._files, self._folder, first.before, offset
            )
            if broken is not None or not path or path[0].start.offset > offset:
                name = segments.file_name(*(broken or first.before or (0, 0)))
                raise CorruptLogError(
                    f"'{os.path.join(self._folder, name)}' is missing or unreadable",
                    hint="restore the file from a copy",
                )
            self._older_segments = path + self._older_segments
        return self._older_segments

    def _open_file(self, name: str) -> File:
        file = self._open_files.pop(name, None) or self._files.open(
            os.path.join(self._folder, name)
        )
        self._open_files[name] = file
        if len(self._open_files) > _OPEN_FILES_MAX:
            self._open_files.popitem(last=False)[1].close()
        return file


def _frame_at(file: File, at: int, position: FramePosition) -> Frame:
    frame = check_frame(file.read_at(at, _FIRST_READ_BYTES), position)
    if isinstance(frame, int):
        frame = check_frame(file.read_at(at, frame), position)
    if isinstance(frame, int):
        raise CorruptLogError(f"frame {position.seq}: the file ends within the frame")
    return frame


def _mark_at(file: File, at: int, position: FramePosition) -> Mark:
    """Reads the mark after the frame at an offset, from its header and its trailer."""
    size = frames.size_of(file.read_at(at, frames.HEADER_BYTES), position)
    trailer = file.read_at(at + size - frames.TRAILER_BYTES, frames.TRAILER_BYTES)
    return frames.mark_after(trailer, position, size)
