"""Generates one Python function for small batches of columns without nulls.

Its source is generated once from the nodes. It takes the columns and returns the result, or None
for anything unexpected: a null, another physical form, a value near an overflow, a zero divisor, a
text that is refused. Then the nodes are evaluated as usual, which also locates the row that raises.
The generated function has no rules of its own: it calls the same kernels, without masks.

Integers are guarded at the inputs: the largest limit is determined under which no intermediate
result can overflow, and columns are checked once, instead of each operation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nosync_nb.expressions.evaluation.decimal_polynomials import Fast, compile_polynomial
from nosync_nb.expressions.evaluation.nodes import (
    CaseNode,
    CoalesceNode,
    ColumnNode,
    ExtremeNode,
    InNode,
    IsNullNode,
    LiteralNode,
    LogicNode,
    SameNode,
    StrictNode,
    ValueNode,
)
from nosync_nb.expressions.evaluation.shared_operands import SharedOperandNode
from nosync_nb.expressions.functions.null_tolerant import NullTolerantNode
from nosync_nb.expressions.kernels import exact_integers, strings
from nosync_nb.expressions.kernels.kernel import Bounds, Check, InvalidError, Kernel, TextKernel
from nosync_nb.expressions.kernels.numeric import is_zero, limits, within
from nosync_nb.expressions.kernels.vectors import canonical
from nosync_nb.expressions.typing_rules import is_decimal
from nosync_nb.rows import SMALL, objects
from nosync_nb.rows.decimals import load_decimals, store_decimals, unscaled_values
from nosync_nb.rows.types import FIXED, FLOATS, INTEGERS, is_nested


class _NotFastError(Exception):
    """Only the nodes can evaluate this."""


class _ExceedsError(Exception):
    """An intermediate result may leave its type."""


def compile_fast(node: ValueNode) -> Fast | None:
    """Returns the fast form of a node, None if it has none."""
    if isinstance(node, SharedOperandNode):
        return compile_fast(node.inner)  # the inner expression evaluates every part of every row
    polynomial = compile_polynomial(node)
    if polynomial is not None:
        return polynomial
    try:
        return _Code(_limit(node)).function(node)
    except _NotFastError:
        return None


def is_loud(node: ValueNode) -> bool:
    """Returns True if numpy may warn about floats during the evaluation."""
    own = isinstance(node, StrictNode) and _may_warn(node)
    return own or any(is_loud(argument) for argument in node.arguments)


def _may_warn(node: StrictNode) -> bool:
    return node.kernel.floats if isinstance(node.kernel, Kernel) else node.type == "float"


_INLINE = {
    id(strings.equal): "{} == {}",
    id(strings.not_equal): "{} != {}",
    id(strings.less): "{} < {}",
    id(strings.less_equal): "{} <= {}",
    id(strings.greater): "{} > {}",
    id(strings.greater_equal): "{} >= {}",
}


class _Code:
    """Generates the source. Values of fixed types are arrays, texts are lists."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.lines: list[str] = []
        self.names: dict[str, Any] = {
            "ndarray": np.ndarray,
            "fromiter": np.fromiter,
            "Refused": InvalidError,
        }
        self.loaded: dict[int, str] = {}

    def function(self, node: ValueNode) -> Fast:
        """Compiles the function of a root node."""
        if isinstance(node, ColumnNode | LiteralNode) or not _spans(node):
            raise _NotFastError
        result = self.value(node)
        if is_decimal(node.type):
            result = f"{self.name(store_decimals)}({result}, None, {node.type!r})"
        elif node.type not in FIXED:
            result = f"{self.name(objects)}({result})"
        elif node.type in FLOATS:
            result = f"{self.name(canonical)}({result})"
        body = "\n        ".join([*self.lines, f"return {result}"])
        source = f"def fast(columns, n):\n    try:\n        {body}\n    except Refused: return\n"
        exec(source, self.names)
        function: Fast = self.names["fast"]
        return function

    def name(self, value: Any) -> str:
        """Returns the name under which the source refers to a value."""
        name = f"k{len(self.names)}"
        self.names[name] = value
        return name

    def keep(self, source: str) -> str:
        """Computes a value once; returns its name."""
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {source}")
        return name

    def value(self, node: ValueNode) -> str:
        """Returns the source of a node's values."""
        if isinstance(node, ColumnNode):
            return self.column(node)
        if isinstance(node, LiteralNode):
            if node.value is None:
                raise _NotFastError
            if is_decimal(node.type):
                return self.name(node.scalar)
            return self.name(np.array(node.scalar) if node.type in FIXED else node.value)
        if isinstance(node, StrictNode):
            if isinstance(node.kernel, Kernel):
                return self.numbers(node, node.kernel)
            return self.text(node, node.kernel)
        return self.special(node)

    def column(self, node: ColumnNode) -> str:
        name = self.loaded.get(node.place)
        if name is not None:
            return name
        name = self.loaded[node.place] = f"c{node.place}"
        self.lines.append(f"{name} = columns[{node.place}]")
        dtype = FIXED.get(node.type, _OBJECT)
        if is_nested(node.type):
            raise _NotFastError
        wanted = self.name(dtype)
        self.lines.append(f"if type({name}) is not ndarray or {name}.dtype != {wanted}: return")
        if is_decimal(node.type):
            self.lines.append(f"{name}, nulls = {self.name(load_decimals)}({name}, {node.type!r})")
            self.lines.append("if nulls is not None: return")
        elif dtype is _OBJECT:
            self.lines.append(f"{name} = {name}.tolist()")
            self.lines.append(f"if None in {name}: return")
        elif node.type in INTEGERS and self.limit is not None:
            self.guard(name, self.limit, limits(node.type)[1])
        return name

    def guard(self, name: str, limit: int, greatest: int) -> None:
        if limit < greatest:
            test = f"{self.name(within)}({name}, {limit})"
            self.lines.append(f"if not {test}: return")

    def numbers(self, node: StrictNode, kernel: Kernel) -> str:
        values = [self.value(argument) for argument in node.arguments]
        tests = [check.bad for check in kernel.checks if self.needed(node, kernel, check)]
        if kernel.missing is not None:
            tests.append(kernel.missing)
        if tests:
            values = [self.keep(value) for value in values]
        for test in tests:
            bad = f"{self.name(test)}({', '.join(values)})"
            self.lines.append(f"if b'\\x01' in {bad}.tobytes(): return")
        result = f"{self.name(kernel.run)}({', '.join(values)})"
        if kernel.beyond is not None:
            result = self.keep(result)
            self.lines.append(
                f"if b'\\x01' in {self.name(kernel.beyond)}({result}).tobytes(): return"
            )
        return result

    def needed(self, node: StrictNode, kernel: Kernel, check: Check) -> bool:
        """Returns True if a check cannot be decided before the values are known."""
        if kernel.bounds is not None and self.limit is not None:
            return False
        last = node.arguments[-1]
        return not (check.bad is is_zero and isinstance(last, LiteralNode) and last.value)

    def text(self, node: StrictNode, kernel: TextKernel) -> str:
        return self.rowwise(node, kernel.row, _INLINE.get(id(kernel)), nullable=kernel.nullable)

    def rowwise(
        self, node: ValueNode, row: Any, template: str | None = None, *, nullable: bool
    ) -> str:
        """Returns the source of a computation row by row, for few rows without nulls."""
        if _FEW not in self.lines:
            self.lines.append(_FEW)
        spanning = [argument for argument in node.arguments if _spans(argument)]
        if not spanning:
            raise _NotFastError
        lists = []
        for argument in spanning:
            value = self.value(argument)
            plain = argument.type not in FIXED and not is_decimal(argument.type)
            lists.append(value if plain else f"({value}).tolist()")
        names = [f"x{i}" for i in range(len(spanning))]
        own = iter(names)
        inner = [
            next(own) if _spans(argument) else self.name(_plain(argument))
            for argument in node.arguments
        ]
        each = template.format(*inner) if template else f"{self.name(row)}({', '.join(inner)})"
        source = lists[0] if len(lists) == 1 else f"zip({', '.join(lists)})"
        code = f"[{each} for {', '.join(names)} in {source}]"
        if nullable:
            code = self.keep(code)
            self.lines.append(f"if None in {code}: return")
        if is_decimal(node.type):
            return f"{self.name(unscaled_values)}({code})"
        dtype = FIXED.get(node.type)
        return code if dtype is None else f"fromiter({code}, {self.name(dtype)}, n)"

    def special(self, node: ValueNode) -> str:
        arguments = node.arguments
        if isinstance(node, LogicNode):
            sign = "&" if node.conjunction else "|"
            return f"({self.value(arguments[0])} {sign} {self.value(arguments[1])})"
        if isinstance(node, IsNullNode):
            given = self.value(arguments[0])
            if arguments[
                0
            ].raises:  # evaluated because it may raise, though its values are not needed
                self.keep(given)
            return f"{self.name(np.zeros)}(n, bool)"
        if isinstance(node, CoalesceNode):
            return self.value(arguments[0])
        if isinstance(node, NullTolerantNode) and all(a.type == "string" for a in arguments):
            return self.rowwise(node, node.row, nullable=True)
        if isinstance(node, SameNode):
            return self.value(node.equal)
        if isinstance(node, ExtremeNode):
            code = self.value(arguments[0])
            for argument in arguments[1:]:
                code = f"{self.name(node.choose)}({code}, {self.value(argument)})"
            return code
        if isinstance(node, InNode) and not node.with_null:
            return self.value(arguments[0])
        if isinstance(node, CaseNode) and (node.type in FIXED or is_decimal(node.type)):
            code = self.value(node.default)
            where = self.name(np.where if node.type in FIXED else exact_integers.where)
            for condition, result in reversed(node.branches):
                code = f"{where}({self.value(condition)}, {self.value(result)}, {code})"
            return code
        raise _NotFastError


_FEW = f"if n > {SMALL}: return"


def _plain(node: ValueNode) -> Any:
    if not isinstance(node, LiteralNode) or node.value is None:
        raise _NotFastError
    return int(node.scalar) if is_decimal(node.type) else node.value


def _spans(node: ValueNode) -> bool:
    """Returns True if the fast value of a node has one entry for each row."""
    if isinstance(node, CoalesceNode):
        return _spans(node.arguments[0])
    if isinstance(node, ColumnNode | IsNullNode):
        return True
    return any(_spans(argument) for argument in node.arguments)


_OBJECT = np.dtype(object)
_LIMITS = (63, 62, 61, 60, 58, 56, 53, 48, 40, 31, 30, 29, 28, 24, 20, 15, 14, 12, 10, 7, 6, 5)


def _limit(node: ValueNode) -> int | None:
    """Returns the largest limit of inputs under which nothing overflows, if any."""
    for bits in _LIMITS:
        limit: int = 2**bits - 1
        try:
            _bounds(node, limit)
        except _ExceedsError:
            continue
        return limit
    return None


def _bounds(node: ValueNode, limit: int) -> Bounds:
    """Returns the bounds of an integer node if its inputs keep the limit."""
    inner = [_bounds(argument, limit) for argument in node.arguments]
    if node.type not in INTEGERS:
        return 0, 0
    least, greatest = limits(node.type)
    if isinstance(node, ColumnNode):
        if limit >= greatest:
            return least, greatest  # not guarded: the least integer is one below -greatest
        return -limit, limit
    if isinstance(node, LiteralNode):
        return (0, 0) if node.value is None else (node.value, node.value)
    if not isinstance(node, StrictNode) or not isinstance(node.kernel, Kernel):
        return least, greatest
    if node.kernel.bounds is None or any(a.type not in INTEGERS for a in node.arguments):
        return least, greatest
    low, high = node.kernel.bounds(*inner)
    if low < least or high > greatest:
        raise _ExceedsError
    return low, high
