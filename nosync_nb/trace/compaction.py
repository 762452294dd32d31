"""Decides which layers to merge, and merges batches in bounded memory.

The decisions are pure; other modules perform them. Layers are kept in levels of size, each four
times the one below. Four layers of a level are merged into one of the next, so a row is copied once
per level. Layers in memory, of at most `YOUNG_ROWS` rows, are merged by the committing thread, at
most `INLINE_ROWS` rows an epoch. Those that were not read since they came are joined instead, and
the first reader sorts them once. Layers that are full, and older ones, are planned for a worker and
adopted between epochs if they are still live: the two never want the same layer.

At most `LAYERS_MAX` layers wait for the worker, and as many for the committing thread, whatever
their sizes. If the worker falls behind, so that there are more than both together, the committing
thread merges the smallest that the worker has not claimed (`relieve_backlog`), and counts it as a
stall.

A merge of a worker cuts its input into ranges of the key hash, so that no step holds more than
about `RANGE_ROWS` rows besides its output.

A collection that is loaded and then joined by a key is re-sorted. Most of that time goes into
memory: pages of files that are read for the first time, and new pages for the result. So no
unsorted copy of all rows is built: each core gathers one column at a time, and frees its input once
the column is in the new order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nosync_nb import rows
from nosync_nb.rows import Column, parallel
from nosync_nb.trace.batch import (
    Batch,
    Layout,
    Numbers,
    Updates,
    all_rows,
    consolidate,
    merge,
    sort_order,
)
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


RANGE_ROWS = 1 << 20


def merge_ranges(layout: Layout, layers: Iterable[Sequence[Batch]]) -> list[Batch]:
    """Merges layers, range by range of the key hash, so that memory stays bounded.

    Returns:
        batches in the order of the key hash, none of them empty; together they are consolidated.

    Cost: O(n log n) in all rows, which may be mapped; memory for the result and one range.
    """
    return list(each_range(layout, layers))


def each_range(layout: Layout, layers: Iterable[Sequence[Batch]]) -> Iterator[Batch]:
    """As `merge_ranges`, one batch after the other.

    Cost: memory for one range, if the caller frees each batch.
    """
    every = [p for parts in layers for p in parts if len(p)]
    total = sum(len(p) for p in every)
    if not every:
        return
    pieces = max(1, -(-total // RANGE_ROWS))
    if pieces == 1:
        yield merge(layout, every)
        return
    sample = np.concatenate([p.khash[:: max(1, len(p) // 1024)] for p in every])
    sample.sort()
    cuts = [0, *sample[np.arange(1, pieces) * len(sample) // pieces].tolist(), 2**64]
    cuts = sorted(set(cuts))
    for low, high in pairwise(cuts):
        slices = [s for p in every if len(s := p.cut(low, high))]
        if slices and len(merged := merge(layout, slices)):
            yield merged


def rearrange_parts(layout: Layout, parts: Sequence[Batch]) -> Batch:
    """Re-sorts disjoint batches of one other layout into a batch of this layout.

    Cost: O(n log n) in their rows; memory for the batch, and a column for each core.
    """
    types, count = layout.types, parallel.count(sum(map(len, parts)))
    rhash = np.concatenate([part.rhash for part in parts])
    khash, code = rhash, None
    if layout.places != all_rows(len(types)):
        khash = np.concatenate(
            _run_all([partial(_key_hashes, layout, part) for part in parts], count)
        )
    if layout.order is not None:
        codes = [rows.order_codes(p.columns[layout.order], types[layout.order]) for p in parts]
        code = np.concatenate(codes)
    index = sort_order(khash, rhash, code)

    def column(at: int) -> Column:
        return rows.take(rows.concat([part.columns[at] for part in parts], types[at]), index)

    def diffs() -> npt.NDArray[np.int64]:
        return np.concatenate([part.diff for part in parts])[index]

    numbers = [khash, *([] if rhash is khash else [rhash]), *([] if code is None else [code])]
    makers = [partial(column, at) for at in range(len(types))]
    results = _run_all(
        [*makers, diffs, *(partial(np.ndarray.take, each, index) for each in numbers)], count
    )
    columns, (diff, *numbers) = results[: len(types)], results[len(types) :]
    second = numbers[0] if rhash is khash else numbers[1]
    code = None if code is None else numbers[-1]
    return consolidate(layout, columns, numbers[0], second, diff, code)


def _key_hashes(layout: Layout, part: Batch) -> Numbers:
    types = [layout.types[place] for place in layout.places]
    return rows.hash_columns([part.columns[at] for at in layout.places], types, len(part))


def _run_all(makers: Sequence[Callable[[], Any]], count: int) -> list[Any]:
    """Returns the results of all makers, computed on so many cores."""
    results: list[Any] = [None] * len(makers)

    def make(at: int) -> None:
        results[at] = makers[at]()

    parallel.map_parallel(make, len(makers), count)
    return results
