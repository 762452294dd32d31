"""Splits an interval of history into large batches that lie in files, and the rest.

A reader that merges all of it requests batches; a reader of the first rows leaves large batches
where they lie. The cost is estimated before: no row is decoded or sorted for that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from nosync_nb.trace.batch import Batch, Layout
from nosync_nb.trace.history import sections
from nosync_nb.trace.history.archive import Archive, ArchivedSums, RowWeight, unpacked_changes
from nosync_nb.trace.history.unpacked_tail import Decode, EncodedChange, Entry, FiledChange

_ROW_BYTES = 16
"""The least bytes that a row of a frame is estimated to have."""


class IntervalFragments(NamedTuple):
    """Fragments that add up to the changes of a trace in an interval, in the layouts it had.

    Attributes:
        loose: small batches.
        whole: large batches, each as its parts, disjoint and ascending in key hash.
    """

    loose: list[Batch]
    whole: list[tuple[Batch, ...]]


def interval_fragments(
    archive: Archive, sums: ArchivedSums, entries: Iterable[Entry]
) -> IntervalFragments:
    """Returns the fragments of packs and of a tail; encoded changes are decoded together."""
    fragments = IntervalFragments([], [])
    encoded: dict[tuple[Layout, Decode], list[Any]] = {}
    for epoch, change in entries:
        if isinstance(change, Batch):
            if len(change) > sections.LARGE:
                fragments.whole.append((change,))
            else:
                fragments.loose.append(change)
        elif isinstance(change, EncodedChange):
            encoded.setdefault((change.layout, change.decode), []).append(change.data)
        elif change.parts:
            fragments.whole.append(change.parts)
        else:
            sums.large.setdefault(change.layout, []).append((epoch, change.refs))
    for (layout, decode), data in encoded.items():
        sums.updates.setdefault(layout, []).append(decode(data, layout.types)[0])
    return IntervalFragments(
        unpacked_changes(sums) + fragments.loose, archive.large_batches(sums) + fragments.whole
    )


def weight(entries: Iterable[Entry]) -> RowWeight:
    """Estimates the rows of the entries of a tail; nothing is decoded."""
    loose, filed = 0, 0
    for _, change in entries:
        if isinstance(change, FiledChange):
            filed += sum(ref.rows for ref in change.refs)
        elif isinstance(change, EncodedChange):
            loose += _estimated_rows(change.data)
        elif len(change) > sections.LARGE:
            filed += len(change)
        else:
            loose += len(change)
    return RowWeight(loose, filed)


def _estimated_rows(data: Any) -> int:
    """Estimates the rows of an encoded change: bytes of a frame, or a batch."""
    return 1 + len(data) // _ROW_BYTES if isinstance(data, bytes | memoryview) else len(data)
