"""Reads and writes Arrow files with checksums, the format of parts; and writes all files of traces.

Each file is an Arrow IPC file with one record batch, which any Arrow library can read. Null-free
columns of fixed-width types can be used as numpy views of the mapped file. Therefore null-free
booleans are stored as bytes. The schema's metadata contains a JSON header.

Design
    Checksums (XXH3) of the head (schema and batch header), of each MiB of the body and of the
    footer are stored before the footer, where Arrow's readers do not look. Opening a file checks
    its size, head, footer and this table, at a cost that does not depend on the number of rows. The
    module `checksums` verifies every byte. A reader of a file that another process may have written
    verifies the blocks.
    The digest of a file is the digest of its table, so it identifies the file that the log names.
    Sizes are multiples of 8, so that a mapping can be read as words.
    A message is a word of 32 ones, the size of its header, the header (a flatbuffer), and its body.

Failure: a missing, truncated or damaged file raises `CorruptLogError`, which names it.

The contents of a file are validated, so that no read accesses memory outside the file. A checksum
proves that the contents are those that were written, but not that the writer is trustworthy. Arrow
trusts the offsets of texts and lists, and an offset outside the file crashes the process. So every
file that another process wrote is validated before it is used.

With `thorough`, for a log that this user has not signed, every value is checked: texts are UTF-8,
and hashes ascend. Otherwise only offsets are checked, which costs a tenth of the checksums.

NoSync never writes compressed buffers, so that columns can be used in the mapped file. But Arrow
would decode them.

Failure: a log of another user has a part of some kilobytes. 1. Its header names a codec. 2. Reading
one row takes gigabytes of memory. Therefore the header of a message is read first.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds
from xxhash import xxh3_64_intdigest

from nosync_nb import rows
from nosync_nb.errors import CorruptLogError, DurabilityError
from nosync_nb.files.filesystem import Files
from nosync_nb.files.memory_map import FileEnd
from nosync_nb.files.safe_names import checked_path_within
from nosync_nb.rows import Column, arrow_type, buffers
from nosync_nb.rows.dictionary import MOST
from nosync_nb.rows.types import FIXED

PREFIX = struct.Struct("<Ii")
"""The start of a message: the continuation word, and the size of the header."""

_CONTINUATION = 0xFFFF_FFFF
_U8, _U16, _U32, _I32 = (struct.Struct(f"<{code}") for code in "BHIi")
_HEADER_TYPE, _HEADER = 1, 2
"""The fields of a message."""
_RECORD_BATCH = 3
"""The header type of a record batch."""
_COMPRESSION = 3
"""The field of a record batch that names a codec."""
COMPRESSED = "its buffers are compressed, which NoSync never writes"


def record_batch(source: Any, schema: pa.Schema, *, trusted: bool = False) -> pa.RecordBatch:
    """Decodes the next message of a buffer or a reader as a record batch, without a copy.

    Args:
        trusted: True if this process has written the message, so that its header is not checked.

    Raises:
        ValueError: if the message is not a record batch, or its buffers are compressed.
        pa.ArrowException, OSError: if the message cannot be decoded.
    """
    message = pa.ipc.read_message(source)
    if not trusted and is_compressed(memoryview(message.metadata)):
        raise ValueError(COMPRESSED)
    return pa.ipc.read_record_batch(message, schema)


def header_size(prefix: bytes) -> int:
    """Returns the size of a message's header from its first 8 bytes.

    Raises:
        ValueError: if these bytes do not begin a message.
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
        ValueError: if it is not the header of a record batch.
    """
    message = _at(_U32, header, 0)
    kind, table = _field(header, message, _HEADER_TYPE), _field(header, message, _HEADER)
    if not kind or not table or _at(_U8, header, kind) != _RECORD_BATCH:
        raise ValueError("the message is not a record batch")
    return _field(header, table + _at(_U32, header, table), _COMPRESSION) > 0


def _field(data: bytes | memoryview, table: int, index: int) -> int:
    """Returns the offset of a field in a flatbuffer table; 0 if the table lacks the field."""
    fields = table - _at(_I32, data, table)
    slot = 4 + 2 * index
    if slot + 2 > _at(_U16, data, fields):
        return 0
    offset = _at(_U16, data, fields + slot)
    return table + offset if offset else 0


def _at(number: struct.Struct, data: bytes | memoryview, place: int) -> int:
    """Reads a number at an offset, which is checked because it may come from an untrusted log."""
    if not 0 <= place <= len(data) - number.size:
        raise ValueError("the header of a message points outside the file")
    return int(number.unpack_from(data, place)[0])


UNSOUND = (
    pa.ArrowException,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RecursionError,
)
"""The exceptions that reading invalid contents may raise."""


def check_record(
    record: pa.RecordBatch,
    types: tuple[str, ...],
    *,
    thorough: bool,
    texts: Mapping[int, Sequence[str]] = MappingProxyType({}),
) -> None:
    """Checks that a batch has valid columns of some types, followed by columns of 64-bit integers.

    Args:
        thorough: True to check every value, and that each code has a text.
        texts: the texts of columns that are stored as one-byte codes, by position of the column.

    Raises:
        Exception: one of `UNSOUND` if the batch is invalid.

    Cost: 1 ms for a million texts; 40 ms with `thorough`.
    """
    if record.num_columns < len(types):
        raise ValueError(f"it has {record.num_columns} columns, not {len(types)}")
    for i, array in enumerate(record.columns):
        if i >= len(types):
            fits = array.type in (pa.uint64(), pa.int64()) and not array.null_count
        else:
            stored = types[i] == "boolean" and array.type == pa.uint8() and not array.null_count
            fits = stored or array.type == arrow_type(types[i])
            if i in texts:
                fits = types[i] == "string" and array.type == pa.uint8()
        if not fits:
            raise ValueError(f"column {i} is of the type {array.type}")
    record.validate(full=thorough)
    for i, column_texts in texts.items():
        few = len(column_texts) <= MOST and all(isinstance(text, str) for text in column_texts)
        if not few or not 0 <= i < len(types):
            raise ValueError(f"column {i} has an invalid table of texts")
        codes = record.column(i).drop_null()
        if thorough and (buffers.numbers(codes, np.uint8) >= max(len(column_texts), 1)).any():
            raise ValueError(f"column {i} has codes without a text")
    if not thorough:
        for array in record.columns:
            _check_offsets(array)


def check_level(starts: Any, group: Any, row: Any, diff: Any, rows_count: int) -> None:
    """Checks the arrays of a level of a section: all groups and rows that they reference exist.

    Raises:
        Exception: one of `UNSOUND` if the level is invalid.
    """
    for each in (starts, group, row, diff):
        if each is not None and each.dtype.kind not in "iu":
            raise ValueError("its levels are not integers")
    if len(starts) != len(group) + 1 or (row is not None and len(row) != len(diff)):
        raise ValueError("its levels are of unequal lengths")
    if starts[0] < 0 or (starts[1:] < starts[:-1]).any() or starts[-1] > len(diff):
        raise ValueError("its groups point outside the rows")
    outside = (
        len(diff) > rows_count if row is None else (row < 0).any() or (row >= rows_count).any()
    )
    if outside:
        raise ValueError("its entries name rows that do not exist")


def _check_offsets(array: pa.Array) -> None:
    """Raises ValueError unless all offsets of an array ascend.

    `RecordBatch.validate` has checked that the first and the last offset are in the file.
    """
    type_ = array.type
    if kinds.is_struct(type_):
        for i in range(type_.num_fields):
            _check_offsets(array.field(i))
        return
    wide = (
        kinds.is_large_string(type_) or kinds.is_large_binary(type_) or kinds.is_large_list(type_)
    )
    nested = kinds.is_list(type_) or kinds.is_map(type_) or kinds.is_large_list(type_)
    if not (wide or nested or kinds.is_string(type_) or kinds.is_binary(type_)):
        return
    if len(array):
        dtype = np.dtype(np.int64 if wide else np.int32)
        offsets = buffers.bounds(array, dtype)
        if (offsets[1:] < offsets[:-1]).any():
            raise ValueError("offsets point outside the values")
    if nested and kinds.is_map(type_):
        _check_offsets(array.keys)
        _check_offsets(array.items)
    elif nested:
        _check_offsets(array.values)


BLOCK = 1 << 20
DISK = Files()

_FORMAT = 1
START = 8  # Arrow's magic word and its padding; the first message follows
WITH_TEXTS = 2
"""The format of a file with coded columns, whose texts are in the header."""

MAGIC = b"NSPART01"
TAIL = struct.Struct("<QQQQQ8s")
"""The end of the table of checksums: the size of the head, the checksums of head and footer, the
number of blocks, the end of the body, and the magic number."""

_WRITE_BYTES = 1 << 16


def store_file(column: Column, type_: str) -> pa.Array:
    """Converts a column to its stored form, in which null-free booleans are bytes."""
    if type_ == "boolean":
        if isinstance(column, np.ndarray) and column.dtype == np.bool_:
            return buffers.arrow_from_numpy(np.ascontiguousarray(column).view(np.uint8))
        column = rows.to_arrow(column, type_)
        if not column.null_count:
            return column.cast(pa.uint8())
    return rows.to_arrow(column, type_)


def load_file(array: pa.Array, type_: str) -> Column:
    """Converts an array from `store_file` to a column, without a copy; values are canonical."""
    dtype = FIXED.get(type_)
    if dtype is None or array.null_count:
        return array
    return buffers.numbers(array, dtype)


def map_file(folder: str, name: str, files: Files = DISK) -> pa.Buffer:
    """Maps a file of traces; the mapping lives as long as the buffer or a view of it.

    Raises:
        CorruptLogError: if the file is missing, empty or truncated.
        DurabilityError: if it cannot be read for another reason.
    """
    try:
        return pa.py_buffer(files.mapped(checked_path_within(folder, name)).words)
    except DurabilityError as error:
        if error.errno not in (None, errno.ENOENT):
            raise
        raise damaged_file_error(
            folder, name, "it is missing" if error.errno else "it is empty"
        ) from None
    except CorruptLogError as error:
        if error.kind != CorruptLogError.kind:  # the error already says why the file is missing
            raise
        raise damaged_file_error(folder, name, "it was cut short") from None


def write_file(
    folder: str, name: str, chunks: Sequence[Any], files: Files = DISK, *, sync: bool = True
) -> int:
    """Writes chunks as a new file, syncs it, and returns its size; does not sync the folder.

    If an error occurs, the file is deleted.
    """
    path = checked_path_within(folder, name)
    file = files.create(path)
    size = 0
    try:
        small: list[Any] = []
        waiting = 0
        for chunk in chunks:
            small.append(chunk)
            waiting += len(chunk)
            if waiting >= _WRITE_BYTES:
                file.append(b"".join(small) if len(small) > 1 else memoryview(chunk))
                small, size, waiting = [], size + waiting, 0
        if small:
            file.append(b"".join(small))
        if sync:
            file.sync()
    except BaseException:
        file.close()
        files.unlink(path)
        raise
    file.close()
    return size + waiting


def damaged_file_error(folder: str, name: str, why: str) -> CorruptLogError:
    """Returns the error for a file whose contents are not those that were written."""
    return CorruptLogError(
        f"'{os.path.join(folder, name)}' is damaged: {why}",
        hint="restore the file from a copy of the folder",
        file=name,
    )


def write_arrow(
    folder: str,
    name: str,
    names: list[str],
    arrays: list[pa.Array],
    head: dict[str, Any],
    files: Files = DISK,
    *,
    sync: bool = True,
) -> tuple[int, str]:
    """Writes arrays as a new file, syncs it, and returns its size and digest.

    Does not sync the folder.

    Args:
        head: the values of the JSON header.
    """
    schema = pa.schema(
        [pa.field(n, a.type) for n, a in zip(names, arrays, strict=True)],
        metadata={"nosync": json.dumps({"format": _FORMAT, **head})},
    )
    sink = _Chunks()
    writer = pa.ipc.new_file(pa.PythonFile(sink, "w"), schema)
    writer.write_batch(pa.record_batch(arrays, schema=schema))
    middle = len(sink.chunks) + 2  # closing writes two words that end the stream, and the footer
    writer.close()
    body, footer = sink.chunks[:middle], b"".join(sink.chunks[middle:])
    end = sum(map(len, body))
    blocks = _checksums(body)
    head_bytes = _head(body)
    head_size = len(head_bytes)
    sums = (head_size, xxh3_64_intdigest(head_bytes), xxh3_64_intdigest(footer), len(blocks), end)
    table = blocks.tobytes() + TAIL.pack(*sums, MAGIC)
    pad = bytes(-(end + len(table) + len(footer)) % 8)
    size = write_file(folder, name, [*body, pad, table, footer], files, sync=sync)
    return size, hashlib.blake2b(table, digest_size=16).hexdigest()


def open_mapped(
    folder: str,
    name: str,
    size_bytes: int,
    digest: str,
    files: Files = DISK,
    *,
    checked: bool = False,
) -> tuple[dict[str, Any], pa.RecordBatch, FileEnd]:
    """Maps a file, and checks that it has the expected size and digest.

    Args:
        checked: True to verify the checksum of every block, and to refuse compressed buffers,
            because another process may have written the file.

    Returns:
        the header, the rows, and the end of the file, which detects a later truncation.

    Raises:
        CorruptLogError: if the file is missing, damaged, or not the expected one.

    Cost: O(1) in the rows; pages are read when they are touched. With `checked` 0.1 s for each GB
    that is in memory.
    """
    data = map_file(folder, name, files)
    if data.size != size_bytes:
        raise damaged_file_error(folder, name, f"it has {data.size} bytes, not {size_bytes}")
    table = _checksum_table(data, folder, name, digest)
    if checked:
        _check_blocks(data, table, folder, name)
    try:
        record = _record(data, trusted=not checked)
    except (ValueError, pa.ArrowException, OSError) as error:
        raise damaged_file_error(folder, name, f"it cannot be read: {error}") from error
    header: dict[str, Any] = json.loads(record.schema.metadata[b"nosync"])
    if header["format"] not in (_FORMAT, WITH_TEXTS):
        raise damaged_file_error(
            folder, name, f"its format is {header['format']}, which this version cannot read"
        )
    return header, record, file_ending(data)


def file_ending(data: pa.Buffer) -> FileEnd:
    """Returns the end of a mapped file, which detects a truncation."""
    return FileEnd(data, data.address, data.size)


def cut_off(folder: str, name: str) -> CorruptLogError:
    """Returns the error for a file that was truncated while it was mapped."""
    return damaged_file_error(folder, name, "it is shorter than when it was opened")


def _record(data: pa.Buffer, *, trusted: bool) -> pa.RecordBatch:
    """Reads the record batch from the second message, because a footer could name another one."""
    reader = pa.BufferReader(data)
    reader.seek(START)
    schema = pa.ipc.read_schema(pa.ipc.read_message(reader))
    return record_batch(reader, schema, trusted=trusted)


class _Table(NamedTuple):
    """The checksums of a part.

    Attributes:
        head_size: the size of the head in bytes.
        head, footer: the checksums of the head and the footer.
        blocks: the checksum of each block of the body.
        end: the end of the body.
    """

    head_size: int
    head: int
    footer: int
    blocks: np.ndarray[Any, Any]
    end: int


class _Chunks:
    """A file object for Arrow's writer that collects the written buffers without copying them."""

    closed = False

    def __init__(self) -> None:
        self.chunks: list[Any] = []

    def write(self, data: Any) -> int:
        self.chunks.append(data)
        return len(data)

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        return None

    def close(self) -> None:
        return None


def _head(chunks: Sequence[Any]) -> bytes:
    """Returns the bytes before the first value: the magic word and the headers of two messages."""
    size = 8
    for _ in range(2):  # each header has a marker of 4 bytes, its size in 4 bytes, and its contents
        size += 8
        size += int(struct.unpack("<i", _first_bytes(chunks, size)[-4:])[0])
    return _first_bytes(chunks, size)


def _first_bytes(chunks: Sequence[Any], size: int) -> bytes:
    """Returns the first `size` bytes of the concatenated chunks."""
    head = b""
    for chunk in chunks:
        head += bytes(memoryview(chunk)[: size - len(head)])
        if len(head) == size:
            break
    return head


def _checksums(chunks: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Returns the checksum of each block of the concatenated chunks; copies only across chunks."""
    sums = []
    pending: list[Any] = []
    size = 0
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        while size + len(view) >= BLOCK:
            piece, view = view[: BLOCK - size], view[BLOCK - size :]
            sums.append(xxh3_64_intdigest(b"".join((*pending, piece)) if pending else piece))
            pending, size = [], 0
        if len(view):
            pending.append(view)
            size += len(view)
    if pending:
        sums.append(xxh3_64_intdigest(b"".join(pending)))
    return np.array(sums, np.uint64)


def _check_blocks(data: pa.Buffer, table: _Table, folder: str, name: str) -> None:
    """Verifies the checksum of every block of a mapped file."""
    view = memoryview(data).cast("B")
    for i, wanted in enumerate(table.blocks.tolist()):
        start = i * BLOCK
        if xxh3_64_intdigest(view[start : min(start + BLOCK, table.end)]) != wanted:
            raise damaged_file_error(
                folder, name, f"the MiB at offset {start} does not match its checksum"
            )


def _checksum_table(data: pa.Buffer, folder: str, name: str, digest: str | None = None) -> _Table:
    """Reads the table of checksums of a mapped file, and verifies its digest, head and footer."""
    view = memoryview(data).cast("B")
    size = len(view)
    length = struct.unpack("<i", view[size - 10 : size - 6])[0] if size > 10 else -1
    at = size - 10 - length - TAIL.size
    if length < 0 or at < 0 or view[at + TAIL.size - 8 : at + TAIL.size] != MAGIC:
        raise damaged_file_error(folder, name, "its end is missing or overwritten")
    head_size, head, footer, count, end, _ = TAIL.unpack(view[at : at + TAIL.size])
    start = at - 8 * count
    good = start >= end >= head_size and count == -(-end // BLOCK)
    if good and digest is not None:
        sums = view[start : at + TAIL.size]
        good = hashlib.blake2b(sums, digest_size=16).hexdigest() == digest
    good = good and xxh3_64_intdigest(view[:head_size]) == head
    if not good or xxh3_64_intdigest(view[at + TAIL.size :]) != footer:
        raise damaged_file_error(folder, name, "its header does not match its checksum")
    blocks = np.frombuffer(view[start:at], np.uint64)
    return _Table(head_size, head, footer, blocks, end)
