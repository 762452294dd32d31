"""Checkpoints: the state of a session as of a mark, so that opening reads only later frames.

A checkpoint is a whole file that appears at once. The previous one is retained, so that a damaged
newest file costs time (a longer tail), but no data. A checkpoint that a fenced owner wrote beyond
the end of its part of the log does not fit the chain and is ignored.

Failure: 1. The newest checkpoint cannot be read *once* (the device, a full table of files). 2. The
opening uses the previous one, and deletes files that only the newest one names. 3. The next opening
reads the newest one successfully, and its files are missing. Hence nothing is deleted while an
unreadable checkpoint exists, and it is deleted itself before a new one is written.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from nosync_nb.errors import DurabilityError, FencedError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.log.frames import FORMAT, Mark, check_format

_MAGIC = b"\x89NSYNCC\n"
_HEADER = struct.Struct("<8sHHIQQQ16sQ")
_CRC = struct.Struct("<II")
_CACHED_MAX = 1 << 12  # because each listing of a folder parses the same names
_NAME = re.compile(r"checkpoint-(\d{16})-(\d{8})\.state\Z")


HEADER_BYTES = _HEADER.size + _CRC.size

FRAMES_MIN, FRAMES_MAX = 512, 1024
"""Bounds of the number of frames between two checkpoints, independent of their size."""
BYTES_MAX = 8 << 20


class Checkpoint(NamedTuple):
    """A stored state.

    Attributes:
        mark: the mark up to which the state contains the frames.
        generation: the generation of the owner that wrote it.
    """

    mark: Mark
    generation: int
    payload: bytes


def is_checkpoint_due(frames: int, size_bytes: int, before_bytes: int) -> bool:
    """Returns True if enough frames follow the last checkpoint for another one.

    This is the case if the frames take twice the size of the checkpoint. So the total written is at
    most one and a half times the frames, and the cost for each epoch is small. An opening reads a
    few hundred frames.

    Args:
        frames, size_bytes: the number and the size of the frames after the last checkpoint.
        before_bytes: the size of the last checkpoint.
    """
    paid = frames >= FRAMES_MIN and size_bytes >= 2 * before_bytes
    return paid or frames >= FRAMES_MAX or size_bytes >= BYTES_MAX


def file_name(seq: int, generation: int) -> str:
    """Returns the name of a checkpoint's file; names sort by age."""
    return f"checkpoint-{seq:016d}-{generation:08d}.state"


@lru_cache(_CACHED_MAX)
def is_name(name: str) -> bool:
    """Returns True if the name is that of a checkpoint's file."""
    return _NAME.match(name) is not None


def checkpoint_names(names: Sequence[str]) -> list[str]:
    """Returns the checkpoints among the names of a folder, newest first."""
    return sorted(filter(is_name, names), reverse=True)


def write_checkpoint(files: Files, folder: str, checkpoint: Checkpoint) -> None:
    """Writes a checkpoint durably."""
    mark, generation, payload = checkpoint
    size = len(payload)
    fields = _HEADER.pack(
        _MAGIC, FORMAT, _HEADER.size, 0, generation, mark.seq, mark.offset, mark.chain, size
    )
    crcs = _CRC.pack(zlib.crc32(fields), zlib.crc32(payload))
    path = os.path.join(folder, file_name(mark.seq, generation))
    files.replace(path, b"".join((fields, crcs, payload)))


def write_checkpoint_fenced(
    files: Files, folder: str, checkpoint: Checkpoint, check: Callable[[], None]
) -> None:
    """Writes a checkpoint durably, and deletes it if the owner was replaced meanwhile.

    Failure: 1. Another process takes the log over while a checkpoint is written. 2. The new owner
    does not see the checkpoint, and sweeps the files that only this checkpoint names. 3. The new
    owner dies, and the checkpoint is the newest of all. Hence the old owner deletes its checkpoint
    after the takeover.

    Args:
        check: raises FencedError after a takeover.
    """
    write_checkpoint(files, folder, checkpoint)
    try:
        check()
    except FencedError:
        with suppress(DurabilityError):
            remove_checkpoint(
                files, folder, [file_name(checkpoint.mark.seq, checkpoint.generation)]
            )
        raise


def mark_of(data: bytes) -> Mark | None:
    """Reads the mark of a checkpoint from its first `HEADER_BYTES`; None if they are damaged."""
    fields = data[: _HEADER.size]
    if len(data) < HEADER_BYTES or _CRC.unpack_from(data, _HEADER.size)[0] != zlib.crc32(fields):
        return None
    _, _, _, _, _, seq, offset, chain, _ = _HEADER.unpack(fields)
    return Mark(seq, offset, chain)


def prune_checkpoints(
    files: Files, folder: str, newest: Checkpoint, before: Checkpoint | None
) -> None:
    """Deletes the checkpoints that no opening will use: all older ones except the previous one."""
    retained = {file_name(each.mark.seq, each.generation) for each in (newest, before) if each}
    for name in checkpoint_names(files.names(folder)):
        if name < max(retained) and name not in retained:
            files.unlink(os.path.join(folder, name))


def remove_checkpoint(files: Files, folder: str, names: Sequence[str]) -> None:
    """Deletes checkpoints durably: they do not reappear after a power loss."""
    for name in names:
        files.unlink(os.path.join(folder, name))
    if names:
        files.sync_folder(folder)


def read_checkpoint(files: Files, folder: str, name: str) -> Checkpoint | str:
    """Reads and verifies a checkpoint; returns a message if it is unreadable or damaged.

    Raises:
        CorruptLogError: the checkpoint has another format than this program.
    """
    path = os.path.join(folder, name)
    try:
        data = files.read(path)
    except DurabilityError as error:
        return str(error)
    return decode_checkpoint(data, name, path)


def decode_checkpoint(data: bytes, name: str, path: str) -> Checkpoint | str:
    """Decodes the bytes of a checkpoint file, from any disk; see `read_checkpoint`.

    Args:
        name: the name of the file, which its header must match.
        path: the path in messages.
    """
    fields, rest = data[: _HEADER.size], data[_HEADER.size :]
    payload = rest[_CRC.size :]
    if len(rest) < _CRC.size or _CRC.unpack_from(rest) != (zlib.crc32(fields), zlib.crc32(payload)):
        return f"'{path}' is damaged: it does not match its checksum"
    magic, version, _, flags, generation, seq, offset, chain, size = _HEADER.unpack(fields)
    if magic == _MAGIC:
        check_format(version, FORMAT, f"'{path}'", flags)
    if magic != _MAGIC or size != len(payload) or name != file_name(seq, generation):
        return f"'{path}' is damaged: its header contradicts the file"
    return Checkpoint(Mark(seq, offset, chain), generation, payload)
