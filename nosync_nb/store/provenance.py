"""Provenance: records and checks the input batches of each computed batch, in clocks.

Every frame that changes named collections has one clock for each of them. A clock contains the
label of the added batch, and the labels of the last batches of the inputs that the collection reads
by name. A label consists of the log, the generation of its writer, the upper of the batch, and the
digest of its bytes in the frame. So a clock has `SIZE_BYTES`, and `LABEL_BYTES` for each input,
independent of everything else. It covers two levels of the provenance tree; further levels are in
the clocks of the inputs.

A clock has room for determinants, the seeds and answers that a stage has used: `bytes` of them
follow its inputs. No release writes them yet, and readers skip them.

Design: the digest of a batch covers the bytes that its frame has anyway. For a batch in files these
are the file references, which contain the digest of each file.

`ClockWriter` writes the clocks of new frames. The labels of a frame count only if the frame is in
the log. Therefore they are stored with its number until the next frame or checkpoint is written. If
the log has reached that frame by then, they count. Otherwise they are dropped.

`LabelHistory` checks the clocks of a log. It reads the frames of a log. It compares each clock with
the batches in the log: the batch of the clock itself, and the last batches of its inputs. A
contradiction is reported for the collection of the clock, because its rows were computed from other
batches.

Invariant: labels are known exactly for the collections in the catalog, both in `ClockWriter` and in
`LabelHistory`. So both derive the same label for a collection that was defined again.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from zlib import adler32, crc32

from nosync_nb.dataflow.graph import Graph
from nosync_nb.store.log import Log
from nosync_nb.store.records.payloads import (
    CLOCKS,
    DEFINES,
    EPOCH,
    FILES,
    PAST,
    REPLAY,
    REWIND,
    Payload,
    PayloadEntry,
    decode_payload,
)
from nosync_nb.store.safe_decoding import damage_error, guarded_decoding

NO_DIGEST = 0
"""The digest of a log without batches."""

LABEL = struct.Struct("<IIQQ")
"""The layout of an encoded label: log, generation, upper, digest."""

PACKED = struct.Struct("<IIQII")
"""The same layout, with the digest in two halves."""

COUNTS = struct.Struct("<HH")
"""The layout of the counts after the label of a batch: input labels, and bytes of determinants."""

LABEL_BYTES = LABEL.size
SIZE_BYTES = LABEL_BYTES + COUNTS.size
INPUTS_MAX = 2**16 - 1


def batch_digest(data: bytes | memoryview) -> int:
    """Returns the digest of a batch by its bytes in a frame: two checksums of 32 bits.

    NOTE: it distinguishes batches that were computed differently. It does not protect against
    changes; the chain of frames does, with a digest of its own.

    Cost: 0.3 us, plus 0.5 ms for each MiB.
    """
    return crc32(data) << 32 | adler32(data)


def encoded_clocks(data: bytes) -> list[tuple[bytes, bytes]]:
    """Returns the encoded clocks of a frame: the label of each batch, and its input labels.

    Raises:
        CorruptLogError: the clocks are malformed.
    """
    clocks, at, size = [], 0, len(data)
    try:
        while at < size:
            inputs, room = COUNTS.unpack_from(data, at + LABEL_BYTES)
            start = at + SIZE_BYTES
            end = start + inputs * LABEL_BYTES
            clocks.append((data[at : at + LABEL_BYTES], data[start:end]))
            at = end + room
            if at > size:
                raise ValueError("one is truncated")
    except (struct.error, ValueError) as error:
        raise damage_error("the clocks of a frame", error) from error
    return clocks


def labels_to_text(labels: Iterable[bytes]) -> str:
    """Returns labels as text for a checkpoint."""
    return base64.b64encode(b"".join(labels)).decode()


def labels_from_text(text: str) -> dict[int, bytes]:
    """Returns the encoded labels in a checkpoint, by log.

    Raises:
        CorruptLogError: the labels are malformed.
    """
    with guarded_decoding("the clocks of a checkpoint"):
        labels = LABEL.iter_unpack(base64.b64decode(text, validate=True))
        return {label[0]: LABEL.pack(*label) for label in labels}


class ClockContradiction(NamedTuple):
    """A clock that contradicts the log.

    Attributes:
        log: the log of the collection of the clock.
        epoch: the first epoch with the rows of the clock.
        source: the log whose batch differs from the one in the clock; equal to `log` if it is the
            batch of the clock itself.
    """

    log: int
    epoch: int
    source: int


def recorded_contradictions(data: Iterable[Any]) -> list[ClockContradiction]:
    """Returns the contradictions that a checkpoint records for the frames before it."""
    with guarded_decoding("the clocks of a checkpoint"):
        contradictions = [ClockContradiction(*each) for each in data]
        if not all(type(number) is int for each in contradictions for number in each):
            raise ValueError("they do not name logs")
        return contradictions


class LabelHistory:
    """The last label of each named collection, updated frame by frame.

    Args:
        labels: the labels before the first frame; `None` if they are unknown, see
            `record_missing_frames`.
    """

    def __init__(self, labels: Mapping[int, bytes] | None) -> None:
        self.labels = dict(labels or {})
        self._trusts_labels = self._after_gap = labels is None
        self._replayed: dict[int, bytes | memoryview] = {}
        self._made_from: dict[int, tuple[bytes, list[int]]] = {}  # according to the last clocks
        self._generation = 0

    def record_missing_frames(self) -> None:
        """Records that frames are missing before the next one.

        Then the first label of each collection in a clock is trusted. The clocks of a definition
        are also trusted for the batches that were replayed for it, because these are in frames
        before its own.
        """
        self.labels, self._replayed = {}, {}
        self._trusts_labels = self._after_gap = True

    def wrong(self, kind: int, payload: Payload) -> list[ClockContradiction]:
        """Processes the next frame; returns the contradictions between its clocks and the batches.

        The batches are those of this frame and of earlier frames.

        Cost: a few us, plus the digest of each batch of a named collection.
        """
        plain = kind == EPOCH and not (self._after_gap or self._replayed)
        if plain and self._matches_expected_bytes(payload):
            return []
        batches, self._replayed = self._replayed, {}
        clocks = b""
        for entry in payload.entries:
            if entry.kind == CLOCKS:
                clocks += entry.data
            elif entry.kind <= FILES:
                batches[entry.number] = entry.data
            elif entry.kind == PAST:
                batches.update(_batches(decode_payload(entry.data).entries))
        if kind == REPLAY:
            self._replayed = batches
            return []
        if kind == REWIND:
            self.labels = labels_up_to(self.labels, payload.epoch)
        stamped, defines = encoded_clocks(clocks), kind in DEFINES
        unseen = {
            _log_of(own) for own, _ in stamped if self._after_gap and defines
        } - batches.keys()
        self._after_gap = False
        wrong = self._contradictions(stamped, batches, unseen, 0 if defines else payload.epoch)
        if defines:
            with guarded_decoding("the catalog of a frame"):
                nodes = payload.meta["catalog"]["nodes"]
                named = {node["log"] for node in nodes if node["name"] is not None}
            self.labels = {log: label for log, label in self.labels.items() if log in named}
        return wrong

    def _matches_expected_bytes(self, payload: Payload) -> bool:
        """Processes a frame whose clocks are exactly the bytes that a writer would produce.

        Nearly all frames are like that, and the comparison is cheaper than decoding. Other frames
        are not processed here, and change nothing.
        """
        epoch, _, _, entries = payload
        made_from, generation, labels = self._made_from, self._generation, self.labels
        upper, pack = epoch + 1, PACKED.pack
        fresh: dict[int, bytes] = {}
        clocks: bytes | memoryview | None = None
        for number, kind, data in entries:
            if kind <= FILES:
                if number in made_from:  # adler32 and crc32 are the `batch_digest`
                    fresh[number] = pack(number, generation, upper, adler32(data), crc32(data))
            elif kind == PAST or clocks is not None:
                return False
            elif kind == CLOCKS:
                clocks = data
        if clocks is None:
            return False
        pieces: list[bytes] = []
        add = pieces.append
        for number, label in fresh.items():
            counts, sources = made_from[number]
            add(label)
            add(counts)
            for source in sources:
                add(fresh[source] if source in fresh else labels.get(source, b""))
        if b"".join(pieces) != clocks:
            return False
        labels.update(fresh)
        return True

    def _contradictions(
        self,
        clocks: list[tuple[bytes, bytes]],
        batches: dict[int, bytes | memoryview],
        unseen: set[int],
        epoch: int,
    ) -> list[ClockContradiction]:
        """Returns the contradictions between clocks, the batches of their frame and earlier labels.

        Args:
            unseen: the logs whose batch is in a missing frame.
        """
        labels, wrong = self.labels, []
        for own, _ in clocks:
            log, self._generation, upper, _ = LABEL.unpack(own)
            data = batches.get(log)
            what = NO_DIGEST if data is None else batch_digest(data)
            actual = LABEL.pack(log, self._generation, upper, what)
            labels[log] = own if log in unseen else actual
            if labels[log] != own:
                wrong.append(ClockContradiction(log, epoch, log))
        for own, inputs in clocks:
            sources = [_log_of(inputs[at:]) for at in range(0, len(inputs), LABEL_BYTES)]
            self._made_from[_log_of(own)] = COUNTS.pack(len(sources), 0), sources
            for at in range(0, len(inputs), LABEL_BYTES):
                label = inputs[at : at + LABEL_BYTES]
                source = _log_of(label)
                if labels.get(source) != label and not self._accepts_label(source, label):
                    wrong.append(ClockContradiction(_log_of(own), epoch, source))
        return wrong

    def _accepts_label(self, log: int, label: bytes) -> bool:
        """Returns True if a label is valid for a log without a known one; records it if trusted."""
        if log in self.labels:
            return False
        if self._trusts_labels:
            self.labels[log] = label
        return self._trusts_labels or label == empty_label(log)


def labels_up_to(labels: Mapping[int, bytes], epoch: int) -> dict[int, bytes]:
    """Returns the last labels of the logs whose last batch is not after an epoch.

    The labels of all other logs at that epoch are unknown.
    """
    return {log: own for log, own in labels.items() if LABEL.unpack(own)[2] <= epoch + 1}


def empty_label(log: int) -> bytes:
    """Returns the encoded label of a log without batches."""
    return LABEL.pack(log, 0, 0, NO_DIGEST)


def _log_of(label: bytes) -> int:
    return int.from_bytes(label[:4], "little")


def _batches(entries: Iterable[PayloadEntry]) -> dict[int, bytes | memoryview]:
    return {number: data for number, kind, data in entries if kind <= FILES}


Inputs = tuple[bytes, tuple[int, ...]]
"""The encoded number of inputs for a clock, and the logs of the inputs."""


class NamedInputs:
    """The named inputs of the named collections of one graph, by their logs.

    Attributes:
        named: the nodes of named collections, by log.
        inputs: the cached results of `above`.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.named = {n.log: n for n in graph if n.name is not None and n.log is not None}
        self.inputs: dict[int, Inputs] = {}

    def above(self, log: int) -> Inputs:
        """Returns the nearest named inputs of a named collection, and caches them."""
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
    """The last label of each named collection of a log, and the clocks of the next frame.

    The caller holds the lock for writing frames. The effect of the last frame is decided before
    another one is written: a frame that was not written changes nothing here.

    Args:
        meta: the JSON of the checkpoint.
        tail: the frames after the checkpoint, with their numbers and kinds.

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
        """Returns the clocks of the next frame as an entry; empty if no named collection changes.

        Args:
            graph: the graph that names the changed collections.
            made: the epochs of the frame, each with its entries.
            defines: True if the frame is a definition, after which the graph determines the named
                collections.
            back: the epoch to which the frame rewinds.

        Cost: a few us for each clock, plus the digest of each batch.
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
            seq: the number of the last frame in the log.
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
