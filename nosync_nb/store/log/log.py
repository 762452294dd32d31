"""The log: the durable order of everything that was committed, in one folder on one disk.

    folder/
      generation, owner, lock           the process that may write (fencing.py)
      segment-GGGGGGGG-NNNNNNNN.log     the stream of frames (segments.py, frames.py)
      checkpoint-SEQ-GGGGGGGG.state     where reading may begin (checkpoint.py)

The log numbers, chains, stores and returns bytes; the session interprets them. Promise: a frame
whose `append` returned survives the death of the process. A frame up to `durable` survives a
power loss. Recovery returns a prefix of the appended frames. If they are damaged, it raises an
error, and never returns other data.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Literal, Self

from nosync_nb.errors import DurabilityError, FencedError, NosyncError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.log import checkpoint, folder, recovery, segments
from nosync_nb.store.log import fencing as generation
from nosync_nb.store.log import owner as owners
from nosync_nb.store.log.fencing import ControlBlock, WriterLease
from nosync_nb.store.log.frame_index import FrameReader
from nosync_nb.store.log.frames import Frame, FramePosition, Mark
from nosync_nb.store.log.owner import HostIdentity, LogLocation, LogOwner
from nosync_nb.store.log.recovery import Ask, RecoveredLog, catch_up_tail
from nosync_nb.store.log.writer import Writer

_NO_MARK = Mark(0, 0, b"")

SYNC_DELAY_S = 0.002
"""The default delay of a sync. A delay reduces the number of syncs, so the syncing thread takes the
interpreter less often. This shortens the slowest appends (p95).
"""


class Log:
    """A log that is open for writing or for following; created by `Log.open`."""

    _closed = _owned = True  # until `__init__` has ended, there is nothing to release

    def __init__(
        self,
        files: Files,
        path: str,
        words: ControlBlock,
        recovered: RecoveredLog,
        writer: Writer | None,
        owner: LogOwner | None,
    ) -> None:
        self._files, self._words, self._writer, self._owner = files, words, writer, owner
        self.path = path
        self.place = LogLocation() if writer else owners.log_location(files, path)
        self.mode: Literal["r", "w"] = "w" if writer else "r"
        self.clean = recovered.clean
        self.fresh = recovered.checkpoint is None and recovered.tail.end.seq == 0
        self.notes, self.noted, self.unread = recovered.notes, recovered.noted, recovered.unread
        self.heads = [*recovered.heads, *(writer.segments[-1:] if writer else ())]
        self._checkpoint = recovered.checkpoint
        self._checkpoint_bytes = len(self.checkpoint or b"")
        self._previous_mark: Mark | None = None  # the mark of the checkpoint before the newest one
        self._tail = recovered.tail.frames
        self._end = recovered.tail.end
        self._live = recovered.live
        self._frame_reader = FrameReader(files, path)
        self._closed = self._owned = False

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        mode: Literal["r", "w"] = "w",
        takeover: bool = False,
        files: Files | None = None,
        machine: HostIdentity | None = None,
        delay_s: float = SYNC_DELAY_S,
        background: bool = True,
        start: bool = True,
        further: Ask | None = None,
    ) -> Self:
        """Opens a log. For writing, this process becomes its owner and may create the log.

        Args:
            takeover: if True, replaces an owner that is alive, or may be alive.
            files, machine: the disk and the host; tests pass simulated ones.
            delay_s: the time that a sync waits for more frames to share it, unless a caller waits.
            background: if False, nothing is synced until `sync` is called.
            start: if False, the new owner calls `start` later.
            further: returns frames from replicas that this disk may have lost.

        Raises:
            FencedError: another process writes the log; the hint says what can be done.
            CorruptLogError: data that were on disk are missing or damaged.
            TrustError: other users can write the folder.
            DurabilityError: the folder cannot be written, or is not suitable for a log.

        Cost: 3 ms, and 5 us for each frame after the checkpoint.
        """
        disk, host = files or Files(), machine or HostIdentity()
        parent, name = os.path.split(os.path.abspath(path))
        where = os.path.join(os.path.realpath(parent), name)  # because parent folders may be links
        folder.check_log_folder(disk, where, host, write=mode == "w")
        if mode == "r":
            words = ControlBlock(disk.mapped(os.path.join(where, "generation")))
            owner = owners.read_owner(disk, where)
            recovered = recovery.recover_log(disk, where, words, owner, host, follow=True)
            return cls(disk, where, words, recovered, None, owner)
        lock = generation.opening_lock(disk, where)
        try:
            newest = segments.segment_names(disk.names(where))[-1:]
            least = newest[0][0] if newest else 0
            lease = generation.claim_lease(
                disk, where, host, takeover=takeover, generation_min=least
            )
            try:
                lease.acquire()
                recovered = recovery.recover_log(disk, where, lease, lease.before, host)
                recovered = catch_up_tail(recovered, lease, host, further)
                writer = recovery.begin_segment(
                    disk, where, lease, recovered, delay_s=delay_s, background=background
                )
                log = cls(disk, where, lease, recovered, writer, lease.owner)
                if start:
                    log.start()
                return log
            except BaseException:
                lease.give_up()
                raise
        finally:
            lock.release()

    def start(self) -> None:
        """Declares that the log has an owner, which closes it, and allows frames to be synced.

        Failure: 1. An exception comes between two opcodes of an opening, after the log is returned
        and before it is stored. 2. No reference is left with which to close it. Hence a log that
        was not started closes itself when it is freed, and no thread references it.
        """
        self._owned = True
        if self._writer is not None:
            self._writer.start()

    def __del__(self) -> None:
        if not self._owned:
            with suppress(NosyncError):
                self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def id(self) -> bytes:
        """The random id of this log, which is drawn when the log is created; empty before that."""
        live = self._segments()
        return live[-1].log_id if live else b""

    @property
    def checkpoint(self) -> bytes | None:
        """The payload of the checkpoint that the log was opened with; None without a checkpoint."""
        return self._checkpoint.payload if self._checkpoint else None

    @property
    def checkpoint_seq(self) -> int:
        """The number of the last frame in the newest checkpoint; 0 without a checkpoint."""
        return self._checkpoint.mark.seq if self._checkpoint else 0

    @property
    def checkpoint_due(self) -> bool:
        """True if a checkpoint should be written; see `checkpoint.is_checkpoint_due`."""
        last, head = self._checkpoint.mark if self._checkpoint else _NO_MARK, self.head
        followed = head.seq - last.seq, head.offset - last.offset
        return checkpoint.is_checkpoint_due(*followed, self._checkpoint_bytes)

    @property
    def head(self) -> Mark:
        """The mark after the last frame: its number, the end of the stream, its digest."""
        return self._writer.head if self._writer else self._end

    @property
    def durable(self) -> int:
        """The number of the last frame that is on disk."""
        if self._writer:
            return self._writer.durable.seq
        return min(self._words.durable(self._words.generation) or 0, self._end.seq)

    @property
    def generation(self) -> int:
        """The generation whose owner may write."""
        return self._owner.generation if self._writer and self._owner else self._words.generation

    @property
    def owner(self) -> LogOwner | None:
        """The current or the last writer of the log."""
        return self._owner if self._writer else owners.read_owner(self._files, self.path)

    def frames(self) -> Iterator[Frame]:
        """Yields the frames recovered after the checkpoint, in order."""
        yield from self._tail

    def forget(self) -> None:
        """Releases the memory of the recovered frames."""
        self._tail = []

    def append(self, kind: int, payload: bytes) -> FramePosition:
        """Writes one frame to the page cache and publishes it, or publishes nothing.

        After an interrupt, the frame is either not in the log, or in the log; `publish_head` then
        publishes it. If the call and the next step belong together, the caller defers signals
        around both.

        Raises:
            FencedError: another process took over; the frame may be part of the log that it reads.
            DurabilityError: the disk reported an error; the frame is not part of the log.
        """
        return self._require_writer().append(kind, payload)

    def publish_head(self) -> None:
        """Publishes the last frame, if an interrupt in `append` prevented it."""
        self._require_writer().publish_head()

    def note(self, number: int) -> None:
        """Records a number below 2**44 for the next opening, which reads it as `last_note`.

        It survives a killed process. After a power loss, an older number may be read.
        """
        if isinstance(self._words, WriterLease):
            self._words.note(number)

    def go_beyond(self, generation: int) -> None:
        """Ensures that the next owner's generation is later than the one that a replica accepts."""
        if isinstance(self._words, WriterLease):
            self._words.go_beyond(generation)

    def sync(self, seq: int | None = None) -> None:
        """Waits until frame `seq` is on disk; without `seq`, until the last frame is."""
        self._require_writer().sync(seq)

    def check(self) -> None:
        """Raises FencedError if another process owns the log, or this is a forked child."""
        self._require_writer().check()

    @property
    def owned(self) -> bool:
        """True if this process may write: it has the log open, and was not replaced."""
        try:
            self.check()
        except (DurabilityError, FencedError):
            return False
        return True

    def stop(self, error: FencedError) -> None:
        """Refuses all further writes: a replica reported that another process owns the log."""
        self._require_writer().stop(error)

    def on_durable(self, callback: Callable[[int], None]) -> None:
        """Registers a function that the syncing thread calls with each new value of `durable`."""
        self._require_writer().on_durable(callback)

    def read(self, position: FramePosition) -> Frame:
        """Reads and verifies the frame at a position, even if it is old."""
        return self._frame_reader.frame(position, self._segments())

    def write_checkpoint(self, payload: bytes, position: FramePosition | None = None) -> None:
        """Stores the state as of a frame durably; any thread may call it.

        The next opening begins there. Frames up to it are synced first. A checkpoint that could not
        be read at this opening is deleted before. It is not needed, because the state that the
        opening used instead is complete. It must not be used later, because it may name files that
        are retired from now on.

        Args:
            position: the frame; `None` means the last one.
        """
        writer = self._require_writer()
        mark = (
            writer.head if position is None else self._frame_reader.mark(position, self._segments())
        )
        writer.sync(mark.seq)
        writer.check()
        checkpoint.remove_checkpoint(self._files, self.path, self.unread)
        self.unread = []
        state = checkpoint.Checkpoint(mark, self.generation, payload)
        checkpoint.write_checkpoint_fenced(self._files, self.path, state, writer.check)
        before, self._checkpoint = self._checkpoint, state._replace(payload=b"")
        self._checkpoint_bytes = len(payload)
        self._previous_mark = before.mark if before else None
        writer.start_segment()
        checkpoint.prune_checkpoints(self._files, self.path, self._checkpoint, before)

    def trim(self) -> list[str]:
        """Deletes the segments that are not needed; returns their names.

        These are the segments before both retained checkpoints and before the frames of short
        rewinds. The oldest is deleted first, so that after a crash the links still lead to the
        remaining ones.
        """
        writer = self._require_writer()
        if self._previous_mark is None:
            return []
        writer.check()
        chain, _ = segments.previous_segments(self._files, self.path, writer.segments[-1].key, 0)
        older = writer.needless(chain, self._previous_mark.offset)
        for segment in older:
            self._files.unlink(os.path.join(self.path, segment.name))
        return [segment.name for segment in older]

    def refresh(self) -> list[Frame]:
        """Returns the frames that the owner has published since the last call.

        Raises:
            DurabilityError: the owner lost frames that were read here; open the log again.
        """
        upto = self._words.published(self._words.generation)
        if upto is None or upto <= self._end.offset:
            return []
        names = self._files.names(self.path)
        chain = segments.linked_segments(self._files, self.path, names, since=self._end.offset)
        start = self._end if self._end.chain or not chain.live else chain.live[0].start
        if not recovery.tail_holds(self._files, self.path, chain, start):
            raise DurabilityError(
                f"'{self.path}' was rolled back to before frame {self._end.seq}, which this"
                " session has read",
                hint="open it again",
            )
        rest = recovery.read_tail(self._files, self.path, chain, start, upto=upto)
        self._end, self._live = rest.end, chain.live
        return rest.frames

    def close(self) -> None:
        """Syncs, records that the log was closed properly, and releases it for other processes.

        In a forked child it does nothing, because the log belongs to the parent.
        """
        if self._closed:
            return
        words, writer = self._words, self._writer
        if isinstance(words, WriterLease) and words.inherited:
            self._closed = True
            return
        steps: list[Callable[[], None]] = [self._frame_reader.close, words.close]
        if writer is not None and isinstance(words, WriterLease) and words.is_taken:
            leave = partial(_release, words, writer)
            steps = [writer.sync, self._frame_reader.close, writer.close, leave, words.close]
        failures = []
        for step in steps:
            try:
                step()
            except NosyncError as error:  # the other steps must be done anyway
                failures.append(error)
        self._closed = True
        if failures:
            raise failures[0]

    @property
    def closed(self) -> bool:
        """True if all steps of `close` are done. After an interrupt, `close` must be repeated."""
        return self._closed

    def _require_writer(self) -> Writer:
        if self._writer is None:
            raise FencedError(
                f"'{self.path}' is open for reading", hint='open it without mode="r" to write'
            )
        if self._closed:
            raise DurabilityError(f"the log '{self.path}' is closed", hint="open it again")
        return self._writer

    def _segments(self) -> list[segments.Segment]:
        return self._writer.segments if self._writer else self._live


def _release(lease: WriterLease, writer: Writer) -> None:
    """Releases the log; it counts as closed properly if all frames are on disk."""
    closed = writer.durable.seq == writer.head.seq
    lease.release(known=writer.durable.seq, closed=closed)
