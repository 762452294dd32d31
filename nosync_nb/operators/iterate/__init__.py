"""iterate: loops, nested to any depth, incremental over epochs and rounds.

`plan` says what is inside a loop, `rounds` how its state is kept, `loop` runs it.
"""

from nosync_nb.operators.iterate.loop import Loop
from nosync_nb.operators.iterate.plan import (
    GROUP,
    JOIN,
    LEAVE,
    PLAIN,
    RESULT,
    VARIABLE,
    Inner,
    Port,
    Scope,
)
from nosync_nb.operators.iterate.rounds import timed

__all__ = [
    "GROUP",
    "JOIN",
    "LEAVE",
    "PLAIN",
    "RESULT",
    "VARIABLE",
    "Inner",
    "Loop",
    "Port",
    "Scope",
    "timed",
]
