"""Defines layers: the changes of some epochs, sorted only to the degree that readers needed so far.

A layer covers the epochs `[lower, upper)`. Its rows may be split into parts, which are disjoint and
ascending in key hash; each is in memory or mapped from a file. If an epoch removes most rows, its
layer has parts for the added rows, and then parts for the removed rows.

A layer of small epochs is `young`: its updates are in the order of arrival. A lookup sorts them by
key hash only. For any other read they are sorted and consolidated into batches.

Statistics of layers are cached (see stats.py and paging.py), because layers do not change. They
depend only on the contents. So layers of the same files share them: those of a log and its branches
in one process, and those of a session that continues from an epoch. Files are identified by the
digest of their contents. The statistics are freed with the last layer that uses them.

Design
    In a large part, hashes are located by their first bits, because each step of a binary search
    over the whole part is a cache miss. Hashes are evenly distributed, so their first bits locate
    them within a few dozen rows; a vectorised binary search does the rest. This pays if the wanted
    hashes are far apart. If many rows have few keys, hashes are not evenly distributed, and the
    search takes the same number of steps as a binary search over all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import numpy as np

from nosync_nb import rows
from nosync_nb.rows.array_ops import all_true, any_true, total
from nosync_nb.rows.types import FIXED
from nosync_nb.trace.batch import (
    Batch,
    Hashes,
    Index,
    Layout,
    Updates,
    arrange,
    concat_updates,
    merge,
)
from nosync_nb.trace.parts.part_file import PartRef, readable

ORDERS_MAX = 3
"""The number of orders whose first rows a layer caches."""


LARGE = 1 << 16
"""Fewer hashes than this stay in the processor's cache, so a binary search is used."""

SOME = 32
"""Fewer hashes than this are looked up in a simpler way, because each numpy call costs a few us."""

_BUCKET = 64

_SPARSE_SHIFT = 7


def sparse_index(held: int, wanted: int) -> bool:
    """Returns True if a prefix index pays, because few of many hashes are wanted.

    If more than one in 128 hashes is wanted, in ascending order, a binary search stays close to its
    previous position.

    Args:
        held: the number of hashes of a part.
        wanted: the number of hashes to look up.
    """
    return held >= LARGE and wanted <= held >> _SPARSE_SHIFT


class HashPrefixIndex:
    """An index of sorted hashes by their first bits.

    Args:
        hashes: at least two hashes, ascending.

    Cost: 2 ns for each hash.
    """

    __slots__ = ("_bucket_max", "_shift", "_starts")

    def __init__(self, hashes: Hashes) -> None:
        bits = max(1, (len(hashes) // _BUCKET).bit_length() - 1)
        self._shift = np.uint64(64 - bits)
        self._starts = hashes.searchsorted(np.arange(1 << bits, dtype=np.uint64) << self._shift)
        most = int(np.diff(self._starts, append=len(hashes)).max())
        self._bucket_max = max(1, most)  # a file of an untrusted writer may contain any hashes

    def places(self, hashes: Hashes, wanted: Hashes, *, behind: bool = False) -> Index:
        """Computes `hashes.searchsorted(wanted)`, with side "right" if `behind` is True.

        Args:
            hashes: the hashes that were indexed.
        """
        below = np.less_equal if behind else np.less
        at: Index = self._starts.take((wanted >> self._shift).view(np.int64))
        step = 1 << (self._bucket_max.bit_length() - 1)
        while step:
            # Reading past the last hash with these bits is harmless: a larger hash follows, or
            # `take` returns the last hash of all again.
            passed = below(hashes.take(at + (step - 1), mode="clip"), wanted)
            np.add(at, step, out=at, where=passed)
            step >>= 1
        return np.minimum(at, len(hashes))


def find_hashes(
    hashes: Hashes, wanted: Hashes, bits: HashPrefixIndex | None
) -> tuple[Index, Index] | None:
    """Finds hashes in sorted hashes.

    Args:
        hashes: the sorted hashes.
        wanted: the hashes to find.
        bits: the prefix index of `hashes`; None unless `sparse_index` returns True.

    Returns:
        for each match the number of the wanted hash, and the position in `hashes`; None without a
        match.
    """
    n = len(hashes)
    if not n or not len(wanted):
        return None
    low = hashes.searchsorted(wanted) if bits is None else bits.places(hashes, wanted)
    same = hashes.take(low, mode="clip") == wanted
    if all_true(same):
        probe = np.arange(len(wanted))
    else:
        probe = same.nonzero()[0]
        if not len(probe):
            return None
        low, wanted = low[probe], wanted[probe]
    after = low + 1
    if not any_true((hashes.take(after, mode="clip") == wanted) & (after < n)):
        return probe, low
    if bits is None:
        high = hashes.searchsorted(wanted, "right")
    else:
        high = bits.places(hashes, wanted, behind=True)
    count = high - low
    return probe.repeat(count), hash_ranges(low, count)


def find_few_hashes(hashes: Hashes, wanted: Hashes) -> tuple[Index, Index] | None:
    """Returns the same as `find_hashes`; faster for a few hashes."""
    low = hashes.searchsorted(wanted)
    high = hashes.searchsorted(wanted, "right")
    if low.tobytes() == high.tobytes():
        return None
    count = high - low
    probe = count.nonzero()[0]
    if total(count) == len(probe):
        return probe, low[probe]
    return np.arange(len(wanted)).repeat(count), hash_ranges(low, count)


def hash_ranges(start: Index, count: Index) -> Index:
    """Concatenates `arange(start[i], start[i] + count[i])`."""
    ends = count.cumsum()
    length = int(ends[-1]) if len(ends) else 0
    positions: Index = np.arange(length) + (start - ends + count).repeat(count)
    return positions


class LayerRowFacts:
    """Cached statistics of the rows of a layer.

    Attributes:
        counted: the sum of the counts and the least count; None until they are computed.
        first: for each order the number of first rows that were requested, and the first rows of
            each part.
        bits: the hash prefix index of each large part, by number of the part.
        derived: what operators have derived from a part, by its name and the number of the part.
    """

    __slots__ = ("__weakref__", "bits", "counted", "derived", "first")

    def __init__(self) -> None:
        self.counted: tuple[int, int] | None = None
        self.first: dict[Any, tuple[int, Sequence[Any]]] = {}
        self.bits: dict[int, HashPrefixIndex] = {}
        self.derived: dict[tuple[str, int], Any] = {}


class LayerFacts:
    """Cached statistics of a layer.

    Attributes:
        rows: the statistics of its rows.
        sound: True if it is known that no row of the collection has a negative count at the end
            of this layer.
    """

    __slots__ = ("rows", "sound")

    def __init__(self, rows: LayerRowFacts) -> None:
        self.rows = rows
        self.sound = False

    def count(self, sums: int, least: int) -> None:
        """Records the sum of the counts and the least count."""
        self.rows.counted = sums, least

    def cache_first_rows(self, order: Any, n: int, first: Sequence[Any]) -> None:
        """Caches the first `n` rows of each part in an order, and drops the oldest order."""
        recent = [each for each in self.rows.first.items() if each[0] != order]
        self.rows.first = dict([*recent[-(ORDERS_MAX - 1) :], (order, (n, first))])

    def bits(self, part: int, hashes: Hashes) -> HashPrefixIndex:
        """Returns the hash prefix index of a part of the layer, built at the first call."""
        index = self.rows.bits.get(part)
        if index is None:
            index = self.rows.bits[part] = HashPrefixIndex(hashes)
        return index

    def derive(self, name: str, part: int, compute: Callable[[], Any]) -> Any:
        """Returns a value that depends only on a part of the layer, computed at the first call."""
        value = self.rows.derived.get((name, part))
        if value is None:
            value = self.rows.derived[name, part] = compute()
        return value

    def sum_up(self) -> None:
        """Records that no row has a negative count at the end of the layer."""
        self.sound = True


_KNOWN: WeakValueDictionary[tuple[Any, ...], LayerRowFacts] = WeakValueDictionary()


def layer_facts(files: Sequence[PartRef]) -> LayerFacts:
    """Returns the statistics of a layer; layers of the same files share those of the rows."""
    if not files:
        return LayerFacts(LayerRowFacts())
    key = tuple(ref.contents for ref in files)
    return LayerFacts(_KNOWN.setdefault(key, LayerRowFacts()))


_ROW_BYTES = 1024
"""In the level of a layer in files, this number of bytes counts as a row if rows are larger."""

_KEYED_MAX = 4096
"""The maximum number of rows of layers that may be merged by key hash only."""

ALIKE_MAX = 16
"""The maximum number of rows of one key hash in a layer that is sorted by key hash only."""

Pieces: TypeAlias = tuple[Layout, tuple[Updates, ...], int]
"""The contents of a young layer: the layout, the updates of each epoch, and the number of rows."""


class Layer:
    """The changes of the epochs `[lower, upper)`, as parts without common rows.

    The parts are disjoint in key hash, except those that remove the rows of other files.

    A layer may be `young`: its updates are sorted at the first read, and until then the next epoch
    can be joined to it. So a trace that is not read costs an epoch almost nothing. A lookup sorts
    the rows by key hash (`keyed`). Any other read sorts and consolidates them (`parts`).

    Attributes:
        files: the part files with the contents of the layer, one for each part; empty while the
            layer is only in memory and in the frames of the log.
        level: the level of size, which grows by one when the number of rows grows fourfold.
        rows_count: the number of rows; an upper bound until the rows are consolidated.
        full: True if no further epoch is joined to the layer.
        claimed: True while the worker merges the layer.
        wary: the number of epochs for which no epoch is joined to the layer; see `is_watched`.
        encoded: the layer in the form of a checkpoint, if a checkpoint has stored it.
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
            self._set_count(len(keyed))
        elif pieces is None:
            self._set_count(len(parts[0]) if len(parts) == 1 else sum(map(len, parts)))
        else:  # a young layer: an upper bound, because equal rows are not consolidated yet
            self.rows_count = rows_count = pieces[2]
            self.level = (rows_count | 1).bit_length() >> 1

    def claim(self) -> None:
        """Marks the layer as being merged by the worker, so no other thread merges it."""
        self.claimed = True

    def facts(self) -> LayerFacts:
        """Returns the cached statistics of the layer, which readers extend."""
        if self.seen is None:
            self.seen = layer_facts(self.files)
        return self.seen

    def watch(self, epochs: int) -> None:
        """Prevents joins to this layer for a number of epochs."""
        self.wary = epochs

    def fill(self) -> None:
        """Marks the layer as full, so no further epoch is joined to it."""
        self.full = True

    def keep_encoded(self, data: bytes) -> bytes:
        """Caches and returns the layer in the form of a checkpoint."""
        self.encoded = data
        return data

    def release(self) -> None:
        """Marks the layer as no longer in use by the worker."""
        self.claimed = False

    def _set_count(self, rows_count: int) -> None:
        self.rows_count = rows_count
        bits = (rows_count | 1).bit_length()
        self.level = level_of(rows_count, self.files) if self.files else bits >> 1

    @classmethod
    def young(
        cls, lower: int, upper: int, layout: Layout, pieces: tuple[Updates, ...], rows_count: int
    ) -> Layer:
        """Builds a young layer from updates in any order."""
        return cls(lower, upper, (), pieces=(layout, pieces, rows_count))

    @property
    def parts(self) -> tuple[Batch, ...]:
        """The rows, sorted and consolidated.

        Cost: at the first call, that of sorting a young layer.
        """
        # Another thread may sort at the same time. So the new form is set before the previous one
        # is cleared, and readers check the previous form first: they always find one of them.
        young, keyed = self._pieces, self._keyed
        if young is not None:
            layout, pieces, _ = young
            self._set_ordered(arrange(layout, concat_updates(pieces, layout.types)))
        elif keyed is not None:
            self._set_ordered(arrange(keyed.layout, keyed.updates, khash=keyed.khash))
        elif self.files:
            self._parts = readable(self._parts)
        return self._parts

    @property
    def keyed(self) -> tuple[Batch, ...]:
        """The rows in the order of their key hashes, which is sufficient for a lookup.

        In a young layer whose rows are expensive to hash, the rows of a key are neither sorted nor
        consolidated. A row may then occur several times, and row hashes must not be used.
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

    def _set_ordered(self, batch: Batch) -> None:
        """Replaces the young or keyed form of the rows with a sorted batch."""
        self._set_count(len(batch))
        self._parts = (batch,)
        self._pieces = self._keyed = None

    def joined(self, layout: Layout, updates: Updates, upper: int) -> Layer:
        """Returns a young layer with the updates of this layer and of the next epoch."""
        young = self._pieces
        if young is not None:
            _, pieces, count = young
        else:  # another thread has sorted the updates meanwhile
            pieces, count = tuple(self.updates), self.rows_count
        grown = (layout, (*pieces, updates), count + len(updates.diff))
        layer = Layer(self.lower, upper, (), pieces=grown)
        layer._source, self._source = self, None
        return layer

    def grown(
        self, layout: Layout, updates: Updates, upper: int, pieces_max: int, rows_max: int
    ) -> Layer | None:
        """Joins an epoch like `joined` if the layer has grown before and may grow; else None.

        Args:
            pieces_max, rows_max: the maximum number of epochs and rows of the joined layer.

        Most traces grow in this way in small epochs. So the conditions of `is_watched` and
        `pieces_count` are checked inline, without a call.
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
        """True if the layer's previous version, without the last joined epoch, was read.

        Some operators read the previous state in each epoch. Then the layer would be sorted again
        each time it grows.
        """
        source = self._source
        return source is not None and source._pieces is None

    @property
    def is_ordered(self) -> bool:
        """True if the rows are sorted and consolidated."""
        return self._pieces is None and self._keyed is None

    @property
    def is_young(self) -> bool:
        """True if the rows are in the order of arrival, because the layer has not been read."""
        return self._pieces is not None

    @property
    def pieces_count(self) -> int:
        """The number of epochs in a young layer; 0 for any other layer."""
        young = self._pieces
        return 0 if young is None else len(young[1])

    @property
    def updates(self) -> Sequence[Updates]:
        """The updates; those of a young layer are neither sorted nor consolidated."""
        young = self._pieces
        return [part.updates for part in self.keyed] if young is None else young[1]


def merged(layout: Layout, layers: Sequence[Layer]) -> Layer:
    """Merges layers into one.

    If the rows are few, and most of them are only sorted by key hash or unsorted, the result may be
    sorted by key hash only.

    Cost: O(n log n) in the rows.
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
    """Returns True if rows are sorted by key only, and cost much more to hash than keys."""
    if layout.key is None or layout.order is not None:
        return False
    return any(t not in FIXED for i, t in enumerate(layout.types) if i not in layout.key)


def _by_key(layout: Layout, updates: Updates, khash: Hashes | None = None) -> Batch | None:
    """Sorts updates by their key hashes, without hashing or consolidating rows.

    Returns None if hashing rows is cheap, or if a key has more than `ALIKE_MAX` rows. The rows of
    such a key may be insertions and removals of one row, and each lookup would return all of them.
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
    """Returns the level of a layer by its number of rows; for files with wide rows by its bytes."""
    if files:
        rows_count = max(rows_count, sum(ref.size_bytes for ref in files) // _ROW_BYTES)
    return (rows_count | 1).bit_length() >> 1
