"""Determines which epochs each durability level has, and which epochs survive a failure.

The functions are pure. They read no log, run no stage and know no schema.

`DefinitionOffset` and `EpochOffsets` map definitions and epochs to frames of the log, and so to the
contents of a durability level.

`DefinitionOffset`: an epoch does not record how it was computed. If all epochs of a log are on a
replica without its definition, they are useless there: a restored session would have no such stage.
A log keeps its number when the stage is renamed or becomes an earlier version. Its contents are
restored under the name that it had.

`EpochOffsets`: frame numbers only grow. Epoch numbers do not, because a session may be rewound to
an earlier one.

`exact_uppers` computes which epochs survive a failure. Internally progress is an *upper*: the
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

import bisect
from collections.abc import Mapping
from enum import Enum
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from nosync_nb.dataflow.stage import DISK

UNBOUNDED = 2**63 - 1  # the upper of a stage that needs no log


FailureName = Literal["kernel", "power", "disk"]


class FailureClass(Enum):
    """The extent of a failure; each class loses everything that a milder one loses."""

    KERNEL = "kernel"
    POWER = "power"
    DISK = "disk"


class Frontier(NamedTuple):
    """The progress of a stage, as inclusive epochs.

    Attributes:
        memory: the last epoch in the session.
        disk: the last epoch that is on its disk, so that it survives a loss of power.
        replicas: the last epoch on enough replicas; `None` without replicas.

    Examples:
        >>> session.sync("disk")
        >>> session.frontiers["late"].disk
        1
    """

    memory: int
    disk: int
    replicas: int | None


class FrontierNode(NamedTuple):
    """One stage or input in the recovery calculus, for one failure.

    Args:
        inputs: the names of its inputs; empty for an input of the session.
        logged: the upper of the part of its log that survives.
        determinate: True if another run gives the same rows.
        nondeterminants: the upper up to which the seeds, clocks and answers that it used survive.
        replayable: the upper that the source of an input can deliver again, identically.
        defined: the upper without the last change of its definition, if the failure loses this
            change; otherwise unbounded.
    """

    inputs: tuple[str, ...]
    logged: int
    determinate: bool = True
    nondeterminants: int = 0
    replayable: int = 0
    defined: int = UNBOUNDED

    @property
    def own_upper(self) -> int:
        """The upper that this stage reproduces if its inputs do."""
        if not self.inputs:
            return max(self.logged, self.replayable)
        if self.determinate:
            return self.defined
        return min(self.defined, max(self.logged, self.nondeterminants))


def exact_uppers(nodes: Mapping[str, FrontierNode]) -> dict[str, int]:
    """Returns the upper of the exact prefix of each stage. Cycles are allowed.

    The lowest bound is propagated downstream first, so the first bound that reaches a stage is the
    least.

    Cost: O(edges + stages log stages), about 1 ms for 1,000 stages.
    """
    readers: dict[str, list[str]] = {}
    own = {}
    for name, node in nodes.items():
        own[name] = node.own_upper
        for source in node.inputs:
            readers.setdefault(source, []).append(name)
    exact: dict[str, int] = {}
    for start in sorted(own, key=own.__getitem__):
        bound, reached = own[start], [start]
        while reached:
            name = reached.pop()
            if name not in exact:
                exact[name] = bound
                reached += readers.get(name, ())
    return exact


class DefinitionOffset(NamedTuple):
    """The frame that defines a log, and the parts of the log that do not depend on it.

    Attributes:
        frame: the number of the frame.
        before: the upper of the log without that frame.
        owed: the frame at which replicas must begin to have the log; `NEVER` if they need not.
        held: the upper that replicas had before that, for a log with demoted durability.
    """

    frame: int
    before: int = 0
    owed: int = 0
    held: int = 0

    def upper(self, frames: int, upper: int) -> int:
        """Returns the upper of a log at a level that has the frames up to `frames`.

        Args:
            upper: the full upper of the log.
        """
        return upper if self.frame <= frames else min(self.before, upper)

    def owes(self, frames: int, upper: int) -> int:
        """Returns the upper of a log at replicas that have acknowledged frames up to `frames`."""
        full = self.upper(frames, upper)
        return full if self.owed <= frames else min(self.held, full)


NEVER = 2**63 - 1
"""A frame number that no level reaches."""

NOWHERE = DefinitionOffset(NEVER)
"""The offset of a log without a known definition."""


def offsets_after_definition(
    known: Mapping[int, DefinitionOffset],
    before: Mapping[str, Any],
    catalog: Mapping[str, Any],
    frame: int,
) -> dict[int, DefinitionOffset]:
    """Returns the offset of each named collection after a definition, by log.

    Without the definition, a stopped stage that resumes has the epochs up to its stop.

    Args:
        known: the offsets before the definition.
        before: the previous catalog; empty for the first definition.
        catalog: the catalog of the definition.
        frame: the number of the definition's frame.

    Cost: O(stages), about 100 ns each.
    """
    stages = catalog.get("stages", ())
    on_disk = [s for s in stages if s["options"].get("persist") == DISK or "scaled" in s]
    local = {s["name"]: s.get("scaled", -1) + 1 for s in on_disk if _is_on_disk_alone(s)}
    uppers = {s["name"]: s["life"]["since"] + 1 for s in _stopped_stages(before)}
    still = {s["name"] for s in _stopped_stages(catalog)}
    defined = {}
    for node in catalog["nodes"]:
        log, name = node["log"], node["name"]
        if name is None or log is None:
            continue
        if log not in known:
            each = DefinitionOffset(frame)
        elif name in uppers and name not in still:
            each = known[log]._replace(frame=frame, before=uppers[name])
        else:
            each = known[log]
        if (each.owed == NEVER) != (name in local):
            owed, held = (NEVER, local[name]) if name in local else (frame, each.held)
            each = each._replace(owed=owed, held=held)
        defined[log] = each
    return defined


def _is_on_disk_alone(stage: Mapping[str, Any]) -> bool:
    """Returns True if replicas need not have a stage at level `disk`; see `Stage.on_disk`."""
    if stage["options"]["nondeterministic"] or stage.get("signer"):
        return False
    return bool(stage["life"]["is"] == "live")


def _stopped_stages(catalog: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [s for s in catalog.get("stages", ()) if s["life"]["is"] == "stale"]


class EpochOffsets:
    """Maps epochs to the frames of the log, and so to the epochs on disk for given frames.

    A frame contains an epoch or something else, for example a definition. While each frame contains
    the epoch after that of the previous frame, no entry is added. A *run* of such frames is
    represented by its first frame and epoch. Only the runs that are not on disk are retained.

    Recording an epoch twice changes nothing.

    Args:
        epoch: the last epoch that is already on disk.
    """

    __slots__ = ("_state",)

    def __init__(self, epoch: int = 0) -> None:
        runs: tuple[tuple[int, int], ...] = ((0, epoch),)
        self._state = runs, epoch  # one reference, so that an update is atomic

    def note(self, seq: int, epoch: int, durable: int) -> None:
        """Records the frame of the next epoch, and the last frame that is on disk.

        Cost: below 1 us.
        """
        runs, last = self._state
        if epoch <= last:
            return
        if epoch - runs[-1][1] != seq - runs[-1][0]:
            first = max(0, bisect.bisect_right(runs, durable, key=itemgetter(0)) - 1)
            runs = (*runs[first:], (seq, epoch))
        self._state = runs, epoch

    def drop_after(self, epoch: int) -> None:
        """Removes the epochs after `epoch`, because a rewind has undone them.

        `epoch` is on disk as soon as its own frame is. The frame of the rewind is not recorded,
        because without it the undone epochs would be valid again.
        """
        runs = tuple(run for run in self._state[0] if run[1] <= epoch)
        self._state = runs or ((0, epoch),), epoch

    def upto(self, durable: int) -> int:
        """Returns the last epoch on disk, if frames up to `durable` are on disk.

        IMPORTANT: read `durable` from the log before this call, so that it is not newer than these
        runs.
        """
        runs, last = self._state
        at = bisect.bisect_right(runs, durable, key=itemgetter(0)) - 1
        if at + 1 < len(runs):
            last = runs[at + 1][1] - 1
        seq, epoch = runs[max(at, 0)]
        return min(max(durable - seq, 0) + epoch, last)

    def __len__(self) -> int:
        return len(self._state[0])
