"""The range join: pairs the rows of two collections whose value is between the other row's bounds.

One side, the points, has a value. The other side, the intervals, has a lower bound, an upper bound,
or both. A pair also has equal keys, if there are keys. Null values, bounds and keys match nothing.
The changes are paired as in the equi-join (join.py).

The points are ordered by their value inside each key, so a changed interval reads only its matches.
Intervals with one bound are ordered by that bound, so a changed point reads only its matches, too.

Design of two bounds: an interval is stored at the highest node of a binary tree over all 64-bit
order codes that is inside of it. The height of the node is that of the first bit in which the codes
of its bounds differ. A point is inside of intervals at its own ancestors only, one of each height.
At an ancestor above the point, an interval contains the point if its lower bound is not above it.
At any other ancestor, an interval contains the point if its upper bound is not below it. Therefore
each interval is stored twice: by (height, lower bound) and by (height, upper bound). An order by
height and bound is also one by node, because the nodes of a height are disjoint. A lookup in it
reads matches only.
Source: Kriegel, Poetke, Seidl, *Managing Intervals Efficiently in Object-Relational Databases*,
VLDB 2000; Edelsbrunner, *A new approach to rectangle intersections*, 1983.

The two parts of this order share one 64-bit number. So bounds lose their leading bits in low nodes
and their last bits in high nodes. Codes of text and wide decimals are inexact anyway. Each match is
compared again by the codes of its bounds. If those are inexact, the reader filters the pairs.

Cost: O(layers x heights x log rows) for each changed point, O(layers x log rows) for each changed
interval, and the matches. `heights` is the number of different heights in a layer, at most 64. For
more points than half of the intervals, the intervals are looked up in the points instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nosync_nb import rows
from nosync_nb.errors import StageError, titled
from nosync_nb.expressions import Types
from nosync_nb.operators.base import Operator, RowPiece, Step
from nosync_nb.operators.join import CROSS_ROWS_MAX, PairingJoin, pruned_pairs, rows_with_key
from nosync_nb.operators.spec import (
    AdaptedPart,
    DefinitionPart,
    Key,
    Places,
    RemainingColumns,
    Spec,
    same_key,
)
from nosync_nb.rows import Column
from nosync_nb.rows.types import FIXED, decimal_parts
from nosync_nb.trace import Trace, hash_ranges
from nosync_nb.trace.batch import (
    Batch,
    Diffs,
    Hashes,
    Index,
    Layout,
    Updates,
    arrange,
    concat_updates,
)
from nosync_nb.trace.stats import place_in

Mask = npt.NDArray[np.bool_]

_SIGN = np.uint64(1 << 63)
_ALL = np.uint64(2**64 - 1)
_ONE = np.uint64(1)
_LONG_DIGITS = 18
_BITS = np.uint64(57)
"""The number of bits of a bound in an interval code. Before it come its side and its height."""
_LOW_BITS = np.uint64((1 << 57) - 1)
_LOST_BITS = np.uint64(7)
_WHOLE = np.uint64(56)
"""The greatest height at which the last 57 bits of a bound order the intervals of a node."""
_BY_LOW, _BY_HIGH = np.uint64(0), np.uint64(64)
"""Added to the height in the code of an interval, by the bound that orders it."""


def has_exact_codes(type_: str) -> bool:
    """Returns True if values of a type are ordered and equal exactly as their order codes."""
    if type_.startswith("decimal"):
        return decimal_parts(type_)[0] <= _LONG_DIGITS
    return type_ in FIXED


class Bounds(NamedTuple):
    """The bounds of intervals.

    Attributes:
        low, high: the positions of the bounds; None for an interval without this bound.
        above, below: True if points must be above the lower bound, below the upper one. A strict
            bound is allowed only if the codes of the type are exact.
    """

    low: int | None
    high: int | None
    above: bool = False
    below: bool = False

    @property
    def places(self) -> tuple[int, ...]:
        """The positions of the columns."""
        return tuple(each for each in (self.low, self.high) if each is not None)

    def codes(
        self, columns: Sequence[Column], types: Sequence[str], n: int
    ) -> tuple[Hashes, Hashes, Mask]:
        """Returns the first and the last code in each interval, and a mask of non-empty ones."""
        low, high, some = np.zeros(n, np.uint64), np.full(n, _ALL), np.ones(n, np.bool_)
        if self.low is not None:
            low = rows.order_codes(columns[self.low], types[self.low])
            if self.above:
                some &= low < _ALL
                low = low + _ONE
        if self.high is not None:
            high = rows.order_codes(columns[self.high], types[self.high])
            if self.below:
                some &= high > 0
                high = high - _ONE
        for place in self.places:
            missing = rows.null_mask(columns[place])
            if missing is not None:
                some &= ~missing
        return low, high, some & (low <= high)


class IntervalCodes(RowPiece):
    """Appends the code that orders intervals with two bounds, and emits each interval twice.

    One copy is ordered by its lower bound, the other by its upper one. Intervals that contain no
    value are dropped.
    """

    name = "intervals"

    def __init__(self, types: Sequence[str], bounds: Bounds) -> None:
        self.types = tuple(types)
        self.bounds = bounds

    def apply(self, updates: Updates, step: Step) -> Updates:
        low, high, some = self.bounds.codes(updates.columns, self.types, len(updates.diff))
        index = some.nonzero()[0]
        low, high = low[index], high[index]
        height = _heights(low, high)
        code = np.concatenate([_code(low, height, _BY_LOW), _code(high, height, _BY_HIGH)])
        both = updates.take(np.concatenate([index, index]))
        return Updates([*both.columns, (code ^ _SIGN).view(np.int64)], both.diff)

    def types_after(self, types: tuple[str, ...]) -> tuple[str, ...]:
        return (*types, "bigint")


def _heights(low: Hashes, high: Hashes) -> Hashes:
    """Returns the position of the first bit in which two codes differ; 0 if they are equal."""
    differ = low ^ high
    # Without the bit after the first one, the conversion to a double cannot round up to a power.
    first = (differ & ~(differ >> _ONE)).astype(np.float64)
    heights: Hashes = np.maximum(np.frexp(first)[1] - 1, 0).astype(np.uint64)
    return heights


def _code(bound: Hashes, height: Hashes, side: np.uint64 | Hashes) -> Hashes:
    """Returns the code of an interval by one of its bounds."""
    field = np.where(height <= _WHOLE, bound & _LOW_BITS, bound >> _LOST_BITS)
    code: Hashes = ((height + side) << _BITS) | field
    return code


class _Points(NamedTuple):
    """Points whose intervals are looked up."""

    columns: Sequence[Column]
    khash: Hashes
    diff: Diffs
    code: Hashes


class _Intervals(NamedTuple):
    """Intervals whose points are looked up: `low` and `high` are the first and the last code."""

    columns: Sequence[Column]
    khash: Hashes
    diff: Diffs
    low: Hashes
    high: Hashes


class _Hits(NamedTuple):
    """Pairs of rows that may match.

    Attributes:
        sides: the columns and the diffs of the points, and those of the intervals.
        positions: the positions of the pairs in both sides.
    """

    sides: tuple[tuple[Sequence[Column], Diffs], tuple[Sequence[Column], Diffs]]
    positions: tuple[Index, Index]


class RangeJoin(PairingJoin):
    """Joins points with the intervals that contain them, of equal keys.

    Args:
        points, intervals: the column types of the inputs.
        point_key, interval_key: the positions of the key columns, in pairs; empty without keys.
        at: the position of the value of a point.
        bounds: the bounds of an interval, of the same type.
        order: the position of the column that orders the intervals of a key: the code that
            `IntervalCodes` appends, or the only bound.
        outputs: the output columns as (side, position); side 0 is the points.
    """

    name = "range_join"

    def __init__(
        self,
        points: Sequence[str],
        intervals: Sequence[str],
        point_key: Sequence[int],
        interval_key: Sequence[int],
        at: int,
        bounds: Bounds,
        order: int,
        outputs: Sequence[tuple[int, int]],
    ) -> None:
        super().__init__(points, intervals, point_key, interval_key, outputs)
        self.at, self.bounds, self.order = at, bounds, order
        self.twice = len(bounds.places) == 2
        self.layouts = (
            Layout(tuple(points), tuple(point_key), at),
            Layout(tuple(intervals), tuple(interval_key), order),
        )

    def used(self, port: int) -> frozenset[int]:
        own = (self.order, *self.bounds.places) if port else (self.at,)
        return frozenset({*self.keys[port], *own, *self.needs[port]})

    def with_columns(self, side: int, types: Sequence[str]) -> RangeJoin:
        points, intervals = (list(layout.types) for layout in self.layouts)
        wider = (points, intervals)[side]
        outputs = [*self.outputs, *((side, len(wider) + i) for i in range(len(types)))]
        wider += types
        return RangeJoin(points, intervals, *self.keys, self.at, self.bounds, self.order, outputs)

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
        step.add_touched(len(delta))
        if side:
            hits = self._points_in(self._intervals(delta), other, step)
        elif self.twice and 4 * len(delta) >= other.rows_count:
            hits = self._intervals_around_many(delta, other, step)
        else:
            hits = self._intervals_around(self._points(delta), other, step)
        wanted = [*self.outputs, *((1 - side, place) for place in beside)]
        types = [*self.types, *(other.layout.types[place] for place in beside)]
        parts = [part for each in hits if (part := self._matches(each, wanted)) is not None]
        if not parts:
            return None
        found = concat_updates(parts, types)
        width = len(self.outputs)
        return Updates(found.columns[:width], found.diff), found.columns[width:]

    def _points(self, batch: Batch) -> _Points:
        """Returns the points of a batch that have a value and a key."""
        columns, khash, diff = batch.columns, batch.khash, batch.diff
        index = rows_with_key([columns[i] for i in (*self.keys[0], self.at)])
        if index is not None:
            columns = [rows.take(c, index) for c in columns]
            khash, diff = khash[index], diff[index]
        code = rows.order_codes(columns[self.at], self.layouts[0].types[self.at])
        return _Points(columns, khash, diff, code)

    def _intervals(self, batch: Batch) -> _Intervals:
        """Returns the intervals of a batch that are not empty and have a key, each once."""
        columns = batch.columns
        low, high, some = self.bounds.codes(columns, self.layouts[1].types, len(batch))
        if self.twice:
            some &= np.asarray(columns[self.order]) < 0  # codes by the lower bound
        for place in self.keys[1]:
            missing = rows.null_mask(columns[place])
            if missing is not None:
                some &= ~missing
        if some.all():
            return _Intervals(columns, batch.khash, batch.diff, low, high)
        index = some.nonzero()[0]
        columns = [rows.take(c, index) for c in columns]
        return _Intervals(columns, batch.khash[index], batch.diff[index], low[index], high[index])

    def _points_in(self, given: _Intervals, trace: Trace, step: Step) -> list[_Hits]:
        """Returns the points of a trace in each interval."""
        hits = []
        total = 0
        for part in trace.parts():
            assert part.code is not None
            span = _KeyRange.of(part, given.khash)
            start, stop = span.first(given.low), span.after(given.high)
            count = np.maximum(stop - start, 0)
            total = self._checked_total(total, count, step)
            row = hash_ranges(start, count)
            probe = np.arange(len(count)).repeat(count)
            sides = (part.columns, part.diff), (given.columns, given.diff)
            hits.append(_Hits(sides, (row, probe)))
        step.add_touched(total)
        return hits

    def _intervals_around(self, given: _Points, trace: Trace, step: Step) -> list[_Hits]:
        """Returns the intervals of a trace around each point."""
        hits = []
        total = 0
        name = f"heights by {self.order}"  # layers of equal files may have other orders
        for layer in trace.layers:
            for number, part in enumerate(layer.parts):
                assert part.code is not None
                span = _KeyRange.of(part, given.khash)
                if self.twice:
                    tags = layer.facts().derive(name, number, partial(_tags, part.code))
                    probe, low, high = _ancestors(given.code, tags)
                    span = span.take(probe)
                    start, stop = span.first(low), span.after(high)
                else:
                    probe = np.arange(len(given.code))
                    start, stop = self._one_bound(span, given.code)
                count = np.maximum(stop - start, 0)
                total = self._checked_total(total, count, step)
                row = hash_ranges(start, count)
                probe = probe.repeat(count)
                sides = (given.columns, given.diff), (part.columns, part.diff)
                hits.append(_Hits(sides, (probe, row)))
        step.add_touched(total)
        return hits

    def _one_bound(self, span: _KeyRange, code: Hashes) -> tuple[Index, Index]:
        """Returns the ranges of the intervals with one bound that contain points."""
        if self.bounds.low is not None:
            return span.low, span.first(code) if self.bounds.above else span.after(code)
        return span.after(code) if self.bounds.below else span.first(code), span.high

    def _intervals_around_many(self, batch: Batch, trace: Trace, step: Step) -> list[_Hits]:
        """Returns the same as `_intervals_around`: looks all intervals up in the points."""
        points = Trace.from_batch(arrange(self.layouts[0], batch.updates, khash=batch.khash))
        hits = []
        for part in trace.parts():
            step.add_touched(len(part))
            hits += self._points_in(self._intervals(part), points, step)
        return hits

    def _checked_total(self, total: int, count: Index, step: Step) -> int:
        """Adds numbers of pairs to a total.

        Raises:
            StageError: if a join with one bound and without keys has more than `CROSS_ROWS_MAX`.
        """
        total += int(count.sum())
        if total > CROSS_ROWS_MAX and not self.twice and not self.keys[0]:
            raise StageError(
                f"{titled(step.stage)}: a join by one comparison would pair more than"
                f" {CROSS_ROWS_MAX:,} rows in an epoch",
                hint="compare with a lower and an upper bound, as in 'a.t BETWEEN b.lo AND b.hi',"
                " join on a key too, or insert fewer rows at a time",
                stage=step.stage,
            )
        return total

    def _matches(self, hits: _Hits, wanted: Sequence[tuple[int, int]]) -> Updates | None:
        """Returns the pairs that match, with some of their columns."""
        index = hits.positions
        if not len(index[0]):
            return None
        good = self._is_match(hits)
        if not good.all():
            some = good.nonzero()[0]
            if not len(some):
                return None
            index = index[0][some], index[1][some]
        (points, ones), (intervals, others) = hits.sides
        both, width = (points, intervals), len(self.outputs)
        columns = [rows.take(both[s][i], index[s]) for s, i in wanted]
        pairs = self.paired(columns[:width], ones[index[0]], others[index[1]])
        return Updates(columns, pairs.diff)

    def _is_match(self, hits: _Hits) -> Mask:
        """Returns a mask of the pairs with equal keys and a value between the bounds."""
        (points, _), (intervals, _) = hits.sides
        mine, theirs = hits.positions
        types = self.layouts[0].types
        value = rows.take(points[self.at], mine)
        code = rows.order_codes(value, types[self.at])
        held: list[Column] = [*intervals]
        for place in self.bounds.places:
            held[place] = rows.take(intervals[place], theirs)
        low, high, good = self.bounds.codes(held, self.layouts[1].types, len(mine))
        good &= (low <= code) & (code <= high)
        missing = rows.null_mask(value)
        if missing is not None:
            good &= ~missing
        for a, b in zip(*self.keys, strict=True):
            good &= rows.equal(
                rows.take(points[a], mine), rows.take(intervals[b], theirs), types[a]
            )
        return good


class _KeyRange(NamedTuple):
    """The rows of a part that have the keys of some probes.

    Attributes:
        code: the order codes of the part.
        low, high: the range of each probe.
        single: True if all rows of the part have the key of all probes.
    """

    code: Hashes
    low: Index
    high: Index
    single: bool

    @classmethod
    def of(cls, part: Batch, khash: Hashes) -> _KeyRange:
        """Returns the ranges of the keys with some hashes."""
        assert part.code is not None
        n = len(part)
        low = part.khash.searchsorted(khash)
        high = part.khash.searchsorted(khash, "right")
        single = bool((low == 0).all() and (high == n).all())
        return cls(part.code, low, high, single)

    def take(self, index: Index) -> _KeyRange:
        """Returns the ranges at some positions."""
        return self._replace(low=self.low[index], high=self.high[index])

    def first(self, code: Hashes) -> Index:
        """Returns the first row of each key whose code is not below a code."""
        if self.single:
            return self.code.searchsorted(code)
        return place_in(self.code, self.low, self.high, code)

    def after(self, code: Hashes) -> Index:
        """Returns the first row of each key whose code is above a code."""
        if self.single:
            return self.code.searchsorted(code, "right")
        return place_in(self.code, self.low, self.high, code, after=1)


def _tags(code: Hashes) -> Hashes:
    """Returns the different heights of interval codes, with their sides."""
    tags = (code >> _BITS).astype(np.int64)
    return np.bincount(tags, minlength=128).nonzero()[0].astype(np.uint64)


def _ancestors(code: Hashes, tags: Hashes) -> tuple[Index, Hashes, Hashes]:
    """Returns the ranges of interval codes in which the intervals around points are.

    Args:
        tags: the heights of the intervals, with their sides.

    Returns:
        the number of the point, and the first and the last interval code, of each range.
    """
    heights = tags & np.uint64(63)
    is_above = (code[:, None] >> heights) & _ONE  # the point is at its ancestor or above it
    probe, tag = (is_above == tags >> np.uint64(6)).nonzero()
    height, by_high = heights[tag], tags[tag] & _BY_HIGH
    code = code[probe]
    below = (np.uint64(2) << height) - _ONE  # the codes below the ancestor differ in these bits
    upper = by_high > 0
    first = np.where(upper, code, code & ~below)
    last = np.where(upper, code | below, code)
    return probe, _code(first, height, by_high), _code(last, height, by_high)


def bounds_of(params: Mapping[str, Any]) -> Bounds:
    """Returns the bounds among the arguments of a part."""
    return Bounds(params["low"], params["high"], *map(bool, params["strict"]))


def _piece(part: DefinitionPart, types: Types | None) -> RowPiece:
    return IntervalCodes(part.inputs[0].schema.types, bounds_of(part.params))


def _moved_bounds(params: Mapping[str, Any], source: RemainingColumns) -> dict[str, Any]:
    """Returns the arguments with the new positions of the bounds."""
    moved = {}
    for name in ("low", "high"):
        place = params[name]
        moved[name] = None if place is None else source.moved([place])[0]
    return {**params, **moved}


def _adapt_intervals(
    part: DefinitionPart, inputs: Sequence[RemainingColumns], types: Types | None
) -> AdaptedPart:
    """Requires the bounds, and passes the other columns on."""
    return AdaptedPart(_moved_bounds(part.params, inputs[0]), inputs[0].lost)


def _read_intervals(part: DefinitionPart, wanted: Places, types: Types | None) -> Sequence[Places]:
    """Returns the bounds and the requested columns, without the computed last one."""
    places = bounds_of(part.params).places
    return [frozenset({*places, *wanted} - {len(part.schema) - 1})]


def _build(part: DefinitionPart, types: Types | None) -> Operator:
    points, intervals = (each.schema.types for each in part.inputs)
    p = part.params
    bounds = bounds_of(p)
    outputs = [(side, place) for side, place in p["outputs"]]
    order = len(intervals) - 1 if len(bounds.places) == 2 else bounds.places[0]
    return RangeJoin(points, intervals, p["left"], p["right"], p["at"], bounds, order, outputs)


def _adapt(
    part: DefinitionPart, inputs: Sequence[RemainingColumns], types: Types | None
) -> AdaptedPart:
    """Requires the keys, the value and the bounds, and passes the other columns on."""
    p = part.params
    outputs, lost = [], {}
    for i, (side, place) in enumerate(p["outputs"]):
        gone = inputs[side].lost.get(place)
        if gone is None:
            outputs.append([side, *inputs[side].moved([place])])
        else:
            lost[i] = gone
    moved = _moved_bounds(p, inputs[1])
    moved |= {"left": inputs[0].moved(p["left"]), "right": inputs[1].moved(p["right"])}
    return AdaptedPart({**moved, "at": inputs[0].moved([p["at"]])[0], "outputs": outputs}, lost)


def _key(part: DefinitionPart, below: Sequence[Key]) -> Key:
    """Returns the keys of both sides together; None if a column of them is not in the output."""
    outputs = [tuple(each) for each in part.params["outputs"]]
    wanted = [(side, place) for side, key in enumerate(below) for place in key or ()]
    if None in below or not all(each in outputs for each in wanted):
        return None
    return tuple(outputs.index(each) for each in wanted)


def _reads(part: DefinitionPart, wanted: Places, types: Types | None) -> Sequence[Places]:
    """Returns the keys, the value, the bounds and the requested columns of each side."""
    p = part.params
    outputs = [p["outputs"][i] for i in wanted]
    bounds = bounds_of(p).places
    own: tuple[Iterable[int], Iterable[int]] = ((*p["left"], p["at"]), (*p["right"], *bounds))
    if len(bounds) == 2:
        own = own[0], (*own[1], len(part.inputs[1].schema) - 1)
    return [
        frozenset({*own[side], *(place for of, place in outputs if of == side)}) for side in (0, 1)
    ]


SPECS = (
    Spec("intervals", _adapt_intervals, piece=_piece, key=same_key, reads=_read_intervals),
    Spec("range_join", _adapt, build=_build, key=_key, reads=_reads, narrowed=pruned_pairs),
)
