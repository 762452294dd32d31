"""Caches statistics of layers, which do not change (see stats.py and first_rows.py).

The statistics of rows hold wherever the rows lie. So layers of the same files share them: those of
a log and of its branches in one process, and those of a session that continues from an epoch. Files
are identified by the digest of their content. The cache is freed with the last layer that uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

from nosync_nb.trace.batch import Hashes
from nosync_nb.trace.hash_index import HashPrefixIndex
from nosync_nb.trace.parts.part_file import PartRef

ORDERS_MAX = 3
"""The number of orders whose first rows are cached."""


class LayerRowFacts:
    """Cached statistics of the rows of a layer.

    Attributes:
        counted: the sum of the counts and the least count, once they were computed.
        first: by order, the number of first rows that were requested, and those of each part.
        bits: the hash prefix index of each large part, by the number of the part.
    """

    __slots__ = ("__weakref__", "bits", "counted", "first")

    def __init__(self) -> None:
        self.counted: tuple[int, int] | None = None
        self.first: dict[Any, tuple[int, Sequence[Any]]] = {}
        self.bits: dict[int, HashPrefixIndex] = {}


class LayerFacts:
    """Cached statistics of a layer.

    Attributes:
        rows: the statistics of its rows.
        sound: True if no row of the collection at the end of this layer is there fewer than 0
            times.
    """

    __slots__ = ("rows", "sound")

    def __init__(self, rows: LayerRowFacts) -> None:
        self.rows = rows
        self.sound = False

    def count(self, sums: int, least: int) -> None:
        """Records the sum of the counts and the least count."""
        self.rows.counted = sums, least

    def cache_first_rows(self, order: Any, n: int, first: Sequence[Any]) -> None:
        """Caches the first `n` rows of each part in an order, for the last few orders."""
        recent = [each for each in self.rows.first.items() if each[0] != order]
        self.rows.first = dict([*recent[-(ORDERS_MAX - 1) :], (order, (n, first))])

    def bits(self, part: int, hashes: Hashes) -> HashPrefixIndex:
        """Returns the hash prefix index of a part of the layer, built at the first call."""
        index = self.rows.bits.get(part)
        if index is None:
            index = self.rows.bits[part] = HashPrefixIndex(hashes)
        return index

    def sum_up(self) -> None:
        """Records that no row is there fewer than 0 times at the end of the layer."""
        self.sound = True


_KNOWN: WeakValueDictionary[tuple[Any, ...], LayerRowFacts] = WeakValueDictionary()


def layer_facts(files: Sequence[PartRef]) -> LayerFacts:
    """Returns statistics that share what this process knows of the rows in some files."""
    if not files:
        return LayerFacts(LayerRowFacts())
    key = tuple(ref._replace(path="") for ref in files)
    return LayerFacts(_KNOWN.setdefault(key, LayerRowFacts()))
