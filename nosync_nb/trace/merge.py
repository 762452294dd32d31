"""Merging: batches of any size as few that have all their rows once, in bounded memory.

What is merged is cut into ranges of the key hash, so that no step has more than about `RANGE_ROWS`
rows besides those that it makes. It is not deciding what is merged: that is `compaction`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from nosync_nb.trace.batch import Batch, Layout, merge

RANGE_ROWS = 1 << 20


def merge_ranges(layout: Layout, layers: Iterable[Sequence[Batch]]) -> list[Batch]:
    """Merges layers, range by range of the key hash, so that memory stays bounded.

    Returns:
        batches in the order of the key hash, none of them empty; together they are consolidated.

    Cost: O(n log n) in all rows, which may be mapped; memory for what is returned and one range.
    """
    return list(each_range(layout, layers))


def each_range(layout: Layout, layers: Iterable[Sequence[Batch]]) -> Iterator[Batch]:
    """The same, one batch after the other: memory for one range, if who takes it lets go of it."""
    every = [p for parts in layers for p in parts if len(p)]
    total = sum(len(p) for p in every)
    if not every:
        return
    pieces = max(1, -(-total // RANGE_ROWS))
    if pieces == 1:
        yield merge(layout, every)
        return
    sample = np.concatenate([p.khash[:: max(1, len(p) // 1024)] for p in every])
    sample.sort()
    cuts = [0, *sample[np.arange(1, pieces) * len(sample) // pieces].tolist(), 2**64]
    cuts = sorted(set(cuts))
    for low, high in pairwise(cuts):
        slices = [s for p in every if len(s := p.cut(low, high))]
        if slices and len(merged := merge(layout, slices)):
            yield merged
