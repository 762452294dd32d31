"""Checks periodically that functions still return the results that are in their stages.

A stage that is not declared --nondeterministic retracts a row by computing it again. If its
function then returns a different result, counts stay wrong. So every `AUDIT_EVERY` epochs, some
rows of the input (groups for `reduce`) are computed again and compared with the contents of the
stage. A stage that fails the check continues as a new version that memoises the results of its
functions, and the user is warned.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from nosync_nb import rows
from nosync_nb.dataflow.graph import Graph, Node
from nosync_nb.errors import NosyncError, warn
from nosync_nb.operators import Evaluate, Operator, Step
from nosync_nb.operators.base import ROWS
from nosync_nb.operators.distinct import row_counts
from nosync_nb.operators.iterate import GROUP, RESULT, VARIABLE, Loop, LoopNode
from nosync_nb.operators.iterate.batch_driver import evaluate_from_scratch
from nosync_nb.operators.user_functions import named_tuples
from nosync_nb.rows import Column, Schema
from nosync_nb.session.definitions.define import DefinitionService
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.spark.connection import SparkConnection
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Batch, Hashes, Layout, Updates, arrange, no_updates

AUDIT_EVERY = 64
SAMPLES = 4
GROUP_ROWS_MAX = 1000


class DeterminismChecks:
    """Checks the stages of a session; has no state."""

    def __init__(
        self,
        publisher: Publisher,
        definitions: DefinitionService,
        spark_connection: SparkConnection,
    ) -> None:
        self._publisher = publisher
        self._definitions = definitions
        self._spark_connection = spark_connection

    def after(self, epoch: int) -> None:
        """Checks the stages if the epoch is due."""
        if epoch % AUDIT_EVERY == 0:
            self.audit()

    def audit(self) -> list[str]:
        """Checks every stage that calls functions; returns the demoted ones.

        A function inside a loop is called twice for the loop's rows. Its results cannot be memoised
        there, so such a stage gets a warning and continues unchanged.

        Cost: `SAMPLES` calls of each function, twice as many where its results are not stored.
        """
        snapshot = self._publisher.snapshot
        chance = random.Random(snapshot.epoch)
        failed: dict[str, str] = {}
        loops: dict[str, str] = {}
        for node in snapshot.graph:
            stage = snapshot.catalog.get(node.stage)
            if node.frozen or node.stage in failed or stage is None:
                continue
            if stage.options.nondeterministic:
                continue  # declared, or demoted by an earlier check
            check = _NodeCheck(
                self._spark_connection.evaluate, node, snapshot.graph, snapshot.version.traces
            )
            problem = check.run(chance)
            if problem is not None and isinstance(node.operator, Loop):
                loops[node.stage] = problem
            elif problem is not None:
                failed[node.stage] = problem
        for name, problem in loops.items():
            warn(
                f"stage '{name}' is not deterministic: inside its loop {problem}, results"
                " cannot be memoised there, so the stage may be wrong; compute it before the"
                " loop, in a stage that is declared --nondeterministic",
                stacklevel=None,
            )
        return [name for name, problem in failed.items() if self._demote(name, problem)]

    def _demote(self, name: str, problem: str) -> bool:
        """Replaces a stage by a version that memoises the results of its functions.

        Returns True if the new version was defined.
        """
        stage = self._publisher.snapshot.catalog.get(name)
        if stage is None or stage.options.nondeterministic:
            return False
        goes_on = "continues as a new version that memoises the results of its functions"
        declare = "declare it --nondeterministic"
        memoised = True
        try:
            self._definitions.demote(name)
        except NosyncError as error:  # a loop cannot memoise the results of functions
            memoised = False
            goes_on, declare = (
                f"continues unchanged, because {error}",
                error.hint or "divide it into several stages",
            )
        warn(
            f"stage '{name}' is not deterministic: {problem}. It {goes_on}; {declare}",
            stacklevel=None,
        )
        return memoised


class _NodeCheck:
    """Calls the functions of one node again, for sampled rows and groups."""

    def __init__(
        self, evaluate: Evaluate, node: Node, graph: Graph, traces: Mapping[int, Trace]
    ) -> None:
        self.evaluate = evaluate
        self.node = node
        self.graph = graph
        self.traces = traces

    def run(self, chance: random.Random) -> str | None:
        """Checks several samples; returns the first problem, if any."""
        problem = None
        for _ in range(SAMPLES):
            problem = problem or self._check_sample(chance)
        return problem

    def _check_sample(self, chance: random.Random) -> str | None:
        """Checks the results for one row or group; returns the problem."""
        operator = self.node.operator
        if isinstance(operator, Loop):
            return self._check_loop(operator, chance)
        if operator is None or operator.audited is None:
            return None
        source = self.graph.nodes[self.node.inputs[0]]
        if operator.audited == ROWS:
            trace = self._output_trace(source)
            group = None if trace is None else _draw_sample(trace, chance)
            return None if group is None else self._check_row(operator, group.row)
        trace = self.traces.get(source.traces[operator.grouping(0)])
        group = None if trace is None else _draw_sample(trace, chance)
        return None if group is None else self._check_group(operator, group)

    def _output_trace(self, node: Node) -> Trace | None:
        """Returns any trace of a node's output."""
        return next((self.traces[n] for n in node.traces.values() if n in self.traces), None)

    def _check_row(self, operator: Operator, row: Updates) -> str | None:
        layout = Layout(operator.types)
        first = _evaluate_row(self.evaluate, self.node, operator, row, layout)
        if first is None:
            return None
        if self.node.name is None:
            again = _evaluate_row(self.evaluate, self.node, operator, row, layout)
            return _repeat_difference(operator, first, again)
        output = self._output_trace(self.node)
        for at in range(len(first)):
            one = first.slice(at, at + 1)
            if one.diff[0] > 0 and _row_count(output, one) <= 0:
                return (
                    f"{operator.name} now returns {_rows_text(one)}, which the stage does not have"
                )
        return None

    def _check_group(self, operator: Operator, sample: _Sample) -> str | None:
        """Compares the new result of a group with the stored one, or with that of a second call."""
        result = self._evaluate_group(operator, sample)
        if result is None:
            return None
        if operator.state:
            state = self.traces.get(self.node.state[0])
            stored = None if state is None else state.lookup(sample.khash, sample.keys)
            rest = no_updates(operator.types)
            if stored is not None:
                rest = Updates(stored.columns, stored.diff)
            return _stored_difference(operator, result, arrange(result.layout, rest))
        output = self._output_trace(self.node)
        if output is None:
            return _repeat_difference(operator, result, self._evaluate_group(operator, sample))
        one = arrange(Layout(operator.types), sample.row)
        count, stored_count = int(result.diff.sum()), _row_count(output, one)
        if count == stored_count:
            return None
        text = _rows_text(one)
        return (
            f"{operator.name} now returns {count} copies of {text}, of which the stage has"
            f" {stored_count}"
        )

    def _check_loop(self, loop: Loop, chance: random.Random) -> str | None:
        """Calls a function inside a loop twice, for the rows of the loop at its end."""
        for inner in loop.nodes:
            operator = inner.operator
            if operator is None or operator.audited is None:
                continue
            by_row = operator.audited == ROWS
            number = _input_state(loop, inner) if by_row else inner.states[0]
            trace = None if number is None else self.traces.get(self.node.state[number])
            group = None if trace is None else _draw_sample(trace, chance)
            if group is None or number is None:
                continue
            depth = loop.depths[number]
            if by_row:
                row = Updates(group.row.columns[:-depth], group.row.diff)
                layout = Layout(operator.types)
                results = [
                    _evaluate_row(self.evaluate, self.node, operator, row, layout) for _ in range(2)
                ]
            else:
                ended = group.without_last(depth)
                results = [self._evaluate_group(operator, ended) for _ in range(2)]
            if results[0] is not None:
                problem = _repeat_difference(operator, results[0], results[1])
                if problem is not None:
                    return problem
        return None

    def _evaluate_group(self, operator: Operator, sample: _Sample) -> Batch | None:
        """Evaluates an operator from scratch on one group; None if it fails."""
        step = Step((), (), (), (), stage=self.node.stage, evaluate=self.evaluate)
        try:
            output = evaluate_from_scratch(operator, [sample.updates], step)
        except NosyncError:
            return None
        layout = Layout(operator.types, operator.output_key)
        return arrange(layout, no_updates(operator.types) if output is None else output)


class _Sample(NamedTuple):
    """A key of a trace with all its rows, and one of its rows with a positive count."""

    khash: Hashes
    keys: list[Column]
    updates: Updates
    row: Updates

    def without_last(self, last: int) -> _Sample:
        """Returns the group without its last `last` columns."""
        short = Updates(self.updates.columns[:-last], self.updates.diff)
        return self._replace(updates=short)


def _draw_sample(trace: Trace, chance: random.Random) -> _Sample | None:
    """Returns a random group of a trace; None if the trace is empty or the group is too large."""
    parts = [p for p in trace.parts() if len(p)]
    if not parts:
        return None
    part = chance.choices(parts, weights=[len(p) for p in parts])[0]
    at = np.array([chance.randrange(len(part))])
    keys = [rows.take(part.columns[i], at) for i in trace.layout.places]
    group = trace.lookup(part.khash[at], keys)
    if group is None or len(group.diff) > GROUP_ROWS_MAX:
        return None
    consolidated = arrange(Layout(trace.layout.types), Updates(group.columns, group.diff))
    index = (consolidated.diff > 0).nonzero()[0]
    if not len(index):
        return None
    one = index[[chance.randrange(len(index))]]
    row = Updates([rows.take(c, one) for c in consolidated.columns], np.ones(1, np.int64))
    return _Sample(part.khash[at], keys, consolidated.updates, row)


def _input_state(loop: Loop, inner: LoopNode) -> int | None:
    """Returns the loop state that stores the input of a node, if any."""
    port = inner.ports[0]
    for _ in loop.nodes:
        if port.outside:
            return None
        source = loop.nodes[port.number]
        if source.kind == GROUP:
            return source.states[-1]
        if source.kind not in (RESULT, VARIABLE):
            return None
        port = source.ports[-1]
    return None


def _repeat_difference(operator: Operator, first: Batch, again: Batch | None) -> str | None:
    """Describes the difference of two results for the same row; None if they are equal."""
    if again is None or _equal_rows(first, again):
        return None
    return f"{operator.name} returned {_rows_text(first)}, then {_rows_text(again)}"


def _stored_difference(operator: Operator, result: Batch, stored: Batch) -> str | None:
    """Describes the difference of a result from the stored one; None if they are equal."""
    if _equal_rows(result, stored):
        return None
    return (
        f"{operator.name} now returns {_rows_text(result)}, and returned {_rows_text(stored)}"
        " before"
    )


def _equal_rows(one: Batch, other: Batch) -> bool:
    return one.rhash.tobytes() == other.rhash.tobytes() and bool((one.diff == other.diff).all())


def _evaluate_row(
    evaluate: Evaluate, node: Node, operator: Operator, row: Updates, layout: Layout
) -> Batch | None:
    """Evaluates an operator on a row; None if it fails."""
    step = Step([row], [None], [None], (), stage=node.stage, evaluate=evaluate)
    try:
        output = operator.step(step)
    except NosyncError:
        return None
    return arrange(layout, output) if output is not None else arrange(layout, row.take(_NONE))


_NONE = np.zeros(0, np.int64)


def _row_count(trace: Trace | None, one: Batch) -> int:
    """Returns the count of a row in a trace."""
    if trace is None:
        return 0
    return int(row_counts(trace, arrange(trace.layout, one.updates)).sum())


def _rows_text(batch: Batch) -> str:
    """Formats some rows for a message."""
    types = batch.layout.types
    schema = Schema([(f"c{i}", t) for i, t in enumerate(types)])
    shown = named_tuples([rows.slice_(c, 0, 2) for c in batch.columns], schema, min(2, len(batch)))
    return ", ".join(repr(tuple(row)) for row in shown) or "nothing"
