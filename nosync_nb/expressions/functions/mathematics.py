"""Functions of doubles: logarithms, powers, angles, rounding; and of the bits of integers.

The functions are those of the C library, called through Arrow. Java and the C library may differ by
one unit in the last place, and either may be nearer. The result is the same wherever a stage runs,
because the workers of Spark use these kernels too. The functions of numpy are not used: they differ
between processors with and without AVX-512, so one machine could not retract a row that another one
has inserted. Differences remain between releases of the C library, and on processors without FMA.

`round` and `bround` take the number of places as a literal. Doubles are rounded like Java rounds
the decimal that prints them: the shortest text that reads as the same number. Floats are widened to
doubles first, as in Spark: `1.005f` becomes 1.00499999523162842. Integers keep their type, and may
overflow it like any sum.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal
from math import factorial as _factorial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nosync_nb.expressions.evaluation.nodes import CaseNode, LiteralNode, StrictNode, ValueNode
from nosync_nb.expressions.functions.rules import Function, Rule, check_arity, rounding_places
from nosync_nb.expressions.implicit_casts import cast, implicit, tried_call
from nosync_nb.expressions.kernels import numeric, reasons
from nosync_nb.expressions.kernels.kernel import Check, Kernel, NotProvedError, null_on_error
from nosync_nb.expressions.typing_rules import NUMBERS, VOID, common_type, is_decimal
from nosync_nb.rows.ddl import INTERVALS
from nosync_nb.rows.types import FIXED, FLOATS, INTEGERS


def _of_c(name: str) -> Callable[..., Any]:
    """Returns a function of the C library, by its name in Arrow; it is called for each value."""
    function = getattr(pc, name)

    def kernel(*operands: Any) -> Any:
        values = np.broadcast_arrays(*(np.atleast_1d(np.float64(each)) for each in operands))
        result = function(*(pa.array(np.ascontiguousarray(each)) for each in values)).to_numpy()
        return result if any(map(np.ndim, operands)) else result[0]

    return kernel


def _real(function: Callable[[Any], Any]) -> Function:
    return Function(("double",), "double", Kernel(function, floats=True))


def _above(least: float, function: Callable[[Any], Any]) -> Function:
    """Returns a function that is null for values at or below a bound."""
    kernel = Kernel(function, floats=True, missing=lambda a: a <= least)
    return Function(("double",), "double", kernel)


_ln, _pow, _atan2 = _of_c("ln"), _of_c("power"), _of_c("atan2")
_sin, _cos, _tan = _of_c("sin"), _of_c("cos"), _of_c("tan")
_LOG_2 = 0.6931471805599453
_DEGREES, _RADIANS = 57.29577951308232, 0.017453292519943295


def _based(base: Any, a: Any) -> Any:
    return _ln(a) / _ln(base)


def _power(a: Any, b: Any) -> Any:
    """Returns the power as in Java, which is NaN for 1 to the power of NaN or infinity."""
    result = _pow(a, b)
    strange = (b != b) | (np.isinf(b) & (np.abs(a) == 1))
    return np.where(strange, np.nan, result)


def _angle(y: Any, x: Any) -> Any:
    return _atan2(y + 0.0, x + 0.0)


_SPLIT = 2.0**27 + 1


def _product(a: Any, b: Any) -> tuple[Any, Any]:
    """Returns the product of two doubles, and its rounding error."""
    result = a * b
    parts = []
    for x in (a, b):
        high = x * _SPLIT - (x * _SPLIT - x)
        parts.append((high, x - high))
    (a1, a2), (b1, b2) = parts
    return result, ((a1 * b1 - result) + a1 * b2 + a2 * b1) + a2 * b2


def _cube_root(a: Any) -> Any:
    """Returns the double nearest to the cube root, so that the root of a cube is whole.

    `np.cbrt` is corrected by one Newton step, whose residual is computed exactly.
    """
    unit = np.where(np.abs(a) < 2.0**-600, 2.0**200, np.where(np.abs(a) > 2.0**600, 2.0**-200, 1))
    x = a * unit * unit * unit
    root = np.cbrt(x)
    square, rest = _product(root, root)
    cube, more = _product(square, root)
    step = ((cube - x) + (more + rest * root)) / (3 * np.where(square == 0, 1, square))
    return np.where(np.isfinite(step), root - step, root) / unit


def _two(function: Callable[[Any, Any], Any], **more: Any) -> Function:
    return Function(("double", "double"), "double", Kernel(function, floats=True, **more))


_FACTORIALS = np.array([_factorial(n) for n in range(21)], np.int64)


def _factorials(a: Any) -> Any:
    return _FACTORIALS[np.clip(a, 0, 20)]


def logarithm(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `log(x)` and `log(base, x)`."""
    if len(arguments) == 1:
        return FUNCTIONS["ln"].bind(name, arguments, utc)  # type: ignore[union-attr]
    return _LOG_OF_BASE.bind(name, arguments, utc)


_LOG_OF_BASE = _two(_based, missing=lambda base, a: (base <= 0) | (a <= 0))


def _integral(arguments: list[ValueNode], utc: bool) -> list[ValueNode]:
    type_ = arguments[0].type
    for argument in arguments[1:]:
        type_ = common_type(type_, argument.type) or ""
    if type_ not in INTEGERS:
        raise NotProvedError(f"bits of {', '.join(a.type for a in arguments)}")
    return [cast(argument, type_, utc=utc) for argument in arguments]


def bitwise(function: Callable[..., Any], arity: int = 2) -> Rule:
    """Returns the rule of `&`, `|`, `^` or `~` of integers, in their common type."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, arity)
        operands = _integral(arguments, utc)
        return StrictNode(name, operands[0].type, Kernel(function), operands)

    return rule


def shift(function: Callable[[Any, Any], Any], *, unsigned: bool = False) -> Rule:
    """Returns the rule of `<<`, `>>` or `>>>`.

    As in Java, only the last 5 or 6 bits of the shift count are used.
    """

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 2)
        wanted = "bigint" if arguments[0].type == "bigint" else "int"
        value, bits = (
            implicit(arguments[0], wanted, utc=utc),
            implicit(arguments[1], "int", utc=utc),
        )
        dtype = FIXED[wanted]
        inner = np.dtype(f"u{dtype.itemsize}") if unsigned else dtype
        mask = 8 * dtype.itemsize - 1

        def run(a: Any, b: Any) -> Any:
            return function(a.astype(inner), (b & mask).astype(inner)).astype(dtype)

        return StrictNode(name, wanted, Kernel(run), (value, bits))

    return rule


def bit_count(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `bit_count`, the number of one bits among 64."""
    check_arity(name, arguments, 1)
    if arguments[0].type not in (*INTEGERS, "boolean"):
        raise NotProvedError(f"bit_count of {arguments[0].type}")
    kernel = Kernel(lambda a: np.bitwise_count(a.astype(np.int64).view(np.uint64)).astype(np.int32))
    return StrictNode(name, "int", kernel, arguments)


def bit_get(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `getbit(x, place)`."""
    check_arity(name, arguments, 2)
    value, place = arguments[0], implicit(arguments[1], "int", utc=utc)
    if value.type not in INTEGERS:
        raise NotProvedError(f"getbit of {value.type}")
    size = 8 * FIXED[value.type].itemsize
    check = Check(
        lambda a, b: (b < 0) | (b >= size),
        reasons.bad_parameter(
            "BIT_POSITION_RANGE", f"the bits are 0 to {size - 1}", "use one of these bits"
        ),
    )
    kernel = Kernel(
        lambda a, b: ((a.astype(np.int64) >> b.astype(np.int64)) & 1).astype(np.int8), (check,)
    )
    return StrictNode(name, "tinyint", kernel, (value, place))


def instead_of_nan(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `nanvl(x, y)`, which returns `y` where `x` is NaN."""
    check_arity(name, arguments, 2)
    floats = all(argument.type == "float" for argument in arguments)
    type_ = "float" if floats else "double"
    x, y = (implicit(argument, type_, utc=utc) for argument in arguments)
    is_nan = StrictNode("isnan", "boolean", numeric.is_nan(type_), (x,))
    return CaseNode([(is_nan, y)], x)


def _positive(a: Any, b: Any) -> Any:
    rest = np.fmod(a, b)
    return np.where(rest < 0, np.fmod(rest + b, b), rest)


def positive_remainder(other: Rule) -> Rule:
    """Returns the rule of `pmod`, also of floats; `other` handles integers."""
    check = Check(numeric.is_zero, reasons.REMAINDER_BY_ZERO)

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 2)
        type_ = common_type(arguments[0].type, arguments[1].type)
        if type_ not in FLOATS:
            return other(name, arguments, utc)
        operands = [cast(argument, type_, utc=utc) for argument in arguments]
        kernel = Kernel(_positive, (check,), right_first=True, floats=True)
        return StrictNode(name, type_, kernel, operands)

    return rule


def try_rule(rule: Rule) -> Rule:
    """Returns the rule of `try_add` or a similar call: null where the operator raises."""

    def attempt(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        if any(argument.type == VOID for argument in arguments):
            raise NotProvedError(f"{name} of null")
        types = {argument.type for argument in arguments}
        if "string" in types and INTERVALS & types:
            raise NotProvedError(f"{name} of {' and '.join(sorted(types))}")
        node = rule(name, arguments, utc)
        if not all(argument.type in NUMBERS or is_decimal(argument.type) for argument in arguments):
            return _tried_whole(node)
        node = tried_call(node)
        return looked_at_last(node) if isinstance(node, StrictNode) else node

    return attempt


def _tried_whole(node: ValueNode) -> ValueNode:
    """Returns a call that is null where it or one of its operands raises, as in Spark."""
    if not node.raises:
        return node
    if not isinstance(node, StrictNode):
        raise NotProvedError("the type of this call")
    inner = [_tried_whole(argument) for argument in node.arguments]
    return StrictNode(node.name, node.type, null_on_error(node.kernel), inner)


def looked_at_last(node: StrictNode) -> StrictNode:
    """Returns a call whose dividend is not evaluated where the divisor is zero."""
    first = node.arguments[0]
    if not (first.raises and isinstance(node.kernel, Kernel) and node.kernel.right_first):
        return node
    divisor = node.arguments[1]
    kernel = Kernel(lambda a: a, missing=lambda a: a == 0, floats=True)
    none = StrictNode("nullif", divisor.type, kernel, (divisor,))
    return StrictNode(node.name, node.type, node.kernel, (first, none))


def constant(value: float) -> Rule:
    """Returns the rule of `pi()` or `e()`."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 0)
        return LiteralNode(value, "double")

    return rule


_LN = _above(0.0, _ln)
_POWER = _two(_power)
_SHIFT_LEFT = shift(np.left_shift)
_SHIFT_RIGHT = shift(np.right_shift)
_SHIFT_UNSIGNED = shift(np.right_shift, unsigned=True)


_EXACTLY = Context(prec=1200)
_FAST_PLACES = 9


def rounded(*, even: bool) -> Rule:
    """Returns the rule of `round`, or of `bround` (`even`)."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        places = rounding_places(name, arguments, 400)
        type_ = arguments[0].type
        if type_ in INTEGERS:
            return (
                arguments[0] if places >= 0 else _round_integers(name, arguments[0], places, even)
            )
        if type_ not in FLOATS:
            raise NotProvedError(f"{name} of {type_}")
        if type_ == "double" and not even and 0 <= places <= _FAST_PLACES:
            return StrictNode(name, type_, numeric.rounder(places), arguments[:1])
        return StrictNode(name, type_, _round_printed(places, type_, even), arguments[:1])

    return rule


def _round_integers(name: str, node: ValueNode, places: int, even: bool) -> ValueNode:
    least, greatest = numeric.limits(node.type)
    dtype, unit = FIXED[node.type], 10**-places

    def round_half_even_or_up(a: Any) -> Any:
        a = a.astype(np.int64)
        if -places > 20:
            return a * 0
        up = numeric.over(a, unit)
        if even:
            tie = (
                np.abs(numeric.minus(numeric.times(a, np.int64(2)), numeric.times(up, 2 * unit)))
                == unit
            )
            up = np.where(
                np.asarray(tie, np.bool_) & (up % 2 == 1), up + np.where(a < 0, 1, -1), up
            )
        return numeric.times(up, unit)

    def bad(a: Any) -> Any:
        wanted = round_half_even_or_up(a)
        return np.asarray((wanted < least) | (wanted > greatest), np.bool_)

    def run(a: Any) -> Any:
        wanted = round_half_even_or_up(a)
        outside = (wanted < least) | (wanted > greatest)
        return np.where(outside, 0, wanted).astype(dtype)

    return StrictNode(name, node.type, Kernel(run, (Check(bad, reasons.OVERFLOW),)), (node,))


def _nearest_float(value: Decimal) -> Any:
    """Returns the float nearest to a decimal, rounded only once."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    whole = int("".join(map(str, digits))) * (-1 if sign else 1)
    return numeric.singles(whole * 10 ** max(0, exponent), max(0, -exponent))


def _round_printed(places: int, type_: str, even: bool) -> Kernel:
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
        return dtype(float(near)) if type_ == "double" else _nearest_float(near)

    each = np.frompyfunc(one, 1, 1)

    def run(a: Any) -> Any:
        values = each(a)
        return values.astype(dtype) if np.ndim(a) else dtype(values)

    return Kernel(run, floats=True)


FUNCTIONS: dict[str, Function | Rule] = {
    "exp": _real(_of_c("exp")),
    "expm1": _real(_of_c("expm1")),
    "ln": _LN,
    "log": logarithm,
    "log10": _above(0.0, _of_c("log10")),
    "log2": _above(0.0, lambda a: _ln(a) / _LOG_2),
    "log1p": _above(-1.0, _of_c("log1p")),
    "pow": _POWER,
    "power": _POWER,
    "sin": _real(_sin),
    "cos": _real(_cos),
    "tan": _real(_tan),
    "sec": _real(lambda a: 1 / _cos(a)),
    "csc": _real(lambda a: 1 / _sin(a)),
    "cot": _real(lambda a: 1 / _tan(a)),
    "asin": _real(_of_c("asin")),
    "acos": _real(_of_c("acos")),
    "atan": _real(_of_c("atan")),
    "atan2": _two(_angle),
    "sinh": _real(_of_c("sinh")),
    "cosh": _real(_of_c("cosh")),
    "tanh": _real(_of_c("tanh")),
    "degrees": _real(lambda a: a * _DEGREES),
    "radians": _real(lambda a: a * _RADIANS),
    "cbrt": _real(_cube_root),
    "hypot": _two(np.hypot),
    "rint": _real(np.rint),
    "factorial": Function(
        ("int",), "bigint", Kernel(_factorials, missing=lambda a: (a < 0) | (a > 20))
    ),
    "pi": constant(float(np.pi)),
    "e": constant(float(np.e)),
    "bit_count": bit_count,
    "getbit": bit_get,
    "bit_get": bit_get,
    "shiftleft": _SHIFT_LEFT,
    "shiftright": _SHIFT_RIGHT,
    "shiftrightunsigned": _SHIFT_UNSIGNED,
    "nanvl": instead_of_nan,
}

OPERATORS: dict[str, Rule] = {
    "&": bitwise(np.bitwise_and),
    "|": bitwise(np.bitwise_or),
    "^": bitwise(np.bitwise_xor),
    "~": bitwise(np.invert, 1),
    "<<": _SHIFT_LEFT,
    ">>": _SHIFT_RIGHT,
}
