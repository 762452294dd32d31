"""Proven: of which layers a checkpoint says that no row is there fewer than 0 times at their end.

Who reads the first rows of a collection, or counts them, has to know that (`trace/stats.py`), and
looks up what was taken away since it was known last. So what is known goes with the log: a reader
after a restart, or on a branch, looks at what was changed since, and not at all that ever was.

Of a layer that somebody merged it is known if it was of the last of those merged. Of one that only
adds, behind others that only add, it needs no look.

What a log says of itself that another user has signed, or nobody, is not believed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nosync_nb.dataflow.graph import Graph
from nosync_nb.errors import CorruptLogError
from nosync_nb.store.lazy_layer import LazyLayer
from nosync_nb.trace import Layer, Trace, stats

KEY = "sound"
"""Of a checkpoint: by trace, which of the layers that it lists, counted from 0."""


def nonnegative_text(graph: Graph) -> frozenset[int]:
    """The traces that readers of named collections look at, one each; see `Snapshot.contents`."""
    return frozenset(next(iter(node.traces.values())) for node in graph.named.values())


def mark_nonnegative(trace: Trace) -> None:
    """Notes it of the first layers as long as they only add.

    Cost: a pass over the counts of a layer, once; nothing is read that nobody has looked at.
    """
    for layer in trace.layers:
        if not layer.known().sound:
            if (isinstance(layer, LazyLayer) and not layer.is_made) or not stats.add_only(layer):
                return
            layer.known().sum_up()


def nonnegative_layer_positions(listed: Sequence[Layer]) -> list[int]:
    """Which of some layers are said to be sound."""
    return [i for i, layer in enumerate(listed) if layer.known().sound]


def trust_nonnegative(listed: Sequence[Layer], said: Mapping[str, Any], number: str) -> None:
    """Notes of the layers of a trace what a checkpoint says of them.

    Args:
        said: what stands in the checkpoint, by trace.

    Raises:
        CorruptLogError: it names no layer.
    """
    for place in said.get(number, ()):
        if type(place) is not int or not 0 <= place < len(listed):
            raise CorruptLogError(
                f"the checkpoint names layer {place!r:.20} of trace {number}, which has"
                f" {len(listed)}",
                hint="restore the log from a copy",
            )
        listed[place].known().sum_up()
