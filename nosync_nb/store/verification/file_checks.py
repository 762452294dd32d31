"""Checks the bytes of one file of a log, wherever they come from.

    rows_damage             a file of rows: by its size and digest in the log, and its checksums
    checkpoint_damage       a checkpoint: by its own checksums
    closed_segment_damage   a segment: its frames lead to the mark that its successor records
    walk_frames             the frames of a segment, and the gaps between them

This is the only verifier of the format. The owner verifies its log with it (survey.py, verify.py).
The keeper verifies every file that it scrubs and every byte that it ships. A restore verifies every
file that it fetches.

Recovery stops at the first frame that does not follow its predecessor, because the lost bytes may
have been anything. Verification reports which frames are lost, and reads all others. After a gap it
continues at the next header that fits its position, with the digest before that header. So an
intact frame next to a damaged one is not reported as damaged.

Each replica has a worker that reads the log on its own, and a restore reads the log of each
replica. So the frames of short stretches are cached, because they depend on the bytes alone.

Memory: a piece of the file, or the largest frame; `_STRETCHES_MAX` stretches of `_STRETCH_BYTES`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

from nosync_nb.store.log import checkpoint, frames, segments
from nosync_nb.store.log.frames import Damage, Frame, FramePosition, Mark
from nosync_nb.store.log.segments import Segment
from nosync_nb.trace import checksums
from nosync_nb.trace.checksums import FileDamage, Read, Watch

_PIECE = 1 << 20
_TRIES_MAX = 64
_STRETCH_BYTES = 1 << 15
_STRETCHES_MAX = 1 << 5


class RowsFile(Protocol):
    """The record of a file of rows in the log."""

    @property
    def name(self) -> str:
        """A plain file name."""

    @property
    def size(self) -> int | None:
        """The size of the file in bytes; None if only a pack records it."""

    @property
    def digest(self) -> str | None:
        """The digest of the file; None if only a pack records it."""


def rows_damage(
    read: Read, size: int, recorded: RowsFile, watch: Watch | None = None
) -> list[FileDamage]:
    """Returns the damage of a file of rows; empty if it is the recorded one.

    Args:
        size: the size of the file in bytes.
        recorded: the record of the file in the log.
        watch: see `checksums.file_damage`.
    """
    if recorded.size is not None and size != recorded.size:
        return [FileDamage(f"it has {size} bytes, not {recorded.size}")]
    return checksums.file_damage(recorded.name, read, size, recorded.digest, watch)


def checkpoint_damage(data: bytes, name: str, path: str) -> str:
    """Returns the damage of a checkpoint with these bytes; empty if it is intact."""
    state = checkpoint.decode_checkpoint(data, name, path)
    return state if isinstance(state, str) else ""


def closed_segment_damage(read: Read, recorded: Segment | None, successor: Segment) -> str:
    """Returns the damage of a segment that has a successor; empty if the segment is intact.

    Args:
        recorded: the header of the segment; `None` uses the header in the file.
    """
    header, end = read(0, segments.HEADER_BYTES), successor.start
    segment = recorded or segments.decode_header(header)
    if segment is None or header != segments.encode_header(segment):
        return "its header does not match its checksum"
    if (segment.key, segment.log_id) != (successor.before, successor.log_id):
        return "it is another segment"
    last: Mark = segment.start
    for each in walk_frames(read, segment, end.offset):
        if isinstance(each, FrameGap):
            return f"frame {each.seq}: {each.reason}"
        last = each.end
    return "" if last == end else "its frames do not continue with those after it"


class FrameRun(NamedTuple):
    """Consecutive frames of a segment, at least one, and their bytes."""

    data: bytes
    frames: Sequence[Frame]


class FrameGap(NamedTuple):
    """A gap in the stream of frames: bytes that contain no valid next frame.

    Attributes:
        offset: the offset of the gap in the stream.
        seq: the number of the first missing frame.
        upto: the number of the first frame after the gap; None if no frame follows.
        reason: the reason why the next frame is invalid, in words.
    """

    offset: int
    seq: int
    upto: int | None
    reason: str

    @property
    def frames(self) -> str:
        """The missing frames in words."""
        if self.upto is None:
            return f"frame {self.seq} and what follows it"
        if self.upto > self.seq + 1:
            return f"frames {self.seq} to {self.upto - 1}"
        return f"frame {self.seq}"


def walk_frames(read: Read, segment: Segment, stop: int) -> Iterator[Frame | FrameGap]:
    """Yields the frames of a segment up to `stop`, where a frame ends, and the gaps between them.

    Args:
        read: returns bytes of the segment's file.
    """
    for each in walk_runs(read, segment, stop):
        if isinstance(each, FrameGap):
            yield each
        else:
            yield from each.frames


def walk_runs(
    read: Read, segment: Segment, stop: int, *, start: Mark | None = None, resume: bool = True
) -> Iterator[FrameRun | FrameGap]:
    """Yields runs of frames with their bytes, and the gaps between them; see `walk_frames`.

    Args:
        start: the mark of the segment at which to begin; `None` means the first one.
        resume: True continues after a gap; False ends at the first gap.
    """
    end, size = start or segment.start, _PIECE
    while end.offset < stop:
        most = min(size, stop - end.offset)
        data = read(segment.local(end.offset), most)
        complete, damage = scan_frames(data, end.offset, end)
        if complete:
            last = complete[-1].end
            yield FrameRun(data[: last.offset - end.offset], complete)
            end, size = last, _PIECE
            continue
        need = frames.bytes_needed(data, end) if len(data) == most < stop - end.offset else 0
        if need:
            size = need
            continue
        reason = damage.reason if damage and data else "the file ends before it"
        resumed = _resume_mark(read, segment, end, stop) if resume else None
        yield FrameGap(end.offset, end.seq + 1, resumed.seq + 1 if resumed else None, reason)
        if resumed is None:
            return
        end = resumed


def scan_frames(data: bytes, origin: int, before: Mark) -> tuple[Sequence[Frame], Damage | None]:
    """Returns the frames of a stretch of the log; see `frames.scan_buffer`."""
    return (_cached_stretch if len(data) <= _STRETCH_BYTES else frames.scan_buffer)(
        data, origin, before
    )


_cached_stretch = lru_cache(_STRETCHES_MAX)(frames.scan_buffer)


def _resume_mark(read: Read, segment: Segment, end: Mark, stop: int) -> Mark | None:
    """Returns the mark before the next valid frame after an invalid one; None if there is none.

    The successor of a frame with a damaged digest does not match the stored digest. Therefore the
    successor is also checked with the digest that the damaged frame should have.
    """
    search = end.offset
    for _ in range(_TRIES_MAX):
        position = _next_header(read, segment, search, stop)
        if position is None:
            return None
        at = segment.local(position.offset) - frames.TRAILER_BYTES
        stored = read(at, frames.DIGEST_BYTES)
        computed = _computed_digest(read, segment, end, position) if search == end.offset else None
        for chain in filter(None, (stored, computed)):
            mark = Mark(position.seq - 1, position.offset, chain)
            if _next_frame_is_valid(read, segment, mark, stop):
                return mark
        search = position.offset
    return None


def _next_header(read: Read, segment: Segment, behind: int, stop: int) -> FramePosition | None:
    """Returns the position of the next frame header after an offset; None if there is none.

    The pieces that are read overlap by one header, so that none is missed.
    """
    at = behind
    while at < stop:
        data = read(segment.local(at), min(_PIECE, stop - at))
        position = frames.continues_after(data, at, behind)
        if position is not None or len(data) < _PIECE:
            return position
        at += _PIECE - frames.HEADER_BYTES
    return None


def _computed_digest(
    read: Read, segment: Segment, end: Mark, position: FramePosition
) -> bytes | None:
    """Returns the digest that a damaged frame should have, from its bytes.

    Returns None unless this frame alone lies between the mark and the next header.
    """
    size = position.offset - end.offset
    if position.seq != end.seq + 2 or size < frames.OVERHEAD_BYTES:
        return None
    return frames.digest(end.chain, read(segment.local(end.offset), size))


def _next_frame_is_valid(read: Read, segment: Segment, mark: Mark, stop: int) -> bool:
    size = min(_PIECE, stop - mark.offset)
    data = read(segment.local(mark.offset), size)
    need = frames.bytes_needed(data, mark)
    if need > size:
        data = read(segment.local(mark.offset), min(need, stop - mark.offset))
    return bool(frames.scan_buffer(data, mark.offset, mark)[0])
