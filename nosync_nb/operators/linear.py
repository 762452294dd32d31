"""Linear operators: row by row, diffs carried over. Chains of them are fused into one.

A function must be deterministic: the retraction of a row must yield exactly what its insertion
yielded. Equal rows that `map` produces are consolidated where the collection is arranged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nosync_nb import rows
from nosync_nb.errors import ExpressionError, one_line
from nosync_nb.expressions import Expression
from nosync_nb.operators import user_functions
from nosync_nb.operators.base import PLAIN, Operator, RowPiece, Step
from nosync_nb.rows import Column, Schema, buffers
from nosync_nb.trace.batch import Layout, Updates, concat_updates

SHOWN_MAX = 40
"""The maximum length of an expression in a line about its placement."""


def _spark_parts(expressions: Sequence[Expression]) -> str:
    """The parts of some expressions that need Spark, as text."""
    first, *more = (e.sql for e in expressions if not e.local)
    text = one_line(first)
    text = text if len(text) <= SHOWN_MAX else f"{text[: SHOWN_MAX - 3]}..."
    return f"{text} and {len(more)} more" if more else text


def evaluate(
    expressions: Sequence[Expression], schema: Schema, updates: Updates, step: Step
) -> list[Column]:
    """Returns the values of expressions over updates; Spark evaluates those without a local form.

    Raises:
        ExpressionError: if an expression fails on a value; names the stage.
    """
    n = len(updates.diff)
    try:
        if all(e.local for e in expressions):
            return [e.evaluate(updates.columns, n) for e in expressions]
        if step.evaluate is None:
            unknown = ", ".join(repr(e.sql) for e in expressions if not e.local)
            raise ExpressionError(
                f"only Spark can evaluate {unknown}, and there is no Spark session",
                hint="open with spark=..., or install the extra nosync[spark]",
            )
        values = step.evaluate(expressions, schema, updates.columns, n)
        step.ran_at(f"in process; by Spark: {_spark_parts(expressions)}")
        return values
    except ExpressionError as error:
        if step.stage and f"'{step.stage}'" not in str(error):
            raise ExpressionError(f"stage '{step.stage}': {error}", hint=error.hint) from error
        raise


class Filter(RowPiece):
    """Keeps the rows for which a predicate is true (not null, not false)."""

    name = "filter"

    def __init__(self, predicate: Expression, schema: Schema) -> None:
        self.predicate = predicate
        self.expressions = (predicate,)
        self.schema = schema
        self.local = predicate.local
        self.stable = predicate.deterministic

    def apply(self, updates: Updates, step: Step) -> Updates:
        (value,) = evaluate([self.predicate], self.schema, updates, step)
        return rows_where(updates, predicate_mask(value))


class Select(RowPiece):
    """Computes the output columns; an integer stands for an unchanged input column."""

    name = "select"

    def __init__(self, outputs: Sequence[int | Expression], schema: Schema) -> None:
        self.outputs: tuple[int | Expression, ...] = tuple(outputs)
        self.schema = schema
        self.expressions = [o for o in outputs if not isinstance(o, int)]
        self.local = all(e.local for e in self.expressions)
        self.stable = all(e.deterministic for e in self.expressions)

    def apply(self, updates: Updates, step: Step) -> Updates:
        columns = updates.columns
        if not self.expressions:
            return Updates([columns[o] for o in self.outputs], updates.diff)  # type: ignore[index]
        values = iter(evaluate(self.expressions, self.schema, updates, step))
        chosen = [columns[o] if isinstance(o, int) else next(values) for o in self.outputs]
        return Updates(chosen, updates.diff)

    def types_after(self, types: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(types[o] if isinstance(o, int) else o.type for o in self.outputs)


class Widen(RowPiece):
    """Converts columns to wider types, so that keys of two inputs have one type."""

    name = "widen"

    def __init__(self, old: Sequence[str], new: Sequence[str]) -> None:
        self.old = tuple(old)
        self.new = tuple(new)

    def apply(self, updates: Updates, step: Step) -> Updates:
        columns = [
            c if a == b else rows.widen(c, a, b)
            for c, a, b in zip(updates.columns, self.old, self.new, strict=True)
        ]
        return Updates(columns, updates.diff)

    def types_after(self, types: tuple[str, ...]) -> tuple[str, ...]:
        return self.new


class Pad(RowPiece):
    """Appends columns of nulls, as outer joins do."""

    name = "pad"

    def __init__(self, types: Sequence[str]) -> None:
        self.types = tuple(types)

    def apply(self, updates: Updates, step: Step) -> Updates:
        n = len(updates.diff)
        return Updates(
            [*updates.columns, *(rows.full_null(t, n) for t in self.types)], updates.diff
        )

    def types_after(self, types: tuple[str, ...]) -> tuple[str, ...]:
        return (*types, *self.types)


class Negate(RowPiece):
    """Negates every diff."""

    name = "negate"

    def apply(self, updates: Updates, step: Step) -> Updates:
        return updates.negated()


class Map(RowPiece):
    """Calls a Python function on each row; it returns one tuple."""

    name = "map"
    asks = True

    def __init__(self, function: Callable[[Any], Any], schema: Schema, output: Schema) -> None:
        self.function = function
        self.schema = schema
        self.output = output

    def apply(self, updates: Updates, step: Step) -> Updates:
        given = user_functions.named_tuples(updates.columns, self.schema, len(updates.diff))
        results = [
            user_functions.call_user_function(self.function, step.stage, row, row) for row in given
        ]
        columns = user_functions.result_columns(results, self.output, step.stage, "map")
        return Updates(columns, updates.diff)

    def types_after(self, types: tuple[str, ...]) -> tuple[str, ...]:
        return self.output.types


class FlatMap(RowPiece):
    """Calls a Python function on each row; it yields any number of tuples."""

    name = "flat_map"
    asks = True

    def __init__(self, function: Callable[[Any], Any], schema: Schema, output: Schema) -> None:
        self.function = function
        self.schema = schema
        self.output = output

    def apply(self, updates: Updates, step: Step) -> Updates:
        given = user_functions.named_tuples(updates.columns, self.schema, len(updates.diff))
        results: list[Any] = []
        counts = np.zeros(len(given), np.int64)
        for i, row in enumerate(given):
            value = user_functions.call_user_function(self.function, step.stage, row, row)
            produced = user_functions.checked_rows(value, self.function, step.stage, row)
            counts[i] = len(produced)
            results.extend(produced)
        columns = user_functions.result_columns(results, self.output, step.stage, "flat_map")
        return Updates(columns, updates.diff.repeat(counts))

    def types_after(self, types: tuple[str, ...]) -> tuple[str, ...]:
        return self.output.types


class FilterFunction(RowPiece):
    """Keeps the rows for which a Python function returns a true value."""

    name = "filter"
    asks = True

    def __init__(self, function: Callable[[Any], Any], schema: Schema) -> None:
        self.function = function
        self.schema = schema

    def apply(self, updates: Updates, step: Step) -> Updates:
        given = user_functions.named_tuples(updates.columns, self.schema, len(updates.diff))
        mask = [user_functions.truth(self.function, step.stage, row) for row in given]
        return rows_where(updates, np.array(mask, bool))


class Linear(Operator):
    """A fused chain of row-wise pieces over one input."""

    additive = True
    in_loop = PLAIN

    def __init__(self, pieces: Sequence[RowPiece], types: Sequence[str]) -> None:
        self.pieces = tuple(pieces)
        self.types = tuple(types)
        self.name = "+".join(p.name for p in pieces)
        self.local = all(p.local for p in pieces)
        self.stable = all(p.stable for p in pieces)
        self.asks = any(p.asks for p in pieces)

    def step(self, step: Step) -> Updates | None:
        delta = step.deltas[0]
        if delta is None:
            return None
        updates = Updates(delta.columns, delta.diff)
        step.add_touched(len(updates.diff))
        for piece in self.pieces:
            if not len(updates.diff):
                return None
            updates = piece.apply(updates, step)
        return updates


class Concat(Operator):
    """The sum of any number of inputs with one schema."""

    name = "concat"
    in_loop = PLAIN

    def __init__(self, types: Sequence[str], inputs: int) -> None:
        self.types = tuple(types)
        self.layouts = (None,) * inputs

    def step(self, step: Step) -> Updates | None:
        parts = [Updates(d.columns, d.diff) for d in step.deltas if d is not None]
        step.add_touched(sum(len(p.diff) for p in parts))
        return concat_updates(parts, self.types) if parts else None


class Consolidate(Operator):
    """The same collection, arranged, so that rows that cancel are dropped."""

    name = "consolidate"
    in_loop = PLAIN

    def __init__(self, types: Sequence[str]) -> None:
        self.types = tuple(types)
        self.layouts = (Layout(tuple(types)),)

    def step(self, step: Step) -> Updates | None:
        delta = step.deltas[0]
        return None if delta is None else Updates(delta.columns, delta.diff)


def predicate_mask(value: Column) -> npt.NDArray[np.bool_]:
    """Returns a predicate's column as a mask: null counts as false."""
    if isinstance(value, pa.Array):
        return buffers.bools(value)
    if value.dtype == object:
        return np.array([v is True or v is np.True_ for v in value], bool)
    mask: npt.NDArray[np.bool_] = value
    return mask


def rows_where(updates: Updates, mask: npt.NDArray[np.bool_]) -> Updates:
    """Returns the updates where `mask` is true."""
    if mask.all():
        return updates
    index = mask.nonzero()[0]
    return updates.take(index)
