"""Parted: what an interval of the past adds up to, large batches as they lie in files, or the rest.

Who merges all of it asks for batches; who only looks at its first rows leaves what is large where
it is. What it would cost is weighed before: no row is decoded or put in order for that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from nosync_nb.trace.batch import Batch, Layout
from nosync_nb.trace.history import sections
from nosync_nb.trace.history.archive import Archive, ArchivedSums, RowWeight, unpacked_changes
from nosync_nb.trace.history.unpacked_tail import Decode, EncodedChange, Entry, FiledChange

_ROW_BYTES = 16
"""What a row of a frame is taken to have at least."""


class IntervalFragments(NamedTuple):
    """What adds up to the changes of a trace in an interval, in the layouts it had.

    Attributes:
        loose: small batches.
        whole: large batches, each as its parts, disjoint and ascending in key hash.
    """

    loose: list[Batch]
    whole: list[tuple[Batch, ...]]


def interval_fragments(
    archive: Archive, sums: ArchivedSums, entries: Iterable[Entry]
) -> IntervalFragments:
    """What packs hold, and the entries of a tail; those that are encoded are decoded at once."""
    made = IntervalFragments([], [])
    encoded: dict[tuple[Layout, Decode], list[Any]] = {}
    for epoch, change in entries:
        if isinstance(change, Batch):
            if len(change) > sections.LARGE:
                made.whole.append((change,))
            else:
                made.loose.append(change)
        elif isinstance(change, EncodedChange):
            encoded.setdefault((change.layout, change.decode), []).append(change.data)
        elif change.parts:
            made.whole.append(change.parts)
        else:
            sums.large.setdefault(change.layout, []).append((epoch, change.refs))
    for (layout, decode), data in encoded.items():
        sums.updates.setdefault(layout, []).append(decode(data, layout.types)[0])
    return IntervalFragments(unpacked_changes(sums) + made.loose, archive.whole(sums) + made.whole)


def weight(entries: Iterable[Entry]) -> RowWeight:
    """About how many rows the entries of a tail have; nothing is decoded."""
    loose, filed = 0, 0
    for _, change in entries:
        if isinstance(change, FiledChange):
            filed += sum(ref.rows for ref in change.refs)
        elif isinstance(change, EncodedChange):
            loose += _rows(change.data)
        elif len(change) > sections.LARGE:
            filed += len(change)
        else:
            loose += len(change)
    return RowWeight(loose, filed)


def _rows(data: Any) -> int:
    """About how many rows an encoded change has: bytes of a frame, or a batch."""
    return 1 + len(data) // _ROW_BYTES if isinstance(data, bytes | memoryview) else len(data)
