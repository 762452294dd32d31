"""Traces: layers of a collection, lookups, compaction."""

from nosync_nb.trace.compaction import STALL_LAYERS, Merge, adopt, append, is_due, plan, relieve
from nosync_nb.trace.trace import Found, Layer, Seen, Trace, empty_batch, ranges

__all__ = [
    "STALL_LAYERS",
    "Found",
    "Layer",
    "Merge",
    "Seen",
    "Trace",
    "adopt",
    "append",
    "empty_batch",
    "is_due",
    "plan",
    "ranges",
    "relieve",
]
