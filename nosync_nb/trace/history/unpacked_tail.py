"""Holds the newest changes of a trace, which are in no pack yet, in any form. Pure functions.

A change is a batch, or encoded as in a frame of the log, or in part files. Encoded changes are
decoded when they are needed, many at once, because decoding a single one costs ten times as much.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from nosync_nb.trace.batch import Batch, Hashes, Layout, Updates
from nosync_nb.trace.history.sections import Large, Section, build_section
from nosync_nb.trace.parts.part_file import PartRef

AT_ONCE = 256
"""The most changes that are decoded between two pauses."""


class FiledChange(NamedTuple):
    """A change that lies in part files; `parts` if they are mapped already."""

    layout: Layout
    refs: tuple[PartRef, ...]
    parts: tuple[Batch, ...] = ()


Decode: TypeAlias = Callable[[Sequence[Any], Sequence[str]], tuple[Updates, list[int]]]


class EncodedChange(NamedTuple):
    """A change that is decoded when it is needed: consolidated updates, in any order.

    `decode` takes the `data` of any number of changes, and the column types: many at once cost a
    tenth. It returns all updates, and the number of updates of each change.
    """

    layout: Layout
    data: Any
    decode: Decode


Change: TypeAlias = Batch | FiledChange | EncodedChange
"""A batch in memory, a change in files, or a change encoded as in a frame of the log."""
Entry: TypeAlias = tuple[int, Change]
Pause: TypeAlias = Callable[[], None]


def end_of(tail: Sequence[Entry], epoch: int) -> int:
    """Counts the entries that are not after an epoch."""
    return bisect_right(tail, epoch, key=itemgetter(0))


def excess(tail: Sequence[Entry], rows_max: int) -> int | None:
    """Returns the epoch up to which changes are to be summed, if too many follow the first.

    Half of `rows_max` is left. None: they are not too many, or one epoch has all of them.
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


class _Group(NamedTuple):
    """Changes of one layout, those in memory in pieces; see `build_section`."""

    epochs: list[int]
    counts: list[int]
    updates: list[Updates]
    hashes: list[Hashes]
    large: list[Large]

    def add(self, run: Sequence[tuple[int, EncodedChange]]) -> None:
        """Adds changes with the same decoder."""
        first = run[0][1]
        updates, counts = first.decode([each.data for _, each in run], first.layout.types)
        self.epochs.extend(epoch for epoch, _ in run)
        self.counts.extend(counts)
        self.updates.append(updates)


def sections_of(entries: Sequence[Entry], start: int, stop: int, pause: Pause) -> Iterable[Section]:
    """Yields the sections of the changes of one trace, one for each layout it had."""
    groups: dict[Layout, _Group] = {}
    for run in _runs(entries):
        epoch, change = run[0]
        group = groups.setdefault(change.layout, _Group([], [], [], [], []))
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
    """Yields changes one by one, but those with the same decoder together, at most `AT_ONCE`."""
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
