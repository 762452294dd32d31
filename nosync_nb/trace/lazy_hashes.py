"""Computes the hashes of updates at the first request, and caches them.

The rows of one change are used under several keys and as whole rows: to compare, to probe, and to
sort. Hashes are chained, so those of a key are the beginning of those of all keys that begin with
it, and of the row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nosync_nb import rows
from nosync_nb.rows.array_ops import any_zero
from nosync_nb.trace.batch import UNORDERED, Batch, Hashes, Layout, Updates, all_rows, arrange

_ODD = np.uint64(0x9E3779B97F4A7C15)

BITMAP_COLUMNS = 64
"""Rows of up to so many columns have one bitmap of nulls, so that a hash can be extended."""


class LazyHashes:
    """Updates with a cache of their hashes.

    Args:
        types: the column types.
        updates: in any order, a row may occur several times; not changed.
        known: hashes that the caller has already, by the positions of the columns in their order.
    """

    __slots__ = ("_cached", "_types", "updates")

    def __init__(
        self,
        types: Sequence[str],
        updates: Updates,
        known: dict[tuple[int, ...], Hashes] | None = None,
    ) -> None:
        self._types = types
        self.updates = updates
        self._cached = {} if known is None else known

    def hashes_of(self, places: tuple[int, ...]) -> Hashes:
        """Returns the hashes over some columns. Cost: that of the columns after a cached prefix."""
        hashes = self._cached.get(places)
        if hashes is None:
            hashes = self._cached[places] = self._compute(places)
        return hashes

    def of_rows(self) -> Hashes:
        """Returns the hashes over all columns."""
        return self.hashes_of(all_rows(len(self._types)))

    def _compute(self, places: tuple[int, ...]) -> Hashes:
        columns, diff = self.updates
        if len(places) <= BITMAP_COLUMNS:
            for length in range(len(places) - 1, 0, -1):
                prefix = self._cached.get(places[:length])
                if prefix is not None:
                    rest = places[length:]
                    more, types = [columns[i] for i in rest], [self._types[i] for i in rest]
                    hashes = rows.extend_hashes(prefix, more, types, len(diff))
                    if hashes is not None:
                        return hashes
                    break
        of, types = [columns[i] for i in places], [self._types[i] for i in places]
        return rows.hash_columns(of, types, len(diff))

    def arranged(self, layout: Layout) -> Batch:
        """Arranges the updates in a layout, consolidated; see `arrange`."""
        khash, rhash = self.hashes_of(layout.places), self.of_rows()
        return arrange(layout, self.updates, khash=khash, rhash=rhash)

    def unordered(self, layout: Layout) -> Batch | None:
        """Returns few distinct rows as a batch in no order, with the hashes that a layout uses.

        None if two rows are equal, or might be: then the rows must be sorted.

        Cost: that of hashing the keys, and the rows if a key occurs twice and its whole numbers do
        not distinguish the rows; no sort.
        """
        columns, diff = self.updates
        if any_zero(diff):
            return None
        khash = self.hashes_of(layout.places)
        if not (_differ(khash) or self._numbers_differ(khash)):
            rhash = self.of_rows()
            if rhash is khash or not _differ(rhash):
                return None
        return Batch(UNORDERED, columns, khash, khash, diff)

    def _numbers_differ(self, khash: Hashes) -> bool:
        """Returns True if key and whole numbers distinguish all rows; if not, texts might.

        It takes some us a column, and hashing the texts of a row takes one each.
        """
        mixed = khash.copy()
        for column in self.updates.columns:
            if isinstance(column, np.ndarray) and column.dtype.kind == "i":
                mixed *= _ODD
                mixed += column.astype(np.int64, copy=False).view(np.uint64)
        return _differ(mixed)


def _differ(hashes: Hashes) -> bool:
    return len(set(hashes.tolist())) == len(hashes)
