"""Arithmetic, rounding and comparison of decimals, with Spark's precision and scale.

Values are unscaled integers: multiples of the last decimal place. Spark computes exactly, and
rounds once to the scale of the result, ties away from zero. It refuses results with more digits
than their type. The types are those of `spark.sql.decimalOperations.allowPrecisionLoss=true`, the
default.

Decimals are compared with each other and with integers. Spark casts decimals of several types to
one that holds them all. If that type needs more than 38 digits, Spark drops some; such comparisons
are left to Spark.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow.compute as pc

from nosync_nb.expressions.evaluation.nodes import LiteralNode, StrictNode, ValueNode
from nosync_nb.expressions.functions.rules import Rule, check_arity, rounding_places
from nosync_nb.expressions.implicit_casts import cast
from nosync_nb.expressions.kernels import numeric, reasons
from nosync_nb.expressions.kernels.kernel import Check, Kernel, NotProvedError, TextKernel
from nosync_nb.expressions.typing_rules import DIGITS_MAX, WHOLE_DIGITS, is_decimal
from nosync_nb.rows.decimals import unscaled_values
from nosync_nb.rows.types import INTEGERS, decimal_parts

_DIGITS = DIGITS_MAX + 1
_PLACES_LEAST = 6

Parts = tuple[int, int]


def _limited_type(precision: int, scale: int) -> Parts:
    """Returns a type of at most 38 digits that keeps the whole part, and 6 places if possible."""
    if precision <= DIGITS_MAX:
        return precision, scale
    places = max(DIGITS_MAX - (precision - scale), min(scale, _PLACES_LEAST))
    return DIGITS_MAX, places


def _type_name(parts: Parts) -> str:
    return f"decimal({parts[0]},{parts[1]})"


def _operand(node: ValueNode, utc: bool) -> ValueNode:
    """Returns an operand as a decimal; a literal integer gets only as many digits as it has."""
    if is_decimal(node.type):
        return node
    digits = WHOLE_DIGITS.get(node.type)
    if digits is None:
        raise NotProvedError(f"a {node.type} beside a decimal")
    if isinstance(node, LiteralNode) and node.written and node.value is not None:
        value = Decimal(node.value)
        return LiteralNode(value, _type_name((len(value.as_tuple().digits), 0)))
    return cast(node, _type_name((digits, 0)), utc=utc)


def concerned(arguments: list[ValueNode]) -> bool:
    """Returns True if an operation on these arguments is decimal: only decimals and integers."""
    types = [argument.type for argument in arguments]
    return any(map(is_decimal, types)) and all(is_decimal(t) or t in INTEGERS for t in types)


def _either(exact: Rule, other: Rule) -> Rule:
    """Returns a rule that uses `exact` for decimals, and `other` for other types."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        return (exact if concerned(arguments) else other)(name, arguments, utc)

    return rule


Typed = Callable[[int, int, int, int], Parts]
Computed = Callable[[Any, Any, int, int, int], Any]
"""Computes a result from two values, their scales, and the scale of the result."""


def _limited_kernel(
    compute: Callable[..., Any], digits: int, *checks: Check, **more: Any
) -> Kernel:
    def run(*values: Any) -> Any:
        return numeric.narrow(compute(*values))

    return Kernel(run, checks, beyond=lambda r: numeric.exceeds_digits(r, digits), **more)


def _kernel_within(compute: Callable[..., Any], digits: int) -> Kernel:
    """Returns a kernel with results of at most `digits` digits; it may overflow only above 38."""
    if digits > DIGITS_MAX:
        return _limited_kernel(compute, DIGITS_MAX)
    return Kernel(lambda *values: numeric.narrow(compute(*values)))


def _binary(types: Typed, compute: Computed, *checks: Check, right_first: bool = False) -> Rule:
    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 2)
        left, right = (_operand(argument, utc) for argument in arguments)
        (p1, s1), (p2, s2) = decimal_parts(left.type), decimal_parts(right.type)
        parts = types(p1, s1, p2, s2)
        kernel = _limited_kernel(
            lambda a, b: compute(a, b, s1, s2, parts[1]), parts[0], *checks, right_first=right_first
        )
        return StrictNode(name, _type_name(parts), kernel, (left, right))

    return rule


def _sum_type(p1: int, s1: int, p2: int, s2: int) -> Parts:
    scale = max(s1, s2)
    return _limited_type(max(p1 - s1, p2 - s2) + scale + 1, scale)


def _added(a: Any, b: Any, s1: int, s2: int, scale: int) -> Any:
    places = max(s1, s2)
    total = numeric.plus(numeric.raised(a, places - s1), numeric.raised(b, places - s2))
    return numeric.scaled(total, scale - places)


def _subtracted(a: Any, b: Any, s1: int, s2: int, scale: int) -> Any:
    places = max(s1, s2)
    rest = numeric.minus(numeric.raised(a, places - s1), numeric.raised(b, places - s2))
    return numeric.scaled(rest, scale - places)


def _multiplied(a: Any, b: Any, s1: int, s2: int, scale: int) -> Any:
    return numeric.scaled(numeric.times(a, b), scale - s1 - s2)


def _quotient_type(p1: int, s1: int, p2: int, s2: int) -> Parts:
    scale = max(_PLACES_LEAST, s1 + p2 + 1)
    return _limited_type(p1 - s1 + s2 + scale, scale)


def _divided(a: Any, b: Any, s1: int, s2: int, scale: int) -> Any:
    return numeric.over(numeric.raised(a, scale - s1 + s2), b)


def _rest_type(p1: int, s1: int, p2: int, s2: int) -> Parts:
    if p1 - s1 + s2 > _DIGITS:
        raise NotProvedError("a remainder of a decimal by one of many places")
    scale = max(s1, s2)
    return _limited_type(min(p1 - s1, p2 - s2) + scale, scale)


def _remainder(a: Any, b: Any, s1: int, s2: int, scale: int) -> Any:
    places = max(s1, s2)
    rest = numeric.truncated_remainder(
        numeric.raised(a, places - s1), numeric.raised(b, places - s2)
    )
    return numeric.scaled(rest, scale - places)


def _whole_type(p1: int, s1: int, p2: int, s2: int) -> Parts:
    digits = p1 - s1 + s2
    if digits > 18:
        raise NotProvedError("div of decimals beyond bigint")
    return max(1, digits), 0


def _integral(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `div` of decimals, which returns a bigint."""
    check = Check(numeric.is_zero, reasons.BY_ZERO)
    node = _binary(_whole_type, _truncated_quotient, check, right_first=True)(name, arguments, utc)
    return cast(node, "bigint", utc=utc)


def _truncated_quotient(a: Any, b: Any, s1: int, s2: int, scale: int) -> Any:
    places = max(s1, s2)
    return numeric.truncated_quotient(
        numeric.raised(a, places - s1), numeric.raised(b, places - s2)
    )


_BY_ZERO = Check(numeric.is_zero, reasons.BY_ZERO)
_REST_BY_ZERO = Check(numeric.is_zero, reasons.REMAINDER_BY_ZERO)

_ARITHMETIC: dict[str, Rule] = {
    "+": _binary(_sum_type, _added),
    "-": _binary(_sum_type, _subtracted),
    "*": _binary(lambda p1, s1, p2, s2: _limited_type(p1 + p2 + 1, s1 + s2), _multiplied),
    "/": _binary(_quotient_type, _divided, _BY_ZERO, right_first=True),
    "%": _binary(_rest_type, _remainder, _REST_BY_ZERO, right_first=True),
    "div": _integral,
}


def arithmetic(sign: str, other: Rule) -> Rule:
    """Returns the rule of an operator over decimals; `other` handles other types."""
    return _either(_ARITHMETIC[sign], other)


_OPPOSITE_DIGITS = 34


def _opposite(a: Any) -> Any:
    """Returns `-a` as Spark computes it: rounded to 34 digits, ties to even."""
    return numeric.digits_kept(numeric.minus(np.int64(0), a), _OPPOSITE_DIGITS, even=True)


def same_type(*, signed: bool, other: Rule) -> Rule:
    """Returns the rule of the negative (`signed`) or the absolute value of a decimal."""

    def run(a: Any) -> Any:
        return _opposite(a) if signed else numeric.where(a < 0, _opposite(a), a)

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 1)
        precision = decimal_parts(arguments[0].type)[0]
        kernel = _limited_kernel(run, precision) if precision > _OPPOSITE_DIGITS else Kernel(run)
        return StrictNode(name, arguments[0].type, kernel, arguments)

    return _either(rule, other)


def positive(other: Rule) -> Rule:
    """Returns the rule of `positive(x)`, which is `x`."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 1)
        return arguments[0]

    return _either(rule, other)


def _rounded_towards(a: Any, places: int, direction: int) -> Any:
    """Returns the nearest whole number that is not above (-1) or not below (1) the decimal."""
    cut = numeric.truncated_quotient(a, 10**places)
    rest = numeric.minus(a, numeric.raised(cut, places))
    return cut + direction * ((rest > 0) if direction > 0 else (rest < 0))


def rounded_to_integer(direction: int, other: Rule) -> Rule:
    """Returns the rule of `floor` (-1) or `ceil` (1) of a decimal; the result has no places."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 1)
        precision, scale = decimal_parts(arguments[0].type)
        if not scale:
            return arguments[0]
        digits = precision - scale + 1
        kernel = _kernel_within(lambda a: _rounded_towards(a, scale, direction), digits)
        return StrictNode(name, _type_name((min(DIGITS_MAX, digits), 0)), kernel, arguments)

    return _either(rule, other)


def _rounded_half_even(a: Any, places: int) -> Any:
    """Removes the last `places` digits, rounding to the nearest value, ties to the even one."""
    unit = 10**places
    up = numeric.over(a, unit)
    tie = numeric.minus(
        numeric.times(numeric.minus(numeric.raised(up, places), a), np.int64(2)),
        0,
    )
    exact = np.abs(tie) == unit
    odd = (np.abs(up) % 2) == 1
    back = np.where(a < 0, 1, -1)
    return numeric.where(exact & odd, numeric.plus(up, back), up)


def rounded(other: Rule, *, even: bool) -> Rule:
    """Returns the rule of `round`, or of `bround` (`even`); the number of places is a literal."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        places = rounding_places(name, arguments, 38)
        precision, scale = decimal_parts(arguments[0].type)
        kept = min(scale, max(0, places))
        whole_digits = precision - scale + 1
        digits = max(whole_digits, 1 - places) if places < 0 else whole_digits + kept
        gone, back = scale - min(scale, places), max(0, -places)

        def compute(a: Any) -> Any:
            near = _rounded_half_even(a, gone) if even and gone else numeric.lowered(a, gone)
            return numeric.raised(near, back)

        kernel = _kernel_within(compute, digits)
        return StrictNode(name, _type_name((min(DIGITS_MAX, digits), kept)), kernel, arguments[:1])

    def round_decimal(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        if arguments and arguments[0].type == "string":
            arguments = [cast(arguments[0], "double", utc=utc), *arguments[1:]]
        return (rule if arguments and is_decimal(arguments[0].type) else other)(
            name, arguments, utc
        )

    return round_decimal


_OPERATIONS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "=": (operator.eq, pc.equal),
    "<>": (operator.ne, pc.not_equal),
    "<": (operator.lt, pc.less),
    "<=": (operator.le, pc.less_equal),
    ">": (operator.gt, pc.greater),
    ">=": (operator.ge, pc.greater_equal),
}


def _digits_and_scale(type_: str) -> tuple[int, int]:
    return decimal_parts(type_) if is_decimal(type_) else (WHOLE_DIGITS[type_], 0)


def is_comparable(nodes: Sequence[ValueNode]) -> bool:
    """Returns True if values of these types are compared here; false if a literal is null."""
    if any(isinstance(node, LiteralNode) and node.value is None for node in nodes):
        return False
    types = {node.type for node in nodes}
    if types == {"binary"}:
        return True
    if not any(map(is_decimal, types)):
        return False
    if not all(is_decimal(t) or t in WHOLE_DIGITS for t in types):
        return False
    parts = [_digits_and_scale(t) for t in types]
    scale = max(scale for _, scale in parts)
    return max(precision - scale for precision, scale in parts) + scale <= DIGITS_MAX


def comparison(name: str, left: str, right: str) -> Kernel | TextKernel:
    """Returns the kernel that compares values of two comparable types."""
    compare, large = _OPERATIONS[name]
    if left == right == "binary":
        return TextKernel(compare, large)
    (_, s1), (_, s2) = _digits_and_scale(left), _digits_and_scale(right)
    places = max(s1, s2)

    def run(a: Any, b: Any) -> Any:
        result = compare(
            numeric.raised(numeric.as_int64(a), places - s1),
            numeric.raised(numeric.as_int64(b), places - s2),
        )
        return np.asarray(result, np.bool_)

    return Kernel(run)


def is_one_of(wanted: Sequence[Any], type_: str) -> Kernel | TextKernel:
    """Returns the kernel of `x in (...)` for literals whose types are comparable with `x`."""
    if type_ == "binary":
        return TextKernel(frozenset(wanted).__contains__)
    scale = decimal_parts(type_)[1] if is_decimal(type_) else 0
    exact = [value * 10**scale for value in wanted]
    values = unscaled_values([int(value) for value in exact if value == int(value)])

    def run(a: Any) -> Any:
        inside = np.zeros(np.shape(a), np.bool_)
        for value in values:
            inside = inside | (a == value)
        return inside

    return Kernel(run)


def extreme(*, least: bool) -> Callable[[Any, Any], Any]:
    """Returns the function that selects the lesser or the greater of two decimals of one type."""
    compare = operator.le if least else operator.ge
    return lambda a, b: numeric.where(compare(a, b), a, b)
