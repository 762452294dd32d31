"""Determines how much of a copy of a log can be read back, from its frames and checkpoints.

A copy that is being filled has segments or a checkpoint without the files that belong to them. A
copy of an earlier owner may end in torn frames. The result is a state that was acknowledged, or a
later one. Files of rows are only checked for presence and size. Their content is verified when they
are fetched (lazy_fetch.py).

Failure: 1. A replica receives the frames before a checkpoint and the first frames of the latest
owner, and the keeper dies before it sends the checkpoint. 2. The disk is lost. The readable part of
this copy ends before the latest owner's first frame, and before frames of the previous owner that
other replicas acknowledged. Hence a copy counts as the latest owner's only if everything that this
owner began with can be read from it.

Failure: 1. After a power loss an owner begins, and rewrites in its own segment the frames that may
not have been synced. 2. A replica receives this segment, and a byte of it changes there. 3. The
disk is lost. The readable part of this copy is the latest owner's, but it ends before frames of the
previous owner that other replicas acknowledged. It is a prefix of their copies. Hence a copy can
tell if another one is its prefix (`ReadableExtent.continues`), and a restore prefers the longer
copy (restore.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from typing import NamedTuple

from nosync_nb.errors import CorruptLogError, DurabilityError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.log import checkpoint, recovery, segments
from nosync_nb.store.log.checkpoint import Checkpoint
from nosync_nb.store.log.frames import DIGEST_BYTES, TRAILER_BYTES, Frame, Mark
from nosync_nb.store.log.segments import HEADER_BYTES, Chain, Segment
from nosync_nb.store.records import file_references
from nosync_nb.store.records.file_references import FileReference, Namers
from nosync_nb.store.replication import file_layout
from nosync_nb.store.replication.protocol import ReadableCopy
from nosync_nb.store.replication.remote_call import Beat, copy_file
from nosync_nb.store.safe_decoding import guarded_decoding
from nosync_nb.store.verification.file_checks import FrameGap, walk_runs


class DuplicateReplicaError(DurabilityError):
    """Two URLs lead to one copy, which counts as one replica."""

    kind = "twice"


class CopyClaims:
    """Records the copy that each replica's URL leads to. Any thread may call.

    Failure: a folder is configured as one replica, and a server with its copies in that folder as
    another. Both acknowledge, and an epoch on one disk counts as one on two.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._lock = threading.Lock()
        self._copies: dict[int, str] = {}

    def claim(self, replica: int, incarnation: str) -> None:
        """Records the copy that a replica's URL leads to.

        Args:
            replica: the index of the replica.
            incarnation: the id of the copy.

        Raises:
            DuplicateReplicaError: the URL of another replica leads to the same copy.
        """
        with self._lock:
            self._copies.pop(replica, None)
            for other, copy in self._copies.items():
                if copy == incarnation:
                    raise DuplicateReplicaError(
                        f"it is the same copy as '{self._urls[other]}', which counts only once",
                        hint="run `%dd replicas remove` for one of the two; if it is a copy of the"
                        f" folder of '{self._urls[other]}', delete it, and it is filled again",
                    )
            self._copies[replica] = incarnation


class ReadableExtent(NamedTuple):
    """The readable part of a copy: its files with their sizes, and its last frame.

    Attributes:
        sizes: the number of readable bytes of each file of frames, by name.
        rows: the files of rows that this part names. Each exists at this replica or at another one.
            Only a local file may be missing; see `file_references`.
        generation: the generation of the last owner that had this whole part and shipped to this
            replica.
        end: the mark after the last frame.
        heads: the segments up to `end`, ascending, including those before the checkpoint.
    """

    url: str
    replica: ReadableCopy
    sizes: dict[str, int]
    rows: dict[str, FileReference]
    generation: int
    end: Mark
    heads: tuple[Segment, ...]

    def continues(self, other: ReadableExtent) -> bool:
        """Returns True if the other copy is a prefix of this one, as far as this copy can tell.

        Raises:
            CorruptLogError, DurabilityError: this copy cannot be read any more.

        Cost: one short read.
        """
        mark = other.end
        if mark.seq >= self.end.seq:
            return False
        at = [each for each in self.heads if each.start.offset <= mark.offset]
        if not at or at[-1].start.offset == mark.offset:
            return bool(at) and at[-1].start == mark
        place = at[-1].local(mark.offset) - TRAILER_BYTES
        return self.replica.read(at[-1].name, place, DIGEST_BYTES) == mark.chain


class SegmentRun(NamedTuple):
    """Consecutive segments of a replica, and the local folder that holds their bytes.

    Attributes:
        held: the sizes of the replica's files, by name.
        there: the sizes of the files of each replica that rows can be read from.
        live: the segments, ascending.
        beat: called whenever there is progress.
    """

    url: str
    replica: ReadableCopy
    folder: str
    held: Mapping[str, int]
    there: Sequence[Mapping[str, int]]
    live: Sequence[Segment]
    beat: Beat


def check_log(copy: ReadableExtent, log_id: bytes) -> None:
    """Checks that the frames of a copy are those of one log.

    Failure: the folders of two copies are swapped in a replica. 1. The disk of a log is lost. 2.
    Its copy is requested by its id. 3. The rows of the other log are restored under this name.

    Raises:
        CorruptLogError: the frames belong to another log.
    """
    for head in copy.heads:
        if head.log_id != log_id:
            raise foreign_frames(head.log_id, log_id)


def foreign_frames(other_id: bytes, log_id: bytes) -> CorruptLogError:
    """Returns the error for a copy whose frames belong to another log."""
    return CorruptLogError(
        f"the copy of log {log_id.hex()} holds frames of log {other_id.hex()}",
        hint=f"rename the folder to '{other_id.hex()}', or delete the copy '{log_id.hex()}', which"
        " is then filled again from the log",
    )


def examine_copy(
    files: Files,
    url: str,
    replica: ReadableCopy,
    others: Sequence[Mapping[str, int]] = (),
    beat: Beat = lambda *_: None,
) -> ReadableExtent:
    """Returns the readable part of a copy: its newest complete checkpoint and the frames after it.

    A copy that is catching up has segments or a checkpoint without their files. These are ignored,
    and the state that was acknowledged before is used. The result ends before the first frame that
    names a required file which no replica holds. Frames are downloaded if the copy is not in a
    local folder.

    Args:
        others: the sizes of the files of other replicas, from which rows can be read as well.
        beat: called whenever there is progress.

    Raises:
        CorruptLogError: no part of the copy can be read back.
    """
    sizes = replica.held().files
    holdings = (sizes, *others)
    if replica.folder is not None:
        return examine_folder(files, url, replica, replica.folder, sizes, holdings, beat)
    folder = files.temporary_folder("nosync-frames-")
    try:
        for name in filter(file_layout.is_frames, sizes):
            copy_file(files, replica, name, sizes[name], file_layout.file_path(folder, name), beat)
        return examine_folder(files, url, replica, folder, sizes, holdings, beat)
    finally:
        files.remove_folder(folder)


def examine_folder(
    files: Files,
    url: str,
    replica: ReadableCopy,
    folder: str,
    held: Mapping[str, int],
    there: Sequence[Mapping[str, int]],
    beat: Beat = lambda *_: None,
) -> ReadableExtent:
    """Returns the readable part of a copy whose frames are in a local folder; see `examine_copy`.

    Args:
        held: the sizes of the copy's files; its segments and checkpoints must be in `folder`.
        there: the sizes of the files of each replica from which rows can be read.
    """
    names = list(held)
    states = _checkpoints(files, folder, names, beat)
    why = ""
    for newest in reversed(segments.segment_names(names)):
        path, broken = segments.previous_segments(files, folder, newest, 0)
        missing = segments.file_name(*(broken or newest)) if broken or not path else None
        short = [
            index
            for index, (one, after) in enumerate(pairwise(path))
            if held[one.name] < one.local(after.start.offset)
        ]
        if short:
            path, missing = path[short[-1] + 1 :], path[short[-1]].name
        chain = Chain(path, [], None)
        stretch = SegmentRun(url, replica, folder, held, there, chain.live, beat)
        for name, state in states if path else ():
            if _is_usable(files, folder, chain, state, there) and _holds_up_to(
                chain, held, state.mark
            ):
                return _readable_part(files, stretch, name, state)
        if missing is None:
            return _readable_part(files, stretch, None, None)
        why = why or f"'{missing}' is missing, or too short"
    raise CorruptLogError(f"the copy is not a complete log: {why or 'it has no segments'}")


def _checkpoints(
    files: Files, folder: str, names: Iterable[str], beat: Beat
) -> list[tuple[str, Checkpoint]]:
    """Returns the readable checkpoints, the newest first."""
    states = []
    for name in checkpoint.checkpoint_names([*names]):
        state = checkpoint.read_checkpoint(files, folder, name)
        beat()
        if isinstance(state, Checkpoint):
            states.append((name, state))
    return states


def _is_usable(
    files: Files,
    folder: str,
    chain: Chain,
    state: Checkpoint,
    holdings: Sequence[Mapping[str, int]],
) -> bool:
    """Returns True if a checkpoint belongs to a chain, and all files that it requires exist."""
    if state.mark.offset < chain.live[0].start.offset:
        return False
    if not recovery.tail_holds(files, folder, chain, state.mark):
        return False
    return _NamedFiles(holdings, state).complete


def _holds_up_to(chain: Chain, sizes: Mapping[str, int], mark: Mark) -> bool:
    """Returns True if a copy has every byte up to a mark of a chain.

    Failure: 1. A replica's copy is truncated within the end of a frame, after its digest. 2. It has
    the checkpoint of that frame. 3. The disk is lost. That frame cannot be copied, so the whole
    copy cannot be used.
    """
    last = [one for one in chain.live if one.start.offset < mark.offset][-1:]
    return all(sizes[one.name] >= one.local(mark.offset) for one in last)


class _NamedFiles:
    """The files that a copy names up to a frame, and the required ones that are missing.

    Args:
        holdings: the sizes of the files of each replica, by name.
        state: the checkpoint with which the copy begins; None if it begins with a segment.

    Attributes:
        rows: all named files, by name.
    """

    def __init__(self, holdings: Sequence[Mapping[str, int]], state: Checkpoint | None) -> None:
        self._holdings = holdings
        self.rows: dict[str, FileReference] = {}
        self._local_numbers: frozenset[int] = file_references.NO_NUMBERS
        self._missing: dict[str, set[int]] = {}
        if state is not None:
            with guarded_decoding("a checkpoint"):
                contents = file_references.files_of_checkpoint(state.payload)
                self._add(contents.files, contents.namers, contents.said)

    def follow(self, frame: Frame) -> None:
        """Adds the files of the next frame."""
        with guarded_decoding(f"frame {frame.position.seq}"):
            _, files, namers, requirement = file_references.files_of_frame(frame.payload)
            self._add(files, namers, requirement)

    def _add(
        self,
        files: Mapping[str, FileReference],
        namers: Namers,
        requirement: file_references.ReplicationRequirement | None,
    ) -> None:
        for name, wanted in files.items():
            if not any(map(wanted.held_in, self._holdings)):
                self._missing.setdefault(name, set()).update(namers[name])
        self.rows = {**files, **self.rows} if files else self.rows
        self._local_numbers = self._local_numbers if requirement is None else requirement.numbers

    @property
    def complete(self) -> bool:
        """True if each required file exists at some replica."""
        return all(some <= self._local_numbers for some in self._missing.values())


def _readable_part(
    files: Files, stretch: SegmentRun, name: str | None, state: Checkpoint | None
) -> ReadableExtent:
    """Returns the part of a copy from a checkpoint to the last usable frame."""
    all_sizes = stretch.held
    start = state.mark if state else stretch.live[0].start
    first = max(i for i, s in enumerate(stretch.live) if s.start.offset <= start.offset)
    live = stretch.live[first:]
    named = _NamedFiles(stretch.there, state)
    rows, end = named.rows, start
    for frame in _frames(files, stretch, live, start):
        named.follow(frame)
        if named.complete:
            rows, end = named.rows, frame.end
    acknowledged = stretch.replica.acknowledged()
    if end.seq < acknowledged:
        raise CorruptLogError(
            f"'{stretch.url}' is damaged: it acknowledged frame {acknowledged}, but ends at"
            f" {end.seq}",
            hint="use another replica; this one is repaired from the log",
        )
    sizes, generation = {}, 0
    for index, segment in enumerate(live):
        after = live[index + 1].start.offset if index + 1 < len(live) else end.offset
        if segment.start.offset <= end.offset:
            sizes[segment.name] = segment.local(max(segment.start.offset, min(after, end.offset)))
            generation = segment.generation
    if name is not None:
        sizes[name] = all_sizes[name]
    heads = tuple(one for one in stretch.live if one.start.offset <= end.offset)
    return ReadableExtent(stretch.url, stretch.replica, sizes, rows, generation, end, heads)


def _frames(
    files: Files, stretch: SegmentRun, live: Sequence[Segment], start: Mark
) -> Iterator[Frame]:
    """Yields the frames after a mark, up to the first one that does not follow its predecessor.

    Frames record how far the log was synced on its own disk. That says nothing about this copy,
    whose later bytes were not synced.
    """
    end = start
    for index, segment in enumerate(live):
        if end.offset < segment.start.offset or (
            end.offset == segment.start.offset and end != segment.start
        ):
            return
        stop = segment.start.offset + stretch.held[segment.name] - HEADER_BYTES
        if index + 1 < len(live):
            stop = min(stop, live[index + 1].start.offset)
        with closing(files.open(file_layout.file_path(stretch.folder, segment.name))) as file:
            for each in walk_runs(file.read_at, segment, stop, start=end, resume=False):
                stretch.beat()
                if isinstance(each, FrameGap):
                    return
                yield from each.frames
                end = each.frames[-1].end
