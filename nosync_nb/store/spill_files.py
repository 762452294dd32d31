"""Writes large results to files during a run, while later operators still compute.

Otherwise a run over many rows would keep the output of all its operators in memory until the frame
is written. Instead each batch that the frame would only reference is written at once and
memory-mapped from then on. So the run needs memory for one operator at a time.

The files of a run are not referenced until a frame names them. Files that one operator writes for
the next are deleted at the end of the run. If the run fails, all its files are deleted.
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
"""An operator that has read more bytes of files than this leaves none of their pages in memory."""


class RunFiles:
    """The files of one run at a time.

    The caller holds the writer's lock, unless the run computes off-lock.

    Args:
        store: the store whose folder they are in.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._temporary: list[PartRef] = []
        self._final: list[PartRef] = []

    def lend(self, refs: Iterable[PartRef]) -> None:
        """Notes files that only later operators of the run read."""
        self._temporary += refs

    def keep(self, refs: Iterable[PartRef]) -> None:
        """Notes files that the run's frame will name."""
        self._final += refs

    def spilled(self, number: int, held: ArrangedChange, epoch: int) -> ArrangedChange:
        """Returns the batch of a log or a trace: in files if it is large, else unchanged.

        Raises:
            DurabilityError: the disk refuses. The files that were written are deleted with the run.
        """
        store, (batch,) = self._store, held.parts
        if batch.layout is UNORDERED or not store.large(batch):
            return held
        held = store.spill([batch], batch.layout, f"run{number}-{epoch}")
        self.keep(held.refs)
        return held

    def release_pages(self, size_bytes: int) -> None:
        """Returns the mapped pages to the system if so many bytes of files were read."""
        if size_bytes > REST_BYTES:
            memory_map.drop_mapped_pages()

    def arranged(
        self, traces: Mapping[Layout, int], updates: Updates, epoch: int
    ) -> dict[Layout, ArrangedChange]:
        """Returns rows in each requested order, in files, or in memory if the disk refuses.

        Whatever the number of rows, they are in memory once, and one column for each core twice, if
        one order is requested. For several orders they are in memory twice.

        Args:
            traces: the orders, with the number of the trace of each.
            updates: must not be used afterwards.
        """
        arranged: dict[Layout, ArrangedChange] = {}
        for at, (layout, number) in enumerate(traces.items(), 1):
            batch = arrange(layout, updates, consumed=at == len(traces))
            try:
                arranged[layout] = self.spilled(number, ArrangedChange((batch,)), epoch)
            except DurabilityError:  # the commit will fail in the same way, and reports the error
                arranged[layout] = ArrangedChange((batch,))
        return arranged

    def end(self, *, failed: bool) -> None:
        """Deletes the files that are not needed any more; after a failure all of them."""
        if self._temporary or self._final:
            useless = (*self._temporary, *(self._final if failed else ()))
            self._store.remove(ref.path for ref in useless)
            self._temporary, self._final = [], []
