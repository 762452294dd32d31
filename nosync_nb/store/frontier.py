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

from collections.abc import Iterable, Mapping
from enum import Enum
from graphlib import TopologicalSorter
from heapq import heapify, heappop, heappush
from typing import Literal, NamedTuple

from nosync_nb.trace.epochs import inclusive

UNBOUNDED = 2**63 - 1  # the upper of what needs no log


FailureName = Literal["kernel", "power", "disk"]


class Failure(Enum):
    """What is lost; everything a milder failure loses is lost too."""

    KERNEL = "kernel"
    POWER = "power"
    DISK = "disk"


class Frontier(NamedTuple):
    """How far a stage is complete, as inclusive epochs: in memory, on disk, on enough replicas.

    `replicas` is None where there are none.
    """

    memory: int
    disk: int
    replicas: int | None


class Prefixes(NamedTuple):
    """The upper of what survives each failure."""

    kernel: int
    power: int
    disk: int

    def after(self, failure: Failure) -> int:
        """The upper that survives a failure."""
        return int(getattr(self, failure.value))


class Vertex(NamedTuple):
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

    def own(self, failure: Failure) -> int:
        """The upper of what this stage gives again if its inputs do."""
        if not self.inputs:
            return max(self.logged.after(failure), self.replayable)
        defined = self.defined.after(failure)
        if self.determinate:
            return defined
        kept = max(self.logged.after(failure), self.nondeterminants.after(failure))
        return min(defined, kept)


class Survival(NamedTuple):
    """What a failure leaves of a stage: uppers of what is `exact` and of the log that is `kept`."""

    exact: int
    kept: int


def survivals(nodes: Mapping[str, Vertex], failure: Failure) -> dict[str, Survival]:
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
        name: Survival(exact[name], min(node.logged.after(failure), exact[name]))
        for name, node in nodes.items()
    }


def recovery_upper(nodes: Mapping[str, Vertex], failure: Failure) -> int:
    """The upper of the epochs that all stages have again after a failure; UNBOUNDED if all do."""
    return min((s.exact for s in survivals(nodes, failure).values()), default=UNBOUNDED)


def resumable(output: int, internal: Iterable[int]) -> int:
    """The upper from which a stage can go on: that of its output and all its internal traces."""
    return min((output, *internal))


def droppable(consumers: Iterable[int], promised: int = UNBOUNDED) -> int:
    """The upper below which an input's boundaries may be dropped or moved to a lower level.

    Args:
        consumers: for each consumer its resumable upper at the level it promises.
        promised: what readers, branches and retention still hold, as an upper.
    """
    return min((promised, *consumers))


class Saved(NamedTuple):
    """A stage or input as recovery finds it, after its log was cut to what is kept.

    Args:
        inputs: names of what it reads; none for an input of the session.
        output: upper of its output.
        resumable: upper from which it can go on; never beyond `output`. The state of a
            nondeterminate stage is logged with its output, or it would rewrite what was shown.
        since: the first epoch it can be read at.
    """

    inputs: tuple[str, ...]
    output: int
    resumable: int
    since: int = 0


class RecoveryStep(NamedTuple):
    """What recovery does with a stage.

    Args:
        action: `read` runs nothing. `extend` keeps what is there and runs the epochs from
            `start`. `recompute` starts from nothing: epoch `start` at once, as the sum of all
            before it, then epoch by epoch.
        start: the first epoch that is run.
        since: the first epoch the stage can be read at afterwards.
        runs: how many epochs are run.
    """

    action: Literal["read", "extend", "recompute"]
    start: int
    since: int
    runs: int


def plan(
    stages: Mapping[str, Saved], target: int, wanted: Iterable[str] | None = None
) -> dict[str, RecoveryStep]:
    """Decides the least work that brings stages to the upper `target`.

    A stage whose log reaches the target is read, and what only it needs is left alone. One that
    is behind goes on where it can, if every input can still be read as of the epoch before;
    otherwise it starts again at the first epoch that all its inputs can be read at.

    Args:
        stages: acyclic, since a loop is inside one stage; inputs must reach the target.
        wanted: the stages that are asked for; default all.

    Returns: a step for each wanted stage and those they need, inputs of a stage before it.

    Cost: O(edges).
    """
    order = TopologicalSorter({name: stage.inputs for name, stage in stages.items()})
    steps: dict[str, RecoveryStep] = {}
    for name in order.static_order():
        stage = stages[name]
        assert stage.resumable <= stage.output
        lowest = max((steps[q].since for q in stage.inputs), default=0)
        assert lowest < target
        if stage.resumable >= target:
            steps[name] = RecoveryStep("read", target, stage.since, 0)
            continue
        assert stage.inputs, f"input '{name}' ends at {stage.output}, before {target}"
        if stage.resumable > 0 and lowest <= inclusive(stage.resumable):
            runs = target - stage.resumable
            steps[name] = RecoveryStep("extend", stage.resumable, stage.since, runs)
        else:
            steps[name] = RecoveryStep("recompute", lowest, lowest, target - lowest)
    if wanted is None:
        return steps
    needed: set[str] = set()
    waiting = list(wanted)
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += () if steps[name].action == "read" else stages[name].inputs
    return {name: step for name, step in steps.items() if name in needed}
