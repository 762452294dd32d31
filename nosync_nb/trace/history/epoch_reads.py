"""Reads the changes of a trace in each of many single epochs at once.

It takes a few numpy calls for a pack and for the tail, instead of as many for each epoch. Changes
in part files are only counted, and not opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nosync_nb.trace.batch import Batch, Layout, Updates, concat_updates
from nosync_nb.trace.history.archive import Archive
from nosync_nb.trace.history.pack_tree import PackNode
from nosync_nb.trace.history.unpacked_tail import Decode, EncodedChange, Entry, FiledChange

Epochs = npt.NDArray[np.int64]


class EpochReads(NamedTuple):
    """The changes of a trace in some epochs.

    Attributes:
        small: updates with the epoch of each, by layout; those of one epoch may be in several.
        large: the epochs with changes in part files, each with the distinct rows of these.
    """

    small: list[tuple[Layout, Epochs, Updates]]
    large: dict[int, int]


def read_epochs(
    archive: Archive,
    tree: Iterable[PackNode],
    tail: Sequence[Entry],
    trace: int,
    lower: int,
    upper: int,
) -> EpochReads:
    """Returns the changes of a trace in the individually readable epochs of `[lower, upper)`.

    Args:
        tail: its entries in that interval.

    Raises:
        CorruptLogError: if a file is missing or damaged.
    """
    result = EpochReads([], {})
    for leaf in _leaves(tree, trace, lower, upper):
        stop = min(upper, leaf.extent(trace)[1])
        for section in archive.sections(leaf, trace):
            singly = section.singly(lower, stop)
            if singly is not None:
                result.small.append((section.layout, *singly))
            for epoch, refs in section.large:
                if lower <= epoch < stop:
                    result.large[epoch] = sum(ref.rows for ref in refs)
    result.large.update((e, _rows(c)) for e, c in tail if isinstance(c, FiledChange))
    result.small.extend(_tail_changes(tail))
    return result


def _leaves(tree: Iterable[PackNode], trace: int, lower: int, upper: int) -> Iterator[PackNode]:
    """Yields the leaves that overlap some epochs."""
    for top in tree:
        for node in top.walk():
            low, high = node.extent(trace)
            if not node.children and max(low, lower) < min(high, upper):
                yield node


def _rows(change: FiledChange) -> int:
    return sum(ref.rows for ref in change.refs)


def _tail_changes(tail: Sequence[Entry]) -> Iterator[tuple[Layout, Epochs, Updates]]:
    """Yields the changes of a tail in memory; those with one decoder are decoded together."""
    batches: dict[Layout, list[tuple[int, Batch]]] = {}
    encoded: dict[tuple[Layout, Decode], list[tuple[int, Any]]] = {}
    for epoch, change in tail:
        if isinstance(change, Batch):
            batches.setdefault(change.layout, []).append((epoch, change))
        elif isinstance(change, EncodedChange):
            encoded.setdefault((change.layout, change.decode), []).append((epoch, change.data))
    for layout, some in batches.items():
        counts = [len(batch) for _, batch in some]
        updates = concat_updates([batch.updates for _, batch in some], layout.types)
        yield layout, _repeat_epochs([epoch for epoch, _ in some], counts), updates
    for (layout, decode), changes in encoded.items():
        updates, counts = decode([data for _, data in changes], layout.types)
        yield layout, _repeat_epochs([epoch for epoch, _ in changes], counts), updates


def _repeat_epochs(epochs: Sequence[int], counts: Sequence[int]) -> Epochs:
    return np.array(epochs, np.int64).repeat(counts)
