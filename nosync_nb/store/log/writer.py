"""Appends frames to the page cache in the calling thread, and syncs them in another thread.

Design. `append` builds the frame, writes it with one system call, checks the generation and
publishes it. Then the frame survives a killed process. A thread syncs all new frames together, and
raises `durable`. Then they survive a power failure. Until then the frames are retained in memory.

Failure. 1. A write fails and leaves part of a frame behind. 2. A sync fails and leaves pages that
may not have reached the disk, and the next sync reports success for them. In either case the
segment is sealed: a new one is created that begins at the last durable mark and repeats every later
frame. `durable` rises only after that segment is synced with its name. While the disk cannot do
even that, `append` and `sync` raise DurabilityError and each call tries again. So the log resumes
when the disk works again.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from nosync_nb.errors import DurabilityError, FencedError
from nosync_nb.files.filesystem import File, Files, close_all
from nosync_nb.store import threads
from nosync_nb.store.log import frames, segments
from nosync_nb.store.log.fencing import HEARTBEAT_S, WriterLease
from nosync_nb.store.log.frames import FramePosition, Mark
from nosync_nb.store.log.segments import NEAR_FRAMES, SEGMENT_BYTES_MAX, Segment
from nosync_nb.store.threads import SingleThread

_logger = logging.getLogger(__name__)


class Writer:
    """The writing end of a log, which begins with a newly created segment.

    Invariants: `durable <= head`. `_unsynced` contains exactly the frames in between. `_published`
    equals the head once readers and the thread were notified of it. `_file` is the file of the last
    segment in `_live`, and `_rotated` contains the files of earlier segments that are not synced. A
    sync uses the files in `_syncing`. Those in `_replaced` are to be closed.
    """

    def __init__(
        self,
        files: Files,
        folder: str,
        lease: WriterLease,
        live: Sequence[Segment],
        file: File,
        head: Mark,
        *,
        delay_s: float,
        background: bool,
    ) -> None:
        self._files, self._folder, self._lease = files, folder, lease
        self._live, self._file = list(live), file
        self._segment_limit = live[-1].start.offset + SEGMENT_BYTES_MAX
        self._head, self._durable, self._published = head, head, head
        self._unsynced: deque[tuple[Mark, bytes]] = deque()
        self._rotated: list[File] = []
        self._syncing: tuple[File, ...] = ()
        self._replaced: list[File] = []
        self._broken: BaseException | None = None
        self._fenced: FencedError | None = None
        self._stopped: FencedError | None = None
        self._retry = False
        self._closed = False
        self._delay_s = delay_s
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._wake_up = threading.Condition(self._lock)
        self._progress = threading.Condition(self._lock)
        self._waiting = 0
        self._idle = False
        self._callbacks: list[Callable[[int], None]] = []
        self.reseals = 0
        lease.publish(head.offset)
        lease.publish_durable(head.seq)
        self._thread = SingleThread("nosync log") if background else None

    def start(self) -> None:
        """Starts the syncing thread, if this writer has one; a second call does nothing."""
        if self._thread is not None:
            self._thread.start(self._run)

    @property
    def head(self) -> Mark:
        """The mark after the last published frame."""
        return self._head

    @property
    def durable(self) -> Mark:
        """The mark after the last frame that is on disk."""
        return self._durable

    @property
    def segments(self) -> list[Segment]:
        """The live segments since the log was opened, ascending."""
        return list(self._live)

    def append(self, kind: int, payload: bytes) -> FramePosition:
        """Writes one frame and publishes it, or publishes nothing.

        Raises:
            FencedError: another process took over; the frame may be part of the log that it reads.
            DurabilityError: the disk reported an error; the frame is not part of the log.

        Cost: one system call; 6 us for 500 bytes.
        """
        lease = self._lease
        lease.check_process()
        with self._lock:
            if self._broken is not None or self._fenced is not None or self._closed:
                self._repair()
            head = self._head
            frame, end = frames.build_frame(kind, payload, head, lease.number, self._durable.seq)
            try:
                if end.offset > self._segment_limit and head.offset > self._live[-1].start.offset:
                    self._rotate()
                self._file.append(frame)
                lease.check()
                self._unsynced.append((end, frame))
                self._head = end
            except BaseException as error:
                # IMPORTANT: this includes interrupts. The next segment replaces any bytes after
                # the head, such as a part of a frame or a segment that was begun. Further frames
                # in this segment would be at offsets that no reader reads.
                self._record_failure(error)
                self._retry = self._fenced is None
                self._wake_up.notify()
                raise
            lease.publish(end.offset)
            if self._idle:
                self._idle = False
                self._wake_up.notify()
            self._published = end
        return FramePosition(end.seq, head.offset)

    def publish_head(self) -> None:
        """Publishes the head and notifies the syncing thread, if an interrupted append did not."""
        if self._published is self._head:
            return
        with self._lock:
            self._lease.publish(self._head.offset)
            if self._idle and self._has_work():
                self._idle = False
                self._wake_up.notify()

    def sync(self, seq: int | None = None) -> None:
        """Waits until frame `seq` is on disk; without `seq`, until the last frame is.

        Raises:
            DurabilityError: the disk reports an error; the frame is in memory and in the page
                cache.
        """
        self._lease.check_process()
        target = self._head.seq if seq is None else min(seq, self._head.seq)
        while self._durable.seq < target:
            running = self._thread is not None and self._thread.alive
            if not running:
                self._flush()
            with self._lock:
                if self._durable.seq >= target:
                    break
                if self._broken is not None or self._fenced is not None or self._closed:
                    self._repair()
                elif running:
                    self._waiting += 1
                    self._idle = False
                    self._wake_up.notify()
                    try:
                        threads.wait_event(self._progress)
                    finally:
                        self._waiting -= 1

    def check(self) -> None:
        """Raises FencedError if another process owns the log, or this is a forked child."""
        self._lease.check_process()
        self._lease.check()
        if self._stopped is not None:
            raise self._fenced_error()

    def stop(self, error: FencedError) -> None:
        """Refuses all further writes, because another process owns the log elsewhere."""
        with self._lock:
            self._stopped = self._stopped or error
            self._record_failure(error)
            self._wake_up.notify_all()
            self._progress.notify_all()

    def _fenced_error(self) -> FencedError:
        """Returns the error for an owner that may not continue."""
        if self._stopped is None:
            return self._lease.fenced()
        return FencedError(str(self._stopped), hint=self._stopped.hint)

    def on_durable(self, callback: Callable[[int], None]) -> None:
        """Registers a quick function that the syncing thread calls with each new durable seq."""
        self._callbacks.append(callback)

    def start_segment(self) -> None:
        """Lets the next frame begin a new segment, unless the current one is short.

        Otherwise the frames that a checkpoint has just covered could not be deleted until the
        segment is full.
        """
        with self._lock:
            if self._head.seq - self._live[-1].start.seq >= NEAR_FRAMES:
                self._segment_limit = 0

    def needless(self, chain: Sequence[Segment], covered: int) -> list[Segment]:
        """Returns the segments of the chain that are not needed, and removes them from `segments`.

        Args:
            chain: the segments in ascending order, up to the segment of the head.
            covered: the offset up to which checkpoints cover all frames.
        """
        older = segments.superseded_segments(chain, covered, self._head, 2 * SEGMENT_BYTES_MAX)
        if older:
            self._drop_segments(chain[len(older)].start.offset)
        return older

    def _drop_segments(self, offset: int) -> None:
        """Removes from `_live` the segments before the one that contains a durable offset.

        One more is retained, because a repair needs a predecessor for the segment that it keeps.
        """
        with self._lock:
            while len(self._live) > 2 and self._live[2].start.offset <= offset:
                del self._live[0]

    def close(self) -> None:
        """Stops the thread and closes the files, without syncing."""
        with self._lock:
            self._closed = True
            self._wake_up.notify_all()
            self._progress.notify_all()
        if self._thread is not None:
            self._thread.join()
        close_all([*self._replaced, *self._rotated, self._file])

    def _run(self) -> None:
        """The syncing thread: syncs new frames, and counts heartbeats."""
        while True:
            with self._lock:
                while not self._closed and not self._has_work():
                    self._idle = True
                    if not self._wake_up.wait(HEARTBEAT_S):
                        self._lease.beat()
                self._idle = False
                if self._retry and not self._closed:
                    self._retry = False
                    self._try_repair()
                    continue
                if self._delay_s and not self._waiting and not self._closed:
                    self._wake_up.wait(self._delay_s)
                if self._closed or self._fenced is not None:
                    return
            try:
                self._flush()
                self._lease.beat()
            except Exception as error:  # `durable` must not stop rising without a message
                with self._lock:
                    self._record_failure(error)
                    self._progress.notify_all()
                _logger.exception("the log's syncing thread failed")

    def _has_work(self) -> bool:
        """Returns True if the thread must act. The caller holds the lock."""
        if self._broken is not None:
            return self._retry or self._fenced is not None
        return self._head.seq > self._durable.seq

    def _flush(self) -> None:
        """Syncs the written frames; raises `durable` only after a check of the generation."""
        with self._flushing:
            with self._lock:
                target, file, rotated = self._head, self._file, list(self._rotated)
                if target.seq == self._durable.seq or self._broken is not None:
                    return
                reseals = self.reseals
                self._syncing = (*rotated, file)
            try:
                self._sync_files((*rotated, file))
            except DurabilityError as error:
                with self._lock:
                    self._syncing = ()
                    if reseals == self.reseals:
                        self._record_failure(error)
                        self._try_repair()
                    self._progress.notify_all()
                return
            finally:
                with self._lock:
                    self._syncing = ()
                    self._close_replaced()
            with self._lock:
                try:
                    self._lease.check()
                except FencedError as error:
                    self._record_failure(error)
                else:
                    self._replaced += [each for each in rotated if each in self._rotated]
                    self._rotated = [each for each in self._rotated if each not in rotated]
                    self._close_replaced()
                    self._raise_durable(target)
                self._progress.notify_all()
        self._call_back()

    def _sync_files(self, files: Sequence[File]) -> None:
        """Syncs segments up to the current one, without the lock."""
        for each in files:
            each.sync()
            if each.deleted():
                raise DurabilityError(
                    f"'{each.path}' was deleted while the log is open",
                    hint="copy the rows to another log: they are in memory only",
                )
        if len(files) > 1:
            self._files.sync_folder(self._folder)

    def _close_replaced(self) -> None:
        """Closes replaced files, except those being synced. The caller holds the lock.

        Failure: 1. The thread syncs a file. 2. A commit is interrupted, and the next one repairs
        the log and closes that file. 3. The sync fails with EBADF, or another file gets the file's
        descriptor and is synced in its place. Hence such a file is closed at the end of the sync.
        """
        for each in [each for each in self._replaced if each not in self._syncing]:
            try:
                each.close()
            except DurabilityError as error:  # its frames are on disk, or in another segment
                _logger.warning("%s", error)
            self._replaced.remove(each)

    def _call_back(self) -> None:
        for callback in self._callbacks:
            try:
                callback(self._durable.seq)
            except Exception:  # logged, because a callback must not make the log fail
                _logger.exception("a callback on durable frames failed")

    def _raise_durable(self, mark: Mark) -> None:
        """Raises `durable` after everything up to `mark` is synced. The caller holds the lock."""
        if mark.seq <= self._durable.seq:
            return
        assert mark.seq <= self._head.seq
        self._durable = mark
        while self._unsynced and self._unsynced[0][0].seq <= mark.seq:
            self._unsynced.popleft()
        self._lease.publish_durable(mark.seq)

    def _record_failure(self, error: BaseException) -> None:
        """Records a failure. The caller holds the lock."""
        if isinstance(error, FencedError):
            self._fenced = error
        self._broken = error

    def _try_repair(self) -> None:
        try:
            self._repair()
        except (DurabilityError, FencedError) as error:
            _logger.error("the log cannot be written: %s", error)

    def _repair(self) -> None:
        """Continues in a new segment from the last durable mark. The caller holds the lock."""
        if self._closed:
            raise DurabilityError(f"the log '{self._folder}' is closed", hint="open it again")
        if self._fenced is not None:
            raise self._fenced_error()
        self._lease.check()
        start, head = self._durable, self._head
        kept = [(mark, data) for mark, data in self._unsynced if mark.seq <= head.seq]
        segment = self._next_segment(start)
        try:
            rewritten = [data for _, data in kept]
            file = segments.create_segment(self._files, self._folder, segment, rewritten, sync=True)
        except BaseException as error:
            self._record_failure(error)
            raise
        self._replaced += [*self._rotated, self._file]
        self._rotated = []
        live = [each for each in self._live if each.start.offset < start.offset]
        self._continue_in([*live, segment], file)
        self._close_replaced()
        self._unsynced = deque(kept)
        self._broken, self._retry = None, False
        self.reseals += 1
        self._lease.check()
        self._raise_durable(head)
        self._progress.notify_all()

    def _rotate(self) -> None:
        """Continues in a new segment because this one is full; the next flush syncs it."""
        segment = self._next_segment(self._head)
        file = segments.create_segment(self._files, self._folder, segment, sync=False)
        self._rotated.append(self._file)
        self._continue_in([*self._live, segment], file)

    def _next_segment(self, start: Mark) -> Segment:
        """Returns the header of the segment that continues at `start`."""
        word = self._live[-1].word
        return segments.next_segment_name(
            self._live, start, self._lease.number, self._durable.seq, word
        )

    def _continue_in(self, live: list[Segment], file: File) -> None:
        """Makes the last of the live segments the current one.

        IMPORTANT: the list is one assignment, and the first one. A segment that is on disk and not
        in the list would be followed by another one with its number, or with a lower one.
        """
        self._live = live
        self._file = file
        self._segment_limit = live[-1].start.offset + SEGMENT_BYTES_MAX
