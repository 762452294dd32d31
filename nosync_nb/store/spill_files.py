"""Spilling: what is large goes to files as soon as it is made, while the rest is still computed.

A run over many rows would hold all that its operators give until the frame is written. Instead each
batch that the frame would only name is written at once, and mapped from then on: what memory is
needed for is one operator at a time.

The files of a run are nobody's until a frame names them. Those that one operator writes for the
next go with the end of the run; if it fails, all of them do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nosync_nb.dataflow.runtime.delta import ArrangedChange
from nosync_nb.errors import DurabilityError
from nosync_nb.files import memory_map
from nosync_nb.store.store import Store
from nosync_nb.trace.batch import UNORDERED, Layout, Updates, arrange
from nosync_nb.trace.parts.part_file import PartRef

REST_BYTES = 1 << 26
"""An operator that has read more of files than this leaves none of their pages in memory."""


class RunFiles:
    """The files that one run at a time writes; with the gate's lock, but for one that goes apart.

    Args:
        store: whose folder they are in.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._between: list[PartRef] = []
        self._written: list[PartRef] = []

    def lend(self, refs: Iterable[PartRef]) -> None:
        """Notes files that only the next operators read."""
        self._between += refs

    def keep(self, refs: Iterable[PartRef]) -> None:
        """Notes files that the run's frame will name."""
        self._written += refs

    def spilled(self, number: int, held: ArrangedChange, epoch: int) -> ArrangedChange:
        """The batch of a log or a trace: in files if it is large, else as it is.

        Raises:
            DurabilityError: the disk refuses; what was written goes with the run.
        """
        store, (batch,) = self._store, held.parts
        if batch.layout is UNORDERED or not store.large(batch):
            return held
        held = store.spill([batch], batch.layout, f"run{number}-{epoch}")
        self.keep(held.refs)
        return held

    def rest(self, size_bytes: int) -> None:
        """Is told that so many bytes of files were read; of many the system has the pages again."""
        if size_bytes > REST_BYTES:
            memory_map.remaining_bytes()

    def arranged(
        self, traces: Mapping[Layout, int], updates: Updates, epoch: int
    ) -> dict[Layout, ArrangedChange]:
        """Rows in each of some orders, in files; in memory those that the disk refuses.

        Whatever their number is, rows are in memory once, and a column of them for each core
        twice, if one order is asked for; if there are more, once more.

        Args:
            traces: the orders, with the number of the trace of each.
            updates: not to be used afterwards.
        """
        made: dict[Layout, ArrangedChange] = {}
        for at, (layout, number) in enumerate(traces.items(), 1):
            batch = arrange(layout, updates, consumed=at == len(traces))
            try:
                made[layout] = self.spilled(number, ArrangedChange((batch,)), epoch)
            except DurabilityError:  # the commit meets it again, and says what is the matter
                made[layout] = ArrangedChange((batch,))
        return made

    def end(self, *, failed: bool) -> None:
        """Deletes what nobody reads any more; of a run that failed everything."""
        if self._between or self._written:
            useless = (*self._between, *(self._written if failed else ()))
            self._store.remove(ref.path for ref in useless)
            self._between, self._written = [], []
