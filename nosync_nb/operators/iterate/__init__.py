"""Loops of any depth, incremental over epochs and rounds.

`plan` describes the nodes of a loop, and `nested_trace` stores its state. `batch_driver` runs the
rounds on traces. For small changes `row_driver` runs them row by row, on the Python dicts of
`key_cache`. `loop` is the operator, which chooses the way in which an epoch runs.
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
