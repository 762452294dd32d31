"""XXH64 of many values at once, each with a seed of its own, in numpy's 64-bit arithmetic.

Knows bytes and words only; what the bytes of a value are is said in hashes.py. Little-endian
machines are assumed, as Spark and Arrow do.

Source: Y. Collet, xxHash specification 0.1.1, XXH64.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from xxhash import xxh64_intdigest

Hashes: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]
"""One unsigned 64-bit number per row."""

_U = np.uint64
_P1 = _U(0x9E3779B185EBCA87)
_P2 = _U(0xC2B2AE3D27D4EB4F)
_P3 = _U(0x165667B19E3779F9)
_P4 = _U(0x85EBCA77C2B2AE63)
_P5 = _U(0x27D4EB2F165667C5)
_WRAP = 1 << 64
_BLOCK = 8192
FEW = 512
"""Fewer runs of a length than these are hashed one by one."""


def _rotate(x: Hashes, left: int) -> Hashes:
    """Rotates `x` in place."""
    high = x >> _U(64 - left)
    x <<= _U(left)
    x |= high
    return x


def _finish(h: Hashes) -> Hashes:
    """Mixes `h` in place: the avalanche."""
    h ^= h >> _U(33)
    h *= _P2
    h ^= h >> _U(29)
    h *= _P3
    h ^= h >> _U(32)
    return h


def _add_word(h: Hashes, word: Hashes) -> Hashes:
    """Takes 8 bytes into `h`, in place; `word` is used up."""
    word *= _P2
    _rotate(word, 31)
    word *= _P1
    h ^= word
    _rotate(h, 27)
    h *= _P1
    h += _P4
    return h


def _add_half(h: Hashes, half: Hashes) -> Hashes:
    """Takes 4 bytes into `h`, in place; `half` is used up."""
    half *= _P1
    h ^= half
    _rotate(h, 23)
    h *= _P2
    h += _P3
    return h


def hash_longs(values: np.ndarray[Any, Any], seeds: Hashes) -> Hashes:
    """Returns the hash of each 8-byte value."""
    out = seeds + _U((int(_P5) + 8) % _WRAP)
    words = values.view(np.uint64)
    for at in range(0, len(out), _BLOCK):
        h = out[at : at + _BLOCK]
        _finish(_add_word(h, words[at : at + _BLOCK].copy()))
    return out


def hash_ints(values: np.ndarray[Any, Any], seeds: Hashes) -> Hashes:
    """Returns the hash of each 4-byte value."""
    out = seeds + _U((int(_P5) + 4) % _WRAP)
    halves = values.view(np.uint32)
    for at in range(0, len(out), _BLOCK):
        h = out[at : at + _BLOCK]
        _finish(_add_half(h, halves[at : at + _BLOCK].astype(np.uint64)))
    return out


def hash_bytes(
    data: np.ndarray[Any, Any],
    starts: np.ndarray[Any, Any],
    lengths: np.ndarray[Any, Any],
    seeds: Hashes,
) -> Hashes:
    """Returns the hash of each run of bytes.

    Args:
        data: all bytes, uint8.
        starts: where each run begins, int64.
        lengths: its bytes; runs of a length are hashed together.

    Cost: O(bytes), and some 100 us for each distinct length; 0.3 us a run where few have one.
    """
    out = np.empty(len(starts), np.uint64)
    order = np.argsort(_narrow(lengths), kind="stable")
    sizes, firsts = np.unique(lengths[order], return_index=True)
    lasts = np.append(firsts[1:], len(order))
    few = []
    for size, first, last in zip(sizes.tolist(), firsts.tolist(), lasts.tolist(), strict=True):
        if last - first < FEW:
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
    """Hashes runs one by one, by the C library."""
    view, ends = memoryview(data), starts + lengths
    each = zip(starts.tolist(), ends.tolist(), seeds.tolist(), strict=True)
    return np.fromiter([xxh64_intdigest(view[a:b], seed) for a, b, seed in each], np.uint64)


def _narrow(lengths: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns lengths as 16-bit numbers if they fit: numpy sorts those by radix."""
    if len(lengths) and lengths.max() < 1 << 16:
        return lengths.astype(np.uint16)
    return lengths


def _words(data: np.ndarray[Any, Any], dtype: str, at: np.ndarray[Any, Any]) -> Hashes:
    """Returns the little-endian numbers that begin at any bytes `at` of `data`."""
    size = np.dtype(dtype).itemsize
    view = np.ndarray((len(data) - size + 1,), dtype, data, strides=(1,))
    words: Hashes = view[at].astype(np.uint64, copy=False)
    return words


def _hash_run(data: np.ndarray[Any, Any], at: np.ndarray[Any, Any], size: int, h: Hashes) -> Hashes:
    """Hashes runs of one length; `h` holds their seeds and is used up."""
    left = size
    if size >= 32:
        h = _stripes(data, at, size // 32, h)
        at = at + size // 32 * 32
        left = size % 32
    else:
        h += _P5
    h += _U(size)
    while left >= 8:
        _add_word(h, _words(data, "<u8", at))
        at, left = at + 8, left - 8
    if left >= 4:
        _add_half(h, _words(data, "<u4", at))
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
    """Returns the state after `count` stripes of 32 bytes."""
    lanes = [h + _P1 + _P2, h + _P2, h.copy(), h - _P1]
    for stripe in range(count):
        for i, lane in enumerate(lanes):
            _round(lane, _words(data, "<u8", at + (32 * stripe + 8 * i)))
    state: Hashes = np.zeros(len(h), np.uint64)
    for lane, left in zip(lanes, (1, 7, 12, 18), strict=True):
        state += _rotate(lane.copy(), left)
    for lane in lanes:
        state ^= _round(np.zeros(len(h), np.uint64), lane)
        state *= _P1
        state += _P4
    return state


def _round(lane: Hashes, word: Hashes) -> Hashes:
    """Takes 8 bytes into a lane, in place; `word` is used up."""
    word *= _P2
    lane += word
    _rotate(lane, 31)
    lane *= _P1
    return lane
