"""Computes which epochs survive a failure: pure functions over integers.

This module reads no log, runs no stage and knows no schema. Internally progress is an *upper*: the
first epoch that is not complete, so a log with [0, 8) has upper 8. Users see the last complete
epoch, 7. Epoch 0 means "empty, before everything" and is always complete, so a stage without a log
also shows epoch 0.

Design: the prefix of each stage's log that a crash leaves is its *logged* prefix. It determines,
for each stage p with its inputs q:

    exact(p) = max(logged, replayable)                          for an input
    exact(p) = min(own(p), min over q of exact(q))              for a stage, where
    own(p)   = defined                                          if p is determinate
             = min(defined, max(logged, nondeterminants))       if it is not
    kept(p)  = min(logged, exact(p))

*Defined* is unbounded if the definition of p survives; without it p cannot run. *Exact* is the
prefix that will be recovered identically, from the log or by running. *Kept* is the part of the log
that is consistent with it; the log is truncated after that part. The greatest solution is the right
one, also on cycles: a loop is bounded by its inputs, not by itself.

Failure: 1. A nondeterministic stage logs epoch 5, while epoch 5 of its input is only in memory. 2.
The power fails. 3. The input gets another epoch 5, with other rows. The random values in the log
then belong to rows that never existed. Therefore kept(p) <= exact(q) for every input q.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Literal, NamedTuple

UNBOUNDED = 2**63 - 1  # the upper of a stage that needs no log


FailureName = Literal["kernel", "power", "disk"]


class FailureClass(Enum):
    """The extent of a failure; each one loses everything that a milder one loses."""

    KERNEL = "kernel"
    POWER = "power"
    DISK = "disk"


class Frontier(NamedTuple):
    """The progress of a stage, as inclusive epochs.

    Attributes:
        memory: in the session.
        disk: on its disk, after a loss of power.
        replicas: on enough replicas; None without replicas.
    """

    memory: int
    disk: int
    replicas: int | None


class Prefixes(NamedTuple):
    """The uppers that survive each failure."""

    kernel: int
    power: int
    disk: int

    def after(self, failure: FailureClass) -> int:
        """Returns the upper that survives a failure."""
        return int(getattr(self, failure.value))


class FrontierNode(NamedTuple):
    """One stage or input in the recovery calculus.

    Args:
        inputs: the names of its inputs; empty for an input of the session.
        logged: the surviving uppers of its log.
        determinate: True if another run gives the same rows.
        nondeterminants: the surviving uppers of the seeds, clocks and answers that it used.
        replayable: the upper that the source of an input can deliver again, identically.
        defined: the upper without the last change of its definition, for failures that lose it;
            unbounded for others.
    """

    inputs: tuple[str, ...]
    logged: Prefixes
    determinate: bool = True
    nondeterminants: Prefixes = Prefixes(0, 0, 0)
    replayable: int = 0
    defined: Prefixes = Prefixes(UNBOUNDED, UNBOUNDED, UNBOUNDED)

    def own(self, failure: FailureClass) -> int:
        """Returns the upper that this stage reproduces if its inputs do."""
        if not self.inputs:
            return max(self.logged.after(failure), self.replayable)
        defined = self.defined.after(failure)
        if self.determinate:
            return defined
        reproducible = max(self.logged.after(failure), self.nondeterminants.after(failure))
        return min(defined, reproducible)


class SurvivingEpochs(NamedTuple):
    """The uppers of a stage after a failure: of the `exact` prefix, and of the `kept` log."""

    exact: int
    kept: int


def surviving_epochs(
    nodes: Mapping[str, FrontierNode], failure: FailureClass
) -> dict[str, SurvivingEpochs]:
    """Returns the surviving epochs of each stage after a failure. Cycles are allowed.

    Cost: O(edges + stages log stages); a bound travels downstream once, the lowest first.
    """
    readers: dict[str, list[str]] = {name: [] for name in nodes}
    for name, node in nodes.items():
        for source in node.inputs:
            readers[source].append(name)
    exact: dict[str, int] = {}
    waiting = [(node.own(failure), name) for name, node in nodes.items()]
    heapify(waiting)
    while waiting:
        bound, name = heappop(waiting)
        if name not in exact:
            exact[name] = bound
            for reader in readers[name]:
                if reader not in exact:
                    heappush(waiting, (bound, reader))
    return {
        name: SurvivingEpochs(exact[name], min(node.logged.after(failure), exact[name]))
        for name, node in nodes.items()
    }
