"""Restores the traces of a graph from an earlier state and the changes that followed it.

Nothing is decoded, sorted or mapped here. A restored layer knows its interval, its files and its
number of rows, and reads the rows when a reader accesses them. Hence opening a session costs the
same for any amount of state, and an unused stage costs nothing.

The earlier state is that of a checkpoint when a log is opened, or that of a version when a reader
follows a log.

A checkpoint also records the non-negative layers: those at whose end every row has a multiplicity
of 0 or more. A reader that counts the rows of a collection, or reads the first ones, needs this
fact (`trace/stats.py`). Where it is not recorded, the reader looks up the rows that were removed
since it was last known. So the fact is stored with the log: a reader after a restart, or on a
branch, checks only the changes since then and not all changes.

For a merged layer the fact is known if it was known for the last of the merged layers. A layer that
only adds rows needs no check if all layers before it only add rows.

The records of a log that this user has not signed are not trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from nosync_nb.dataflow.graph import Graph, Node
from nosync_nb.dataflow.runtime.epoch_result import EpochResult, VersionState
from nosync_nb.errors import CorruptLogError
from nosync_nb.store.lazy_layer import HistoryLayer, LazyLayer, files_needed
from nosync_nb.store.log import batch_codec
from nosync_nb.store.point_in_time import (
    LaterChanges,
    LogHistory,
    reaches_beyond,
    trace_from_history,
    trace_from_layers,
)
from nosync_nb.store.records import payloads
from nosync_nb.store.records.payloads import PayloadEntry
from nosync_nb.trace import Layer, Trace, empty_batch, stats
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange, concat_updates
from nosync_nb.trace.epoch_ranges import Interval
from nosync_nb.trace.history.history import History
from nosync_nb.trace.parts.part_file import PartRef, refs_from_json

Open = Callable[[PartRef, Layout], Batch]
"""Maps a part file."""
Changes = Mapping[int, Sequence[tuple[int, PayloadEntry]]]
"""The changes that followed the earlier state, by log or trace: (epoch, entry), oldest first."""

_BATCHES = frozenset((payloads.INLINE, payloads.FILES))
"""The kinds of entries that contain or reference a log's batch."""


class RecoveredTrace(NamedTuple):
    """A trace of the earlier state, and the log that feeds it."""

    log: int
    trace: Trace


def encoded_traces(layout: Layout, layer: Layer) -> bytes:
    """Returns a layer in memory as a checkpoint stores it; the layer caches the result."""
    if layer.encoded is not None:
        return layer.encoded
    parts = layer.parts or (empty_batch(layout),)
    updates = concat_updates([p.updates for p in parts], layout.types)
    return layer.keep_encoded(batch_codec.encode_batch(updates.columns, layout.types, updates.diff))


# -- the earlier state ---------------------------------------------------------------------------


def listed_layers(
    graph: Graph, version: VersionState
) -> tuple[dict[str, Any], dict[str, list[int]], list[PayloadEntry]]:
    """Returns the traces of a version as a checkpoint lists them, and its inline layers.

    Failure: 1. The changes of some epochs cancel out, so that their layer has no rows. 2. A
    checkpoint leaves the layer out. 3. A rewind to one of these epochs takes the layers before it
    for the whole state. Hence such a layer is listed as well. So is a first layer without rows,
    because its interval shows at which epoch the trace was made.

    Returns:
        three values. The first one contains, by trace, its log, its layout, and for each layer the
        interval and the files. In place of the files there is None for an inline layer, and an
        object for a layer of the history. The second one contains, by trace, the positions of the
        non-negative layers, see `nonnegative_layer_positions`. The third one is a list of the
        inline layers.
    """
    layers: dict[str, Any] = {}
    nonnegative: dict[str, list[int]] = {}
    entries = []
    log_of, of_readers = trace_logs(graph), nonnegative_text(graph)
    for number, trace in version.traces.items():
        if number not in log_of:
            continue
        listed: list[Any] = []
        written: list[Layer] = []
        for layer in trace.layers:
            history_entry = layer.checkpoint_entry() if isinstance(layer, HistoryLayer) else None
            if layer.files or history_entry is not None:
                listed.append([layer.lower, layer.upper, history_entry or layer.files])
            elif layer.rows_count or layer.upper - layer.lower > 1 or not written:
                listed.append([layer.lower, layer.upper, None])
                entries.append(
                    PayloadEntry(number, payloads.INLINE, encoded_traces(trace.layout, layer))
                )
            else:
                continue
            written.append(layer)
        layers[str(number)] = [log_of[number], trace.layout, listed]
        if number in of_readers:
            mark_nonnegative(trace)
            nonnegative[str(number)] = nonnegative_layer_positions(written)
    return layers, nonnegative, entries


def of_checkpoint(
    layers: Mapping[str, Any],
    inline: Mapping[int, Sequence[PayloadEntry]],
    open_part: Open,
    history: History,
    sound: Mapping[str, Any],
) -> dict[int, RecoveredTrace]:
    """Returns the traces that a checkpoint lists.

    Args:
        layers, sound: the first two results of `listed_layers`, as the checkpoint stores them.
        inline: the inline layers of each trace, in order.
        open_part: maps a part file.
        history: the history of the logs.

    Raises:
        CorruptLogError: a layer covers no epoch, or a record is invalid.
    """
    traces = {}
    for number, (log, shape, listed) in layers.items():
        layout = Layout.from_json(shape)
        entries = iter(inline.get(int(number), ()))
        restored: list[LazyLayer] = []
        for lower, upper, files in listed:
            if not lower < upper:
                raise CorruptLogError(
                    f"trace {number} has a layer of epochs [{lower}, {upper})",
                    hint="restore the log from a copy",
                )
            if isinstance(files, dict):
                restored.append(_history_layer(Interval(lower, upper), log, files, layout, history))
            elif files is None:
                restored.append(_inline_layer(lower, upper, [next(entries).data], layout))
            else:
                refs = refs_from_json(files)
                restored.append(_layer_in_files(lower, upper, refs, layout, open_part))
        trust_nonnegative(restored, sound, number)
        traces[int(number)] = RecoveredTrace(log, Trace(layout, tuple(restored)))
    return traces


def _history_layer(
    span: Interval, log: int, entry: Mapping[str, Any], layout: Layout, history: History
) -> HistoryLayer:
    """Returns the layer for a checkpoint's reference to the history of a log."""
    after, rows_count = entry["after"], entry["rows"]
    numbers = (rows_count, entry["log"], 0 if after is None else after)
    if not all(type(number) is int and number >= 0 for number in numbers) or entry["log"] != log:
        raise CorruptLogError(
            f"the checkpoint names an invalid history of log {log}",
            hint="restore the log from a copy",
        )
    return HistoryLayer(layout, history, log, span, after, max(1, rows_count))


def traces_of_version(version: VersionState, graph: Graph) -> dict[int, RecoveredTrace]:
    """Returns the traces of a version, each with its log."""
    logs = trace_logs(graph)
    return {n: RecoveredTrace(logs[n], trace) for n, trace in version.traces.items() if n in logs}


def trace_logs(graph: Graph) -> dict[int, int]:
    """Returns the log that feeds each written trace, by the number of the trace."""
    log_of: dict[int, int] = {}
    for node in graph:
        for number in node.traces.values():
            assert node.log is not None
            log_of[number] = node.log
        for number in node.state:
            log_of[number] = number
    for number in graph.unwritten:
        log_of.pop(number, None)
    return log_of


def share_parts(draft: EpochResult, graph: Graph) -> None:
    """Lets layers of an epoch reference the files of their log, instead of files of their own.

    Recovery does the same: a layer of one epoch is rebuilt from the batch of its log.
    """
    changes_in_files = {number: change for number, _, change in draft.logged if change.refs}
    draft.spares(ref.path for change in changes_in_files.values() for ref in change.refs)
    span = (draft.epoch, draft.epoch + 1)
    for number, log in trace_logs(graph).items() if changes_in_files else ():
        change, trace = changes_in_files.get(log), draft.traces.get(number)
        if change is None or trace is None or not trace.layers:
            continue
        last = trace.layers[-1]
        same = change.parts[0].layout == trace.layout and (last.lower, last.upper) == span
        if same and not last.files:
            layer = Layer(*span, change.parts, change.refs)
            layers = (*trace.layers[:-1], layer)
            draft.traces[number] = Trace(trace.layout, layers, trace.memos)
        draft.spare.difference_update(ref.path for ref in draft.traces[number].layers[-1].files)


def traces_at(
    known: Mapping[int, RecoveredTrace],
    graph: Graph,
    past: History,
    epoch: int,
    undone: Mapping[int, LaterChanges],
) -> dict[int, RecoveredTrace]:
    """Returns the traces of a checkpoint as of an earlier epoch, for a graph rewound to it.

    Args:
        known: the traces of the checkpoint.
        past: the history up to that epoch.
        undone: the changes to subtract from the traces of some logs, see `read_undone`.

    Raises:
        CorruptLogError: a needed trace without a history has no layer that ends at the epoch, and
            the changes to subtract from it are not known.
    """
    named_logs = {node.log for node in graph if node.name is not None}
    needed = {number for node in graph for number in (*node.traces.values(), *node.state)}
    rewound = {}
    for number, (log, trace) in known.items():
        earlier = trace_from_layers(trace, epoch, undone.get(log))
        if earlier is None and trace.layers and log in named_logs and number != log:
            earlier = trace_from_history(trace, LogHistory(past, log, epoch))
        if earlier is None and not reaches_beyond(trace, epoch):
            earlier = Trace(trace.layout)
        if earlier is not None:
            rewound[number] = RecoveredTrace(log, earlier)
        elif number in needed:
            raise CorruptLogError(
                f"the checkpoint has no state of trace {number} at epoch {epoch}",
                hint="restore the log from a copy",
            )
    return rewound


# -- the changes that followed -------------------------------------------------------------------


def extend_traces(
    graph: Graph, known: Mapping[int, RecoveredTrace], changes: Changes, open_part: Open
) -> dict[int, Trace]:
    """Returns every trace of a graph: its earlier state with the changes that followed."""
    traces: dict[int, Trace] = {}
    for node in graph:
        for layout, number in node.traces.items():
            assert node.log is not None
            traces[number] = _extend_trace(
                number, layout, node.log, node, known, changes, open_part
            )
        if node.operator is not None:
            for number, layout in zip(node.state, node.operator.state, strict=True):
                traces[number] = _extend_trace(
                    number, layout, number, node, known, changes, open_part
                )
    return traces


def history_layers(history: History, graph: Graph, changes: Changes) -> None:
    """Adds the changes that followed the earlier state to the history of named collections."""
    for node in graph:
        if node.name is None or node.log is None:
            continue
        log, layout = node.log, node.log_layout
        inline: list[tuple[int, bytes | memoryview]] = []
        for epoch, (_, kind, data) in changes.get(log, ()):
            if kind == payloads.INLINE:
                inline.append((epoch, data))
            elif kind == payloads.FILES:
                history.append_encoded(log, layout, inline, _updates_and_counts)
                inline = []
                refs, file_layout = payloads.batch_files(data, layout)
                history.append_files(log, epoch, file_layout, refs)
        history.append_encoded(log, layout, inline, _updates_and_counts)


def _extend_trace(
    number: int,
    layout: Layout,
    log: int,
    node: Node,
    earlier: Mapping[int, RecoveredTrace],
    changes: Changes,
    open_part: Open,
) -> Trace:
    """Returns one trace: its earlier layers, followed by the changes of its log.

    A definition that needs a new large trace contains it as a whole (`RESET`), because the log may
    be older than the trace. A trace that an epoch empties (`CLEAR`) begins with the rows that the
    epoch adds.
    """
    logged = [each for each in changes.get(log, ()) if each[1].kind in _BATCHES]
    entries = [each for each in changes.get(number, ()) if each[1].kind not in _BATCHES]
    emptied = max((i for i, (_, x) in enumerate(entries) if x.kind == payloads.CLEAR), default=-1)
    if emptied >= 0 and number != log:
        raise CorruptLogError(
            f"epoch {entries[emptied][0]} empties trace {number} of log {log},"
            " which no operator owns",
            hint="restore the log from a copy",
        )
    resets = [(e, x) for e, x in entries[emptied + 1 :] if x.kind == payloads.RESET]
    layers: list[Layer]
    if emptied >= 0 and not resets:
        layers = []
        logged = [(e, x) for e, x in logged if e >= entries[emptied][0]]
    elif resets:
        layers = [_layer_of_entry(x, layout, open_part) for _, x in resets]
        logged = [(e, x) for e, x in logged if e > resets[-1][0]]
    else:
        layers = list(_earlier_layers(number, layout, log, earlier))
    layer_entries = {e: x for e, x in entries if x.kind == payloads.TRACE}
    file_layout = layout if number == log else node.log_layout
    inline: list[PayloadEntry] = []
    start = stop = 0
    for epoch, entry in logged:
        if entry.kind == payloads.INLINE and epoch not in layer_entries:
            start, stop = (start if inline else epoch), epoch
            inline.append(entry)
            continue
        layers += _layer_of_run(inline, start, stop, layout)
        inline = []
        if epoch in layer_entries:
            layers.append(_layer_of_entry(layer_entries[epoch], layout, open_part))
        else:
            refs, shape = payloads.batch_files(entry.data, file_layout)
            layer = _layer_in_files(epoch, epoch + 1, refs, shape, open_part)
            layers.append(_rearranged(layer, shape, layout))
    layers += _layer_of_run(inline, start, stop, layout)
    return Trace(layout, tuple(layers))


def _earlier_layers(
    number: int, layout: Layout, log: int, earlier: Mapping[int, RecoveredTrace]
) -> Iterator[Layer]:
    """Yields the earlier layers of a trace.

    For a new trace, yields the rows of another trace of the same log as one layer, in the order
    of this trace.
    """
    recovered = earlier.get(number)
    if recovered is not None and recovered.trace.layout == layout:
        yield from recovered.trace.layers
        return
    for other, (its_log, trace) in earlier.items():
        if its_log == log and other != number and trace.layers:
            first, last = trace.layers[0], trace.layers[-1]
            yield LazyLayer(
                first.lower,
                last.upper,
                trace.rows_count,
                lambda trace=trace: (arrange(layout, trace.updates()),),  # type: ignore[misc]
                needs=files_needed(trace),
            )
            return


def _layer_of_run(
    run: list[PayloadEntry], start: int, stop: int, layout: Layout
) -> Iterator[Layer]:
    """Yields the inline changes of a run of epochs as one layer; nothing for an empty run."""
    if run:
        yield _inline_layer(start, stop + 1, [entry.data for entry in run], layout)


def _inline_layer(
    lower: int, upper: int, data: list[bytes | memoryview], layout: Layout
) -> LazyLayer:
    count = sum(map(batch_codec.rows_count, data))
    return LazyLayer(lower, upper, count, lambda: (_decode_batch(data, layout),))


def _decode_batch(data: Sequence[bytes | memoryview], layout: Layout) -> Batch:
    return arrange(layout, _decode_updates(data, layout.types))


def _decode_updates(data: Sequence[bytes | memoryview], types: Sequence[str]) -> Updates:
    return Updates(*batch_codec.decode_batches(data, types))


def _updates_and_counts(
    data: Sequence[bytes | memoryview], types: Sequence[str]
) -> tuple[Updates, list[int]]:
    """Returns the joined updates of several encoded changes, and the number of rows of each one."""
    return _decode_updates(data, types), [*map(batch_codec.rows_count, data)]


def _layer_of_entry(entry: PayloadEntry, layout: Layout, open_part: Open) -> LazyLayer:
    lower, upper, refs = payloads.layer_of(entry)
    return _layer_in_files(lower, upper, refs, layout, open_part)


def _layer_in_files(
    lower: int, upper: int, refs: tuple[PartRef, ...], layout: Layout, open_part: Open
) -> LazyLayer:
    count = sum(ref.rows for ref in refs)
    return LazyLayer(
        lower, upper, count, lambda: tuple(open_part(ref, layout) for ref in refs), refs
    )


def _rearranged(layer: LazyLayer, current: Layout, layout: Layout) -> LazyLayer:
    """Returns a layer with its rows in another layout; they are sorted in memory."""
    if current == layout:
        return layer

    def read_rows() -> tuple[Batch, ...]:
        updates = concat_updates([part.updates for part in layer.parts], layout.types)
        return (arrange(layout, updates),)

    return LazyLayer(layer.lower, layer.upper, layer.rows_count, read_rows, needs=layer.needs)


NONNEGATIVE_KEY = "sound"
"""The key in a checkpoint for the positions of the non-negative layers, from 0, by trace."""


def nonnegative_text(graph: Graph) -> frozenset[int]:
    """Returns the trace of each named collection that readers use; see `Snapshot.contents`."""
    return frozenset(next(iter(node.traces.values())) for node in graph.named.values())


def mark_nonnegative(trace: Trace) -> None:
    """Marks the first layers of a trace as non-negative, as long as they only add rows.

    Cost: a pass over the counts of a layer, once. It stops at a layer that was not read yet.
    """
    for layer in trace.layers:
        if not layer.facts().sound:
            if (isinstance(layer, LazyLayer) and not layer.is_made) or not stats.add_only(layer):
                return
            layer.facts().sum_up()


def nonnegative_layer_positions(listed: Sequence[Layer]) -> list[int]:
    """Returns the positions of the layers that are marked as non-negative."""
    return [i for i, layer in enumerate(listed) if layer.facts().sound]


def trust_nonnegative(listed: Sequence[Layer], said: Mapping[str, Any], number: str) -> None:
    """Marks the layers of a trace that a checkpoint records as non-negative.

    Args:
        listed: the layers of the trace.
        said: the records of the checkpoint, by trace.
        number: the trace.

    Raises:
        CorruptLogError: a record does not denote a layer.
    """
    for position in said.get(number, ()):
        if type(position) is not int or not 0 <= position < len(listed):
            raise CorruptLogError(
                f"the checkpoint names layer {position!r:.20} of trace {number}, which has"
                f" {len(listed)}",
                hint="restore the log from a copy",
            )
        listed[position].facts().sum_up()
