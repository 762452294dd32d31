"""Counts of few groups: the scalar path gives what numpy gives, in the same order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from internals import graph_of

import nosync_nb
from nosync_nb.operators.aggregates.aggregate import Aggregate
from nosync_nb.operators.aggregates.slot_cache import CountSlotCache, ScalarCounts
from nosync_nb.operators.base import Step
from nosync_nb.operators.grouping import FEW, key_values
from nosync_nb.rows import objects
from nosync_nb.rows.count_arithmetic import CountError
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Updates, arrange

COUNTS = st.one_of(st.integers(-3, 3), st.sampled_from([2**62, -(2**62), 2**63 - 1]))
ROWS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from([None, 1]), COUNTS), min_size=1, max_size=FEW
)


@pytest.fixture(scope="module")
def operator(tmp_path_factory: Any) -> Aggregate:
    """Two counts of rows by two keys, compiled as for users."""
    with nosync_nb.open(tmp_path_factory.mktemp("few") / "few.nosync") as session:
        rows = session.input("rows", "k string, j int")
        session.stage("stage", rows.group_by("k", "j").agg(n="count(*)", again="count(1)"))
        (operator,) = (
            node.operator for node in graph_of(session) if isinstance(node.operator, Aggregate)
        )
    assert isinstance(operator.few, ScalarCounts)
    return operator


def updates_of(rows: list[Any]) -> Updates:
    columns = [objects([row[i] for row in rows]) for i in (0, 1)]
    return Updates(columns, np.array([row[2] for row in rows], np.int64))


def run(operator: Aggregate, epochs: list[list[Any]], *, few: bool) -> list[Any]:
    """The output rows and the state change of each epoch until one fails."""
    (layout,) = operator.state
    trace, memo = Trace(layout), CountSlotCache()
    made: list[Any] = []
    for epoch, rows in enumerate(epochs):
        updates = updates_of(rows)
        step = Step((updates,), (None,), (None,), (trace,))
        step.memo = memo
        keys = updates.columns
        try:
            if few:
                values = key_values(keys, operator.key_types, len(rows))
                assert values is not None
                assert operator.few is not None
                output = operator.few.step(values, keys, updates.diff, step)
            else:
                slow = Aggregate.__new__(Aggregate)
                vars(slow).update(vars(operator), few=None)
                output = slow.step(step)
        except CountError:
            return [*made, "too many"]
        (emitted,) = step.emitted
        made.append((texts(output), None if emitted is None else sorted(texts(emitted.updates))))
        if emitted is not None:
            trace = trace.with_batch(arrange(layout, emitted.updates))
        if epoch % 2:  # a memo knows some groups, or none
            memo = CountSlotCache()
    return made


def texts(updates: Updates | None) -> list[str]:
    if updates is None:
        return []
    columns = [column.tolist() for column in updates.columns]
    return [repr(row) for row in zip(*columns, updates.diff.tolist(), strict=True)]


@given(st.lists(ROWS, min_size=1, max_size=4))
@example([[("a", 1, 2**62)], [("a", 1, 2**62)]])
@example([[("a", 1, 2)], [("a", 1, -1), ("b", 1, 1)], [("a", 1, -1)], [("a", 1, -1)]])
@example([[("a", 1, 1), ("a", 1, -1)], [("a", None, 0)]])
def test_scalar_counts_equal_vectorised_ones(operator: Aggregate, epochs: list[list[Any]]) -> None:
    assert run(operator, epochs, few=True) == run(operator, epochs, few=False)
