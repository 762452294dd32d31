"""One canonical, order-preserving encoding of a value to bytes.

Two values of a type are equal exactly if their encodings are equal. The order of encodings as
unsigned bytes is the order of the values: null first, NaN greatest, -0.0 as 0.0, text by its UTF-8
bytes, arrays and structs element by element, maps as their entries sorted by key. No encoding is a
prefix of another one of the same type, so the encodings of several columns may be concatenated.

Nested columns are compared, hashed and sorted by their encodings, because Arrow has no kernels for
them. Scalars are encoded on slow paths only. An integer takes 8 bytes whatever its width, so
widening a column does not change its encodings.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, Inexact
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from nosync_nb.rows.ddl import DAY_TIMES
from nosync_nb.rows.types import FIXED, decimal_parts, is_nested, nested_parts

_NULL = b"\x00"
_END = b"\x00"
_SIGN = 1 << 63
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_MICROS = frozenset(("timestamp", "timestamp_ntz", *DAY_TIMES))
_scaled = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[Inexact]).scaleb

_pack_unsigned = struct.Struct(">Q").pack
_pack_double = struct.Struct(">d").pack
_unpack_bits = struct.Struct(">Q").unpack


def raw(value: Any, type: str) -> Any:
    """Returns the value as columns store it: days for a date, microseconds for times."""
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            value = value.astimezone(UTC).replace(tzinfo=None)
        return (value - _EPOCH) // _MICROSECOND
    if isinstance(value, date):
        return value.toordinal() - _EPOCH_DAY
    if isinstance(value, timedelta):
        return value // _MICROSECOND
    return value


def encode(value: Any, type: str) -> bytes:
    """Returns the canonical bytes of one value.

    Args:
        value: a Python object (dates, datetimes, lists, dicts), or a value as columns store it.

    Cost: O(size of the value), a few us; too slow for every row of an epoch.
    """
    if value is None:
        return _NULL
    return b"\x01" + _body(value, type)


def _body(value: Any, type: str) -> bytes:
    """Encodes a value that is not null, without the leading byte."""
    if type == "string":
        return _escaped(value.encode())
    if type == "binary":
        return _escaped(bytes(value))
    if type in ("double", "float"):
        return _double(value)
    if type == "boolean":
        return b"\x01" if value else b"\x00"
    if type in FIXED:
        return _pack_unsigned(int(raw(value, type)) + _SIGN)
    if not is_nested(type):
        return _decimal(value, decimal_parts(type)[1])
    parts = nested_parts(type)
    if type.startswith("array<"):
        return _sequence(encode(item, parts[0][1]) for item in value)
    if type.startswith("map<"):
        items = value.items() if isinstance(value, dict) else value
        return _entries((encode(k, parts[0][1]), encode(v, parts[1][1])) for k, v in items)
    values = [value[name] for name, _ in parts] if isinstance(value, dict) else value
    return b"".join(encode(item, inner) for item, (_, inner) in zip(values, parts, strict=True))


def _escaped(text: bytes) -> bytes:
    """Ends the bytes with two zeros; inner zeros are followed by 255 to keep the order."""
    return text.replace(b"\x00", b"\x00\xff") + b"\x00\x00"


def _double(value: float) -> bytes:
    """Encodes a float so that bytes have the order of numbers, with NaN last."""
    if value != value:
        return b"\xff" * 8
    (bits,) = _unpack_bits(_pack_double(value + 0.0))
    return _pack_unsigned(bits ^ (0xFFFF_FFFF_FFFF_FFFF if bits & _SIGN else _SIGN))


def unscaled(value: Decimal, scale: int) -> int:
    """Returns the unscaled integer of a decimal, `value * 10**scale`, truncated and not rounded."""
    return int(_scaled(value, scale))


def _decimal(value: Decimal, scale: int) -> bytes:
    """Encodes the unscaled integer of a decimal in 17 bytes."""
    return (unscaled(value, scale) + (1 << 135)).to_bytes(17, "big")


def _sequence(items: Iterable[bytes]) -> bytes:
    """Concatenates the encodings of elements; a sequence is less than its extensions."""
    return b"".join(b"\x01" + item for item in items) + _END


def _entries(items: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Concatenates the encoded entries of a map, sorted by key."""
    return _sequence(key + value for key, value in sorted(items))


def encode_array(array: pa.Array, type: str) -> list[bytes]:
    """Returns the canonical bytes of every value of an Arrow array of `type`.

    Cost: a Python step for each value.
    """
    if not is_nested(type):
        return [encode(value, type) for value in raw_list(array, type)]
    valid = _validity(array)
    if type.startswith("struct<"):
        columns = [
            encode_array(array.field(i), inner) for i, (_, inner) in enumerate(nested_parts(type))
        ]
        rows = zip(*columns, strict=True) if columns else [()] * len(array)
        codes: Iterable[bytes] = (b"\x01" + b"".join(row) for row in rows)
    else:
        codes = _encode_lists(array, type)
    if valid is None:
        return list(codes)
    return [code if ok else _NULL for code, ok in zip(codes, valid, strict=True)]


def _encode_lists(array: pa.Array, type: str) -> Iterable[bytes]:
    """Encodes lists and maps without regard to nulls."""
    if not len(array):
        return []
    offsets = array.offsets.to_pylist()
    first, last = offsets[0], offsets[-1]
    parts = nested_parts(type)
    spans = [(a - first, b - first) for a, b in pairwise(offsets)]
    if type.startswith("array<"):
        items = encode_array(array.values.slice(first, last - first), parts[0][1])
        return (b"\x01" + _sequence(items[a:b]) for a, b in spans)
    keys = encode_array(array.keys.slice(first, last - first), parts[0][1])
    values = encode_array(array.items.slice(first, last - first), parts[1][1])
    entries = list(zip(keys, values, strict=True))
    return (b"\x01" + _entries(entries[a:b]) for a, b in spans)


def _validity(array: pa.Array) -> Sequence[bool] | None:
    """Returns a mask of the values that are not null; None if there are no nulls."""
    if not array.null_count:
        return None
    valid: list[bool] = array.is_valid().to_pylist()
    return valid


def raw_list(array: pa.Array, type: str) -> list[Any]:
    """Returns the values of a scalar Arrow array as columns store them."""
    if type == "date":
        array = array.view(pa.int32())
    elif type in _MICROS:
        array = array.view(pa.int64())
    values: list[Any] = array.to_pylist()
    return values


def encode_column(column: Any, type: str) -> list[bytes]:
    """Returns the canonical bytes of every value of a column in any of its forms.

    Cost: a Python step for each value.
    """
    if isinstance(column, np.ndarray):
        return [encode(value, type) for value in column.tolist()]
    return encode_array(column, type)
