"""The equi-join of two collections: pairs all updates with equal keys, each pair exactly once.

With A, B the inputs before the epoch and dA, dB their changes, the change of the join is `dA x B +
(A + dA) x dB`. The diff of a pair is the product of both diffs. Null keys match nothing. Semi, anti
and outer joins are compositions of this join with `distinct` (see `nosync_nb.collections.joins`).

A cross join has no key columns: all rows have the same key. Its output is the product of its
inputs. Therefore its output in an epoch is limited, and the limit is checked before any allocation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nosync_nb import rows
from nosync_nb.errors import StageError, titled
from nosync_nb.expressions import Types
from nosync_nb.operators.base import JOIN, Operator, Step, UpdateCost
from nosync_nb.operators.spec import (
    AdaptedPart,
    DefinitionPart,
    Key,
    Places,
    RemainingColumns,
    Spec,
)
from nosync_nb.rows import Column
from nosync_nb.rows.arrow import FEW_DECIMALS
from nosync_nb.rows.count_arithmetic import CountError, products
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Batch, Diffs, Layout, Updates, concat_updates, row_of

CROSS_ROWS_MAX = 5_000_000
"""The maximum number of rows that a cross join emits for the change of one side in an epoch. These
are a few hundred megabytes of pairs."""


class PairingJoin(Operator):
    """The base of joins whose output is the pairs of rows that match.

    Attributes:
        keys: the positions of the key columns of both sides, in pairs.
        outputs: the output columns as (side, position).
        needs: the positions of the output columns of each side.
    """

    sorts = False
    additive = True
    in_loop = JOIN
    layouts: tuple[Layout, Layout]

    def __init__(
        self,
        left: Sequence[str],
        right: Sequence[str],
        left_key: Sequence[int],
        right_key: Sequence[int],
        outputs: Sequence[tuple[int, int]],
    ) -> None:
        self.keys = (tuple(left_key), tuple(right_key))
        self.outputs = tuple(outputs)
        sides = (left, right)
        self.types = tuple(sides[s][i] for s, i in outputs)
        self.update_cost = UpdateCost.ROWS if left_key else UpdateCost.EVERYTHING
        self.needs = tuple(tuple(i for s, i in outputs if s == side) for side in (0, 1))

    def step(self, step: Step) -> Updates | None:
        parts = [
            part[0]
            for side, trace in ((0, step.before[1]), (1, step.after[0]))
            if (part := self.pairs(side, step.deltas[side], trace, step)) is not None
        ]
        if not parts:
            return None
        return concat_updates(parts, self.types)

    def with_columns(self, side: int, types: Sequence[str]) -> PairingJoin:
        """Returns the join with additional columns of side `side`, appended to the output."""
        raise AssertionError("a join implements with_columns")

    def pairs(
        self,
        side: int,
        delta: Updates | Batch | None,
        other: Trace | None,
        step: Step,
        beside: tuple[int, ...] = (),
    ) -> tuple[Updates, list[Column]] | None:
        """Pairs the change of one side with the trace of the other.

        Args:
            side: the side of the change: 0 left, 1 right.
            other: the trace of the other side.
            beside: positions of columns of the trace that are returned beside the output.

        Returns:
            the output and the columns `beside`; None without pairs.
        """
        raise AssertionError("a join implements pairs")

    def paired(self, output: list[Column], one: Diffs, other: Diffs) -> Updates:
        """Returns pairs with the product of their diffs.

        Raises:
            CountError: if a product exceeds 64 bits; the error has the row.
        """
        try:
            return Updates(output, products(one, other))
        except CountError as error:
            row = [rows.slice_(c, error.at, error.at + 1) for c in output]
            raise CountError(row=row_of(row, self.types)) from None


class Join(PairingJoin):
    """Joins two inputs on key columns that have the same types.

    Args:
        left, right: the column types of the inputs.
        left_key, right_key: the positions of the key columns, in pairs; empty for a cross join.
        outputs: the output columns as (side, position); side 0 is the left input.
    """

    name = "join"

    def __init__(
        self,
        left: Sequence[str],
        right: Sequence[str],
        left_key: Sequence[int],
        right_key: Sequence[int],
        outputs: Sequence[tuple[int, int]],
    ) -> None:
        super().__init__(left, right, left_key, right_key, outputs)
        self.layouts = (
            Layout(tuple(left), tuple(left_key)),
            Layout(tuple(right), tuple(right_key)),
        )

    def used(self, port: int) -> frozenset[int]:
        return frozenset({*self.keys[port], *self.needs[port]})

    def with_columns(self, side: int, types: Sequence[str]) -> Join:
        left, right = (list(layout.types) for layout in self.layouts)
        wider = (left, right)[side]
        more = [(side, len(wider) + i) for i in range(len(types))]
        wider += types
        return Join(left, right, *self.keys, [*self.outputs, *more])

    def pairs(
        self,
        side: int,
        delta: Updates | Batch | None,
        other: Trace | None,
        step: Step,
        beside: tuple[int, ...] = (),
    ) -> tuple[Updates, list[Column]] | None:
        if delta is None or other is None or not other.layers:
            return None
        assert isinstance(delta, Batch)
        if not self.keys[0]:
            _check_cross(len(delta), other.rows_count, step)
        step.add_touched(len(delta))
        columns, khash, diff = delta.columns, delta.khash, delta.diff
        keys = [columns[i] for i in self.keys[side]]
        present = rows_with_key(keys)
        if present is not None:
            columns = [rows.take(c, present) for c in columns]
            keys = [columns[i] for i in self.keys[side]]
            khash, diff = khash[present], diff[present]
        matches = other.lookup(khash, keys, (*self.needs[1 - side], *beside))
        if matches is None:
            return None
        step.add_touched(len(matches.diff))
        theirs = iter(matches.columns)
        probe = matches.probe
        types = self.layouts[side].types if len(probe) > FEW_DECIMALS else None
        output: list[Column] = []
        for s, i in self.outputs:
            if s != side:
                output.append(next(theirs))
            elif types:  # of objects, a row with many partners would be converted once for each
                output.append(rows.take_many(columns[i], probe, types[i]))
            else:
                output.append(rows.take(columns[i], probe))
        return self.paired(output, diff[probe], matches.diff), list(theirs)


def _check_cross(changed: int, held: int, step: Step) -> None:
    """Checks the output size of a cross join.

    Raises:
        StageError: if the join would emit more than `CROSS_ROWS_MAX` rows; the message names the
            sizes.
    """
    if changed * held > CROSS_ROWS_MAX:
        raise StageError(
            f"{titled(step.stage)}: a cross join of {changed:,} changed rows of one side with"
            f" {held:,} of the other would give {changed * held:,} rows, more than"
            f" {CROSS_ROWS_MAX:,}",
            hint="join on a key or on a range, as in 'a.t BETWEEN b.lo AND b.hi', filter or"
            " aggregate the sides first, or insert fewer rows at a time",
            stage=step.stage,
        )


def rows_with_key(keys: Sequence[Column]) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
    """Returns the positions of the rows without a null key; None if no key is null."""
    mask = None
    for column in keys:
        null = rows.null_mask(column)
        if null is not None:
            mask = null if mask is None else mask | null
    if mask is None or not mask.any():
        return None
    return (~mask).nonzero()[0]


def _build(part: DefinitionPart, types: Types | None) -> Operator:
    left, right = (each.schema.types for each in part.inputs)
    outputs = [(side, place) for side, place in part.params["outputs"]]
    return Join(left, right, part.params["left"], part.params["right"], outputs)


def _adapt_join(
    part: DefinitionPart, inputs: Sequence[RemainingColumns], types: Types | None
) -> AdaptedPart:
    """Requires the key columns, and passes the others on."""
    left, right = inputs[0].moved(part.params["left"]), inputs[1].moved(part.params["right"])
    outputs, lost = [], {}
    for i, (side, place) in enumerate(part.params["outputs"]):
        gone = inputs[side].lost.get(place)
        if gone is None:
            outputs.append([side, *inputs[side].moved([place])])
        else:
            lost[i] = gone
    return AdaptedPart({"left": left, "right": right, "outputs": outputs}, lost)


def _key(part: DefinitionPart, below: Sequence[Key]) -> Key:
    """Returns the key of a side whose rows have at most one partner; else the join key.

    Returns None if a column of this key is not in the output.
    """
    outputs = [tuple(each) for each in part.params["outputs"]]
    sides = part.params["left"], part.params["right"]
    wanted = [(0, place) for place in sides[0]]
    for side, other in ((0, 1), (1, 0)):
        single, own = below[other], below[side]
        if single is not None and own is not None and set(single) <= set(sides[other]):
            wanted = [(side, place) for place in own]
            break
    # A key column of the right side appears under the left name.
    same = {(1, b): (0, a) for a, b in zip(*sides, strict=True)}
    found = [each if each in outputs else same.get(each, each) for each in wanted]
    return tuple(map(outputs.index, found)) if all(each in outputs for each in found) else None


def _reads(part: DefinitionPart, wanted: Places, types: Types | None) -> Sequence[Places]:
    """Returns the key columns and the requested columns of each side."""
    outputs = [part.params["outputs"][i] for i in wanted]
    keys = part.params["left"], part.params["right"]
    return [
        frozenset({*keys[side], *(place for of, place in outputs if of == side)}) for side in (0, 1)
    ]


def pruned_pairs(part: DefinitionPart, kept: Sequence[int]) -> Mapping[str, Any]:
    """Returns the arguments of a join with some of its output columns."""
    return {**part.params, "outputs": [part.params["outputs"][i] for i in kept]}


SPEC = Spec("join", _adapt_join, build=_build, key=_key, reads=_reads, narrowed=pruned_pairs)
