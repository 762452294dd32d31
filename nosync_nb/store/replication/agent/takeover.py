"""Decides if an owner may ship: collects the votes of the replicas on frames that its log lacks.

A log's disk may have been restored from an old copy. The frames that its owner ships have a later
generation than the replicas' frames of the lost log, and would be taken for the better copy. So
each replica has a vote: its frames are compared with the log (`vote_of_replica`). `TakeoverPoll`
decides from the votes.

Failure: a disk is restored from an old copy, and its owner writes as many frames as the replica has
beyond it. The owner is refused. The next owner begins after all of these frames, where nothing
differs. Hence all frames of earlier owners at the replica are compared with the log.

Failure: 1. A replica receives the frames before a checkpoint that made files obsolete which these
frames name, and the keeper dies before it sends the checkpoint. 2. The disk is lost, and the log is
restored from its readable part, which ends before those frames. 3. The replica holds frames that
the log lacks forever, because they cannot be read by anyone. Hence a replica counts as ahead only
with frames that can be read back from it alone. It has acknowledged no others, and the owner that
shipped them had everything that was acknowledged before.

Failure: a replica is emptied, and the keeper that fills it dies. It holds few frames, and held
more. Hence it does not testify that nothing is lacking before it has acknowledged a frame, as if it
were still empty.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nosync_nb.errors import CorruptLogError, DurabilityError, FencedError
from nosync_nb.store.log import checkpoint, segments
from nosync_nb.store.log.frames import Mark
from nosync_nb.store.log.segments import HEADER_BYTES, Segment
from nosync_nb.store.replication import file_layout
from nosync_nb.store.replication.agent.log_source import LogSource, LogView
from nosync_nb.store.replication.config import read_quorum
from nosync_nb.store.replication.consistency import examine_copy, foreign_frames
from nosync_nb.store.replication.protocol import Replica
from nosync_nb.store.verification.file_checks import FrameGap, walk_runs

Own = Sequence[tuple[Segment, int]]
"""Segments of a replica, each with the number of its bytes that are part of the log."""


class ReplicaAheadError(FencedError):
    """Replicas hold frames that this log lacks, and that may have been reported as safe."""

    kind = "ahead"


class QuorumPendingError(DurabilityError):
    """Too few replicas have voted on frames that this log may lack."""

    kind = "undecided"


class TakeoverVote(NamedTuple):
    """The vote of a replica on a new owner.

    Attributes:
        ahead: a description of the frames that the replica has and the owner's log lacks; empty if
            there are none.
        generation: the generation of the last owner whose frames the replica has; 0 if it is not
            ahead and has acknowledged nothing.
        damage: the reason why the frames in `ahead` cannot be read from it; empty if they can.
        torn: True if unreadable bytes follow the readable part: the rest of a frame that was never
            acknowledged, or a damaged frame that was acknowledged.
    """

    ahead: str
    generation: int
    damage: str = ""
    torn: bool = False


class TakeoverPoll:
    """Decides if an owner has all frames that were ever on a quorum of replicas; thread-safe.

    The owner has them if enough replicas hold nothing beyond its log, so that the others cannot
    form a quorum. Frames of those others were never safe, and the log overwrites them. The owner
    lacks frames if a quorum holds such frames or may have held them. Until either is known, the
    poll waits for more votes.

    Failure: a disk is restored from an old copy, and one of two replicas is empty. It holds nothing
    beyond the log, but once did. So an empty replica does not testify, unless all have voted and
    none is ahead.

    The owner does not ship to an empty replica before that, although nothing in it could be lost.
    Failure:
    1. It receives the frames of the old copy, in a later generation than the frames of the silent
    replicas. 2. The disk is lost, and all replicas answer. 3. The copy of the latest owner is
    taken, because every owner had all safe frames before it shipped. A log that has never had
    replicas looks like an older copy of a log that has. If the user knows that it is not a copy,
    they remove the silent replicas, and add them again when they answer.

    A replica that is ahead with frames of an earlier owner than those of another replica counts as
    behind. The later owner had all safe frames before it shipped anything.

    Failure: a byte changes in a replica's copy, so that its readable part ends before the last safe
    frame. A disk is restored from a copy that ends there too. This replica holds nothing that the
    log lacks, and maybe its frames are the latest owner's. Hence a torn replica does not testify
    against one that is ahead.
    """

    def __init__(self, replicas: int, needed: int) -> None:
        self._replicas, self._quorum = replicas, needed
        self._lock = threading.Lock()
        self._votes: dict[int, TakeoverVote] = {}

    def ask(self, replica: int, vote: TakeoverVote) -> None:
        """Adds the vote of a replica; returns normally if the owner may ship to this replica.

        Raises:
            ReplicaAheadError: the owner must not ship, because its log lacks frames.
            QuorumPendingError: more votes are needed.
        """
        with self._lock:
            self._votes[replica] = vote
            votes = list(self._votes.values())
        needed, every = read_quorum(self._replicas, self._quorum), len(votes) == self._replicas
        level = [each for each in votes if each.generation and not each.ahead]
        sound = [each for each in level if not each.torn]
        latest = max((each.generation for each in sound), default=0)
        ahead = [each for each in votes if each.ahead and each.generation >= latest]
        witnesses = sum(each.generation > 0 for each in votes)
        if len(sound) >= needed or (not ahead and (every or witnesses >= needed)):
            return
        if vote in ahead and (every or len(ahead) >= self._quorum):
            raise ReplicaAheadError(vote.ahead, hint=_ahead_hint(ahead))
        why = f"{len(sound)} of {needed} replicas have confirmed that this log is complete"
        silent = self._replicas - len(votes)
        if silent and not vote.generation:
            why += f"; this log is empty, and {silent} do not answer"
        raise QuorumPendingError(
            vote.ahead or why,
            hint="wait until more replicas answer; if this disk is not an old copy, remove those"
            " that do not answer (%dd replicas remove URL) and add them again later",
        )


def _ahead_hint(ahead: Sequence[TakeoverVote]) -> str:
    """Returns the hint for a log that lacks frames of replicas."""
    if all(each.damage for each in ahead):
        return (
            f"its copy cannot be read ({ahead[-1].damage}): reconnect a replica that has an"
            " intact copy, or restore this copy; to continue without the missing part, remove"
            " the replica (%dd replicas remove URL), delete its copy, and add it again"
        )
    return (
        "close the session, move the log's folder away, and open it with the replicas, which"
        " have the missing frames"
    )


def vote_of_replica(
    source: LogSource, replica: Replica, view: LogView, held: Mapping[str, int]
) -> TakeoverVote:
    """Compares the frames of a replica with a log.

    For frames before the log's checkpoint the ownership history decides (ownership_history.py).

    Args:
        held: the sizes of the replica's files, by name.

    Raises:
        CorruptLogError: the replica holds frames of another log.

    Cost: reads the headers and digests of the replica's segments. If digests differ, reads the
    frames as well.
    """
    chain = _complete_chain(source, replica, held)
    has_frames = any(e.segment.generation == source.generation for e in view.extents)
    why, torn = _frames_ahead(source, replica, chain) if has_frames else ("", False)
    generation, damage = chain[0][0].generation if chain else 0, ""
    if why:
        try:
            copy = examine_copy(source.files, "the replica", replica)
        except CorruptLogError as error:
            # A copy that is damaged before its last acknowledged frame counts as ahead, because
            # the unreadable frames may be safe ones that the log lacks.
            damage = str(error)
        else:
            heads = (one for one, _ in chain if one.generation == copy.generation)
            contained = source.holds(copy.end, next(heads, None))
            why, generation = "" if contained else why, copy.generation
    return TakeoverVote(why, generation if why or replica.acknowledged() else 0, damage, torn)


def _frames_ahead(source: LogSource, replica: Replica, chain: Own) -> tuple[str, bool]:
    """Returns a description of the frames that the log lacks, and True if the copy is torn.

    The description is empty if the log lacks no frame.
    """
    torn = False
    for segment, size in chain:
        if segment.generation >= source.generation:
            continue
        if not source.holds(segment.start, segment):
            why = f"the replica has frames after frame {segment.start.seq} that this log lacks"
            return why, torn
        local_size = source.size(segment.name)
        if (
            local_size is not None
            and local_size >= size
            and not _bytes_differ(source, replica, segment.name, size)
        ):
            continue
        end, damaged = _readable_end(replica, segment, size)
        torn = torn or damaged
        if end != segment.start and not source.holds(end, segment):
            why = (
                f"the replica holds frames up to {end.seq}, which this log lacks: its disk is older"
                " than the replica"
            )
            return why, torn
    return "", torn


def _readable_end(replica: Replica, segment: Segment, size: int) -> tuple[Mark, bool]:
    """Returns the mark after the intact frames of a segment, and True if damage follows."""
    end, stop = segment.start, segment.start.offset + size - HEADER_BYTES

    def read(offset: int, count: int) -> bytes:
        return replica.read(segment.name, offset, count)

    for each in walk_runs(read, segment, stop, resume=False):
        if isinstance(each, FrameGap):
            return end, True
        end = each.frames[-1].end
    return end, False


def _bytes_differ(source: LogSource, replica: Replica, name: str, size: int) -> bool:
    return source.digest(name, size) != replica.digest(name, size)


def _complete_chain(source: LogSource, replica: Replica, sizes: Mapping[str, int]) -> Own:
    """Returns the segments of the newest complete log of the replica, the newest first.

    A chain of segments is complete if it reaches back to the log's first segment or to a checkpoint
    of the replica. Others are ignored: they arrived while the replica caught up, cannot be read,
    and were never acknowledged.
    """
    heads = (
        replica.read(name, 0, checkpoint.HEADER_BYTES)
        for name in filter(file_layout.is_checkpoint, sizes)
    )
    marks = [mark for mark in map(checkpoint.mark_of, heads) if mark is not None]
    headers = _segment_headers(source, replica, sizes)
    for newest in sorted(headers, reverse=True):
        chain: list[tuple[Segment, int]] = []
        which: tuple[int, int] | None = newest
        stop: int | None = None
        while which is not None and which in headers:
            segment = headers[which]
            size = sizes[segment.name] if stop is None else segment.local(stop)
            if size > sizes[segment.name]:
                break
            chain.append((segment, size))
            which, stop = segment.before, segment.start.offset
        if which is None or any(_in_chain(mark, chain) for mark in marks):
            return chain
    return []


def _in_chain(mark: Mark, chain: Own) -> bool:
    """Returns True if a mark lies in consecutive segments, which are listed newest first."""
    (last, size), (first, _) = chain[0], chain[-1]
    end = last.start.offset + size - HEADER_BYTES
    return first.start.offset <= mark.offset <= end


def _segment_headers(
    source: LogSource, replica: Replica, sizes: Mapping[str, int]
) -> dict[tuple[int, int], Segment]:
    """Returns the segments of a replica whose headers are intact, by their keys."""
    headers = {}
    for name in filter(file_layout.is_segment, sizes):
        segment = segments.decode_header(replica.read(name, 0, HEADER_BYTES))
        if segment is None or segment.name != name:
            continue
        if segment.log_id != source.log_id:
            raise foreign_frames(segment.log_id, source.log_id)
        headers[segment.key] = segment
    return headers
