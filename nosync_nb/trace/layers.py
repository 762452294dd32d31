"""Traces: all layers of one collection in one order, and what can be asked of them.

A `Layer` is a batch in its place: it covers the epochs `[lower, upper)`. Its rows may be split into
parts, disjoint and ascending in key hash, each in memory or mapped from a file. A `Trace` is an
immutable tuple of layers that tile `[0, upper)`; the collection is the sum of its layers.

Readers hold a trace as long as they like; appending or compacting makes a new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nosync_nb import rows
from nosync_nb.rows import Column
from nosync_nb.rows.arrays import all_true
from nosync_nb.trace.batch import (
    Batch,
    Diffs,
    Hashes,
    Index,
    Layout,
    Updates,
    arrange,
    concat_updates,
    merge,
)
from nosync_nb.trace.finding import LARGE, SOME, few_found, found
from nosync_nb.trace.parts import PartRef
from nosync_nb.trace.seen import Seen, seen_in

ROW_BYTES = 1024
"""From so many bytes a row on a layer is as large as its bytes, not as its rows."""


Pieces: TypeAlias = tuple[Layout, tuple[Updates, ...], int]
"""Updates of several epochs in any order, the layout that is wanted, and how many rows they are."""

MANY = 64
"""More probes than these are looked up in their order, which runs through a part once."""


class Layer:
    """A batch over the epochs `[lower, upper)`, as parts disjoint in key hash.

    `files` names the part files that hold it, one for each part, or is empty while the layer
    lives in memory (and in the frames of the log) alone. `level` grows by one when its rows grow
    fourfold.

    A layer may be `young`: its updates are put into order when somebody looks at its `parts`, and
    until then it can be joined with the next. So a trace that nobody looks into costs an epoch
    next to nothing. `rows_count` is an upper bound until then. One that is `full` is joined with no
    more; one that is `claimed` is being merged by the worker.

    `wary`: for how many epochs no layer is joined to it; see `is_watched`. `encoded`: the layer as
    a checkpoint holds it, once one does.
    """

    __slots__ = (
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
        seen: Seen | None = None,
        pieces: Pieces | None = None,
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
        if pieces is None:
            self._count(len(parts[0]) if len(parts) == 1 else sum(map(len, parts)))
        else:  # of a small epoch
            self.rows_count = rows_count = pieces[2]
            self.level = (rows_count | 1).bit_length() >> 1

    def claim(self) -> None:
        """The worker has it in hand: nobody else merges it."""
        self.claimed = True

    def known(self) -> Seen:
        """What readers found out about it, for whoever finds out more."""
        if self.seen is None:
            self.seen = seen_in(self.files)
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
        young = self._pieces
        if young is not None:
            layout, pieces, _ = young
            batch = arrange(layout, concat_updates(pieces, layout.types))
            self._count(len(batch))
            # In this order: another thread that finds no pieces finds the parts.
            self._parts = (batch,)
            self._pieces = None
        return self._parts

    def joined(self, layout: Layout, updates: Updates, upper: int) -> Layer:
        """A young layer of this one's updates, and of more; this one stays as it is."""
        young = self._pieces
        if young is not None:
            _, pieces, count = young
        else:  # another thread has put them in order meanwhile
            pieces, count = tuple(p.updates for p in self._parts), sum(map(len, self._parts))
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
        return [part.updates for part in self.parts] if young is None else young[1]


def level_of(rows_count: int, files: Sequence[PartRef] = ()) -> int:
    """The level of so many rows, in files or in memory: few rows may be many bytes."""
    if files:
        rows_count = max(rows_count, sum(ref.size_bytes for ref in files) // ROW_BYTES)
    return (rows_count | 1).bit_length() >> 1


class Found(NamedTuple):
    """Rows of a trace that match probes: `probe[i]` is the probe of row i."""

    probe: Index
    columns: list[Column]
    diff: Diffs


class Trace:
    """An immutable list of layers of one layout, oldest first.

    `memos` holds what an operator remembers of its contents, if anything: whoever takes it has it
    alone, and leaves it to the trace that follows. It is no part of the value.
    """

    __slots__ = ("layers", "layout", "memos")

    def __init__(
        self, layout: Layout, layers: tuple[Layer, ...] = (), memos: list[Any] | None = None
    ) -> None:
        self.layout = layout
        self.layers = layers
        self.memos = memos

    def __reduce__(self) -> Any:
        return Trace, (self.layout, self.layers)

    def take_memo(self) -> Any:
        """The memo, which is the caller's from now on; None if there is none."""
        try:
            return self.memos.pop() if self.memos else None
        except IndexError:  # another thread was faster
            return None

    def leave_memo(self, memo: Any) -> None:
        """Gives it the memo of what it holds."""
        self.memos = [memo]

    @classmethod
    def of(cls, batch: Batch, epoch: int = 0) -> Trace:
        """The trace of one batch, the change of an epoch; without layers if it is empty."""
        layers = (Layer(epoch, epoch + 1, (batch,)),) if len(batch) else ()
        return cls(batch.layout, layers)

    @property
    def rows_count(self) -> int:
        """Updates held, an upper bound of the rows of the collection."""
        return sum(layer.rows_count for layer in self.layers)

    def parts(self) -> Iterator[Batch]:
        """Every part of every layer, oldest layer first."""
        for layer in self.layers:
            yield from layer.parts

    def appended(self, layer: Layer) -> Trace:
        """This trace with one more layer."""
        assert not self.layers or self.layers[-1].upper <= layer.lower
        return Trace(self.layout, (*self.layers, layer))

    def with_batch(self, batch: Batch) -> Trace:
        """This trace with a batch of the epoch after its last layer, for kernels."""
        at = self.layers[-1].upper if self.layers else 0
        return Trace(self.layout, (*self.layers, Layer(at, at + 1, (batch,))))

    def cut(self, low: int, high: int) -> Trace:
        """The slice of all layers with key hash in `[low, high)`."""
        layers = (
            Layer(each.lower, each.upper, tuple(p.cut(low, high) for p in each.parts))
            for each in self.layers
        )
        return Trace(self.layout, tuple(layers))

    def consolidated(self) -> Batch:
        """The collection now: all layers added up. Cost: O(n log n) in the rows held."""
        parts = list(self.parts())
        if not parts:
            return empty_batch(self.layout)
        return merge(self.layout, parts)

    def updates(self) -> Updates:
        """All updates held, not consolidated."""
        parts = [p.updates for p in self.parts()]
        if not parts:
            return empty_batch(self.layout).updates
        return concat_updates(parts, self.layout.types)

    def lookup(
        self, khash: Hashes, keys: Sequence[Column], wanted: Sequence[int] | None = None
    ) -> Found | None:
        """Finds the rows of given keys.

        Args:
            khash: key hashes of the probes, any order, without repetition for exact counts.
            keys: the key columns of the probes; they tell apart keys of equal hash.
            wanted: positions of the columns to fetch, default all.

        Returns:
            matching rows of all layers (a row may occur in several, with diffs that add up), or
            None if there are none.

        Cost: O(layers x (probes x log rows) + rows found).
        """
        types, key = self.layout.types, self.layout.key
        order = khash.argsort() if len(khash) > MANY else None
        looked = khash if order is None else khash[order]
        if len(looked) < SOME:
            hits = [
                (part.columns, part.diff, *hit)
                for layer in self.layers
                for part in layer.parts
                if (hit := few_found(part.khash, looked)) is not None
            ]
        else:
            hits = [*self._hits(looked)]
        if not hits:
            return None
        places = range(len(types)) if key is None else key
        need = range(len(types)) if wanted is None else wanted
        if len(hits) == 1:
            columns, diff, probe, index = hits[0]
            diff = diff[index]
            held = {i: rows.take(columns[i], index) for i in (*places, *need)}
        else:
            probe = np.concatenate([probe for _, _, probe, _ in hits])
            diff = np.concatenate([diff[index] for _, diff, _, index in hits])
            held = {
                i: rows.concat([rows.take(columns[i], index) for columns, _, _, index in hits], t)
                for i, t in enumerate(types)
                if i in places or i in need
            }
        if order is not None:
            probe = order[probe]
        for column, i in zip(keys, places, strict=True):
            same = rows.equal(rows.take(column, probe), held[i], types[i])
            if not all_true(same):
                keep = same.nonzero()[0]
                if not len(keep):
                    return None
                probe, diff = probe[keep], diff[keep]
                held = {j: rows.take(c, keep) for j, c in held.items()}
        return Found(probe, [held[i] for i in need], diff)

    def _hits(self, khash: Hashes) -> Iterator[tuple[list[Column], Diffs, Index, Index]]:
        """For each part that has some of the hashes its rows, and (probe, row) numbers."""
        for layer in self.layers:
            for number, part in enumerate(layer.parts):
                own, bits = part.khash, None
                if len(own) >= LARGE:
                    bits = layer.known().bits(number, own)
                hit = found(own, khash, bits)
                if hit is not None:
                    yield part.columns, part.diff, *hit


def empty_batch(layout: Layout) -> Batch:
    """A batch without rows."""
    none = np.zeros(0, np.uint64)
    columns = [rows.empty(t) for t in layout.types]
    code = none if layout.order is not None else None
    return Batch(layout, columns, none, none, np.zeros(0, np.int64), code)
