"""Rules: functions from argument nodes to the node that computes the call.

Each rule casts its arguments as Spark does, selects the kernel of the resulting type, and raises
`NotProvedError` for all other types. This module has the rules of numbers, text and dates; other
modules of this package have the others.

Entries of the table that are not rules are `Function`s. A `NullTolerantNode` is a call of a
function that handles nulls itself, such as a hash of several values, or the greatest of some texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nosync_nb.expressions.evaluation.nodes import CoalesceNode, LiteralNode, StrictNode, ValueNode
from nosync_nb.expressions.implicit_casts import cast, implicit, literal_value
from nosync_nb.expressions.kernels import numeric, strings
from nosync_nb.expressions.kernels.kernel import Kernel, NotProvedError, TextKernel
from nosync_nb.expressions.kernels.vectors import Vector, VectorFrame, full_vector, spread_by_mask
from nosync_nb.expressions.typing_rules import NUMBERS, TIMES, VOID, common_type, is_decimal
from nosync_nb.rows import buffers
from nosync_nb.rows.ddl import INTERVALS
from nosync_nb.rows.types import FIXED, FLOATS, INTEGERS, arrow_type

OF_BYTES = (("binary",),)
"""Types refused by functions that have a separate form for bytes."""
OF_TEXT = ((*NUMBERS, *TIMES, *INTERVALS, "decimal", "boolean", "binary"),)
"""Types refused by functions for which Spark casts no argument to text."""
OF_DAYS = ((), ("bigint", "float", "double", "decimal"))
"""Types refused by functions that add days to a date."""


@dataclass(frozen=True)
class Function:
    """A strict function of fixed types.

    Attributes:
        parameters: the types of the arguments.
        result: the type of the result.
        kernel: computes the values.
        optional: the number of trailing arguments that may be missing.
        literals: positions of the arguments that must be literals.
        refused: for each argument, the types that Spark does not cast to the parameter's type.
    """

    parameters: tuple[str, ...]
    result: str
    kernel: Kernel | TextKernel
    optional: int = 0
    literals: tuple[int, ...] = ()
    refused: tuple[tuple[str, ...], ...] = ()

    def bind(self, name: str, arguments: Sequence[ValueNode], utc: bool) -> ValueNode:
        """Returns the node of a call.

        Raises:
            NotProvedError: if the number or the types of the arguments do not fit.
        """
        most = len(self.parameters)
        check_arity(name, arguments, most - self.optional, most)
        for argument, refused in zip(arguments, self.refused, strict=False):
            if argument.type in refused or ("decimal" in refused and is_decimal(argument.type)):
                raise NotProvedError(f"{name} of a {argument.type}")
        cast = [implicit(a, p, utc=utc) for a, p in zip(arguments, self.parameters, strict=False)]
        for i in self.literals:
            if i < len(cast):
                literal_value(cast[i], f"an argument of {name}")
        return StrictNode(name, self.result, self.kernel, cast)


Rule = Callable[[str, list[ValueNode], bool], ValueNode]
"""A function that returns the node of a call.

Its arguments are the name, the argument nodes, and True if timestamps are in UTC.
"""


def check_arity(name: str, arguments: Sequence[Any], least: int, most: int | None = None) -> None:
    """Raises NotProvedError if the number of arguments is wrong.

    Args:
        least: the smallest allowed number.
        most: the greatest allowed number; by default `least`.
    """
    if not least <= len(arguments) <= (least if most is None else most):
        raise NotProvedError(f"{name} of {len(arguments)} arguments")


def rounding_places(name: str, arguments: list[ValueNode], most: int) -> int:
    """Returns the number of places of `round(x [, places])` or a similar call, a literal.

    Raises:
        NotProvedError: if the places are not such a literal, or are more than `most`.
    """
    check_arity(name, arguments, 1, 2)
    places = literal_value(arguments[1], "a scale") if len(arguments) == 2 else 0
    if not isinstance(places, int) or isinstance(places, bool) or abs(places) > most:
        raise NotProvedError(f"{name} to {places} places")
    return places


def _numeric(name: str, arguments: list[ValueNode], utc: bool) -> list[ValueNode]:
    """Returns both arguments cast to their common number type; text is cast as well."""
    check_arity(name, arguments, 2)
    type_ = common_type(arguments[0].type, arguments[1].type)
    if type_ not in NUMBERS:
        raise NotProvedError(f"{arguments[0].type} {name} {arguments[1].type}")
    return [cast(argument, type_, utc=utc) for argument in arguments]


def arithmetic(kernels: numeric.Kernels) -> Rule:
    """Returns the rule of a binary operator whose result has the type of its operands."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        operands = _numeric(name, arguments, utc)
        return StrictNode(name, operands[0].type, kernels(operands[0].type), operands)

    return rule


_plus = arithmetic(numeric.add)
_minus = arithmetic(numeric.subtract)
_DAYS = ("tinyint", "smallint", "int")


def _shifted(name: str, day: ValueNode, days: ValueNode, operation: Any) -> ValueNode:
    kernel = Kernel(lambda a, b: operation(a, b.astype(np.int32)))
    return StrictNode(name, "date", kernel, (day, days))


def plus(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `+` of numbers, and of a date and days."""
    check_arity(name, arguments, 2)
    left, right = arguments
    if left.type == "date" and right.type in _DAYS:
        return _shifted(name, left, right, np.add)
    if right.type == "date" and left.type in _DAYS:
        return _shifted(name, right, left, np.add)
    return _plus(name, arguments, utc)


def minus(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `-` of numbers, and of a date and days."""
    check_arity(name, arguments, 2)
    if arguments[0].type == "date" and arguments[1].type in _DAYS:
        return _shifted(name, arguments[0], arguments[1], np.subtract)
    return _minus(name, arguments, utc)


def divided(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `/`, which returns a double unless the arguments are decimals."""
    operands = _numeric(name, arguments, utc)
    operands = [cast(operand, "double", utc=utc) for operand in operands]
    return StrictNode(name, "double", numeric.divide("double"), operands)


def integral_divided(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `div`, which returns a bigint."""
    return integers(numeric.integral_divide, "bigint")(name, arguments, utc)


def integers(kernels: numeric.Kernels, type_: str | None = None) -> Rule:
    """Returns the rule of an operator of integers, computed in `type_` or their common type."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        operands = _numeric(name, arguments, utc)
        if not all(argument.type in (*INTEGERS, "string", VOID) for argument in arguments):
            raise NotProvedError(f"{arguments[0].type} {name} {arguments[1].type}")
        wanted = type_ or operands[0].type
        operands = [cast(operand, wanted, utc=utc) for operand in operands]
        return StrictNode(name, wanted, kernels(wanted), operands)

    return rule


def _number(name: str, node: ValueNode, utc: bool) -> ValueNode:
    """Returns a number of any type; text becomes a double."""
    if node.type not in (*NUMBERS, "string"):
        raise NotProvedError(f"{name} of {node.type}")
    return cast(node, "double", utc=utc) if node.type == "string" else node


def same_type(kernels: numeric.Kernels) -> Rule:
    """Returns the rule of a function of one number whose result has the same type."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 1)
        number = _number(name, arguments[0], utc)
        return StrictNode(name, number.type, kernels(number.type), (number,))

    return rule


def positive(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `positive(x)`, which is `x`."""
    check_arity(name, arguments, 1)
    return _number(name, arguments[0], utc)


def rounded_to_bigint(function: Any) -> Rule:
    """Returns the rule of `floor` or `ceil`, which return a bigint."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 1)
        if arguments[0].type in INTEGERS:
            return cast(arguments[0], "bigint", utc=utc)
        number = implicit(arguments[0], "double", utc=utc)
        return StrictNode(name, "bigint", numeric.to_whole(function)("double"), (number,))

    return rule


def is_nan(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `isnan`, which returns false for null."""
    check_arity(name, arguments, 1)
    given = arguments[0]
    number = given if given.type in FLOATS else implicit(given, "double", utc=utc)
    node = StrictNode(name, "boolean", numeric.is_nan("double"), (number,))
    return CoalesceNode("boolean", (node, LiteralNode(False, "boolean")))


def cast_to(type_: str) -> Rule:
    """Returns the rule of `int(x)` or a similar call."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 1)
        return cast(arguments[0], type_, utc=utc)

    return rule


def to_date(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `to_date(x)` without a format."""
    check_arity(name, arguments, 1)
    return implicit(arguments[0], "date", utc=utc)


def concat(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `concat` and `||` of text."""
    if not arguments:
        return LiteralNode("", "string")
    operands = [implicit(argument, "string", utc=utc) for argument in arguments]
    return StrictNode(name, "string", strings.concat, operands)


def clock(function: Callable[[Any], Any], type_: str = "int") -> Rule:
    """Returns the rule of `hour` or a similar call, which reads the local time of day."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 1)
        time = arguments[0]
        if time.type != "timestamp_ntz":
            time = implicit(time, "timestamp", utc=utc)
            if not utc:
                raise NotProvedError("timestamps in a time zone other than UTC")
        return StrictNode(name, type_, Kernel(function), (time,))

    return rule


def micros(source: str, result: str) -> Rule:
    """Returns the rule of `unix_micros` or `timestamp_micros`, for any time zone."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 1)
        given = arguments[0]
        if given.type != source and not (source == "bigint" and given.type in INTEGERS):
            raise NotProvedError(f"{name} of {given.type}")
        return StrictNode(name, result, Kernel(lambda a: a), (cast(given, source, utc=utc),))

    return rule


def truncated(kernels: Callable[[str], Kernel | None], type_: str, place: int) -> Rule:
    """Returns the rule of `trunc(date, unit)` or `date_trunc(unit, timestamp)`.

    Args:
        kernels: returns the kernel for a unit; None for an unsupported unit.
        place: the position of the time among the arguments.
    """

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 2)
        time = implicit(arguments[place], type_, utc=utc)
        kernel = kernels(str(literal_value(arguments[1 - place], "a unit")))
        if kernel is None or (type_ == "timestamp" and not utc):
            raise NotProvedError(f"{name} of this unit and time zone")
        return StrictNode(name, type_, kernel, (time,))

    return rule


class NullTolerantNode(ValueNode):
    """A function of a row that receives nulls as None, and may return None.

    Args:
        large: the same function over Arrow arrays and scalars, with at least one array.
            If it is None or returns None, the rows are computed one by one.
    """

    def __init__(
        self,
        type_: str,
        row: Callable[..., Any],
        arguments: Sequence[ValueNode],
        *,
        large: Callable[..., pa.Array | None] | None = None,
    ) -> None:
        super().__init__(type_, arguments)
        self.row = row
        self._large = large

    def evaluate(self, frame: VectorFrame) -> Vector:
        vectors = [argument.evaluate(frame) for argument in self.arguments]
        values = [vector.values for vector in vectors]
        if self._large is not None and any(isinstance(v, pa.Array) for v in values):
            result = self._large(*(buffers.text(v) if isinstance(v, str) else v for v in values))
            if result is not None:
                return Vector(result, buffers.null_mask_of(result) if result.null_count else None)
        types = [argument.type for argument in self.arguments]
        listed = [_values_of_vector(v, frame.n, t) for v, t in zip(vectors, types, strict=True)]
        results = list(map(self.row, *listed))
        return _vector_of_results(results, self.type, frame)


def _vector_of_results(results: list[Any], type_: str, frame: VectorFrame) -> Vector:
    nulls = None
    if None in results:
        nulls = np.fromiter([result is None for result in results], np.bool_, frame.n)
    if type_ in FIXED or is_decimal(type_):
        plain = results if nulls is None else [0 if r is None else r for r in results]
        return Vector(spread_by_mask(plain, type_), nulls)
    if frame.small:
        return Vector(spread_by_mask(results, type_), nulls)
    return Vector(buffers.arrow_from_list(results, arrow_type(type_)), nulls)


def _values_of_vector(vector: Vector, n: int, type_: str) -> list[Any]:
    values = full_vector(vector, n, type_)
    listed: list[Any] = values.to_pylist() if isinstance(values, pa.Array) else values.tolist()
    if vector.nulls is None:
        return listed
    return [None if null else v for v, null in zip(listed, vector.nulls.tolist(), strict=True)]


def joined(separator: Any, *texts: Any) -> Any:
    """Returns the `concat_ws` of the values of a row; nulls are omitted."""
    return None if separator is None else separator.join([t for t in texts if t is not None])


def all_joined(separator: Any, *texts: Any) -> pa.Array | None:
    """Returns the `concat_ws` of columns.

    Returns None if a text is null, because Arrow does not omit nulls.
    """
    if any(isinstance(text, pa.Array) and text.null_count for text in texts):
        return None
    return pc.binary_join_element_wise(*texts, separator)


def greatest(*values: Any) -> Any:
    """Returns the greatest value that is not null."""
    return max((value for value in values if value is not None), default=None)


def least(*values: Any) -> Any:
    """Returns the least value that is not null."""
    return min((value for value in values if value is not None), default=None)
