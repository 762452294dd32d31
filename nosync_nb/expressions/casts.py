"""Kernels of casts: every value arrives exactly as in Spark's ANSI mode, or the row raises.

Left to Spark: floats to text (depends on the Java version), text to float and to timestamps,
timestamps to text, decimals, binary and nested types.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nosync_nb.expressions import dates, decimal_casts
from nosync_nb.expressions.kernel import Check, InvalidError, Kernel, TextKernel
from nosync_nb.expressions.numbers import limits
from nosync_nb.expressions.typing_rules import NUMBERS, is_decimal
from nosync_nb.rows import bridge
from nosync_nb.rows.types import FIXED, FLOATS, INTEGERS


def cast(source: str, target: str) -> Kernel | TextKernel | None:
    """Returns the kernel that casts one type to another, None if Spark has to."""
    if is_decimal(source) or is_decimal(target):
        return decimal_casts.cast(source, target)
    if source in NUMBERS and target in NUMBERS:
        return _number(source, target)
    if source == "boolean" and target in NUMBERS:
        return Kernel(lambda a: a.astype(FIXED[target]))
    if source in NUMBERS and target == "boolean":
        return Kernel(lambda a: a != 0)
    if source == "string":
        return _FROM_TEXT.get(target) or (_to_integer(target) if target in INTEGERS else None)
    if target == "string":
        return _to_text(source)
    return _time(source, target)


def _number(source: str, target: str) -> Kernel:
    dtype = FIXED[target]
    if target in FLOATS:
        return Kernel(lambda a: a.astype(dtype), floats=source == "double")
    if source in FLOATS:
        return _float_to_integer(target)
    least, greatest = limits(target)
    if INTEGERS.index(source) <= INTEGERS.index(target):
        return Kernel(lambda a: a.astype(dtype), (), lambda a: a)
    check = Check(lambda a: (a < least) | (a > greatest), f"the value is beyond {target}")
    return Kernel(lambda a: a.astype(dtype), (check,), lambda a: a)


def _float_to_integer(target: str) -> Kernel:
    dtype = FIXED[target]
    least, greatest = limits(target)

    def bad(a: Any) -> Any:
        wide = a.astype(np.float64)
        return ~((np.floor(wide) <= float(greatest)) & (np.ceil(wide) >= float(least)))

    def run(a: Any) -> Any:
        if target != "bigint":
            return a.astype(dtype)
        wide = a.astype(np.float64)
        top = wide >= 2.0**63  # 2**63 itself passes the check and becomes the greatest, as in Java
        return np.where(top, greatest, np.where(top, 0.0, wide).astype(np.int64))

    return Kernel(run, (Check(bad, f"the value is beyond {target}"),), floats=True)


def _time(source: str, target: str) -> Kernel | None:
    """Dates and timestamps, in UTC."""
    timestamps = ("timestamp", "timestamp_ntz")
    if source in timestamps and target in timestamps:
        return Kernel(lambda a: a)
    if source in timestamps and target == "date":
        return Kernel(dates.to_days)
    if source == "date" and target in timestamps:
        return dates.TO_MICROS
    if source == "timestamp" and target == "bigint":
        return Kernel(lambda a: a // dates.SECOND)
    if source == "timestamp" and target == "double":
        return Kernel(lambda a: a / np.float64(dates.SECOND))
    return None


_CONTROLS = "".join(map(chr, range(0x21)))
_BLANKS = _CONTROLS + "\x7f"
"""What Spark trims before it reads a value; of doubles, Java trims `_CONTROLS` only."""

_HEX = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[dDfF]?", re.ASCII
)
_DOUBLE = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[dDfF]?", re.ASCII)
_NAMED = {
    **dict.fromkeys(("inf", "+inf", "infinity", "+infinity"), float("inf")),
    **dict.fromkeys(("-inf", "-infinity"), float("-inf")),
    "nan": float("nan"),
}


def _refuse(text: str, type_: str) -> InvalidError:
    return InvalidError(f"{text!r} is not of type {type_}")


def _to_integer(target: str) -> TextKernel:
    least, greatest = limits(target)

    def row(text: str) -> int:
        trimmed = text.strip(_BLANKS)
        if re.fullmatch(r"[+-]?[0-9]+", trimmed):
            value = int(trimmed)
            if least <= value <= greatest:
                return value
        raise _refuse(text, target)

    def large(array: Any) -> Any:
        plain = pc.match_substring_regex(array, pattern=r"^-?[0-9]{1,18}$")
        if pc.all(plain, min_count=0).as_py() is False:
            return None
        values = pc.cast(array, pa.int64())
        extremes = pc.min_max(values)
        low, high = extremes["min"].as_py(), extremes["max"].as_py()
        fits = low is None or (low >= least and high <= greatest)
        return values if fits else None

    return TextKernel(row, large, raises=True)


def _to_double(text: str) -> float:
    trimmed = text.strip(_CONTROLS)
    if _DOUBLE.fullmatch(trimmed):
        return float(trimmed.rstrip("dDfF"))
    hexadecimal = _HEX.fullmatch(trimmed)
    if hexadecimal is not None:
        return _from_hex(hexadecimal[1])
    named = _NAMED.get(trimmed.lower())
    if named is None:
        raise _refuse(text, "double")
    return named


def _from_hex(text: str) -> float:
    try:
        return float.fromhex(text)
    except OverflowError:
        return float("-inf") if text[0] == "-" else float("inf")


_TRUE = frozenset(("t", "true", "y", "yes", "1"))
_FALSE = frozenset(("f", "false", "n", "no", "0"))


def _to_boolean(text: str) -> bool:
    word = text.strip(_BLANKS).lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise _refuse(text, "boolean")


def _to_date(text: str) -> int:
    day = dates.parse_date(text.strip(_BLANKS))
    if day is None:
        raise _refuse(text, "date")
    return day


_FROM_TEXT: dict[str, TextKernel] = {
    "double": TextKernel(_to_double, raises=True),
    "boolean": TextKernel(_to_boolean, raises=True),
    "date": TextKernel(_to_date, raises=True),
}


def _to_text(source: str) -> TextKernel | None:
    if source in INTEGERS:
        return TextKernel(str, lambda a: pc.cast(bridge.of_numpy(a), pa.string()))
    if source == "boolean":
        return TextKernel(lambda v: "true" if v else "false")
    return TextKernel(dates.date_text) if source == "date" else None
