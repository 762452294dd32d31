"""Traces: updates in batches, batches in layers, layers merged; and the past of them.

Promises: the layers of a trace add up to the collection, whichever were merged; nothing that was
published changes. Owns: nothing that changes but what a layer remembers of itself. Imports: rows,
files, errors.
"""

from nosync_nb.trace.compaction import (
    STALL_LAYERS,
    Merge,
    adopt_merged,
    append_layer,
    append_young,
    is_due,
    place_merged,
    plan_merges,
    relieve_backlog,
)
from nosync_nb.trace.hash_index import hash_ranges
from nosync_nb.trace.layer import Layer
from nosync_nb.trace.stats_cache import LayerFacts
from nosync_nb.trace.trace import LookupResult, Trace, empty_batch

__all__ = [
    "STALL_LAYERS",
    "Layer",
    "LayerFacts",
    "LookupResult",
    "Merge",
    "Trace",
    "adopt_merged",
    "append_layer",
    "append_young",
    "empty_batch",
    "hash_ranges",
    "is_due",
    "place_merged",
    "plan_merges",
    "relieve_backlog",
]
