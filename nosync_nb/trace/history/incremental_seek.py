"""Near: a trace at an epoch by way of what is known of it at others, without adding anything up.

An epoch of the past is what another one is, and what changed between the two: forwards as it is
stored, backwards with opposite counts. The cheapest way is taken, the one from nothing at epoch 0
among them. So who steps over epochs pays for what changed between his steps; and the layers of
before, with what readers have found out about them, are those of after.

Design
    Large batches become layers as they lie in files, the rest is put in order as one layer. Small
    ones are joined with those before, others when layers are many, with those that are not much
    larger, as a trace is compacted: layers stay few, and the rows that are merged are in proportion
    to those that changed.
    Going back over a large batch would leave it twice, once with counts below 0: such a way is as
    dear as its rows.
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
"""To put a row in order takes so many times as long as to look whether it is among the first."""

FEW_ROWS = 4096
"""So few rows are joined with others, also if they lie in a file."""

MANY_LAYERS = 16
"""With so many layers a look at each of them is not dearer than to merge some."""


class NearbyState(NamedTuple):
    """What a trace is at an epoch."""

    epoch: int
    trace: Trace


def nearby_state(
    history: History, log: int, layout: Layout, epoch: int, known: Iterable[NearbyState] = ()
) -> Trace:
    """A trace at an epoch, as layers.

    Args:
        layout: of what is made from nothing.
        known: what it is at other epochs, in any layouts.

    Raises:
        TimeError: if the epoch cannot be told apart.
        CorruptLogError: if a file is missing or damaged.

    Cost: that of putting in order what changed since the nearest that is known.
    """
    ways = [(_cost(history.weight(log, None, epoch)), NearbyState(-1, Trace(layout)))]
    for near in known:
        lower, upper = sorted((near.epoch, epoch))
        with suppress(TimeError, CorruptLogError):  # it is not known by that way
            weight = history.weight(log, lower, upper)
            ways.append((_cost(weight, back=epoch < near.epoch), near))
    near = min(ways, key=lambda way: way[0])[1]
    return near.trace if near.epoch == epoch else _stepped(history, log, near, epoch)


def _cost(weight: RowWeight, *, back: bool = False) -> int:
    """What a way takes."""
    return weight.loose * _DEARER + weight.filed * (_DEARER if back else 1)


def _stepped(history: History, log: int, near: NearbyState, epoch: int) -> Trace:
    """A trace at another epoch than the one it is known at."""
    lower, upper = sorted((near.epoch, epoch))
    changed = history.pieces(log, None if lower < 0 else lower, upper)
    trace, loose = near.trace, changed.loose
    for parts in changed.whole:
        if any(part.layout != trace.layout for part in parts) or sum(map(len, parts)) <= FEW_ROWS:
            loose = [*loose, *parts]
        else:
            trace = _with(trace, parts, back=epoch < near.epoch)
    if loose:
        batch = _sum(trace.layout, loose)
        trace = _with(trace, (batch,), back=epoch < near.epoch) if len(batch) else trace
    return _joined(trace)


def _sum(layout: Layout, batches: Iterable[Batch]) -> Batch:
    """The sum of batches in any layouts."""
    return merge(layout, [b if b.layout == layout else arrange(layout, b.updates) for b in batches])


def _with(trace: Trace, parts: tuple[Batch, ...], *, back: bool) -> Trace:
    """A trace with one more layer, which takes away what is there if it goes `back`."""
    if back:
        parts = tuple(Batch(p.layout, p.columns, p.khash, p.rhash, -p.diff, p.code) for p in parts)
    at = trace.layers[-1].upper if trace.layers else 0
    return trace.appended(Layer(at, at + 1, parts))


def _joined(trace: Trace) -> Trace:
    """Merges the last layers while they are few rows, or there are many layers of about a size."""
    layers = trace.layers
    while len(layers) > 1:
        below, last = layers[-2:]
        count = below.rows_count + last.rows_count
        if count > FEW_ROWS and (
            len(layers) <= MANY_LAYERS or below.rows_count > 2 * last.rows_count
        ):
            break
        batch = merge(trace.layout, [*below.parts, *last.parts])
        made = (Layer(below.lower, last.upper, (batch,)),) if len(batch) else ()
        layers = (*layers[:-2], *made)
    return trace if layers is trace.layers else Trace(trace.layout, layers)
