"""iterate: loops, nested to any depth, incremental over epochs and rounds.

`plan` says what is inside a loop, `rounds` how its state is kept; `run` runs the rounds, `few` does
so row by row, if few change, on a `mirror` of the state (what is `known` of keys, and `stepped`
round by round), by the `shapes` of the nodes and with `sums` of rows; `loop` is the operator, and
`effort` says what it should do.
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
