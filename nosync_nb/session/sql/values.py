"""Reads the rows of `INSERT INTO t VALUES ...` that are literals, without a query.

A load of many rows as a statement has literals alone. A query over them would have an operator
for each row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from nosync_nb.collections.sql.grammar import TextSpan
from nosync_nb.rows import Field
from nosync_nb.rows.types import decimal_parts
from nosync_nb.session.sql.assignment import Misfit, overflow

_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+)")
_STRING = re.compile(r"'[^'\\]*'|\"[^\"\\]*\"")
_RANGES = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}
NULLS = ("NULL", "DEFAULT")
"""The words for a null; the columns of inputs have no other default."""

_WORDS = {**dict.fromkeys(NULLS), "TRUE": True, "FALSE": False}


class _Other(Exception):  # noqa: N818 - a signal, not an error
    """A value needs a query."""


class LiteralRows(NamedTuple):
    """The rows of VALUES.

    Attributes:
        values: the rows that are literals, as Python values of the columns' types.
        others: the rows that need a query.
    """

    values: list[tuple[Any, ...]]
    others: list[tuple[TextSpan, ...]]


def rows_of_literals(
    text: str,
    rows: Sequence[tuple[TextSpan, ...]],
    sources: Sequence[int | None],
    fields: Sequence[Field],
) -> LiteralRows | tuple[TextSpan, Misfit]:
    """Returns the rows of VALUES, or the first literal that its column cannot hold.

    Args:
        sources: for each column, the position of its value in a row; None: null.
    """
    targets = [
        (at, source, field) for at, (source, field) in enumerate(zip(sources, fields, strict=True))
    ]
    read: list[tuple[Any, ...]] = []
    others: list[tuple[TextSpan, ...]] = []
    for row in rows:
        values: list[Any] = []
        try:
            for at, source, field in targets:
                value = None
                if source is not None:
                    span = row[source]
                    value = _value(text[span.start : span.stop], at, field)
                    if isinstance(value, Misfit):
                        return span, value
                values.append(value)
        except _Other:
            others.append(row)
        else:
            read.append(tuple(values))
    return LiteralRows(read, others)


def _value(source: str, at: int, field: Field) -> Any:
    """Returns the value of a literal for a column."""
    word = source.upper()
    if word in _WORDS:
        if word not in NULLS and field.type != "boolean":
            raise _Other
        return _WORDS[word]
    if _STRING.fullmatch(source):
        if field.type != "string":
            raise _Other
        return source[1:-1]
    if _INTEGER.fullmatch(source):
        return _integer(int(source), at, field)
    if _DECIMAL.fullmatch(source):
        return _decimal(Decimal(source), field)
    raise _Other


def _integer(value: int, at: int, field: Field) -> Any:
    literal = "int" if -(2**31) <= value < 2**31 else "bigint"
    bits = _RANGES.get(field.type)
    if not -(2**63) <= value < 2**63:
        raise _Other
    if bits is not None:
        return value if -(1 << bits) <= value < 1 << bits else overflow(at, field, literal, value)
    if field.type == "double" or (field.type == "float" and abs(value) <= 1 << 24):
        return float(value)
    if field.type.startswith("decimal"):
        precision, scale = decimal_parts(field.type)
        fits = abs(value) < 10 ** (precision - scale)
        return Decimal(value) if fits else overflow(at, field, literal, value)
    raise _Other


def _decimal(value: Decimal, field: Field) -> Any:
    if field.type == "double":
        return float(value)
    if not field.type.startswith("decimal"):
        raise _Other
    precision, scale = decimal_parts(field.type)
    exponent = value.as_tuple().exponent
    if (
        not isinstance(exponent, int)
        or -exponent > scale
        or abs(value) >= 10 ** (precision - scale)
    ):
        raise _Other
    return value
