"""Sizes: about how many rows and bytes a plan would keep, told before it has run.

Where what named collections hold is known, a chain of joins need not be judged by the number of its
arrangements alone: rows between may be many more than those of an arrangement that is asked for in
their place, or many fewer, as a predicate leaves few of them.

Rows of a join are told as if each row of the larger side had a partner, and no more than one; a
predicate over one collection is asked of some of its rows, which stand in the order of their hashes
and are thus drawn at random. Of what cannot be asked a third is taken to stay. It is a guess, so
less is kept in another way only if that is clearly less, and a stage keeps the way that was chosen
for it.

Source: Selinger et al., SIGMOD 1979, for what is assumed.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from nosync_nb import rows
from nosync_nb.collections.definition import Definition
from nosync_nb.dataflow.graph import Graph
from nosync_nb.dataflow.optimizer.multiway_joins import Lookup
from nosync_nb.dataflow.optimizer.planner import PlanSet
from nosync_nb.errors import NosyncError
from nosync_nb.expressions import compile_expression, conjuncts, of_params
from nosync_nb.operators.linear import predicate_mask
from nosync_nb.rows import Column
from nosync_nb.rows.types import row_bytes
from nosync_nb.trace import Trace

LEAST_BYTES = 1 << 20
"""What keeps less by the usual plan is run by it."""

CLEARLY = 0.8
"""Another plan is taken if it keeps at most so much of what the usual one keeps."""

SAMPLE_ROWS = 1024
HASHES_BYTES = 16
STAYS = 1 / 3


class SizeEstimate(NamedTuple):
    """About how many rows a part has, and would have without the predicates below it."""

    rows: float
    whole: float


class TableSizes:
    """What is known of named collections.

    Args:
        traces: what they hold, by number.
    """

    def __init__(self, graph: Graph, traces: Mapping[int, Trace]) -> None:
        self._graph = graph
        self._traces = traces
        self._samples: dict[str, tuple[list[Column], int]] = {}

    def trace(self, name: str) -> Trace | None:
        """One of the orders of a collection; None: it is not there, or holds nothing."""
        node = self._graph.named.get(name)
        given = (self._traces.get(number) for number in node.traces.values()) if node else ()
        return next((trace for trace in given if trace is not None and trace.rows_count), None)

    def row_bytes(self, name: str) -> float:
        """What a row of a collection takes, by its files where there are some."""
        trace = self.trace(name)
        if trace is None:
            return 0.0
        filed = [layer for layer in trace.layers if layer.files]
        if not filed:
            return row_bytes(trace.layout.types) + HASHES_BYTES
        size = sum(ref.size_bytes for layer in filed for ref in layer.files)
        return size / sum(layer.rows_count for layer in filed)

    def sample(self, name: str) -> tuple[list[Column], int]:
        """Some rows of a collection, drawn at random, and how many. Cost: once for each."""
        if name not in self._samples:
            trace, columns, n = self.trace(name), [], 0
            if trace is not None:
                layer = max(trace.layers, key=lambda each: each.rows_count)
                part = max(layer.parts, key=lambda each: len(each.diff))
                n = min(len(part.diff), SAMPLE_ROWS)
                columns = [rows.slice_(column, 0, n) for column in part.columns]
            self._samples[name] = columns, n
        return self._samples[name]


def cheapest_plan(
    plans: PlanSet, granted: frozenset[Lookup], tables: TableSizes
) -> frozenset[Lookup]:
    """What of its wishes a plan is to be run by, so that it keeps least.

    Args:
        granted: what others keep; it is among the result.

    Returns:
        `granted` alone where nothing is known, or little kept.

    Cost: that of compiling predicates, and of asking them of some rows, for each plan.
    """
    usual = plans.by(granted)
    if not plans.wishes - granted or any(tables.trace(n) is None for n in usual.references):
        return granted
    least = state_bytes(usual, tables, granted)
    if least < LEAST_BYTES:
        return granted
    best, least = granted, CLEARLY * least
    for some in plans.subsets():
        if granted < some:
            size = state_bytes(plans.by(some), tables, granted)
            if size < least:
                best, least = some, size
    return best


def state_bytes(plan: Definition, tables: TableSizes, free: Container[Lookup]) -> float:
    """About what the joins of a plan look into takes, without what others keep."""
    sizes = estimate(plan, tables)
    every: dict[tuple[int | str, tuple[int, ...]], float] = {}
    for part, key in _looked_up(plan):
        if not part.is_ref:
            width = row_bytes(part.schema.types) + HASHES_BYTES
            every[id(part), key] = sizes[id(part)].rows * width
        elif (part.name, key) not in free:
            every[part.name, key] = sizes[id(part)].rows * tables.row_bytes(part.name)
    return sum(every.values())


def intermediate_rows(plan: Definition, tables: TableSizes) -> int:
    """About how many rows without a name the joins of a plan look into."""
    sizes = estimate(plan, tables)
    every = {(id(part), key) for part, key in _looked_up(plan) if not part.is_ref}
    return round(sum(sizes[part].rows for part, _ in every))


def estimate(plan: Definition, tables: TableSizes) -> Mapping[int, SizeEstimate]:
    """About how many rows the parts of a plan have, by `id`."""
    sizes: dict[int, SizeEstimate] = {}
    for part in plan.walk():
        below = [sizes[id(each)] for each in part.inputs]
        if part.is_ref:
            trace = tables.trace(part.name)
            count = 0.0 if trace is None else float(trace.rows_count)
            sizes[id(part)] = SizeEstimate(count, count)
        elif part.op == "filter":
            stays = _stays(part, tables)
            sizes[id(part)] = SizeEstimate(below[0].rows * stays, below[0].whole)
        elif part.op == "join" and not part.params["left"]:
            left, right = below
            sizes[id(part)] = SizeEstimate(left.rows * right.rows, left.whole * right.whole)
        elif part.op in ("join", "joins"):
            numbers = part.params["inputs"] if part.op == "joins" else range(2)
            sizes[id(part)] = _joined([*dict(zip(numbers, below, strict=True)).values()])
        elif part.op == "concat":
            count, whole = (sum(each) for each in zip(*below, strict=True))
            sizes[id(part)] = SizeEstimate(count, whole)
        else:
            sizes[id(part)] = max(below, default=SizeEstimate(0.0, 0.0))
    return sizes


def _joined(below: list[SizeEstimate]) -> SizeEstimate:
    """Inputs that are joined: each row of the larger one finds one of the other."""
    made = below[0]
    for each in below[1:]:
        partners = max(min(made.whole, each.whole), 1.0)
        made = SizeEstimate(made.rows * each.rows / partners, max(made.whole, each.whole))
    return made


def _stays(part: Definition, tables: TableSizes) -> float:
    """About what share of the rows a filter keeps."""
    if part.functions:
        return STAYS
    stays = 1.0
    for text in conjuncts(part.params["predicate"]):
        stays *= _asked(text, part, tables)
    return stays


def _asked(text: str, part: Definition, tables: TableSizes) -> float:
    """For what share of a sample of its collection a predicate is true."""
    try:
        predicate = compile_expression(
            text,
            part.inputs[0].schema,
            types=lambda *_: ["boolean"],
            settings=of_params(part.params),
        )
    except NosyncError:
        return STAYS
    origins = [_origin(part.inputs[0], place) for place in predicate.columns]
    names = {origin[0] if origin is not None else "" for origin in origins}
    if len(names) != 1 or "" in names or not predicate.local:
        return STAYS
    if predicate.raises or not predicate.deterministic:
        return STAYS
    columns, n = tables.sample(names.pop())
    if not n:
        return STAYS
    given: list[Any] = [None] * len(part.inputs[0].schema)
    for place, origin in zip(predicate.columns, origins, strict=True):
        assert origin is not None
        given[place] = columns[origin[1]]
    # Of none there may be some, beyond the rows that were looked at.
    return max(float(np.mean(predicate_mask(predicate.evaluate(given, n)))), 1 / n)


def _origin(part: Definition, place: int) -> tuple[str, int] | None:
    """The named collection that a column comes from, and its place there; None: it is made."""
    while not part.is_ref:
        if part.op == "filter":
            part = part.inputs[0]
        elif part.op == "select" and isinstance(part.params["outputs"][place], int):
            part, place = part.inputs[0], part.params["outputs"][place]
        elif part.op == "join":
            side, place = part.params["outputs"][place]
            part = part.inputs[side]
        else:
            return None
    return part.name, place


def _looked_up(plan: Definition) -> Iterator[tuple[Definition, tuple[int, ...]]]:
    """The parts that joins look into, with the key."""
    for part in plan.walk():
        keys = part.params["keys"] if part.op == "joins" else []
        if part.op == "join":
            keys = [part.params["left"], part.params["right"]]
        for each, key in zip(part.inputs, keys, strict=False):
            yield each, tuple(key)
