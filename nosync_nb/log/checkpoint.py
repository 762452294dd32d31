"""Checkpoints: the state of a session as of a mark, so that opening reads only what follows.

A checkpoint is a whole file that appears at once. The one before is kept until the next one
is durable, so that a damaged newest file costs time (a longer tail), never data. A checkpoint
that a fenced owner wrote beyond the end of his part of the log does not fit the chain and is
left out.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from nosync_nb.errors import CorruptLogError, DurabilityError
from nosync_nb.files import Files
from nosync_nb.log.frames import FORMAT, Mark

KEPT = 2

_MAGIC = b"\x89NSYNCC\n"
_HEADER = struct.Struct("<8sHHIQQQ16sQ")
_CRC = struct.Struct("<II")
_NAME = re.compile(r"checkpoint-(\d{16})-(\d{8})\.state\Z")


class Checkpoint(NamedTuple):
    """A state and the mark it holds for; `generation` wrote it."""

    mark: Mark
    generation: int
    payload: bytes


def file_name(seq: int, generation: int) -> str:
    """Returns the name of a checkpoint's file; names sort by age."""
    return f"checkpoint-{seq:016d}-{generation:08d}.state"


def listed(names: Sequence[str]) -> list[str]:
    """Returns the checkpoints among the names of a folder, newest first."""
    return sorted((name for name in names if _NAME.match(name)), reverse=True)


def seq_of(name: str) -> int:
    """Returns the seq in a checkpoint's name."""
    match = _NAME.match(name)
    assert match
    return int(match[1])


def write(files: Files, folder: str, checkpoint: Checkpoint) -> None:
    """Writes a checkpoint durably, then deletes those that nobody will fall back to."""
    mark, generation, payload = checkpoint
    size = len(payload)
    fields = _HEADER.pack(
        _MAGIC, FORMAT, _HEADER.size, 0, generation, mark.seq, mark.offset, mark.chain, size
    )
    crcs = _CRC.pack(zlib.crc32(fields), zlib.crc32(payload))
    path = os.path.join(folder, file_name(mark.seq, generation))
    files.replace(path, b"".join((fields, crcs, payload)))
    for name in listed(files.names(folder))[KEPT:]:
        files.unlink(os.path.join(folder, name))


def read(files: Files, folder: str, name: str) -> Checkpoint | str:
    """Reads and verifies a checkpoint; returns what is wrong if it is damaged.

    Raises:
        CorruptLogError: it is newer than this program.
    """
    path = os.path.join(folder, name)
    try:
        data = files.read(path)
    except DurabilityError as error:
        return str(error)
    fields, rest = data[: _HEADER.size], data[_HEADER.size :]
    payload = rest[_CRC.size :]
    if len(rest) < _CRC.size or _CRC.unpack_from(rest) != (zlib.crc32(fields), zlib.crc32(payload)):
        return f"'{path}' is damaged: it does not fit its checksum"
    magic, version, _, _, generation, seq, offset, chain, size = _HEADER.unpack(fields)
    if version > FORMAT:
        raise CorruptLogError(
            f"'{path}': log format {version} is newer than this program ({FORMAT})",
            hint="upgrade nosync; nothing was changed",
        )
    if magic != _MAGIC or size != len(payload) or name != file_name(seq, generation):
        return f"'{path}' is damaged: its header contradicts the file"
    return Checkpoint(Mark(seq, offset, chain), generation, payload)
