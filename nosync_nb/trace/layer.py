"""Layers: a batch in its place, over some epochs, in as much order as somebody asked for.

A layer covers the epochs `[lower, upper)`. Its rows may be split into parts, disjoint and ascending
in key hash, each in memory or mapped from a file. One of small epochs is `young`: updates in the
order in which they came. Whoever looks rows up has them brought into the order of their keys,
whoever needs more of it has them sorted and added up as batches are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from nosync_nb import rows
from nosync_nb.rows.array_ops import any_true
from nosync_nb.rows.types import FIXED
from nosync_nb.trace.batch import (
    Batch,
    Hashes,
    Layout,
    Updates,
    arrange,
    concat_updates,
    merge,
)
from nosync_nb.trace.parts.part_file import PartRef, readable
from nosync_nb.trace.stats_cache import LayerFacts, layer_facts

_ROW_BYTES = 1024
"""From so many bytes a row on a layer is as large as its bytes, not as its rows."""

_KEYED_MAX = 4096
"""Layers of so many rows together may be merged in the order of their keys alone."""

ALIKE_MAX = 16
"""Rows that are not added up have at most so many of a key."""

Pieces: TypeAlias = tuple[Layout, tuple[Updates, ...], int]
"""Updates of several epochs in any order, the layout that is wanted, and how many rows they are."""


class Layer:
    """A batch over the epochs `[lower, upper)`, as parts disjoint in key hash.

    `files` names the part files that hold it, one for each part, or is empty while the layer
    lives in memory (and in the frames of the log) alone. `level` grows by one when its rows grow
    fourfold.

    A layer may be `young`: its updates are put into order when somebody looks at them, and until
    then it can be joined with the next. So a trace that nobody looks into costs an epoch next to
    nothing. Who looks rows up has them in the order of their keys (`keyed`), who needs more sorted
    and added up (`parts`); `rows_count` is an upper bound until then. A layer that is `full` is
    joined with no more; one that is `claimed` is being merged by the worker.

    `wary`: for how many epochs no layer is joined to it; see `is_watched`. `encoded`: the layer as
    a checkpoint holds it, once one does.
    """

    __slots__ = (
        "_keyed",
        "_parts",
        "_pieces",
        "_source",
        "claimed",
        "encoded",
        "files",
        "full",
        "level",
        "lower",
        "rows_count",
        "seen",
        "upper",
        "wary",
    )

    def __init__(
        self,
        lower: int,
        upper: int,
        parts: tuple[Batch, ...],
        files: tuple[PartRef, ...] = (),
        *,
        wary: int = 0,
        seen: LayerFacts | None = None,
        pieces: Pieces | None = None,
        keyed: Batch | None = None,
    ) -> None:
        assert lower < upper, (lower, upper)
        self.lower = lower
        self.upper = upper
        self.files = files
        self.full = False
        self.claimed = False
        self.seen = seen
        self.wary = wary
        self.encoded: bytes | None = None
        self._parts = parts
        self._source: Layer | None = None
        self._pieces = pieces
        self._keyed = keyed
        if keyed is not None:
            self._count(len(keyed))
        elif pieces is None:
            self._count(len(parts[0]) if len(parts) == 1 else sum(map(len, parts)))
        else:  # of a small epoch
            self.rows_count = rows_count = pieces[2]
            self.level = (rows_count | 1).bit_length() >> 1

    def claim(self) -> None:
        """The worker has it in hand: nobody else merges it."""
        self.claimed = True

    def known(self) -> LayerFacts:
        """What readers found out about it, for whoever finds out more."""
        if self.seen is None:
            self.seen = layer_facts(self.files)
        return self.seen

    def watch(self, epochs: int) -> None:
        """For so many epochs no layer is joined to it."""
        self.wary = epochs

    def fill(self) -> None:
        """It is joined with no more."""
        self.full = True

    def keep_encoded(self, data: bytes) -> bytes:
        """Keeps the layer as a checkpoint holds it, and gives it back."""
        self.encoded = data
        return data

    def release(self) -> None:
        """The worker is done with it."""
        self.claimed = False

    def _count(self, rows_count: int) -> None:
        self.rows_count = rows_count
        bits = (rows_count | 1).bit_length()
        self.level = level_of(rows_count, self.files) if self.files else bits >> 1

    @classmethod
    def young(
        cls, lower: int, upper: int, layout: Layout, pieces: tuple[Updates, ...], rows_count: int
    ) -> Layer:
        """A layer of updates in any order."""
        return cls(lower, upper, (), pieces=(layout, pieces, rows_count))

    @property
    def parts(self) -> tuple[Batch, ...]:
        """The rows in order. Cost: that of sorting a young layer, the first time."""
        # Another thread may do the same: what is set before the form before it is forgotten, and
        # forms are asked for in their order, so that one of them is found.
        young, keyed = self._pieces, self._keyed
        if young is not None:
            layout, pieces, _ = young
            self._order(arrange(layout, concat_updates(pieces, layout.types)))
        elif keyed is not None:
            self._order(arrange(keyed.layout, keyed.updates, khash=keyed.khash))
        elif self.files:
            self._parts = readable(self._parts)
        return self._parts

    @property
    def keyed(self) -> tuple[Batch, ...]:
        """The rows in the order of their key hashes, which is all that a lookup needs.

        Of a young layer whose rows take long to hash they are not, nor added up: a row may occur
        some times, and row hashes are of no use.
        """
        young, keyed = self._pieces, self._keyed
        if young is not None:
            layout, pieces, _ = young
            keyed = _by_key(layout, concat_updates(pieces, layout.types))
            if keyed is None:
                return self.parts
            self._keyed = keyed
            self._pieces = None
        return self.parts if keyed is None else (keyed,)

    def _order(self, batch: Batch) -> None:
        """Its rows are those of a batch from now on."""
        self._count(len(batch))
        self._parts = (batch,)
        self._pieces = self._keyed = None

    def joined(self, layout: Layout, updates: Updates, upper: int) -> Layer:
        """A young layer of this one's updates, and of more; this one stays as it is."""
        young = self._pieces
        if young is not None:
            _, pieces, count = young
        else:  # another thread has put them in order meanwhile
            pieces, count = tuple(self.updates), self.rows_count
        grown = (layout, (*pieces, updates), count + len(updates.diff))
        layer = Layer(self.lower, upper, (), pieces=grown)
        layer._source, self._source = self, None
        return layer

    def grown(
        self, layout: Layout, updates: Updates, upper: int, pieces_max: int, rows_max: int
    ) -> Layer | None:
        """The same of one that has grown before, and may again; else None.

        So many pieces and rows are the most. In small epochs most traces grow so: what `is_watched`
        and `pieces_count` say is asked without a call.
        """
        young, source = self._pieces, self._source
        if young is None or self.wary > 1 or (source is not None and source._pieces is None):
            return None
        _, pieces, count = young
        count += len(updates.diff)
        if not 1 < len(pieces) < pieces_max or count > rows_max:
            return None
        layer = Layer(self.lower, upper, (), pieces=(layout, (*pieces, updates), count))
        layer._source, self._source = self, None
        return layer

    @property
    def is_watched(self) -> bool:
        """Whether somebody looked at what it was before the last epoch was joined to it.

        Who looks each epoch, as an operator looks at the state before, would have it put into order
        anew each time it grows.
        """
        source = self._source
        return source is not None and source._pieces is None

    @property
    def is_ordered(self) -> bool:
        """Whether its rows are sorted and added up already."""
        return self._pieces is None and self._keyed is None

    @property
    def is_young(self) -> bool:
        """Whether its rows came in no order, and nobody has looked at them yet."""
        return self._pieces is not None

    @property
    def pieces_count(self) -> int:
        """Of how many epochs' changes it is made, while it is young; else 0."""
        young = self._pieces
        return 0 if young is None else len(young[1])

    @property
    def updates(self) -> Sequence[Updates]:
        """Its updates; those of a young layer are neither in order nor added up."""
        young = self._pieces
        return [part.updates for part in self.keyed] if young is None else young[1]


def merged(layout: Layout, layers: Sequence[Layer]) -> Layer:
    """Layers as one; in the order of keys alone if most of their rows are in no other order.

    Cost: O(n log n) in their rows.
    """
    lower, upper, wary = layers[0].lower, layers[-1].upper, layers[-1].wary
    count = sum(layer.rows_count for layer in layers)
    unordered = sum(layer.rows_count for layer in layers if not layer.is_ordered)
    if count <= _KEYED_MAX and unordered > count // 2:
        parts = [part for layer in layers for part in layer.keyed]
        updates = concat_updates([part.updates for part in parts], layout.types)
        keyed = _by_key(layout, updates, np.concatenate([part.khash for part in parts]))
        if keyed is not None:
            return Layer(lower, upper, (), wary=wary, keyed=keyed)
    batch = merge(layout, [part for layer in layers for part in layer.parts])
    return Layer(lower, upper, (batch,), wary=wary)


@lru_cache(maxsize=1024)
def _is_wide(layout: Layout) -> bool:
    """Whether hashing rows takes much longer than hashing their keys, and keys are their order."""
    if layout.key is None or layout.order is not None:
        return False
    return any(t not in FIXED for i, t in enumerate(layout.types) if i not in layout.key)


def _by_key(layout: Layout, updates: Updates, khash: Hashes | None = None) -> Batch | None:
    """Updates in the order of their key hashes, neither hashed as rows nor added up.

    None if rows are hashed as soon as keys, or if a key has many: they may be one row that came and
    went, and whoever looks for it would find all of them.
    """
    if not _is_wide(layout):
        return None
    if khash is None:
        places = layout.places
        keys, types = [updates.columns[i] for i in places], [layout.types[i] for i in places]
        khash = rows.hash_columns(keys, types, len(updates.diff))
    order = khash.argsort()
    khash = khash[order]
    if any_true(khash[ALIKE_MAX:] == khash[:-ALIKE_MAX]):
        return None
    columns, diff = updates.take(order)
    return Batch(layout, columns, khash, khash, diff)


def level_of(rows_count: int, files: Sequence[PartRef] = ()) -> int:
    """The level of so many rows, in files or in memory: few rows may be many bytes."""
    if files:
        rows_count = max(rows_count, sum(ref.size_bytes for ref in files) // _ROW_BYTES)
    return (rows_count | 1).bit_length() >> 1
