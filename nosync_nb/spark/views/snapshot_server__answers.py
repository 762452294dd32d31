"""Answers: the files that a server of snapshots writes for its readers, and when they may go.

Layers that a session holds in memory alone are spilled, so that Spark's processes can read them.
Such a file is needed by the newest answer for its stage, as the tasks of a query ask one after the
other, and by readers that have not ended. When neither needs it any more, it is deleted.
"""

from __future__ import annotations

from typing import NamedTuple

from nosync_nb.spark.execution.task_payload import PlanPayload, delete_parts
from nosync_nb.spark.execution.tasks import StoredTrace
from nosync_nb.trace import Layer, Trace
from nosync_nb.trace.batch import Batch
from nosync_nb.trace.parts.part_file import PartRef


class SpilledLayer:
    """A layer of which parts were spilled, and how many answers need them."""

    def __init__(self, layer: Layer, sources: tuple[PartRef | Batch, ...], folder: str) -> None:
        self.layer = layer
        self.sources = sources
        self._folder = folder
        self._users = 0

    def take(self) -> None:
        """Notes one more that needs it."""
        self._users += 1

    def release(self) -> None:
        """Notes that one less needs it; after the last one the files are deleted."""
        self._users -= 1
        if not self._users:
            delete_parts((s for s in self.sources if isinstance(s, PartRef)), self._folder)


class SnapshotAnswer(NamedTuple):
    """An answer, and what must stay as long as it is read."""

    trace: StoredTrace
    spills: tuple[SpilledLayer, ...] = ()

    def taken(self) -> SnapshotAnswer:
        """The same answer, needed by one more."""
        for spill in self.spills:
            spill.take()
        return self

    def end(self) -> None:
        """Tells that one less needs it."""
        for spill in self.spills:
            spill.release()


class SnapshotAnswers:
    """The answers of one server, the newest of each stage; its owner takes care of threads."""

    def __init__(self) -> None:
        self._newest: dict[str, SnapshotAnswer] = {}

    def answer(
        self, stage: str, trace: Trace, folder: str, *, thorough: bool = False
    ) -> SnapshotAnswer:
        """An answer for a reader, who ends it.

        Cost: layers that were in the stage's answer before are not written again.
        """
        before = self._newest.get(stage)
        known = {id(spill.layer): spill for spill in before.spills} if before else {}
        shipping = PlanPayload.local(folder, "view")
        layers = []
        spills = []
        for layer in trace.layers:
            spill = known.get(id(layer))
            if spill is None:
                sources = shipping.layer(layer)
                if not layer.files and any(isinstance(s, PartRef) for s in sources):
                    spill = SpilledLayer(layer, sources, folder)
            if spill is not None:
                sources = spill.sources
                spills.append(spill)
            layers.append(sources)
        answer = SnapshotAnswer(StoredTrace(trace.layout, tuple(layers), thorough), tuple(spills))
        self._newest[stage] = answer.taken()
        if before is not None:
            before.end()
        return answer.taken()

    def forget(self, stage: str) -> None:
        """Drops the newest answer for a stage."""
        answer = self._newest.pop(stage, None)
        if answer is not None:
            answer.end()

    def close(self) -> None:
        """Drops all answers; what is being read stays until it was."""
        for stage in list(self._newest):
            self.forget(stage)
