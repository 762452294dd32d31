"""Minima and maxima over all rows of a group before a code, for frames that begin with the group.

The extreme value of each block of a part is computed once, and freed with the part. Values that
later parts have removed are excluded: only the blocks that contain such rows are read again.

This needs order codes that distinguish all values, and rows without negative counts; the caller
reads the rows otherwise.

Cost: O(blocks) numbers in each part, and BLOCK rows for each removed row of the group.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nosync_nb import rows
from nosync_nb.expressions import AggregateCall
from nosync_nb.operators.base import Step
from nosync_nb.operators.linear import evaluate
from nosync_nb.operators.windows.intervals import Intervals, Mask, positions
from nosync_nb.operators.windows.prefixes import BLOCK, cached_sums, has_equal_hashes
from nosync_nb.rows import Column, Schema
from nosync_nb.trace import Trace, hash_ranges
from nosync_nb.trace.batch import Batch, Hashes, Index


class Extremes(NamedTuple):
    """The extreme value of some rows of each interval.

    Attributes:
        there: a mask of the intervals with such a value.
        codes: the codes of the values; the greatest code is that of the extreme value.
        values: the values; null where there is none.
    """

    there: Mask
    codes: Hashes
    values: Column


class _Blocks(NamedTuple):
    """The greatest code of each block of a part, and a mask of the blocks that have one."""

    codes: Hashes
    there: Mask


class RunningExtreme:
    """A minimum or maximum over the rows of groups before a code.

    Args:
        call: the aggregate, whose order codes are exact.
        schema: the columns of the rows.
    """

    def __init__(self, call: AggregateCall, schema: Schema) -> None:
        assert call.argument is not None
        self._argument, self._schema = call.argument, schema
        self.type, self._least = call.argument.type, call.function == "min"
        self.key = (call.function, call.argument.fingerprint)

    def codes(self, column: Column) -> tuple[Hashes, Mask]:
        """Returns the codes of values, the greatest for the extreme one; a mask of the values."""
        codes = rows.order_codes(column, self.type)
        missing = rows.null_mask(column)
        present = np.ones(len(column), bool) if missing is None else ~missing
        return (~codes if self._least else codes), present

    def _values(self, part: Batch, index: Index, step: Step) -> Column:
        step.add_touched(len(index))
        some = part.updates.take(index)
        return evaluate([self._argument], self._schema, some, step)[0]

    def before(
        self, trace: Trace, intervals: Intervals, bound: Hashes, step: Step, *, inclusive: bool
    ) -> Extremes | None:
        """Returns the extreme values of the rows before a code of each interval's group.

        Args:
            inclusive: True for the rows at the code too.

        Returns:
            the values; None if the parts do not have them.
        """
        n = intervals.size
        parts = [part for part in trace.parts() if len(part)]
        ranges = []
        for part in parts:
            assert part.code is not None
            first: Index = part.khash.searchsorted(intervals.khash)
            last: Index = part.khash.searchsorted(intervals.khash, "right")
            if first.tobytes() != last.tobytes() and has_equal_hashes(part):
                return None
            last = positions(part.code, first, last, bound, after=inclusive)
            there = (last > first).nonzero()[0]
            for key, place in zip(intervals.keys, part.layout.key or (), strict=True):
                held = rows.take(part.columns[place], first[there])
                same = rows.equal(held, rows.take(key, there), part.layout.types[place])
                last[there[~same]] = first[there[~same]]
            ranges.append((first, last))
        found = Extremes(np.zeros(n, bool), np.zeros(n, np.uint64), rows.full_null(self.type, n))
        values = [found.values]
        at = np.arange(n)
        size = n
        for i in range(n):
            own = [(part, int(a[i]), int(b[i])) for part, (a, b) in zip(parts, ranges, strict=True)]
            own = [each for each in own if each[2] > each[1]]
            gone = self._removed(own, step)
            for (part, a, b), excluded in zip(own, gone, strict=True):
                best = self._best(part, a, b, excluded, step)
                if best is None or (found.there[i] and best[0] <= found.codes[i]):
                    continue
                found.there[i], found.codes[i] = True, best[0]
                values.append(best[1])
                at[i], size = size, size + 1
        every = rows.concat(values, self.type)
        return found._replace(values=rows.take(every, at))

    def _removed(self, own: list[tuple[Batch, int, int]], step: Step) -> list[Index]:
        """Returns the rows of each part that do not exist any more, because others removed them."""
        nothing = np.zeros(0, np.int64)
        removals = [
            (part, a, b, a + (part.diff[a:b] < 0).nonzero()[0])
            for part, a, b in own
            if cached_sums(part).removes(part)
        ]
        wanted = [part.code[index] for part, _, _, index in removals if part.code is not None]
        code = np.unique(np.concatenate(wanted)) if wanted else np.zeros(0, np.uint64)
        if not len(code):
            return [nothing for _ in own]
        index: list[Index] = []
        for part, a, b in own:
            assert part.code is not None
            low, high = np.full(len(code), a), np.full(len(code), b)
            start = positions(part.code, low, high, code)
            stop = positions(part.code, low, high, code, after=True)
            index.append(hash_ranges(start, stop - start))
        owner = np.arange(len(own)).repeat([len(each) for each in index])
        pieces = [(part, at) for (part, _, _), at in zip(own, index, strict=True)]
        given = [self._values(part, at, step) for part, at in pieces]
        value = self.codes(rows.concat(given, self.type))[0]
        at_code = np.concatenate([part.code[at] for part, at in pieces if part.code is not None])
        diff = np.concatenate([part.diff[at] for part, at in pieces])
        _, first = np.unique(at_code, return_inverse=True)
        _, second = np.unique(value, return_inverse=True)
        _, number = np.unique(first * (len(value) + 1) + second, return_inverse=True)
        count = np.zeros(len(number), np.int64)
        np.add.at(count, number, diff)
        absent = count[number] <= 0
        return [at[absent[owner == i]] for i, at in enumerate(index)]

    def _best(
        self, part: Batch, a: int, b: int, excluded: Index, step: Step
    ) -> tuple[np.uint64, Column] | None:
        """Returns the greatest code in rows `[a, b)` of a part, without some, and its value."""
        low, high = -(-a // BLOCK), b // BLOCK
        read = [np.arange(a, min(low * BLOCK, b)), np.arange(max(high * BLOCK, a), b)]
        if high <= low:
            read = [np.arange(a, b)]
        else:
            blocks = self._blocks(part, step)
            there = blocks.there[low:high].copy()
            dirty = np.unique(excluded // BLOCK)
            dirty = dirty[(dirty >= low) & (dirty < high)]
            there[dirty - low] = False
            read += [np.arange(d * BLOCK, (d + 1) * BLOCK) for d in dirty.tolist()]
            if there.any():
                chosen = np.where(there, blocks.codes[low:high], 0)
                at = int(chosen.argmax())
                top = low + (at if there[at] else int(there.argmax()))
                read.append(np.arange(top * BLOCK, min((top + 1) * BLOCK, len(part))))
        index = np.concatenate(read)
        index = index[(part.diff[index] > 0) & ~np.isin(index, excluded)]
        values = self._values(part, index, step)
        codes, present = self.codes(values)
        if not present.any():
            return None
        best = int(np.where(present, codes, 0).argmax())
        if not present[best]:
            best = int(present.argmax())
        return codes[best], rows.take(values, np.array([best]))

    def _blocks(self, part: Batch, step: Step) -> _Blocks:
        """Returns the greatest code of each block, of the rows that a part adds."""
        cached = cached_sums(part)
        found = cached.extremes.get(self.key)
        if found is None:
            value = evaluate([self._argument], self._schema, part.updates, step)[0]
            codes, present = self.codes(value)
            present = present & (part.diff > 0)
            starts = np.arange(0, len(part), BLOCK)
            found = _Blocks(
                np.maximum.reduceat(np.where(present, codes, 0), starts),
                np.logical_or.reduceat(present, starts),
            )
            cached.extremes[self.key] = found
        return _Blocks(*found)
