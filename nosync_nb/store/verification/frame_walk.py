"""Stream: the frames of one segment in order, and where there are gaps, what stands behind them.

An opening stops at the first frame that does not follow, as what is lost there may have been
anything. Here it is said which frames are lost, and all others are read: behind a gap the chain is
taken up at the next header that fits its place, with the digest that stands before it. A frame
whose bytes are whole and whose neighbour's are not is then no part of the damage.

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
    """Bytes of the stream that hold no frame that follows: where, why, and up to which frame.

    Attributes:
        seq: of the frame that should stand there.
        upto: of the first frame behind it; None: none was found.
        reason: in words.
    """

    offset: int
    seq: int
    upto: int | None
    reason: str

    @property
    def frames(self) -> str:
        """Which frames, for people."""
        if self.upto is None:
            return f"frame {self.seq} and what follows it"
        if self.upto > self.seq + 1:
            return f"frames {self.seq} to {self.upto - 1}"
        return f"frame {self.seq}"


def walk_frames(read: Read, segment: Segment, stop: int) -> Iterator[Frame | FrameGap]:
    """The frames of a segment up to a place of the stream where one ends, and gaps among them.

    Args:
        read: gives bytes of the segment's file.
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
        after = _behind(read, segment, end, stop)
        yield FrameGap(end.offset, end.seq + 1, after.seq + 1 if after else None, reason)
        if after is None:
            return
        end = after


def _behind(read: Read, segment: Segment, end: Mark, stop: int) -> Mark | None:
    """The mark before the next frame that verifies, behind one that does not; None: there is none.

    A frame that lost its digest says its successor's no more; that one is tried with the digest
    that it would have as well.
    """
    search = end.offset
    for _ in range(_TRIES_MAX):
        position = _resumes(read, segment, search, stop)
        if position is None:
            return None
        at = segment.local(position.offset) - frames.TRAILER_BYTES
        stored = read(at, frames.DIGEST_BYTES)
        made = _digest(read, segment, end, position) if search == end.offset else None
        for chain in filter(None, (stored, made)):
            mark = Mark(position.seq - 1, position.offset, chain)
            if _first(read, segment, mark, stop):
                return mark
        search = position.offset
    return None


def _resumes(read: Read, segment: Segment, behind: int, stop: int) -> Position | None:
    """The next header behind a place of the stream; pieces overlap by one."""
    at = behind
    while at < stop:
        data = read(segment.local(at), min(_PIECE, stop - at))
        position = frames.continues_after(data, at, behind)
        if position is not None or len(data) < _PIECE:
            return position
        at += _PIECE - frames.HEADER_BYTES
    return None


def _digest(read: Read, segment: Segment, end: Mark, position: Position) -> bytes | None:
    """The digest after a frame whose own is damaged, if only that is between two marks."""
    size = position.offset - end.offset
    if position.seq != end.seq + 2 or size < frames.OVERHEAD_BYTES:
        return None
    return frames.digest(end.chain, read(segment.local(end.offset), size))


def _first(read: Read, segment: Segment, mark: Mark, stop: int) -> bool:
    """Whether the frame after a mark verifies."""
    size = min(_PIECE, stop - mark.offset)
    data = read(segment.local(mark.offset), size)
    need = frames.bytes_needed(data, mark)
    if need > size:
        data = read(segment.local(mark.offset), min(need, stop - mark.offset))
    return bool(frames.scan_buffer(data, mark.offset, mark)[0])
