"""Voting: what one replica has of a log and beyond it, as its owner is told (polling.py).

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

from collections.abc import Mapping, Sequence

from nosync_nb.errors import CorruptLogError
from nosync_nb.store.log import checkpoint, frames, segments
from nosync_nb.store.log.frames import Mark
from nosync_nb.store.log.segments import HEADER_BYTES, Segment
from nosync_nb.store.replication import file_layout
from nosync_nb.store.replication.agent.log_source import LogSource, LogView
from nosync_nb.store.replication.agent.takeover import TakeoverVote
from nosync_nb.store.replication.consistency import examine_copy, foreign_frames
from nosync_nb.store.replication.protocol import Replica

Own = Sequence[tuple[Segment, int]]
"""Segments of a replica, and how much of each counts."""


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
