"""Reads a trace at an epoch by applying the changes since a cached neighbouring epoch.

A past state is another state plus the changes between the two: forwards as they are stored,
backwards with opposite counts. The cheapest start is taken; the empty state before epoch 0 is one
of the candidates. So stepping over epochs costs in proportion to the changes between the steps; and
layers, with their cached statistics, are reused.

Design
    Large batches become layers as they lie in files, the rest is sorted into one layer. Small
    layers are joined with those before. Others are joined when layers are many, with those that are
    not much larger, as a trace is compacted. So layers stay few, and the merged rows are in
    proportion to the changed rows.
    Going backwards over a large batch would store it twice, once with counts below 0: such a step
    is as expensive as its rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from nosync_nb.errors import CorruptLogError, TimeError
from nosync_nb.trace.batch import Batch, Layout, arrange, merge
from nosync_nb.trace.history.archive import RowWeight
from nosync_nb.trace.history.history import History
from nosync_nb.trace.layer import Layer
from nosync_nb.trace.trace import Trace

_DEARER = 50
"""To sort a row takes so many times as long as to check whether it is among the first."""

FEW_ROWS = 4096
"""So few rows are joined with others, even if they lie in a file."""

MANY_LAYERS = 16
"""With so many layers, merging some is cheaper than reading each of them."""


class NearbyState(NamedTuple):
    """The state of a trace at an epoch."""

    epoch: int
    trace: Trace


def nearby_state(
    history: History, log: int, layout: Layout, epoch: int, known: Iterable[NearbyState] = ()
) -> Trace:
    """Returns a trace at an epoch, as layers.

    Args:
        layout: of a trace that is built from the empty state.
        known: cached states at other epochs, in any layouts.

    Raises:
        TimeError: if the epoch is not individually readable.
        CorruptLogError: if a file is missing or damaged.

    Cost: that of sorting the changes since the nearest cached state.
    """
    ways = [(_cost(history.weight(log, None, epoch)), NearbyState(-1, Trace(layout)))]
    for start in known:
        lower, upper = sorted((start.epoch, epoch))
        with suppress(TimeError, CorruptLogError):  # this cached state is of no use then
            weight = history.weight(log, lower, upper)
            ways.append((_cost(weight, back=epoch < start.epoch), start))
    start = min(ways, key=lambda way: way[0])[1]
    return start.trace if start.epoch == epoch else _step_from(history, log, start, epoch)


def _cost(weight: RowWeight, *, back: bool = False) -> int:
    return weight.loose * _DEARER + weight.filed * (_DEARER if back else 1)


def _step_from(history: History, log: int, start: NearbyState, epoch: int) -> Trace:
    """Moves a cached state to another epoch."""
    lower, upper = sorted((start.epoch, epoch))
    changed = history.change_parts(log, None if lower < 0 else lower, upper)
    trace, loose = start.trace, changed.loose
    for parts in changed.whole:
        if any(part.layout != trace.layout for part in parts) or sum(map(len, parts)) <= FEW_ROWS:
            loose = [*loose, *parts]
        else:
            trace = _append_parts(trace, parts, back=epoch < start.epoch)
    if loose:
        batch = _sum_batches(trace.layout, loose)
        trace = _append_parts(trace, (batch,), back=epoch < start.epoch) if len(batch) else trace
    return _merge_small_layers(trace)


def _sum_batches(layout: Layout, batches: Iterable[Batch]) -> Batch:
    """Adds up batches in any layouts."""
    return merge(layout, [b if b.layout == layout else arrange(layout, b.updates) for b in batches])


def _append_parts(trace: Trace, parts: tuple[Batch, ...], *, back: bool) -> Trace:
    """Appends a layer to a trace; with `back` its counts are negated."""
    if back:
        parts = tuple(Batch(p.layout, p.columns, p.khash, p.rhash, -p.diff, p.code) for p in parts)
    at = trace.layers[-1].upper if trace.layers else 0
    return trace.appended(Layer(at, at + 1, parts))


def _merge_small_layers(trace: Trace) -> Trace:
    """Merges the last two layers repeatedly, as long as the merge is cheap.

    Layers of at most `FEW_ROWS` rows together are always merged. Larger ones are merged only if
    there are more than `MANY_LAYERS`, and the first has at most twice the rows of the last.
    """
    layers = trace.layers
    while len(layers) > 1:
        below, last = layers[-2:]
        count = below.rows_count + last.rows_count
        if count > FEW_ROWS and (
            len(layers) <= MANY_LAYERS or below.rows_count > 2 * last.rows_count
        ):
            break
        batch = merge(trace.layout, [*below.parts, *last.parts])
        joined = (Layer(below.lower, last.upper, (batch,)),) if len(batch) else ()
        layers = (*layers[:-2], *joined)
    return trace if layers is trace.layers else Trace(trace.layout, layers)
