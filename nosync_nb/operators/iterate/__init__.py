"""Loops, nested to any depth, incremental over epochs and rounds.

`plan` describes the nodes of a loop, `nested_trace` stores its state. `batch_driver` runs the
rounds on traces; `row_driver` runs them row by row for few changes, on the Python dicts of
`key_cache`. `loop` is the operator, and chooses how it runs an epoch.
"""

from nosync_nb.operators.base import GROUP, JOIN, PLAIN
from nosync_nb.operators.iterate.loop import MARK, Loop
from nosync_nb.operators.iterate.nested_trace import timed_layout
from nosync_nb.operators.iterate.plan import LEAVE, RESULT, VARIABLE, LoopNode, LoopPort, LoopScope

__all__ = [
    "GROUP",
    "JOIN",
    "LEAVE",
    "MARK",
    "PLAIN",
    "RESULT",
    "VARIABLE",
    "Loop",
    "LoopNode",
    "LoopPort",
    "LoopScope",
    "timed_layout",
]
