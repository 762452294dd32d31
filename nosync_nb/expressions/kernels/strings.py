"""Kernels of text: code points, as Spark counts them in its binary collation.

Conversion of case follows Unicode 17 on every version of Python, as in Spark 4. This includes the
capital sigma, whose lower case is different at the end of a word.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nosync_nb.expressions.kernels.kernel import TextKernel
from nosync_nb.rows import buffers

Text = TextKernel

_RANGES = ((0x10D50, 0x10D65, 0x20), (0x16EA0, 0x16EB8, 0x1B))
_PAIRS = {
    0x1C89: 0x1C8A,
    0xA7CB: 0x264,
    0xA7CC: 0xA7CD,
    0xA7CE: 0xA7CF,
    0xA7D2: 0xA7D3,
    0xA7D4: 0xA7D5,
    0xA7DA: 0xA7DB,
    0xA7DC: 0x19B,
}
_LOWER = _PAIRS | {c: c + gap for a, b, gap in _RANGES for c in range(a, b + 1)}
"""Letters of Unicode 15 to 17 that Spark supports and older versions of Python do not."""
_UPPER = {small: capital for capital, small in _LOWER.items()}


def _characters(ranges: str) -> str:
    """Returns the characters of ranges, which are written as hexadecimal code points."""
    pairs = [part.split("-") for part in ranges.split()]
    return "".join(chr(c) for pair in pairs for c in range(int(pair[0], 16), int(pair[-1], 16) + 1))


_CASED = _characters(
    "1C89-1C8A A7CB-A7CF A7D2 A7D4 A7DA-A7DC 10D50-10D65 10D70-10D85 16EA0-16EB8 16EBB-16ED3"
    " 1DF25-1DF2A"
)
_IGNORED = _characters(
    "0897 0ECE 1ACF-1ADD 1AE0-1AEB A7F1 10D4E 10D69-10D6D 10D6F 10EC5 10EFA-10EFF 11241"
    " 113BB-113C0 113CE 113D0 113D2 113E1-113E2 11B60 11B62-11B64 11B66 11DD9 11F00-11F01"
    " 11F36-11F3A 11F40 11F42 11F5A 13439-13440 13447-13455 1611E-16129 1612D-1612F 16D40-16D42"
    " 16D6B-16D6C 16FF2-16FF3 1E030-1E06D 1E08F 1E4EB-1E4EF 1E5EE-1E5EF 1E6E3 1E6E6 1E6EE-1E6EF"
    " 1E6F5 1E6FF"
)
_CLASSES = str.maketrans(
    _CASED + _IGNORED + "\u0295\U0001171e" + "\u0130",
    "a" * len(_CASED) + "." * len(_IGNORED) + "  " + "a",
)
"""Maps characters of Unicode 15 to 17 to an ASCII character of their class.

Some have a case, and others are ignored next to a letter with a case. Two characters no longer
belong to these classes, and one letter becomes two in lower case.
"""
_YOUNG = re.compile(f"[{_CASED}{_IGNORED}\u0295\U0001171e]")


def _upper(text: str) -> str:
    return text.upper() if text.isascii() else text.translate(_UPPER).upper()


def _lower(text: str) -> str:
    if text.isascii():
        return text.lower()
    if "Σ" in text and _YOUNG.search(text):
        small = text.translate(_CLASSES).lower()
        text = "".join(s if c == "Σ" else c for c, s in zip(text, small, strict=True))
    return text.translate(_LOWER).lower()


def title(letter: str) -> str:
    """Returns a letter in the form in which it begins a word."""
    return letter.translate(_UPPER).title()


def _if_ascii(function: Any) -> Callable[[Any], Any]:
    """Returns a function of an Arrow array that returns None if some text is not ASCII."""

    def large(array: Any) -> Any:
        plain = pc.all(pc.string_is_ascii(array), min_count=0).as_py()
        return function(array) if plain is not False else None

    return large


upper = Text(_upper, _if_ascii(pc.ascii_upper))
lower = Text(_lower, _if_ascii(pc.ascii_lower))
length = Text(len, pc.utf8_length)
reverse = Text(lambda s: s[::-1])

trim = Text(lambda s: s.strip(" "), lambda a: pc.utf8_trim(a, characters=" "))
ltrim = Text(lambda s: s.lstrip(" "), lambda a: pc.utf8_ltrim(a, characters=" "))
rtrim = Text(lambda s: s.rstrip(" "), lambda a: pc.utf8_rtrim(a, characters=" "))


def _literal_last(function: Any) -> Callable[..., Any]:
    """Returns a function of an Arrow array and a literal that returns None for other arguments."""

    def large(array: Any, pattern: Any) -> Any:
        if isinstance(array, pa.Array) and isinstance(pattern, str):
            return function(array, pattern)
        return None

    return large


starts_with = Text(str.startswith, _literal_last(lambda a, p: pc.starts_with(a, pattern=p)))
ends_with = Text(str.endswith, _literal_last(lambda a, p: pc.ends_with(a, pattern=p)))
contains = Text(
    lambda s, part: part in s, _literal_last(lambda a, p: pc.match_substring(a, pattern=p))
)
instr = Text(lambda s, part: s.find(part) + 1)
locate = Text(lambda part, s: s.find(part) + 1)


def _replace(text: str, old: str, new: str = "") -> str:
    return text.replace(old, new) if old else text


def _replace_large(array: Any, old: Any, new: Any = "") -> Any:
    if not (isinstance(array, pa.Array) and isinstance(old, str) and isinstance(new, str)):
        return None
    return pc.replace_substring(array, pattern=old, replacement=new) if old else array


replace = Text(_replace, _replace_large)


def _substring(text: str, start: int, length: int = 2**31 - 1) -> str:
    """Returns a part of a text; positions count from 1 (0 means 1 as well), or from the end."""
    n = len(text)
    first = start - 1 if start > 0 else (n + start if start < 0 else 0)
    last = first + length
    return text[max(0, first) : max(0, last)] if length > 0 else ""


def _sliced(texts: Any, start: Any, length: Any = 2**31 - 1) -> Any:
    """`substring` of a column; None unless the position is a literal that counts from the start."""
    if np.ndim(start) or np.ndim(length) or start < 0:
        return None
    first = max(int(start) - 1, 0)
    return pc.utf8_slice_codeunits(texts, first, first + max(int(length), 0))


substring = Text(_substring, _sliced)
left = Text(lambda s, n: s[:n] if n > 0 else "", lambda s, n: _sliced(s, 1, n))
right = Text(lambda s, n: s[-n:] if n > 0 else "")


def _pad_with(text: str, width: int, pad: str) -> str | None:
    """Returns the padding; None if the text must be truncated instead."""
    missing = width - len(text)
    if missing <= 0:
        return None
    return (pad * (missing // len(pad) + 1))[:missing] if pad else ""


def _lpad(text: str, width: int, pad: str = " ") -> str:
    padding = _pad_with(text, width, pad)
    return text[: max(0, width)] if padding is None else padding + text


def _rpad(text: str, width: int, pad: str = " ") -> str:
    padding = _pad_with(text, width, pad)
    return text[: max(0, width)] if padding is None else text + padding


lpad = Text(_lpad)
rpad = Text(_rpad)
repeat = Text(lambda s, n: s * n)


def _concat_large(*values: Any) -> Any:
    return pc.binary_join_element_wise(*values, buffers.text("")) if len(values) > 1 else values[0]


concat = Text(lambda *texts: "".join(texts), _concat_large, eager=True)


equal = Text(lambda a, b: a == b, pc.equal)
not_equal = Text(lambda a, b: a != b, pc.not_equal)
less = Text(lambda a, b: a < b, pc.less)
less_equal = Text(lambda a, b: a <= b, pc.less_equal)
greater = Text(lambda a, b: a > b, pc.greater)
greater_equal = Text(lambda a, b: a >= b, pc.greater_equal)
