"""Deferred layers: their rows are made when somebody looks, out of frames, files, or the past."""

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
    """A layer whose rows are made when somebody looks at them.

    `rows_count` may be more than there are: updates that cancel are counted. `needs` names the
    files that they are made from, which may be those of other layers.
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
        """The rows; what they are made from is let go."""
        make = self._make
        if make is not None:
            self._parts = make()
            self._make = None
        elif self.files:
            self._parts = readable(self._parts)
        return self._parts

    @property
    def is_made(self) -> bool:
        """Whether somebody has looked."""
        return self._make is None


class HistoryLayer(LazyLayer):
    """A layer out of the history of a log, read when somebody looks at it.

    Args:
        history: that is read, and is not to change; see `dataflow.snapshot.seen`.
        log: of which its rows are the changes in `(after, span.upper)`.
        span: the epochs that it covers.
        after: the last epoch that it has nothing of; None: all from the beginning is in it.
        rows_count: how many rows are expected, not 0; it is not known before they are read.
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
        def made() -> tuple[Batch, ...]:
            updates = [b.updates for b in history.changes(log, after, span.upper - 1)]
            if not updates:
                return (empty_batch(layout),)
            return (arrange(layout, concat_updates(updates, layout.types)),)

        super().__init__(*span, rows_count, made)
        self.log, self.after = log, after

    def said(self) -> dict[str, Any] | None:
        """How a checkpoint says it; None once it was made, as it may be joined with others then."""
        if self.is_made:
            return None
        return {"log": self.log, "after": self.after, "rows": self.rows_count}


def files_needed(trace: Trace) -> set[str]:
    """The files that the layers of a trace are made from when somebody looks."""
    names: set[str] = set()
    for layer in trace.layers:
        own = layer.needs if isinstance(layer, LazyLayer) else (ref.path for ref in layer.files)
        names.update(own)
    return names


def layer_refs(said: Any) -> tuple[PartRef, ...]:
    """The files of a layer that a checkpoint lists; one that it holds, or of the past, has none."""
    return () if said is None or isinstance(said, dict) else refs_from_json(said)
