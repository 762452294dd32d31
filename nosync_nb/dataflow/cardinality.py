"""Estimates how many rows and bytes a plan would store, before it has run.

If the sizes of named collections are known, plans of a chain of joins can be compared by size, not
only by the number of their arrangements. There may be many more intermediate rows than rows of the
arrangement that replaces them. There may also be far fewer, if a predicate is selective.

The estimate of a join assumes that each row of the larger side has exactly one partner. A predicate
over one collection is evaluated on a sample: the rows are in the order of their hashes, so the
first ones are a random sample. A predicate that cannot be evaluated is assumed to select a third of
the rows. The estimates are uncertain. Therefore another plan is chosen only if it stores clearly
less, and a stage retains its chosen plan.

Source: Selinger et al., SIGMOD 1979, for the assumptions.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from nosync_nb import rows
from nosync_nb.collections.definition import Definition
from nosync_nb.dataflow.graph import Graph
from nosync_nb.dataflow.optimizer.multiway_joins import Lookup
from nosync_nb.dataflow.planner import PlanSet
from nosync_nb.errors import NosyncError
from nosync_nb.expressions import compile_expression, conjuncts, of_params
from nosync_nb.operators.linear import predicate_mask
from nosync_nb.rows import Column
from nosync_nb.rows.types import row_bytes
from nosync_nb.trace import Trace

LEAST_BYTES = 1 << 20
"""If the default plan stores less than this, it is used without a comparison."""

CLEARLY = 0.8
"""Another plan is chosen only if its size is below this fraction of the default plan's size."""

SAMPLE_ROWS = 1024
HASHES_BYTES = 16
"""The size of the two hashes of a row in memory."""
STAYS = 1 / 3


class SizeEstimate(NamedTuple):
    """The estimated size of a part.

    Attributes:
        rows: the number of rows.
        whole: the number of rows that the part would have without the predicates below it.
    """

    rows: float
    whole: float


class TableSizes:
    """The sizes of the named collections of a graph.

    Args:
        traces: the traces of the graph, by number.
    """

    def __init__(self, graph: Graph, traces: Mapping[int, Trace]) -> None:
        self._graph = graph
        self._traces = traces
        self._samples: dict[str, tuple[list[Column], int]] = {}
        self._spread_samples: dict[str, tuple[list[Column], int]] = {}

    def trace(self, name: str) -> Trace | None:
        """Returns one of the traces of a collection; None if it is missing or empty."""
        node = self._graph.named.get(name)
        traces = (self._traces.get(number) for number in node.traces.values()) if node else ()
        return next((trace for trace in traces if trace is not None and trace.rows_count), None)

    def row_bytes(self, name: str) -> float:
        """Returns the average bytes of a row, from the files of the collection if it has any."""
        trace = self.trace(name)
        if trace is None:
            return 0.0
        filed = [layer for layer in trace.layers if layer.files]
        if not filed:
            return row_bytes(trace.layout.types) + HASHES_BYTES
        size = sum(ref.size_bytes for layer in filed for ref in layer.files)
        return size / sum(layer.rows_count for layer in filed)

    def sample(self, name: str) -> tuple[list[Column], int]:
        """Returns the columns of a random sample of a collection, and the number of its rows.

        Cost: a slice of the largest part; the sample is cached.
        """
        if name not in self._samples:
            trace, columns, n = self.trace(name), [], 0
            if trace is not None:
                layer = max(trace.layers, key=lambda each: each.rows_count)
                part = max(layer.parts, key=lambda each: len(each.diff))
                n = min(len(part.diff), SAMPLE_ROWS)
                columns = [rows.slice_(column, 0, n) for column in part.columns]
            self._samples[name] = columns, n
        return self._samples[name]

    def spread_sample(self, name: str) -> tuple[list[Column], int]:
        """Returns the columns of rows at equal distances, and the number of these rows.

        The rows of one key are next to each other in an arrangement by key. So they are as frequent
        in this sample as in the collection, unlike in the first rows.

        Cost: up to `SAMPLE_ROWS` reads of the largest part; the sample is cached.
        """
        if name not in self._spread_samples:
            trace, columns, n = self.trace(name), [], 0
            if trace is not None:
                layer = max(trace.layers, key=lambda each: each.rows_count)
                part = max(layer.parts, key=lambda each: len(each.diff))
                n = min(len(part.diff), SAMPLE_ROWS)
                index = np.arange(n) * len(part.diff) // max(n, 1)
                columns = [rows.take(column, index) for column in part.columns]
            self._spread_samples[name] = columns, n
        return self._spread_samples[name]


def cheapest_plan(
    plans: PlanSet, granted: frozenset[Lookup], tables: TableSizes
) -> frozenset[Lookup]:
    """Returns the lookups whose plan stores least.

    Args:
        granted: the wishes that other stages maintain; they are part of the result.

    Returns:
        `granted` alone if the size of a collection is unknown, if its plan stores less than
        `LEAST_BYTES`, or if no other plan stores clearly less.

    Cost: for each plan, the compilation of its predicates and their evaluation on samples.
    """
    usual = plans.plan_for(granted)
    if not plans.wishes - granted or any(tables.trace(n) is None for n in usual.references):
        return granted
    least = state_bytes(usual, tables, granted)
    if least < LEAST_BYTES:
        return granted
    best, least = granted, CLEARLY * least
    for some in plans.subsets():
        if granted < some:
            size = state_bytes(plans.plan_for(some), tables, granted)
            if size < least:
                best, least = some, size
    return best


def state_bytes(plan: Definition, tables: TableSizes, free: Container[Lookup]) -> float:
    """Returns the estimated bytes of the arrangements that the joins of a plan look up.

    Args:
        free: the arrangements that other stages maintain; they are not counted.
    """
    sizes = estimate(plan, tables)
    every: dict[tuple[int | str, tuple[int, ...]], float] = {}
    for part, key in _lookups(plan):
        if not part.is_ref:
            width = row_bytes(part.schema.types) + HASHES_BYTES
            every[id(part), key] = sizes[id(part)].rows * width
        elif (part.name, key) not in free:
            every[part.name, key] = sizes[id(part)].rows * tables.row_bytes(part.name)
    return sum(every.values())


def intermediate_rows(plan: Definition, tables: TableSizes) -> int:
    """Returns the estimated number of rows of unnamed parts that the joins of a plan look up."""
    sizes = estimate(plan, tables)
    every = {(id(part), key) for part, key in _lookups(plan) if not part.is_ref}
    return round(sum(sizes[part].rows for part, _ in every))


def estimate(
    plan: Definition,
    tables: TableSizes,
    groups: Callable[[Definition, float], float] = lambda _, below: below,
) -> Mapping[int, SizeEstimate]:
    """Returns the estimated size of each part of a plan, by `id`.

    Args:
        groups: returns the rows of any other operator than a join, a filter or a union, given the
            rows of its largest input.
    """
    sizes: dict[int, SizeEstimate] = {}
    for part in plan.walk():
        below = [sizes[id(each)] for each in part.inputs]
        if part.is_ref:
            trace = tables.trace(part.name)
            count = 0.0 if trace is None else float(trace.rows_count)
            sizes[id(part)] = SizeEstimate(count, count)
        elif part.op == "constant":
            count = float(part.params["count"])
            sizes[id(part)] = SizeEstimate(count, count)
        elif part.op == "filter":
            stays = _selectivity(part, tables)
            sizes[id(part)] = SizeEstimate(below[0].rows * stays, below[0].whole)
        elif part.op == "join" and not part.params["left"]:
            left, right = below
            sizes[id(part)] = SizeEstimate(left.rows * right.rows, left.whole * right.whole)
        elif part.op in ("join", "joins", "range_join"):
            numbers = part.params["inputs"] if part.op == "joins" else range(2)
            sizes[id(part)] = _join_estimate([*dict(zip(numbers, below, strict=True)).values()])
        elif part.op == "concat":
            count, whole = (sum(each) for each in zip(*below, strict=True))
            sizes[id(part)] = SizeEstimate(count, whole)
        else:
            largest = max(below, default=SizeEstimate(0.0, 0.0))
            sizes[id(part)] = largest._replace(rows=groups(part, largest.rows))
    return sizes


def _join_estimate(below: list[SizeEstimate]) -> SizeEstimate:
    """Estimates a join, where each row of the larger input has one partner in the other input."""
    joined = below[0]
    for each in below[1:]:
        partners = max(min(joined.whole, each.whole), 1.0)
        joined = SizeEstimate(joined.rows * each.rows / partners, max(joined.whole, each.whole))
    return joined


def _selectivity(part: Definition, tables: TableSizes) -> float:
    """Returns the estimated fraction of the rows that pass a filter."""
    if part.functions:
        return STAYS
    stays = 1.0
    for text in conjuncts(part.params["predicate"]):
        stays *= _sample_selectivity(text, part, tables)
    return stays


def _sample_selectivity(text: str, part: Definition, tables: TableSizes) -> float:
    """Returns the fraction of a sample that satisfies a predicate of a filter.

    Returns `STAYS` if the predicate cannot be evaluated on a sample of a single collection.
    """
    try:
        predicate = compile_expression(
            text,
            part.inputs[0].schema,
            types=lambda *_: ["boolean"],
            settings=of_params(part.params),
        )
    except NosyncError:
        return STAYS
    origins = [_origin(part.inputs[0], position) for position in predicate.columns]
    names = {origin[0] if origin is not None else "" for origin in origins}
    if len(names) != 1 or "" in names or not predicate.local:
        return STAYS
    if predicate.raises or not predicate.deterministic:
        return STAYS
    columns, n = tables.sample(names.pop())
    if not n:
        return STAYS
    sample: list[Any] = [None] * len(part.inputs[0].schema)
    for position, origin in zip(predicate.columns, origins, strict=True):
        assert origin is not None
        sample[position] = columns[origin[1]]
    # At least one row counts as selected, because rows outside of the sample may be selected.
    return max(float(np.mean(predicate_mask(predicate.evaluate(sample, n)))), 1 / n)


def _origin(part: Definition, position: int) -> tuple[str, int] | None:
    """Returns the named collection and position of a column; None if the column is computed."""
    while not part.is_ref:
        if part.op == "filter":
            part = part.inputs[0]
        elif part.op == "select" and isinstance(part.params["outputs"][position], int):
            part, position = part.inputs[0], part.params["outputs"][position]
        elif part.op in ("join", "range_join"):
            side, position = part.params["outputs"][position]
            part = part.inputs[side]
        else:
            return None
    return part.name, position


def _lookups(plan: Definition) -> Iterator[tuple[Definition, tuple[int, ...]]]:
    """Yields the parts that joins look up, with the keys of the lookups."""
    for part in plan.walk():
        keys = part.params["keys"] if part.op == "joins" else []
        if part.op == "join":
            keys = [part.params["left"], part.params["right"]]
        for each, key in zip(part.inputs, keys, strict=False):
            yield each, tuple(key)
