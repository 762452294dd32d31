"""Reads the frames of one segment in order, with the gaps between them.

Recovery stops at the first frame that does not follow its predecessor, because the lost bytes may
have been anything. Verification reports which frames are lost, and reads all others. After a gap it
continues at the next header that fits its position, with the digest before that header. So an
intact frame next to a damaged one is not reported as damaged.

Memory: a piece of the file, or the largest frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from nosync_nb.store.log import frames
from nosync_nb.store.log.frames import Frame, Mark, Position
from nosync_nb.store.log.segments import Segment
from nosync_nb.trace.checksums import Read

_PIECE = 1 << 20
_TRIES_MAX = 64


class FrameGap(NamedTuple):
    """Bytes of the stream without a valid next frame: the offset, the frames and the reason.

    Attributes:
        seq: the number of the first missing frame.
        upto: the number of the first frame after the gap; None: no further frame.
        reason: in words.
    """

    offset: int
    seq: int
    upto: int | None
    reason: str

    @property
    def frames(self) -> str:
        """The missing frames, for people."""
        if self.upto is None:
            return f"frame {self.seq} and what follows it"
        if self.upto > self.seq + 1:
            return f"frames {self.seq} to {self.upto - 1}"
        return f"frame {self.seq}"


def walk_frames(read: Read, segment: Segment, stop: int) -> Iterator[Frame | FrameGap]:
    """Yields the frames of a segment up to the end of a frame at `stop`, and gaps among them.

    Args:
        read: returns bytes of the segment's file.
    """
    end, size = segment.start, _PIECE
    while end.offset < stop:
        most = min(size, stop - end.offset)
        data = read(segment.local(end.offset), most)
        complete, damage = frames.scan_buffer(data, end.offset, end)
        yield from complete
        if complete:
            end, size = complete[-1].end, _PIECE
            continue
        need = frames.bytes_needed(data, end) if len(data) == most < stop - end.offset else 0
        if need:
            size = need
            continue
        reason = damage.reason if damage and data else "the file ends here"
        resumed = _resume_mark(read, segment, end, stop)
        yield FrameGap(end.offset, end.seq + 1, resumed.seq + 1 if resumed else None, reason)
        if resumed is None:
            return
        end = resumed


def _resume_mark(read: Read, segment: Segment, end: Mark, stop: int) -> Mark | None:
    """Returns the mark before the next valid frame after an invalid one, or None.

    A frame with a damaged digest also hides its successor's chain value. Therefore the successor is
    also tried with the digest that the damaged frame should have.
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


def _next_header(read: Read, segment: Segment, behind: int, stop: int) -> Position | None:
    """Returns the next header after an offset; pieces overlap by one header."""
    at = behind
    while at < stop:
        data = read(segment.local(at), min(_PIECE, stop - at))
        position = frames.continues_after(data, at, behind)
        if position is not None or len(data) < _PIECE:
            return position
        at += _PIECE - frames.HEADER_BYTES
    return None


def _computed_digest(read: Read, segment: Segment, end: Mark, position: Position) -> bytes | None:
    """Returns the digest after a frame with a damaged digest, if it alone is between two marks."""
    size = position.offset - end.offset
    if position.seq != end.seq + 2 or size < frames.OVERHEAD_BYTES:
        return None
    return frames.digest(end.chain, read(segment.local(end.offset), size))


def _next_frame_is_valid(read: Read, segment: Segment, mark: Mark, stop: int) -> bool:
    """Returns True if the frame after a mark is valid."""
    size = min(_PIECE, stop - mark.offset)
    data = read(segment.local(mark.offset), size)
    need = frames.bytes_needed(data, mark)
    if need > size:
        data = read(segment.local(mark.offset), min(need, stop - mark.offset))
    return bool(frames.scan_buffer(data, mark.offset, mark)[0])
