"""Fits the values of a statement to the columns of an input, by Spark's rules of store assignment.

As in Spark's ANSI policy, a value is converted if its type cannot be mistaken for another one:
numbers to numbers, dates to timestamps and back, everything to strings. A number that the column
cannot hold is an error, also if the session's expressions are not ANSI.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nosync_nb import rows
from nosync_nb.collections.definition import Definition
from nosync_nb.collections.row_expressions import select_definition
from nosync_nb.collections.session_protocol import SparkTypeResolver
from nosync_nb.errors import text_of
from nosync_nb.rows import Field
from nosync_nb.rows.ddl import quoted
from nosync_nb.rows.types import FLOATS, INTEGERS, is_nested, nested_parts
from nosync_nb.trace.batch import Batch

_NUMBERS = frozenset((*INTEGERS, *FLOATS))
_TIMES = ("date", "timestamp", "timestamp_ntz")


class Misfit(NamedTuple):
    """A value that a column cannot have.

    Attributes:
        column: the position of the column in the input.
        reason: the message, with Spark's error class.
    """

    column: int
    reason: str
    hint: str


class StoreAssignmentError(Exception):
    """A value does not fit; `misfit` says which."""

    def __init__(self, misfit: Misfit) -> None:
        super().__init__(misfit.reason)
        self.misfit = misfit


class Fitted(NamedTuple):
    """A query, with columns that have the types of an input's columns.

    Attributes:
        definition: the query, whose own columns come first.
        columns: for each column of the input, its position in the query.
        fields: the columns of the input.
        sources: for each column that was converted, the position of its own column.
        nothing: the positions of columns that must have nulls alone.
    """

    definition: Definition
    columns: tuple[int, ...]
    fields: tuple[Field, ...]
    sources: dict[int, int]
    nothing: dict[int, int]

    def check(self, batch: Batch) -> None:
        """Raises StoreAssignmentError for the first value that does not fit its column."""
        for target, source in self.nothing.items():
            mask = rows.null_mask(batch.columns[source])
            if mask is None or not mask.all():
                field = self.fields[target]
                raise StoreAssignmentError(
                    _unsafe(target, field, self.definition.schema.types[source])
                )
        for target, source in self.sources.items():
            after = rows.null_mask(batch.columns[self.columns[target]])
            if after is None:
                continue
            before = rows.null_mask(batch.columns[source])
            lost = after if before is None else after & ~before
            if lost.any():
                raise StoreAssignmentError(
                    self._overflow(target, source, batch, int(np.argmax(lost)))
                )

    def _overflow(self, target: int, source: int, batch: Batch, row: int) -> Misfit:
        kind = self.definition.schema.types[source]
        value = rows.to_pylist(rows.slice_(batch.columns[source], row, row + 1), kind)[0]
        return overflow(target, self.fields[target], kind, value)


def overflow(column: int, field: Field, kind: str, value: Any) -> Misfit:
    """Returns the misfit of a value that a column cannot hold."""
    return Misfit(
        column,
        f"[CAST_OVERFLOW_IN_TABLE_INSERT] value {text_of(value, str)} of type {kind.upper()}"
        f" does not fit column `{field.name}` of type {field.type.upper()}",
        "change the value, or declare another input whose column has a wider type",
    )


def _unsafe(column: int, field: Field, kind: str) -> Misfit:
    return Misfit(
        column,
        "[INCOMPATIBLE_DATA_FOR_TABLE.CANNOT_SAFELY_CAST] cannot safely cast a value of type"
        f" {kind.upper()} to column `{field.name}` of type {field.type.upper()}",
        f"convert it: cast(... AS {field.type})",
    )


def can_store(source: str, target: str) -> bool:
    """Returns True if Spark's ANSI policy stores values of a type in a column of another type."""
    if source == target:
        return True
    if is_nested(source) or is_nested(target):
        if source.partition("<")[0] != target.partition("<")[0]:
            return False
        ours, theirs = nested_parts(source), nested_parts(target)
        return len(ours) == len(theirs) and all(
            can_store(a, b) for (_, a), (_, b) in zip(ours, theirs, strict=True)
        )
    if target == "string":
        return True
    if _is_number(source) and _is_number(target):
        return True
    return source in _TIMES and target in _TIMES


def kind_of_type(kind: str) -> str:
    """Returns the kind of a type; types of different kinds have no common one in VALUES."""
    if _is_number(kind):
        return "number"
    return "time" if kind in _TIMES else kind.partition("<")[0]


def _is_number(kind: str) -> bool:
    return kind in _NUMBERS or kind.startswith("decimal")


def fitted(
    definition: Definition,
    sources: Sequence[int | None],
    fields: Sequence[Field],
    types: SparkTypeResolver,
) -> Fitted:
    """Returns a query with its columns converted to those of an input.

    Args:
        definition: a query.
        sources: for each column of the input, the position of its value; None: null.

    Raises:
        StoreAssignmentError: a type cannot be stored in its column.
    """
    texts = [quoted(name) for name in definition.schema.names]
    outputs = list(texts)
    columns: list[int] = []
    converted: dict[int, int] = {}
    nothing: dict[int, int] = {}
    for target, (source, field) in enumerate(zip(sources, fields, strict=True)):
        kind = None if source is None else definition.schema.types[source]
        if source is not None and kind == field.type:
            columns.append(source)
            continue
        text = f"cast(NULL AS {field.type})"
        if source is not None and kind is not None:
            if can_store(kind, field.type):
                text = f"try_cast({texts[source]} AS {field.type})"
                converted[target] = source
            elif kind == "string":  # NULL in a query has this type
                nothing[target] = source
            else:
                raise StoreAssignmentError(_unsafe(target, field, kind))
        columns.append(len(outputs))
        outputs.append(f"{text} AS {quoted(_unused(target, definition))}")
    query = definition
    if len(outputs) > len(texts):
        query = select_definition(definition, outputs, types)
    return Fitted(query, tuple(columns), tuple(fields), converted, nothing)


def _unused(target: int, definition: Definition) -> str:
    """Returns a name for the converted value of a column."""
    name = f"fitted_{target}"
    while name in definition.schema.names:
        name += "_"
    return name
