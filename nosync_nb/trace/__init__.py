"""Traces: updates in batches, batches in layers, layers merged; and the past of them.

Promises: the layers of a trace add up to the collection, whichever were merged; nothing that was
published changes. Owns: nothing that changes but what a layer remembers of itself. Imports: rows,
files, errors.
"""

from nosync_nb.trace.compaction import (
    STALL_LAYERS,
    Merge,
    adopt,
    append,
    append_young,
    is_due,
    place,
    plan,
    relieve,
)
from nosync_nb.trace.hash_index import ranges
from nosync_nb.trace.layer import Layer
from nosync_nb.trace.stats_cache import Seen
from nosync_nb.trace.trace import Found, Trace, empty_batch

__all__ = [
    "STALL_LAYERS",
    "Found",
    "Layer",
    "Merge",
    "Seen",
    "Trace",
    "adopt",
    "append",
    "append_young",
    "empty_batch",
    "is_due",
    "place",
    "plan",
    "ranges",
    "relieve",
]
