"""Merges batches in bounded memory, and re-sorts the parts of one layout into another.

A merge cuts its input into ranges of the key hash, so that no step holds more than about
`RANGE_ROWS` rows besides its output. `compaction` decides what is merged.

A re-sort is needed when a collection is loaded and then joined by a key. Most of its time goes into
memory: pages of files that are read for the first time, and new pages for the result. So no
unsorted copy of all rows is built: each core gathers one column at a time, and frees its input once
the column is in the new order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from nosync_nb import rows
from nosync_nb.rows import Column, parallel
from nosync_nb.trace.batch import Batch, Layout, Numbers, all_rows, consolidate, merge, sort_order

RANGE_ROWS = 1 << 20


def merge_ranges(layout: Layout, layers: Iterable[Sequence[Batch]]) -> list[Batch]:
    """Merges layers, range by range of the key hash, so that memory stays bounded.

    Returns:
        batches in the order of the key hash, none of them empty; together they are consolidated.

    Cost: O(n log n) in all rows, which may be mapped; memory for the result and one range.
    """
    return list(each_range(layout, layers))


def each_range(layout: Layout, layers: Iterable[Sequence[Batch]]) -> Iterator[Batch]:
    """As `merge_ranges`, one batch after the other.

    Cost: memory for one range, if the caller frees each batch.
    """
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


def rearrange_parts(layout: Layout, parts: Sequence[Batch]) -> Batch:
    """Re-sorts disjoint batches of one other layout into a batch of this layout.

    Cost: O(n log n) in their rows; memory for the batch, and a column for each core.
    """
    types, count = layout.types, parallel.count(sum(map(len, parts)))
    rhash = np.concatenate([part.rhash for part in parts])
    khash, code = rhash, None
    if layout.places != all_rows(len(types)):
        khash = np.concatenate(
            _run_all([partial(_key_hashes, layout, part) for part in parts], count)
        )
    if layout.order is not None:
        codes = [rows.order_codes(p.columns[layout.order], types[layout.order]) for p in parts]
        code = np.concatenate(codes)
    index = sort_order(khash, rhash, code)

    def column(at: int) -> Column:
        return rows.take(rows.concat([part.columns[at] for part in parts], types[at]), index)

    def diffs() -> npt.NDArray[np.int64]:
        return np.concatenate([part.diff for part in parts])[index]

    numbers = [khash, *([] if rhash is khash else [rhash]), *([] if code is None else [code])]
    makers = [partial(column, at) for at in range(len(types))]
    results = _run_all(
        [*makers, diffs, *(partial(np.ndarray.take, each, index) for each in numbers)], count
    )
    columns, (diff, *numbers) = results[: len(types)], results[len(types) :]
    second = numbers[0] if rhash is khash else numbers[1]
    code = None if code is None else numbers[-1]
    return consolidate(layout, columns, numbers[0], second, diff, code)


def _key_hashes(layout: Layout, part: Batch) -> Numbers:
    types = [layout.types[place] for place in layout.places]
    return rows.hash_columns([part.columns[at] for at in layout.places], types, len(part))


def _run_all(makers: Sequence[Callable[[], Any]], count: int) -> list[Any]:
    """Returns the results of all makers, computed on so many cores."""
    results: list[Any] = [None] * len(makers)

    def make(at: int) -> None:
        results[at] = makers[at]()

    parallel.map_parallel(make, len(makers), count)
    return results
