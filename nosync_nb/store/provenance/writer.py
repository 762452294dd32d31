"""Writes the clocks of new frames.

The labels of a frame count only if the frame is in the log. Therefore they are stored with its
number until the next frame or checkpoint is made. If the log has reached that frame at that moment
they count, otherwise they are dropped.

Invariant: labels are known exactly for the collections in the catalog, both here and in
`check.LabelHistory`. So both derive the same label for a collection that was defined again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from zlib import adler32, crc32

from nosync_nb.dataflow.graph import Graph
from nosync_nb.store.log import Log
from nosync_nb.store.provenance.check import (
    LabelHistory,
    empty_label,
    labels_up_to,
    recorded_contradictions,
)
from nosync_nb.store.provenance.clocks import (
    COUNTS,
    INPUTS_MAX,
    LABEL,
    PACKED,
    batch_digest,
    labels_from_text,
    labels_to_text,
)
from nosync_nb.store.records.payloads import CLOCKS, FILES, REWIND, Payload, PayloadEntry

Inputs = tuple[bytes, tuple[int, ...]]
"""The encoded count of inputs for a clock, and the logs of the inputs."""


class NamedInputs:
    """The named inputs of the named collections of one graph, by their logs.

    Attributes:
        named: the nodes of named collections.
        inputs: the results of `above` so far.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.named = {n.log: n for n in graph if n.name is not None and n.log is not None}
        self.inputs: dict[int, Inputs] = {}

    def above(self, log: int) -> Inputs:
        """Returns the logs of the nearest named inputs of a named collection."""
        logs_above: dict[int, None] = {}
        waiting, visited = [self.named[log]], set[int]()
        while waiting:
            for number in waiting.pop().inputs:
                source = self.graph.nodes[number]
                if source.name is not None and source.log is not None:
                    logs_above[source.log] = None
                elif number not in visited:
                    visited.add(number)
                    waiting.append(source)
        logs = tuple(logs_above)[:INPUTS_MAX]
        inputs = self.inputs[log] = COUNTS.pack(len(logs), 0), logs
        return inputs


Fresh = dict[int, bytes]
"""Encoded labels, by log."""

Made = Sequence[tuple[int, Sequence[PayloadEntry]]]
"""The entries of epochs, oldest first."""


Next = tuple[int, Fresh, NamedInputs | None, int | None]
"""The effect of a frame once it is in the log: its number, its labels, the named collections after
it if it is a definition, and the epoch to which it rewinds.
"""

NOTHING: Next = 0, {}, None, None


class ClockWriter:
    """The last label of each named collection of a log.

    The caller holds the lock for writing frames. The effect of the last frame is decided before
    another one is made: a frame that was not written changes nothing here.

    Args:
        meta: of the checkpoint.
        tail: the frames after it, with their numbers and kinds.

    Attributes:
        wrong: the contradictions in those frames or before them.
    """

    def __init__(
        self, log: Log, meta: Mapping[str, Any], tail: Iterable[tuple[int, int, Payload]]
    ) -> None:
        self._log, self._generation = log, log.generation
        following = LabelHistory(labels_from_text(meta.get("clocks", "")))
        self.wrong = recorded_contradictions(meta.get("wrong", ()))
        for _, kind, payload in tail if log.mode == "w" else ():
            if kind == REWIND:
                self.wrong = [each for each in self.wrong if each.epoch <= payload.epoch]
            self.wrong += following.wrong(kind, payload)
        self._last: Fresh = following.labels
        self._next = NOTHING
        self._replayed: dict[int, tuple[int, int]] = {}
        self._feeds = NamedInputs(Graph())

    def stamped(
        self, graph: Graph, made: Made, *, defines: bool = False, back: int | None = None
    ) -> list[PayloadEntry]:
        """Returns the clocks of the next frame as an entry.

        Empty if it changes no named collection.

        Args:
            graph: the graph that names the changed collections.
            made: the epochs of the frame.
            defines: the frame is a definition, after which the graph determines the named
                collections.
            back: the epoch to which the frame rewinds.

        Cost: some us for each, and the digest of each batch.
        """
        # Inlined, because this runs at each epoch, and a function call would double its cost.
        seq, generation, feeds = self._log.head.seq, self._generation, self._feeds
        if self._next is not NOTHING:
            self._apply_last_frame(seq)
        if feeds.graph is not graph:
            feeds = self._feeds = NamedInputs(graph)
        named, made_from, last, pack = feeds.named, feeds.inputs, self._last, PACKED.pack
        if back is not None:
            last = labels_up_to(last, back)
        fresh = self._replayed_labels() if self._replayed else {}
        for epoch, entries in made:
            upper = epoch + 1
            for number, kind, data in entries:
                if number in named and kind <= FILES:
                    # The two checksums are the `batch_digest`.
                    fresh[number] = pack(number, generation, upper, adler32(data), crc32(data))
        self._next = seq + 1, fresh, feeds if defines else None, back
        pieces: list[bytes] = []
        now, then, add = fresh.get, last.get, pieces.append
        for number, label in fresh.items():
            counts, sources = made_from.get(number) or feeds.above(number)
            add(label + counts)
            for source in sources:
                add(now(source) or then(source) or empty_label(source))
        return [PayloadEntry(0, CLOCKS, b"".join(pieces))] if pieces else []

    def _replayed_labels(self) -> Fresh:
        """Returns the labels of batches that were replayed for a definition that succeeded."""
        past, self._replayed = self._replayed, {}
        return {
            number: LABEL.pack(number, self._generation, *parts)
            for number, parts in past.items()
            if number in self._feeds.named
        }

    def replay(self, epoch: int, entries: Iterable[PayloadEntry]) -> None:
        """Records a past epoch whose frame is written before the frame of its definition."""
        self._apply_last_frame(self._log.head.seq)
        for number, kind, data in entries:
            if kind <= FILES:
                self._replayed[number] = epoch + 1, batch_digest(data)

    def saved(self) -> dict[str, Any]:
        """Returns the state for a checkpoint after the last frame, without dropped collections."""
        self._apply_last_frame(self._log.head.seq)
        wrong = [each for each in self.wrong if each.log in self._last]
        return {"clocks": labels_to_text(self._last.values()), "wrong": wrong}

    def _apply_last_frame(self, seq: int) -> None:
        """Applies the effect of the last frame if it is in the log. Idempotent.

        Args:
            seq: the last frame of the log.
        """
        number, fresh, feeds, back = self._next
        if 0 < number <= seq:
            if back is not None:
                self._last = labels_up_to(self._last, back)
                self.wrong = [each for each in self.wrong if each.epoch <= back]
            self._last.update(fresh)
            if feeds is not None:
                named = feeds.named
                self._last = {log: own for log, own in self._last.items() if log in named}
        self._next = NOTHING
