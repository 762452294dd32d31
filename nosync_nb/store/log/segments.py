"""Segments: the files that contain the stream of frames, and the links between them.

A segment contains a piece of the stream that starts at `base`. Its header names the previous
segment, which ends where this one begins, even if its file continues: bytes that a fenced owner or
a failed write left there are not part of the log. So the header of its successor seals a segment
and cuts off a torn tail. No file is ever truncated or overwritten.

IMPORTANT: a segment that carries rewritten frames appears under its name at once (written and
synced under another name, then renamed): otherwise a killed kernel would hide frames that the
predecessor still contains.
"""

from __future__ import annotations

import errno
import os
import re
import struct
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from nosync_nb.errors import DurabilityError
from nosync_nb.files.filesystem import File, Files
from nosync_nb.store.log.frames import FORMAT, Mark, check_format

SEGMENT_BYTES_MAX = 2 << 20
"""The maximum size of a segment. A short rewind reads whole segments, newest first, and a full
segment contains thousands of short frames.
"""

NEAR_FRAMES = 1024
"""The number of newest frames that are retained for short rewinds, even below a checkpoint."""

HEADER_BYTES = 128

_MAGIC = b"\x89NSYNCS\n"
WORD_BYTES = 8

_HEADER = struct.Struct("<8sHHI16sQQQQ16sQQQ8s8s")
_CRC = struct.Struct("<I4x")
_CACHED_MAX = 1 << 12  # because each listing of a folder parses the same names
_HEADERS_MAX = 1 << 8  # because following the links decodes the same headers
_NAME = re.compile(r"segment-(\d{8})-(\d{8})\.log\Z")


class Segment(NamedTuple):
    """The header of a segment.

    Attributes:
        start: the mark before its first frame.
        before: the generation and the number of its predecessor, or None.
        durable: the last seq that was known to be on disk when the segment was created.
        word: the random word of its owner; it distinguishes two owners of the same generation.
        word_before: the random word of the predecessor's owner.
    """

    log_id: bytes
    generation: int
    number: int
    start: Mark
    before: tuple[int, int] | None
    durable: int
    word: bytes = bytes(WORD_BYTES)
    word_before: bytes = bytes(WORD_BYTES)

    @property
    def key(self) -> tuple[int, int]:
        """Generation and number: a successor refers to this segment by them."""
        return self.generation, self.number

    @property
    def name(self) -> str:
        """The name of its file."""
        return file_name(self.generation, self.number)

    def local(self, offset: int) -> int:
        """Returns the offset in the file for an offset in the stream."""
        return offset - self.start.offset + HEADER_BYTES


@lru_cache(_CACHED_MAX)
def file_name(generation: int, number: int) -> str:
    """Returns the name of a segment's file."""
    return f"segment-{generation:08d}-{number:08d}.log"


@lru_cache(_CACHED_MAX)
def _path_of(folder: str, which: tuple[int, int]) -> str:
    return os.path.join(folder, file_name(*which))


def next_segment_name(
    live: Sequence[Segment], start: Mark, generation: int, durable: int, word: bytes
) -> Segment:
    """Returns the header of the segment that continues at `start`, after one of `live`.

    Its predecessor is the last one that contains bytes before `start`: a later one may never have
    reached the disk.
    """
    last = live[-1]
    first = live[0].before, live[0].word_before
    before, theirs = next(
        ((one.key, one.word) for one in reversed(live) if one.start.offset < start.offset), first
    )
    number = last.number + 1
    return Segment(last.log_id, generation, number, start, before, durable, word, theirs)


def is_name(name: str) -> bool:
    """Returns True if the name is that of a segment's file."""
    return _key_of(name) is not None


def segment_names(names: Sequence[str]) -> list[tuple[int, int]]:
    """Returns (generation, number) of the segments among the names of a folder, ascending."""
    return sorted(filter(None, map(_key_of, names)))


@lru_cache(_CACHED_MAX)
def _key_of(name: str) -> tuple[int, int] | None:
    match = _NAME.match(name)
    return (int(match[1]), int(match[2])) if match else None


def encode_header(segment: Segment) -> bytes:
    """Returns the bytes of a header."""
    before = segment.before or (0, 0)
    start = segment.start
    fields = _HEADER.pack(
        _MAGIC,
        FORMAT,
        HEADER_BYTES,
        0,
        segment.log_id,
        segment.generation,
        segment.number,
        start.seq,
        start.offset,
        start.chain,
        *before,
        segment.durable,
        segment.word,
        segment.word_before,
    )
    return fields + _CRC.pack(zlib.crc32(fields))


@lru_cache(_HEADERS_MAX)
def decode_header(data: bytes) -> Segment | None:
    """Reads a header; None if it is damaged."""
    fields = data[: _HEADER.size]
    if len(data) < HEADER_BYTES or _CRC.unpack_from(data, _HEADER.size)[0] != zlib.crc32(fields):
        return None
    (magic, version, _size, flags, log_id, generation, number, seq, offset, chain, *rest) = (
        _HEADER.unpack(fields)
    )
    if magic != _MAGIC:
        return None
    check_format(version, FORMAT, f"segment {generation}-{number}", flags)
    before = (rest[0], rest[1]) if rest[1] else None
    return Segment(log_id, generation, number, Mark(seq, offset, chain), before, *rest[2:])


def create_segment(
    files: Files, folder: str, segment: Segment, frames: Sequence[bytes] = (), *, sync: bool
) -> File:
    """Creates a segment's file, which appears under its name with its header and `frames` at once.

    With `sync`, the file and its name are on disk on return.
    """
    path = os.path.join(folder, segment.name)
    temporary = path + ".tmp"
    files.unlink(temporary)
    file = files.create(temporary)
    try:
        file.append(encode_header(segment))
        for frame in frames:
            file.append(frame)
        if sync:
            file.sync()
        files.rename(temporary, path)
        file.moved(path)
        if sync:
            files.sync_folder(folder)
    except DurabilityError:
        discard_segment(files, file)
        raise
    return file


def discard_segment(files: Files, file: File) -> None:
    """Closes and deletes a segment that could not be completed; ignores errors of the disk."""
    for step in (file.close, lambda: files.unlink(file.path)):
        try:
            step()
        except DurabilityError:
            continue


class Chain(NamedTuple):
    """The live segments, and those that should follow them but are cut off.

    Attributes:
        live: the live segments, ascending.
        detached: the names of the segments that are cut off.
        missing: the name of the file whose absence or damage separates the two.
    """

    live: list[Segment]
    detached: list[str]
    missing: str | None


def linked_segments(files: Files, folder: str, names: Sequence[str], *, since: int = 0) -> Chain:
    """Follows the links back from the newest segment to the one that contains offset `since`.

    Segments that are not linked, such as those of a fenced owner, are not part of the log. If a
    link leads to a missing or unreadable file, the segments after it are detached, and the search
    continues with the next older file. This is the state after a power failure that lost unsynced
    segments.
    """
    candidates = segment_names(names)
    detached: list[str] = []
    missing: str | None = None
    while candidates:
        path, broken_link = previous_segments(files, folder, candidates[-1], since)
        if broken_link is None:
            return Chain(path, detached, missing)
        missing = missing or file_name(*broken_link)
        detached += [segment.name for segment in path]
        if broken_link in candidates:
            detached.append(file_name(*broken_link))
        candidates = [one for one in candidates if one < broken_link]
    return Chain([], detached, missing)


def previous_segments(
    files: Files, folder: str, which: tuple[int, int] | None, since: int
) -> tuple[list[Segment], tuple[int, int] | None]:
    """Follows the links from one segment back to the one that contains offset `since`.

    Returns:
        the segments, ascending; and the link that leads to no readable file, or None.
    """
    path: list[Segment] = []
    while which is not None:
        segment = read_header(files, folder, which)
        if segment is None:
            break
        path.append(segment)
        which = None if segment.start.offset <= since else segment.before
    return path[::-1], which


def superseded_segments(
    chain: Sequence[Segment], covered: int, head: Mark, near_bytes: int
) -> list[Segment]:
    """Returns the segments of a chain that neither checkpoints nor short rewinds need.

    A short rewind needs the newest frames: `NEAR_FRAMES` of them, or fewer if these take at least
    `near_bytes`.

    Args:
        chain: the segments in ascending order, up to the segment of the head.
        covered: the offset before which no checkpoint needs a frame.
    """
    last = 0
    for place, each in enumerate(chain):
        frames, size_bytes = head.seq - each.start.seq, head.offset - each.start.offset
        if each.start.offset <= covered and (frames >= NEAR_FRAMES or size_bytes >= near_bytes):
            last = place
    return list(chain[:last])


def read_header(files: Files, folder: str, which: tuple[int, int]) -> Segment | None:
    """Reads the header of a segment; None if it is missing, damaged, or has another name."""
    try:
        file = files.open(_path_of(folder, which))
    except DurabilityError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    try:
        segment = decode_header(file.read_at(0, HEADER_BYTES))
    finally:
        file.close()
    if segment is None or segment.key != which:
        return None
    return segment
