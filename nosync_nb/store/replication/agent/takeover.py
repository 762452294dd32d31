"""Polling: what replicas say to an owner who begins, and whether he may ship then.

A log's disk may have come back from an old copy. What its owner ships is of a later generation than
what replicas hold of the log that was lost, and would be taken for the better copy.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

from nosync_nb.errors import DurabilityError, FencedError
from nosync_nb.store.replication.config import read_quorum


class ReplicaAheadError(FencedError):
    """Replicas hold frames that this log does not, and that may have been told to be safe."""

    kind = "ahead"


class QuorumPendingError(DurabilityError):
    """Too few replicas have told yet whether they hold frames that this log does not."""

    kind = "undecided"


class DuplicateReplicaError(DurabilityError):
    """Two URLs lead to one copy, which is one replica and not two."""

    kind = "twice"


class CopyClaims:
    """To which copy each replica's URL leads. Any thread may ask.

    Failure: a folder is named as one replica, and a server that keeps its copies there as another.
    Both acknowledge, and an epoch on one disk counts as one on two.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._lock = threading.Lock()
        self._known: dict[int, str] = {}

    def claim(self, replica: int, incarnation: str) -> None:
        """Takes a copy for one of the replicas.

        Raises:
            TwiceError: it is that of another one.
        """
        with self._lock:
            self._known.pop(replica, None)
            for other, known in self._known.items():
                if known == incarnation:
                    raise DuplicateReplicaError(
                        f"it leads to the copy that '{self._urls[other]}' keeps, and does not count"
                        " a second time",
                        hint=f"`%dd replicas remove` one of the two; if somebody has copied the"
                        f" folder of '{self._urls[other]}' there, delete this one: it is filled"
                        " anew",
                    )
            self._known[replica] = incarnation


class TakeoverVote(NamedTuple):
    """What a replica says to an owner who begins.

    Attributes:
        ahead: what it has that his log lacks, in words; empty if nothing.
        generation: of the last owner whose frames it has; 0: it holds nothing.
        damage: why nothing of that can be had from it; empty if it can.
        torn: it holds bytes after what can be read of it: the rest of a frame that it never
            acknowledged, or one that it did, and that is damaged.
    """

    ahead: str
    generation: int
    damage: str = ""
    torn: bool = False


class TakeoverPoll:
    """Whether an owner has all that was ever on a quorum of replicas. Any thread may ask.

    He has if so many replicas hold nothing that he lacks that a quorum cannot be among the others;
    what those hold was never safe, and the log goes on over it. He lacks something if a quorum
    holds such, or may have held it. Until either is known it is waited for more of them.

    Failure: a disk comes back from an old copy, and one of two replicas is empty. It holds nothing
    that the owner lacks, and did once. So what is empty tells nothing, unless all have been asked
    and none is ahead.

    Nor is it shipped to before, though it was made for this owner and nothing in it could be lost,
    whatever the quorum. Failure: 1. It gets what the old copy has, of a later generation than what
    the silent ones hold. 2. The disk is gone, and all answer. 3. The copy of the latest owner is
    taken, as every owner had all that was safe before he shipped anything. A log that has never
    had replicas cannot be told from a copy of before it had; who knows that it is none removes
    those that do not answer, and adds them again when they do.

    A replica that is ahead with frames of an earlier owner than another one has is behind: that
    owner had all that was safe before he shipped anything.

    Failure: a byte changes in what a replica has, which ends before what was safe then; a disk
    comes back from a copy that ends there too. This replica holds nothing that the log lacks, and
    maybe that of the latest owner. Hence one that is torn is no witness against one that is ahead.
    """

    def __init__(self, replicas: int, needed: int) -> None:
        self._replicas, self._quorum = replicas, needed
        self._lock = threading.Lock()
        self._votes: dict[int, TakeoverVote] = {}

    def ask(self, replica: int, vote: TakeoverVote) -> None:
        """Takes the vote of a replica; returns if it may be shipped to.

        Raises:
            AheadError: the log must not go on.
            UndecidedError: it is not known yet.
        """
        with self._lock:
            self._votes[replica] = vote
            votes = list(self._votes.values())
        needed, every = read_quorum(self._replicas, self._quorum), len(votes) == self._replicas
        level = [each for each in votes if each.generation and not each.ahead]
        sound = [each for each in level if not each.torn]
        latest = max((each.generation for each in sound), default=0)
        ahead = [each for each in votes if each.ahead and each.generation >= latest]
        told = sum(each.generation > 0 for each in votes)
        if len(sound) >= needed or (not ahead and (every or told >= needed)):
            return
        if vote in ahead and (every or len(ahead) >= self._quorum):
            raise ReplicaAheadError(vote.ahead, hint=_remedy(ahead))
        why = f"{len(sound)} of {needed} replicas have told that this log lacks nothing"
        silent = self._replicas - len(votes)
        if silent and not vote.generation:
            why += f"; it is empty itself, which tells nothing while {silent} do not answer"
        raise QuorumPendingError(
            vote.ahead or why,
            hint="it goes on when more of the replicas answer; if this log's disk is no old copy,"
            " those that do not can be removed (%dd replicas remove URL), and added again later",
        )


def _remedy(ahead: Sequence[TakeoverVote]) -> str:
    """What people can do whose log lacks what replicas have."""
    if all(each.damage for each in ahead):
        return (
            f"its copy cannot be read back ({ahead[-1].damage}): bring back a replica that has it"
            " whole, or restore the copy; to go on without what is missing, remove the replica"
            " (%dd replicas remove URL), delete its copy, and add it again"
        )
    return (
        "close the session, move the log's folder away, and open it with the replicas: they have"
        " what is missing"
    )
