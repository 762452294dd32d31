"""Encodes and decodes one batch of changes; small ones take microseconds.

    version u8, form of the diffs u8, columns u16, rows u32, one tag per column (padded to 8)
    diffs          nothing if all are +1; int8 if they fit; else int64
    each column    by its tag, padded to 8:
      PLAIN        the numpy buffer
      NULLABLE     a bitmap of nulls, then the buffer with 0 in their place
      TEXT         size u32, lengths u32 (in characters; NULL: null), UTF-8; decimals as text
      BYTES        size u32, lengths u32, bytes
      ARROW        nothing here: all such columns follow as one Arrow IPC record batch

A column is decoded into the form that was encoded. The types are not stored: the decoder gets the
schema. Numbers are little-endian. This is data only: decoding runs no code, reads nothing
outside the buffer, and every length is checked.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from operator import attrgetter, methodcaller
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nosync_nb.errors import CorruptLogError
from nosync_nb.rows import SMALL, Column, arrow_type, concat, objects, to_arrow
from nosync_nb.rows.types import FIXED
from nosync_nb.trace.parts import arrow_file

FORMAT = 1

_HEADER = struct.Struct("<BBHI")
_SIZE = struct.Struct("<I")
_PLAIN, _NULLABLE, _TEXT, _BYTES, _ARROW = range(5)
_ALL_ONE, _INT8, _INT64 = range(3)
_NULL = 0xFFFF_FFFF
_WORD = 8
_SIZED = ("string", "binary")
_FEW_DIFFS = 16
_VECTORISED_MIN = 16
"""The number of batches from which vectorised decoding is faster."""
_ONES = np.ones(SMALL, np.int64).tobytes()
_PADDING = tuple(bytes(-length % 8) for length in range(8))
_dtype, _tobytes = attrgetter("dtype"), methodcaller("tobytes")
_EMPTY_DIFF = np.empty(0, np.int64)

_DAMAGE = (
    ValueError,
    IndexError,
    EOFError,
    OSError,
    struct.error,
    InvalidOperation,
    pa.ArrowException,
)

Diffs = npt.NDArray[np.int64]


def encode_batch(columns: Sequence[Column], types: Sequence[str], diff: Diffs) -> bytes:
    """Returns the bytes of a batch: `columns` of Spark `types`, and the diff of each row.

    Cost: 5 us for 10 rows of 3 numeric columns.
    """
    data = encode_small(columns, types, diff, sys.maxsize)
    assert data is not None
    return data


def encode_small(
    columns: Sequence[Column], types: Sequence[str], diff: Diffs, most: int
) -> bytes | None:
    """Returns the bytes of a batch; None if they are more than `most`.

    Cost: as `encode_batch`. Texts and bytes that are too long are only counted, not copied.
    """
    rows = len(diff)
    form, parts = encode_diff(diff, rows)
    # All columns are checked in one step first, because this runs for each batch of each epoch.
    dtypes, tags = _plain_dtypes(tuple(types))
    width = len(columns)
    try:
        plain = list(map(_dtype, columns)) == dtypes
    except AttributeError:  # a column is an Arrow array
        plain = False
    if plain:
        raw = list(map(_tobytes, columns))
        if sum(map(len, raw)) != _WORD * rows * width:  # some values are narrower than 8 bytes
            assert [*map(len, columns)] == [rows] * width
            raw = [one + _PADDING[len(one) & 7] for one in raw]
        data = b"".join((_HEADER.pack(FORMAT, form, width, rows), tags, *parts, *raw))
        return data if len(data) <= most else None
    kinds, others = bytearray(width), []
    for index, (column, type_) in enumerate(zip(columns, types, strict=True)):
        assert len(column) == rows
        if not isinstance(column, np.ndarray):
            kinds[index] = _ARROW
            others.append((to_arrow(column, type_), type_))
            continue
        if column.dtype.hasobject:
            values = column.tolist()
            if type_ in _SIZED and sum([len(one) for one in values if one is not None]) > most:
                return None  # the encoded text is no shorter
            kinds[index], data = _encode_objects(values, type_)
        else:
            assert column.dtype == FIXED[type_]
            data = column.tobytes()
        parts += data, _PADDING[len(data) & 7]
    if others:
        names = [str(index) for index in range(len(others))]
        batch = pa.RecordBatch.from_arrays([column for column, _ in others], names)
        parts.append(batch.serialize())
    head = _HEADER.pack(FORMAT, form, width, rows) + kinds
    data = b"".join((head, _PADDING[len(head) & 7], *parts))
    return data if len(data) <= most else None


@lru_cache(maxsize=1024)
def _plain_dtypes(types: tuple[str, ...]) -> tuple[list[np.dtype[Any]] | None, bytes]:
    """Returns the dtypes if all columns are numbers without nulls, and their padded tags."""
    dtypes = [FIXED[type_] for type_ in types if type_ in FIXED]
    width = len(types)
    tags = bytes(width) + _PADDING[(_HEADER.size + width) & 7]
    return dtypes if len(dtypes) == width else None, tags


def rows_count(data: bytes | memoryview) -> int:
    """Returns the number of rows of a batch without decoding it; 0 if the batch is damaged."""
    return int(_HEADER.unpack_from(data)[3]) if len(data) >= _HEADER.size else 0


def decode_batch(data: bytes | memoryview, types: Sequence[str]) -> tuple[list[Column], Diffs]:
    """Returns the columns and diffs of a batch; arrays share the memory of `data`.

    Raises:
        CorruptLogError: the bytes are not a batch of these types.

    Cost: 5 us for 10 rows of 3 numeric columns.
    """
    try:
        return _decode(data, types)
    except CorruptLogError:
        raise
    except _DAMAGE as error:
        raise CorruptLogError(f"a batch of {len(types)} columns is damaged: {error}") from error


def decode_batches(
    data: Sequence[bytes | memoryview], types: Sequence[str]
) -> tuple[list[Column], Diffs]:
    """Returns the columns and diffs of several batches, one after the other.

    Raises:
        CorruptLogError: one of them is not a batch of these types.

    Cost: 0.5 us for a batch of 10 rows, if there are many and all columns are plain numbers.
    """
    plain = _decode_plain(data, types) if len(data) >= _VECTORISED_MIN else None
    if plain is not None:
        return plain
    each = [decode_batch(one, types) for one in data]
    columns = [concat([c[i] for c, _ in each], t) for i, t in enumerate(types)]
    return columns, np.concatenate([diff for _, diff in each]) if each else _EMPTY_DIFF


def _decode_plain(
    data: Sequence[bytes | memoryview], types: Sequence[str]
) -> tuple[list[Column], Diffs] | None:
    """Decodes batches of plain columns and small diffs at once; None if a batch is different."""
    dtypes = [FIXED.get(type_) for type_ in types]
    width = len(types)
    if not width or any(dtype is None or dtype.kind == "b" for dtype in dtypes):
        return None
    begin = _HEADER.size + width
    begin += -begin % 8
    sizes = np.fromiter(map(len, data), np.int64, len(data))
    if sizes.min() < begin or (sizes & 7).any():
        return None
    buffer = b"".join(data)
    words, ends = np.frombuffer(buffer, np.uint64), sizes.cumsum()
    starts = ends - sizes
    first = starts >> 3
    head = words[first]
    forms, rows = (head >> 8 & 0xFF).astype(np.int64), (head >> 32).astype(np.int64)
    if (head & 0xFFFF_00FF != FORMAT | width << 16).any() or forms.max() > _INT8:
        return None
    if any(words[first + word].any() for word in range(1, begin >> 3)):
        return None  # a column that is not plain
    at = starts + begin
    offsets = [at]
    at = at + np.where(forms == _INT8, rows + (-rows & 7), 0)
    for dtype in dtypes:
        assert dtype is not None
        offsets.append(at)
        size = rows * dtype.itemsize
        at = at + size + (-size & 7)
    if (at != ends).any():
        return None
    diff = np.ones(int(rows.sum()), np.int64)
    if forms.any():
        narrow = forms == _INT8
        narrow_diffs = _gather(buffer, np.dtype(np.int8), offsets[0][narrow], rows[narrow])
        diff[np.repeat(narrow, rows)] = narrow_diffs
    columns: list[Column] = []
    for dtype, each in zip(dtypes, offsets[1:], strict=True):
        assert dtype is not None
        columns.append(_gather(buffer, dtype, each, rows))
    return columns, diff


def _gather(buffer: bytes, dtype: np.dtype[Any], places: Diffs, counts: Diffs) -> Any:
    """Returns values of a buffer: for each i, `counts[i]` values from byte `places[i]` on."""
    before = counts.cumsum() - counts
    index = np.repeat(places // dtype.itemsize - before, counts)
    index += np.arange(len(index))
    return np.frombuffer(buffer, dtype)[index]


def _decode(data: bytes | memoryview, types: Sequence[str]) -> tuple[list[Column], Diffs]:
    version, form, width, rows = _HEADER.unpack_from(data)
    if version != FORMAT:
        raise CorruptLogError(
            f"batch format {version} is newer than this program ({FORMAT})",
            hint="upgrade nosync; nothing was changed",
        )
    if width != len(types):
        raise ValueError(f"{width} columns were written")
    tags = data[_HEADER.size : _HEADER.size + width]
    at = _HEADER.size + width
    at += -at % 8
    diff, at = _decode_diff(data, at, form, rows)
    columns: list[Column] = []
    for tag, type_ in zip(tags, types, strict=True):
        if tag == _PLAIN:
            dtype = FIXED[type_] if type_ in FIXED else _raise_misfit(tag, type_)
            column = np.frombuffer(data, dtype, rows, at) if rows else np.empty(0, dtype)
            if dtype.kind == "b" and rows and column.view(np.uint8).max() > 1:
                raise ValueError("a boolean is neither 0 nor 1")
            columns.append(column)
            at += column.nbytes + -column.nbytes % 8
        elif tag == _ARROW:
            columns.append(None)
        else:
            column, at = _decode_objects(data, at, rows, tag, type_)
            columns.append(column)
    if _ARROW in tags:
        at = _decode_arrow(data, at, rows, types, columns)
    if at != len(data):
        raise ValueError(f"{len(data)} bytes instead of {at}")
    return columns, diff


def encode_diff(diff: Diffs, rows: int) -> tuple[int, list[bytes]]:
    """Returns the form of the diffs and their bytes."""
    raw = diff.tobytes()
    if _ONES.startswith(raw) if rows <= SMALL else bool((diff == 1).all()):
        return _ALL_ONE, []
    if rows <= _FEW_DIFFS:
        form, encoded = _encode_few_diffs(raw)
        return form, [encoded]
    narrow = diff.astype(np.int8)
    if narrow.astype(np.int64).tobytes() == raw:
        return _INT8, [narrow.tobytes(), _PADDING[rows & 7]]
    return _INT64, [raw]


@lru_cache(maxsize=1024)
def _encode_few_diffs(raw: bytes) -> tuple[int, bytes]:
    """Returns the form and the padded bytes of a few diffs; cached, because the same ones recur."""
    diffs = memoryview(raw).cast("q").tolist()
    try:
        return _INT8, array("b", diffs).tobytes() + _PADDING[len(diffs) & 7]
    except OverflowError:
        return _INT64, raw


def _decode_diff(data: bytes | memoryview, at: int, form: int, rows: int) -> tuple[Diffs, int]:
    if not rows:
        return _EMPTY_DIFF, at
    if form == _ALL_ONE:
        if rows > 8 * len(data) and rows > SMALL:
            raise ValueError(f"{rows} rows are more than the batch can hold")
        return np.ones(rows, np.int64), at
    if form == _INT8:
        return np.frombuffer(data, np.int8, rows, at).astype(np.int64), at + rows + -rows % 8
    if form == _INT64:
        return np.frombuffer(data, np.int64, rows, at), at + 8 * rows
    raise ValueError(f"diffs of the unknown form {form}")


def _encode_objects(values: list[Any], type_: str) -> tuple[int, bytes]:
    """Returns the tag and the bytes of a column in object form."""
    if type_ == "string":
        return _TEXT, _encode_text(values)
    if type_ == "binary":
        return _BYTES, _encode_bytes(values)
    if type_.startswith("decimal"):
        return _TEXT, _encode_text([None if one is None else str(one) for one in values])
    missing = [one is None for one in values]
    bitmap = np.packbits(np.array(missing, np.bool_), bitorder="little").tobytes()
    filled = np.array([0 if one is None else one for one in values], FIXED[type_])
    return _NULLABLE, b"".join((bitmap, _PADDING[len(bitmap) & 7], filled.tobytes()))


def _encode_text(values: list[str | None]) -> bytes:
    try:
        joined = "".join(values)  # type: ignore[arg-type]  # a null raises
        lengths = array("I", map(len, values))  # type: ignore[arg-type]
    except TypeError:
        joined = "".join([one for one in values if one is not None])
        lengths = array("I", [_NULL if one is None else len(one) for one in values])
    text = joined.encode()
    return b"".join((_SIZE.pack(len(text)), lengths.tobytes(), text))


def _encode_bytes(values: list[bytes | None]) -> bytes:
    lengths = array("I", [_NULL if one is None else len(one) for one in values])
    joined = b"".join([one for one in values if one is not None])
    return b"".join((_SIZE.pack(len(joined)), lengths.tobytes(), joined))


def _decode_objects(
    data: bytes | memoryview, at: int, rows: int, tag: int, type_: str
) -> tuple[Column, int]:
    """Returns a column in object form and the offset after it."""
    if tag == _NULLABLE and type_ in FIXED:
        size = (rows + 7) // 8
        bits = np.frombuffer(data, np.uint8, size, at) if rows else np.empty(0, np.uint8)
        missing = np.unpackbits(bits, count=rows, bitorder="little").tolist()
        at += size + -size % 8
        dtype = FIXED[type_]
        plain = np.frombuffer(data, dtype, rows, at) if rows else np.empty(0, dtype)
        at += plain.nbytes + -plain.nbytes % 8
        pairs = zip(missing, plain.tolist(), strict=True)
        return objects([None if gone else one for gone, one in pairs]), at
    read, convert = _READERS.get((tag, type_.partition("(")[0])) or _raise_misfit(tag, type_)
    start = at + _SIZE.size + 4 * rows
    stop = start + _SIZE.unpack_from(data, at)[0]
    if stop > len(data):
        raise ValueError("a text is truncated")
    lengths = array("I")
    lengths.frombytes(data[at + _SIZE.size : start])
    values = _split(read(bytes(data[start:stop])), lengths, convert)
    return objects(values), stop + -(stop - at) % 8


def _split(text: Any, lengths: array[int], convert: Callable[[Any], Any] | None) -> list[Any]:
    """Splits texts or bytes into values; their lengths must add up to the total length."""
    values: list[Any] = []
    at = 0
    for length in lengths:
        if length == _NULL:
            values.append(None)
        else:
            piece = text[at : at + length]
            values.append(convert(piece) if convert else piece)
            at += length
    if at != len(text):
        raise ValueError(f"the lengths add up to {at}, not to {len(text)}")
    return values


def _decode_arrow(
    data: bytes | memoryview, at: int, rows: int, types: Sequence[str], columns: list[Column]
) -> int:
    """Fills in the columns that Arrow encoded; returns the offset after them."""
    places = [index for index, column in enumerate(columns) if column is None]
    schema = _arrow_schema(tuple(types[index] for index in places))
    reader = pa.BufferReader(memoryview(data)[at:])
    batch = arrow_file.record_batch(reader, schema)
    batch.validate(full=True)
    if batch.num_rows != rows:
        raise ValueError(f"{batch.num_rows} rows of Arrow instead of {rows}")
    for index, place in enumerate(places):
        columns[place] = batch.column(index)
    return at + int(reader.tell())


@lru_cache(maxsize=1024)
def _arrow_schema(types: tuple[str, ...]) -> pa.Schema:
    return pa.schema([(str(index), arrow_type(type_)) for index, type_ in enumerate(types)])


def _raise_misfit(tag: int, type_: str) -> Any:
    raise ValueError(f"a column of {type_} in the form {tag}")


_READERS: dict[tuple[int, str], tuple[Callable[[bytes], Any], Callable[[Any], Any] | None]] = {
    (_TEXT, "string"): (bytes.decode, None),
    (_TEXT, "decimal"): (bytes.decode, Decimal),
    (_BYTES, "binary"): (bytes, None),
}
