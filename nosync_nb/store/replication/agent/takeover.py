"""Polling: what replicas say to an owner who begins, and whether he may ship then.

A log's disk may have come back from an old copy. What its owner ships is of a later generation than
what replicas hold of the log that was lost, and would be taken for the better copy.

Voting: what one replica has of a log and beyond it, as its owner is told (polling.py).

Failure: a disk comes back from an old copy, and its owner writes as much as the replica has beyond
it. He is refused; the next owner begins behind all of that, where nothing differs. Hence all that
the replica has of earlier owners is held against the log.

Failure: 1. A replica gets the frames before a checkpoint, which has made files useless that these
name, and who ships dies before the checkpoint is sent. 2. The disk is lost, and the log is made
anew of what can be read back, which ends before those frames. 3. The replica holds frames that the
log lacks, for ever: nobody can read them. Hence it is ahead with what can be read back from it
alone: it has acknowledged no more, and what it acknowledged was shipped by an owner who had that.

Failure: a replica comes back empty, and who fills it dies. It holds little, and held more. Hence it
is no witness that nothing is lacking before it has acknowledged anything, as if it was empty still.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nosync_nb.errors import CorruptLogError, DurabilityError, FencedError
from nosync_nb.store.log import checkpoint, frames, segments
from nosync_nb.store.log.frames import Mark
from nosync_nb.store.log.segments import HEADER_BYTES, Segment
from nosync_nb.store.replication import file_layout
from nosync_nb.store.replication.agent.log_source import LogSource, LogView
from nosync_nb.store.replication.config import read_quorum
from nosync_nb.store.replication.consistency import examine_copy, foreign_frames
from nosync_nb.store.replication.protocol import Replica

Own = Sequence[tuple[Segment, int]]
"""Segments of a replica, and how much of each counts."""


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


def vote_of_replica(
    source: LogSource, replica: Replica, view: LogView, held: Mapping[str, int]
) -> TakeoverVote:
    """What the replica has of a log, and beyond it.

    What lies before the log's checkpoint is told by who wrote it (succession.py).

    Args:
        held: what the replica holds, with the sizes.

    Raises:
        CorruptLogError: it holds frames of another log.

    Cost: the headers of its segments and digests of them; if these differ, its frames are read.
    """
    own = _own(source, replica, held)
    begun = any(e.segment.generation == source.generation for e in view.extents)
    why, torn = _ahead(source, replica, own) if begun else ("", False)
    generation, damage = own[0][0].generation if own else 0, ""
    if why:
        try:
            copy = examine_copy(source.files, "the replica", replica)
        except CorruptLogError as error:
            # Damaged below what was acknowledged it cannot tell how much that was: it is ahead.
            damage = str(error)
        else:
            heads = (one for one, _ in own if one.generation == copy.generation)
            here = source.holds(copy.end, next(heads, None))
            why, generation = "" if here else why, copy.generation
    return TakeoverVote(why, generation if why or replica.acknowledged() else 0, damage, torn)


def _ahead(source: LogSource, replica: Replica, own: Own) -> tuple[str, bool]:
    """What a replica's own log has that this one lacks, in words, empty if nothing; and if torn."""
    torn = False
    for segment, size in own:
        if segment.generation >= source.generation:
            continue
        if not source.holds(segment.start, segment):
            why = f"the replica goes on after frame {segment.start.seq}, which this log lacks"
            return why, torn
        here = source.size(segment.name)
        if here is not None and here >= size and not _differs(source, replica, segment.name, size):
            continue
        data = replica.read(segment.name, HEADER_BYTES, size - HEADER_BYTES)
        theirs, damage = frames.scan_buffer(data, segment.start.offset, segment.start)
        torn = torn or damage is not None
        if theirs and not source.holds(theirs[-1].end, segment):
            why = (
                f"the replica holds frames up to {theirs[-1].position.seq}, which this log lacks:"
                " its disk is older than the replica"
            )
            return why, torn
    return "", torn


def _differs(source: LogSource, replica: Replica, name: str, size: int) -> bool:
    return source.digest(name, size) != replica.digest(name, size)


def _own(source: LogSource, replica: Replica, held: Mapping[str, int]) -> Own:
    """The segments of the newest log that the replica has whole.

    What it got in the middle of catching up it never acknowledged: of segments that lead back
    neither to the first one nor to a checkpoint nothing can be read.
    """
    heads = (
        replica.read(name, 0, checkpoint.HEADER_BYTES)
        for name in filter(file_layout.is_checkpoint, held)
    )
    marks = [mark for mark in map(checkpoint.mark_of, heads) if mark is not None]
    headers = _headers(source, replica, held)
    for newest in sorted(headers, reverse=True):
        chain: list[tuple[Segment, int]] = []
        which: tuple[int, int] | None = newest
        stop: int | None = None
        while which is not None and which in headers:
            segment = headers[which]
            size = held[segment.name] if stop is None else segment.local(stop)
            if size > held[segment.name]:
                break
            chain.append((segment, size))
            which, stop = segment.before, segment.start.offset
        if which is None or any(_between(mark, chain) for mark in marks):
            return chain
    return []


def _between(mark: Mark, chain: Own) -> bool:
    """Whether a mark lies in segments that follow each other, the newest of which is the first."""
    (last, size), (first, _) = chain[0], chain[-1]
    end = last.start.offset + size - HEADER_BYTES
    return first.start.offset <= mark.offset <= end


def _headers(
    source: LogSource, replica: Replica, held: Mapping[str, int]
) -> dict[tuple[int, int], Segment]:
    """The segments of a replica by their keys, as far as their headers can be read."""
    headers = {}
    for name in filter(file_layout.is_segment, held):
        segment = segments.decode_header(replica.read(name, 0, HEADER_BYTES))
        if segment is None or segment.name != name:
            continue
        if segment.log_id != source.log_id:
            raise foreign_frames(segment.log_id, source.log_id)
        headers[segment.key] = segment
    return headers
