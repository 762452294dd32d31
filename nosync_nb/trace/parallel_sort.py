"""Sorts many rows on all cores of the machine.

Each core sorts a range of key hashes, and then gathers one column after another. The order is the
same as that of few rows: it is the only one, except among equal hashes, which consolidation
distinguishes later.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nosync_nb import rows
from nosync_nb.rows import Column, parallel
from nosync_nb.rows.array_ops import sorted_by, stably_sorted_by

GROUP = 1 << 16
"""About so many rows are sorted together, so that intermediate results stay in the cache."""

Numbers = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]
Positions = npt.NDArray[np.int64]


def sort_updates(
    columns: list[Column], khash: Numbers, rhash: Numbers, diff: Counts, code: Numbers | None
) -> tuple[Numbers, Numbers, Counts, Numbers | None]:
    """Brings rows into the order of (khash, code, rhash).

    Args:
        columns: each is replaced as soon as it is gathered, so at most as many columns as there are
            cores are in memory twice.
        rhash: may be `khash` itself; then both results are one array.
    """
    index = sort_order(khash, rhash, code)
    apart = rhash is not khash
    numbers: list[npt.NDArray[np.uint64]] = [khash]
    if apart:
        numbers.append(rhash)
    if code is not None:
        numbers.append(code)
    counts = [diff]

    def fetch(at: int) -> None:
        if at < len(columns):
            columns[at] = rows.take(columns[at], index)
        elif at == len(columns):
            counts[0] = counts[0][index]
        else:
            numbers[at - len(columns) - 1] = numbers[at - len(columns) - 1][index]

    parallel.map_parallel(fetch, len(columns) + 1 + len(numbers), parallel.count(len(diff)))
    code = None if code is None else numbers[-1]
    return numbers[0], numbers[1] if apart else numbers[0], counts[0], code


def sort_order(khash: Numbers, rhash: Numbers, code: Numbers | None = None) -> Positions:
    """Returns the positions that sort by `khash`, `code` and `rhash`, equal ones in any order.

    Many rows are first divided by their leading bits into groups that stay in the cache, and the
    cores sort the groups.
    """
    n = len(khash)
    bits = min(8, (n // GROUP).bit_length()) if n >= parallel.MANY else 0
    if not bits:
        return _order(khash, rhash, code)
    leading = np.ascontiguousarray(khash).view(np.uint8)[7::8] >> np.uint8(8 - bits)
    positions = leading.argsort(kind="stable")  # a radix sort, because the values are bytes
    starts = leading[positions].searchsorted(np.arange(1 << bits, dtype=np.uint8)).tolist()
    stops = [*starts[1:], n]

    def sort(group: int) -> None:
        span = slice(starts[group], stops[group])
        at = positions[span]
        first = khash[at]
        second = first if rhash is khash else rhash[at]
        positions[span] = at[_order(first, second, None if code is None else code[at])]

    parallel.map_parallel(sort, len(starts), parallel.count(n))
    return positions


def _order(khash: Numbers, rhash: Numbers, code: Numbers | None) -> Positions:
    if code is not None:
        return np.lexsort((rhash, code, khash))
    return stably_sorted_by(khash) if rhash is khash else sorted_by(khash, rhash)
