"""Reads a log's folder for shipping, while its owner continues to write.

Nothing is written, and no other process is asked. The mapped control block contains the position up
to which the log is durable; all else is read from files. A view (`LogView`) is a consistent state:
the newest checkpoint, the durable frames after it, and every file that these name.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from nosync_nb.errors import CorruptLogError, FencedError
from nosync_nb.files.filesystem import File, Files, suppress_missing
from nosync_nb.store import ownership_history
from nosync_nb.store.log import checkpoint, frames, owner, recovery, segments
from nosync_nb.store.log.fencing import ControlBlock
from nosync_nb.store.log.frames import Mark
from nosync_nb.store.log.owner import LogOwner
from nosync_nb.store.log.segments import HEADER_BYTES, Chain, Segment
from nosync_nb.store.records import file_references, payloads
from nosync_nb.store.records.file_references import FileReference, Namers
from nosync_nb.store.replication import file_layout
from nosync_nb.store.replication.backends import folder as folders
from nosync_nb.store.replication.protocol import OwnerTerm
from nosync_nb.store.verification.file_checks import FrameGap, walk_runs


class ShippedFrame(NamedTuple):
    """A frame of the log that is shipped to replicas.

    Attributes:
        end: the mark at its end.
        epoch: the last epoch at that mark.
        files: the files that it references, by name.
        namers: the logs and traces that reference each file.
        said: its replication requirement; None if it has none.
    """

    end: Mark
    epoch: int
    files: Mapping[str, FileReference]
    namers: Namers
    said: file_references.ReplicationRequirement | None


class ShippedCheckpoint(NamedTuple):
    """A checkpoint: its file, its mark, the files of its state, and the ownership history.

    Another checkpoint of the same frame may replace it under the same name; `stamp` then differs.
    """

    name: str
    stamp: tuple[int, int, int]
    mark: Mark
    epoch: int
    files: Mapping[str, FileReference]
    namers: Namers
    said: file_references.ReplicationRequirement | None
    reigns: ownership_history.Reigns


class SegmentExtent(NamedTuple):
    """A segment, and the number of its bytes that are durable parts of the log."""

    segment: Segment
    size: int


class LogView(NamedTuple):
    """A consistent state of a log at one moment.

    Attributes:
        state: the newest checkpoint; None if the log has none.
        extents: the segments that hold the frames after it, ascending.
        files: the references of all files that the checkpoint and those frames name.
        last: the local files among them, which ship last; see `file_references`.
        end: the mark after the last durable frame.
        epoch: the last epoch at that mark.
    """

    state: ShippedCheckpoint | None
    extents: Sequence[SegmentExtent]
    files: Mapping[str, FileReference]
    last: frozenset[str]
    end: Mark
    epoch: int


class LogSource:
    """The files of one log under its current owner.

    Args:
        generation: the generation of the owner.

    Raises:
        FencedError: another owner has taken over; also from every call.
    """

    def __init__(self, folder: str, generation: int, *, files: Files | None = None) -> None:
        self._files = files or Files()
        self.folder = folder
        self.generation = generation
        self._control_path = os.path.join(
            folder, "generation"
        )  # names the owner of the log at this path
        self._opened_identity = self._control_identity()
        self._control = ControlBlock(self._files.mapped(self._control_path))
        try:
            self.check()
            record = owner.read_owner(self._files, folder)
            if record is None or record.generation != generation:
                raise _fenced_error(folder)
            self.term = OwnerTerm(generation, _owner_token(record))
            self.log_id = log_id(self._files, folder)
        except BaseException:
            self._control.close()
            raise
        self._segment_names: Sequence[tuple[int, int]] = ()
        self._chain: list[Segment] = []
        self._state: ShippedCheckpoint | None = None
        self._frames: list[ShippedFrame] = []
        self._end: Mark | None = None
        self._epoch = 0
        self._view: LogView | None = None  # None if the log has changed since the last view

    @property
    def files(self) -> Files:
        """The disk that the log is on."""
        return self._files

    def close(self) -> None:
        """Unmaps the control block."""
        self._control.close()

    def check(self) -> None:
        """Raises FencedError if another owner has taken over.

        Failure: the folder is replaced by another copy of the log while its keeper ships. The
        control block that the keeper has mapped still names its owner, and the files that it reads
        are of another history.
        """
        if (
            self._control.generation != self.generation
            or self._control_identity() != self._opened_identity
        ):
            raise _fenced_error(self.folder)

    def _control_identity(self) -> tuple[int, int]:
        """Returns the identity of the control file that is at the log's path now."""
        status = self._files.status(self._control_path)
        return status.st_dev, status.st_ino

    def current_view(self, *, written: bool = False) -> LogView | None:
        """Returns the current state of the log for shipping; None before the owner has begun.

        Args:
            written: includes frames that are published but may not be durable, because the owner is
                dead.
        """
        self.check()
        durable = self._control.durable(self.generation)
        published = self._control.published(self.generation)
        if durable is None or published is None:
            return None
        self._refresh()
        self._scan_frames(durable, published if written else None)
        self.check()
        if self._view is not None:
            return self._view
        steps = self._frames
        end = steps[-1].end if steps else self._state.mark if self._state else self._first_mark()
        files = dict(self._state.files) if self._state else {}
        for step in steps:
            files.update(step.files)
        epoch = steps[-1].epoch if steps else self._state.epoch if self._state else 0
        self._view = LogView(
            self._state, self._extents(end), files, self._local_files(), end, epoch
        )
        return self._view

    def _local_files(self) -> frozenset[str]:
        """Returns the names of the local files, as the newest replication requirement has them."""
        every = (*((self._state,) if self._state else ()), *self._frames)
        requirement = next(
            (each.said for each in reversed(every) if each.said is not None),
            file_references.NO_REQUIREMENT,
        )
        return file_references.ships_last(requirement.numbers, (each.namers for each in every))

    def size(self, name: str) -> int | None:
        """Returns the size of a file; None if it does not exist any more."""
        status = suppress_missing(self._files.status, file_layout.file_path(self.folder, name))
        return None if status is None else status.st_size

    def open(self, name: str) -> File:
        """Opens a file of the log for reading; the caller closes it."""
        return self._files.open(file_layout.file_path(self.folder, name))

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Returns `size` bytes of a file from an offset; fewer only at the end of the file."""
        with closing(self.open(name)) as file:
            return file.read_at(offset, size)

    def stamp(self, name: str) -> tuple[int, int, int]:
        """Returns the stamp of a file, which changes if another file takes its name; see `File`."""
        with closing(self.open(name)) as file:
            return file.stamp()

    def digest(self, name: str, size: int) -> bytes:
        """Returns the digest of the first `size` bytes of a file, computed as at a replica."""
        return folders.digest(self._files, file_layout.file_path(self.folder, name), size)

    def holds(self, mark: Mark, head: Segment | None) -> bool:
        """Returns True if the log contains a mark.

        Failure: 1. A log is restored from a copy that ends at frame 10, and its owner writes these
        frames a second time to a replica. 2. That owner's disk is lost as well. Another replica
        holds the same frames and more, of an earlier owner, and the log is restored from it. 3. Its
        history does not mention the owner in between. The first replica is ahead of this log, and
        of each one that is restored as that suggests. Hence frames that are retained before the
        checkpoint are compared first.

        Args:
            head: the replica's segment that contains the mark; None if it is unknown. It is used if
                a checkpoint has made those frames obsolete here, and they are not retained: then
                the ownership history decides, as far back as it goes.
        """
        if not self._chain or mark.offset < self._chain[0].start.offset:
            if self._state is None or self._retains(mark):
                return True
            return ownership_history.includes_owner(self._state.reigns, head, mark.seq)
        end = self._frames[-1].end if self._frames else self._state.mark if self._state else None
        if end is None or mark.offset >= end.offset:
            return mark == end or (end is None and mark == self._chain[0].start)
        return recovery.tail_holds(self._files, self.folder, Chain(self._chain, [], None), mark)

    def _retains(self, mark: Mark) -> bool:
        """Returns True if a mark is in retained segments that precede the current ones."""
        if not self._chain:
            return False
        start, before = self._chain[0].start, self._chain[0].before
        older = Chain(
            segments.previous_segments(self._files, self.folder, before, mark.offset)[0], [], None
        )
        return all(
            recovery.tail_holds(self._files, self.folder, older, each) for each in (mark, start)
        )

    def mark(self, segment: Segment, size: int) -> Mark:
        """Returns the last known mark in the first `size` bytes of a segment."""
        offset = segment.start.offset + size - HEADER_BYTES
        at = bisect_right(self._frames, offset, key=lambda step: step.end.offset)
        marks = [step.end for step in self._frames[max(0, at - 1) : at]]
        return max(segment.start, *marks, key=lambda mark: mark.offset) if marks else segment.start

    # -- reading -----------------------------------------------------------------------------

    def _first_mark(self) -> Mark:
        return self._chain[0].start if self._chain else Mark(0, 0, b"")

    def _refresh(self) -> None:
        """Reads the newest checkpoint and the segments after it, if the folder has changed."""
        names = self._files.names(self.folder)
        listed = segments.segment_names(names)
        newest = checkpoint.checkpoint_names(names)[:1]
        stamp = self.stamp(newest[0]) if newest else None
        current = self._state
        current_stamp = None if current is None else current.stamp
        if (
            listed == self._segment_names
            and len(newest) == (current is not None)
            and stamp == current_stamp
        ):
            return
        self._view = None
        state, chain, _, _ = recovery.newest_checkpoint(self._files, self.folder, names)
        if current is not None and (state is None or state.mark.seq < current.mark.seq):
            raise CorruptLogError(
                f"'{current.name}' cannot be read any more", hint="restore the file from a copy"
            )
        self._chain = chain.live
        if state is not None:
            name = checkpoint.file_name(state.mark.seq, state.generation)
            if name == newest[0] and stamp is not None:
                self._adopt_checkpoint(name, stamp, state)
            elif current is None or current.name != name:
                self._adopt_checkpoint(name, self.stamp(name), state)
        elif self._end is None:
            self._end = self._first_mark()
        self._segment_names = listed

    def _adopt_checkpoint(
        self, name: str, stamp: tuple[int, int, int], state: checkpoint.Checkpoint
    ) -> None:
        """Starts from a new checkpoint; if it is replaced meanwhile, the next view detects that."""
        contents, packs = (
            file_references.files_of_checkpoint(state.payload),
            os.path.join(self.folder, "history"),
        )
        file_references.check_history(payloads.decode_payload(state.payload), packs, self._files)
        self._state = ShippedCheckpoint(name, stamp, state.mark, *contents)
        if self._end is None or self._end.seq < state.mark.seq:
            self._end, self._epoch = state.mark, contents.epoch
        self._frames = [step for step in self._frames if step.end.seq > state.mark.seq]

    def _scan_frames(self, durable: int, published: int | None) -> None:
        """Reads the new frames, up to the last durable or published one."""
        while (end := self._end) is not None and (published is not None or end.seq < durable):
            at = [i for i, one in enumerate(self._chain) if one.start.offset <= end.offset]
            if not at:
                raise CorruptLogError(f"'{self.folder}' has no frames after frame {end.seq}")
            segment, after = self._chain[at[-1]], self._chain[at[-1] + 1 : at[-1] + 2]
            if segment.start.offset == end.offset and segment.start != end:
                raise CorruptLogError(f"'{segment.name}' does not continue the log")
            stop = after[0].start.offset if after else published
            for frame in self._frames_of(segment, end, stop):
                if published is None and frame.position.seq > durable:
                    break
                self._add_frame(frame)
            if self._end == end and published is None:
                raise CorruptLogError(
                    f"'{segment.name}' lacks frame {end.seq + 1}, which was on disk"
                )
            if self._end == end:
                return  # all frames were read, or the owner died while it wrote the next one

    def _frames_of(self, segment: Segment, start: Mark, stop: int | None) -> Iterator[frames.Frame]:
        """Yields the frames of a segment after a mark, up to an offset or the end of the file."""
        with closing(self.open(segment.name)) as file:
            if stop is None:
                stop = segment.start.offset + file.size() - HEADER_BYTES
            for each in walk_runs(file.read_at, segment, stop, start=start, resume=False):
                if not isinstance(each, FrameGap):
                    yield from each.frames

    def _add_frame(self, frame: frames.Frame) -> None:
        self._view = None
        epoch, files, namers, requirement = file_references.files_of_frame(frame.payload)
        if frame.kind in (payloads.EPOCH, payloads.REWIND):
            self._epoch = epoch
        self._frames.append(ShippedFrame(frame.end, self._epoch, files, namers, requirement))
        self._end = frame.end

    def _extents(self, end: Mark) -> list[SegmentExtent]:
        """Returns the segments from the checkpoint to a mark, with their sizes up to the mark."""
        extents = []
        for index, segment in enumerate(self._chain):
            after = self._chain[index + 1 : index + 2]
            stop = min(end.offset, after[0].start.offset) if after else end.offset
            if segment.start.offset <= end.offset:
                extents.append(
                    SegmentExtent(segment, segment.local(max(stop, segment.start.offset)))
                )
        return extents


def log_id(files: Files, folder: str) -> bytes:
    """Returns the id of a log; empty if no segment of it can be read."""
    for key in reversed(segments.segment_names(files.names(folder))):
        segment = segments.read_header(files, folder, key)
        if segment is not None:
            return segment.log_id
    return b""


def _fenced_error(folder: str) -> FencedError:
    return FencedError(f"'{folder}' has another owner", hint="the other owner ships it now")


def _owner_token(record: LogOwner) -> str:
    """Returns a token that is unique to an owner, even among owners of the same generation."""
    identity = "\0".join(map(str, (*record.identity, record.since_ms, record.generation)))
    return hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()
