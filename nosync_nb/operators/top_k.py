"""top: the first rows of each group by an order, from a trace with this order inside each key.

For each group that an epoch touches, the first rows before and after the epoch are read and
compared. So a retraction of one of them brings up the next row. A row counts as often as its count
says; a row with a negative count is absent.

Most changes of a large group come after its first rows. Therefore the code of the last of these
rows is cached beside the trace (aggregates/slot_cache.py), and changes after it are not looked up.

Cost: O(layers x (offset + k)) rows for each touched group, whatever its size. It is higher only if
rows cancel, or if many rows have the code of the last one (operators/ordering.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nosync_nb import rows
from nosync_nb.expressions import Types
from nosync_nb.operators.aggregates.slot_cache import GROUPS_MAX
from nosync_nb.operators.base import Operator, Step, UpdateCost
from nosync_nb.operators.grouping import group_rows, key_values, with_key_numbers
from nosync_nb.operators.ordering import OrderColumn, group_heads, order_ranks, placed_order
from nosync_nb.operators.spec import (
    AdaptedPart,
    DefinitionPart,
    Key,
    RemainingColumns,
    Spec,
    refuse_retyped,
)
from nosync_nb.rows import Column
from nosync_nb.rows.count_arithmetic import add_at
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

_END = 2**63 - 1
_MORE = 4  # the number of rows read beyond the requested ones, because some rows cancel
_FURTHER = 8  # the factor by which the number of rows grows with each further lookup


class TopK(Operator):
    """Selects the rows `[offset, offset + k)` of each group; ties are broken by the whole row.

    With `ties`, a row that is equal to the last one by `by` is selected as well.

    Args:
        types: the types of the input columns: the columns of the output, then computed columns to
            order by, and last the order code.
        width: the number of columns that are output.
        keys: the positions of the grouping columns.
        by: the columns that define the order.
        rank: True to append the rank: 1 + the number of rows that come strictly before by `by`.
        ties: True to select all rows with a rank of at most `k`, which may be more than `k` rows.
            The offset is then 0.
    """

    name = "top"
    update_cost = UpdateCost.GROUPS

    def __init__(
        self,
        types: Sequence[str],
        width: int,
        keys: Sequence[int],
        by: Sequence[OrderColumn],
        k: int,
        offset: int,
        rank: bool,
        ties: bool = False,
    ) -> None:
        self.inputs = tuple(types)
        self.width = width
        self.keys = self.output_key = tuple(keys)
        self.by = tuple(by)
        self.first = offset
        self.last = offset + k
        self.rank = rank
        self.ties = ties
        self.types = (*types[:width], "int") if rank else tuple(types[:width])
        self.layouts = (Layout(self.inputs, self.keys, len(types) - 1),)

    def step(self, step: Step) -> Updates | None:
        delta = step.deltas[0]
        if delta is None or not len(delta.diff):
            return None
        assert isinstance(delta, Batch)
        step.add_touched(len(delta))
        n, types = len(delta), [self.inputs[i] for i in self.keys]
        keys = [delta.columns[i] for i in self.keys]
        before, after = step.before[0], step.after[0]
        values = key_values(keys, types, n) if keys else [()]
        bounds = _bounds_of(before, self.last)
        if values is None or len(bounds.codes) > GROUPS_MAX:
            bounds.codes.clear()
        near = bounds.reached(delta.columns[len(self.inputs) - 1], values or ())
        if len(near) < n:
            keys, n = [rows.take(key, near) for key in keys], len(near)
        parts: list[Updates] = []
        if n:
            groups = group_rows(keys, types, n)
            for trace, sign in ((before, -1), (after, 1)):
                ends: dict[int, int] = {}
                if trace is not None and trace.layers:
                    window, ends = self._window(trace, groups.khash, groups.keys, step)
                    parts.append(Updates(window.columns, sign * window.diff))
            if values is not None:
                first = near[groups.order[groups.starts]].tolist() if keys else [0]
                bounds.keep([values[at] for at in first], ends)
        if after is not None:
            after.leave_memo(bounds)
        if not parts:
            return None
        return arrange(Layout(self.types), concat_updates(parts, self.types)).updates

    def _window(
        self, trace: Trace, khash: Hashes, keys: Sequence[Column], step: Step
    ) -> tuple[Updates, dict[int, int]]:
        """Returns the output of some groups; reads more rows until enough are found.

        Returns:
            the output; and by group the order code of its last row within `offset + k`, for groups
            that have at least this number of rows.
        """
        pending = np.arange(len(khash))
        whole: list[Updates] = []
        look = self.last + _MORE
        types = (*self.inputs, "bigint")
        while len(pending):
            taken = [rows.take(k, pending) for k in keys]
            head, probe, open_ = group_heads(trace, khash[pending], taken, look, step, last=False)
            batch = with_key_numbers(head, probe, self.inputs)
            there = (batch.diff > 0).nonzero()[0]
            diff = batch.diff if self.ties else np.minimum(batch.diff, self.last)
            copies = Updates(batch.columns, diff).take(there)
            probe = np.asarray(copies.columns[-1])
            count = np.zeros(len(pending), np.int64)
            add_at(count, probe, copies.diff)
            done = ~open_ | (count >= self.last)
            copies = copies.take(done[probe].nonzero()[0])
            group_of = pending[np.asarray(copies.columns[-1])]
            whole.append(Updates([*copies.columns[:-1], group_of], copies.diff))
            pending = pending[~done]
            look *= _FURTHER
        return (
            self._copies_within(concat_updates(whole, types))
            if whole
            else (no_updates(self.types), {})
        )

    def _copies_within(self, head: Updates) -> tuple[Updates, dict[int, int]]:
        """Selects the output among the first rows of each group; returns the same as `_window`."""
        if not head:
            return no_updates(self.types), {}
        own, types = head.columns[: self.width], self.inputs[: self.width]
        place = np.empty(len(head.diff), np.int64)
        place[rows.sort_indices(own, types)] = np.arange(len(place))
        numbers = order_ranks(head.columns, self.inputs, self.by)
        probe = np.asarray(head.columns[-1])
        order = np.lexsort((place, *reversed(numbers), probe))
        probe, diff = probe[order], head.diff[order]
        new = np.ones(len(order), bool)
        new[1:] = probe[1:] != probe[:-1]
        end = diff.cumsum()
        base = (end - diff)[new][new.cumsum() - 1]
        end -= base
        begin = end - diff
        before = begin
        if self.rank or self.ties:
            for number in numbers:
                new[1:] |= number[order][1:] != number[order][:-1]
            before = begin[new][new.cumsum() - 1]  # of the first row that is equal by `by`
        kept = np.minimum(end, self.last) - np.maximum(begin, self.first)
        if self.ties:
            kept = np.where(before < self.last, diff, 0)
        some = (kept > 0).nonzero()[0]
        edge = ((begin < self.last) & (end >= self.last)).nonzero()[0]
        codes = np.asarray(head.columns[len(self.inputs) - 1])[order[edge]]
        ends = dict(zip(probe[edge].tolist(), codes.tolist(), strict=True))
        columns = [rows.take(c, order[some]) for c in own]
        if self.rank:
            columns.append((before + 1)[some].astype(np.int32))
        return Updates(columns, kept[some]), ends


class _Bounds:
    """The order codes at which the first rows of groups end, cached beside their trace.

    Attributes:
        last: the number of first rows, `offset + k`.
        codes: by group key the order code of row number `last`; groups with fewer rows are missing.
    """

    __slots__ = ("codes", "last")

    def __init__(self, last: int) -> None:
        self.last = last
        self.codes: dict[object, int] = {}

    def reached(self, codes: Column, groups: Sequence[object]) -> Index:
        """Returns the positions of the rows that may be among the first of their group.

        Args:
            codes: the order code of each row.
            groups: the key of each row, or a single key for all rows; empty if nothing is cached.
        """
        known = [self.codes.get(key, _END) for key in groups] if self.codes else []
        if not known:
            return np.arange(len(codes))
        index: Index = (np.asarray(codes) <= np.array(known)).nonzero()[0]
        return index

    def keep(self, groups: Sequence[object], ends: Mapping[int, int]) -> None:
        """Caches the ends of some groups, which are given by the position of the group.

        A group without an end has too few rows, and is removed from the cache.
        """
        for number, key in enumerate(groups):
            self.codes.pop(key, None)
            if number in ends:
                self.codes[key] = ends[number]


def _bounds_of(trace: Trace | None, last: int) -> _Bounds:
    """Takes the cached ends for `last` rows from a trace, which transfers their ownership.

    Returns empty ends if the trace has none for this number of rows.
    """
    memo = None if trace is None else trace.take_memo()
    return memo if isinstance(memo, _Bounds) and memo.last == last else _Bounds(last)


def _build(part: DefinitionPart, types: Types | None) -> Operator:
    p = part.params
    by = [OrderColumn(*each) for each in p["by"]]
    inputs = part.inputs[0].schema.types
    ties = p.get("ties", False)
    return TopK(inputs, p["width"], p["keys"], by, p["k"], p["offset"], p["rank"], ties)


def _adapt_top_k(
    part: DefinitionPart, inputs: Sequence[RemainingColumns], types: Types | None
) -> AdaptedPart:
    """Requires the columns of the key and of the order; other columns must not be retyped."""
    refuse_retyped(inputs[0].lost)
    keys = inputs[0].moved(part.params["keys"])
    width = part.params["width"] - len(inputs[0].lost)
    by = placed_order(part.params["by"], inputs[0])
    return AdaptedPart({**part.params, "keys": keys, "by": by, "width": width}, inputs[0].lost)


def _key(part: DefinitionPart, below: Sequence[Key]) -> Key:
    """Returns the group's key if the output has one row for each group; else the input's key."""
    keys, several = part.params["keys"], part.params["rank"] or part.params.get("ties", False)
    return tuple(keys) if part.params["k"] == 1 and not several else below[0]


SPEC = Spec("top", _adapt_top_k, build=_build, key=_key)
