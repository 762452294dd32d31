"""Traces: layers of a collection, lookups, compaction."""

from nosync_nb.trace.compaction import Merge, adopt, append, plan
from nosync_nb.trace.trace import Found, Layer, Trace, empty_batch, ranges

__all__ = [
    "Found",
    "Layer",
    "Merge",
    "Trace",
    "adopt",
    "append",
    "empty_batch",
    "plan",
    "ranges",
]
