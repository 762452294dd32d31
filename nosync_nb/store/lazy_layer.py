"""Layers whose rows are read from frames, files or the history when they are first accessed."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any

from nosync_nb.trace import Layer, LayerFacts, Trace, empty_batch
from nosync_nb.trace.batch import Batch, Layout, arrange, concat_updates
from nosync_nb.trace.epoch_ranges import Interval
from nosync_nb.trace.history.history import History
from nosync_nb.trace.layer import level_of
from nosync_nb.trace.parts.part_file import PartRef, readable, refs_from_json


class LazyLayer(Layer):
    """A layer whose rows are read or computed when a reader first accesses them.

    Attributes:
        rows_count: an upper bound of the number of rows, because updates that cancel out are
            counted.
        needs: the names of the files that contain the rows; they may be files of other layers.
    """

    __slots__ = ("_make", "needs")

    def __init__(
        self,
        lower: int,
        upper: int,
        rows_count: int,
        make: Callable[[], tuple[Batch, ...]],
        files: tuple[PartRef, ...] = (),
        needs: AbstractSet[str] = frozenset(),
        *,
        seen: LayerFacts | None = None,
    ) -> None:
        super().__init__(lower, upper, (), files, seen=seen)
        self.needs = frozenset(needs or (ref.path for ref in files))
        self.rows_count = rows_count
        self.level = level_of(rows_count, files)
        self._make: Callable[[], tuple[Batch, ...]] | None = make

    @property
    def parts(self) -> tuple[Batch, ...]:
        """The rows; the first access reads them and releases their source."""
        make = self._make
        if make is not None:
            self._parts = make()
            self._make = None
        elif self.files:
            self._parts = readable(self._parts)
        return self._parts

    @property
    def is_made(self) -> bool:
        """True if the rows have been accessed."""
        return self._make is None


class HistoryLayer(LazyLayer):
    """A layer that is read from the history of a log when a reader first accesses it.

    Args:
        history: the history to read. It must not change afterwards; see `dataflow.snapshot.seen`.
        log: the number of the log whose changes in the epochs `(after, span.upper)` are the rows.
        span: the epochs that the layer covers.
        after: the last epoch whose changes are not included; `None` means that all changes from the
            beginning are included.
        rows_count: the expected number of rows, at least 1. The exact number is unknown before the
            read.
    """

    __slots__ = ("after", "log")

    def __init__(
        self,
        layout: Layout,
        history: History,
        log: int,
        span: Interval,
        after: int | None,
        rows_count: int,
    ) -> None:
        def read_rows() -> tuple[Batch, ...]:
            updates = [b.updates for b in history.changes(log, after, span.upper - 1)]
            if not updates:
                return (empty_batch(layout),)
            return (arrange(layout, concat_updates(updates, layout.types)),)

        super().__init__(*span, rows_count, read_rows)
        self.log, self.after = log, after

    def checkpoint_entry(self) -> dict[str, Any] | None:
        """Returns the entry of a checkpoint for this layer; None once its rows have been read.

        A layer whose rows were read may have been merged with others.
        """
        if self.is_made:
            return None
        return {"log": self.log, "after": self.after, "rows": self.rows_count}


def files_needed(trace: Trace) -> set[str]:
    """Returns the names of the files that are needed for reading the layers of a trace."""
    names: set[str] = set()
    for layer in trace.layers:
        paths = layer.needs if isinstance(layer, LazyLayer) else (ref.path for ref in layer.files)
        names.update(paths)
    return names


def layer_refs(said: Any) -> tuple[PartRef, ...]:
    """Returns the files that a checkpoint lists for a layer.

    A layer that is inline in the checkpoint, or is read from the history, has no files.
    """
    return () if said is None or isinstance(said, dict) else refs_from_json(said)
