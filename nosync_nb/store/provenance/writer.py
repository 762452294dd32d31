"""Stamping: the clocks of the frames that are written here.

What a frame says counts only if the frame is in the log. So its labels stand beside its number
until the next one is made, or a checkpoint: if the log goes as far by then they count, else they
never were.

Invariant: the labels that are known are those of what the catalog names, here and with who goes
through the frames (`causes.Following`), so both find the same label of what was named again.
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
"""The logs that a named collection is made from, after what counts them in a clock."""


class NamedInputs:
    """What the named collections of one graph read by name, by their logs.

    Attributes:
        named: the nodes of named collections.
        inputs: what they read, of those that were asked for with `above`.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.named = {n.log: n for n in graph if n.name is not None and n.log is not None}
        self.inputs: dict[int, Inputs] = {}

    def above(self, log: int) -> Inputs:
        """The logs that a named collection is made from directly, through what has no name."""
        logs_above: dict[int, None] = {}
        waiting, seen = [self.named[log]], set[int]()
        while waiting:
            for number in waiting.pop().inputs:
                source = self.graph.nodes[number]
                if source.name is not None and source.log is not None:
                    logs_above[source.log] = None
                elif number not in seen:
                    seen.add(number)
                    waiting.append(source)
        logs = tuple(logs_above)[:INPUTS_MAX]
        known = self.inputs[log] = COUNTS.pack(len(logs), 0), logs
        return known


Fresh = dict[int, bytes]
"""Labels as they are written, by log."""

Made = Sequence[tuple[int, Sequence[PayloadEntry]]]
"""The entries of epochs, oldest first."""


Next = tuple[int, Fresh, NamedInputs | None, int | None]
"""What a frame says if it comes about: its number, labels, what is named if it defines that, and
the epoch that it goes back to."""

NOTHING: Next = 0, {}, None, None


class ClockWriter:
    """The last label of each named collection of a log.

    It is used with the lock under which frames are written, and settles what the last frame was to
    say before another one is made: a frame that did not come about leaves nothing here.

    Args:
        meta: that of the checkpoint.
        tail: the frames after it, with their numbers and kinds.

    Attributes:
        wrong: what contradicts the log, in those or before them.
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
        """The clocks of the next frame as an entry; none if it adds to no named collection.

        Args:
            graph: that names what is added to.
            made: the epochs that the frame has.
            defines: it is that of a definition, after which the graph names what is named.
            back: the epoch that the frame goes back to.

        Cost: some us for each, and the digest of each batch.
        """
        # Once an epoch: what follows is written out, as each call of a function costs as much.
        seq, generation, feeds = self._log.head.seq, self._generation, self._feeds
        if self._next is not NOTHING:
            self._settle(seq)
        if feeds.graph is not graph:
            feeds = self._feeds = NamedInputs(graph)
        named, made_from, last, pack = feeds.named, feeds.inputs, self._last, PACKED.pack
        if back is not None:
            last = labels_up_to(last, back)
        fresh = self._again() if self._replayed else {}
        for epoch, entries in made:
            upper = epoch + 1
            for number, kind, data in entries:
                if number in named and kind <= FILES:
                    # What it has for the batch is its `digest`.
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

    def _again(self) -> Fresh:
        """The labels of what was replayed for a definition; of one that failed none is named."""
        past, self._replayed = self._replayed, {}
        return {
            number: LABEL.pack(number, self._generation, *said)
            for number, said in past.items()
            if number in self._feeds.named
        }

    def replay(self, epoch: int, entries: Iterable[PayloadEntry]) -> None:
        """Notes a past epoch whose frame is written before that of its definition."""
        self._settle(self._log.head.seq)
        for number, kind, data in entries:
            if kind <= FILES:
                self._replayed[number] = epoch + 1, batch_digest(data)

    def saved(self) -> dict[str, Any]:
        """What a checkpoint keeps after the last frame; what is not there any more is left out."""
        self._settle(self._log.head.seq)
        wrong = [each for each in self.wrong if each.log in self._last]
        return {"clocks": labels_to_text(self._last.values()), "wrong": wrong}

    def _settle(self, seq: int) -> None:
        """Takes in what the last frame says, if the log goes as far; may be done again.

        Args:
            seq: the last frame that the log has.
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
