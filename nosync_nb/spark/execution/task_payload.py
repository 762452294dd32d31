"""Prepares the data of a plan: references to part files, small batches, and spilled files.

Spilled files serve one run and are deleted after it, or their reader deletes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TypeAlias

from nosync_nb import rows
from nosync_nb.files.filesystem import Files
from nosync_nb.files.safe_names import PART, checked_path_within
from nosync_nb.spark.execution.tasks import StoredTrace
from nosync_nb.spark.staging.area import StagingArea
from nosync_nb.spark.staging.staging import StagingService
from nosync_nb.trace import Layer, Trace
from nosync_nb.trace.batch import Batch, Updates
from nosync_nb.trace.parts.part_file import PartRef, write_part, write_parts, write_updates

Source: TypeAlias = PartRef | Batch | Updates

INLINE_BYTES = 1 << 20
INLINE_BYTES_MAX = 8 << 20


class PlanPayload:
    """Converts the driver's traces and changes to parts of a plan, for the time of a `with` block.

    Args:
        carrier: uploads the files that executors read; see `send`.
        depot: the staging area of the run.
        thorough: True if another user signed the log: see `tasks.open_checked_part`.
    """

    def __init__(
        self, carrier: StagingService, depot: StagingArea, stem: str, *, thorough: bool = False
    ) -> None:
        self.depot = depot
        self._carrier = carrier
        self._references: list[PartRef] = []
        self.thorough = thorough
        self.stem = f"{stem}-spill"
        self._room = INLINE_BYTES_MAX
        self._spilled: list[PartRef] = []

    def __enter__(self) -> PlanPayload:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._carrier.drop(self.depot, self._spilled)

    @classmethod
    def local(cls, folder: str, stem: str, *, thorough: bool = False) -> PlanPayload:
        """A payload for readers that see the folder."""
        return cls(StagingService(folder), StagingArea(folder), stem, thorough=thorough)

    def send(self) -> None:
        """Uploads all referenced files. Must be called before the plan runs.

        Raises:
            DurabilityError: the staging location refuses.
        """
        self._carrier.send(self.depot, self._references)

    def source(self, part: Source, types: tuple[str, ...]) -> Source:
        """Converts a part of a change."""
        if isinstance(part, Batch):
            return self.batch(part)
        if isinstance(part, PartRef):
            self._references.append(part)
            return part
        if self._fits(part):
            return part
        return self._add_spilled(write_updates(self.depot.folder, part, types, self.stem))

    def batch(self, part: Batch) -> PartRef | Batch:
        """Converts a batch."""
        if self._fits(part):
            return part
        return self._add_spilled(write_part(self.depot.folder, part, self.stem))

    def _add_spilled(self, ref: PartRef) -> PartRef:
        self._spilled.append(ref)
        self._references.append(ref)
        return ref

    @property
    def spilled(self) -> list[str]:
        """The names of the files written so far."""
        return [ref.path for ref in self._spilled]

    def trace(self, trace: Trace) -> StoredTrace:
        """Converts a trace; layers in memory alone are spilled unless they are small."""
        layers = tuple(self.layer(layer) for layer in trace.layers)
        return StoredTrace(trace.layout, layers, self.thorough)

    def layer(self, layer: Layer) -> tuple[PartRef | Batch, ...]:
        """Converts a layer of a trace."""
        self._references += layer.files
        return layer.files or tuple(self.batch(part) for part in layer.parts if len(part))

    def _fits(self, part: Batch | Updates) -> bool:
        """Returns True if a part is small enough to travel with the plan."""
        size = sum(column_bytes(c) for c in part.columns) + 24 * len(part.diff)
        if size > INLINE_BYTES or size > self._room:
            return False
        self._room -= size
        return True


def column_bytes(column: rows.Column) -> int:
    """The approximate size of a column; Python objects count as pointers."""
    return int(column.nbytes)


def spill_batches(parts: Iterable[Batch], folder: str, stem: str = "spill") -> list[PartRef]:
    """Writes batches, disjoint and ascending in key hash, to files that executors can read."""
    return write_parts(folder, list(parts), stem)


def delete_parts(refs: Iterable[PartRef], folder: str) -> None:
    """Deletes part files that are no longer referenced."""
    files = Files()
    for ref in refs:
        files.unlink(checked_path_within(folder, ref.path, PART))
