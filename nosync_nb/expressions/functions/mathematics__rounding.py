"""`round` and `bround` of integers and floats, to places that a literal gives.

Doubles are rounded as Java rounds the decimal that prints them; what prints it is the shortest text
that reads as the same number. Floats are widened to doubles first, as Spark does it: `1.005f` is
1.00499999523162842 then. Integers keep their type, and overflow it as any sum does.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal
from typing import Any

import numpy as np

from nosync_nb.expressions.evaluation.nodes import StrictNode, ValueNode
from nosync_nb.expressions.functions.rules import Rule
from nosync_nb.expressions.implicit_casts import NotProvedError, literal_value
from nosync_nb.expressions.kernels import exact_integers, numeric
from nosync_nb.expressions.kernels.kernel import Check, Kernel
from nosync_nb.rows.types import FIXED, FLOATS, INTEGERS

_EXACTLY = Context(prec=1200)
_FAST = 9


def rounded(*, even: bool) -> Rule:
    """The rule of one of them."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        if len(arguments) not in (1, 2):
            raise NotProvedError(f"{name} of {len(arguments)} arguments")
        places = literal_value(arguments[1], "a scale") if len(arguments) == 2 else 0
        if not isinstance(places, int) or isinstance(places, bool) or not -400 <= places <= 400:
            raise NotProvedError(f"{name} to {places} places")
        type_ = arguments[0].type
        if type_ in INTEGERS:
            return arguments[0] if places >= 0 else _of_integers(name, arguments[0], places, even)
        if type_ not in FLOATS:
            raise NotProvedError(f"{name} of {type_}")
        if type_ == "double" and not even and 0 <= places <= _FAST:
            return StrictNode(name, type_, numeric.rounder(places), arguments[:1])
        return StrictNode(name, type_, _printed(places, type_, even), arguments[:1])

    return rule


def _of_integers(name: str, node: ValueNode, places: int, even: bool) -> ValueNode:
    least, greatest = numeric.limits(node.type)
    dtype, unit = FIXED[node.type], 10**-places

    def near(a: Any) -> Any:
        a = a.astype(np.int64)
        if -places > 20:
            return a * 0
        up = exact_integers.over(a, unit)
        if even:
            tie = (
                np.abs(
                    exact_integers.minus(
                        exact_integers.times(a, np.int64(2)), exact_integers.times(up, 2 * unit)
                    )
                )
                == unit
            )
            up = np.where(
                np.asarray(tie, np.bool_) & (up % 2 == 1), up + np.where(a < 0, 1, -1), up
            )
        return exact_integers.times(up, unit)

    def bad(a: Any) -> Any:
        wanted = near(a)
        return np.asarray((wanted < least) | (wanted > greatest), np.bool_)

    def run(a: Any) -> Any:
        wanted = near(a)
        outside = (wanted < least) | (wanted > greatest)
        return np.where(outside, 0, wanted).astype(dtype)

    return StrictNode(name, node.type, Kernel(run, (Check(bad, numeric.OVERFLOW),)), (node,))


def _single(value: Decimal) -> Any:
    """The float nearest to a decimal, rounded once."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    whole = int("".join(map(str, digits))) * (-1 if sign else 1)
    return exact_integers.singles(whole * 10 ** max(0, exponent), max(0, -exponent))


def _printed(places: int, type_: str, even: bool) -> Kernel:
    unit = Decimal((0, (1,), -places))
    way = ROUND_HALF_EVEN if even else ROUND_HALF_UP
    dtype: Any = FIXED[type_].type

    def one(value: Any) -> Any:
        if value - value != 0:
            return value
        exact = Decimal(repr(float(value)))
        exponent = exact.as_tuple().exponent
        if isinstance(exponent, int) and -exponent <= places:
            return value
        near = exact.quantize(unit, way, _EXACTLY)
        return dtype(float(near)) if type_ == "double" else _single(near)

    each = np.frompyfunc(one, 1, 1)

    def run(a: Any) -> Any:
        values = each(a)
        return values.astype(dtype) if np.ndim(a) else dtype(values)

    return Kernel(run, floats=True)
