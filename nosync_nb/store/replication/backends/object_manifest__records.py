"""Records: one step of a copy in an object store, as an object says it.

A copy is a chain of numbered records. Each says what changed of its files: of which pieces a file
is made, and where in which object a piece lies. Short pieces lie in the record itself, behind what
it says. Every `FAN`th or so says all, so that the state is read from few objects; one that begins a
writer's reign stays for ever, and says no more than that.

    magic, size of what it says, its checksum | what it says, as JSON | bytes of pieces

It comes from a place where others may write: everything is checked before it is believed.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nosync_nb.errors import CorruptLogError, DurabilityError
from nosync_nb.store.replication import fencing_grant, file_layout
from nosync_nb.store.replication.fencing_grant import FencingGrant

FAN = 16
"""So many pieces of a segment are merged into one; after so many records one says all."""

RECORD_BYTES_MAX = 64 << 20
"""A record is not larger; what is cannot be one."""

MERGED_BYTES = 2 << 20
"""A piece is not merged beyond."""

_MAGIC = b"nosync 1"
_HEAD = len(_MAGIC) + 8
_KEY = re.compile(r"state/\d{12}|data/\d{12}-[0-9a-f]{16}-[0-9a-f]{32}")
_TOKEN = re.compile(r"[0-9a-f]{16}")
_SLOT_MAX = 10**12
_SIZE_MAX = 1 << 50


class ObjectPiece(NamedTuple):
    """Bytes of a file: where they lie in an object, and how often pieces were merged into it.

    A `key` that is empty is that of the record which says so, and `start` counts from its end of
    words.
    """

    key: str
    start: int
    size: int
    rank: int = 0


class FileContent(NamedTuple):
    """A file: its pieces in order, and the digest of all its bytes; empty if that is not known."""

    pieces: tuple[ObjectPiece, ...]
    digest: bytes = b""

    @property
    def size(self) -> int:
        """Of the file, in bytes."""
        return sum(piece.size for piece in self.pieces)


class FileChange(NamedTuple):
    """What becomes of a file: how many of its pieces it keeps, and what comes after them."""

    keep: int
    more: tuple[ObjectPiece, ...]
    digest: bytes = b""


class CopyState(NamedTuple):
    """A copy after a record.

    Attributes:
        slot: the record's number.
        full: the number of the last one that says all.
        promise: whom the copy obeys.
        writer: who made the record, a token of a process.
        reigns: the numbers of the records with which writers began; they stay for ever.
        seq: the frame up to which the log can be read back.
    """

    slot: int
    full: int
    promise: FencingGrant
    writer: str
    reigns: tuple[int, ...]
    seq: int
    files: Mapping[str, FileContent]


class CopyRecord(NamedTuple):
    """What a record says.

    Attributes:
        reigns: as the state has them, if it says all; else None.
        begins: a reign, with what the record before it left.
    """

    slot: int
    writer: str
    promise: FencingGrant
    seq: int
    changes: Mapping[str, FileChange | None]
    reigns: tuple[int, ...] | None
    begins: bool = False


def record_key(slot: int) -> str:
    """The key of a record."""
    return f"state/{slot:012d}"


def record_slot(key: str) -> int | None:
    """The number that a key has; None if it is none of a record or of a piece."""
    return int(key.split("/")[1][:12]) if _KEY.fullmatch(key) else None


def is_record(key: str) -> bool:
    """Tells whether a key is one of a record."""
    return key.startswith("state/") and record_slot(key) is not None


def pieces_to_merge(pieces: Sequence[ObjectPiece], size: int) -> tuple[int, int]:
    """Returns how many of the last pieces become one with what is appended, and its rank.

    As a counter carries: `FAN` of a rank become one of the next, so that of each rank there are
    fewer, and each byte is written again once for each rank.

    Args:
        size: of what is appended.
    """
    count = rank = 0
    while True:
        stop = len(pieces) - count
        run = pieces[max(0, stop - FAN + 1) : stop]
        size += sum(piece.size for piece in run)
        if len(run) < FAN - 1 or size > MERGED_BYTES or any(p.rank != rank for p in run):
            return count, rank
        count, rank = count + len(run), rank + 1


def encode_record(record: CopyRecord, data: bytes) -> bytes:
    """Returns a record as an object, with the bytes of those of its pieces that have no key.

    Raises:
        DurabilityError: it says too much.
    """
    said = {
        "slot": record.slot,
        "writer": record.writer,
        "promise": fencing_grant.encode_grant(record.promise).decode(),
        "seq": record.seq,
        "reigns": record.reigns,
        "begins": record.begins,
        "bytes": len(data),
        "files": {
            name: change and [change.keep, change.more, change.digest.hex()]
            for name, change in record.changes.items()
        },
    }
    words = json.dumps(said, separators=(",", ":")).encode()
    head = len(words).to_bytes(4, "little") + zlib.crc32(words).to_bytes(4, "little")
    whole = b"".join((_MAGIC, head, words, data))
    if len(whole) > RECORD_BYTES_MAX:
        raise DurabilityError(
            f"a copy in a bucket cannot say of {len(record.changes)} files what they are made of",
            hint="keep this log's copies in folders or at servers",
        )
    return whole


def decode_record(data: bytes, where: str) -> CopyRecord:
    """Returns what a record says; its pieces have keys.

    Args:
        where: what people call the copy, for the error.

    Raises:
        CorruptLogError: it is damaged, or none.
    """
    size, crc = (int.from_bytes(data[at : at + 4], "little") for at in (_HEAD - 8, _HEAD - 4))
    words = data[_HEAD : _HEAD + size]
    try:
        if data[: len(_MAGIC)] != _MAGIC or zlib.crc32(words) != crc:
            raise ValueError("checksum")
        said: dict[str, Any] = json.loads(words)
        slot, seq = _number(said["slot"], _SLOT_MAX), _number(said["seq"], 1 << 63)
        if len(data) != _HEAD + size + _number(said["bytes"], _SIZE_MAX):
            raise ValueError("size")
        if not _TOKEN.fullmatch(said["writer"]):
            raise ValueError("writer")
        promise = fencing_grant.decode_grant(said["promise"].encode(), where)
        reigns = said["reigns"]
        if reigns is not None:
            reigns = tuple(_number(each, _SLOT_MAX) for each in reigns)
        changes = {
            name: _change(name, each, record_key(slot), _HEAD + size)
            for name, each in said["files"].items()
        }
        begins = said.get("begins", False) is True
        return CopyRecord(slot, said["writer"], promise, seq, changes, reigns, begins)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptLogError(
            f"a record of '{where}' is damaged: it cannot be told what the copy holds",
            hint=f"delete '{where}': the copy is made anew",
        ) from error


def _change(name: str, said: Any, own: str, start: int) -> FileChange | None:
    if not file_layout.is_file(name):
        raise ValueError("name")
    if said is None:
        return None
    keep, more, digest = said
    pieces = []
    for key, at, size, rank in more:
        if key and not _KEY.fullmatch(key):
            raise ValueError("key")
        at = _number(at, _SIZE_MAX) + (0 if key else start)
        pieces.append(ObjectPiece(key or own, at, _number(size, _SIZE_MAX), _number(rank, 64)))
    return FileChange(_number(keep, _SIZE_MAX), tuple(pieces), bytes.fromhex(digest))


def _number(said: Any, most: int) -> int:
    if type(said) is not int or not 0 <= said < most:
        raise ValueError("number")
    return said


def state_after(state: CopyState | None, record: CopyRecord, where: str) -> CopyState:
    """Returns the state after a record.

    Raises:
        CorruptLogError: the record does not follow the state.
    """
    files: dict[str, FileContent] = {}
    if record.reigns is not None:
        reigns, full = record.reigns, record.slot
    elif state is not None and state.slot + 1 == record.slot and record.begins:
        reigns, full = (*state.reigns, record.slot), state.full
        files.update(state.files)
    elif state is not None and state.slot + 1 == record.slot and state.writer == record.writer:
        reigns, full = state.reigns, state.full
        files.update(state.files)
    else:
        raise CorruptLogError(f"a record of '{where}' does not follow the one before it")
    for name, change in record.changes.items():
        if change is None:
            files.pop(name, None)
            continue
        kept = files[name].pieces[: change.keep] if change.keep and name in files else ()
        if len(kept) != change.keep:
            raise CorruptLogError(f"a record of '{where}' goes on with a file that is not there")
        files[name] = FileContent(kept + change.more, change.digest)
    return CopyState(record.slot, full, record.promise, record.writer, reigns, record.seq, files)
