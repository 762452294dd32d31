"""Operators by key inside a loop: evaluated from scratch for the keys and times that need it.

At time T the output of a key is the operator over the input rows at T, less the output rows that
exist at T already. A key is evaluated again at the least upper bound of T with every time at which
its input or output changes later. That evaluation schedules further times in turn, so all bounds
are reached, also those of three and more times that nested loops have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nosync_nb import rows
from nosync_nb.operators.base import Operator, Step
from nosync_nb.operators.grouping import first_of_keys, group_rows
from nosync_nb.operators.iterate.nested_trace import NestedTrace, Time
from nosync_nb.operators.iterate.plan import LoopNode
from nosync_nb.rows import Column
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import (
    Batch,
    Hashes,
    Index,
    Layout,
    Updates,
    arrange,
    concat_updates,
    no_updates,
)


class KeyBatch(NamedTuple):
    """Keys to evaluate, with their hashes."""

    khash: Hashes
    columns: list[Column]

    @classmethod
    def of_all(cls) -> KeyBatch:
        """Returns the one key of an operator without grouping columns."""
        return cls(rows.hash_columns([], (), 1), [])

    @classmethod
    def merged(cls, parts: Sequence[KeyBatch], types: Sequence[str]) -> KeyBatch | None:
        """Returns each key of `parts` once, None if there is no key."""
        n = sum(len(p.khash) for p in parts)
        if not n:
            return None
        if not types:
            return cls.of_all()
        if len(parts) == 1 and bool((parts[0].khash[1:] != parts[0].khash[:-1]).all()):
            return parts[0]
        columns = [rows.concat([p.columns[i] for p in parts], t) for i, t in enumerate(types)]
        groups = group_rows(columns, types, n)
        return cls(groups.khash, groups.keys)

    def select(self, index: Index) -> KeyBatch:
        """Returns the keys at `index`, each once."""
        index = np.unique(index)
        return KeyBatch(self.khash[index], [rows.take(c, index) for c in self.columns])


def key_types(operator: Operator) -> tuple[str, ...]:
    """Returns the types of the key by which an operator works."""
    layout = operator.grouping(0)
    return tuple(layout.types[place] for place in layout.places)


def keys_of(batch: Batch) -> KeyBatch:
    """Returns the keys of a batch, each once."""
    columns = [batch.columns[place] for place in batch.layout.places]
    index = first_of_keys(batch)
    if len(index) == len(batch):
        return KeyBatch(batch.khash, columns)
    return KeyBatch(batch.khash[index], [rows.take(column, index) for column in columns])


def evaluate_keys(
    node: LoopNode, keys: KeyBatch, time: Time, states: Sequence[NestedTrace], step: Step
) -> tuple[Updates | None, list[tuple[Time, Index]]]:
    """Updates the output of some keys for a time.

    Returns:
        the change, and (later time, keys) at which they are evaluated again.
    """
    operator = node.operator
    assert operator is not None
    later: list[tuple[Time, Index]] = []
    inputs: list[Updates | None] = []
    for port, source in enumerate(node.ports):
        state = node.states[port]
        if state is None:
            trace = step.after[source.number]
            matches = None if trace is None else trace.lookup(keys.khash, keys.columns)
            inputs.append(None if matches is None else Updates(matches.columns, matches.diff))
            continue
        held = states[state].at(time, keys.khash, keys.columns)
        inputs.append(None if held is None else held.updates)
        if held is not None:
            later += held.later
    output = node.states[-1]
    assert output is not None
    step.add_touched(len(keys.khash) + sum(len(i.diff) for i in inputs if i is not None))
    parts = []
    new = evaluate_from_scratch(operator, inputs, step)
    if new is not None and len(new.diff):
        parts.append(new)
    old = states[output].at(time, keys.khash, keys.columns)
    if old is not None:
        later += old.later
        if len(old.updates.diff):
            parts.append(old.updates.negated())
    step.add_touched(sum(len(probe) for _, probe in later))
    if not parts:
        return None, later
    layout = Layout(operator.types, operator.output_key)
    change = arrange(layout, concat_updates(parts, operator.types))
    if not len(change):
        return None, later
    states[output].append(change, time)
    return change.updates, later


def evaluate_from_scratch(
    operator: Operator, inputs: Sequence[Updates | None], step: Step
) -> Updates | None:
    """Returns the output of an operator over inputs that have no other rows."""
    deltas: list[Updates | Batch | None] = []
    before: list[Trace | None] = []
    after: list[Trace | None] = []
    for layout, updates in zip(operator.layouts, inputs, strict=True):
        if layout is None:
            types = operator.grouping(len(deltas)).types
            deltas.append(updates if updates is not None else no_updates(types))
            before.append(None)
            after.append(None)
            continue
        batch = None if updates is None else arrange(layout, updates)
        if batch is not None and not len(batch):
            batch = None
        deltas.append(batch)
        before.append(Trace(layout))
        after.append(Trace(layout) if batch is None else Trace.of(batch))
    state = [Trace(layout) for layout in operator.state]
    if not operator.global_row and all(d is None or not len(d.diff) for d in deltas):
        return None
    inner = Step(deltas, before, after, state, stage=step.stage, first=True, evaluate=step.evaluate)
    rows_count = sum(len(d.diff) for d in deltas if d is not None)
    if step.place is not None and step.place.wants(rows_count):
        given = [operator.grouping(port).types for port in range(len(deltas))]
        return step.place.run(operator, inner, given)
    return operator.step(inner)
