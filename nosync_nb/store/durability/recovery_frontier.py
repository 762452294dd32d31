"""Epochs, intervals and the recovery calculus: pure functions over integers.

Nothing here reads a log, runs a stage or knows a schema. Inside, progress is an *upper*: the first
epoch that is not complete, so a log that holds [0, 8) has upper 8. What users see is the last
complete epoch, 7; epoch 0 is "empty, before everything" and always complete, so it is also what
a stage without any log shows.

Design: what a crash leaves of each stage's log is its *logged* prefix. From these follows, for
each stage p, with its inputs q:

    exact(p) = max(logged, replayable)                          for an input
    exact(p) = min(own(p), min over q of exact(q))              for a stage, where
    own(p)   = defined                                          if p is determinate
             = min(defined, max(logged, nondeterminants))       if it is not
    kept(p)  = min(logged, exact(p))

*Defined* has no bound where the definition of p survives; without it nothing of p runs. *Exact* is
the prefix that will be the same again, from the log or by running; *kept* is the part
of the log that is consistent with it, beyond which it is cut. The greatest solution is the right
one, also on cycles: a loop is bounded by what enters it, not by itself.

Failure: 1. A stage that rolls dice logs epoch 5; its input, at epoch 5, was only in memory. 2. The
power goes. 3. The input's epoch 5 comes again, with other rows. The dice of the log belong to rows
that never were. Hence kept(p) <= exact(q) for every input q.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Literal, NamedTuple

UNBOUNDED = 2**63 - 1  # the upper of what needs no log


FailureName = Literal["kernel", "power", "disk"]


class FailureClass(Enum):
    """What is lost; everything a milder failure loses is lost too."""

    KERNEL = "kernel"
    POWER = "power"
    DISK = "disk"


class Frontier(NamedTuple):
    """How far a stage is complete, as inclusive epochs.

    Attributes:
        memory: in the session.
        disk: on its disk, over a loss of power.
        replicas: on enough replicas; None where there are none.
    """

    memory: int
    disk: int
    replicas: int | None


class Prefixes(NamedTuple):
    """The upper of what survives each failure."""

    kernel: int
    power: int
    disk: int

    def after(self, failure: FailureClass) -> int:
        """The upper that survives a failure."""
        return int(getattr(self, failure.value))


class FrontierNode(NamedTuple):
    """One stage or input, as the calculus sees it.

    Args:
        inputs: names of what it reads; none for an input of the session.
        logged: what survives of its log.
        determinate: whether running it again gives the same rows.
        nondeterminants: what survives of the seeds, clocks and answers it used.
        replayable: the upper of what an input's source will give again, identically.
        defined: the upper of what it is without the last change of its definition, if that does
            not survive; else there is no bound.
    """

    inputs: tuple[str, ...]
    logged: Prefixes
    determinate: bool = True
    nondeterminants: Prefixes = Prefixes(0, 0, 0)
    replayable: int = 0
    defined: Prefixes = Prefixes(UNBOUNDED, UNBOUNDED, UNBOUNDED)

    def own(self, failure: FailureClass) -> int:
        """The upper of what this stage gives again if its inputs do."""
        if not self.inputs:
            return max(self.logged.after(failure), self.replayable)
        defined = self.defined.after(failure)
        if self.determinate:
            return defined
        kept = max(self.logged.after(failure), self.nondeterminants.after(failure))
        return min(defined, kept)


class SurvivingEpochs(NamedTuple):
    """What a failure leaves of a stage: uppers of what is `exact` and of the log that is `kept`."""

    exact: int
    kept: int


def surviving_epochs(
    nodes: Mapping[str, FrontierNode], failure: FailureClass
) -> dict[str, SurvivingEpochs]:
    """Solves the calculus: what each stage has after a failure. Cycles are allowed.

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
