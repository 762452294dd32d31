"""Sums, differences and products of decimals whose types keep all places, computed in one pass.

`price * (1 - discount) * (1 + tax)` of TPC-H's decimals is never rounded, and has too many digits
for its type only if it has more than 38. Few rows, which are Python's decimals, are computed row by
row in a context that refuses those. Many rows, which are Arrow's, are computed as 64-bit whole
numbers of the last place, in blocks that stay in the cache, if the bounds of the columns exclude an
overflow of 64 bits. Otherwise, and with nulls, the function returns None, and the nodes are
evaluated as usual.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from decimal import Context, Decimal, Rounded, setcontext
from typing import Any

import numpy as np
import pyarrow as pa

from nosync_nb.expressions.evaluation.nodes import ColumnNode, LiteralNode, StrictNode, ValueNode
from nosync_nb.expressions.kernels.kernel import Bounds
from nosync_nb.expressions.typing_rules import DIGITS_MAX, is_decimal
from nosync_nb.rows import Column, buffers, objects
from nosync_nb.rows.arrow import FEW_DECIMALS
from nosync_nb.rows.types import arrow_type, decimal_parts

Fast = Callable[[Sequence[Column], int], Column | None]

_BLOCK = 8192
_MOST = 2**63 - 1
_EXACT = Context(prec=DIGITS_MAX, traps=[Rounded])
_SIGNS = ("+", "-", "*")


def compile_polynomial(node: ValueNode) -> Fast | None:
    """Returns the function of a root node over columns of some rows, None for any other node."""
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
        words = [buffers.words(column) for column in given]
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
    """Some rows of columns as 64-bit numbers, None if one has more bits."""
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
    """Returns True if every intermediate type has all places and digits; the root may lack some."""
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
    """The function of lists of Python decimals, for an exact context."""
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
    # A null makes the arithmetic a TypeError, more than 38 digits are ROUNDED; a zero may have a
    # sign, which columns do not know.
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
    """The powers of ten that give the arguments the places of a sum."""
    scales = [decimal_parts(argument.type)[1] for argument in node.arguments]
    most = max(scales)
    return [1 if node.name == "*" else 10 ** (most - scale) for scale in scales]


def _block_form(node: ValueNode, places: Sequence[int]) -> Callable[..., Any]:
    """The function of arrays of 64-bit whole numbers."""
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
    """Returns True if no intermediate value leaves 64 bits, given the bounds of the columns."""
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
    """Runs functions in a decimal context that refuses to round to 38 digits.

    `decimal.localcontext` costs 1 us at each entry; a context that has it set once costs 0.1.
    """

    def __init__(self) -> None:
        self.run: Callable[..., Any] = contextvars.Context().run
        self.run(setcontext, _EXACT.copy())


exactly = _Exactly()
