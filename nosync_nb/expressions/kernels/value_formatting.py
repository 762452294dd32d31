"""Formats values as text: doubles and floats, timestamps, and nested values.

A double has the fewest digits that distinguish it from its neighbours, in Java's form: `1.0E10`,
`0.001`. Java before 19 prints some with more digits than that. Here they are the same on every
Java, as this module prints them wherever the expression is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nosync_nb.expressions.kernels import datetimes
from nosync_nb.expressions.kernels.kernel import TextKernel
from nosync_nb.expressions.typing_rules import is_decimal
from nosync_nb.rows import buffers
from nosync_nb.rows.ddl import INTERVALS
from nosync_nb.rows.types import INTEGERS, decimal_parts, is_nested, nested_parts

_PLAIN = (1e-3, 1e7)
"""The range in which a double is written without an exponent."""


def double_text(value: float) -> str:
    """Returns a double as text."""
    return _in_java(repr(value), value)


def float_text(value: float) -> str:
    """Returns a float, given as the double of its value, as text."""
    shortest: str = pc.cast(pa.scalar(value, pa.float32()), pa.string()).as_py()
    return _in_java(shortest, value)


def _in_java(shortest: str, value: float) -> str:
    """Writes the digits of a text in Java's form, which has at least two."""
    if value - value != 0.0:
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    size = abs(value)
    if size == 0.0 or _PLAIN[0] <= size < _PLAIN[1]:
        return shortest if "." in shortest else shortest + ".0"
    digits, exponent = _digits(shortest.lstrip("-"))
    if len(digits) == 1:
        mantissa, _, power = f"{size:.1e}".partition("e")
        digits, exponent = mantissa.replace(".", ""), int(power)
    return f"{'-' if value < 0 else ''}{digits[0]}.{digits[1:]}E{exponent}"


def _digits(text: str) -> tuple[str, int]:
    """The significant digits of a positive decimal text, and the exponent of the first."""
    mantissa, _, power = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    every = (whole + fraction).lstrip("0")
    leading = len(whole + fraction) - len(every)
    return every.rstrip("0"), int(power or 0) + len(whole) - leading - 1


def _large(row: Callable[[float], str]) -> Callable[[Any], Any]:
    """Formats many values: Arrow writes those without an exponent."""

    def large(values: Any) -> Any:
        size = np.abs(values)
        plain = (size == 0.0) | ((size >= _PLAIN[0]) & (size < _PLAIN[1]))
        texts = pc.cast(
            buffers.arrow_from_numpy(np.where(plain, values, values.dtype.type(1))), pa.string()
        )
        whole = pc.binary_join_element_wise(texts, ".0", "")
        texts = pc.if_else(pc.match_substring(texts, "."), texts, whole)
        odd = np.flatnonzero(~plain)
        if not len(odd):
            return texts
        own = pa.array([row(value) for value in values[odd].tolist()], pa.string())
        return pc.replace_with_mask(texts, buffers.arrow_from_numpy(~plain), own)

    return large


DOUBLE = TextKernel(double_text, _large(double_text))
FLOAT = TextKernel(float_text, _large(float_text))


def time_text(micros: int) -> str:
    """Returns a timestamp in UTC as text: the fraction without trailing zeros."""
    day, rest = divmod(micros, datetimes.DAY)
    seconds, fraction = divmod(rest, datetimes.SECOND)
    minutes, second = divmod(seconds, 60)
    clock = f"{minutes // 60:02}:{minutes % 60:02}:{second:02}"
    more = f".{fraction:06}".rstrip("0") if fraction else ""
    return f"{datetimes.date_text(day)} {clock}{more}"


_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_800_000_000
"""From the year 1 up to the year 10000 Arrow writes the same text as Spark."""


def _times(values: Any) -> Any:
    """The texts of many timestamps, None if a year does not have four digits."""
    if not len(values) or values.min() < _FIRST or values.max() >= _LAST:
        return None
    texts = pc.cast(buffers.arrow_from_numpy(values).view(pa.timestamp("us")), pa.string())
    return pc.utf8_rtrim(pc.utf8_rtrim(texts, "0"), ".")


TIME = TextKernel(time_text, _times)


def _decimal(places: int) -> Callable[[Any], str]:
    return lambda value: f"{value:f}" if places else str(int(value))


def writer(type_: str) -> Callable[[Any], str] | None:
    """Returns the formatter of a value inside a nested one, None if only Spark knows it."""
    if type_ in INTEGERS:
        return str
    if is_decimal(type_):
        return _decimal(decimal_parts(type_)[1])
    if is_nested(type_):
        return _nested(type_)
    return _WRITERS.get(type_)


_WRITERS: dict[str, Callable[[Any], str]] = {
    "string": lambda value: value,
    "boolean": lambda value: "true" if value else "false",
    "double": double_text,
    "float": float_text,
    "date": datetimes.date_text,
    "timestamp": time_text,
    "timestamp_ntz": time_text,
    **{type_: datetimes.writer(type_) for type_ in INTERVALS},
}


def _nested(type_: str) -> Callable[[Any], str] | None:
    parts = [writer(inner) for _, inner in nested_parts(type_)]
    present = [part for part in parts if part is not None]
    if len(present) < len(parts):
        return None

    def text(write: Callable[[Any], str], value: Any) -> str:
        return "null" if value is None else write(value)

    if type_.startswith("array<"):
        return lambda items: f"[{', '.join([text(present[0], item) for item in items])}]"
    if type_.startswith("map<"):
        key, own = present
        return lambda pairs: f"{{{', '.join([f'{key(k)} -> {text(own, v)}' for k, v in pairs])}}}"
    return lambda fields: f"{{{', '.join(map(text, present, fields))}}}"
