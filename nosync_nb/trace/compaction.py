"""Decides which layers to merge. The decisions are pure; other modules perform them.

Layers are kept in levels of size, each four times the one below. Four layers of a level are merged
into one of the next, so a row is copied once per level. Layers in memory, of at most `YOUNG_ROWS`
rows, are merged by the committing thread, at most `INLINE_ROWS` rows an epoch. Those that were not
read since they came are joined instead, and the first reader sorts them once. Layers that are full,
and older ones, are planned for a worker and adopted between epochs if they are still live: the two
never want the same layer.

At most `LAYERS_MAX` layers wait for the worker, and as many for the committing thread, whatever
their sizes. If the worker falls behind, so that there are more than both together, the committing
thread merges the smallest that the worker has not claimed (`relieve_backlog`), and counts it as a
stall.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from nosync_nb.trace.batch import Layout, Updates
from nosync_nb.trace.layer import Layer, level_of, merged
from nosync_nb.trace.trace import Trace

WIDTH = 4
INLINE_ROWS = 4096
YOUNG_ROWS = INLINE_ROWS // WIDTH
LAYERS_MAX = 12
STALL_LAYERS = 2 * LAYERS_MAX
"""With more layers than these, the committing thread merges some, whatever it costs."""
WARY = 16
"""The number of epochs for which young layers of a trace that is read are not joined."""
JOINED_MAX = 128
"""The number of epochs that are joined in a young layer before it is full."""


class Merge(NamedTuple):
    """A planned merge of the layers `[start, stop)` of a trace."""

    start: int
    stop: int


def append_layer(trace: Trace, layer: Layer) -> tuple[Trace, int]:
    """Appends a layer and merges young ones.

    Returns:
        the new trace and the number of rows that were merged, at most `INLINE_ROWS`.
    """
    layers = trace.layers
    merged = 0
    n = len(layers)
    if n >= WIDTH and layers[-WIDTH].level <= layers[-1].level and not layers[-1].is_young:
        layers, merged = _merge_full_levels(
            trace.layout, layers, 0
        )  # a reader has sorted it since it came
    layers = (*layers, layer)
    if len(layers) >= WIDTH and layers[-WIDTH].level <= layer.level:
        layers, merged = _merge_full_levels(trace.layout, layers, merged)
    if n >= LAYERS_MAX:
        layers, merged = _merge_surplus(trace.layout, layers, merged)
    return Trace(trace.layout, layers), merged


def grow_layer(trace: Trace, updates: Updates, epoch: int) -> Trace | None:
    """Joins the change of an epoch to a layer to which others were joined; None if it is full.

    `append_young` tries this first, and in a small epoch it applies to most traces.
    """
    layers = trace.layers
    if not layers:
        return None
    layer = layers[-1].grown(trace.layout, updates, epoch + 1, JOINED_MAX, INLINE_ROWS)
    return None if layer is None else Trace(trace.layout, (*layers[:-1], layer))


def append_young(trace: Trace, updates: Updates, epoch: int) -> tuple[Trace, int]:
    """Appends the unsorted change of an epoch: to the last layer, or as a young layer.

    Returns: as `append_layer`. Cost: next to nothing while the trace is not read.
    """
    grown = grow_layer(trace, updates, epoch)
    if grown is not None:
        return grown, 0
    layers, rows_count, wary = trace.layers, len(updates.diff), 0
    if layers:
        last = layers[-1]
        wary = WARY if last.is_watched else last.wary - 1
        if wary <= 0 and (joined := last.pieces_count):
            last_rows = last.rows_count
            if joined > 1:
                last.fill()
            elif last_rows <= YOUNG_ROWS and last.level <= level_of(rows_count) + 1:
                if last_rows + rows_count <= INLINE_ROWS:
                    layer = last.joined(trace.layout, updates, epoch + 1)
                    return Trace(trace.layout, (*layers[:-1], layer)), 0
                last.fill()
    layer = Layer.young(epoch, epoch + 1, trace.layout, (updates,), rows_count)
    if wary > 0:
        layer.watch(wary)
    return append_layer(trace, layer)


def is_due(trace: Trace) -> bool:
    """Returns True if a merge may be plannable, in a trace whose number of layers has changed.

    The worker gets more layers when a layer is appended that is too large for the committing
    thread, and when a layer that the committing thread has merged or joined becomes too large for
    it.

    Cost: the same whatever the trace holds.
    """
    layers = trace.layers
    return len(layers) >= WIDTH and (_is_old(layers[-1]) or _is_old(layers[-2]))


def relieve_backlog(trace: Trace) -> tuple[Trace, int]:
    """Merges some layers of a trace in which too many wait.

    Returns:
        the new trace and the number of rows that were merged; 0 if the worker has claimed all
        layers, or they are in files, whose merge is no work for the committing thread.
    """
    layers = trace.layers
    free = [not (each.claimed or each.files) for each in layers]
    starts = [i for i in range(len(layers) - WIDTH + 1) if all(free[i : i + WIDTH])]
    if not starts:
        return trace, 0
    start = min(starts, key=lambda i: sum(each.rows_count for each in layers[i : i + WIDTH]))
    rows_count = sum(each.rows_count for each in layers[start : start + WIDTH])
    return Trace(
        trace.layout, _replace_by_merge(trace.layout, layers, start, start + WIDTH)
    ), rows_count


def _merge_full_levels(
    layout: Layout, layers: tuple[Layer, ...], merged: int
) -> tuple[tuple[Layer, ...], int]:
    """Merges the youngest layers as long as a level is full; `merged` counts the rows."""
    while len(layers) >= WIDTH and layers[-WIDTH].level <= layers[-1].level:
        start = _run_start(layers, INLINE_ROWS - merged)
        if start == len(layers):
            break
        merged += sum(each.rows_count for each in layers[start:])
        layers = _replace_by_merge(layout, layers, start, len(layers))
    return layers, merged


def _merge_surplus(
    layout: Layout, layers: tuple[Layer, ...], merged: int
) -> tuple[tuple[Layer, ...], int]:
    """Merges the youngest layers if there are too many of all levels together."""
    start = len(layers)
    while start and not _is_old(layers[start - 1]):
        start -= 1
    if len(layers) - start <= LAYERS_MAX:
        return layers, merged
    start = len(layers) - WIDTH
    count = sum(each.rows_count for each in layers[start:])
    if merged + count > INLINE_ROWS:
        return layers, merged
    return _replace_by_merge(layout, layers, start, len(layers)), merged + count


def _replace_by_merge(
    layout: Layout, layers: tuple[Layer, ...], start: int, stop: int
) -> tuple[Layer, ...]:
    """Returns the layers with those of `[start, stop)` merged into one."""
    return (*layers[:start], merged(layout, layers[start:stop]), *layers[stop:])


def _run_start(layers: Sequence[Layer], rows_max: int) -> int:
    """Returns the start of the run of youngest layers to merge now; their end without a run."""
    end = len(layers)
    top = layers[-1].level
    start = end
    while start and not _is_old(layers[start - 1]) and layers[start - 1].level <= top:
        rows_max -= layers[start - 1].rows_count
        if rows_max < 0:
            break
        start -= 1
    return start if end - start >= WIDTH else end


def _is_old(layer: Layer) -> bool:
    """Returns True if a layer is merged by the worker, no longer by the committing thread."""
    return layer.full or bool(layer.files) or layer.rows_count > YOUNG_ROWS


def plan_merges(trace: Trace) -> Merge | None:
    """Plans the next merge for a worker: the youngest run of a level that is full.

    If more than `LAYERS_MAX` layers wait, those most alike in size are merged. Claimed layers are
    being merged already: neither they nor older layers are planned.
    """
    layers = trace.layers
    stop = len(layers)
    if layers and layers[-1].pieces_count > 1:
        stop -= 1  # the next epoch may be joined to this layer
    while stop and not _is_old(layers[stop - 1]):
        stop -= 1
    first = stop
    while first and not layers[first - 1].claimed:
        first -= 1
    start = stop
    while start > first:
        top = layers[start - 1].level
        full = 0
        while start > first and layers[start - 1].level <= top:
            start -= 1
            full += layers[start].level == top
        if full >= WIDTH:
            return Merge(start, stop)
    if stop - first <= LAYERS_MAX:
        return None
    likest = _most_alike([max(1, layer.rows_count) for layer in layers[first:stop]])
    return Merge(first + likest.start, first + likest.stop)


def _most_alike(sizes: Sequence[int]) -> Merge:
    """Returns the merge that makes layers grow most for each row written: of those most alike.

    The benefit of writing a row is the factor by which its layer grows, in logarithms. Its mean is
    the entropy of the sizes. So many layers of one size go before few, and a small layer is no
    reason to write a large one again. The rule "most layers saved for each row" chose another large
    layer each time, and wrote ten times as much in the long run.
    """
    best, most = Merge(0, 2), -1.0
    for start in range(len(sizes) - 1):
        total, weighed = 0, 0.0
        for stop, size in enumerate(sizes[start:], start + 1):
            total, weighed = total + size, weighed + size * math.log(size)
            grown = math.log(total) - weighed / total
            if grown > most and stop - start > 1:
                best, most = Merge(start, stop), grown
    return best


def place_merged(trace: Trace, inputs: tuple[Layer, ...]) -> int | None:
    """Returns the position of a run of layers in a trace; None if they are not live any more."""
    layers = trace.layers
    for start in range(len(layers) - len(inputs) + 1):
        if all(a is b for a, b in zip(inputs, layers[start:], strict=False)):
            return start
    return None


def adopt_merged(trace: Trace, inputs: tuple[Layer, ...], output: Layer) -> Trace | None:
    """Replaces the inputs of a merge by its output; None if they are not live any more."""
    start = place_merged(trace, inputs)
    if start is None:
        return None
    if inputs[-1].seen is not None and inputs[-1].seen.sound:
        output.facts().sum_up()  # the collection at its end is the same
    layers = trace.layers
    stop = start + len(inputs)
    return Trace(trace.layout, (*layers[:start], output, *layers[stop:]), trace.memos)
