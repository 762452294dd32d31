"""Clocks: which batch of a named collection each of its readers was made from.

Every frame that changes named collections has one clock for each of them: the label of the batch
that it adds, and the labels of the last batches of what that collection reads by name. A label is
the log, the generation of its writer, the upper of the batch and the digest of its bytes as they
stand in the frame. So a clock has `SIZE_BYTES`, and `LABEL_BYTES` for each input, whatever else
there is: two levels of the tree of causes, of which the rest is in the clocks of the inputs.

It is read where one log is not what the others saw. If a reader's clock names another batch than
the log has, the reader was made from rows that never were (`Following.wrong`). If a log is lost,
its readers' clocks say up to where it has to be brought, from which batches (`targets`).

A clock has room for determinants, the seeds and answers that a stage has used: `bytes` of
them follow its inputs. None are written yet; who reads passes them over.

Design: a batch is digested as the bytes that its frame has anyway. Of one in files these are their
references, which name the digest of each. What a label is of is known only when the frame is in the
log: labels stand beside the number of their frame until then.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from zlib import adler32, crc32

from nosync_nb.dataflow.graph import Graph
from nosync_nb.store.decoding import decoding
from nosync_nb.store.journal import CLOCKS, FILES, INLINE, NUMBERS_MAX, Entry, Payload
from nosync_nb.store.log import Log

NO_DIGEST = 0
"""That of the batch of a log that has none yet."""

_LABEL = struct.Struct("<IIQQ")
_COUNTS = struct.Struct("<HH")
LABEL_BYTES = _LABEL.size
SIZE_BYTES = LABEL_BYTES + _COUNTS.size
INPUTS_MAX = 2**16 - 1


class Label(NamedTuple):
    """One batch of a log: the generation that wrote it, its upper, and what it is."""

    log: int
    generation: int
    upper: int
    digest: int


class Clock(NamedTuple):
    """The batch that a frame adds to a log, and the last ones of what that reads by name."""

    own: Label
    inputs: tuple[Label, ...]


def digest(data: bytes | memoryview) -> int:
    """What a batch is, by its bytes in a frame: two checksums of 32 bits.

    NOTE: it tells batches apart that came about differently; that nobody has changed one is what
    the chain of frames holds, with a digest of its own.

    Cost: 0.3 us, and 0.5 ms a MiB.
    """
    return crc32(data) << 32 | adler32(data)


def read(data: bytes | memoryview) -> list[Clock]:
    """The clocks of a frame.

    Raises:
        CorruptLogError: they do not fit.
    """
    clocks, at = [], 0
    with decoding("the clocks of a frame"):
        while at < len(data):
            own = Label(*_LABEL.unpack_from(data, at))
            inputs, room = _COUNTS.unpack_from(data, at + LABEL_BYTES)
            start = at + SIZE_BYTES
            at = start + inputs * LABEL_BYTES + room
            if at > len(data) or own.log >= NUMBERS_MAX:
                raise ValueError("a clock is cut short, or of no log")
            labels = _LABEL.iter_unpack(data[start : start + inputs * LABEL_BYTES])
            clocks.append(Clock(own, tuple(map(Label._make, labels))))
    return clocks


def in_frame(entries: Iterable[Entry]) -> list[Clock]:
    """The clocks among the entries of a frame."""
    return [clock for each in entries if each.kind == CLOCKS for clock in read(each.data)]


class Feeds:
    """What the named collections of one graph read by name, by their logs; found when asked for."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.named = {n.log: n for n in graph if n.name is not None and n.log is not None}
        self._inputs: dict[int, tuple[bytes, tuple[int, ...]]] = {}

    def inputs(self, log: int) -> tuple[bytes, tuple[int, ...]]:
        """The logs that a named collection is made from directly, after what counts them."""
        known = self._inputs.get(log)
        if known is None:
            found = tuple(self._above(log))[:INPUTS_MAX]
            known = self._inputs[log] = _COUNTS.pack(len(found), 0), found
        return known

    def _above(self, log: int) -> dict[int, None]:
        """The named logs above one, through whatever has no name."""
        found: dict[int, None] = {}
        waiting, seen = [self.named[log]], set[int]()
        while waiting:
            for number in waiting.pop().inputs:
                source = self.graph.nodes[number]
                if source.name is not None and source.log is not None:
                    found[source.log] = None
                elif number not in seen:
                    seen.add(number)
                    waiting.append(source)
        return found


Fresh = dict[int, bytes]
"""Labels as they are written, by log."""

Made = Sequence[tuple[int, Sequence[Entry]]]
"""The entries of epochs, oldest first."""


class Clocks:
    """The last label of each named collection of a log.

    It is used with the lock under which frames are written, and settles what the last frame was to
    say before another one is made: a frame that did not come about leaves nothing here.

    Args:
        meta: that of the checkpoint.
        tail: the frames after it.
    """

    def __init__(self, log: Log, meta: Mapping[str, Any], tail: Iterable[Payload]) -> None:
        self._log, self._generation = log, log.generation
        self._last: Fresh = {}
        with decoding("the clocks of the checkpoint"):
            for label in _LABEL.iter_unpack(base64.b64decode(meta.get("clocks", ""))):
                self._last[label[0]] = _LABEL.pack(*label)
        for payload in tail if log.mode == "w" else ():
            for clock in in_frame(payload.entries):
                self._last[clock.own.log] = _LABEL.pack(*clock.own)
        self._next: tuple[int, Fresh] = 0, {}  # of the frame with that number, if it comes about
        self._replayed: dict[int, tuple[int, int]] = {}
        self._feeds = Feeds(Graph())

    def stamped(self, graph: Graph, made: Made) -> list[Entry]:
        """The clocks of the next frame as an entry; none if it adds to no named collection.

        Args:
            graph: that names what is added to.
            made: the epochs that the frame has.

        Cost: some us for each, and the digest of each batch.
        """
        seq, generation = self._settled() + 1, self._generation
        if self._feeds.graph is not graph:
            self._feeds = Feeds(graph)
        feeds, last, pack = self._feeds, self._last, _LABEL.pack
        fresh = self._again() if self._replayed else {}
        named = feeds.named
        for epoch, entries in made:
            upper = epoch + 1
            for number, kind, data in entries:
                if number in named and kind <= FILES:
                    fresh[number] = pack(number, generation, upper, digest(data))
        if not fresh:
            return []
        self._next = seq, fresh
        pieces: list[bytes] = []
        for number, label in fresh.items():
            counts, sources = feeds.inputs(number)
            pieces += (label, counts)
            for source in sources:
                known = fresh.get(source) or last.get(source)
                pieces.append(known or pack(source, 0, 0, NO_DIGEST))
        return [Entry(0, CLOCKS, b"".join(pieces))]

    def _again(self) -> Fresh:
        """The labels of what was replayed for a definition; of one that failed none is named."""
        past, self._replayed = self._replayed, {}
        return {
            number: _LABEL.pack(number, self._generation, *said)
            for number, said in past.items()
            if number in self._feeds.named
        }

    def replay(self, epoch: int, entries: Iterable[Entry]) -> None:
        """Notes a past epoch whose frame is written before that of its definition."""
        self._settled()
        for number, kind, data in entries:
            if kind in (INLINE, FILES):
                self._replayed[number] = epoch + 1, digest(data)

    def saved(self, graph: Graph) -> str:
        """What a checkpoint keeps: the labels of what a graph names."""
        self._settled()
        named = {node.log for node in graph if node.name is not None}
        labels = b"".join([label for log, label in self._last.items() if log in named])
        return base64.b64encode(labels).decode()

    def _settled(self) -> int:
        """Takes in what the last frame says, if the log has it; gives the number of that."""
        seq = self._log.head.seq
        number, fresh = self._next
        if fresh:
            if seq >= number:
                self._last.update(fresh)
            self._next = 0, {}
        return seq
