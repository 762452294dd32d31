"""Estimates the rows of each part of a plan from the rows of its inputs, before it has run.

`cardinality.py` estimates joins and filters. Here the number of groups is added: the number of
different values of the grouping columns. It is estimated from a sample of the collection that the
columns come from; the sample has the rows at equal distances in the order of the hashes. Columns of
several collections are assumed to be independent.

Source: Haas and Stokes, *Estimating the Number of Classes in a Finite Population*, JASA 1998, for
the estimate from a sample; it is the one of PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from nosync_nb import rows
from nosync_nb.collections.definition import Definition
from nosync_nb.dataflow.cardinality import TableSizes, estimate
from nosync_nb.errors import NosyncError
from nosync_nb.expressions import Expression, compile_expression, of_params
from nosync_nb.rows import Column

UNKNOWN_GROUPS = 200
"""The assumed number of groups if the grouping columns come from no collection."""

_GROUPING = ("aggregate", "reduce")
_ALL_COLUMNS = ("distinct", "except_all", "subtract")
_SAME_PLACES = (
    "consolidate", "distinct", "except_all", "filter", "negate", "order", "subtract", "top",
    "widen", "window",
)  # fmt: skip
"""The operators whose first columns are those of their first input."""


class SampledColumn(NamedTuple):
    """The values of a column in the sample of the collection that it comes from."""

    name: str
    column: Column
    type: str


class PartEstimate(NamedTuple):
    """The estimated rows of a part.

    Attributes:
        rows: the number of rows, duplicates included.
        different: the number of different rows, which is what a trace of the part stores.
    """

    rows: float
    different: float


def estimated_rows(plan: Definition, tables: TableSizes) -> Mapping[int, PartEstimate]:
    """Returns the estimated rows of each part of a plan, by `id`.

    Cost: the evaluation of the plan's predicates and columns on samples.
    """
    samples = _Samples(tables)
    estimates = {}
    for part, size in zip(
        plan.walk(), estimate(plan, tables, samples.groups).values(), strict=True
    ):
        columns = range(0 if part.is_ref else len(part.schema))
        stored = samples.different(part, columns, size.rows) if columns else size.rows
        estimates[id(part)] = PartEstimate(size.rows, stored)
    return estimates


def distinct_estimate(sample_rows: int, different: int, single: int, every: float) -> float:
    """Estimates the number of different values among `every` rows.

    Args:
        different: the number of different values of the sample.
        single: the number of values that occur once in the sample.

    Examples:
        >>> distinct_estimate(1000, 50, 0, 1_000_000)
        50.0
        >>> distinct_estimate(1000, 1000, 1000, 1_000_000)
        1000000.0
    """
    if not sample_rows:
        return 0.0
    repeated = sample_rows - single + single * sample_rows / max(every, sample_rows)
    return min(sample_rows * different / max(repeated, 1e-9), max(every, different))


class _Samples:
    """The columns of a plan's parts, as far as they can be computed from samples."""

    def __init__(self, tables: TableSizes) -> None:
        self._tables = tables

    def groups(self, part: Definition, below: float) -> float:
        """Returns the estimated rows of an operator on groups, from the rows of its first input."""
        if part.op in _GROUPING:
            return self.different(part.inputs[0], part.params["keys"], below)
        if part.op in _ALL_COLUMNS:
            return self.different(part.inputs[0], range(len(part.schema)), below)
        if part.op == "top" and part.params["k"] is not None:
            found = self.different(part.inputs[0], part.params["keys"], below)
            return min(below, found * float(part.params["k"]))
        return 1.0 if part.op == "unit" else below

    def different(self, part: Definition, places: Sequence[int], below: float) -> float:
        """Returns the estimated number of different values of some columns of a part."""
        if not places:
            return min(below, 1.0)
        if part.op == "concat":
            return min(below, sum(self.different(each, places, below) for each in part.inputs))
        if part.op in _GROUPING:
            keys = part.params["keys"]
            own = [keys[place] for place in places if place < len(keys)]
            return self.different(part.inputs[0], own if len(own) == len(places) else keys, below)
        if part.op == "select":
            outputs = [part.params["outputs"][place] for place in places]
            if all(isinstance(each, int) for each in outputs):
                return self.different(part.inputs[0], outputs, below)
        by_table: dict[str, list[SampledColumn]] = {}
        found = 1.0
        for place in places:
            if self._is_constant(part, place):
                continue
            sampled = self._column(part, place)
            if sampled is None:
                found *= UNKNOWN_GROUPS
            else:
                by_table.setdefault(sampled.name, []).append(sampled)
        for name, columns in by_table.items():
            n = len(columns[0].column)
            hashes = rows.hash_columns([c.column for c in columns], [c.type for c in columns], n)
            _, counts = np.unique(hashes, return_counts=True)
            single = int(np.count_nonzero(counts == 1))
            trace = self._tables.trace(name)
            every = 0.0 if trace is None else float(trace.rows_count)
            found *= distinct_estimate(n, len(counts), single, every)
        return min(found, below)

    def _is_constant(self, part: Definition, place: int) -> bool:
        """Returns True if a column is an expression that reads no other column."""
        output = part.params["outputs"][place] if part.op == "select" else None
        if not isinstance(output, str):
            return False
        expression = self._compiled(part, output, part.schema.types[place])
        return expression is not None and not expression.columns

    def _column(self, part: Definition, place: int) -> SampledColumn | None:
        """Returns a column of a part over the sample of its collection; None if it has several."""
        if part.is_ref:
            columns, n = self._tables.spread_sample(part.name)
            return SampledColumn(part.name, columns[place], part.schema.types[place]) if n else None
        if part.op in ("join", "joins"):
            side, position = part.params["outputs"][place]
            if part.op == "joins":
                side = part.params["inputs"].index(side)
            return self._column(part.inputs[side], position)
        if part.op in _GROUPING:
            keys = part.params["keys"]
            return self._column(part.inputs[0], keys[place]) if place < len(keys) else None
        if part.op == "select":
            output = part.params["outputs"][place]
            if isinstance(output, int):
                return self._column(part.inputs[0], output)
            return self._computed(part, output, part.schema.types[place])
        if part.op in _SAME_PLACES and place < len(part.inputs[0].schema):
            return self._column(part.inputs[0], place)
        return None

    def _computed(self, part: Definition, text: str, type_: str) -> SampledColumn | None:
        """Returns an expression over one collection, evaluated on its sample."""
        source = part.inputs[0]
        expression = self._compiled(part, text, type_)
        if expression is None:
            return None
        found = {place: self._column(source, place) for place in expression.columns}
        names = {None if each is None else each.name for each in found.values()}
        name = names.pop() if len(names) == 1 else None
        if name is None:
            return None
        n = self._tables.spread_sample(name)[1]
        sample: list[Column] = [
            rows.empty(each) for each in source.schema.types
        ]  # only the columns that the expression reads are filled
        for place, each in found.items():
            if each is not None:
                sample[place] = each.column
        try:
            return SampledColumn(name, expression.evaluate(sample, n), type_)
        except NosyncError:  # for rows that a filter below removes, for example
            return None

    def _compiled(self, part: Definition, text: str, type_: str) -> Expression | None:
        """Returns an expression of a `select` that this process can evaluate on a sample."""
        try:
            expression = compile_expression(
                text,
                part.inputs[0].schema,
                types=lambda *_: [type_],
                settings=of_params(part.params),
            )
        except NosyncError:
            return None
        return expression if expression.local and expression.deterministic else None
