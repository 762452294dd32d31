"""A trace as of an earlier epoch: from its layers, without the later changes, or from history.

Branches, rewinds and the opening of a rewound log use the same two functions, `trace_from_layers`
and `trace_from_history`. No row is read here.

A layer that reaches beyond an epoch equals its state at the epoch plus the changes since then. As
layers add up, one more layer with these changes, all signs inverted, restores that state. So the
cost of rewinding a trace depends only on the changes since then, even if it has no history.

The changes come from the retained frames (`RecentFrames`). They are unknown for a trace if one of
these frames empties it or names files of it, or if a definition wrote to it.

The frame of a rewind contains these changes itself, by epoch, and lists the logs whose changes are
complete.

Failure: 1. A session rewinds to before its checkpoint, and the frames since are trimmed. 2. It
dies; the next opening has the state at the checkpoint, and no frame that leads back from there.
Hence the frame of the rewind needs no other frame: the opening subtracts its changes from the state
at the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from nosync_nb.errors import CorruptLogError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.lazy_layer import HistoryLayer, LazyLayer, files_needed
from nosync_nb.store.log import Frame, Log, batch_codec
from nosync_nb.store.log.frame_index import first_retained, retained_frames
from nosync_nb.store.records import payloads
from nosync_nb.store.records.payloads import FrameContent, PayloadEntry
from nosync_nb.store.safe_decoding import guarded_decoding
from nosync_nb.trace import Layer, Trace
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange
from nosync_nb.trace.epoch_ranges import Interval
from nosync_nb.trace.history.history import History

Since = Sequence[tuple[int, PayloadEntry]]
"""Inline changes of one log, each with its epoch, oldest first."""

EPOCHS_MAX = 2048
"""The maximum number of epochs back for which frames are read. Few older frames are retained, and
undoing that many epochs is expensive.
"""


class LaterChanges(NamedTuple):
    """The changes of a log after an epoch.

    Attributes:
        since: the changes, oldest first.
        last: the epoch up to which the changes are complete; `None` means the current one.
    """

    since: Since
    last: int | None = None


class LogHistory(NamedTuple):
    """The history of the log that feeds a trace.

    Attributes:
        log: the number of the log.
        upto: the target epoch, or the last epoch of the collection if that is earlier.
    """

    history: History
    log: int
    upto: int

    def is_readable(self, epoch: int) -> bool:
        """Returns True if the history retains an epoch separately."""
        return any(epoch in each for each in self.history.epochs(self.log, self.upto))


def reaches_beyond(trace: Trace, epoch: int) -> bool:
    """Returns True if a layer of a trace covers an epoch and later ones."""
    return any(each.lower <= epoch < each.upper - 1 for each in trace.layers)


def trace_from_layers(trace: Trace, epoch: int, later: LaterChanges | None) -> Trace | None:
    """Returns a trace as it was at an epoch, from its layers and the later changes.

    Returns None if the trace did not exist at the epoch, if the later changes are needed but not
    known, or if its layers cannot be read without the history. The rows keep their files. The
    subtracted changes are an additional layer, so no row is read here. The shortened layer and the
    additional one both end at the epoch, because neither is valid at an earlier one. If an earlier
    rewind has created such a pair, the two are treated as one layer.

    Args:
        later: all changes of its log after the epoch; `None` means that they are not known.
    """
    upper = epoch + 1
    layers = [layer for layer in trace.layers if layer.lower < upper]
    if not layers:
        return None
    if not reaches_beyond(trace, epoch):
        return Trace(trace.layout, tuple(layers))
    if later is None:
        return None
    overlapping = [layers.pop()]
    end = overlapping[0].upper
    for layer in trace.layers[len(layers) + 1 :]:
        if layer.lower >= end:
            break
        overlapping.append(layer)
        end = max(end, layer.upper)
    if later.last is not None and end - 1 > later.last:
        return None
    if any(isinstance(each, HistoryLayer) and not each.is_made for each in overlapping):
        return None
    layers += [_shortened(each, epoch, trace.layout) for each in overlapping]
    undone = [entry.data for at, entry in later.since if epoch < at < end]
    if undone:
        negate = partial(_negated, undone, trace.layout)
        count = sum(map(batch_codec.rows_count, undone))
        layers.append(LazyLayer(epoch, upper, count, lambda: (negate(),)))
    return Trace(trace.layout, tuple(layers))


def trace_from_history(trace: Trace, past: LogHistory) -> Trace:
    """Returns a trace of a named collection at an epoch, from its log.

    The layers that ended before the epoch are used as they are. The changes after them are read
    from the history when a reader first accesses them.
    """
    layers = layers_ended_by(trace, past.upto)
    lower = layers[-1].upper if layers else 0
    if layers and not past.is_readable(lower - 1):  # a later step covers it, or it was downsampled
        layers, lower = [], 0
    if lower <= past.upto:
        span, after = Interval(lower, past.upto + 1), lower - 1 if layers else None
        count = max(1, trace.rows_count)
        layers.append(HistoryLayer(trace.layout, past.history, past.log, span, after, count))
    return Trace(trace.layout, tuple(layers))


def layers_ended_by(trace: Trace, epoch: int) -> list[Layer]:
    """Returns the first layers of a trace that add up to its state at an epoch or before.

    Failure: 1. A session rewinds: a second layer, which begins before the first one ends, subtracts
    from it (see `trace_from_layers`). 2. The second one is merged with later ones. 3. A rewind to
    an epoch in between keeps the first layer without its subtraction. Hence a layer is only used
    together with the layers that overlap it.
    """
    layers = [each for each in trace.layers if each.upper <= epoch + 1]
    later = min((each.lower for each in trace.layers[len(layers) :]), default=epoch + 1)
    while layers and later < layers[-1].upper:
        later = min(later, layers.pop().lower)
    return layers


def _shortened(layer: Layer, epoch: int, layout: Layout) -> LazyLayer:
    """Returns the rows of a layer as a layer that ends at an epoch.

    Together with the layers before it, it adds up to the same rows. So the cached statistics of the
    layer stay valid.
    """
    lower, rows_count = min(layer.lower, epoch), max(1, layer.rows_count)
    needs = frozenset(files_needed(Trace(layout, (layer,))))
    statistics, files = layer.facts(), layer.files
    return LazyLayer(
        lower, epoch + 1, rows_count, lambda: layer.parts, files, needs, seen=statistics
    )


def _negated(since: Sequence[bytes | memoryview], layout: Layout) -> Batch:
    return arrange(layout, Updates(*batch_codec.decode_batches(since, layout.types)).negated())


def undo_entries(epoch: int, taken: Mapping[int, Since]) -> list[PayloadEntry]:
    """Returns the undone changes as entries for the frame of a rewind.

    Args:
        epoch: the target of the rewind.
        taken: all changes after the target, by log. A trace without a log is listed as its own log.
    """
    if not taken:
        return []
    logs = payloads.encode_payload(epoch, 0.0, {"logs": sorted(taken)}, ())
    entries = [PayloadEntry(0, payloads.UNDONE, logs)]
    by_epoch: dict[int, list[PayloadEntry]] = {}
    for since in taken.values():
        for at, entry in since:
            by_epoch.setdefault(at, []).append(entry)
    for at in sorted(by_epoch):
        entries.append(
            PayloadEntry(0, payloads.UNDONE, payloads.encode_payload(at, 0.0, {}, by_epoch[at]))
        )
    return entries


def read_undone(tail: Iterable[FrameContent], last: int) -> dict[int, LaterChanges]:
    """Returns the changes to subtract from the traces of a checkpoint before a rewind.

    Failure: 1. A session rewinds to an epoch at which a layer ends: its frame contains no changes
    of that trace. 2. It rewinds further, and that frame contains the other changes. 3. An opening
    ignores the changes that only one of the two frames contains. Hence the changes of a frame count
    up to the epoch that its rewind started from.

    Args:
        tail: the frames after the checkpoint.
        last: the epoch of the checkpoint.

    Returns:
        the changes by log; for logs that are not listed, the changes are not known.

    Raises:
        CorruptLogError: a frame is invalid.
    """
    undone: dict[int, LaterChanges] = {}
    for each in tail:
        if each.kind != payloads.REWIND or each.payload.epoch >= last:
            continue
        by_log = _undone_by_frame(each.payload.entries, last)
        earlier = {number: undone.get(number, LaterChanges((), last)) for number in by_log}
        undone = {n: LaterChanges([*b.since, *by_log[n]], b.last) for n, b in earlier.items()}
        last = each.payload.epoch
    return undone


def _undone_by_frame(
    entries: Iterable[PayloadEntry], last: int
) -> dict[int, list[tuple[int, PayloadEntry]]]:
    """Returns the changes in epochs up to `last` that the frame of a rewind undoes, by log."""
    decoded = [
        payloads.decode_payload(each.data) for each in entries if each.kind == payloads.UNDONE
    ]
    with guarded_decoding("the changes that a rewind undoes"):
        logs = {int(log) for each in decoded for log in each.meta.get("logs", ())}
    by_log: dict[int, list[tuple[int, PayloadEntry]]] = {log: [] for log in logs}
    for payload in decoded:
        for entry in payload.entries:
            if payload.epoch <= last and entry.kind == payloads.INLINE and entry.number in by_log:
                by_log[entry.number].append((payload.epoch, entry))
    return by_log


def recent_frames(
    files: Files, log: Log, epoch: int, now: int, rewinds: Iterable[tuple[int, int]]
) -> list[Frame]:
    """Returns the retained frames after a recent epoch, and some before it.

    Returns an empty list if the first of these frames is not retained, or if one is damaged.
    Callers work without them at a higher cost.

    Args:
        now: the current epoch.
        rewinds: the number of the frame and the target epoch of each known rewind.
    """
    if now - epoch > EPOCHS_MAX:
        return []

    def enough(frames: Sequence[Frame]) -> bool:
        # `RecentFrames` drops the changes before this epoch anyway.
        return any(
            each.kind == payloads.EPOCH and payloads.payload_epoch(each.payload) <= epoch
            for each in frames
        )

    oldest = first_retained(files, log.path, log.head)
    if oldest is not None and payloads.payload_epoch(oldest.payload) > epoch + 1:
        seq = oldest.position.seq
        if not any(seq <= frame and last <= epoch for frame, last in rewinds):
            return []  # epochs only increase from there
    try:
        return retained_frames(files, log.path, log.head, enough)
    except CorruptLogError:
        return []


class RecentFrames:
    """The changes that frames contain after one epoch.

    Args:
        frames: all retained frames, oldest first.
        epoch: the target of the rewind.

    Attributes:
        is_complete: True if the frames of all epochs after the target are among them.
    """

    def __init__(self, frames: Iterable[Frame], epoch: int) -> None:
        self.epoch = epoch
        self.is_complete = False
        self._unknown: set[int] = set()
        self._changes: dict[int, list[tuple[int, PayloadEntry]]] = {}
        for frame in frames:
            at = payloads.payload_epoch(frame.payload)
            if frame.kind == payloads.EPOCH and at <= epoch:
                self._changes.clear()
                self.is_complete = at == epoch
                self._unknown.clear()  # definitions before it are part of the state
                continue
            if frame.kind == payloads.REWIND:
                self._drop_undone(at)
            if at < epoch:
                continue
            payload = payloads.decode_payload(frame.payload)
            self.is_complete |= frame.kind == payloads.EPOCH and payload.epoch == epoch + 1
            if frame.kind == payloads.EPOCH:
                for each in payload.entries:
                    self._add(payload.epoch, each)
            elif at > epoch:  # contents that a definition makes at the epoch itself belong to it
                self._unknown.update(payloads.entries_by_log([payload]))

    def _drop_undone(self, last: int) -> None:
        """Drops the changes that a rewind has undone, because they are not in the current state."""
        self.is_complete = last == self.epoch or (self.is_complete and last > self.epoch)
        for number, changes in self._changes.items():
            self._changes[number] = [each for each in changes if each[0] <= last]

    def _add(self, epoch: int, each: PayloadEntry) -> None:
        if each.kind == payloads.INLINE:
            self._changes.setdefault(each.number, []).append((epoch, each))
        elif each.kind != payloads.CLOCKS:
            self._unknown.add(each.number)

    def of_trace(self, log: int, number: int) -> LaterChanges | None:
        """Returns all changes of a trace after the epoch; None if they are not known.

        Args:
            log, number: the log of the trace, and its number; they are equal for a trace without a
                log.
        """
        if not self.is_complete or {log, number} & self._unknown:
            return None
        return LaterChanges(self._changes.get(log, ()))
