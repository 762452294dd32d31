"""Reads a trace at an epoch by applying the changes since a cached neighbouring epoch.

A past state is another state plus the changes between the two. Forwards the changes are added as
they are stored, backwards with opposite counts. The cheapest start is used; one candidate is the
empty state before epoch 0. So the cost of stepping over epochs is proportional to the changes
between the steps. Layers are reused, with their cached statistics.

Design
    Large batches in files become layers without a copy; all other changes are sorted into one
    layer. Small layers are merged with the previous one. Larger layers are merged only if there are
    many, with layers that are not much larger, as in compaction. So layers remain few, and the
    number of merged rows is proportional to the number of changed rows.
    A step backwards over a large batch would store the batch twice, once with negative counts.
    Therefore the cost of such a step is estimated by its rows.
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
"""The cost of sorting a row, relative to the check if it is among the first rows of an order."""

FEW_ROWS = 4096
"""The maximum number of rows of a batch in files that is sorted together with small changes."""

MANY_LAYERS = 16
"""The maximum number of layers that are not merged because of their number."""


class NearbyState(NamedTuple):
    """A cached state: a trace at an epoch."""

    epoch: int
    trace: Trace


def nearby_state(
    history: History, log: int, layout: Layout, epoch: int, known: Iterable[NearbyState] = ()
) -> Trace:
    """Returns a trace at an epoch, as layers.

    Args:
        layout: the layout of the trace if it is built from the empty state.
        known: cached states at other epochs, in any layouts.

    Raises:
        TimeError: if the epoch is not individually readable.
        CorruptLogError: if a file is missing or damaged.

    Cost: that of sorting the changes between the cheapest cached state and the epoch.
    """
    ways = [(_cost(history.weight(log, None, epoch)), NearbyState(-1, Trace(layout)))]
    for start in known:
        lower, upper = sorted((start.epoch, epoch))
        with suppress(TimeError, CorruptLogError):  # then this cached state cannot be used
            weight = history.weight(log, lower, upper)
            ways.append((_cost(weight, back=epoch < start.epoch), start))
    start = min(ways, key=lambda way: way[0])[1]
    return start.trace if start.epoch == epoch else _step_from(history, log, start, epoch)


def _cost(weight: RowWeight, *, back: bool = False) -> int:
    return weight.loose * _DEARER + weight.filed * (_DEARER if back else 1)


def _step_from(history: History, log: int, start: NearbyState, epoch: int) -> Trace:
    """Returns the state at an epoch, derived from a cached state."""
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
    """Returns the sum of batches in any layouts, in the given layout."""
    return merge(layout, [b if b.layout == layout else arrange(layout, b.updates) for b in batches])


def _append_parts(trace: Trace, parts: tuple[Batch, ...], *, back: bool) -> Trace:
    """Appends parts as a layer; with `back` their counts are negated."""
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
