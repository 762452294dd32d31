"""reduce: a Python function of a whole group, called again for the groups that change.

The function receives the consolidated rows of the group in canonical order; a row with count n
appears n times. So its result cannot depend on the batching of updates. It is never called for an
empty group. Its earlier results are stored in a trace and retracted from there, never recomputed.

A row with a negative count is absent, as in `distinct` and `top`, because a list cannot contain a
row fewer than 0 times. Its count is still maintained, so the row appears when the count is above 0.

The function must not change the list, or values inside its rows. Duplicates of a row are the same
object, so a change of one of them would appear in all.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from nosync_nb import rows
from nosync_nb.errors import StageError, titled, warn
from nosync_nb.expressions import Types
from nosync_nb.operators import user_functions
from nosync_nb.operators.base import Operator, Step, UpdateCost
from nosync_nb.operators.grouping import first_of_keys, with_key_numbers
from nosync_nb.operators.spec import DefinitionPart, Spec, every_column, group_key
from nosync_nb.rows import Column, Schema
from nosync_nb.rows.types import is_nested
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange, concat_updates

_LARGE_GROUP = 100_000
_TOLD: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


class Reduce(Operator):
    """Calls `function(key, rows)` for each group that an epoch touches.

    Args:
        keys: the positions of the key columns.
        function: receives the key (a named tuple, or the value of a single key column) and a list
            of named tuples, which it must not change; yields tuples of the schema `output`.
        keeps: True if another call may return another result, so the trace of results cannot be
            recomputed.
    """

    name = "reduce"
    update_cost = UpdateCost.PARTITIONS
    asks = True

    def __init__(
        self,
        schema: Schema,
        keys: Sequence[int],
        function: Callable[..., Any],
        output: Schema,
        *,
        keeps: bool = False,
    ) -> None:
        self.memoises = keeps
        self.schema = schema
        self.keys = tuple(keys)
        self.function = function
        self.output = output
        self.key_schema = Schema([schema.fields[i] for i in keys])
        self.types = (*self.key_schema.types, *output.types)
        self.nested = any(map(is_nested, schema.types))
        self.layouts = (Layout(schema.types, self.keys),)
        self.output_key = tuple(range(len(keys)))
        self.state = (Layout(self.types, self.output_key),)

    def keeping(self) -> Operator:
        return Reduce(self.schema, self.keys, self.function, self.output, keeps=True)

    def step(self, step: Step) -> Updates | None:
        delta, trace = step.deltas[0], step.after[0]
        if delta is None or trace is None:
            return None
        assert isinstance(delta, Batch)
        index = first_of_keys(delta)
        khash = delta.khash[index]
        keys = [rows.take(delta.columns[i], index) for i in self.keys]
        parts = []
        old = step.state[0].lookup(khash, keys)
        if old is not None:
            step.add_touched(len(old.diff))
            parts.append(Updates(old.columns, -old.diff))
        new = self._evaluate(khash, keys, step)
        if new is not None:
            parts.append(new)
        if not parts:
            return None
        change = arrange(self.state[0], concat_updates(parts, self.types))
        if not len(change):
            return None
        step.emitted[0] = change
        return change.updates

    def _evaluate(self, khash: Any, keys: list[Any], step: Step) -> Updates | None:
        """Returns the function's results for all touched groups that are not empty."""
        trace = step.after[0]
        assert trace is not None
        matches = trace.lookup(khash, keys)
        if matches is None:
            return None
        step.add_touched(len(matches.diff))
        looked = Updates(matches.columns, matches.diff)
        held = with_key_numbers(looked, matches.probe, self.schema.types)
        # a row with a negative count is absent
        there = held.updates.take((held.diff > 0).nonzero()[0])
        columns, probe = there.columns[:-1], np.asarray(there.columns[-1])
        order = rows.sort_indices([probe, *columns], ("bigint", *self.schema.types))
        given = user_functions.named_tuples(
            [rows.take(c, order) for c in columns], self.schema, len(order)
        )
        counts = there.diff[order].tolist()
        produced: list[list[Any]] = []
        owners: list[int] = []
        shown = [
            key[0] if len(key) == 1 else key
            for key in user_functions.named_tuples(keys, self.key_schema, len(khash))
        ]
        start = 0
        probes = probe[order].tolist()
        while start < len(probes):
            stop = start
            while stop < len(probes) and probes[stop] == probes[start]:
                stop += 1
            group = probes[start]
            produced.append(self._call(shown[group], given[start:stop], counts[start:stop], step))
            owners.append(group)
            start = stop
        columns = self._columns(produced, [shown[group] for group in owners], step)
        owner = np.array(owners, np.int64).repeat([len(result) for result in produced])
        return Updates(
            [*(rows.take(k, owner) for k in keys), *columns], np.ones(len(owner), np.int64)
        )

    def _columns(self, produced: list[list[Any]], shown: list[Any], step: Step) -> list[Column]:
        """Converts the results of the function for each group to columns.

        Raises:
            StageError: if a row does not fit the schema `output`; the message names its group.
        """
        what = user_functions.function_title(self.function, self.name)
        try:
            every = [row for result in produced for row in result]
            return user_functions.result_columns(every, self.output, step.stage, what)
        except StageError:
            for key, result in zip(shown, produced, strict=True):
                try:
                    user_functions.result_columns(
                        result, self.output, step.stage, f"{what} of {key!r}"
                    )
                except StageError as error:
                    error.at(key)
                    raise
            raise

    def _call(self, key: Any, group: list[Any], counts: list[int], step: Step) -> list[Any]:
        """Calls the function on one group, and checks that it does not change its argument."""
        copies = [row for row, count in zip(group, counts, strict=True) for _ in range(count)]
        if len(copies) > _LARGE_GROUP and _first_time(self.function, step.stage):
            warn(
                f"{titled(step.stage)}: reduce recomputes a group of {len(copies)} rows"
                " whenever one of them changes; an aggregate with agg() costs only the change",
                stacklevel=None,
            )
        kept = copy.deepcopy(copies) if self.nested else tuple(copies)
        value = user_functions.call_user_function(
            self.function, step.stage, key, key, copies, operator=self.name
        )
        result = user_functions.checked_rows(
            value, self.function, step.stage, key, operator=self.name
        )
        if list(kept) != copies:
            name = user_functions.function_title(self.function, self.name)
            raise StageError(
                f"{titled(step.stage)}: {name} modified its argument, the rows of {key!r}",
                hint="work on a copy, as in sorted(rows) or list(rows)",
                stage=step.stage,
                row=key,
            )
        return result


def _first_time(function: Any, stage: str) -> bool:
    """Returns True at the first call for a function and a stage.

    It is recorded outside the operator, because the operator of a stage may be rebuilt.
    """
    try:
        warned = _TOLD.setdefault(function, set())
    except TypeError:  # the function is neither hashable nor weakly referable
        return True
    fresh = stage not in warned
    warned.add(stage)
    return fresh


def _build(part: DefinitionPart, types: Types | None) -> Operator:
    keys = part.params["keys"]
    output = Schema(part.schema.fields[len(keys) :])
    return Reduce(part.inputs[0].schema, keys, part.functions[0], output)


SPEC = Spec("reduce", every_column, build=_build, key=group_key)
