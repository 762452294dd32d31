"""Subtracts the changes made after an epoch from the current state.

A layer that reaches beyond an epoch is what it was once its changes since are taken from it: as
layers add up, they are one more layer, with all signs turned. So a trace of any size goes back by
what was changed since, also one that has no history.

The frame of a rewind says these changes itself, by epoch, and of which logs all are told.

Failure: 1. A session goes back to before its checkpoint, and the frames since are trimmed. 2. It
dies; who opens it has the state at the checkpoint, and nothing that leads back from there. Hence
the frame needs no other one: of what it says, who opens the log takes what its checkpoint has.

The changes are read from the frames that are retained. Of a trace whose changes after the epoch lie
in files, empty it, or belong to a definition, they are not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from nosync_nb.errors import CorruptLogError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.lazy_layer import HistoryLayer, LazyLayer, files_needed
from nosync_nb.store.log import Frame, Log, batch_codec
from nosync_nb.store.log.frame_index import first_retained, retained_frames
from nosync_nb.store.records import payloads
from nosync_nb.store.records.payloads import PayloadEntry
from nosync_nb.store.records.replay import FrameContent
from nosync_nb.store.safe_decoding import guarded_decoding
from nosync_nb.trace import Layer, Trace
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange

Since = Sequence[tuple[int, PayloadEntry]]
"""Inline changes of one log, each with its epoch, oldest first."""

EPOCHS_MAX = 2048
"""So many epochs back frames are asked; further back few are kept, and there is much to undo."""


class UndoneChanges(NamedTuple):
    """What a log was changed by after an epoch that was gone back to.

    Attributes:
        last: up to this epoch all of it is told.
    """

    last: int
    since: Since


def subtract_undone(
    trace: Trace, epoch: int, since: Since, last: int | None = None
) -> Trace | None:
    """A trace as it was at an epoch; None if it did not begin, or is not read from layers.

    Its rows keep their files, and what is taken from them is a layer behind them, so that no row is
    made here. Both end at the epoch, as neither tells of one before it. Where another rewind has
    done so, these two are one: what is left is told by both together.

    Args:
        since: all that its log was changed by after the epoch.
        last: up to this one, if not up to now; None as well of a trace that tells of later ones.
    """
    upper = epoch + 1
    layers = [layer for layer in trace.layers if layer.lower < upper]
    if not layers:
        return None
    if layers[-1].upper <= upper:
        return Trace(trace.layout, tuple(layers))
    beyond = [layers.pop()]
    end = beyond[0].upper
    for layer in trace.layers[len(layers) + 1 :]:
        if layer.lower >= end:
            break
        beyond.append(layer)
        end = max(end, layer.upper)
    if last is not None and end - 1 > last:
        return None
    if any(isinstance(each, HistoryLayer) and not each.is_made for each in beyond):
        return None
    layers += [_shortened(each, epoch, trace.layout) for each in beyond]
    gone = [entry.data for at, entry in since if epoch < at < end]
    if gone:
        make, count = partial(_negated, gone, trace.layout), sum(map(batch_codec.rows_count, gone))
        layers.append(LazyLayer(epoch, upper, count, lambda: (make(),)))
    return Trace(trace.layout, tuple(layers))


def ended_logs(trace: Trace, epoch: int) -> list[Layer]:
    """The first layers of a trace, as far as they add up to what it was at an epoch at most.

    Failure: 1. A session goes back: of a layer something is taken by one that begins before it ends
    (see `without`). 2. That one is merged with later ones. 3. Who goes back to an epoch in between
    keeps the first and not what is taken of it. Hence a layer counts with what overlaps it.
    """
    layers = [each for each in trace.layers if each.upper <= epoch + 1]
    later = min((each.lower for each in trace.layers[len(layers) :]), default=epoch + 1)
    while layers and later < layers[-1].upper:
        later = min(later, layers.pop().lower)
    return layers


def _shortened(layer: Layer, epoch: int, layout: Layout) -> LazyLayer:
    """The rows of a layer, as one that ends at an epoch.

    Behind the same layers it adds up to the same, so what readers found out about it stays.
    """
    lower, rows_count = min(layer.lower, epoch), max(1, layer.rows_count)
    used = frozenset(files_needed(Trace(layout, (layer,))))
    seen, files = layer.known(), layer.files
    return LazyLayer(lower, epoch + 1, rows_count, lambda: layer.parts, files, used, seen=seen)


def _negated(since: Sequence[bytes | memoryview], layout: Layout) -> Batch:
    """Changes with their signs turned."""
    return arrange(layout, Updates(*batch_codec.decode_batches(since, layout.types)).negated())


def undo_entries(epoch: int, taken: Mapping[int, Since]) -> list[PayloadEntry]:
    """What is taken back, as the frame of a rewind says it.

    Args:
        epoch: that is gone back to.
        taken: by log, all that was changed after it; the log of a trace without one is itself.
    """
    if not taken:
        return []
    told = payloads.encode_payload(epoch, 0.0, {"logs": sorted(taken)}, ())
    made = [PayloadEntry(0, payloads.UNDONE, told)]
    by_epoch: dict[int, list[PayloadEntry]] = {}
    for since in taken.values():
        for at, entry in since:
            by_epoch.setdefault(at, []).append(entry)
    for at in sorted(by_epoch):
        made.append(
            PayloadEntry(0, payloads.UNDONE, payloads.encode_payload(at, 0.0, {}, by_epoch[at]))
        )
    return made


def read_undone(tail: Iterable[FrameContent], last: int) -> dict[int, UndoneChanges]:
    """What is to be taken from the traces of a checkpoint, after which the log has gone back.

    Failure: 1. A session goes back to an epoch at which a layer ends: its frame tells nothing of
    that trace. 2. It goes back further, and tells the rest. 3. Whoever opens it takes what only one
    of two frames tells for untold. Hence what a frame tells counts up to where it went back from.

    Args:
        tail: the frames after it.
        last: its epoch.

    Returns:
        by log; of another one nothing is told.

    Raises:
        CorruptLogError: a frame makes no sense.
    """
    gone: dict[int, UndoneChanges] = {}
    for each in tail:
        if each.kind != payloads.REWIND or each.payload.epoch >= last:
            continue
        own = _of_frame(each.payload.entries, last)
        before = {number: gone.get(number, UndoneChanges(last, ())) for number in own}
        gone = {n: UndoneChanges(b.last, [*b.since, *own[n]]) for n, b in before.items()}
        last = each.payload.epoch
    return gone


def _of_frame(said: Iterable[PayloadEntry], last: int) -> dict[int, list[tuple[int, PayloadEntry]]]:
    """What a frame takes back, of epochs up to one."""
    decoded = [payloads.decode_payload(each.data) for each in said if each.kind == payloads.UNDONE]
    with guarded_decoding("what a rewind takes back"):
        logs = {int(log) for each in decoded for log in each.meta.get("logs", ())}
    made: dict[int, list[tuple[int, PayloadEntry]]] = {log: [] for log in logs}
    for payload in decoded:
        for entry in payload.entries:
            if payload.epoch <= last and entry.kind == payloads.INLINE and entry.number in made:
                made[entry.number].append((payload.epoch, entry))
    return made


class FrameStore(Protocol):
    """A log with its disk; see `Store`."""

    files: Files
    log: Log


def recent_frames(
    store: FrameStore, epoch: int, now: int, rewinds: Iterable[tuple[int, int]]
) -> list[Frame]:
    """The frames after an epoch, and some before it, as far as they are kept, if it is recent.

    None if the first of them is not kept, or one is damaged: they only make cheap what can be had
    without them.

    Args:
        rewinds: the frame of each that is known, and the last epoch that it left.
    """
    if now - epoch > EPOCHS_MAX:
        return []

    def enough(frames: Sequence[Frame]) -> bool:
        # What is before an epoch up to this one says nothing of what follows; see `RecentFrames`.
        return any(
            each.kind == payloads.EPOCH and payloads.payload_epoch(each.payload) <= epoch
            for each in frames
        )

    oldest = first_retained(store.files, store.log.path, store.log.head)
    if oldest is not None and payloads.payload_epoch(oldest.payload) > epoch + 1:
        seq = oldest.position.seq
        if not any(seq <= frame and last <= epoch for frame, last in rewinds):
            return []  # epochs only count up from there
    try:
        return retained_frames(store.files, store.log.path, store.log.head, enough)
    except CorruptLogError:
        return []


class RecentFrames:
    """What some frames say of the epochs after one.

    Args:
        frames: all that are kept, oldest first.
        epoch: that is gone back to.

    Attributes:
        told: whether the frames of all epochs after it are among them.
    """

    def __init__(self, frames: Iterable[Frame], epoch: int) -> None:
        self.epoch = epoch
        self.told = False
        self._odd: set[int] = set()
        self._changes: dict[int, list[tuple[int, PayloadEntry]]] = {}
        for frame in frames:
            at = payloads.payload_epoch(frame.payload)
            if frame.kind == payloads.EPOCH and at <= epoch:
                self._changes.clear()
                self.told = at == epoch
                self._odd.clear()  # what was defined before it counts
                continue
            if frame.kind == payloads.REWIND:
                self._leave(at)
            if at < epoch:
                continue
            payload = payloads.decode_payload(frame.payload)
            self.told |= frame.kind == payloads.EPOCH and payload.epoch == epoch + 1
            if frame.kind == payloads.EPOCH:
                for each in payload.entries:
                    self._add(payload.epoch, each)
            elif at > epoch:  # what a definition makes at the epoch itself is there then
                self._odd.update(payloads.entries_by_log([payload]))

    def _leave(self, last: int) -> None:
        """Takes none of what a rewind has left for what is there now."""
        self.told = last == self.epoch or (self.told and last > self.epoch)
        for number, own in self._changes.items():
            self._changes[number] = [each for each in own if each[0] <= last]

    def _add(self, epoch: int, each: PayloadEntry) -> None:
        if each.kind == payloads.INLINE:
            self._changes.setdefault(each.number, []).append((epoch, each))
        elif each.kind != payloads.CLOCKS:
            self._odd.add(each.number)

    def since(self, log: int, number: int) -> Since | None:
        """All changes of a trace after the epoch, oldest first; None if they are not told.

        Args:
            log, number: of the trace; of one without a log both are the same.
        """
        if not self.told or {log, number} & self._odd:
            return None
        return self._changes.get(log, ())
