"""Defines a trace: all layers of one collection in one layout, and the queries on them.

A `Trace` is an immutable tuple of layers (layer.py) that tile the epochs `[0, upper)`; the
collection is the sum of its layers.

A reader may use a trace for any length of time, because appending and compacting create a new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nosync_nb import rows
from nosync_nb.rows import Column
from nosync_nb.rows.array_ops import all_true, ascends, stably_sorted_by
from nosync_nb.trace.batch import (
    Batch,
    Diffs,
    Hashes,
    Index,
    Layout,
    Updates,
    concat_updates,
    merge,
)
from nosync_nb.trace.difference import uncancelled_parts
from nosync_nb.trace.layer import SOME, Layer, find_few_hashes, find_hashes, sparse_index

MANY = 64
"""More probes than this are sorted before the lookup, which then reads each part in order."""


_KEPT_MAX = 4096
"""The maximum number of probes of a lookup whose result is cached for the next caller."""

Hit: TypeAlias = tuple[list[Column], Diffs, Index, Index]
"""The matches in a part: its columns and diffs, the numbers of the probes, and the rows."""


class LookupResult(NamedTuple):
    """The rows of a trace that match probes; `probe[i]` is the number of the probe of row i."""

    probe: Index
    columns: list[Column]
    diff: Diffs


class Trace:
    """An immutable list of layers of one layout, oldest first.

    `memos` contains the state that an operator has derived from the contents, if any. The caller
    that takes it becomes its only owner, and leaves it to the next trace. It is not part of the
    value of the trace.
    """

    __slots__ = ("_known", "_last_lookup", "layers", "layout", "memos")

    def __init__(
        self, layout: Layout, layers: tuple[Layer, ...] = (), memos: list[Any] | None = None
    ) -> None:
        self.layout = layout
        self.layers = layers
        self.memos = memos
        self._known: Batch | None = None
        # cached because operators with the same key look up the same hashes in an epoch
        self._last_lookup: tuple[Hashes, Index | None, list[Hit]] | None = None

    def __reduce__(self) -> Any:
        return Trace, (self.layout, self.layers)

    def take_memo(self) -> Any:
        """Takes the memo, which the caller then owns; None if the trace has no memo."""
        try:
            return self.memos.pop() if self.memos else None
        except IndexError:  # another thread was faster
            return None

    def leave_memo(self, memo: Any) -> None:
        """Stores a memo, which must describe the contents of this trace."""
        self.memos = [memo]

    @classmethod
    def from_batch(cls, batch: Batch, epoch: int = 0) -> Trace:
        """Builds a trace with one batch as the change of an epoch; no layer if it is empty."""
        layers = (Layer(epoch, epoch + 1, (batch,)),) if len(batch) else ()
        return cls(batch.layout, layers)

    @property
    def rows_count(self) -> int:
        """The number of stored updates, which may cancel or be equal."""
        return sum(layer.rows_count for layer in self.layers)

    def parts(self) -> Iterator[Batch]:
        """Yields every part of every layer, oldest layer first."""
        for layer in self.layers:
            yield from layer.parts

    def appended(self, layer: Layer) -> Trace:
        """Returns this trace with an additional last layer."""
        assert not self.layers or self.layers[-1].upper <= layer.lower
        return Trace(self.layout, (*self.layers, layer))

    def with_batch(self, batch: Batch) -> Trace:
        """Returns this trace with a batch as an additional layer, for use in a kernel."""
        at = self.layers[-1].upper if self.layers else 0
        return Trace(self.layout, (*self.layers, Layer(at, at + 1, (batch,))))

    def cut(self, low: int, high: int) -> Trace:
        """Returns this trace with only the rows whose key hashes are in `[low, high)`."""
        layers = (
            Layer(each.lower, each.upper, tuple(p.cut(low, high) for p in each.parts))
            for each in self.layers
        )
        return Trace(self.layout, tuple(layers))

    def keep_consolidated(self, batch: Batch | None) -> None:
        """Sets the result of `consolidated`, if the caller knows it; None drops it from memory."""
        self._known = batch

    def consolidated(self) -> Batch:
        """Merges all layers into the current collection.

        Cost: O(n log n) in the stored rows.
        """
        if self._known is not None:
            return self._known
        parts = uncancelled_parts(self.layers)
        if not parts:
            return empty_batch(self.layout)
        return merge(self.layout, parts)

    def updates(self) -> Updates:
        """Returns all stored updates, without consolidating them."""
        parts = [p.updates for p in self.parts()]
        if not parts:
            return empty_batch(self.layout).updates
        return concat_updates(parts, self.layout.types)

    def lookup(
        self, khash: Hashes, keys: Sequence[Column], wanted: Sequence[int] | None = None
    ) -> LookupResult | None:
        """Finds the rows of given keys (the probes).

        Args:
            khash: the key hashes of the probes, in any order. For exact counts no probe may be
                repeated.
            keys: the key columns of the probes, which distinguish keys of equal hash.
            wanted: the positions of the columns to fetch; `None` means all columns.

        Returns:
            the matching rows of all layers; None without a match. A row may occur in several
            layers, with diffs that add up.

        Cost: O(layers x (probes x log rows) + rows found).
        """
        types, key = self.layout.types, self.layout.key
        order, hits = self._lookup_hits(khash)
        if not hits:
            return None
        places = range(len(types)) if key is None else key
        need = range(len(types)) if wanted is None else wanted
        if len(hits) == 1:
            columns, diff, probe, index = hits[0]
            diff = diff[index]
            fetched = {i: rows.take(columns[i], index) for i in (*places, *need)}
        else:
            probe = np.concatenate([probe for _, _, probe, _ in hits])
            diff = np.concatenate([diff[index] for _, diff, _, index in hits])
            fetched = {
                i: rows.concat([rows.take(columns[i], index) for columns, _, _, index in hits], t)
                for i, t in enumerate(types)
                if i in places or i in need
            }
        if order is not None:
            probe = order[probe]
        for column, i in zip(keys, places, strict=True):
            same = rows.equal(rows.take(column, probe), fetched[i], types[i])
            if not all_true(same):
                keep = same.nonzero()[0]
                if not len(keep):
                    return None
                probe, diff = probe[keep], diff[keep]
                fetched = {j: rows.take(c, keep) for j, c in fetched.items()}
        return LookupResult(probe, [fetched[i] for i in need], diff)

    def _lookup_hits(self, khash: Hashes) -> tuple[Index | None, list[Hit]]:
        """Returns the order in which the hashes were looked up, and a hit for each matching part.

        The order is None if the hashes were not sorted. The last result is cached for other
        operators that look up the same changes by the same key.
        """
        last = self._last_lookup
        if last is not None and last[0] is khash:
            return last[1:]
        n = len(khash)
        order = None
        if n > MANY and (n <= _KEPT_MAX or not ascends(khash)):
            order = stably_sorted_by(khash)
        looked = khash if order is None else khash[order]
        if len(looked) < SOME:
            return order, [
                (part.columns, part.diff, *hit)
                for layer in self.layers
                for part in layer.keyed
                if (hit := find_few_hashes(part.khash, looked)) is not None
            ]
        hits = [*self._part_hits(looked)]
        if len(looked) <= _KEPT_MAX:
            self._last_lookup = khash, order, hits
        return order, hits

    def _part_hits(self, khash: Hashes) -> Iterator[Hit]:
        """Yields a hit for each part that contains some of the hashes."""
        for layer in self.layers:
            for number, part in enumerate(layer.keyed):
                hashes, bits = part.khash, None
                if sparse_index(len(hashes), len(khash)):
                    bits = layer.facts().bits(number, hashes)
                hit = find_hashes(hashes, khash, bits)
                if hit is not None:
                    yield part.columns, part.diff, *hit


def empty_batch(layout: Layout) -> Batch:
    """Returns a batch without rows."""
    none = np.zeros(0, np.uint64)
    columns = [rows.empty(t) for t in layout.types]
    code = none if layout.order is not None else None
    return Batch(layout, columns, none, none, np.zeros(0, np.int64), code)
