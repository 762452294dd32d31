"""Verifies every byte of a part or a pack, in pieces, against the checksums in the file.

Opening a file for use checks only its head and end, at a cost that does not depend on the size, and
maps the rest. This module reads the whole file once, in order, with the function `read`: from this
disk or from a remote copy. It decodes only the positions of checksums, so a file of an untrusted
writer can do no harm. A file is the one that the log names if their digests are equal. The digest
covers the checksums, so it is compared first.

Memory: a piece of `PIECE` bytes and the checksums, whatever the size of the file.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from xxhash import xxh3_64

from nosync_nb.files.safe_names import PACK
from nosync_nb.trace.history import pack_file
from nosync_nb.trace.history.pack_file import DIRECTORY
from nosync_nb.trace.parts import arrow_file
from nosync_nb.trace.parts.arrow_file import TAIL
from nosync_nb.trace.parts.part_file import PartRef, refs_from_json

PIECE = 1 << 20

_END = 10  # the last bytes of an Arrow file: the footer's size (4) and the magic number (6)
_FILLER_MAX = 8
_HEADER_BYTES_MAX = 64 << 20

Read = Callable[[int, int], bytes]
"""Takes an offset and a number of bytes; returns these bytes of a file, fewer only at its end."""
Watch = Callable[[bytes], Any]
"""Receives the bytes of a file piece by piece, in order."""


class FileDamage(NamedTuple):
    """A damage of a file: the reason, and the number of the trace if only one is affected."""

    why: str
    trace: int | None = None


class NamedPart(NamedTuple):
    """A part file that a pack references, with the trace and the epoch of its change."""

    trace: int
    epoch: int
    ref: PartRef


def file_damage(
    name: str, read: Read, size: int, digest: str | None, watch: Watch | None = None
) -> list[FileDamage]:
    """Returns the damage of a part or a pack; empty if the file is intact.

    Args:
        name: the name of the file, whose suffix distinguishes packs and parts.
        size: the size of the file in bytes.
        digest: the digest that the log names; with `None` the file is checked only against its own
            checksums.
        watch: receives the bytes of the file, once its digest is verified.

    Cost: reads the file once, and its checksums twice.
    """
    if name.endswith(PACK):
        return _pack_damage(read, size, digest, watch or _ignore)
    return _part_damage(read, size, digest, watch or _ignore)


def parts_named_by(read: Read, size: int) -> list[NamedPart]:
    """Returns the part files that a pack references. The caller must have verified the pack.

    Raises:
        CorruptLogError, ValueError, KeyError, TypeError: if the contents are invalid.
    """
    directory = _directory(read, size)
    named = []
    for trace, offset, length, _, head in directory[0] if directory else ():
        if head > min(length, _HEADER_BYTES_MAX):
            raise ValueError(f"the header of a section has {head} bytes")
        large = json.loads(read(offset, head))["large"]
        named += [
            NamedPart(trace, epoch, ref) for epoch, refs in large for ref in refs_from_json(refs)
        ]
    return named


class _RangeChecksum:
    """The checksum of a range of a file, computed from its bytes in order."""

    def __init__(self, start: int, stop: int, wanted: int, flaw: FileDamage) -> None:
        self.start, self.stop, self.wanted, self.flaw = start, stop, wanted, flaw
        self._hash = xxh3_64()

    def add_bytes(self, offset: int, data: memoryview) -> None:
        """Adds those bytes of a piece that are in the range."""
        low, high = max(self.start - offset, 0), min(self.stop - offset, len(data))
        if low < high:
            self._hash.update(data[low:high])

    @property
    def holds(self) -> bool:
        """True if the checksum of the bytes is the expected one."""
        return self._hash.intdigest() == self.wanted


def _ignore(_data: bytes) -> None:
    pass


def _check_ranges(
    read: Read, size: int, sums: Iterator[_RangeChecksum], watch: Watch
) -> list[FileDamage]:
    """Reads a file once, and checks the checksums of its ranges.

    Args:
        sums: the ranges, in the order of their starts.
    """
    wrong: list[FileDamage] = []
    open_: list[_RangeChecksum] = []
    waiting = next(sums, None)
    offset = 0
    while offset < size:
        data = read(offset, min(PIECE, size - offset))
        if not data:
            return [*wrong, FileDamage(f"it ends at byte {offset}, before {size}")]
        watch(data)
        end = offset + len(data)
        while waiting is not None and waiting.start < end:
            open_.append(waiting)
            waiting = next(sums, None)
        for each in open_:
            each.add_bytes(offset, memoryview(data))
        wrong += [each.flaw for each in open_ if each.stop <= end and not each.holds]
        open_ = [each for each in open_ if each.stop > end]
        offset = end
    return wrong


def _part_damage(read: Read, size: int, digest: str | None, watch: Watch) -> list[FileDamage]:
    missing = [FileDamage("its end is missing or overwritten")]
    length = struct.unpack("<i", read(size - _END, 4))[0] if size > _END else -1
    at = size - _END - length - TAIL.size
    if length < 0 or at < 0:
        return missing
    tail = read(at, TAIL.size)
    if len(tail) < TAIL.size or tail[-8:] != arrow_file.MAGIC:
        return missing
    head_size, _, footer, count, end, _ = TAIL.unpack(tail)
    start = at - 8 * count
    if not start >= end >= head_size or count != -(-end // arrow_file.BLOCK):
        return [FileDamage("its table of checksums does not match its checksum")]
    table = read(start, 8 * count)
    if digest is not None and _digest(table + tail) != digest:
        return [FileDamage("it is not the file that the log names, or its checksums were modified")]
    compressed = _compression_damage(read, arrow_file.START, 1)
    if compressed:
        return [compressed]
    last = _RangeChecksum(
        at + TAIL.size, size, footer, FileDamage("its footer does not match its checksum")
    )
    sums = chain(_part_checksums(np.frombuffer(table, np.uint64).tolist(), end), [last])
    wrong = _check_ranges(read, size, sums, watch)
    filler = read(end, min(start - end, _FILLER_MAX))
    if len(filler) >= _FILLER_MAX or filler.strip(b"\0"):
        wrong.append(FileDamage(f"the filler at byte {end} is not zeros"))
    return wrong


def _compression_damage(
    read: Read, place: int, skipped: int, trace: int | None = None
) -> FileDamage | None:
    """Returns a damage if a record batch has compressed buffers; else None.

    Args:
        place: the offset of the first message.
        skipped: the number of messages without a body before the record batch.

    Cost: two short reads for each message.
    """
    with suppress(ValueError):  # a damaged header is detected by its checksum
        for left in range(skipped, -1, -1):
            size = arrow_file.header_size(read(place, arrow_file.PREFIX.size))
            place += arrow_file.PREFIX.size
            if not left and size <= _HEADER_BYTES_MAX:
                compressed = arrow_file.is_compressed(read(place, size))
                return FileDamage(arrow_file.COMPRESSED, trace) if compressed else None
            place += size
    return None


def _part_checksums(blocks: Sequence[int], end: int) -> Iterator[_RangeChecksum]:
    for number, wanted in enumerate(blocks):
        start = number * arrow_file.BLOCK
        stop = min(start + arrow_file.BLOCK, end)
        yield _RangeChecksum(
            start, stop, wanted, FileDamage(f"the MiB at byte {start} does not match its checksum")
        )


def _pack_damage(read: Read, size: int, digest: str | None, watch: Watch) -> list[FileDamage]:
    directory = _directory(read, size)
    if directory is None:
        return [FileDamage("its end is missing or overwritten")]
    entries, table = directory
    if digest is not None and _digest(table) != digest:
        return [FileDamage("it is not the file that the log names, or its directory was modified")]
    place = 0
    for _, offset, length, _, head in entries:
        if offset != place or head > length:
            return [FileDamage("its directory does not match its checksum")]
        place += length
    if place + len(table) + 16 != size:
        return [FileDamage("its directory does not match its checksum")]
    compressed = [
        _compression_damage(read, offset + head, 0, trace) for trace, offset, _, _, head in entries
    ]
    if any(compressed):
        return [flaw for flaw in compressed if flaw is not None]
    return _check_ranges(read, size, map(_section_checksum, entries), watch)


def _section_checksum(entry: Sequence[int]) -> _RangeChecksum:
    trace, offset, length, wanted, _ = entry
    flaw = FileDamage(f"its section at byte {offset} does not match its checksum", trace)
    return _RangeChecksum(offset, offset + length, wanted, flaw)


def _directory(read: Read, size: int) -> tuple[list[list[int]], bytes] | None:
    """Returns the directory of a pack, as entries and as bytes; None if it is missing."""
    if size < 16 or size % 8:
        return None
    words = read(size - 16, 16)
    if len(words) < 16 or int.from_bytes(words[8:], "little") != pack_file.MAGIC:
        return None
    count = int.from_bytes(words[:8], "little")
    first = size - 16 - 8 * DIRECTORY * count
    if first < 0:
        return None
    table = read(first, 8 * DIRECTORY * count)
    if len(table) < 8 * DIRECTORY * count:
        return None
    entries: list[list[int]] = np.frombuffer(table, np.uint64).reshape(count, DIRECTORY).tolist()
    return entries, table


def _digest(table: bytes) -> str:
    return hashlib.blake2b(table, digest_size=16).hexdigest()
