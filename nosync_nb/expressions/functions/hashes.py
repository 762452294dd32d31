"""Digests and hashes: md5, the SHA family, CRC-32, Spark's `hash` and `xxhash64`.

Source: A. Appleby, MurmurHash3 x86_32. Spark hashes the bytes after the last complete 4-byte word
one by one.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable
from hashlib import sha1, sha224, sha256, sha384, sha512
from typing import Any

from xxhash import xxh64_intdigest

from nosync_nb.expressions.evaluation.nodes import StrictNode, ValueNode
from nosync_nb.expressions.functions.rules import Function, NullTolerantNode, Rule, check_arity
from nosync_nb.expressions.implicit_casts import implicit, only
from nosync_nb.expressions.kernels.kernel import NotProvedError, TextKernel
from nosync_nb.expressions.typing_rules import is_decimal
from nosync_nb.rows.ddl import DAY_TIMES, YEAR_MONTHS
from nosync_nb.rows.types import decimal_parts

try:
    from _md5 import md5  # takes half the time of OpenSSL's, which the system may forbid
except ImportError:
    from hashlib import md5

_SEED = 42
_WORD = 0xFFFFFFFF


def raw(value: Any) -> bytes:
    """Returns the UTF-8 bytes of a text, and bytes unchanged."""
    return value.encode() if isinstance(value, str) else value


def as_bytes(node: ValueNode, utc: bool) -> ValueNode:
    """Returns an argument of type binary unchanged, and any other argument cast to text."""
    return node if node.type == "binary" else implicit(node, "string", utc=utc)


def of_bytes(row: Callable[[bytes], Any], result: str = "string") -> Rule:
    """Returns the rule of a function of one argument, which is bytes or text."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 1)
        given = as_bytes(only(arguments[0], "string", "binary", name=name), utc)
        of_text = TextKernel(lambda value: row(value.encode()))
        return StrictNode(
            name, result, TextKernel(row) if given.type == "binary" else of_text, (given,)
        )

    return rule


_SHA = {0: sha256, 224: sha224, 256: sha256, 384: sha384, 512: sha512}


def _sha2(value: Any, bits: int) -> str | None:
    function = _SHA.get(bits)
    return None if function is None else function(raw(value)).hexdigest()


def sha2(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `sha2(x, bits)`, which returns null for an unsupported number of bits."""
    check_arity(name, arguments, 2)
    value = as_bytes(only(arguments[0], "string", "binary", name=name), utc)
    given = (value, implicit(arguments[1], "int", utc=utc))
    return StrictNode(name, "string", TextKernel(_sha2, nullable=True), given)


def _rotated(x: int, left: int) -> int:
    return ((x << left) | (x >> (32 - left))) & _WORD


def _mixed(h: int, k: int) -> int:
    k = _rotated(k * 0xCC9E2D51 & _WORD, 15) * 0x1B873593 & _WORD
    return (_rotated(h ^ k, 13) * 5 + 0xE6546B64) & _WORD


def _finished(h: int, length: int) -> int:
    h ^= length
    h = (h ^ (h >> 16)) * 0x85EBCA6B & _WORD
    h = (h ^ (h >> 13)) * 0xC2B2AE35 & _WORD
    return h ^ (h >> 16)


def murmur(blob: bytes, seed: int) -> int:
    """Returns the hash that Spark's `hash` computes for bytes, as an unsigned number."""
    words, h = len(blob) // 4, seed
    for word in struct.unpack_from(f"<{words}I", blob):
        h = _mixed(h, word)
    for byte in blob[4 * words :]:
        h = _mixed(h, (byte - 256 if byte > 127 else byte) & _WORD)
    return _finished(h, len(blob))


_INT = struct.Struct("<i").pack
_LONG = struct.Struct("<q").pack
_FLOAT = struct.Struct("<f").pack
_DOUBLE = struct.Struct("<d").pack


def _whole_bytes(whole: int) -> bytes:
    return whole.to_bytes(
        (whole if whole >= 0 else ~whole).bit_length() // 8 + 1, "big", signed=True
    )


def _one(value: float) -> float:
    """Replaces -0.0 by 0.0 and every NaN by one NaN, because equal values must hash alike."""
    return value + 0.0 if value == value else math.nan


_BYTES: dict[str, Callable[[Any], bytes]] = {
    "boolean": lambda value: _INT(int(value)),
    **dict.fromkeys(("tinyint", "smallint", "int", "date", *YEAR_MONTHS), _INT),
    **dict.fromkeys(("bigint", "timestamp", "timestamp_ntz", *DAY_TIMES), _LONG),
    "float": lambda value: _FLOAT(_one(value)),
    "double": lambda value: _DOUBLE(_one(value)),
    "string": raw,
    "binary": raw,
}
_COMPACT = 18


def _bytes_of(type_: str) -> Callable[[Any], bytes]:
    if is_decimal(type_):
        return _LONG if decimal_parts(type_)[0] <= _COMPACT else _whole_bytes
    digest_size = _BYTES.get(type_)
    if digest_size is None:
        raise NotProvedError(f"the hash of a {type_}")
    return digest_size


def hash_rule(result: str, bits: int, digest: Callable[[bytes, int], int]) -> Rule:
    """Returns the rule of `hash` or `xxhash64`; nulls are skipped.

    The hash of each value is the seed for the next one.
    """
    half = 1 << (bits - 1)

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        if not arguments:
            raise NotProvedError(f"{name} without arguments")
        forms = [_bytes_of(argument.type) for argument in arguments]

        def row(*values: Any) -> int:
            seed = _SEED
            for value, form in zip(values, forms, strict=True):
                if value is not None:
                    seed = digest(form(value), seed)
            return (seed ^ half) - half

        return NullTolerantNode(result, row, arguments)

    return rule


_SHA1 = of_bytes(lambda value: sha1(value).hexdigest())

FUNCTIONS: dict[str, Function | Rule] = {
    "md5": of_bytes(lambda value: md5(value).hexdigest()),
    "sha": _SHA1,
    "sha1": _SHA1,
    "sha2": sha2,
    "crc32": of_bytes(zlib.crc32, "bigint"),
    "hash": hash_rule("int", 32, murmur),
    "xxhash64": hash_rule("bigint", 64, xxh64_intdigest),
}
