"""Decides which layers to merge, and merges batches in bounded memory.

Layers have levels of size, each four times the level below. Four layers of a level are merged into
one of the next level, so a row is copied once per level.

- The committing thread merges layers in memory of at most `YOUNG_ROWS` rows, and at most
  `INLINE_ROWS` rows in an epoch. Layers that have not been read are joined without sorting; the
  first reader sorts them once.
- A worker merges all other layers: full ones, large ones, and those in files. Its merges are
  planned here, and adopted between epochs if their inputs are still in the trace. So the committing
  thread and the worker never merge the same layer.

At most `LAYERS_MAX` layers wait for the worker, and at most `LAYERS_MAX` for the committing thread,
whatever their sizes. If there are more than `STALL_LAYERS`, because the worker falls behind, the
committing thread merges the smallest layers that the worker has not claimed (`relieve_backlog`),
and counts this as a stall.

A worker splits the input of a merge into ranges of the key hash, so that no step needs memory for
more than about `RANGE_ROWS` rows besides its output.

A collection that is loaded and then joined by a key is sorted again. Most of the time is spent on
memory: on first reads of file pages, and on new pages for the result. Therefore no unsorted copy of
all rows is built. Each core gathers one column at a time, and frees its input when the column is in
the new order.
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
"""If a trace has more layers than this, the committing thread merges some at any cost."""
WARY = 16
"""The number of epochs for which layers are not joined after a read of a previous state."""
JOINED_MAX = 128
"""The maximum number of epochs in a young layer."""


class Merge(NamedTuple):
    """A planned merge of the layers `[start, stop)` of a trace."""

    start: int
    stop: int


def append_layer(trace: Trace, layer: Layer) -> tuple[Trace, int]:
    """Appends a layer, and performs the merges of the committing thread.

    Returns:
        the new trace, and the number of rows that were merged, at most `INLINE_ROWS`.
    """
    layers = trace.layers
    merged = 0
    n = len(layers)
    if n >= WIDTH and layers[-WIDTH].level <= layers[-1].level and not layers[-1].is_young:
        layers, merged = _merge_full_levels(
            trace.layout, layers, 0
        )  # a reader has sorted the last layer
    layers = (*layers, layer)
    if len(layers) >= WIDTH and layers[-WIDTH].level <= layer.level:
        layers, merged = _merge_full_levels(trace.layout, layers, merged)
    if n >= LAYERS_MAX:
        layers, merged = _merge_surplus(trace.layout, layers, merged)
    return Trace(trace.layout, layers), merged


def grow_layer(trace: Trace, updates: Updates, epoch: int) -> Trace | None:
    """Joins the change of an epoch to a last layer that has grown before; None if it must not grow.

    `append_young` tries this first, because it applies to most traces in a small epoch.
    """
    layers = trace.layers
    if not layers:
        return None
    layer = layers[-1].grown(trace.layout, updates, epoch + 1, JOINED_MAX, INLINE_ROWS)
    return None if layer is None else Trace(trace.layout, (*layers[:-1], layer))


def append_young(trace: Trace, updates: Updates, epoch: int) -> tuple[Trace, int]:
    """Joins the unsorted change of an epoch to the last layer, or appends it as a young layer.

    Returns:
        the same as `append_layer`.

    Cost: almost nothing while the trace is not read.
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
    """Returns True if the worker may have a merge to plan, after the number of layers has changed.

    The worker's share grows when an appended layer is too large for the committing thread, or when
    a layer that this thread has merged or joined becomes too large.

    Cost: O(1).
    """
    layers = trace.layers
    return len(layers) >= WIDTH and (_is_old(layers[-1]) or _is_old(layers[-2]))


def relieve_backlog(trace: Trace) -> tuple[Trace, int]:
    """Merges the smallest adjacent layers of a trace that has too many.

    Returns:
        the new trace, and the number of rows that were merged. The number is 0 if there are not
        enough adjacent layers in memory that the worker has not claimed; the committing thread does
        not merge files.
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
    """Merges the youngest layers as long as a level is full; adds their rows to `merged`."""
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
    """Merges the youngest layers if too many layers of all levels wait for this thread."""
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
    """Merges the layers at the positions `[start, stop)` into one."""
    return (*layers[:start], merged(layout, layers[start:stop]), *layers[stop:])


def _run_start(layers: Sequence[Layer], rows_max: int) -> int:
    """Returns the first of the youngest layers to merge now; the number of layers if none."""
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
    """Returns True if the worker merges a layer, and not the committing thread."""
    return layer.full or bool(layer.files) or layer.rows_count > YOUNG_ROWS


def plan_merges(trace: Trace) -> Merge | None:
    """Plans the next merge for a worker: the youngest layers of a full level.

    If more than `LAYERS_MAX` layers wait, those that are most similar in size are merged. Claimed
    layers are being merged already, so neither they nor older layers are planned.
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
    """Returns the merge of adjacent layers with the greatest mean growth for each row written.

    The benefit of writing a row is the logarithm of the factor by which its layer grows. Its mean
    is the entropy of the sizes. So many layers of similar size are preferred to few, and a small
    layer is no reason to write a large one again. The rule "most layers saved for each row" chose
    another large layer each time, and wrote ten times more rows in the long run.
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
    """Returns the position of adjacent layers in a trace; None if it no longer has them."""
    layers = trace.layers
    for start in range(len(layers) - len(inputs) + 1):
        if all(a is b for a, b in zip(inputs, layers[start:], strict=False)):
            return start
    return None


def adopt_merged(trace: Trace, inputs: tuple[Layer, ...], output: Layer) -> Trace | None:
    """Replaces the inputs of a merge with its output; None if the trace no longer has them."""
    start = place_merged(trace, inputs)
    if start is None:
        return None
    if inputs[-1].seen is not None and inputs[-1].seen.sound:
        output.facts().sum_up()  # the collection at the end of the layer is the same
    layers = trace.layers
    stop = start + len(inputs)
    return Trace(trace.layout, (*layers[:start], output, *layers[stop:]), trace.memos)


RANGE_ROWS = 1 << 20


def merge_ranges(layout: Layout, layers: Iterable[Sequence[Batch]]) -> list[Batch]:
    """Merges layers by ranges of the key hash, so that memory is bounded.

    Returns:
        non-empty batches in the order of the key hash, which are consolidated as a whole.

    Cost: O(n log n) in all rows, which may be mapped; memory for the result and for one range.
    """
    return list(each_range(layout, layers))


def each_range(layout: Layout, layers: Iterable[Sequence[Batch]]) -> Iterator[Batch]:
    """Yields the batches of `merge_ranges` one after the other.

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
    """Sorts disjoint batches of another layout into one batch of this layout.

    Cost: O(n log n) in the rows; memory for the batch, and for one column for each core.
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
    """Calls all functions on `count` cores, and returns their results."""
    results: list[Any] = [None] * len(makers)

    def make(at: int) -> None:
        results[at] = makers[at]()

    parallel.map_parallel(make, len(makers), count)
    return results
