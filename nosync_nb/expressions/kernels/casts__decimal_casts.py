"""Kernels of casts from and to decimals, as in ANSI mode."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

import numpy as np

from nosync_nb.expressions.kernels import exact_integers
from nosync_nb.expressions.kernels.kernel import Check, InvalidError, Kernel, TextKernel
from nosync_nb.expressions.kernels.numeric import limits
from nosync_nb.expressions.typing_rules import DIGITS_MAX, is_decimal
from nosync_nb.rows.types import FIXED, FLOATS, INTEGERS, decimal_parts

_JAVA_BLANKS = "".join(map(chr, range(0x21)))
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_COMPACT = 18
"""Digits up to which Spark keeps a decimal as a long."""
_EXACTLY = Context(prec=800)


def cast(source: str, target: str) -> Kernel | TextKernel | None:
    """Returns the kernel that casts one type to another, one of which is a decimal."""
    if is_decimal(target):
        return _to(source, *decimal_parts(target))
    return _from(*decimal_parts(source), target)


def _to(source: str, digits: int, places: int) -> Kernel | TextKernel | None:
    if source in FLOATS:
        return _of_floats(digits, places)
    if source == "string":
        return TextKernel(lambda text: _parsed(text, digits, places), raises=True)
    if source in INTEGERS or source == "boolean":
        return _rescaled(digits, places, wide_first=True)
    if is_decimal(source):
        return _rescaled(digits, places - decimal_parts(source)[1])
    return None


def _rescaled(digits: int, places: int, *, wide_first: bool = False) -> Kernel:
    def run(a: Any) -> Any:
        return exact_integers.narrow(
            exact_integers.scaled(a.astype(np.int64) if wide_first else a, places)
        )

    return Kernel(run, beyond=lambda result: exact_integers.beyond(result, digits))


def _of_floats(digits: int, places: int) -> TextKernel:
    """Spark takes the decimal that prints the double; of what is no number, null."""

    def row(value: float) -> int | None:
        if value - value != 0.0:
            return None
        return _fitting(Decimal(repr(value)), digits, places, repr(value))

    return TextKernel(row, raises=True, nullable=True)


def _parsed(text: str, digits: int, places: int) -> int:
    trimmed = text.strip(_JAVA_BLANKS)
    type_ = f"decimal({digits},{places})"
    if _NUMBER.fullmatch(trimmed) is None:
        raise InvalidError(f"{text!r} is not of type {type_}")
    try:
        value = Decimal(trimmed)
    except InvalidOperation:
        raise InvalidError(f"{text!r} is not of type {type_}") from None
    return _fitting(value, digits, places, text)


def _fitting(value: Decimal, digits: int, places: int, text: str) -> int:
    """Returns the whole number of a value rounded to places, ties away from zero."""
    if value and value.adjusted() > DIGITS_MAX:
        raise InvalidError(f"{text!r} is beyond decimal({digits},{places})")
    if value and value.adjusted() < -places - 2:
        return 0
    unit = Decimal((0, (1,), -places))
    exact = _EXACTLY if len(value.as_tuple().digits) < 700 else Context(prec=len(text) + 100)
    whole = int(exact.scaleb(value.quantize(unit, ROUND_HALF_UP, exact), places))
    if abs(whole) >= 10**digits:
        raise InvalidError(f"{text!r} is beyond decimal({digits},{places})")
    return whole


def _from(digits: int, places: int, target: str) -> Kernel | TextKernel | None:
    if target == "double":
        return Kernel(lambda a: exact_integers.doubles(a, places))
    if target == "float":
        return Kernel(lambda a: exact_integers.singles(a, places))
    if target == "boolean":
        return Kernel(lambda a: np.asarray(a != 0, np.bool_))
    if target in INTEGERS:
        return _to_integer(digits, places, target)
    if target == "string":
        return TextKernel(lambda whole: plain_text(whole, places))
    return None


def _to_integer(digits: int, places: int, target: str) -> Kernel:
    dtype = FIXED[target]
    least, greatest = limits(target)
    unit = 10**places

    def cut(a: Any) -> Any:
        return exact_integers.whole(a, unit) if places else a

    def bad(a: Any) -> Any:
        if digits > _COMPACT and target != "bigint":  # Spark looks at the double
            near = exact_integers.doubles(a, places)
            return (np.floor(near) > greatest) | (np.ceil(near) < least)
        whole = cut(a)
        return np.asarray((whole < least) | (whole > greatest), np.bool_)

    def run(a: Any) -> Any:
        whole = cut(a)
        if not np.ndim(whole):
            return dtype.type(whole if least <= whole <= greatest else 0)  # of no row, it may be
        return np.where((whole < least) | (whole > greatest), 0, whole).astype(dtype)

    return Kernel(run, (Check(bad, f"the value is beyond {target}"),))


def plain_text(whole: int, places: int) -> str:
    """Returns a decimal as Spark prints it in ANSI mode, without an exponent."""
    sign, figures = ("-", str(-whole)) if whole < 0 else ("", str(whole))
    if not places:
        return sign + figures
    figures = figures.rjust(places + 1, "0")
    return f"{sign}{figures[:-places]}.{figures[-places:]}"
