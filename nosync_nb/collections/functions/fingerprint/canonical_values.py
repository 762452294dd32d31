"""Canonical bytes of captured values whose types are in a closed list.

Equal values have equal bytes in every process. The type is part of the value, so 1, True and 1.0
differ. A subclass of a listed type is not supported, because its behaviour is unknown. The module
`code` handles containers, functions and classes, because they may contain one another.

This module also computes the fingerprints of definitions, which are data.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
import struct
import sys
import uuid
import zoneinfo
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from hashlib import blake2b
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any

LRU_CACHED: Any = type(functools.lru_cache(len))
"""The class of functions that `lru_cache` returns; functools has no public name for it."""


class UnsupportedValue(Exception):  # noqa: N818 - a verdict, not an error
    """A value has no canonical form. The text is the predicate of a sentence, with the reason."""


def framed_bytes(tag: str, payload: bytes = b"") -> bytes:
    """Returns a self-delimiting piece: no piece is a prefix of another piece."""
    return b"%s:%d:%s;" % (tag.encode(), len(payload), payload)


def _double(value: float) -> bytes:
    """Returns the bits of a double; all NaNs have the same bits."""
    return struct.pack(">d", math.nan if math.isnan(value) else value)


def _zone(value: Any) -> bytes:
    """Returns the identity of a time zone: its key, or its fixed offset."""
    if value is None:
        return b"none"
    if type(value) is timezone:
        return repr(value.utcoffset(None)).encode()
    if type(value) is zoneinfo.ZoneInfo and value.key:
        return value.key.encode()
    raise UnsupportedValue(f"is a time zone of type {type(value).__name__!r}")


def _moment(value: datetime | time) -> bytes:
    """Returns the bytes of a datetime or a time of day, with its zone."""
    naive = value.replace(tzinfo=None, fold=0)
    return f"{naive.isoformat()} {value.fold} ".encode() + _zone(value.tzinfo)


_SCALARS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda v: b"",
    type(...): lambda v: b"",
    type(NotImplemented): lambda v: b"",
    bool: lambda v: b"1" if v else b"0",
    int: lambda v: b"%x" % v,
    float: _double,
    complex: lambda v: _double(v.real) + _double(v.imag),
    str: lambda v: v.encode("utf-8", "surrogatepass"),
    bytes: lambda v: v,
    bytearray: bytes,
    Decimal: lambda v: repr(v.as_tuple()).encode(),
    Fraction: lambda v: str(v).encode(),
    date: lambda v: v.isoformat().encode(),
    datetime: _moment,
    time: _moment,
    timedelta: lambda v: repr((v.days, v.seconds, v.microseconds)).encode(),
    uuid.UUID: lambda v: v.bytes,
    range: lambda v: repr(v).encode(),
    zoneinfo.ZoneInfo: _zone,
    timezone: _zone,
    **dict.fromkeys(
        (PosixPath, WindowsPath, PurePosixPath, PureWindowsPath), lambda v: str(v).encode()
    ),
}


def scalar_bytes(value: Any) -> bytes | None:
    """Returns the canonical bytes of a value without parts; None if its type is not listed.

    Raises:
        UnsupportedValue: if the type is listed, but this value has no canonical form.
    """
    encode = _SCALARS.get(type(value))
    if encode is not None:
        return framed_bytes(type(value).__name__, encode(value))
    if type(value) is re.Pattern:
        return framed_bytes("pattern", repr((value.pattern, value.flags)).encode())
    if type(value).__module__ in ("typing", "types") and _is_annotation(value):
        return framed_bytes("typing", repr(value).encode())
    return None


def _is_annotation(value: Any) -> bool:
    """Returns True if the value is a type expression such as `list[int]` or `int | None`."""
    name = type(value).__name__
    return name.strip("_").endswith(("GenericAlias", "UnionType", "SpecialForm", "TypeVar"))


def array_bytes(value: Any) -> bytes | None:
    """Returns the canonical bytes of a numpy value; None for any other value.

    Cost: O(bytes).
    """
    module = type(value).__module__.partition(".")[0]
    if module == "numpy" and "numpy" in sys.modules:
        return _numpy(value)
    return None


def arrow_parts(value: Any) -> Iterator[tuple[str, Any]] | None:
    """Returns the types and the Python values of an Arrow value; None for any other value.

    A table has one piece for each column. Chunks, offsets and the bytes of null slots have no
    effect.
    """
    if type(value).__module__.partition(".")[0] != "pyarrow":
        return None
    import pyarrow as pa

    if isinstance(value, pa.Table | pa.RecordBatch):
        return ((f"{f.name}: {f.type}", value.column(i)) for i, f in enumerate(value.schema))
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return iter([(str(value.type), value.to_pylist())])
    if isinstance(value, pa.Scalar):
        return iter([(str(value.type), value.as_py())])
    if isinstance(value, pa.DataType | pa.Schema | pa.Field):
        return iter([(str(value), None)])
    return None


def _numpy(value: Any) -> bytes | None:
    """Returns the bytes of a dtype, array or scalar of numpy, independent of the memory order.

    Returns None for any other value.
    """
    import numpy as np

    if isinstance(value, np.dtype):
        return framed_bytes("dtype", repr(value).encode())
    if type(value) is not np.ndarray and not isinstance(value, np.generic):
        return None
    held = np.asarray(value)
    if held.dtype.kind not in "biufcSUMm":
        raise UnsupportedValue(f"is a numpy array of dtype {held.dtype}")
    form = type(value).__name__
    content = blake2b(np.ascontiguousarray(held).data.cast("B")).digest() if held.size else b""
    return framed_bytes(form, f"{held.dtype.str} {held.shape} ".encode() + content)


DIGEST_BYTES = 8


def definition_fingerprint(definition: Any) -> str:
    """Computes the fingerprint of a JSON value; the order of keys does not matter.

    Returns: 16 hexadecimal digits.

    Raises:
        TypeError: if the value is not JSON; keys must be strings, because 1 and "1" would be equal.
        ValueError: if a number is infinite or NaN.
    """
    _check(definition)
    text = json.dumps(
        definition, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    return definition_digest(text.encode())


def definition_digest(data: bytes) -> str:
    """Returns the short hexadecimal digest that all fingerprints use."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def _check(value: Any) -> None:
    """Raises TypeError for keys that JSON would convert to strings."""
    if isinstance(value, dict):
        for key, each in value.items():
            if not isinstance(key, str):
                raise TypeError(f"key {key!r} of a definition is not a string")
            _check(each)
    elif isinstance(value, list | tuple):
        for each in value:
            _check(each)
