"""Rearranging: what lies in parts of one layout as a batch of another, by all cores.

Of a collection that is loaded and then joined by a key all rows are brought into another order, and
most of the time goes into memory: pages of files that are read for the first time, and new ones for
what is made of them. So nothing is put together that is not sorted: each core makes one column of
the parts at a time, and lets go of it when it has fetched it in its new order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from nosync_nb import rows
from nosync_nb.rows import Column, parallel
from nosync_nb.trace.batch import Batch, Layout, all_rows, consolidate
from nosync_nb.trace.parallel_sort import Numbers, sort_order


def rearrange_parts(layout: Layout, parts: Sequence[Batch]) -> Batch:
    """Batches of one other layout, disjoint, as one of this layout.

    Cost: O(n log n) in their rows; memory for the batch, and a column for each core.
    """
    types, count = layout.types, parallel.count(sum(map(len, parts)))
    rhash = np.concatenate([part.rhash for part in parts])
    khash, code = rhash, None
    if layout.places != all_rows(len(types)):
        khash = np.concatenate(_each([partial(_keys, layout, part) for part in parts], count))
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
    made = _each(
        [*makers, diffs, *(partial(np.ndarray.take, each, index) for each in numbers)], count
    )
    columns, (diff, *numbers) = made[: len(types)], made[len(types) :]
    second = numbers[0] if rhash is khash else numbers[1]
    code = None if code is None else numbers[-1]
    return consolidate(layout, columns, numbers[0], second, diff, code)


def _keys(layout: Layout, part: Batch) -> Numbers:
    """The key hashes of a part."""
    types = [layout.types[place] for place in layout.places]
    return rows.hash_columns([part.columns[at] for at in layout.places], types, len(part))


def _each(makers: Sequence[Callable[[], Any]], count: int) -> list[Any]:
    """What each of them makes, by so many cores."""
    made: list[Any] = [None] * len(makers)

    def make(at: int) -> None:
        made[at] = makers[at]()

    parallel.map_parallel(make, len(makers), count)
    return made
