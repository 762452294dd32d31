"""Delta: the change of one node in one epoch, in as many forms as somebody asked for.

The same rows may be wanted in several orders, with hashes only, or as a layer; each is made once.
A small change is not sorted unless an operator wants it so: distinct rows are consolidated rows,
and what nobody looks into can be sorted together with the epochs that follow (see `Layer.young`).
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
from nosync_nb.rows.types import OBJECT_BYTES
from nosync_nb.trace import Layer
from nosync_nb.trace.batch import (
    NO_HASHES,
    UNORDERED,
    Batch,
    Layout,
    Updates,
    arrange,
    concat_updates,
    joined_updates,
    no_updates,
)
from nosync_nb.trace.lazy_hashes import LazyHashes
from nosync_nb.trace.merge import rearrange_parts
from nosync_nb.trace.parts.part_file import PartRef, frame_rows
from nosync_nb.trace.small_consolidation import FEW_ROWS, consolidate_few

SMALL_ROWS = 4096
"""A change of at most so many rows is small: it stays in this process, in the log's frame."""


class ArrangedChange(NamedTuple):
    """A change as parts disjoint in key hash, each with the file that holds it, if any."""

    parts: tuple[Batch, ...]
    refs: tuple[PartRef, ...] = ()


class UnarrangedChange(NamedTuple):
    """Updates in files without order, as one operator leaves them for the next."""

    parts: tuple[Updates, ...]
    refs: tuple[PartRef, ...]


class DeferredChange(Protocol):
    """What an operator gives that was not run yet: who reads it may have it run on the way.

    Attributes:
        rows, size_bytes, from_frame: of what goes into it; what comes out nobody knows.
    """

    @property
    def rows(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def from_frame(self) -> int: ...

    @property
    def work(self) -> tuple[int, str] | None:
        """What running it by itself took: rows touched, and where; None: it was not."""

    def settle(self) -> UnarrangedChange | None:
        """Has it run by itself, once, and gives what it left; None: nothing."""


class Delta:
    """The change of one node in one epoch, in as many layouts as somebody asked for.

    Args:
        held: the change arranged, by layout.
        loose: the change as executors left it for the next operator.
        later: (change, row-wise operator, step): to be computed where it is needed, so that
            executors can do it on the way to the next operator.
        from_frame: how many of its rows came as a Spark DataFrame, if its own files do not say.
        pending: the operator that gives it, if executors have not run it yet.
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
        """The rows of the change; of one to be computed later, those it is computed from."""
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
        """Whether the rows lie in part files, where executors can read them."""
        if self.later is not None:
            return self.later[0].in_files
        if self.pending is not None or self.loose is not None:
            return True
        return any(held.refs for held in self.held.values())

    @property
    def is_pending(self) -> bool:
        """Whether it is yet to come from executors."""
        if self.later is not None:
            return self.later[0].is_pending
        return self.pending is not None

    @property
    def late_work(self) -> tuple[int, str] | None:
        """What its operator took that was left to whoever reads this, and was run by itself."""
        if self.later is not None:
            return self.later[0].late_work
        return None if self.pending is None else self.pending.work

    @property
    def is_apart(self) -> bool:
        """Whether the rows lie in several parts, in one of their orders."""
        return any(len(held.parts) > 1 for held in self.held.values())

    @property
    def from_frame(self) -> int:
        """How many of the rows came as a Spark DataFrame."""
        if self.later is not None:
            return self.later[0].from_frame
        if self.pending is not None:
            return self.pending.from_frame
        return self._from_frame or frame_rows(self._refs)

    @property
    def size_bytes(self) -> int:
        """About how many bytes the rows take; nothing is computed for it, and no file is read."""
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
        """The files that the rows lie in, in one of their orders."""
        if self.loose is not None:
            return self.loose.refs
        return next((held.refs for held in self.held.values() if held.refs), ())

    @property
    def updates(self) -> Updates:
        """The change as updates in any order."""
        if self._updates is None:
            if self.later is not None:
                source, operator, step = self.later
                step.give((source.updates,))
                self._updates = operator.step(step) or no_updates(self.types)
            elif self.pending is not None:
                loose = self.pending.settle()
                self._updates = concat_updates(loose.parts if loose else (), self.types)
            elif self.loose is not None:
                self._updates = concat_updates(self.loose.parts, self.types)
            else:
                held = next(iter(self.held.values()))
                self._updates = concat_updates([p.updates for p in held.parts], self.types)
        return self._updates

    def narrowed(self, wanted: AbstractSet[int] | None) -> Updates:
        """The updates; of several parts nothing in place of the columns that nobody looks at.

        Args:
            wanted: the columns that somebody looks at; None: all.
        """
        if wanted is None or self._updates is not None or not self.is_apart:
            return self.updates
        parts = next(held.parts for held in self.held.values() if len(held.parts) > 1)
        columns: list[Column] = [
            rows.concat([part.columns[i] for part in parts], type_)
            if i in wanted
            else pa.nulls(sum(map(len, parts)))
            for i, type_ in enumerate(self.types)
        ]
        return Updates(columns, np.concatenate([part.diff for part in parts]))

    def batch(self, layout: Layout) -> Batch:
        """The change arranged; consolidated even if the updates are not."""
        held = self.held.get(layout)
        if held is not None:
            return joined_updates(layout, held.parts)
        other = next(iter(self.held.values()), None)
        if other is not None and len(other.parts) == 1:
            known = other.parts[0]
            batch = arrange(layout, known.updates, rhash=known.rhash)
        elif other is not None and len(self) > SMALL_ROWS:
            batch = rearrange_parts(layout, other.parts)
        elif len(self.updates.diff) <= SMALL_ROWS:
            batch = self._marked().arranged(layout)
        else:
            batch = arrange(layout, self.updates)  # hashes of many rows are not kept with them
        self.held[layout] = ArrangedChange((batch,))
        return batch

    def pieces(self, layout: Layout | None) -> Sequence[Batch | Updates]:
        """The change, arranged or (None) in any order, in the parts that it lies in; or as one.

        Parts of files are mapped: whoever takes one after the other has one of them in memory.
        """
        if layout is not None:
            held = self.held.get(layout)
            return (self.batch(layout),) if held is None else held.parts
        held = next(iter(self.held.values()), None)
        if self._updates is not None or self.later is not None or held is None:
            return (self.updates,)
        return [part.updates for part in held.parts]

    def _marked(self) -> LazyHashes:
        """The updates of a small change with their hashes, as far as they are known."""
        if self._hashes is None:
            self._hashes = LazyHashes(self.types, self.updates)
        return self._hashes

    def summed(self) -> Batch | None:
        """Few rows consolidated, in no order and without hashes; None: others are hashed.

        From then on these are its updates.
        """
        if self.held or self.loose is not None or len(self) > FEW_ROWS:
            return None
        few = self._summed
        if few is None:
            given = self.updates
            updates = consolidate_few(self.types, given)
            if updates is None:
                return None
            if updates is not given:
                self._updates, self._hashes = updates, None
                self._hashed.clear()
            few = self._summed = Batch(
                UNORDERED, updates.columns, NO_HASHES, NO_HASHES, updates.diff
            )
        return few

    def hashed(self, layout: Layout) -> Batch:
        """The change with the hashes that a layout asks for, in no order if it is small."""
        if self.held or self.loose is not None or len(self) > SMALL_ROWS:
            return self.batch(layout)
        known = self._hashed
        if layout in known:
            batch = known[layout]
        elif self.summed() is not None:
            columns, diff = self.updates
            khash = self._marked().of(layout.places)
            batch = known[layout] = Batch(UNORDERED, columns, khash, khash, diff)
        else:
            batch = known[layout] = self._marked().unordered(layout)
        return self.batch(layout) if batch is None else batch

    def layer(self, layout: Layout, epoch: int) -> Layer:
        """The change as a layer over `[epoch, epoch + 1)`; young if it is in no order."""
        if not self.held:
            return is_recent_layer(self.updates, layout, epoch)
        held = self.held.get(layout)
        if held is None or not held.refs:
            held = ArrangedChange((self.batch(layout),))
        return layer_of(held, layout, epoch)


def file_bytes(deltas: Iterable[Delta | None]) -> int:
    """About how many bytes of some changes lie in files."""
    return sum(each.size_bytes for each in deltas if each is not None and each.in_files)


def _size_bytes(part: Updates | Batch) -> int:
    """About how many bytes rows take; of Python's own values a guess."""
    size: int = part.diff.nbytes
    for column in part.columns:
        size += column.nbytes
        if getattr(getattr(column, "dtype", None), "hasobject", False):
            size += OBJECT_BYTES * len(part.diff)
    return size


def layer_of(held: ArrangedChange, layout: Layout, epoch: int) -> Layer:
    """A change as a layer over `[epoch, epoch + 1)`; young if it is in no order."""
    if len(held.parts) == 1 and held.parts[0].layout is UNORDERED:
        return is_recent_layer(held.parts[0].updates, layout, epoch)
    return Layer(epoch, epoch + 1, held.parts, held.refs)


def is_recent_layer(updates: Updates, layout: Layout, epoch: int) -> Layer:
    """Few updates in any order as a layer over `[epoch, epoch + 1)`."""
    return Layer.young(epoch, epoch + 1, layout, (updates,), len(updates.diff))
