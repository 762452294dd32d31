"""Stores collections as traces: updates in batches, batches in layers, merged layers, and history.

Promises: the layers of a trace add up to the collection, whichever of them were merged; published
objects do not change. Owns: no mutable state, except the statistics that a layer caches about
itself. Imports: rows, files, errors.
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
from nosync_nb.trace.layer import Layer, LayerFacts, hash_ranges
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
