"""Stores the changes of one trace over many epochs, at all levels of the grid. Pure functions.

A section stores each distinct row once. Its levels (pack_tree.py) are lists of (row number, diff),
grouped by epochs. So an entry of a level takes about three bytes, without a copy of its row, and a
read of any interval is one `take` for each column. Hashes are not stored: the reader arranges the
rows.

Batches of more than `LARGE` rows are not copied: a section references their part files.

A section is built from the newest changes of the trace, which are not in a pack yet. A change is a
batch, encoded as in a frame of the log, or in part files. Encoded changes are decoded when they are
needed, many in one call, because single calls would cost ten times more.

Design: all operations work on whole columns, because packing runs in a thread beside epochs that
take a fraction of a millisecond. Rows are numbered once (`_number_rows`); levels sort integers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nosync_nb import rows
from nosync_nb.rows import Column
from nosync_nb.rows.count_arithmetic import add_runs
from nosync_nb.rows.encoding import encode_column
from nosync_nb.trace.batch import Batch, Hashes, Index, Layout, Updates
from nosync_nb.trace.history.pack_tree import SHIFTS, WHOLE, cover
from nosync_nb.trace.parts.part_file import PartRef

LARGE = 1 << 16

Array = npt.NDArray[Any]
Large = tuple[int, tuple[PartRef, ...]]


class GridLevel(NamedTuple):
    """The sums over groups of `2**shift` epochs.

    Attributes:
        group: the numbers of the groups that have entries, ascending.
        starts: group i has the entries `starts[i]:starts[i + 1]`.
        row: the row number of each entry; None if entry i is row i.
        diff: the diff of each entry.
    """

    shift: int
    group: Array
    starts: Array
    row: Array | None
    diff: Array


class Section(NamedTuple):
    """The changes of one trace in the epochs `[start, stop)`.

    Attributes:
        columns: the distinct rows.
        levels: the levels of the grid, finest first.
        large: the changes in part files, as (epoch, parts).
    """

    layout: Layout
    start: int
    stop: int
    columns: list[Column]
    levels: tuple[GridLevel, ...]
    large: tuple[Large, ...] = ()

    def updates(self, lower: int, upper: int) -> Updates | None:
        """Returns the sum of the changes in `[lower, upper)`, without those in part files.

        A row may occur several times. None if there are no changes.
        """
        index: list[Array] = []
        diff: list[Array] = []
        for level, begin, close in self._runs(lower, upper):
            index.append(np.arange(begin, close) if level.row is None else level.row[begin:close])
            diff.append(level.diff[begin:close])
        if not index:
            return None
        at = np.concatenate(index).astype(np.int64, copy=False)
        columns = [rows.take(c, at) for c in self.columns]
        return Updates(columns, np.concatenate(diff).astype(np.int64, copy=False))

    def rows_between(self, lower: int, upper: int) -> int:
        """Counts the rows that `updates` returns, without reading them."""
        return sum(close - begin for _, begin, close in self._runs(lower, upper))

    def _runs(self, lower: int, upper: int) -> list[tuple[GridLevel, int, int]]:
        """Returns runs of entries `[begin, close)` of levels, which add up to `[lower, upper)`."""
        if not self.levels:
            return []
        runs = cover(lower, upper, self.start, self.stop, tuple(k.shift for k in self.levels))
        assert runs is not None, "an epoch was read that is no longer retained separately"
        levels = {level.shift: level for level in self.levels}
        entries = []
        for shift, first, end in runs:
            level = levels[shift]
            a, b = level.group.searchsorted((first, end)).tolist()
            if a < b:
                entries.append((level, int(level.starts[a]), int(level.starts[b])))
        return entries

    def singly(self, lower: int, upper: int) -> tuple[Array, Updates] | None:
        """Returns the changes in `[lower, upper)`, each with its epoch.

        Returns None if there are no changes, or if single epochs are not distinguished.
        """
        if not self.levels or self.levels[0].shift:
            return None
        finest = self.levels[0]
        a, b = finest.group.searchsorted((lower, upper)).tolist()
        if a == b:
            return None
        ends = finest.starts[a : b + 1].astype(np.int64)
        entries = slice(int(finest.starts[a]), int(finest.starts[b]))
        at = _entry_rows(finest)[entries].astype(np.int64)
        columns = [rows.take(c, at) for c in self.columns]
        updates = Updates(columns, finest.diff[entries].astype(np.int64))
        return finest.group[a:b].astype(np.int64).repeat(ends[1:] - ends[:-1]), updates


def size_at(section: Section, shift: int) -> int:
    """Estimates the bytes of a section if it only distinguished groups of `2**shift` epochs."""
    counts = [len(level.diff) for level in section.levels if level.shift >= shift]
    return 8 * len(section.columns) * max(counts, default=0) + 4 * sum(counts)


def build_section(
    layout: Layout,
    start: int,
    stop: int,
    epochs: Sequence[int],
    counts: Sequence[int],
    updates: Sequence[Updates],
    hashes: Sequence[Hashes] | None = None,
    large: Sequence[Large] = (),
    pause: Callable[[], None] = lambda: None,
) -> Section:
    """Builds the section of a trace from its updates, which are consolidated in each epoch.

    Args:
        epochs: the epochs of the changes, ascending.
        counts: the number of updates of each epoch.
        updates: the updates in the order of epochs, in pieces of any size.
        hashes: the row hashes of each piece, if they are known.
        large: the changes in part files.
        pause: called between steps, so that other threads can run.

    Cost: O(n log n) in numpy.
    """
    columns = []
    for i, type_ in enumerate(layout.types):
        columns.append(rows.concat([u.columns[i] for u in updates], type_))
        pause()
    if not updates:
        return Section(layout, start, stop, columns, (), tuple(large))
    epoch = np.array(epochs, np.int64).repeat(counts)
    diff = np.concatenate([u.diff for u in updates])
    pause()
    if len(epochs) == 1:  # after a load, for example; rows are distinct
        number = np.arange(len(diff))
    else:
        if hashes is None:
            rhash = rows.hash_columns(columns, layout.types, len(diff))
        else:
            rhash = np.concatenate(hashes)
        pause()
        number, columns = _number_rows(columns, layout.types, rhash)
        pause()
    levels = _levels(epoch, epoch, number, diff, 0, _shifts(start, stop, 0), pause)
    return Section(layout, start, stop, columns, levels, tuple(large))


def sum_sections(
    layout: Layout, start: int, stop: int, batch: Batch | None, large: Sequence[Large] = ()
) -> Section:
    """Builds a section that stores only the sum over its interval.

    Args:
        batch: the sum, without changes in part files; None if it is empty.
        large: the changes in part files.
    """
    if batch is None or not len(batch):
        columns = [rows.empty(t) for t in layout.types]
        return Section(layout, start, stop, columns, (), tuple(large))
    bounds = _narrow(np.array([0, len(batch)]))
    level = GridLevel(WHOLE, np.zeros(1, np.uint8), bounds, None, _narrow(batch.diff))
    return Section(layout, start, stop, batch.columns, (level,), tuple(large))


class SectionShare(NamedTuple):
    """The part of a section that covers the epochs `[lower, upper)`."""

    section: Section
    lower: int
    upper: int


def recut_section(
    layout: Layout,
    start: int,
    stop: int,
    shift: int,
    shares: Sequence[SectionShare],
    large: Sequence[Large] = (),
) -> Section:
    """Builds a section with groups of `2**shift` epochs from shares of other sections.

    Args:
        shares: the shares, of sections of this layout. Each of their groups must be inside a group
            of the new section.

    Cost: O(n log n) in the finest levels of the sections.
    """
    entries, columns, count = [], [], 0
    for section, lower, upper in shares:
        if section.levels:
            finest = section.levels[0]
            epoch = np.maximum(finest.group.astype(np.int64) << finest.shift, section.start)
            epoch = epoch.repeat(np.diff(finest.starts.astype(np.int64)))
            selected = ((lower <= epoch) & (epoch < upper)).nonzero()[0]
            number = _entry_rows(finest)[selected].astype(np.int64) + count
            entries.append((epoch[selected], number, finest.diff[selected].astype(np.int64)))
            columns.append(section.columns)
            count += len(section.columns[0]) if section.columns else len(finest.diff)
    if not entries:
        none = [rows.empty(t) for t in layout.types]
        return Section(layout, start, stop, none, (), tuple(large))
    epoch, number, diff = (np.concatenate(each) for each in zip(*entries, strict=True))
    every = [rows.concat([c[i] for c in columns], t) for i, t in enumerate(layout.types)]
    if len(entries) > 1:
        same, every = _number_rows(
            every, layout.types, rows.hash_columns(every, layout.types, count)
        )
        number = same[number]
    narrow = shift if start >> shift < (stop - 1) >> shift else WHOLE
    group, number, diff, first = _sum_groups(epoch >> narrow, number, diff)
    used, number = np.unique(number, return_inverse=True)
    every = [rows.take(c, used) for c in every]
    levels = _levels(epoch[first], group, number, diff, narrow, _shifts(start, stop, narrow))
    return Section(layout, start, stop, every, levels, tuple(large))


def _shifts(start: int, stop: int, finest: int) -> tuple[int, ...]:
    """Returns the shifts of the levels of a section above the finest one."""
    inner = (s for s in SHIFTS if finest < s and start >> s < (stop - 1) >> s)
    return (*inner, WHOLE) if finest < WHOLE else ()


def _levels(
    epoch: Array,
    group: Array,
    number: Index,
    diff: Array,
    finest: int,
    shifts: Iterable[int],
    pause: Callable[[], None] = lambda: None,
) -> tuple[GridLevel, ...]:
    """Builds all levels from the consolidated entries of the finest one, ordered by group."""
    levels = [_level(finest, group, number, diff)]
    for shift in shifts:
        group, number, diff, first = _sum_groups(epoch >> shift, number, diff)
        epoch = epoch[first]
        pause()
        levels.append(_level(shift, group, number, diff))
    return tuple(levels)


def _number_rows(
    columns: list[Column], types: Sequence[str], rhash: Array
) -> tuple[Index, list[Column]]:
    """Numbers the distinct rows in the order of their first occurrence.

    Returns:
        the number of the distinct row for each row, and the columns of the distinct rows.
    """
    n = len(rhash)
    order = rhash.argsort(kind="stable")
    ordered = rhash[order]
    same = ordered[1:] == ordered[:-1]
    first = order
    if same.any():
        repeats = same.nonzero()[0]
        left, right = order[repeats], order[repeats + 1]
        equal = np.ones(len(repeats), np.bool_)
        for column, type_ in zip(columns, types, strict=True):
            equal &= rows.equal(rows.take(column, left), rows.take(column, right), type_)
        starts = np.concatenate(([0], (~same).nonzero()[0] + 1))
        first = order[starts].repeat(np.diff(starts, append=n))
        if not equal.all():
            first = _resolve_collisions(columns, types, order, first, repeats)
    same_as = np.empty(n, np.int64)
    same_as[order] = first
    distinct = same_as == np.arange(n)
    if distinct.all():
        return same_as, columns
    number = distinct.cumsum() - 1
    positions = distinct.nonzero()[0]
    return number[same_as], [rows.take(c, positions) for c in columns]


def _resolve_collisions(
    columns: list[Column], types: Sequence[str], order: Index, first: Index, repeats: Index
) -> Index:
    """Corrects `first` by value: returns for each row in `order` the first row equal to it."""
    inside = np.union1d(repeats, repeats + 1)
    index = order[inside]
    parts = [encode_column(rows.take(c, index), t) for c, t in zip(columns, types, strict=True)]
    first_by_value: dict[Any, int] = {}
    texts = zip(first[inside].tolist(), *parts, strict=True)
    apart = first.copy()
    apart[inside] = [
        first_by_value.setdefault(t, i) for t, i in zip(texts, index.tolist(), strict=True)
    ]
    return apart


def _sum_groups(group: Array, number: Index, diff: Array) -> tuple[Array, Index, Array, Index]:
    """Adds up the diffs of each row in each group, and drops zeros.

    Returns:
        the group, row number and diff of each sum, ordered by group; and the position of an entry
        of each sum.
    """
    if not len(diff):
        return group, number, diff, np.zeros(0, np.int64)
    width = int(number.max()) + 1
    key = (group - group[0]) * width + number
    order = key.argsort(kind="stable")
    key = key[order]
    starts = np.concatenate(([0], (key[1:] != key[:-1]).nonzero()[0] + 1))
    sums = add_runs(diff[order], starts)
    nonzero = sums.nonzero()[0]
    first = order[starts[nonzero]]
    return group[first], number[first], sums[nonzero], first


def _level(shift: int, group: Array, number: Index, diff: Array) -> GridLevel:
    """Builds a level from entries ordered by group."""
    new = (group[1:] != group[:-1]).nonzero()[0] + 1
    starts = np.concatenate(([0], new)) if len(group) else new
    bounds = np.append(starts, len(group))
    return GridLevel(
        shift, _narrow(group[starts]), _narrow(bounds), _stored_rows(number), _narrow(diff)
    )


def _entry_rows(level: GridLevel) -> Array:
    """Returns the row number of each entry."""
    return np.arange(len(level.diff)) if level.row is None else level.row


def _stored_rows(number: Array) -> Array | None:
    """Returns row numbers in their stored form: None if number i is i."""
    if np.array_equal(number, np.arange(len(number))):
        return None
    return _narrow(number)


def _narrow(values: Array) -> Array:
    """Converts integers to the smallest type that can represent them."""
    if not len(values):
        return values.astype(np.uint8)
    low, high = int(values.min()), int(values.max())
    for dtype in (np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32):
        info = np.iinfo(dtype)
        if info.min <= low and high <= info.max:
            return values.astype(dtype)
    return values


AT_ONCE = 256
"""The maximum number of changes that are decoded between two pauses."""


class FiledChange(NamedTuple):
    """A change in part files; `parts` are their batches if the files are mapped, else empty."""

    layout: Layout
    refs: tuple[PartRef, ...]
    parts: tuple[Batch, ...] = ()


Decode: TypeAlias = Callable[[Sequence[Any], Sequence[str]], tuple[Updates, list[int]]]


class EncodedChange(NamedTuple):
    """A change that is decoded when it is needed, to consolidated updates in any order.

    `decode` takes the `data` of any number of changes, and the column types. It returns all
    updates, and the number of updates of each change. Decoding many changes in one call takes a
    tenth of the time of single calls.
    """

    layout: Layout
    data: Any
    decode: Decode


Change: TypeAlias = Batch | FiledChange | EncodedChange
"""A change of a trace: a batch in memory, in part files, or encoded as in a frame of the log."""
Entry: TypeAlias = tuple[int, Change]
Pause: TypeAlias = Callable[[], None]


def end_of(tail: Sequence[Entry], epoch: int) -> int:
    """Counts the entries of a tail up to an epoch, inclusive."""
    return bisect_right(tail, epoch, key=itemgetter(0))


def excess(tail: Sequence[Entry], rows_max: int) -> int | None:
    """Returns the epoch up to which the changes of a tail should be added up.

    Changes of about `rows_max / 2` rows remain after this epoch. Only batches in memory count, and
    the first entry does not.

    Returns:
        the epoch; None if the changes have at most `rows_max` rows.
    """
    batches = (c.data if isinstance(c, EncodedChange) else c for _, c in tail[1:])
    sizes = [len(each) if isinstance(each, Batch) else 0 for each in batches]
    if sum(sizes) <= rows_max:
        return None
    remaining = 0
    for (epoch, _), size in zip(reversed(tail[1:]), reversed(sizes), strict=True):
        remaining += size
        if remaining > rows_max // 2:
            return int(epoch)
    return None


class _ChangeGroup(NamedTuple):
    """The changes of a trace in one layout, as arguments of `build_section`."""

    epochs: list[int]
    counts: list[int]
    updates: list[Updates]
    hashes: list[Hashes]
    large: list[Large]

    def add(self, run: Sequence[tuple[int, EncodedChange]]) -> None:
        """Decodes and adds changes with the same layout and decoder."""
        first = run[0][1]
        updates, counts = first.decode([each.data for _, each in run], first.layout.types)
        self.epochs.extend(epoch for epoch, _ in run)
        self.counts.extend(counts)
        self.updates.append(updates)


def sections_of(entries: Sequence[Entry], start: int, stop: int, pause: Pause) -> Iterable[Section]:
    """Yields the sections for the changes of a trace, one for each layout that it had."""
    groups: dict[Layout, _ChangeGroup] = {}
    for run in _runs(entries):
        epoch, change = run[0]
        group = groups.setdefault(change.layout, _ChangeGroup([], [], [], [], []))
        if isinstance(change, FiledChange):
            group.large.append((epoch, change.refs))
        elif isinstance(change, EncodedChange):
            group.add(run)
            pause()
        else:
            group.epochs.append(epoch)
            group.counts.append(len(change))
            group.updates.append(change.updates)
            group.hashes.append(change.rhash)
    for layout, (epochs, counts, updates, hashes, large) in groups.items():
        row_hashes = hashes if len(hashes) == len(updates) else None
        yield build_section(layout, start, stop, epochs, counts, updates, row_hashes, large, pause)


def _runs(entries: Sequence[Entry]) -> Iterator[list[Any]]:
    """Yields changes singly, except that up to `AT_ONCE` changes with one decoder come together."""
    alike: tuple[Layout, Decode] | None = None
    run: list[Any] = []
    for each in entries:
        change = each[1]
        decoder = (change.layout, change.decode) if isinstance(change, EncodedChange) else None
        if run and (decoder is None or decoder != alike or len(run) == AT_ONCE):
            yield run
            run = []
        run.append(each)
        alike = decoder
    if run:
        yield run
