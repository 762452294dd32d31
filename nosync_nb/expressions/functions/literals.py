"""Numbers and types as they are written in the text of an expression."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from sqlglot import exp

from nosync_nb.expressions.evaluation.nodes import LiteralNode
from nosync_nb.expressions.implicit_casts import NotProvedError
from nosync_nb.expressions.typing_rules import DIGITS_MAX
from nosync_nb.rows.ddl import INTERVALS

CAST_TYPES = {
    "BOOLEAN": "boolean",
    "TINYINT": "tinyint",
    "SMALLINT": "smallint",
    "INT": "int",
    "BIGINT": "bigint",
    "FLOAT": "float",
    "DOUBLE": "double",
    "TEXT": "string",
    "BINARY": "binary",
    "DATE": "date",
    "TIMESTAMPTZ": "timestamp",
    "TIMESTAMPLTZ": "timestamp",
    "TIMESTAMPNTZ": "timestamp_ntz",
}
"""Types of casts by sqlglot's names."""


def cast_type(tree: Any) -> str:
    """Returns the type that a cast names.

    Raises:
        NotProvedError: if the type is unknown here.
    """
    written: str = tree.sql("spark").lower()
    if tree.this.name == "DECIMAL":
        parts = [int(part.name) for part in tree.expressions]
        precision, scale = (*parts, *(10, 0)[len(parts) :])
        if 0 <= scale <= precision <= DIGITS_MAX:
            return f"decimal({precision},{scale})"
    if isinstance(tree.this, exp.Interval) and written in INTERVALS:
        return written
    type_ = CAST_TYPES.get(tree.this.name)
    if type_ is None:
        raise NotProvedError(f"cast to {written}")
    return type_


def number(text: str) -> LiteralNode:
    """Returns the literal as Spark reads it: int, bigint, decimal, or double if it has an exponent.

    Raises:
        NotProvedError: if it is out of their range, or has an exponent without digits.
    """
    if "e" in text.lower():
        try:
            value = float(text)
        except ValueError:
            raise NotProvedError(f"{text}, which is not a number") from None
        if abs(value) == float("inf"):
            raise NotProvedError("a number beyond double")
        return LiteralNode(value, "double")
    if "." not in text:
        whole = int(text)
        if -(2**31) <= whole < 2**31:
            return LiteralNode(whole, "int", written=True)
        if -(2**63) <= whole < 2**63:
            return LiteralNode(whole, "bigint", written=True)
    exact = Decimal(text)
    _, digits, exponent = exact.as_tuple()
    scale = -exponent if isinstance(exponent, int) else 0
    if max(len(digits), scale) > DIGITS_MAX:
        raise NotProvedError("a decimal of more than 38 digits")
    return LiteralNode(exact, f"decimal({max(len(digits), scale)},{scale})")
