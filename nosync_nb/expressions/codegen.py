"""Generates Python functions that evaluate expressions quickly in common cases.

The source of a function is generated once from the nodes of an expression. The function takes the
columns, and returns the result. It returns None for anything unusual: a null, another physical
form, a value near an overflow, a zero divisor, or a text that is refused. Then the nodes are
evaluated as usual, which also locates the row that raises. The generated function has no rules of
its own: it calls the same kernels, without masks.

Integers are checked only at the inputs: `_limit` determines the largest limit under which no
intermediate result can overflow. Each column is compared with it once, instead of each operation.

Sums, differences and products of decimals whose types keep all places are computed in one pass.
`price * (1 - discount) * (1 + tax)` over the decimals of TPC-H is never rounded, and exceeds its
type only with more than 38 digits. A small batch has Python decimals: it is computed row by row in
a decimal context that raises an error for more digits. A large batch has Arrow decimals: it is
computed on 64-bit unscaled integers, in blocks that fit the cache, if the bounds of the columns
exclude an overflow of 64 bits. Otherwise, or with nulls, the function returns None.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from decimal import Context, Decimal, Rounded, setcontext
from typing import Any

import numpy as np
import pyarrow as pa

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
    SharedOperandNode,
    StrictNode,
    ValueNode,
)
from nosync_nb.expressions.functions.rules import NullTolerantNode
from nosync_nb.expressions.kernels import numeric, strings
from nosync_nb.expressions.kernels.kernel import Bounds, Check, InvalidError, Kernel, TextKernel
from nosync_nb.expressions.kernels.numeric import is_zero, limits, within
from nosync_nb.expressions.kernels.vectors import canonical
from nosync_nb.expressions.typing_rules import DIGITS_MAX, is_decimal
from nosync_nb.rows import SMALL, Column, buffers, objects
from nosync_nb.rows.arrow import FEW_DECIMALS
from nosync_nb.rows.decimals import load_decimals, store_decimals, unscaled_values
from nosync_nb.rows.types import FIXED, FLOATS, INTEGERS, arrow_type, decimal_parts, is_nested

Fast = Callable[[Sequence[Column], int], Column | None]

_BLOCK = 8192
_MOST = 2**63 - 1
_EXACT = Context(prec=DIGITS_MAX, traps=[Rounded])
_SIGNS = ("+", "-", "*")


def compile_polynomial(node: ValueNode) -> Fast | None:
    """Returns a function that computes sums, differences and products of decimals at once.

    Returns None for any other expression, or if an intermediate result may be rounded.
    """
    if not isinstance(node, StrictNode) or not _is_exact(node):
        return None
    places = sorted(_columns_of(node))
    if not places:
        return None
    by_row, by_block = _row_form(node, places), _block_form(node, places)
    result_type = arrow_type(node.type)

    def run(columns: Sequence[Column], n: int) -> Column | None:
        given = [columns[place] for place in places]
        if all(type(column) is np.ndarray for column in given):
            return exactly.run(by_row, *[column.tolist() for column in given])
        if n <= FEW_DECIMALS or any(_is_hard(column) for column in given):
            return None
        words = [buffers.decimal_words(column) for column in given]
        pairs = np.empty((n, 2), np.int64)
        seen: dict[int, Bounds] = {}
        for start in range(0, n, _BLOCK):
            rows = slice(start, start + _BLOCK)
            read = _block_of(words, rows)
            if read is None:
                return None
            if _extend_bounds(seen, places, read) and not _fits_64_bits(node, seen):
                return None
            part = by_block(*read)
            pairs[rows, 0] = part
            pairs[rows, 1] = part >> 63
        return pa.Array.from_buffers(result_type, n, [None, pa.py_buffer(pairs)])

    return run


def _block_of(words: Sequence[Any], rows: slice) -> list[Any] | None:
    """Returns some rows of the columns as 64-bit integers; None if one needs more bits."""
    read = []
    for word in words:
        low = np.ascontiguousarray(word[rows, 0])
        if ((low >> 63) != word[rows, 1]).any():
            return None
        read.append(low)
    return read


def _extend_bounds(seen: dict[int, Bounds], places: Sequence[int], read: Sequence[Any]) -> bool:
    """Extends the bounds of the columns; returns True if they have grown."""
    wider = False
    for place, values in zip(places, read, strict=True):
        low, high = int(values.min()), int(values.max())
        least, most = seen.get(place, (low + 1, high))
        if low < least or high > most:
            seen[place] = min(low, least), max(high, most)
            wider = True
    return wider


def _is_hard(column: Column) -> bool:
    return type(column) is np.ndarray or bool(column.null_count)


def _is_exact(node: ValueNode, *, root: bool = True) -> bool:
    """Returns True if every intermediate type keeps all digits; the root may drop some."""
    if not is_decimal(node.type):
        return False
    if isinstance(node, ColumnNode):
        return True
    if isinstance(node, LiteralNode):
        return node.value is not None
    if not isinstance(node, StrictNode) or node.name not in _SIGNS or len(node.arguments) != 2:
        return False
    (p1, s1), (p2, s2) = (decimal_parts(argument.type) for argument in node.arguments)
    if node.name == "*":
        parts = p1 + p2 + 1, s1 + s2
    else:
        scale = max(s1, s2)
        parts = max(p1 - s1, p2 - s2) + scale + 1, scale
    if (min(parts[0], DIGITS_MAX), parts[1]) != decimal_parts(node.type):
        return False
    return (root or parts[0] <= DIGITS_MAX) and all(
        _is_exact(argument, root=False) for argument in node.arguments
    )


def _columns_of(node: ValueNode) -> set[int]:
    if isinstance(node, ColumnNode):
        return {node.place}
    return {place for argument in node.arguments for place in _columns_of(argument)}


def _row_form(node: ValueNode, places: Sequence[int]) -> Callable[..., Column | None]:
    """Builds the function over lists of Python decimals, which runs in an exact context."""
    names: dict[str, Any] = {"objects": objects, "ROUNDED": Rounded}

    def source(part: ValueNode) -> str:
        if isinstance(part, ColumnNode):
            return f"x{part.place}"
        if isinstance(part, LiteralNode):
            name = f"k{len(names)}"
            whole = Decimal(int(part.scalar))
            names[name] = _EXACT.scaleb(whole, -decimal_parts(part.type)[1])
            return name
        assert isinstance(part, StrictNode)
        return f"({source(part.arguments[0])} {part.name} {source(part.arguments[1])})"

    code = source(node)
    inner = ", ".join(f"x{place}" for place in places)
    lists = ", ".join(f"c{place}" for place in places)
    rows = f"zip({lists})" if len(places) > 1 else lists
    precision, scale = decimal_parts(node.type)
    names["bound"] = _EXACT.scaleb(Decimal(1), precision - scale)
    names["zero"] = _EXACT.scaleb(Decimal(0), -scale)
    full = "max(made) >= bound or min(made) <= -bound" if precision == DIGITS_MAX else "False"
    # Arithmetic with a null raises TypeError, and more than 38 digits raise ROUNDED. Zeros are
    # replaced by `zero`, because Python's may be negative, and those of a column cannot.
    text = f"""
def by_row({lists}):
    try:
        made = [{code} for {inner} in {rows}]
    except (TypeError, ROUNDED):
        return None
    if {full}:
        return None
    if not all(made):
        made = [value or zero for value in made]
    return objects(made)
"""
    exec(text, names)
    function: Callable[..., Column | None] = names["by_row"]
    return function


def _raise_powers(node: StrictNode) -> list[int]:
    """Returns the powers of ten that scale the arguments of a sum to the same number of places."""
    scales = [decimal_parts(argument.type)[1] for argument in node.arguments]
    most = max(scales)
    return [1 if node.name == "*" else 10 ** (most - scale) for scale in scales]


def _block_form(node: ValueNode, places: Sequence[int]) -> Callable[..., Any]:
    """Builds the function over arrays of 64-bit unscaled integers."""
    names: dict[str, Any] = {}

    def source(part: ValueNode) -> str:
        if isinstance(part, ColumnNode):
            return f"c{part.place}"
        if isinstance(part, LiteralNode):
            return f"({int(part.scalar)})"
        assert isinstance(part, StrictNode)
        sides = [
            source(argument) if power == 1 else f"({source(argument)} * {power})"
            for argument, power in zip(part.arguments, _raise_powers(part), strict=True)
        ]
        return f"({sides[0]} {part.name} {sides[1]})"

    exec(
        f"def by_block({', '.join(f'c{place}' for place in places)}): return {source(node)}", names
    )
    function: Callable[..., Any] = names["by_block"]
    return function


def _fits_64_bits(node: ValueNode, read: dict[int, Bounds]) -> bool:
    """Returns True if all intermediate values fit in 64 bits, given the bounds of the columns."""
    try:
        _bounds_of(node, read)
    except OverflowError:
        return False
    return True


def _bounds_of(node: ValueNode, read: dict[int, Bounds]) -> Bounds:
    if isinstance(node, ColumnNode):
        return _within_64_bits(*read[node.place])
    if isinstance(node, LiteralNode):
        return _within_64_bits(int(node.scalar), int(node.scalar))
    assert isinstance(node, StrictNode)
    (a0, a1), (b0, b1) = (
        _within_64_bits(low * power, high * power)
        for (low, high), power in zip(
            [_bounds_of(argument, read) for argument in node.arguments],
            _raise_powers(node),
            strict=True,
        )
    )
    if node.name == "+":
        return _within_64_bits(a0 + b0, a1 + b1)
    if node.name == "-":
        return _within_64_bits(a0 - b1, a1 - b0)
    corners = [x * y for x in (a0, a1) for y in (b0, b1)]
    return _within_64_bits(min(corners), max(corners))


def _within_64_bits(low: int, high: int) -> Bounds:
    if low < -_MOST or high > _MOST:
        raise OverflowError
    return low, high


class _Exactly(threading.local):
    """Runs functions in a decimal context that raises an error instead of rounding to 38 digits.

    `decimal.localcontext` costs 1 us at each entry. Running in a `contextvars` context in which the
    decimal context is already set costs 0.1 us.
    """

    def __init__(self) -> None:
        self.run: Callable[..., Any] = contextvars.Context().run
        self.run(setcontext, _EXACT.copy())


exactly = _Exactly()


class _NotFastError(Exception):
    """The expression has no fast form."""


class _ExceedsError(Exception):
    """An intermediate result may exceed the range of its type."""


def compile_fast(node: ValueNode) -> Fast | None:
    """Returns the generated function of an expression; None if it has no fast form."""
    if isinstance(node, SharedOperandNode):
        return compile_fast(node.inner)  # it evaluates every part on every row anyway
    polynomial = compile_polynomial(node)
    if polynomial is not None:
        return polynomial
    try:
        return _Code(_limit(node)).function(node)
    except _NotFastError:
        return None


def is_loud(node: ValueNode) -> bool:
    """Returns True if numpy may warn about floats during the evaluation of the expression."""
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
    """Generates the source of a fast function; fixed types are arrays, and texts are lists."""

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
        """Compiles the function of the root node."""
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
        """Returns the name by which the source refers to a Python object."""
        name = f"k{len(self.names)}"
        self.names[name] = value
        return name

    def keep(self, source: str) -> str:
        """Assigns a source expression to a variable; returns the name of the variable."""
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {source}")
        return name

    def value(self, node: ValueNode) -> str:
        """Returns a source expression for the values of a node."""
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
        """Returns True if a check depends on the values, so that it must run for each batch."""
        if kernel.bounds is not None and self.limit is not None:
            return False
        last = node.arguments[-1]
        return not (check.bad is is_zero and isinstance(last, LiteralNode) and last.value)

    def text(self, node: StrictNode, kernel: TextKernel) -> str:
        return self.rowwise(node, kernel.row, _INLINE.get(id(kernel)), nullable=kernel.nullable)

    def rowwise(
        self, node: ValueNode, row: Any, template: str | None = None, *, nullable: bool
    ) -> str:
        """Returns the source of a computation row by row, for small batches without nulls."""
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
            if arguments[0].raises:  # its values are not needed, but its evaluation may raise
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
            where = self.name(np.where if node.type in FIXED else numeric.where)
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
    """Returns True if the fast value of a node has one entry per row, and is not a scalar."""
    if isinstance(node, CoalesceNode):
        return _spans(node.arguments[0])
    if isinstance(node, ColumnNode | IsNullNode):
        return True
    return any(_spans(argument) for argument in node.arguments)


_OBJECT = np.dtype(object)
_LIMITS = (63, 62, 61, 60, 58, 56, 53, 48, 40, 31, 30, 29, 28, 24, 20, 15, 14, 12, 10, 7, 6, 5)


def _limit(node: ValueNode) -> int | None:
    """Returns the largest limit of the inputs that excludes overflows; None if no limit does."""
    for bits in _LIMITS:
        limit: int = 2**bits - 1
        try:
            _bounds(node, limit)
        except _ExceedsError:
            continue
        return limit
    return None


def _bounds(node: ValueNode, limit: int) -> Bounds:
    """Returns the bounds of an integer node if no input is beyond `limit` in absolute value.

    Raises:
        _ExceedsError: if the bounds exceed the type of the node.
    """
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
