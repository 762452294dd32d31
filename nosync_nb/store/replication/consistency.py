"""Examining: how much of a copy of a log can be read back, by what its frames and checkpoints say.

A copy that is being filled has segments or a checkpoint of which the rest is missing; one of an
earlier owner may have torn frames at its end. What is told here is a state that was acknowledged,
or a later one. Of files of rows it is only looked whether somebody has them, in their size: they
are verified when they are brought (bringing.py).

Failure: 1. A replica gets the frames before a checkpoint, and the first ones of the latest owner,
and who ships dies before the checkpoint is sent. 2. The disk is lost. What can be read back ends
before that owner begins, and is shorter than what others acknowledged of the one before him. Hence
a copy counts as the latest owner's if all that he began with can be read back of it.

Failure: 1. An owner begins after the power was lost, and writes again, in his own segment, what is
not known to be synced. 2. A replica gets it, and a byte of it changes there. 3. The disk is lost.
What can be read back of that copy is the latest owner's, and ends before what others acknowledged
of the one before him. It is a part of what they have. Hence a copy can tell whether another one is
part of it (`Copy.continues`), and who chooses takes what goes on from it (restoring.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from typing import NamedTuple

from nosync_nb.errors import CorruptLogError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.log import checkpoint, segments, tail
from nosync_nb.store.log.checkpoint import Checkpoint
from nosync_nb.store.log.frames import DIGEST_BYTES, TRAILER_BYTES, Frame, Mark
from nosync_nb.store.log.segments import Chain, Segment
from nosync_nb.store.records import file_references
from nosync_nb.store.records.file_references import FileReference, Namers
from nosync_nb.store.replication import file_layout
from nosync_nb.store.replication.protocol import ReadableCopy
from nosync_nb.store.replication.remote_call import Beat
from nosync_nb.store.replication.restore.lazy_fetch import copy
from nosync_nb.store.safe_decoding import guarded_decoding


class ReadableExtent(NamedTuple):
    """What of a replica can be read back: files with their sizes, and the last frame.

    Attributes:
        sizes: how many bytes of each file of frames are part of it.
        rows: the files of rows that it names, here, at another replica, or nowhere if they are
            owed last; see `owed`.
        generation: of the last owner who had all of it, and shipped to it.
        end: after the last frame.
        heads: of its segments up to there, ascending, with those before its checkpoint.
    """

    url: str
    replica: ReadableCopy
    sizes: dict[str, int]
    rows: dict[str, FileReference]
    generation: int
    end: Mark
    heads: tuple[Segment, ...]

    def continues(self, other: ReadableExtent) -> bool:
        """Whether it is the other copy and more, as far as it holds what the other ends with.

        Raises:
            CorruptLogError, DurabilityError: it cannot be read any more.

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
    """Segments of a replica that follow each other, and the folder that they can be read in."""

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
        CorruptLogError: they belong to another log.
    """
    for head in copy.heads:
        if head.log_id != log_id:
            raise foreign_frames(head.log_id, log_id)


def foreign_frames(other_id: bytes, log_id: bytes) -> CorruptLogError:
    """Returns the error of a copy whose frames belong to another log."""
    return CorruptLogError(
        f"the copy of log {log_id.hex()} holds frames of log {other_id.hex()}",
        hint=f"rename the folder to '{other_id.hex()}', or delete its copy '{log_id.hex()}': it is"
        " filled again from the log",
    )


def examine_copy(
    files: Files,
    url: str,
    replica: ReadableCopy,
    others: Sequence[Mapping[str, int]] = (),
    beat: Beat = lambda *_: None,
) -> ReadableExtent:
    """What can be read back of a copy: the newest checkpoint that its segments hold, and on.

    In the middle of catching up a copy has segments or a checkpoint of which the rest is missing:
    they are left out, and what was acknowledged before is found. It ends before the first frame
    that names a file which was owed to it and is nowhere. Frames are brought here if they lie
    elsewhere.

    Args:
        others: what other replicas hold that files of rows can be read from as well.
        beat: called when it has come further.

    Raises:
        CorruptLogError: there is nothing that can be read back.
    """
    held = replica.held().files
    there = (held, *others)
    if replica.folder is not None:
        return examine_folder(files, url, replica, replica.folder, held, there, beat)
    folder = files.temporary_folder("nosync-frames-")
    try:
        for name in filter(file_layout.is_frames, held):
            copy(files, replica, name, held[name], file_layout.file_path(folder, name), beat)
        return examine_folder(files, url, replica, folder, held, there, beat)
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
    """As `examined`; the frames lie in `folder`, and what `held` says of them is so."""
    names = list(held)
    states = _states(files, folder, names, beat)
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
            if _fits(files, folder, chain, state, there) and _ends(chain, held, state.mark):
                return _cut(files, stretch, name, state)
        if missing is None:
            return _cut(files, stretch, None, None)
        why = why or f"'{missing}' is missing, or too short"
    raise CorruptLogError(f"the copy holds no whole log: {why or 'no segment is there'}")


def _states(
    files: Files, folder: str, names: Iterable[str], beat: Beat
) -> list[tuple[str, Checkpoint]]:
    """The checkpoints that can be read, the newest first."""
    states = []
    for name in checkpoint.checkpoint_names([*names]):
        state = checkpoint.read_checkpoint(files, folder, name)
        beat()
        if isinstance(state, Checkpoint):
            states.append((name, state))
    return states


def _fits(
    files: Files,
    folder: str,
    chain: Chain,
    state: Checkpoint,
    there: Sequence[Mapping[str, int]],
) -> bool:
    """Whether a checkpoint belongs to a chain, and all that its state lies in is somewhere."""
    if state.mark.offset < chain.live[0].start.offset:
        return False
    if not tail.tail_holds(files, folder, chain, state.mark):
        return False
    return _Named(there, state).had


def _ends(chain: Chain, held: Mapping[str, int], mark: Mark) -> bool:
    """Whether a copy has all bytes up to a mark of a chain.

    Failure: 1. A replica's copy is cut short in the end of a frame, after its digest. 2. It has the
    checkpoint of that frame. 3. The disk is lost, and as that frame cannot be copied, nothing can.
    """
    last = [one for one in chain.live if one.start.offset < mark.offset][-1:]
    return all(held[one.name] >= one.local(mark.offset) for one in last)


class _Named:
    """The files that a copy names up to a frame, and whether all are somewhere that are owed.

    Args:
        there: who may have them, each in its size.
        state: the checkpoint that it begins with.

    Attributes:
        rows: all of them.
    """

    def __init__(self, there: Sequence[Mapping[str, int]], state: Checkpoint | None) -> None:
        self._there = there
        self.rows: dict[str, FileReference] = {}
        self._numbers: frozenset[int] = file_references.NO_NUMBERS
        self._missing: dict[str, set[int]] = {}
        if state is not None:
            with guarded_decoding("a checkpoint"):
                kept = file_references.files_of_checkpoint(state.payload)
                self._take(kept.files, kept.namers, kept.said)

    def follow(self, frame: Frame) -> None:
        """Takes in the next frame."""
        with guarded_decoding(f"frame {frame.position.seq}"):
            _, files, namers, said = file_references.files_of_frame(frame.payload)
            self._take(files, namers, said)

    def _take(
        self,
        files: Mapping[str, FileReference],
        namers: Namers,
        said: file_references.ReplicationRequirement | None,
    ) -> None:
        for name, size, _ in files.values():
            if not any(name in held and size in (None, held[name]) for held in self._there):
                self._missing.setdefault(name, set()).update(namers[name])
        self.rows = {**files, **self.rows} if files else self.rows
        self._numbers = self._numbers if said is None else said.numbers

    @property
    def had(self) -> bool:
        """Whether somebody has each file that is owed."""
        return all(some <= self._numbers for some in self._missing.values())


def _cut(
    files: Files, stretch: SegmentRun, name: str | None, state: Checkpoint | None
) -> ReadableExtent:
    """The part of a copy from a checkpoint to the last frame that counts."""
    held = stretch.held
    start = state.mark if state else stretch.live[0].start
    first = max(i for i, s in enumerate(stretch.live) if s.start.offset <= start.offset)
    live = stretch.live[first:]
    named = _Named(stretch.there, state)
    rows, end = named.rows, start
    for frame in _frames(files, stretch, live, start):
        named.follow(frame)
        if named.had:
            rows, end = named.rows, frame.end
    acknowledged = stretch.replica.acknowledged()
    if end.seq < acknowledged:
        raise CorruptLogError(
            f"'{stretch.url}' is damaged: it had frame {acknowledged}, and ends at {end.seq}",
            hint="it is repaired from the log; take another replica",
        )
    sizes, generation = {}, 0
    for index, segment in enumerate(live):
        after = live[index + 1].start.offset if index + 1 < len(live) else end.offset
        if segment.start.offset <= end.offset:
            sizes[segment.name] = segment.local(max(segment.start.offset, min(after, end.offset)))
            generation = segment.generation
    if name is not None:
        sizes[name] = held[name]
    heads = tuple(one for one in stretch.live if one.start.offset <= end.offset)
    return ReadableExtent(stretch.url, stretch.replica, sizes, rows, generation, end, heads)


def _frames(
    files: Files, stretch: SegmentRun, live: Sequence[Segment], start: Mark
) -> Iterator[Frame]:
    """The frames of segments after a mark, up to the first that does not follow.

    What stands behind that was not synced here: how far frames say that the log was on disk is
    about the log's own.
    """
    end = start
    for index, segment in enumerate(live):
        if end.offset < segment.start.offset or (
            end.offset == segment.start.offset and end != segment.start
        ):
            return
        size = stretch.held[segment.name] - segment.local(end.offset)
        if index + 1 < len(live):
            size = min(size, live[index + 1].start.offset - end.offset)
        with closing(files.open(file_layout.file_path(stretch.folder, segment.name))) as file:
            data = file.read_at(segment.local(end.offset), max(0, size))
        stretch.beat()
        more, _ = file_references.scan_frames(data, end.offset, end)
        yield from more
        end = more[-1].end if more else end
