"""Checks the clocks of a log against its batches. Pure.

`LabelHistory` reads the frames of a log. It compares each clock with the batches in the log: the
batch of the clock itself, and the last batches of its inputs. A contradiction is reported for the
collection of the clock, because its rows were computed from other batches.

`restore_targets` determines the epoch up to which a lost log must be restored, and its inputs. It
uses the last label of the log in any clock, its own or a reader's, and the labels of its inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from zlib import adler32, crc32

from nosync_nb.store.provenance.clocks import (
    COUNTS,
    LABEL,
    LABEL_BYTES,
    NO_DIGEST,
    PACKED,
    BatchClock,
    BatchLabel,
    batch_digest,
    clocks_in_entries,
    encoded_clocks,
)
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
from nosync_nb.store.safe_decoding import guarded_decoding


class ClockContradiction(NamedTuple):
    """A clock that contradicts the log.

    Attributes:
        log: the log of the collection of the clock.
        epoch: the first epoch with the rows of the clock.
        source: the log whose batch differs from the one in the clock; `log` if it is its own batch.
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
    """The last label of each named collection, frame after frame.

    Args:
        labels: those before the first frame; None: unknown, see `record_missing_frames`.
    """

    def __init__(self, labels: Mapping[int, bytes] | None) -> None:
        self.labels = dict(labels or {})
        self._trusts_labels = self._after_gap = labels is None
        self._replayed: dict[int, bytes | memoryview] = {}
        self._made_from: dict[int, tuple[bytes, list[int]]] = {}  # according to the last clocks
        self._generation = 0

    def record_missing_frames(self) -> None:
        """Records that frames are missing before the next one.

        Then the first label of each collection in a clock is trusted. A definition is also trusted
        about the batches that were replayed for it, because these are in frames before its own.
        """
        self.labels, self._replayed = {}, {}
        self._trusts_labels = self._after_gap = True

    def wrong(self, kind: int, payload: Payload) -> list[ClockContradiction]:
        """Processes a frame; returns the contradictions of its clocks with this or earlier frames.

        Cost: some us, and the digest of each batch of a named collection.
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
                if number in made_from:  # adler32 and crc32 are its `digest`
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
        """Returns True if a label is valid for a log without an earlier label."""
        if log in self.labels:
            return False
        if self._trusts_labels:
            self.labels[log] = label
        return self._trusts_labels or label == empty_label(log)


def labels_up_to(labels: Mapping[int, bytes], epoch: int) -> dict[int, bytes]:
    """Returns the last labels of the logs whose last batch is not after an epoch.

    For other logs the label at that epoch is unknown.
    """
    return {log: own for log, own in labels.items() if LABEL.unpack(own)[2] <= epoch + 1}


def empty_label(log: int) -> bytes:
    """Returns the encoded label of a log without batches."""
    return LABEL.pack(log, 0, 0, NO_DIGEST)


def _log_of(label: bytes) -> int:
    return int.from_bytes(label[:4], "little")


def _batches(entries: Iterable[PayloadEntry]) -> dict[int, bytes | memoryview]:
    return {number: data for number, kind, data in entries if kind <= FILES}


class RestoreTarget(NamedTuple):
    """The state up to which a log must be restored.

    Attributes:
        last: its last batch according to clocks; None if no clock has one.
        inputs: the last batches of its inputs, according to its own last clock.
        steps: its own clocks, oldest first.
        seen: by reader, its last batch that the reader has used.
    """

    last: BatchLabel | None
    inputs: tuple[BatchLabel, ...]
    steps: tuple[BatchClock, ...]
    seen: Mapping[int, BatchLabel]


def restore_targets(log: int, frames: Iterable[Payload]) -> RestoreTarget:
    """Returns the state of a log according to clocks, even if nothing of the log is left.

    Args:
        frames: in their order.
    """
    steps: list[BatchClock] = []
    seen: dict[int, BatchLabel] = {}
    for payload in frames:
        for clock in clocks_in_entries(payload.entries):
            if clock.own.log == log:
                steps.append(clock)
            seen.update((clock.own.log, label) for label in clock.inputs if label.log == log)
    named = [label for label in seen.values() if label.upper]
    if steps:
        named.append(steps[-1].own)
    return RestoreTarget(
        max(named, key=lambda label: label.upper, default=None),
        steps[-1].inputs if steps else (),
        tuple(steps),
        seen,
    )
