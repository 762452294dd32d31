"""Vouching: the bytes of a log's own file for who ships them, as far as they prove themselves.

The disk of the log goes bad in silence, like any other. What was shipped from it then would take
the place of a good copy, and be acknowledged. So each file proves itself while it is read: bytes
of frames are given away when the frames that they are of fit each other; of any other file all but
the last piece, which makes it a file at the replica, and that one when all of it has been proven.

Memory: a piece of a file of rows, the largest frame, or a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nosync_nb.errors import CorruptLogError
from nosync_nb.files.filesystem import File
from nosync_nb.store.log import checkpoint, frames
from nosync_nb.store.log.frames import Mark
from nosync_nb.store.log.segments import HEADER_BYTES, Segment, encode_header
from nosync_nb.store.records.file_references import FileReference
from nosync_nb.trace import checksums

PIECE_BYTES = 1 << 20

Put = Callable[[int, bytes, bool], None]
"""Takes a piece: where it begins, its bytes, whether it is the last one."""


def verified_rows(file: File, wanted: FileReference, put: Put) -> int:
    """Gives away a file of rows; returns its size.

    Raises:
        CorruptLogError: it is not the one that the log names; the last piece is not given away.
    """
    size = file.size()
    if wanted.size is not None and size != wanted.size:
        raise _hurt(wanted.name, f"it has {size} bytes, not {wanted.size}")
    pieces = _Pieces(put)
    for flaw in checksums.file_damage(wanted.name, file.read_at, size, wanted.digest, pieces.take):
        raise _hurt(wanted.name, flaw.why)
    pieces.end()
    return size


def verified_checkpoint(file: File, name: str, put: Put) -> int:
    """Gives away a checkpoint; returns its size.

    Raises:
        CorruptLogError: it is damaged; nothing is given away.
    """
    data = file.read_at(0, file.size())
    said = checkpoint.decode_checkpoint(data, name, file.path)
    if isinstance(said, str):
        raise _hurt(name, said)
    for start in range(0, len(data), PIECE_BYTES):
        piece = data[start : start + PIECE_BYTES]
        put(start, piece, start + len(piece) == len(data))
    return len(data)


def whole_segment(file: File, segment: Segment, size: int, put: Put) -> None:
    """Gives away the first bytes of a segment, which end with a frame.

    Raises:
        CorruptLogError: they are damaged; the last piece is not given away.
    """
    header = file.read_at(0, HEADER_BYTES)
    if header != encode_header(segment):
        raise _hurt(segment.name, "its header is not what was written")
    pieces = _Pieces(put)
    pieces.take(header)
    for data in _proven(file, segment, segment.start, size):
        pieces.take(data)
    pieces.end()


def verified_growth(
    file: File, segment: Segment, known: Mark, has: int, size: int, put: Put
) -> None:
    """Gives away the bytes of a segment from `has` to `size`, where a frame ends.

    Args:
        known: the mark of a frame of the segment that ends at `has` or before.

    Raises:
        CorruptLogError: they are damaged; what is before the damaged frame is given away.
    """
    at = segment.local(known.offset)
    for data in _proven(file, segment, known, size):
        for start in range(0, len(data), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            end = at + len(piece)
            if end > has:
                more = piece[max(0, has - at) :]
                put(end - len(more), more, end == size)
            at = end


class _Pieces:
    """Puts a file piece by piece, each when it is known whether there is another one."""

    def __init__(self, put: Put) -> None:
        self._put = put
        self._at = 0
        self._next = bytearray()

    def take(self, data: bytes) -> None:
        """Takes the next bytes."""
        self._next += data
        while len(self._next) > PIECE_BYTES:
            self._give(bytes(self._next[:PIECE_BYTES]), last=False)

    def end(self) -> None:
        """Puts what is left: the file is whole."""
        self._give(bytes(self._next), last=True)

    def _give(self, data: bytes, *, last: bool) -> None:
        self._put(self._at, data, last)
        self._at += len(data)
        del self._next[: len(data)]


def _proven(file: File, segment: Segment, known: Mark, size: int) -> Iterator[bytes]:
    """The bytes of the frames after a mark, up to where one ends in the file."""
    end, most = known, PIECE_BYTES
    while (at := segment.local(end.offset)) < size:
        data = file.read_at(at, min(most, size - at))
        complete, damage = frames.scan_buffer(data, end.offset, end)
        if complete:
            yield data[: complete[-1].end.offset - end.offset]
            end, most = complete[-1].end, PIECE_BYTES
            continue
        need = frames.bytes_needed(data, end)
        if not len(data) < need <= size - at or len(data) < min(most, size - at):
            reason = damage.reason if damage and data else "the file ends here"
            raise _hurt(segment.name, f"frame {end.seq + 1}: {reason}")
        most = need


def _hurt(name: str, why: str) -> CorruptLogError:
    return CorruptLogError(
        f"'{name}' is damaged here, and is not shipped: {why}",
        hint="it is repaired from a replica that has it whole; else restore it from a copy",
    )
