"""Typed expressions that can be evaluated here: a tree of nodes over frames.

Evaluation raises exactly where Spark does. First, every argument is evaluated on all rows, and the
results are merged. If an argument raises, it is evaluated again on only those rows on which Spark
evaluates it: where its branch is taken, or where the argument before it is not null.

A `SharedOperandNode` has operands that Spark evaluates before the expression around them, such as
those that `between` and `nullif` read twice. Spark computes each of them once, on every row. This
applies to every such call outside of branches (of `case`, `if`, `coalesce` and similar calls,
except their first condition). So a row raises even where `false and ...` or a null argument would
skip the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from nosync_nb.expressions.kernels import numeric
from nosync_nb.expressions.kernels.kernel import Kernel, RefusedRowError, TextKernel, run_text
from nosync_nb.expressions.kernels.numeric import extent, limits
from nosync_nb.expressions.kernels.reasons import DECIMAL_OVERFLOW
from nosync_nb.expressions.kernels.vectors import (
    Array,
    RowError,
    Vector,
    VectorFrame,
    full_vector,
    merge_nulls,
    no_nulls,
)
from nosync_nb.expressions.typing_rules import is_decimal
from nosync_nb.rows import buffers
from nosync_nb.rows.decimals import unscaled_values
from nosync_nb.rows.encoding import unscaled
from nosync_nb.rows.types import FIXED, INTEGERS, arrow_type, decimal_parts


class ValueNode:
    """An expression: its type, its arguments, and whether its evaluation may raise."""

    def __init__(self, type_: str, arguments: Sequence[ValueNode], *, raises: bool = False) -> None:
        self.type = type_
        self.arguments = tuple(arguments)
        self.raises: bool = raises or any(argument.raises for argument in arguments)

    def evaluate(self, frame: VectorFrame) -> Vector:
        """Returns the values for the rows of a frame."""
        raise AssertionError("a node implements evaluate")


class ColumnNode(ValueNode):
    """A column of the input."""

    def __init__(self, place: int, type_: str) -> None:
        super().__init__(type_, ())
        self.place = place

    def evaluate(self, frame: VectorFrame) -> Vector:
        return frame.vector(self.place)


class LiteralNode(ValueNode):
    """A constant, in which None means null.

    Attributes:
        value: a Python object; a Decimal for decimals.
        scalar: the value as vectors store it.
        written: True if the constant is an integer in the text of the expression. Spark converts
            such a literal to a decimal with only the digits that it has.
    """

    def __init__(self, value: Any, type_: str, *, written: bool = False) -> None:
        super().__init__(type_, ())
        self.value = value
        self.written = written
        dtype = FIXED.get(type_)
        self.scalar: Any = value
        if dtype is not None:
            self.scalar = dtype.type(0 if value is None else value)
        elif value is not None and is_decimal(type_):
            self.scalar = unscaled_values([unscaled(value, decimal_parts(type_)[1])])[0]

    def evaluate(self, frame: VectorFrame) -> Vector:
        if self.value is not None:
            return Vector(self.scalar, None)
        return no_nulls(self.type, n=frame.n, small=frame.small)


class StrictNode(ValueNode):
    """A function that returns null where an argument is null."""

    def __init__(
        self, name: str, type_: str, kernel: Kernel | TextKernel, arguments: Sequence[ValueNode]
    ) -> None:
        super().__init__(type_, arguments, raises=kernel.raises)
        self.name = name
        self.kernel = kernel
        order = list(range(len(arguments)))
        if isinstance(kernel, Kernel) and kernel.right_first:
            order.reverse()
        self._order = order
        self._eager = isinstance(kernel, TextKernel) and kernel.eager

    def evaluate(self, frame: VectorFrame) -> Vector:
        values: list[Any] = [None] * len(self.arguments)
        nulls: Array | None = None
        for i in self._order:
            argument = self.arguments[i]
            if argument.raises and nulls is not None and not self._eager:
                vector = evaluate_where(argument, frame, ~nulls)
            else:
                vector = argument.evaluate(frame)
            values[i] = vector.values
            nulls = merge_nulls(nulls, vector.nulls)
        if isinstance(self.kernel, Kernel):
            return self._numbers(self.kernel, values, nulls, frame)
        try:
            return run_text(self.kernel, values, nulls, frame, self.type)
        except RefusedRowError as error:
            raise frame.fail(error.reason, error.row) from None

    def _numbers(
        self, kernel: Kernel, values: list[Any], nulls: Array | None, frame: VectorFrame
    ) -> Vector:
        for check in () if self._fits(kernel, values) else kernel.checks:
            bad = check.bad(*values)
            if nulls is not None:
                bad = bad & ~nulls
            bad = np.broadcast_to(bad, (frame.n,))
            if bad.any():
                raise frame.fail(check.reason, int(bad.argmax()))
        if kernel.missing is not None:
            missing = np.broadcast_to(kernel.missing(*values), (frame.n,))
            if missing.any():
                nulls = merge_nulls(nulls, missing)
        result = kernel.run(*values)
        if kernel.beyond is None:
            return Vector(result, nulls)
        beyond = np.broadcast_to(kernel.beyond(result), (frame.n,))
        if nulls is not None:
            beyond = beyond & ~nulls
        if not beyond.any():
            return Vector(result, nulls)
        if not kernel.lenient:
            raise frame.fail(DECIMAL_OVERFLOW, int(beyond.argmax()))
        return Vector(result, merge_nulls(nulls, beyond))

    def _fits(self, kernel: Kernel, values: list[Any]) -> bool:
        """Returns True if no result can overflow, given the actual range of the arguments."""
        if kernel.bounds is None or any(a.type not in INTEGERS for a in self.arguments):
            return not kernel.checks
        low, high = kernel.bounds(*map(extent, values))
        least, greatest = limits(self.type)
        return least <= low and high <= greatest


def evaluate_where(node: ValueNode, frame: VectorFrame, keep: Array) -> Vector:
    """Evaluates a node of which only the rows in `keep` may raise; other rows are undefined.

    All rows are evaluated at once, because this is cheaper than selecting some. The rows in `keep`
    are selected only after an error.
    """
    try:
        return node.evaluate(frame)
    except RowError:
        if keep.all():
            raise
    part = node.evaluate(frame.subset(keep))
    count = int(keep.sum())
    nulls = ~keep
    if part.nulls is not None:
        nulls[keep] = part.nulls
    values = full_vector(part, count, node.type)
    if isinstance(values, pa.Array):
        places = np.cumsum(keep) - 1
        return Vector(values.take(buffers.arrow_from_numpy(places, nulls=~keep)), nulls)
    spread = np.zeros(frame.n, values.dtype)
    if node.type not in FIXED and not is_decimal(node.type):
        spread = np.full(frame.n, None, object)
    spread[keep] = values
    return Vector(spread, nulls)


class LogicNode(ValueNode):
    """`and` / `or` of two booleans, three-valued; the right side is evaluated only if needed."""

    def __init__(self, left: ValueNode, right: ValueNode, *, conjunction: bool) -> None:
        super().__init__("boolean", (left, right))
        self.conjunction = conjunction

    def evaluate(self, frame: VectorFrame) -> Vector:
        left, right = self.arguments
        a, a_null = left.evaluate(frame)
        if right.raises:
            decided = ~a if self.conjunction else a
            if a_null is not None:
                decided = decided & ~a_null
            b, b_null = evaluate_where(right, frame, ~np.broadcast_to(decided, (frame.n,)))
            if b_null is not None:
                b_null = b_null & ~decided
        else:
            b, b_null = right.evaluate(frame)
        if a_null is None and b_null is None:
            return Vector(a & b if self.conjunction else a | b, None)
        return self._three_valued(a, a_null, b, b_null)

    def _three_valued(self, a: Any, a_null: Array | None, b: Any, b_null: Array | None) -> Vector:
        a_known = True if a_null is None else ~a_null
        b_known = True if b_null is None else ~b_null
        nulls = merge_nulls(a_null, b_null)
        assert nulls is not None
        if self.conjunction:
            decided = (~a & a_known) | (~b & b_known)
            return Vector(a & b & ~decided, nulls & ~decided)
        decided = (a & a_known) | (b & b_known)
        return Vector(decided, nulls & ~decided)


class IsNullNode(ValueNode):
    """`x is null`, which is never null; also for columns of types that are not computed here."""

    def __init__(self, argument: ValueNode) -> None:
        super().__init__("boolean", (argument,))

    def evaluate(self, frame: VectorFrame) -> Vector:
        argument = self.arguments[0]
        if isinstance(argument, ColumnNode):
            nulls = frame.null_mask(argument.place)
        else:
            nulls = argument.evaluate(frame).nulls
        return Vector(np.zeros(frame.n, np.bool_) if nulls is None else nulls, None)


class SameNode(ValueNode):
    """`<=>`: like `=`, but two nulls are equal."""

    def __init__(self, equal: StrictNode) -> None:
        super().__init__("boolean", equal.arguments)
        self.equal = equal

    def evaluate(self, frame: VectorFrame) -> Vector:
        (a, a_null), (b, b_null) = (x.evaluate(frame) for x in self.arguments)
        nulls = merge_nulls(a_null, b_null)
        inner = [_ComputedNode(v, x.type) for v, x in zip((a, b), self.arguments, strict=True)]
        probe = StrictNode(self.equal.name, "boolean", self.equal.kernel, inner)
        for given in inner:
            given.nulls = nulls
        values = np.broadcast_to(probe.evaluate(frame).values, (frame.n,))
        if nulls is None:
            return Vector(values, None)
        both = a_null & b_null if a_null is not None and b_null is not None else False
        return Vector((values & ~nulls) | both, None)


class _ComputedNode(ValueNode):
    """A node of values that are already computed."""

    def __init__(self, values: Any, type_: str) -> None:
        super().__init__(type_, ())
        self.values = values
        self.nulls: Array | None = None

    def evaluate(self, frame: VectorFrame) -> Vector:
        return Vector(self.values, self.nulls)


class CaseNode(ValueNode):
    """`case when ... then ... else ... end`, and `if`; the default may be a null literal."""

    def __init__(self, branches: Sequence[tuple[ValueNode, ValueNode]], default: ValueNode) -> None:
        flat = [node for branch in branches for node in branch]
        super().__init__(default.type, (*flat, default))
        self.branches = tuple(branches)
        self.default = default

    def evaluate(self, frame: VectorFrame) -> Vector:
        n = frame.n
        left = np.ones(n, np.bool_)
        pieces: list[tuple[Array, Vector]] = []
        for condition, result in self.branches:
            holds, unknown = evaluate_where(condition, frame, left)
            taken = left & holds
            if unknown is not None:
                taken &= ~unknown
            pieces.append((taken, evaluate_where(result, frame, taken)))
            left = left & ~taken
        return _merged(pieces, evaluate_where(self.default, frame, left), self.type, frame)


class CoalesceNode(ValueNode):
    """`coalesce`: the first argument that is not null."""

    def evaluate(self, frame: VectorFrame) -> Vector:
        left = np.ones(frame.n, np.bool_)
        pieces: list[tuple[Array, Vector]] = []
        for argument in self.arguments[:-1]:
            vector = evaluate_where(argument, frame, left)
            if vector.nulls is None:
                return _merged(pieces, vector, self.type, frame)
            pieces.append((left & ~vector.nulls, vector))
            left = left & vector.nulls
        last = evaluate_where(self.arguments[-1], frame, left)
        return _merged(pieces, last, self.type, frame)


def _merged(
    pieces: list[tuple[Array, Vector]], default: Vector, type_: str, frame: VectorFrame
) -> Vector:
    """Returns the values of each piece on the rows of its mask, and the default on the others."""
    n = frame.n
    nulls = np.zeros(n, np.bool_) if default.nulls is None else default.nulls.copy()
    values = full_vector(default, n, type_)
    decimal = is_decimal(type_)
    if isinstance(values, pa.Array) or (type_ not in FIXED and not decimal and not frame.small):
        return _merged_arrow(pieces, default, type_, frame)
    values = values.copy() if pieces else values
    for taken, vector in pieces:
        given = full_vector(vector, n, type_)
        if decimal and given.dtype.hasobject:
            values = values.astype(object)
        values[taken] = given[taken]
        nulls[taken] = False if vector.nulls is None else vector.nulls[taken]
    return Vector(values, nulls if nulls.any() else None)


def _merged_arrow(
    pieces: list[tuple[Array, Vector]], default: Vector, type_: str, frame: VectorFrame
) -> Vector:
    values = default.values
    for taken, vector in pieces:
        values = pc.if_else(buffers.arrow_from_numpy(taken), vector.values, values)
    if not isinstance(values, pa.Array):
        values = buffers.arrow_from_list([values] * frame.n, arrow_type(type_))
    nulls = buffers.null_mask_of(values) if values.null_count else None
    return Vector(values, nulls)


class ExtremeNode(ValueNode):
    """`greatest` / `least` of fixed types: nulls are ignored."""

    def __init__(
        self, arguments: Sequence[ValueNode], choose: Callable[[Any, Any], Any], name: str
    ) -> None:
        super().__init__(arguments[0].type, arguments)
        self.choose = choose
        self.name = name

    def evaluate(self, frame: VectorFrame) -> Vector:
        values, nulls = self.arguments[0].evaluate(frame)
        for argument in self.arguments[1:]:
            other, other_nulls = argument.evaluate(frame)
            chosen = self.choose(values, other)
            if other_nulls is not None:
                chosen = numeric.where(other_nulls, values, chosen)
            if nulls is not None:
                chosen = numeric.where(nulls, other, chosen)
            values = chosen
            nulls = None if nulls is None or other_nulls is None else nulls & other_nulls
        return Vector(values, nulls)


class InNode(ValueNode):
    """`x in (...)` of literals; if the list contains a null, null instead of false."""

    def __init__(self, matches: StrictNode, *, with_null: bool) -> None:
        super().__init__("boolean", (matches,))
        self.with_null = with_null

    def evaluate(self, frame: VectorFrame) -> Vector:
        values, nulls = self.arguments[0].evaluate(frame)
        if not self.with_null:
            return Vector(values, nulls)
        missed = ~np.broadcast_to(values, (frame.n,))
        return Vector(values, missed if nulls is None else missed | nulls)


_CHOICES = frozenset(("if", "nvl2", "coalesce", "nvl", "ifnull", "nanvl", "zeroifnull"))
"""Calls that evaluate their first argument on every row in Spark, and the others only if needed."""
_FIRST_LEFT = (exp.And, exp.Or, exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)


class SharedOperandNode(ValueNode):
    """An expression, with operands that are evaluated before it and may raise.

    Attributes:
        inner: the expression.
        first: the operands within it that are evaluated on every row.
    """

    def __init__(self, inner: ValueNode, first: Sequence[ValueNode]) -> None:
        super().__init__(inner.type, (*first, inner), raises=True)
        self.inner = inner
        self.first = tuple(first)

    def evaluate(self, frame: VectorFrame) -> Vector:
        for node in self.first:
            node.evaluate(frame)
        return self.inner.evaluate(frame)


def is_shared_operand(
    call: exp.Expression, operand: exp.Expression, is_variable: Callable[..., Any]
) -> bool:
    """Returns True if Spark evaluates the operand of a call first, unlike the node of the call.

    Args:
        is_variable: returns a true value if a name is a variable of an enclosing lambda.
    """
    if _is_cheap(operand) or any(is_variable(c.name) for c in operand.find_all(exp.Column)):
        return False
    return _is_always(call) and not _is_asked_first(call)


def _is_cheap(tree: Any) -> bool:
    """Returns True if Spark computes the operand twice: columns, fields, elements and constants."""
    if isinstance(tree, exp.Paren):
        return _is_cheap(tree.this)
    if isinstance(tree, exp.Bracket | exp.Dot):
        return all(_is_cheap(each) for each in (tree.this, *tree.expressions))
    return isinstance(tree, exp.Column | exp.Identifier) or not tree.find(exp.Column)


def _is_always(tree: Any) -> bool:
    """Returns True if the call is not inside a branch that may be skipped."""
    while tree.parent is not None:
        parent = tree.parent
        if isinstance(parent, exp.If) and isinstance(parent.parent, exp.Case):
            if tree is not parent.this or parent is not parent.parent.args["ifs"][0]:
                return False
            tree = parent.parent
            continue
        chooses = isinstance(parent, exp.Anonymous) and parent.name.lower() in _CHOICES
        if chooses and tree is not parent.expressions[0]:
            return False
        if isinstance(parent, exp.If | exp.Case) and tree is not parent.this:
            return False
        tree = parent
    return True


def _is_asked_first(tree: Any) -> bool:
    """Returns True if its call evaluates this operand on every row, so that no error is skipped."""
    while tree.parent is not None:
        parent = tree.parent
        passes = isinstance(parent, exp.Paren | exp.Not | exp.Alias)
        if not passes and not (isinstance(parent, _FIRST_LEFT) and tree is parent.this):
            return False
        tree = parent
    return True
