"""The change of one node in one epoch, in each form that a reader has requested.

The same rows may be needed in several orders, unordered with hashes, or as a layer. Each form is
built once. A small change is sorted only if an operator needs the order. Otherwise it is enough
that its rows are distinct; they are sorted later, together with the rows of following epochs (see
`Layer.young`).

The hashes of updates are computed at the first request, and cached. The rows of one change are
compared, looked up and sorted by several keys and as whole rows. Hashes are chained: the hash of
columns a, b is computed from that of a. So the hash of a key can be extended to that of a longer
key, or of the row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from nosync_nb import rows
from nosync_nb.operators import Linear, Step
from nosync_nb.rows import Column
from nosync_nb.rows.array_ops import any_zero
from nosync_nb.rows.types import OBJECT_BYTES
from nosync_nb.trace import Layer
from nosync_nb.trace.batch import (
    FEW_ROWS,
    NO_HASHES,
    UNORDERED,
    Batch,
    Hashes,
    Layout,
    Updates,
    all_rows,
    arrange,
    concat_updates,
    consolidate_few,
    do_ascend,
    joined_updates,
    no_updates,
)
from nosync_nb.trace.compaction import rearrange_parts
from nosync_nb.trace.parts.part_file import PartRef, frame_rows

_ODD = np.uint64(0x9E3779B97F4A7C15)

BITMAP_COLUMNS = 64
"""The maximum number of columns with a single bitmap of nulls, so that hashes can be extended."""


class LazyHashes:
    """Updates with a cache of their hashes.

    Args:
        types: the column types.
        updates: the updates in any order; a row may occur several times. They are not changed.
        known: the hashes that the caller has already, by the positions of their columns in order.
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
        """Returns the hashes over some columns.

        Cost: that of hashing the columns after the longest cached prefix.
        """
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
        """Returns the rows as an unordered batch with the hashes of a layout's key.

        Returns None if two rows may be equal. Then the rows must be sorted.

        Cost: that of hashing the keys; no sort. If a key occurs twice, also that of hashing the
        rows, unless the integer columns distinguish them.
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
        """Returns True if the hashes of the key and the integer columns distinguish all rows.

        Cost: a few us per column, which is less than hashing the texts of the rows.
        """
        mixed = khash.copy()
        for column in self.updates.columns:
            if isinstance(column, np.ndarray) and column.dtype.kind == "i":
                mixed *= _ODD
                mixed += column.astype(np.int64, copy=False).view(np.uint64)
        return _differ(mixed)


def _differ(hashes: Hashes) -> bool:
    return len(set(hashes.tolist())) == len(hashes)


SMALL_ROWS = 4096
"""The maximum number of rows of a small change, which stays in this process and in the frame."""


class ArrangedChange(NamedTuple):
    """A change in a layout: parts without common rows, and the files that contain them.

    The key hashes of the parts ascend, except that removed rows may be in parts of their own, after
    the added rows; see `nosync_nb.trace.difference`.
    """

    parts: tuple[Batch, ...]
    refs: tuple[PartRef, ...] = ()


class ArrangedDifference(NamedTuple):
    """A change as the rows that it adds, and those that it removes; either may have no parts."""

    added: ArrangedChange
    removed: ArrangedChange

    @property
    def change(self) -> ArrangedChange:
        """The change."""
        parts, refs = self.added
        return ArrangedChange((*parts, *self.removed.parts), (*refs, *self.removed.refs))


class UnarrangedChange(NamedTuple):
    """Unordered updates in files, which one operator on executors passes to the next."""

    parts: tuple[Updates, ...]
    refs: tuple[PartRef, ...]


class DeferredChange(Protocol):
    """The output of an operator that has not run yet: it may run as part of its reader's run.

    Attributes:
        rows, size_bytes, from_frame: those of its inputs, because the size of the output is
            unknown.
    """

    @property
    def rows(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def from_frame(self) -> int: ...

    @property
    def work(self) -> tuple[int, str] | None:
        """The work of a separate run: the number of touched rows, and the place.

        None if the operator was not run separately.
        """

    def run_separately(self) -> UnarrangedChange | None:
        """Runs the operator separately, once, and returns its output; None if that is empty."""


class Delta:
    """The change of one node in one epoch, in each layout that a reader has requested.

    Args:
        updates: the change in any order.
        held: the change arranged, by layout.
        loose: the change in unordered files from executors.
        later: a change, a row-wise operator over it, and its step. The operator runs when its
            output is needed, so that executors can run it as part of the next operator.
        from_frame: the number of rows that came as a Spark DataFrame, if files do not record it.
        pending: the operator that computes the change, if executors have not run it yet.
    """

    __slots__ = (
        "_from_frame",
        "_hashed",
        "_hashes",
        "_summed",
        "_updates",
        "held",
        "later",
        "loose",
        "pending",
        "types",
    )

    def __init__(
        self,
        types: tuple[str, ...],
        updates: Updates | None = None,
        held: dict[Layout, ArrangedChange] | None = None,
        *,
        loose: UnarrangedChange | None = None,
        later: tuple[Delta, Linear, Step] | None = None,
        from_frame: int = 0,
        pending: DeferredChange | None = None,
    ) -> None:
        self.types = types
        self._updates = updates
        self.held = held if held is not None else {}
        self._hashed: dict[Layout, Batch | None] = {}
        self._hashes: LazyHashes | None = None
        self._summed: Batch | None = None
        self.loose = loose
        self.later = later
        self.pending = pending
        self._from_frame = from_frame

    def __len__(self) -> int:
        """Returns the number of rows; for a deferred change, that of its inputs."""
        if self._updates is not None:
            return len(self._updates.diff)
        if self.pending is not None:
            return self.pending.rows
        if self.later is not None:
            return len(self.later[0])
        if self.loose is not None:
            return sum(ref.rows for ref in self.loose.refs)
        return sum(len(p) for p in next(iter(self.held.values())).parts)

    @property
    def in_files(self) -> bool:
        """True if the rows are in part files, where executors can read them."""
        if self.later is not None:
            return self.later[0].in_files
        if self.pending is not None or self.loose is not None:
            return True
        return any(arranged.refs for arranged in self.held.values())

    @property
    def is_pending(self) -> bool:
        """True if executors have not computed the change yet."""
        if self.later is not None:
            return self.later[0].is_pending
        return self.pending is not None

    @property
    def late_work(self) -> tuple[int, str] | None:
        """The work of the deferred operator, if that was run separately; otherwise None."""
        if self.later is not None:
            return self.later[0].late_work
        return None if self.pending is None else self.pending.work

    @property
    def is_apart(self) -> bool:
        """True if the change consists of several parts in one of its layouts."""
        return any(len(arranged.parts) > 1 for arranged in self.held.values())

    @property
    def from_frame(self) -> int:
        """The number of rows that came as a Spark DataFrame."""
        if self.later is not None:
            return self.later[0].from_frame
        if self.pending is not None:
            return self.pending.from_frame
        return self._from_frame or frame_rows(self._refs)

    @property
    def size_bytes(self) -> int:
        """The approximate bytes of the rows, without computing the change or reading a file."""
        if self.later is not None:
            return self.later[0].size_bytes
        if self.pending is not None:
            return self.pending.size_bytes
        if refs := self._refs:
            return sum(ref.size_bytes for ref in refs)
        if self._updates is not None:
            return _size_bytes(self._updates)
        return sum(_size_bytes(part) for part in next(iter(self.held.values())).parts)

    @property
    def _refs(self) -> tuple[PartRef, ...]:
        """The files of the rows in one layout, or unordered; empty if they are in memory."""
        if self.loose is not None:
            return self.loose.refs
        return next((arranged.refs for arranged in self.held.values() if arranged.refs), ())

    @property
    def updates(self) -> Updates:
        """The change as updates in any order."""
        if self._updates is None:
            if self.later is not None:
                source, operator, step = self.later
                step.give((source.updates,))
                self._updates = operator.step(step) or no_updates(self.types)
            elif self.pending is not None:
                loose = self.pending.run_separately()
                self._updates = concat_updates(loose.parts if loose else (), self.types)
            elif self.loose is not None:
                self._updates = concat_updates(self.loose.parts, self.types)
            else:
                arranged = next(iter(self.held.values()))
                self._updates = concat_updates([p.updates for p in arranged.parts], self.types)
        return self._updates

    def with_columns_read(self, wanted: AbstractSet[int] | None) -> Updates:
        """Returns the updates; if they are in several parts, with nulls in unread columns.

        Args:
            wanted: the columns that are read; `None` means all columns.
        """
        if wanted is None or self._updates is not None or not self.is_apart:
            return self.updates
        parts = next(arranged.parts for arranged in self.held.values() if len(arranged.parts) > 1)
        columns: list[Column] = [
            rows.concat([part.columns[i] for part in parts], type_)
            if i in wanted
            else pa.nulls(sum(map(len, parts)))
            for i, type_ in enumerate(self.types)
        ]
        return Updates(columns, np.concatenate([part.diff for part in parts]))

    def batch(self, layout: Layout) -> Batch:
        """Returns the change arranged in a layout, which consolidates it."""
        arranged = self.held.get(layout)
        if arranged is not None:
            if do_ascend(arranged.parts):
                return joined_updates(layout, arranged.parts)
            merged = self._hashed.get(layout)
            if merged is None:
                merged = self._hashed[layout] = joined_updates(layout, arranged.parts)
            return merged
        other = next(iter(self.held.values()), None)
        if other is not None and len(other.parts) == 1:
            part = other.parts[0]
            batch = arrange(layout, part.updates, rhash=part.rhash)
        elif other is not None and len(self) > SMALL_ROWS:
            batch = rearrange_parts(layout, other.parts)
        elif len(self.updates.diff) <= SMALL_ROWS:
            batch = self._with_lazy_hashes().arranged(layout)
        else:
            batch = arrange(layout, self.updates)  # hashes of many rows are not cached
        self.held[layout] = ArrangedChange((batch,))
        return batch

    def parts_by_order(self, layout: Layout | None) -> Sequence[Batch | Updates]:
        """Returns the parts of the change, or the whole change as one part.

        Parts in files are mapped, so a caller that reads them one by one needs memory for one only.

        Args:
            layout: the layout of the parts; `None` means any order.
        """
        if layout is not None:
            arranged = self.held.get(layout)
            return (self.batch(layout),) if arranged is None else arranged.parts
        arranged = next(iter(self.held.values()), None)
        if self._updates is not None or self.later is not None or arranged is None:
            return (self.updates,)
        return [part.updates for part in arranged.parts]

    def _with_lazy_hashes(self) -> LazyHashes:
        """Returns the updates with a cache of their hashes; for small changes only."""
        if self._hashes is None:
            self._hashes = LazyHashes(self.types, self.updates)
        return self._hashes

    def consolidated_if_few(self) -> Batch | None:
        """Consolidates a small change, without sorting it or computing hashes of its rows.

        Returns:
            the unordered rows, which also replace the updates of the change. None if the change is
            too large, is already arranged, or cannot be consolidated without hashes.
        """
        if self.held or self.loose is not None or len(self) > FEW_ROWS:
            return None
        few = self._summed
        if few is None:
            unsummed = self.updates
            updates = consolidate_few(self.types, unsummed)
            if updates is None:
                return None
            if updates is not unsummed:
                self._updates, self._hashes = updates, None
                self._hashed.clear()
            few = self._summed = Batch(
                UNORDERED, updates.columns, NO_HASHES, NO_HASHES, updates.diff
            )
        return few

    def with_hashes(self, layout: Layout) -> Batch:
        """Returns the change with the hashes of a layout; unordered if it is small."""
        if self.held or self.loose is not None or len(self) > SMALL_ROWS:
            return self.batch(layout)
        cached = self._hashed
        if layout in cached:
            batch = cached[layout]
        elif self.consolidated_if_few() is not None:
            columns, diff = self.updates
            khash = self._with_lazy_hashes().hashes_of(layout.places)
            batch = cached[layout] = Batch(UNORDERED, columns, khash, khash, diff)
        else:
            batch = cached[layout] = self._with_lazy_hashes().unordered(layout)
        return self.batch(layout) if batch is None else batch

    def layer(self, layout: Layout, epoch: int) -> Layer:
        """Returns the change as a layer over `[epoch, epoch + 1)`; young if it is unordered."""
        if not self.held:
            return unordered_layer(self.updates, layout, epoch)
        arranged = self.held.get(layout)
        if arranged is None or not arranged.refs:
            arranged = ArrangedChange((self.batch(layout),))
        return layer_of(arranged, layout, epoch)


def file_bytes(deltas: Iterable[Delta | None]) -> int:
    """Returns the approximate bytes of those changes that are in files."""
    return sum(each.size_bytes for each in deltas if each is not None and each.in_files)


def _size_bytes(part: Updates | Batch) -> int:
    """Returns the bytes of rows; for columns of Python objects, an estimate."""
    size: int = part.diff.nbytes
    for column in part.columns:
        size += column.nbytes
        if getattr(getattr(column, "dtype", None), "hasobject", False):
            size += OBJECT_BYTES * len(part.diff)
    return size


def layer_of(held: ArrangedChange, layout: Layout, epoch: int) -> Layer:
    """Returns a change as a layer over `[epoch, epoch + 1)`; young if it is unordered."""
    if len(held.parts) == 1 and held.parts[0].layout is UNORDERED:
        return unordered_layer(held.parts[0].updates, layout, epoch)
    return Layer(epoch, epoch + 1, held.parts, held.refs)


def unordered_layer(updates: Updates, layout: Layout, epoch: int) -> Layer:
    """Returns a few unordered updates as a young layer over `[epoch, epoch + 1)`."""
    return Layer.young(epoch, epoch + 1, layout, (updates,), len(updates.diff))
