"""Hashes of rows and keys: the same number here and in Spark's JVM.

The hash of columns c1, c2, .. is Spark's `xxhash64(bitmap, c1, c2, ..)`: XXH64 with seed 42, in
which the hash of each value is the seed of the next one. `bitmap` is a bigint whose bit i is set
where column i is null. Spark skips nulls, so without the bitmap (null, 1) and (1, null) would have
the same hash. More than 64 columns have one bitmap for each 64 columns. Integers are hashed as
bigint, so that widening a column does not change hashes. Nested values are hashed by their
canonical encoding, which Spark cannot compute.

Design
    Up to `_FEW` rows, the C library hashes each value in 0.15 us. For more rows, numpy computes
    XXH64 on blocks of rows that fit the cache. Text is grouped by length, so that all texts of a
    block need the same steps. The C library always hashes objects. Little-endian machines are
    assumed, as in Spark and Arrow.

Source: Y. Collet, xxHash specification 0.1.1, XXH64.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from xxhash import xxh64_intdigest as _digest

from nosync_nb.errors import SchemaError
from nosync_nb.rows import buffers, decimals, dictionary
from nosync_nb.rows.arrow import Column, from_arrow, most_objects, to_arrow
from nosync_nb.rows.columns import null_mask, slice_
from nosync_nb.rows.ddl import DAY_TIMES, quoted
from nosync_nb.rows.encoding import encode_column
from nosync_nb.rows.types import FIXED, INTEGERS, decimal_parts, is_nested

SEED = 42
_FEW = 192
SLICE = 1 << 20
"""The maximum number of rows that are hashed together, because hashing takes memory for each."""
_LONG_DIGITS = 18
_LONGS = frozenset((*INTEGERS, "timestamp", "timestamp_ntz", *DAY_TIMES, "double"))
_ndarray = np.ndarray


def hash_columns(columns: Sequence[Column], types: Sequence[str], n: int) -> Hashes:
    """Returns the hash of each of `n` rows over the given columns.

    Equal rows have equal hashes, and widening a column does not change them. Without columns, every
    row has the hash of an empty bitmap.

    Cost: 6 us for 10 rows of 2 bigints; about 10 ms for 1 M bigints; 60 ms for 1 M short strings.
    """
    if n > _FEW:
        return _hash_many(columns, types, n)
    seeds: Iterable[int]
    nulls = [null_mask(column) for column in columns]
    for missing in nulls:
        if missing is not None:
            seeds = _bitmap_hashes(nulls, n).tolist()
            break
    else:
        seeds = repeat(_no_nulls(len(nulls)), n)
    for column, type_, missing in zip(columns, types, nulls, strict=True):
        blobs = _blobs(column, type_)
        if missing is None:
            seeds = map(_digest, blobs, seeds)
        else:
            pairs = zip(blobs, seeds, strict=True)
            seeds = [seed if blob is None else _digest(blob, seed) for blob, seed in pairs]
    return np.fromiter(seeds, np.uint64, n)


def extend_hashes(
    hashes: Hashes, columns: Sequence[Column], types: Sequence[str], n: int
) -> Hashes | None:
    """Returns the hashes of rows with additional columns from the hashes of the first columns.

    Returns None if an additional column contains a null, because then the bitmap, which is hashed
    first, is different. It is also different for more than 64 columns, which the caller must check.

    Cost: that of hashing the additional columns alone.
    """
    for column in columns:
        if null_mask(column) is not None:
            return None
    if n > _FEW:
        for column, type_ in zip(columns, types, strict=True):
            hashes = _chain(column, type_, hashes)
        return hashes
    seeds: Iterable[int] = hashes.tolist()
    for column, type_ in zip(columns, types, strict=True):
        seeds = map(_digest, _blobs(column, type_), seeds)
    return np.fromiter(seeds, np.uint64, n)


@lru_cache(maxsize=256)
def _no_nulls(count: int) -> int:
    """Returns the hash of the null bitmaps of `count` columns without nulls."""
    seed = SEED
    for _ in range(max(1, -(-count // 64))):
        seed = _digest(b"\x00" * 8, seed)
    return seed


def _bitmap_hashes(nulls: Sequence[np.ndarray[Any, Any] | None], n: int) -> Hashes:
    """Returns the hash of the null bitmap of each row."""
    hashes = np.full(n, SEED, np.uint64)
    for start in range(0, len(nulls), 64):
        bitmap = np.zeros(n, np.uint64)
        for i, missing in enumerate(nulls[start : start + 64]):
            if missing is not None:
                bitmap |= missing.astype(np.uint64) << np.uint64(i)
        hashes = hash_numbers(bitmap, hashes)
    return hashes


# Few rows: the C library hashes the bytes of each value.


@lru_cache(maxsize=4096)
def _cutter(size: int, n: int) -> Any:
    """Returns a function that splits a buffer into `n` pieces of `size` bytes."""
    return struct.Struct(f"{size}s" * n).unpack


def _blobs(column: Column, type_: str) -> Sequence[Any]:
    """Returns the bytes that Spark hashes for each value; None for a null."""
    if type_.startswith("decimal"):
        return _decimal_blobs(column, type_)
    if type(column) is not _ndarray:
        if is_nested(type_):
            return _nested_blobs(column, type_)
        column = from_arrow(column, type_)
    if not column.dtype.hasobject:
        if type_ in _LONGS:
            if column.itemsize != 8:
                column = column.astype(np.int64)
        elif type_ == "boolean":
            column = column.astype(np.int32)
        if not column.flags.c_contiguous:
            column = column.copy()
        pieces: Sequence[bytes] = _cutter(column.itemsize, len(column))(column)
        return pieces
    values: list[Any] = column.tolist()
    if type_ == "binary":
        return values
    to_bytes = _encoder(type_)
    return [None if value is None else to_bytes(value) for value in values]


@lru_cache(maxsize=256)
def _encoder(type_: str) -> Any:
    """Returns the function that converts a value in object form to the bytes that Spark hashes."""
    if type_ == "string":
        return str.encode
    if type_ == "double":
        return struct.Struct("<d").pack
    if type_ in _LONGS:
        return struct.Struct("<q").pack
    if type_ == "float":
        return struct.Struct("<f").pack
    return struct.Struct("<i").pack


def _decimal_blobs(column: Column, type_: str) -> Sequence[bytes | None]:
    """Returns the bytes that Spark hashes for decimals; up to 18 digits, those of a bigint."""
    numbers, nulls = decimals.load_decimals(column, type_)
    blobs: Sequence[bytes]
    if decimal_parts(type_)[0] <= _LONG_DIGITS:
        blobs = _cutter(8, len(numbers))(numbers)
    else:
        blobs = [_java_bytes(number) for number in numbers.tolist()]
    if nulls is None:
        return blobs
    return [None if gone else blob for blob, gone in zip(blobs, nulls.tolist(), strict=True)]


def _java_bytes(number: int) -> bytes:
    """Returns the result of Java's `BigInteger.toByteArray`: the shortest two's complement form."""
    bits = number.bit_length() if number >= 0 else (~number).bit_length()
    return number.to_bytes(bits // 8 + 1, "big", signed=True)


def _nested_blobs(array: pa.Array, type_: str) -> list[bytes | None]:
    """Returns the canonical encodings of nested values; None for a null."""
    return [None if code == b"\x00" else code for code in encode_column(array, type_)]


# Many rows: numpy computes the hashes of whole columns.


def _hash_many(columns: Sequence[Column], types: Sequence[str], n: int) -> Hashes:
    """Hashes many rows column by column with numpy."""
    nulls = [null_mask(column) for column in columns]
    if any(mask is not None for mask in nulls):
        hashes = _bitmap_hashes(nulls, n)
    else:
        hashes = np.full(n, _no_nulls(len(columns)), np.uint64)
    for column, type_, missing in zip(columns, types, nulls, strict=True):
        chained = _chain(column, type_, hashes)
        hashes = chained if missing is None else np.where(missing, hashes, chained)
    return hashes


def _chain(column: Column, type_: str, seeds: Hashes) -> Hashes:
    """Hashes one column with a seed for each row; the result for a null is undefined."""
    if len(seeds) > SLICE:
        firsts = range(0, len(seeds), SLICE)
        slices = [(slice_(column, at, at + SLICE), seeds[at : at + SLICE]) for at in firsts]
        return np.concatenate([_chain(some, type_, above) for some, above in slices])
    if type_ in FIXED:
        values = (
            column if type(column) is _ndarray else buffers.fixed_width_array(column, FIXED[type_])
        )
        if values.dtype.hasobject:
            values = buffers.fixed_width_array(to_arrow(values, type_), FIXED[type_])
        if type_ in _LONGS:
            values = values if values.itemsize == 8 else values.astype(np.int64)
        elif type_ != "float":
            values = values.astype(np.int32)
        return hash_numbers(values, seeds)
    if type(column) is _ndarray and len(column) <= most_objects(type_):
        pairs = zip(_blobs(column, type_), seeds.tolist(), strict=True)
        digests = (seed if blob is None else _digest(blob, seed) for blob, seed in pairs)
        return np.fromiter(digests, np.uint64, len(column))
    if type(column) is not _ndarray and dictionary.is_dictionary(column):
        held, starts, lengths = _text(column.dictionary)
        codes = dictionary.codes_of(column)
        if len(seeds) > dictionary.MOST and (seeds == seeds[0]).all():  # true for the first column
            return hash_bytes(held, starts, lengths, seeds[: dictionary.MOST])[codes]
        return hash_bytes(held, starts[codes], lengths[codes], seeds)
    if is_nested(type_):
        column = buffers.arrow_from_list(_nested_blobs(column, type_), pa.binary())
    else:
        column = to_arrow(column, type_)
    if type_.startswith("decimal"):
        low, high = _halves(column)
        if decimal_parts(type_)[0] <= _LONG_DIGITS:
            return hash_numbers(low, seeds)
        return _hash_wide(low, high, seeds)
    return hash_bytes(*_text(column), seeds)


def _halves(array: pa.Array) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Returns the lower and the upper 64 bits of a decimal column."""
    words = buffers.decimal_words(array)
    return words[:, 0], words[:, 1]


def _hash_wide(low: np.ndarray[Any, Any], high: np.ndarray[Any, Any], seeds: Hashes) -> Hashes:
    """Hashes 128-bit numbers by their shortest big-endian two's complement bytes."""
    n = len(low)
    words = np.empty((n, 2), ">i8")
    words[:, 0], words[:, 1] = high, low
    data = words.view(np.uint8).reshape(n, 16)
    sign = np.where(data[:, 0] >= 128, np.uint8(255), np.uint8(0))
    skip = np.zeros(n, np.int64)
    going = np.ones(n, np.bool_)
    for i in range(15):
        going = going & (data[:, i] == sign) & ((data[:, i + 1] >= 128) == (sign == 255))
        skip += going
    starts = np.arange(0, 16 * n, 16, dtype=np.int64)
    return hash_bytes(data.reshape(-1), starts + skip, 16 - skip, seeds)


def _text(
    array: pa.Array,
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Returns the bytes of a string or binary column, and the start and length of each value."""
    ends, data = buffers.bounds(array), array.buffers()[2]
    held = np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, "u1")
    return held, ends[:-1].astype(np.int64), np.diff(ends)


def spark_hash_sql(names: Sequence[str], types: Sequence[str]) -> str:
    """Returns the Spark SQL expression that computes the same hash in the JVM (a signed bigint).

    Raises:
        SchemaError: for nested columns, because Spark cannot compute their encoding.
    """
    columns = [quoted(name) for name in names]
    arguments = []
    for start in range(0, max(1, len(names)), 64):
        bits = [
            f"shiftleft(cast({name} is null as bigint), {i})"
            for i, name in enumerate(columns[start : start + 64])
        ]
        arguments.append(" | ".join(bits) or "0L")
    for name, type_ in zip(columns, types, strict=True):
        if is_nested(type_):
            raise SchemaError(f"column {name} of type {type_} has no hash in Spark")
        arguments.append(f"cast({name} as bigint)" if type_ in INTEGERS else name)
    return f"xxhash64({', '.join(arguments)})"


Hashes: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]
"""One unsigned 64-bit hash for each row."""

_U = np.uint64
_P1 = _U(0x9E3779B185EBCA87)
_P2 = _U(0xC2B2AE3D27D4EB4F)
_P3 = _U(0x165667B19E3779F9)
_P4 = _U(0x85EBCA77C2B2AE63)
_P5 = _U(0x27D4EB2F165667C5)
_WRAP = 1 << 64
_BLOCK = 8192
RUNS_MIN = 512
"""The fewest byte strings of one length that numpy hashes together; fewer are hashed one by one."""


def _rotate(x: Hashes, left: int) -> Hashes:
    """Rotates `x` to the left in place."""
    high = x >> _U(64 - left)
    x <<= _U(left)
    x |= high
    return x


def _finish(h: Hashes) -> Hashes:
    """Applies the final mixing of XXH64, the avalanche, to `h` in place."""
    h ^= h >> _U(33)
    h *= _P2
    h ^= h >> _U(29)
    h *= _P3
    h ^= h >> _U(32)
    return h


def _add_word(h: Hashes, word: Hashes) -> Hashes:
    """Mixes 8 bytes into `h` in place; overwrites `word`."""
    word *= _P2
    _rotate(word, 31)
    word *= _P1
    h ^= word
    _rotate(h, 27)
    h *= _P1
    h += _P4
    return h


def _add_half(h: Hashes, half: Hashes) -> Hashes:
    """Mixes 4 bytes into `h` in place; overwrites `half`."""
    half *= _P1
    h ^= half
    _rotate(h, 23)
    h *= _P2
    h += _P3
    return h


def hash_numbers(values: np.ndarray[Any, Any], seeds: Hashes) -> Hashes:
    """Returns the hash of each value, which has 8 or 4 bytes."""
    size = values.itemsize
    words = values.view(np.uint64 if size == 8 else np.uint32)
    add = _add_word if size == 8 else _add_half
    out = seeds + _U((int(_P5) + size) % _WRAP)
    for at in range(0, len(out), _BLOCK):
        h = out[at : at + _BLOCK]
        _finish(add(h, words[at : at + _BLOCK].astype(np.uint64)))
    return out


def hash_bytes(
    data: np.ndarray[Any, Any],
    starts: np.ndarray[Any, Any],
    lengths: np.ndarray[Any, Any],
    seeds: Hashes,
) -> Hashes:
    """Returns the hash of each byte string.

    Args:
        data: the buffer of all bytes, uint8.
        starts: the offset of each byte string, int64.
        lengths: the length of each byte string; many of one length are hashed together.

    Cost: O(bytes), plus about 100 us for each distinct length, or 0.3 us for each byte string of a
    rare length.
    """
    out = np.empty(len(starts), np.uint64)
    narrow = _narrow(lengths)
    order = np.argsort(narrow, kind="stable")
    if narrow.dtype == np.uint16:
        counts = np.bincount(narrow)
        sizes = counts.nonzero()[0]
        counts = counts[sizes]
    else:
        sizes, counts = np.unique(lengths, return_counts=True)
    lasts = counts.cumsum()
    firsts = lasts - counts
    few = []
    for size, first, last in zip(sizes.tolist(), firsts.tolist(), lasts.tolist(), strict=True):
        if last - first < RUNS_MIN:
            few.append(order[first:last])
            continue
        for at in range(first, last, _BLOCK):
            rows = order[at : min(at + _BLOCK, last)]
            out[rows] = _hash_run(data, starts[rows], size, seeds[rows])
    if few:
        rows = np.concatenate(few)
        out[rows] = _hash_each(data, starts[rows], lengths[rows], seeds[rows])
    return out


def _hash_each(data: Any, starts: Any, lengths: Any, seeds: Hashes) -> Hashes:
    """Hashes byte strings one by one with the C library."""
    view, ends = memoryview(data), starts + lengths
    each = zip(starts.tolist(), ends.tolist(), seeds.tolist(), strict=True)
    return np.fromiter([_digest(view[a:b], seed) for a, b, seed in each], np.uint64)


def _narrow(lengths: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns lengths as 16-bit numbers if they fit, because numpy sorts those by radix sort."""
    if len(lengths) and lengths.max() < 1 << 16:
        return lengths.astype(np.uint16)
    return lengths


def _words_at(data: np.ndarray[Any, Any], dtype: str, at: np.ndarray[Any, Any]) -> Hashes:
    """Returns the little-endian numbers that begin at the byte offsets `at` of `data`."""
    size = np.dtype(dtype).itemsize
    view = np.ndarray((len(data) - size + 1,), dtype, data, strides=(1,))
    words: Hashes = view[at].astype(np.uint64, copy=False)
    return words


def _hash_run(data: np.ndarray[Any, Any], at: np.ndarray[Any, Any], size: int, h: Hashes) -> Hashes:
    """Hashes byte strings of one length; overwrites `h`, which contains their seeds."""
    left = size
    if size >= 32:
        h = _stripes(data, at, size // 32, h)
        at = at + size // 32 * 32
        left = size % 32
    else:
        h += _P5
    h += _U(size)
    while left >= 8:
        _add_word(h, _words_at(data, "<u8", at))
        at, left = at + 8, left - 8
    if left >= 4:
        _add_half(h, _words_at(data, "<u4", at))
        at, left = at + 4, left - 4
    while left:
        byte = data[at].astype(np.uint64)
        byte *= _P5
        h ^= byte
        _rotate(h, 11)
        h *= _P1
        at, left = at + 1, left - 1
    return _finish(h)


def _stripes(data: np.ndarray[Any, Any], at: np.ndarray[Any, Any], count: int, h: Hashes) -> Hashes:
    """Returns the hash state after `count` stripes of 32 bytes."""
    lanes = [h + _P1 + _P2, h + _P2, h.copy(), h - _P1]
    for stripe in range(count):
        for i, lane in enumerate(lanes):
            _round(lane, _words_at(data, "<u8", at + (32 * stripe + 8 * i)))
    state: Hashes = np.zeros(len(h), np.uint64)
    for lane, left in zip(lanes, (1, 7, 12, 18), strict=True):
        state += _rotate(lane.copy(), left)
    for lane in lanes:
        state ^= _round(np.zeros(len(h), np.uint64), lane)
        state *= _P1
        state += _P4
    return state


def _round(lane: Hashes, word: Hashes) -> Hashes:
    """Mixes 8 bytes into a lane in place; overwrites `word`."""
    word *= _P2
    lane += word
    _rotate(lane, 31)
    lane *= _P1
    return lane
