"""Decodes record batches of Arrow messages, and refuses compressed buffers.

NoSync writes no compressed buffers, so that columns can be used where the file is mapped. Arrow
decodes them all the same.

Failure: a log of another user has a part of some kilobytes. 1. Its header names a codec. 2. Reading
one row takes gigabytes of memory. Hence the header is read first.

A message is a word of 32 ones, the size of its header, the header (a flatbuffer), and its body.
"""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

PREFIX = struct.Struct("<Ii")
"""The start of a message: the continuation word, and the size of the header."""

_CONTINUATION = 0xFFFF_FFFF
_U8, _U16, _U32, _I32 = (struct.Struct(f"<{code}") for code in "BHIi")
_HEADER_TYPE, _HEADER = 1, 2
"""Fields of a message."""
_RECORD_BATCH = 3
"""The header type of a record batch."""
_COMPRESSION = 3
"""The field of a record batch that names a codec."""
COMPRESSED = "its buffers are compressed, which NoSync never writes"


def record_batch(source: Any, schema: pa.Schema, *, trusted: bool = False) -> pa.RecordBatch:
    """Decodes the next message of a buffer or a reader as a record batch, without a copy.

    Args:
        trusted: this process has written it, so its header is not checked.

    Raises:
        ValueError: the message is not one, or its buffers are compressed.
        pa.ArrowException, OSError: it cannot be decoded.
    """
    message = pa.ipc.read_message(source)
    if not trusted and is_compressed(memoryview(message.metadata)):
        raise ValueError(COMPRESSED)
    return pa.ipc.read_record_batch(message, schema)


def header_size(prefix: bytes) -> int:
    """Returns the size of a message's header from its first 8 bytes.

    Raises:
        ValueError: no message begins there.
    """
    if len(prefix) != PREFIX.size:
        raise ValueError("a message is truncated")
    word, size = PREFIX.unpack(prefix)
    if word != _CONTINUATION or size <= 0:
        raise ValueError("no message begins at this offset")
    return int(size)


def is_compressed(header: bytes | memoryview) -> bool:
    """Returns True if the header of a message is a record batch with compressed buffers.

    Raises:
        ValueError: it is not the header of a record batch.
    """
    message = _at(_U32, header, 0)
    kind, table = _field(header, message, _HEADER_TYPE), _field(header, message, _HEADER)
    if not kind or not table or _at(_U8, header, kind) != _RECORD_BATCH:
        raise ValueError("the message is not a record batch")
    return _field(header, table + _at(_U32, header, table), _COMPRESSION) > 0


def _field(data: bytes | memoryview, table: int, index: int) -> int:
    """Returns the offset of a field of a flatbuffer's table; 0 if the table does not have it."""
    fields = table - _at(_I32, data, table)
    slot = 4 + 2 * index
    if slot + 2 > _at(_U16, data, fields):
        return 0
    offset = _at(_U16, data, fields + slot)
    return table + offset if offset else 0


def _at(number: struct.Struct, data: bytes | memoryview, place: int) -> int:
    """Reads the number at an offset, which the header of an untrusted log may have chosen."""
    if not 0 <= place <= len(data) - number.size:
        raise ValueError("the header of a message points outside the file")
    return int(number.unpack_from(data, place)[0])
