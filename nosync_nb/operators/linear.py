"""Linear operators: each row is processed separately, and keeps its diff. Chains are fused.

A function must be deterministic: the retraction of a row must yield exactly the same rows as its
insertion. Equal rows that `map` produces are consolidated where the collection is arranged.

`MemoizedMap` is a row-wise chain with memoised results, for nondeterministic functions. The
function is called once for each row that appears, whatever its count. A trace stores the results by
row, so that a retraction removes exactly these. When the count of a row returns to 0, its results
are removed as well; if the row reappears, the function is called again.

The specs build the row-wise pieces, and name the columns that a piece needs and those that it
passes on. The kernels run these pieces, and compile nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nosync_nb import rows
from nosync_nb.errors import ExpressionError, one_line
from nosync_nb.expressions import Expression, Types, statement_clock
from nosync_nb.operators import user_functions
from nosync_nb.operators.base import PLAIN, Operator, RowPiece, Step
from nosync_nb.operators.distinct import row_counts
from nosync_nb.operators.spec import (
    AdaptedPart,
    DefinitionPart,
    Key,
    Places,
    RemainingColumns,
    Spec,
    all_columns,
    compiled_part_expression,
    every_column,
    fit_comparing_rows,
    passed_through,
    same_columns,
    same_key,
    used_columns,
)
from nosync_nb.rows import Column, Schema, buffers
from nosync_nb.rows.count_arithmetic import products
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange, concat_updates

SHOWN_MAX = 40
"""The maximum length of an expression in a text about its placement."""


def _spark_parts(expressions: Sequence[Expression]) -> str:
    """Returns a text that names the first expression without a local form, and counts the rest."""
    first, *more = (e.sql for e in expressions if not e.local)
    text = one_line(first)
    text = text if len(text) <= SHOWN_MAX else f"{text[: SHOWN_MAX - 3]}..."
    return f"{text} and {len(more)} more" if more else text


def evaluate(
    expressions: Sequence[Expression], schema: Schema, updates: Updates, step: Step
) -> list[Column]:
    """Returns the values of expressions over updates; Spark evaluates those without a local form.

    Raises:
        ExpressionError: if an expression fails on a value, or needs Spark and there is no Spark
            session; the message names the stage.
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
    """Keeps the rows for which a predicate is true; drops those for which it is false or null."""

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
    """Computes the output columns; an integer is the position of an unchanged input column."""

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
    """Converts columns to wider types, so that the keys of two inputs have the same types."""

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
    """Appends columns of nulls, for the unmatched rows of outer joins."""

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
    """Calls a Python function on each row, which returns one tuple."""

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
    """Calls a Python function on each row, which yields any number of tuples."""

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
    """Adds up any number of inputs with the same schema."""

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
    """Consolidates a collection: its layout makes the caller arrange the change."""

    name = "consolidate"
    in_loop = PLAIN

    def __init__(self, types: Sequence[str]) -> None:
        self.types = tuple(types)
        self.layouts = (Layout(tuple(types)),)

    def step(self, step: Step) -> Updates | None:
        delta = step.deltas[0]
        return None if delta is None else Updates(delta.columns, delta.diff)


def predicate_mask(value: Column) -> npt.NDArray[np.bool_]:
    """Converts the column of a predicate to a mask, in which null is false."""
    if isinstance(value, pa.Array):
        return buffers.bools(value)
    if value.dtype == object:
        return np.array([v is True or v is np.True_ for v in value], bool)
    mask: npt.NDArray[np.bool_] = value
    return mask


def rows_where(updates: Updates, mask: npt.NDArray[np.bool_]) -> Updates:
    """Returns the updates for which `mask` is true."""
    if mask.all():
        return updates
    index = mask.nonzero()[0]
    return updates.take(index)


class MemoizedMap(Operator):
    """A row-wise chain whose results are memoised by input row.

    Args:
        types: the column types of the input.
        linear: the chain.
    """

    memoises = True

    def __init__(self, types: Sequence[str], linear: Linear) -> None:
        self.given = tuple(types)
        self.linear = linear
        self.name = f"{linear.name}, kept"
        self.types = linear.types
        self.local = linear.local
        self.layouts = (Layout(self.given),)
        self.state = (Layout((*self.given, *self.types), tuple(range(len(self.given)))),)

    def step(self, step: Step) -> Updates | None:
        delta = step.deltas[0]
        if not isinstance(delta, Batch) or not len(delta):
            return None
        before = row_counts(step.before[0], delta, step)
        after = before + delta.diff
        step.add_touched(len(delta))
        outputs: list[Updates] = []
        kept: list[Updates] = []
        old = step.state[0].lookup(delta.khash, delta.columns)
        if old is not None:
            step.add_touched(len(old.diff))
            self._existing_rows(
                old.probe, Updates(old.columns, old.diff), delta, after, outputs, kept
            )
        fresh = ((before == 0) & (after != 0)).nonzero()[0]
        if len(fresh):
            self._new_rows(fresh, delta, after, step, outputs, kept)
        if kept:
            change = arrange(self.state[0], concat_updates(kept, self.state[0].types))
            step.emitted[0] = change if len(change) else None
        return concat_updates(outputs, self.types) if outputs else None

    def _existing_rows(
        self,
        probe: np.ndarray[tuple[int], np.dtype[np.int64]],
        old: Updates,
        delta: Batch,
        after: np.ndarray[tuple[int], np.dtype[np.int64]],
        made: list[Updates],
        kept: list[Updates],
    ) -> None:
        """Adds the changes for rows with memoised results; drops the results of removed rows.

        Args:
            made: receives the change of the output.
            kept: receives the change of the memoised results.
        """
        made.append(Updates(old.columns[len(self.given) :], products(old.diff, delta.diff[probe])))
        gone = (after[probe] == 0).nonzero()[0]
        if len(gone):
            kept.append(old.take(gone).negated())

    def _new_rows(
        self,
        fresh: np.ndarray[tuple[int], np.dtype[np.int64]],
        delta: Batch,
        after: np.ndarray[tuple[int], np.dtype[np.int64]],
        step: Step,
        made: list[Updates],
        kept: list[Updates],
    ) -> None:
        """Runs the chain once for each row that appears, and memoises the results.

        The diffs are row numbers, which identify the input row of each result.

        Args:
            made: receives the change of the output.
            kept: receives the change of the memoised results.
        """
        columns = [rows.take(c, fresh) for c in delta.columns]
        numbered = Updates(columns, np.arange(1, len(fresh) + 1))
        inner = Step(
            [numbered], [None], [None], (), stage=step.stage, first=True, evaluate=step.evaluate
        )
        with statement_clock():
            output = self.linear.step(inner)
        if output is None or not len(output.diff):
            return
        owner = np.abs(output.diff) - 1
        sign = np.sign(output.diff)
        made.append(Updates(output.columns, sign * after[fresh[owner]]))
        inputs = [rows.take(c, owner) for c in columns]
        kept.append(Updates([*inputs, *output.columns], sign))


def _filter(part: DefinitionPart, types: Types | None) -> RowPiece:
    schema = part.inputs[0].schema
    if part.functions:
        return FilterFunction(part.functions[0], schema)
    return Filter(compiled_part_expression(part, part.params["predicate"], "boolean"), schema)


def _filter_fit(
    part: DefinitionPart, inputs: Sequence[RemainingColumns], types: Types | None
) -> AdaptedPart:
    """Requires the columns of the predicate, and passes all columns on."""
    if part.functions:
        return every_column(part, inputs, types)
    inputs[0].moved(used_columns(part, part.params["predicate"], types))
    return passed_through(part, inputs, types)


def _filter_reads(part: DefinitionPart, wanted: Places, types: Types | None) -> Sequence[Places]:
    """Returns the requested columns and those of the predicate; a function reads all columns."""
    if part.functions:
        return all_columns(part, wanted, types)
    return [
        wanted.union(compiled_part_expression(part, part.params["predicate"], "boolean").columns)
    ]


def _predicate(part: DefinitionPart) -> Iterable[str]:
    return () if part.functions else (part.params["predicate"],)


def _select(part: DefinitionPart, types: Types | None) -> RowPiece:
    typed = zip(part.params["outputs"], part.schema.types, strict=True)
    outputs = [
        o if isinstance(o, int) else compiled_part_expression(part, o, type_) for o, type_ in typed
    ]
    return Select(outputs, part.inputs[0].schema)


def _select_fit(
    part: DefinitionPart, inputs: Sequence[RemainingColumns], types: Types | None
) -> AdaptedPart:
    """Requires all columns that the outputs use, except for the first `passes` outputs.

    The engine sets `passes` for a select that it adds to compute a column beside the existing ones.
    Lost columns among these are lost outputs, and no error.
    """
    source, passes = inputs[0], part.params.get("passes", 0)
    outputs: list[Any] = []
    lost = {}
    for place, each in enumerate(part.params["outputs"]):
        if not isinstance(each, int):
            source.moved(used_columns(part, each, types))
            outputs.append(each)
        elif place < passes and each in source.lost:
            lost[place] = source.lost[each]
        else:
            outputs += source.moved([each])
    params = {**part.params, "outputs": outputs}
    if passes:
        params["passes"] = passes - len(lost)
    return AdaptedPart(params, lost)


def _select_reads(part: DefinitionPart, wanted: Places, types: Types | None) -> Sequence[Places]:
    """Returns the columns that the requested outputs use, by position or in expressions."""
    reads: set[int] = set()
    for place in wanted:
        each = part.params["outputs"][place]
        if isinstance(each, int):
            reads.add(each)
        else:
            reads.update(compiled_part_expression(part, each, part.schema.types[place]).columns)
    return [frozenset(reads)]


def _select_firm(part: DefinitionPart) -> Places:
    """Returns the positions of the outputs whose expressions may raise an error."""
    typed = enumerate(zip(part.params["outputs"], part.schema.types, strict=True))
    return frozenset(
        place
        for place, (each, type_) in typed
        if not isinstance(each, int) and compiled_part_expression(part, each, type_).raises
    )


def _select_narrowed(part: DefinitionPart, kept: Sequence[int]) -> Mapping[str, Any]:
    params = {**part.params, "outputs": [part.params["outputs"][i] for i in kept]}
    params.pop("passes", None)
    return params


def _selected(part: DefinitionPart) -> Iterable[str]:
    return [o for o in part.params["outputs"] if not isinstance(o, int)]


def _select_key(part: DefinitionPart, below: Sequence[Key]) -> Key:
    """Returns the key columns at their new positions; None if not all of them are selected."""
    outputs = part.params["outputs"]
    if below[0] is None or not all(place in outputs for place in below[0]):
        return None
    return tuple(outputs.index(place) for place in below[0])


def _function(kind: type[Map | FlatMap]) -> Callable[[DefinitionPart, Types | None], RowPiece]:
    """Returns a function that builds the piece for `map` or `flat_map`."""
    return lambda part, _: kind(part.functions[0], part.inputs[0].schema, part.schema)


def _widen(part: DefinitionPart, types: Types | None) -> RowPiece:
    return Widen(part.inputs[0].schema.types, part.schema.types)


def _pad(part: DefinitionPart, types: Types | None) -> RowPiece:
    return Pad(part.schema.types[len(part.inputs[0].schema) :])


SPECS = (
    Spec(
        "filter",
        _filter_fit,
        piece=_filter,
        expressions=_predicate,
        key=same_key,
        reads=_filter_reads,
    ),
    Spec(
        "select",
        _select_fit,
        piece=_select,
        expressions=_selected,
        key=_select_key,
        reads=_select_reads,
        narrowed=_select_narrowed,
        firm=_select_firm,
    ),
    Spec("map", every_column, piece=_function(Map)),
    Spec("flat_map", every_column, piece=_function(FlatMap)),
    Spec("widen", passed_through, piece=_widen, key=same_key, reads=same_columns),
    Spec("pad", passed_through, piece=_pad, key=same_key, reads=same_columns),
    Spec(
        "negate", passed_through, piece=lambda part, _: Negate(), key=same_key, reads=same_columns
    ),
    Spec(
        "concat",
        fit_comparing_rows,
        build=lambda part, _: Concat(part.schema.types, len(part.inputs)),
        key=same_key,
        reads=same_columns,
    ),
    Spec(
        "consolidate",
        fit_comparing_rows,
        build=lambda part, _: Consolidate(part.schema.types),
        key=same_key,
    ),
)
