"""Reads the tail of a log after a mark, and decides if missing frames were ever durable.

The valid tail is the longest run of frames that follow each other by number, offset and
digest. If the bytes after it were never synced, they are dropped, and that is reported. If
they were, the log is damaged, and nothing is dropped. The evidence is:

1. `known`: the last seq that the owner, a checkpoint or the caller knows to be on disk;
2. the field `durable` of every later header that still verifies: it states what was on disk
   when that frame was written;
3. `strict`: the machine has not been restarted since the last owner wrote. Then its page
   cache is complete, a gap cannot come from a power failure, and any later frame is evidence.

This module only reads.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from nosync_nb.errors import CorruptLogError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.log import frames, segments
from nosync_nb.store.log.frames import Damage, Frame, Mark
from nosync_nb.store.log.segments import Chain, Segment

_HINT = "restore the file from a copy; nothing in the segments was changed"


class LogTail(NamedTuple):
    """The frames after a mark; `durable` is the last of them known to be on disk."""

    frames: list[Frame]
    end: Mark
    durable: Mark
    pieces: list[tuple[int, bytes]]
    notes: list[str]

    def bytes_after(self, mark: Mark) -> list[bytes]:
        """Returns the stream from `mark` to the end, as it was read."""
        parts = []
        for origin, data in self.pieces:
            first = max(mark.offset, origin) - origin
            last = min(self.end.offset, origin + len(data)) - origin
            if first < last:
                parts.append(data[first:last])
        return parts


def read_tail(
    files: Files,
    folder: str,
    chain: Chain,
    start: Mark,
    *,
    known: int = 0,
    strict: bool = False,
    upto: int | None = None,
) -> LogTail:
    """Reads and verifies everything after `start`, or only to the offset `upto`.

    Raises:
        CorruptLogError: a frame that was on disk is missing or damaged; names file and offset.
    """
    verified: list[Frame] = []
    pieces: list[tuple[int, bytes]] = []
    end, damage, cut = start, None, 0
    for index, segment in enumerate(chain.live):
        if not _continues(segment, end, first=index == 0):
            damage = Damage(end.offset, f"'{segment.name}' does not continue the chain")
            break
        cut = index + 1
        limit = chain.live[cut].start.offset if cut < len(chain.live) else upto
        if upto is not None and limit is not None and limit >= upto:
            limit, cut = upto, len(chain.live)
        data = _read_content(files, folder, segment, end.offset, limit)
        more, damage = frames.scan_buffer(data, end.offset, end)
        pieces.append((end.offset, data))
        verified += more
        end = more[-1].end if more else end
        if damage is None and limit is not None and end.offset < limit:
            damage = Damage(end.offset, "the file is too short")
        if damage is not None or (upto is not None and end.offset >= upto):
            break
    notes = _notes_or_damage(files, folder, chain, cut, end, damage, pieces, known, strict)
    headers = [segment.durable for segment in chain.live]
    durable = _mark_up_to(max([known, *headers]), start, verified)
    return LogTail(verified, end, durable, pieces, notes)


def tail_holds(files: Files, folder: str, chain: Chain, mark: Mark) -> bool:
    """Returns True if the frame that ends at `mark` is in the log, by its digest."""
    for segment in reversed(chain.live):
        if segment.start.offset == mark.offset:
            return segment.start == mark
        if segment.start.offset < mark.offset:
            at = segment.local(mark.offset) - frames.TRAILER_BYTES
            trailer = _read_bytes(files, folder, segment, at, frames.TRAILER_BYTES)
            return trailer[: frames.DIGEST_BYTES] == mark.chain
    return False


def _continues(segment: Segment, end: Mark, *, first: bool) -> bool:
    """Returns True if a segment begins at the end of the stream; the first may begin before it."""
    return segment.start == end or (first and segment.start.offset < end.offset)


def _read_content(
    files: Files, folder: str, segment: Segment, offset: int, limit: int | None
) -> bytes:
    """Reads a segment from an offset of the stream up to `limit`, or to its end."""
    file = files.open(os.path.join(folder, segment.name))
    try:
        stop = file.size() if limit is None else segment.local(limit)
        at = segment.local(offset)
        return file.read_at(at, max(0, stop - at))
    finally:
        file.close()


def _read_bytes(files: Files, folder: str, segment: Segment, at: int, size: int) -> bytes:
    file = files.open(os.path.join(folder, segment.name))
    try:
        return file.read_at(at, size)
    finally:
        file.close()


def _notes_or_damage(
    files: Files,
    folder: str,
    chain: Chain,
    cut: int,
    end: Mark,
    damage: Damage | None,
    pieces: list[tuple[int, bytes]],
    known: int,
    strict: bool,
) -> list[str]:
    """Decides if the bytes after `end` may be dropped; returns the notes to report."""
    later, durable = 0, known
    for origin, data in pieces[-1:]:
        later, stated = frames.proves(data, origin, end)
        durable = max(durable, stated)
    names = [segment.name for segment in chain.live[cut:]] + chain.detached
    for name in names:
        count, stated = _evidence(files, folder, name, end)
        later, durable = later + count, max(durable, stated)
    if damage is None and not names and durable <= end.seq:
        return []
    where = _break_position(chain, cut, end)
    reason = damage.reason if damage else f"'{chain.missing}' is missing or unreadable"
    if durable > end.seq or (strict and later):
        raise CorruptLogError(
            f"'{os.path.join(folder, where[0])}' is damaged at byte {where[1]}: {reason}; "
            f"frame {end.seq + 1} was in the log"
            + (f", and everything up to {durable} was on disk" if durable > end.seq else ""),
            hint=_HINT,
        )
    tail_bytes = sum(origin + len(data) - end.offset for origin, data in pieces[-1:])
    text = f"{where[0]}: {max(0, tail_bytes)} bytes after frame {end.seq} were never synced"
    return [f"{text} and are ignored ({reason})"]


def _break_position(chain: Chain, cut: int, end: Mark) -> tuple[str, int]:
    """Returns the file and the byte where the stream breaks off."""
    if chain.live:
        segment = chain.live[max(0, cut - 1)]
        return segment.name, segment.local(end.offset)
    return chain.missing or segments.file_name(0, 0), 0


def _evidence(files: Files, folder: str, name: str, end: Mark) -> tuple[int, int]:
    """Returns (later frames, greatest `durable`) of a segment that is cut off."""
    file = files.open(os.path.join(folder, name))
    try:
        data = file.read_at(0, file.size())
    finally:
        file.close()
    segment = segments.decode_header(data)
    body = data[segments.HEADER_BYTES :]
    if segment is None:
        return frames.proves(body, None, end)
    count, durable = frames.proves(body, segment.start.offset, end)
    return count + 1, max(durable, segment.durable)


def _mark_up_to(seq: int, start: Mark, verified: list[Frame]) -> Mark:
    """Returns the mark after frame `seq`, or the nearest of those that were read."""
    if seq <= start.seq or not verified:
        return start
    return verified[min(seq - start.seq, len(verified)) - 1].end
