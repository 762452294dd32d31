"""Casts that Spark applies implicitly to the arguments of functions and operators."""

from __future__ import annotations

import re
from contextlib import suppress
from decimal import Decimal
from typing import Any

from nosync_nb.expressions.evaluation.nested_nodes import RowwiseNode
from nosync_nb.expressions.evaluation.nodes import ColumnNode, LiteralNode, StrictNode, ValueNode
from nosync_nb.expressions.kernels import casts, datetimes, numeric
from nosync_nb.expressions.kernels.kernel import (
    InvalidError,
    NotProvedError,
    TextKernel,
    null_on_error,
)
from nosync_nb.expressions.kernels.numeric import limits
from nosync_nb.expressions.typing_rules import (
    NUMBERS,
    TIMES,
    VOID,
    common_of,
    is_decimal,
    is_known,
)
from nosync_nb.rows.ddl import INTERVALS
from nosync_nb.rows.types import FLOATS, INTEGERS, decimal_parts, is_nested

_EXACT = {"float": 2**24, "double": 2**53}
_LONG_PLACES = 18
"""The greatest number of places of a computed decimal that is cast to an integer here.

Spark stores decimals with more places in another form, whose computed zeros are not cast here."""

_IMPLICIT: dict[str, tuple[str, ...]] = {
    "string": (*NUMBERS, *INTERVALS, *TIMES, "boolean"),
    "date": ("string", "timestamp", "timestamp_ntz"),
    "timestamp": ("date", "string", "timestamp_ntz"),
    "double": (*NUMBERS, "string"),
    "bigint": (*NUMBERS, "string"),
    "int": (*NUMBERS, "string"),
    "boolean": ("string",),
}
"""The types that Spark casts implicitly to a parameter's type. It casts decimals to every number.

Spark also casts bytes to text, even if they are not UTF-8; such casts are refused here.
"""


def implicit(node: ValueNode, wanted: str, *, utc: bool) -> ValueNode:
    """Returns an argument cast to the type that a function requires, as in Spark's ANSI mode.

    Raises:
        NotProvedError: if Spark does not cast it, or if the results are not proved equal.
    """
    fits = node.type in (wanted, VOID) or node.type in _IMPLICIT.get(wanted, ())
    if is_decimal(node.type):
        fits = wanted in (*INTEGERS, *FLOATS, "string") or is_decimal(wanted)
    elif is_decimal(wanted):
        fits = node.type in (*NUMBERS, "string", VOID)
    if not fits:
        raise NotProvedError(f"a {node.type} as {wanted}")
    return cast(node, wanted, utc=utc)


def only(node: ValueNode, *types: str, name: str) -> ValueNode:
    """Returns an argument of a function for which Spark casts no other types.

    Raises:
        NotProvedError: if the argument has another type.
    """
    if node.type not in (*types, VOID):
        raise NotProvedError(f"{name} of a {node.type}")
    return node


def cast(node: ValueNode, target: str, *, utc: bool) -> ValueNode:
    """Returns a node cast to a type; most literals are cast immediately.

    Raises:
        NotProvedError: if only Spark can cast it.
    """
    source = node.type
    if source == target:
        return node
    if not is_known(target) or target == VOID:
        raise NotProvedError(f"cast to {target}")
    if isinstance(node, LiteralNode):
        literal = _literal(node, target, utc=utc)
        if literal is not None:
            return literal
    if "timestamp" in (source, target) and not utc and not {source, target} & set(NUMBERS):
        raise NotProvedError("timestamps in a time zone other than UTC")
    if is_nested(source) and target == "string":
        return _printed(node, utc=utc)
    computed = is_decimal(source) and not isinstance(node, ColumnNode)
    if computed and target in INTEGERS and decimal_parts(source)[1] > _LONG_PLACES:
        raise NotProvedError(f"cast of a computed {source} to {target}")
    kernel = casts.cast(source, target) if is_known(source) else None
    if kernel is None:
        raise NotProvedError(f"cast of {source} to {target}")
    return StrictNode("cast", target, kernel, (node,))


def _printed(node: ValueNode, *, utc: bool) -> ValueNode:
    """Returns the cast of a nested value to text."""
    write = casts.writer(node.type)
    if write is None:
        raise NotProvedError(f"cast of {node.type} to string")
    if not utc and "timestamp" in node.type.replace("timestamp_ntz", ""):
        raise NotProvedError("timestamps in a time zone other than UTC")
    return RowwiseNode("cast", "string", write, (node,))


def _literal(node: LiteralNode, target: str, *, utc: bool) -> LiteralNode | None:
    """Returns the cast literal; None if the cast must be evaluated on each row."""
    value = node.value
    if value is None:
        return LiteralNode(None, target)
    if node.type in INTEGERS and target in INTEGERS:
        least, greatest = limits(target)
        return LiteralNode(value, target) if least <= value <= greatest else None
    if node.type in INTEGERS and target in FLOATS and abs(value) <= _EXACT[target]:
        return LiteralNode(float(value), target)
    if isinstance(value, Decimal):
        return _decimal_literal(value, target)
    if isinstance(value, str):
        return _text_literal(value, target, utc=utc)
    return None


def _decimal_literal(value: Decimal, target: str) -> LiteralNode | None:
    if target == "double":
        return LiteralNode(float(value), target)
    if target == "float":
        _, digits, exponent = value.as_tuple()
        places = -exponent if isinstance(exponent, int) else 0
        whole = int("".join(map(str, digits))) * (-1 if value < 0 else 1)
        if places >= 0:
            return LiteralNode(float(numeric.singles(whole, places)), target)
    return None


_SPECIAL = frozenset(("now", "today", "tomorrow", "yesterday"))
_DAY_WORD = re.compile(r"\s*(epoch|now|today|tomorrow|yesterday)\b", re.IGNORECASE)


def _text_literal(text: str, target: str, *, utc: bool) -> LiteralNode | None:
    """Returns the cast literal; None if it is invalid, which is an error on each evaluated row."""
    if target in ("timestamp", "timestamp_ntz"):
        if not any(map(str.isdigit, text)) and _DAY_WORD.match(text) is None:
            return None
        return LiteralNode(_moment(text, target, utc=utc), target)
    if is_decimal(target):
        return None
    kernel = casts.cast("string", target)
    if not isinstance(kernel, TextKernel):
        raise NotProvedError(f"cast of string to {target}")
    if target == "date" and text.strip().lower() == "epoch":
        return LiteralNode(0, target)
    if target == "date" and text.strip().lower() in _SPECIAL:
        raise NotProvedError(f"the {target} {text!r}")
    try:
        return LiteralNode(kernel.row(text), target)
    except InvalidError:
        return None


def _moment(text: str, target: str, *, utc: bool) -> int:
    """Returns the timestamp of a literal; invalid text and words like `now` are left to Spark."""
    plain = datetimes.parse_timestamp(text.strip())
    if plain is not None and (not plain[1] if target == "timestamp_ntz" else utc or plain[1]):
        return plain[0]
    if plain is None and target == "timestamp" and utc:
        with suppress(InvalidError):
            micros: int = datetimes.timestamp_parser(target).row(text)
            return micros
    raise NotProvedError(f"the {target} {text!r}")


def try_cast(node: ValueNode, target: str, *, utc: bool) -> ValueNode:
    """Returns a node cast to a type, with null where the cast fails.

    Raises:
        NotProvedError: if only Spark can cast it.
    """
    text = node.value if isinstance(node, LiteralNode) else None
    if target == "timestamp" and isinstance(text, str) and datetimes.is_dayless(text):
        return LiteralNode(None, target)
    result = cast(node, target, utc=utc)
    return tried_call(result) if result is not node else result


def tried_call(node: ValueNode) -> ValueNode:
    """Returns a call that is null where it would raise; its arguments still raise.

    Raises:
        NotProvedError: if the node may raise and is not a call of a kernel.
    """
    if isinstance(node, StrictNode):
        return StrictNode(node.name, node.type, null_on_error(node.kernel), node.arguments)
    if node.raises:
        raise NotProvedError("the type of this call")
    return node


def to_common(nodes: list[ValueNode], *, utc: bool) -> list[ValueNode]:
    """Returns the nodes cast to their common type.

    Raises:
        NotProvedError: if they have no common type that is supported here.
    """
    type_ = common_of(node.type for node in nodes)
    if type_ is None or not is_known(type_) or type_ == VOID:
        raise NotProvedError(f"{' with '.join(node.type for node in nodes)}")
    return [cast(node, type_, utc=utc) for node in nodes]


def literal_value(node: ValueNode, what: str) -> Any:
    """Returns the value of an argument that must be a literal other than null.

    Raises:
        NotProvedError: if it is not.
    """
    if not isinstance(node, LiteralNode) or node.value is None:
        raise NotProvedError(f"{what} that is not a literal")
    return node.value
