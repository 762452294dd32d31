"""Seen: what readers found out about layers, which do not change; see glance.py.

What holds of rows holds wherever they lie. So layers of the same files share it, as those of a log
and of its branches do in one process, and who goes on from an epoch finds it: the files are told
apart by the digest of their content. It is let go with the last layer that has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

from nosync_nb.trace.batch import Hashes
from nosync_nb.trace.hash_index import HashPrefixIndex
from nosync_nb.trace.parts.part_file import PartRef

ORDERS_MAX = 3
"""Orders of which the first rows are remembered."""


class LayerRowFacts:
    """What is known of the rows of a layer.

    Attributes:
        counted: how many rows it adds, and the least count, if they were added up.
        first: by order, how many of its first rows were looked for, and those of each part.
        bits: where the key hashes of its large parts are, by the number of the part.
    """

    __slots__ = ("__weakref__", "bits", "counted", "first")

    def __init__(self) -> None:
        self.counted: tuple[int, int] | None = None
        self.first: dict[Any, tuple[int, Sequence[Any]]] = {}
        self.bits: dict[int, HashPrefixIndex] = {}


class LayerFacts:
    """What is known of a layer.

    Attributes:
        rows: what is known of its rows.
        sound: no row of the collection at the end of this layer is there fewer than 0 times.
    """

    __slots__ = ("rows", "sound")

    def __init__(self, rows: LayerRowFacts) -> None:
        self.rows = rows
        self.sound = False

    def count(self, sums: int, least: int) -> None:
        """Notes how many rows the layer adds, and the least count."""
        self.rows.counted = sums, least

    def show(self, order: Any, n: int, first: Sequence[Any]) -> None:
        """Notes the first `n` rows of each part in an order; some orders are kept."""
        kept = [each for each in self.rows.first.items() if each[0] != order]
        self.rows.first = dict([*kept[-(ORDERS_MAX - 1) :], (order, (n, first))])

    def bits(self, part: int, hashes: Hashes) -> HashPrefixIndex:
        """Where the key hashes of a part of the layer are, which keeps it."""
        known = self.rows.bits.get(part)
        if known is None:
            known = self.rows.bits[part] = HashPrefixIndex(hashes)
        return known

    def sum_up(self) -> None:
        """Notes that no row is there fewer than 0 times at the end of the layer."""
        self.sound = True


_KNOWN: WeakValueDictionary[tuple[Any, ...], LayerRowFacts] = WeakValueDictionary()


def layer_facts(files: Sequence[PartRef]) -> LayerFacts:
    """What is known of the rows in some files in this process, and nothing of a collection yet."""
    if not files:
        return LayerFacts(LayerRowFacts())
    key = tuple(ref._replace(path="") for ref in files)
    return LayerFacts(_KNOWN.setdefault(key, LayerRowFacts()))
