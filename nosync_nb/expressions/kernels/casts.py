"""Kernels of casts: the result is exactly that of Spark's ANSI mode, or the row raises.

`datetimes` parses text as timestamps. Bytes that are not UTF-8 cannot be cast to text, even by
`try_cast`: Spark makes a text of them that no reader accepts.

A double is printed with the fewest digits that distinguish it from its neighbours, in Java's form:
`1.0E10`, `0.001`. Java before 19 prints some doubles with more digits. Here the digits do not
depend on the version of Java, because this module prints them wherever the expression is computed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nosync_nb.expressions.kernels import datetimes, numeric, reasons
from nosync_nb.expressions.kernels.kernel import Check, InvalidError, Kernel, TextKernel
from nosync_nb.expressions.kernels.numeric import limits
from nosync_nb.expressions.typing_rules import DIGITS_MAX, NUMBERS, is_decimal
from nosync_nb.rows import buffers
from nosync_nb.rows.ddl import INTERVALS
from nosync_nb.rows.types import FIXED, FLOATS, INTEGERS, decimal_parts, is_nested, nested_parts


def cast(source: str, target: str) -> Kernel | TextKernel | None:
    """Returns the kernel that casts one type to another; None if only Spark can cast it."""
    if INTERVALS.intersection((source, target)):
        return datetimes.TEXTS[source] if target == "string" else datetimes.cast(source, target)
    if is_decimal(source) or is_decimal(target):
        return _cast_decimal(source, target)
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
    check = Check(lambda a: (a < least) | (a > greatest), reasons.out_of_range(target))
    return Kernel(lambda a: a.astype(dtype), (check,), lambda a: a)


def _float_to_integer(target: str, unit: int = 1) -> Kernel:
    """Returns the kernel that multiplies floats by `unit`, and truncates them towards zero."""
    dtype = FIXED[target]
    least, greatest = limits(target)

    def bad(a: Any) -> Any:
        wide = a.astype(np.float64) * unit
        return ~((np.floor(wide) <= float(greatest)) & (np.ceil(wide) >= float(least)))

    def run(a: Any) -> Any:
        if target != "bigint":
            return a.astype(dtype)
        wide = a.astype(np.float64) * unit
        top = (
            wide >= 2.0**63
        )  # 2**63 itself passes the check and becomes the greatest integer, as in Java
        return np.where(top, greatest, np.where(top, 0.0, wide).astype(np.int64))

    return Kernel(run, (Check(bad, reasons.out_of_range(target)),), floats=True)


def _time(source: str, target: str) -> Kernel | None:
    """Returns the kernel of a cast from or to a date or timestamp, in UTC."""
    timestamps = ("timestamp", "timestamp_ntz")
    if source in timestamps and target in timestamps:
        return Kernel(lambda a: a)
    if source in timestamps and target == "date":
        return Kernel(datetimes.to_days)
    if source == "date" and target in timestamps:
        return datetimes.TO_MICROS
    if source == "timestamp" and target in NUMBERS:
        return _seconds(target)
    if target == "timestamp" and source in INTEGERS:
        return Kernel(_micros)
    if target == "timestamp" and source in FLOATS:
        return _float_to_integer("bigint", datetimes.SECOND)
    return None


def _seconds(target: str) -> Kernel:
    """Returns the kernel that casts a timestamp to seconds since 1970, rounded down to integers."""
    if target in FLOATS:
        return Kernel(lambda a: (a / np.float64(datetimes.SECOND)).astype(FIXED[target]))
    least, greatest = limits(target)
    check = Check(
        lambda a: (a // datetimes.SECOND < least) | (a // datetimes.SECOND > greatest),
        reasons.out_of_range(target),
    )
    run = Kernel(lambda a: (a // datetimes.SECOND).astype(FIXED[target]))
    return run if target == "bigint" else replace(run, checks=(check,))


def _micros(seconds: Any) -> Any:
    """Converts seconds to microseconds; values out of range are clipped."""
    most = (2**63 - 1) // datetimes.SECOND
    wide = seconds.astype(np.int64)
    inside = np.clip(wide, -most, most) * np.int64(datetimes.SECOND)
    ends = np.where(wide > 0, np.int64(2**63 - 1), np.int64(-(2**63)))
    return np.where((wide > most) | (wide < -most), ends, inside)


_BLANKS = datetimes.BLANKS
_CONTROLS = _BLANKS[:-1]
"""The characters that Java trims from the text of a double."""

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
    return InvalidError(reasons.invalid_text(text, type_))


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


_WHOLE_OF = re.compile(r"([+-]?)([0-9]*)(?:\.[0-9]*)?")


def integer_parser_without_ansi(target: str) -> TextKernel:
    """Returns the kernel of a cast without ANSI mode, which drops digits behind a point.

    The result is null for a text that is no number. As in Spark, `.` and `+.` are 0.
    """
    least, greatest = limits(target)

    def row(text: str) -> int | None:
        trimmed = text.strip(_BLANKS)
        found = _WHOLE_OF.fullmatch(trimmed)
        if found is None or trimmed in ("", "+", "-"):
            return None
        value = int(found[1] + (found[2] or "0"))
        return value if least <= value <= greatest else None

    return TextKernel(row, nullable=True)


def _to_float(text: str) -> float:
    """Parses a float, rounded only once.

    The text is parsed as a double first. If it is not exact, an even last bit is made odd in the
    direction of the text, so that the second rounding cannot see a false tie.
    """
    near = _to_double(text)
    if near - near != 0.0 or near == 0.0:
        return near
    trimmed = text.strip(_CONTROLS)
    hexadecimal = _HEX.fullmatch(trimmed)
    exact = _of_hex(hexadecimal[1]) if hexadecimal else Fraction(trimmed.rstrip("dDfF"))
    if exact != Fraction(near) and not int(np.float64(near).view(np.int64)) & 1:
        near = math.nextafter(near, math.inf if exact > Fraction(near) else -math.inf)
    return float(np.float32(near))


def _of_hex(text: str) -> Fraction:
    mantissa, _, power = text.lower().replace("0x", "", 1).partition("p")
    whole, _, fraction = mantissa.partition(".")
    digits = Fraction(int(whole + fraction, 16), 16 ** len(fraction))
    return digits * Fraction(2) ** int(power)


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
    day = datetimes.parse_date(text.strip(_BLANKS))
    if day is None:
        raise _refuse(text, "date")
    return day


_FROM_TEXT: dict[str, TextKernel] = {
    "float": TextKernel(_to_float, raises=True),
    "double": TextKernel(_to_double, raises=True),
    "boolean": TextKernel(_to_boolean, raises=True),
    "date": TextKernel(_to_date, raises=True),
    "timestamp": datetimes.timestamp_parser("timestamp"),
    "timestamp_ntz": datetimes.timestamp_parser("timestamp_ntz"),
    "binary": TextKernel(str.encode, lambda a: pc.cast(a, pa.binary())),
}


_PLAIN = (1e-3, 1e7)
"""The range in which doubles are printed without an exponent."""


def double_text(value: float) -> str:
    """Returns the text of a double."""
    return _in_java(repr(value), value)


def float_text(value: float) -> str:
    """Returns the text of a float, which is given as a double."""
    shortest: str = pc.cast(pa.scalar(value, pa.float32()), pa.string()).as_py()
    return _in_java(shortest, value)


def _in_java(shortest: str, value: float) -> str:
    """Converts the shortest text of a number to Java's form, which has at least two digits."""
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
    """Returns the significant digits of a positive number's text, and the exponent of the first."""
    mantissa, _, power = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    every = (whole + fraction).lstrip("0")
    leading = len(whole + fraction) - len(every)
    return every.rstrip("0"), int(power or 0) + len(whole) - leading - 1


def _large(row: Callable[[float], str]) -> Callable[[Any], Any]:
    """Returns a function that formats many values; Arrow formats those without an exponent."""

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
    """Returns the text of a timestamp in UTC, whose fraction has no trailing zeros."""
    day, rest = divmod(micros, datetimes.DAY)
    seconds, fraction = divmod(rest, datetimes.SECOND)
    minutes, second = divmod(seconds, 60)
    clock = f"{minutes // 60:02}:{minutes % 60:02}:{second:02}"
    more = f".{fraction:06}".rstrip("0") if fraction else ""
    return f"{datetimes.date_text(day)} {clock}{more}"


_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_800_000_000
"""The range of timestamps, years 1 to 9999, for which Arrow prints the same text as Spark."""


def _times(values: Any) -> Any:
    """Returns the texts of many timestamps; None if a year does not have four digits."""
    if not len(values) or values.min() < _FIRST or values.max() >= _LAST:
        return None
    texts = pc.cast(buffers.arrow_from_numpy(values).view(pa.timestamp("us")), pa.string())
    return pc.utf8_rtrim(pc.utf8_rtrim(texts, "0"), ".")


TIME = TextKernel(time_text, _times)


def _decimal(places: int) -> Callable[[Any], str]:
    return lambda value: f"{value:f}" if places else str(int(value))


def writer(type_: str) -> Callable[[Any], str] | None:
    """Returns the formatter of a value inside a nested one; None if only Spark can format it."""
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


def _of_bytes(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidError(reasons.Reason("", f"{value!r} is not valid UTF-8")) from None


_BYTES_TRIED = TextKernel(_of_bytes, raises=True)
_TO_TEXT: dict[str, TextKernel] = {
    "boolean": TextKernel(lambda v: "true" if v else "false"),
    "date": TextKernel(datetimes.date_text),
    "double": DOUBLE,
    "float": FLOAT,
    "timestamp": TIME,
    "timestamp_ntz": TIME,
    "binary": TextKernel(_of_bytes, raises=True, lenient=_BYTES_TRIED),
}


def _to_text(source: str) -> TextKernel | None:
    if source in INTEGERS:
        return TextKernel(str, lambda a: pc.cast(buffers.arrow_from_numpy(a), pa.string()))
    return _TO_TEXT.get(source)


_JAVA_BLANKS = "".join(map(chr, range(0x21)))
_DECIMAL_TEXT = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_COMPACT = 18
"""The maximum number of digits of a decimal that Spark stores as a long."""
_EXACTLY = Context(prec=800)


def _cast_decimal(source: str, target: str) -> Kernel | TextKernel | None:
    """Returns the kernel of a cast from or to a decimal; None if only Spark can cast it."""
    if is_decimal(target):
        return _to_decimal(source, *decimal_parts(target))
    return _from_decimal(*decimal_parts(source), target)


def _to_decimal(source: str, digits: int, places: int) -> Kernel | TextKernel | None:
    if source in FLOATS:
        return _float_to_decimal(digits, places)
    if source == "string":
        return TextKernel(lambda text: _parse_decimal(text, digits, places), raises=True)
    if source in INTEGERS or source == "boolean":
        return _rescale(digits, places, wide_first=True)
    if is_decimal(source):
        return _rescale(digits, places - decimal_parts(source)[1])
    return None


def _rescale(digits: int, places: int, *, wide_first: bool = False) -> Kernel:
    def run(a: Any) -> Any:
        return numeric.narrow(numeric.scaled(a.astype(np.int64) if wide_first else a, places))

    return Kernel(run, beyond=lambda result: numeric.exceeds_digits(result, digits))


def _float_to_decimal(digits: int, places: int) -> TextKernel:
    """Returns the kernel that casts the printed form of a double, as Spark does.

    NaN and infinities become null.
    """

    def row(value: float) -> int | None:
        if value - value != 0.0:
            return None
        return _fit_decimal(Decimal(repr(value)), digits, places, repr(value))

    return TextKernel(row, raises=True, nullable=True)


def _parse_decimal(text: str, digits: int, places: int) -> int:
    trimmed = text.strip(_JAVA_BLANKS)
    type_ = f"decimal({digits},{places})"
    if _DECIMAL_TEXT.fullmatch(trimmed) is None:
        raise _refuse(text, type_)
    try:
        value = Decimal(trimmed)
    except InvalidOperation:
        raise _refuse(text, type_) from None
    return _fit_decimal(value, digits, places, text)


def _fit_decimal(value: Decimal, digits: int, places: int, text: str) -> int:
    """Returns the unscaled value of a decimal, rounded to `places`, ties away from zero."""
    if value and value.adjusted() > DIGITS_MAX:
        raise InvalidError(reasons.too_many_digits(text, f"decimal({digits},{places})"))
    if value and value.adjusted() < -places - 2:
        return 0
    unit = Decimal((0, (1,), -places))
    exact = _EXACTLY if len(value.as_tuple().digits) < 700 else Context(prec=len(text) + 100)
    whole = int(exact.scaleb(value.quantize(unit, ROUND_HALF_UP, exact), places))
    if abs(whole) >= 10**digits:
        raise InvalidError(reasons.too_many_digits(text, f"decimal({digits},{places})"))
    return whole


def _from_decimal(digits: int, places: int, target: str) -> Kernel | TextKernel | None:
    if target == "double":
        return Kernel(lambda a: numeric.doubles(a, places))
    if target == "float":
        return Kernel(lambda a: numeric.singles(a, places))
    if target == "boolean":
        return Kernel(lambda a: np.asarray(a != 0, np.bool_))
    if target in INTEGERS:
        return _decimal_to_integer(digits, places, target)
    if target == "string":
        return TextKernel(lambda whole: plain_text(whole, places))
    return None


def _decimal_to_integer(digits: int, places: int, target: str) -> Kernel:
    dtype = FIXED[target]
    least, greatest = limits(target)
    unit = 10**places

    def truncate(a: Any) -> Any:
        return numeric.truncated_quotient(a, unit) if places else a

    def bad(a: Any) -> Any:
        if digits > _COMPACT and target != "bigint":  # because Spark checks the nearest double
            near = numeric.doubles(a, places)
            return (np.floor(near) > greatest) | (np.ceil(near) < least)
        whole = truncate(a)
        return np.asarray((whole < least) | (whole > greatest), np.bool_)

    def run(a: Any) -> Any:
        whole = truncate(a)
        if not np.ndim(whole):
            return dtype.type(
                whole if least <= whole <= greatest else 0
            )  # because a literal must not raise if there are no rows
        return np.where((whole < least) | (whole > greatest), 0, whole).astype(dtype)

    return Kernel(run, (Check(bad, reasons.out_of_range(target)),))


def plain_text(whole: int, places: int) -> str:
    """Returns the text of a decimal as Spark prints it in ANSI mode, without an exponent."""
    sign, figures = ("-", str(-whole)) if whole < 0 else ("", str(whole))
    if not places:
        return sign + figures
    figures = figures.rjust(places + 1, "0")
    return f"{sign}{figures[:-places]}.{figures[-places:]}"
