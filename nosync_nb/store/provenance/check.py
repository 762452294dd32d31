"""Causes: what clocks say of logs that are not what their readers saw. Pure.

`Following` goes through the frames of a log and holds each clock against the batches that are
there, its own and the last ones of what it was made from. What contradicts is told of the
collection whose clock it is: its rows came from others than there are.

`targets` says of a log that is lost up to where it has to be brought, and from what: the last
label that a clock has of it, its own or a reader's, and the labels of what it was made from.
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
        log: that of the collection whose clock it is.
        epoch: the first one whose rows it tells of.
        source: the log that has another batch than the clock names; `log`: it is its own.
    """

    log: int
    epoch: int
    source: int


def recorded_contradictions(data: Iterable[Any]) -> list[ClockContradiction]:
    """What a checkpoint keeps of what was wrong before it."""
    with guarded_decoding("the clocks of a checkpoint"):
        told = [ClockContradiction(*each) for each in data]
        if not all(type(number) is int for each in told for number in each):
            raise ValueError("they name no logs")
        return told


class LabelHistory:
    """The last label of each named collection, frame after frame.

    Args:
        labels: those before the first frame; None: not known, see `missed`.
    """

    def __init__(self, labels: Mapping[int, bytes] | None) -> None:
        self.labels = dict(labels or {})
        self._believes = self._begins = labels is None
        self._replayed: dict[int, bytes | memoryview] = {}
        self._made_from: dict[int, tuple[bytes, list[int]]] = {}  # as the last clocks had it
        self._generation = 0

    def missed(self) -> None:
        """Says that frames are not there before the next one.

        The first label that is named of a collection is believed then, and so is what a definition
        says of batches that were replayed for it: these are in frames before its own.
        """
        self.labels, self._replayed = {}, {}
        self._believes = self._begins = True

    def wrong(self, kind: int, payload: Payload) -> list[ClockContradiction]:
        """Takes in a frame; returns what in it contradicts this or earlier ones.

        Cost: some us, and the digest of each batch of a named collection.
        """
        plain = kind == EPOCH and not (self._begins or self._replayed)
        if plain and self._as_expected(payload):
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
        unseen = {_log_of(own) for own, _ in stamped if self._begins and defines} - batches.keys()
        self._begins = False
        wrong = self._against(stamped, batches, unseen, 0 if defines else payload.epoch)
        if defines:
            with guarded_decoding("the catalog of a frame"):
                nodes = payload.meta["catalog"]["nodes"]
                named = {node["log"] for node in nodes if node["name"] is not None}
            self.labels = {log: label for log, label in self.labels.items() if log in named}
        return wrong

    def _as_expected(self, payload: Payload) -> bool:
        """Takes in a frame whose clocks are, byte for byte, what a writer says after those before.

        That is so of nearly all, and asks less than to read them. Of others nothing is taken in.
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

    def _against(
        self,
        clocks: list[tuple[bytes, bytes]],
        batches: dict[int, bytes | memoryview],
        unseen: set[int],
        epoch: int,
    ) -> list[ClockContradiction]:
        """What clocks say otherwise than the batches of their frame, and the labels before it.

        Args:
            unseen: the logs of which the batch is in a frame that is not there.
        """
        labels, wrong = self.labels, []
        for own, _ in clocks:
            log, self._generation, upper, _ = LABEL.unpack(own)
            data = batches.get(log)
            what = NO_DIGEST if data is None else batch_digest(data)
            there = LABEL.pack(log, self._generation, upper, what)
            labels[log] = own if log in unseen else there
            if labels[log] != own:
                wrong.append(ClockContradiction(log, epoch, log))
        for own, inputs in clocks:
            sources = [_log_of(inputs[at:]) for at in range(0, len(inputs), LABEL_BYTES)]
            self._made_from[_log_of(own)] = COUNTS.pack(len(sources), 0), sources
            for at in range(0, len(inputs), LABEL_BYTES):
                label = inputs[at : at + LABEL_BYTES]
                source = _log_of(label)
                if labels.get(source) != label and not self._known(source, label):
                    wrong.append(ClockContradiction(_log_of(own), epoch, source))
        return wrong

    def _known(self, log: int, label: bytes) -> bool:
        """Whether the label of a log that no frame has named yet is right."""
        if log in self.labels:
            return False
        if self._believes:
            self.labels[log] = label
        return self._believes or label == empty_label(log)


def labels_up_to(labels: Mapping[int, bytes], epoch: int) -> dict[int, bytes]:
    """The last labels that are of no later epoch; of other logs it is not known any more."""
    return {log: own for log, own in labels.items() if LABEL.unpack(own)[2] <= epoch + 1}


def empty_label(log: int) -> bytes:
    """The label of a log that has no batch yet, as it is written."""
    return LABEL.pack(log, 0, 0, NO_DIGEST)


def _log_of(label: bytes) -> int:
    return int.from_bytes(label[:4], "little")


def _batches(entries: Iterable[PayloadEntry]) -> dict[int, bytes | memoryview]:
    return {number: data for number, kind, data in entries if kind <= FILES}


class RestoreTarget(NamedTuple):
    """Up to where a log has to be brought.

    Attributes:
        last: its last batch, as clocks name it; None: nobody names one.
        inputs: the last batches that it was made from, as its own last clock names them.
        steps: its own clocks, oldest first.
        seen: by reader, the last batch of it that the reader was made from.
    """

    last: BatchLabel | None
    inputs: tuple[BatchLabel, ...]
    steps: tuple[BatchClock, ...]
    seen: Mapping[int, BatchLabel]


def restore_targets(log: int, frames: Iterable[Payload]) -> RestoreTarget:
    """Reads out of clocks what a log was, of which nothing need be left.

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
