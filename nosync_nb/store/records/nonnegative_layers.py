"""Records in checkpoints the layers at whose end every row has a multiplicity of 0 or more.

A reader that counts the rows of a collection, or reads the first ones, needs this fact
(`trace/stats.py`). Where it is not recorded, the reader looks up the rows that were removed since
it was last known. So the fact is stored with the log: a reader after a restart, or on a branch,
checks only the changes since then and not all changes.

For a merged layer the fact is known if it was known for the last of the merged layers. A layer that
only adds rows, after others that only add, needs no check.

The records of a log that this user has not signed are not trusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nosync_nb.dataflow.graph import Graph
from nosync_nb.errors import CorruptLogError
from nosync_nb.store.lazy_layer import LazyLayer
from nosync_nb.trace import Layer, Trace, stats

KEY = "sound"
"""The key in a checkpoint: by trace, the positions of these layers in its list, from 0."""


def nonnegative_text(graph: Graph) -> frozenset[int]:
    """Returns one trace of each named collection, the one of readers; see `Snapshot.contents`."""
    return frozenset(next(iter(node.traces.values())) for node in graph.named.values())


def mark_nonnegative(trace: Trace) -> None:
    """Marks the first layers of a trace as non-negative while they only add rows.

    Cost: a pass over the counts of a layer, once; rows that were not accessed are not read.
    """
    for layer in trace.layers:
        if not layer.facts().sound:
            if (isinstance(layer, LazyLayer) and not layer.is_made) or not stats.add_only(layer):
                return
            layer.facts().sum_up()


def nonnegative_layer_positions(listed: Sequence[Layer]) -> list[int]:
    """Returns the positions of the layers that are marked."""
    return [i for i, layer in enumerate(listed) if layer.facts().sound]


def trust_nonnegative(listed: Sequence[Layer], said: Mapping[str, Any], number: str) -> None:
    """Marks the layers of a trace that a checkpoint records as non-negative.

    Args:
        said: the records of the checkpoint, by trace.

    Raises:
        CorruptLogError: a record names no layer.
    """
    for position in said.get(number, ()):
        if type(position) is not int or not 0 <= position < len(listed):
            raise CorruptLogError(
                f"the checkpoint names layer {position!r:.20} of trace {number}, which has"
                f" {len(listed)}",
                hint="restore the log from a copy",
            )
        listed[position].facts().sum_up()
