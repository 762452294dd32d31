"""Ships a log to one replica: determines what the replica misses, and sends it in a safe order.

    files that frames name -> the frames -> the checkpoint after them -> sync: acknowledged
    -> files that no checkpoint and no frame names any more are deleted
    -> local files, which ship last, one at a time, while nothing else is missing

An acknowledgement says that the log up to a frame can be read back from this replica alone. While
the replica catches up, its previous acknowledgement still holds. The files that it needs are
deleted last. A new segment appears with all bytes that are durable at that time, never with fewer
than the previous segment had.

Everything is verified while it is read (`verified_rows` and the functions below it), because the
disk of the log can decay silently like any other. Otherwise damaged bytes could replace a good copy
and be acknowledged. Bytes of frames are sent when the frames match each other. Of any other file,
the last piece is sent only when the whole file has been verified; that piece makes it a file at the
replica.

After a promise, the bytes that the replica holds of each segment are compared by digest. Later
passes compare sizes only.

Failure: the log's disk is restored from an old copy, and its owner continues from there. Replicas
hold later frames, which were reported as safe. The owner ships frames of a later generation, and
its copy would be taken for the better one. Hence nothing is shipped for an owner until it is known
that its log lacks no safe frame (takeover.py). The first owner of a new log is exempt.

Memory: a piece of a file of rows, the largest frame, or a checkpoint.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import NamedTuple

from nosync_nb.errors import CorruptLogError, DurabilityError
from nosync_nb.files.filesystem import File
from nosync_nb.store.log.frames import Mark
from nosync_nb.store.log.segments import HEADER_BYTES, Segment, encode_header
from nosync_nb.store.records.file_references import FileReference
from nosync_nb.store.replication import file_layout
from nosync_nb.store.replication.agent import takeover
from nosync_nb.store.replication.agent.log_source import (
    LogSource,
    LogView,
    SegmentExtent,
    ShippedCheckpoint,
)
from nosync_nb.store.replication.agent.takeover import TakeoverVote
from nosync_nb.store.replication.protocol import LogName, Replica
from nosync_nb.store.verification.file_checks import (
    FrameGap,
    checkpoint_damage,
    rows_damage,
    walk_runs,
)

_ROUNDS_MAX = 8
_REPORT_BYTES = 8 << 20

PIECE_BYTES = 1 << 20

Put = Callable[[int, bytes, bool], None]
"""A function that receives a piece of a file: its offset, its bytes, and True for the last one."""


class Acknowledgement(NamedTuple):
    """The last frame, epoch and offset up to which the log can be read back from a replica."""

    seq: int = 0
    epoch: int = 0
    offset: int = -1


class _FileGoneError(Exception):
    """A file that a frame names does not exist any more, because a checkpoint made it obsolete."""


class Shipper:
    """Keeps one replica up to date with a log; all calls come from one thread.

    Args:
        name: the log as users know it.
        ask: receives the replica's vote, and raises if the replica must not be shipped to; see
            `TakeoverPoll.ask`.
        tell: called whenever an attribute has changed.
        claim: receives the id of the replica's copy, and raises if another replica has the same
            copy; see `CopyClaims.claim`.

    Attributes:
        incarnation: the id of the replica's copy; empty before the first contact.
        acknowledged: the position up to which the replica holds the log; None before the first
            pass; `Acknowledgement()` if its copy is damaged or has another history.
        bytes_sent: the number of bytes that were sent to the replica.
        counted: the end offset of the stream of frames when the backlog was last counted; -1 before
            that.
        backlog_bytes: the number of bytes that the replica lacked then, without local files.
        last_bytes: the number of bytes that it lacked of local files, which ship last.
    """

    def __init__(
        self,
        source: LogSource,
        replica: Replica,
        name: LogName,
        ask: Callable[[TakeoverVote], None],
        tell: Callable[[Shipper], None] = lambda shipper: None,
        claim: Callable[[str], None] = lambda incarnation: None,
    ) -> None:
        self._source, self._replica, self._name = source, replica, name
        self._ask, self._tell, self._claim = ask, tell, claim
        self.incarnation = ""
        self._checkpoint_stamp: tuple[int, int, int] | None = (
            None  # stamp of the checkpoint at the replica
        )
        self._remote_sizes: dict[str, int] | None = None
        self._last_known_sizes: dict[str, int] = {}  # the replica's files at the last contact
        self._bytes_reported = 0  # bytes sent at the last report
        self._doubtful: set[str] = set()  # files of the replica that are damaged
        self.acknowledged: Acknowledgement | None = None
        self.bytes_sent = 0
        self.counted, self.backlog_bytes, self.last_bytes = -1, 0, 0

    def doubt(self, names: Iterable[str]) -> None:
        """Marks files that are damaged at the replica, so that the next pass sends them again.

        Until then the replica counts as having acknowledged nothing.
        """
        self._doubtful.update(names)
        if self._doubtful:
            self._remote_sizes, self.acknowledged = None, Acknowledgement()
            self._tell(self)

    def ship(self, *, written: bool = False) -> bool:
        """Sends everything that the replica lacks; returns True if the replica was behind.

        Args:
            written: see `LogSource.current_view`.

        Raises:
            FencedError: another owner has taken over the log or the replica.
            ReplicaAheadError: the replica holds frames that the log lacks, and a quorum may have
                them.
            DurabilityError: the replica cannot be reached or refuses the call, or a local file
                cannot be read or has not been fetched yet.
            CorruptLogError: a file that the log names is damaged.
        """
        for _ in range(_ROUNDS_MAX):
            view = self._source.current_view(written=written)
            if view is None:
                return False
            try:
                self._count_backlog(view)
                if self._remote_sizes is None:
                    self._tell(self)
                return self._ship_view(view)
            except _FileGoneError as gone:
                missing = gone
            except BaseException:
                self._remote_sizes = None  # the next attempt begins with a promise
                raise
        raise DurabilityError(
            f"'{missing}', which the log names, is missing",
            hint="wait until it is fetched from another replica, or restore it from a copy; then it"
            " is shipped",
        )

    def _ship_view(self, view: LogView) -> bool:
        goal = Acknowledgement(view.end.seq, view.epoch, view.end.offset)
        if self._remote_sizes is None:
            self._start_term(view)
            self._count_backlog(view)
        elif self.acknowledged == goal and self._checkpointed(view):
            if self._send_local_file(view):
                return True
            self._replica.sync(self._source.term, goal.seq)  # raises if the copy is gone
            return False
        sizes = self._remote_sizes
        assert sizes is not None
        missing = sorted(view.files.keys() - sizes.keys() - view.last)
        if missing:
            self._tell(self)
        for name in missing:
            self._send(view, name)
            if self.bytes_sent - self._bytes_reported >= _REPORT_BYTES:
                self._bytes_reported = self.bytes_sent
                self._count_backlog(view)
                self._tell(self)
        for extent in view.extents:
            self._extend(extent)
        if view.state is not None and not self._checkpointed(view):
            self._store_state(view.state)
        self._source.check()
        self._replica.sync(self._source.term, goal.seq)
        self._doubtful.clear()
        self.acknowledged = goal
        self.backlog_bytes = 0
        self._tell(self)
        needed = self._needed_names(view)
        useless = [name for name in sizes if name not in needed]
        if useless:
            self._replica.discard(self._source.term, useless)
            for name in useless:
                del sizes[name]
        return True

    def _send_local_file(self, view: LogView) -> bool:
        """Sends one local file; returns False if none is missing."""
        assert self._remote_sizes is not None
        missing = sorted(view.last - self._remote_sizes.keys())
        if missing:
            self._tell(self)
            self._send(view, missing[0])
        return bool(missing)

    def _send(self, view: LogView, name: str) -> None:
        assert self._remote_sizes is not None
        with closing(self._open(name)) as file:
            self._remote_sizes[name] = verified_rows(
                file, view.files[name], self._store_pieces(name)
            )

    def _count_backlog(self, view: LogView) -> None:
        """Counts the bytes to send: all bytes of the log for a replica that was never reached."""
        sizes = self._last_known_sizes
        missing = [name for name in view.files if name not in sizes or name in self._doubtful]
        self.last_bytes = sum(view.files[name].size or 0 for name in missing if name in view.last)
        missing = [name for name in missing if name not in view.last]
        if view.state is not None and not (view.state.name in sizes and self._may_hold(view.state)):
            missing.append(view.state.name)
        frames = sum(max(0, size - sizes.get(segment.name, 0)) for segment, size in view.extents)
        self.counted = view.end.offset
        self.backlog_bytes = frames + sum(self._source.size(name) or 0 for name in missing)

    def _may_hold(self, state: ShippedCheckpoint) -> bool:
        """Returns True if the replica's checkpoint of this name may be the current one."""
        return self._checkpoint_stamp is None or self._checkpoint_stamp == state.stamp

    def _checkpointed(self, view: LogView) -> bool:
        assert self._remote_sizes is not None
        state = view.state
        return state is None or (
            state.name in self._remote_sizes and state.stamp == self._checkpoint_stamp
        )

    def _needed_names(self, view: LogView) -> set[str]:
        names = {extent.segment.name for extent in view.extents}.union(view.files)
        if view.state is not None:
            names.add(view.state.name)
        return names

    # -- the first pass at a replica ---------------------------------------------------------

    def _start_term(self, view: LogView) -> None:
        """Makes the replica accept the term, and determines which of its files are this log's."""
        promised = self._replica.promise(self._source.term, self._name)
        sizes = dict(promised.files)
        if promised.incarnation != self.incarnation:
            self.incarnation, self.acknowledged = promised.incarnation, None
            self._tell(self)  # another copy, whose acknowledgements are unknown
        elif self.acknowledged is not None and self._replica.acknowledged() < self.acknowledged.seq:
            self.acknowledged = Acknowledgement()  # the copy was restored to an old version
            self._tell(self)
        self._claim(promised.incarnation)
        first = view.extents[0].segment if view.extents else None
        # Only a log that its first owner has just created cannot lack frames: an empty log may be
        # an old copy.
        if first is None or first.before is not None or self._source.generation > 1:
            vote = takeover.vote_of_replica(self._source, self._replica, view, sizes)
            self._ask(vote)
            if vote.ahead:
                # Its acknowledgement is of another history and void; only its existence counts.
                self._replica.sync(self._source.term, min(1, self._replica.acknowledged()))
                self.acknowledged = Acknowledgement()
        self._checkpoint_stamp = None
        for name, size in list(sizes.items()):
            if file_layout.is_frames(name):
                continue
            expected = view.files[name].size if name in view.files else None
            if (self._source.size(name) if expected is None else expected) not in (None, size):
                del sizes[name]  # incomplete, or another file: it will be overwritten
        for segment, size in view.extents:
            has = sizes.get(segment.name)
            if has is None:
                continue
            # Bytes after the start of the next segment are not part of the log, here and at the
            # replica. The last segment has no next one, so additional bytes at the replica would
            # count as part of the log.
            grows = segment is view.extents[-1].segment
            same = min(has, size)
            if (grows and has > size) or self._differs(segment.name, same):
                del sizes[segment.name]
        for name in self._doubtful:
            sizes.pop(name, None)
        if view.state is not None and self._holds_checkpoint(view.state, sizes):
            self._checkpoint_stamp = view.state.stamp
        self._remote_sizes = self._last_known_sizes = sizes

    def _holds_checkpoint(self, state: ShippedCheckpoint, sizes: Mapping[str, int]) -> bool:
        """Returns True if the replica has the same checkpoint, so that it need not be sent."""
        size = sizes.get(state.name)
        return (
            size is not None
            and size == self._source.size(state.name)
            and not self._differs(state.name, size)
            and self._source.stamp(state.name) == state.stamp
        )

    def _differs(self, name: str, size: int) -> bool:
        return self._source.digest(name, size) != self._replica.digest(name, size)

    # -- sending -----------------------------------------------------------------------------

    def _store_pieces(self, name: str) -> Put:
        """Returns the function that sends the pieces of a whole file."""

        def store_piece(offset: int, data: bytes, last: bool) -> None:
            self._replica.store(self._source.term, name, offset, data, last=last)
            self.bytes_sent += len(data)

        return store_piece

    def _store_state(self, state: ShippedCheckpoint) -> None:
        """Sends a checkpoint; raises _FileGoneError if it was replaced since the view was taken."""
        assert self._remote_sizes is not None
        with closing(self._open(state.name)) as file:
            if file.stamp() != state.stamp:
                raise _FileGoneError(state.name)
            self._remote_sizes[state.name] = verified_checkpoint(
                file, state.name, self._store_pieces(state.name)
            )
        self._checkpoint_stamp = state.stamp

    def _extend(self, extent: SegmentExtent) -> None:
        """Sends the missing bytes of a segment."""
        assert self._remote_sizes is not None
        sizes, (segment, size) = self._remote_sizes, extent
        name, has = segment.name, sizes.get(segment.name)
        if has is not None and has >= size:
            return
        if has is None:
            # The new segment appears at once, so the bytes appended to earlier segments must be
            # durable first.
            self._replica.sync(self._source.term, None)
            with closing(self._open(name)) as file:
                whole_segment(file, segment, size, self._store_pieces(name))
            sizes[name] = size
            return

        def append_piece(offset: int, data: bytes, _last: bool) -> None:
            self._replica.append(self._source.term, name, offset, data)
            sizes[name] = offset + len(data)
            self.bytes_sent += len(data)

        with closing(self._open(name)) as file:
            verified_growth(file, segment, self._source.mark(segment, has), has, size, append_piece)

    def _open(self, name: str) -> File:
        try:
            return self._source.open(name)
        except DurabilityError as error:
            if error.errno == errno.ENOENT:
                raise _FileGoneError(name) from None
            raise


def verified_rows(file: File, wanted: FileReference, put: Put) -> int:
    """Verifies a file of rows, and passes its bytes to `put`; returns its size.

    Raises:
        CorruptLogError: it is not the file that the log names; the last piece was not passed on.
    """
    size = file.size()
    pieces = _PieceWriter(put)
    for flaw in rows_damage(file.read_at, size, wanted, pieces.add_bytes):
        raise _damaged_error(wanted.name, flaw.why)
    pieces.end()
    return size


def verified_checkpoint(file: File, name: str, put: Put) -> int:
    """Verifies a checkpoint, and passes its bytes to `put`; returns its size.

    Raises:
        CorruptLogError: the checkpoint is damaged; nothing was passed on.
    """
    data = file.read_at(0, file.size())
    if why := checkpoint_damage(data, name, file.path):
        raise _damaged_error(name, why)
    for start in range(0, len(data), PIECE_BYTES):
        piece = data[start : start + PIECE_BYTES]
        put(start, piece, start + len(piece) == len(data))
    return len(data)


def whole_segment(file: File, segment: Segment, size: int, put: Put) -> None:
    """Verifies the first `size` bytes of a segment, which end with a frame; passes them to `put`.

    Raises:
        CorruptLogError: the bytes are damaged; the last piece was not passed on.
    """
    header = file.read_at(0, HEADER_BYTES)
    if header != encode_header(segment):
        raise _damaged_error(segment.name, "its header does not match its checksum")
    pieces = _PieceWriter(put)
    pieces.add_bytes(header)
    for data in _verified_frames(file, segment, segment.start, size):
        pieces.add_bytes(data)
    pieces.end()


def verified_growth(
    file: File, segment: Segment, known: Mark, has: int, size: int, put: Put
) -> None:
    """Verifies the bytes of a segment from `has` to `size`, and passes them to `put`.

    Args:
        known: the mark of a frame of the segment that ends at `has` or before.
        has: the number of bytes that the replica has.
        size: the number of bytes that are part of the log; a frame ends there.

    Raises:
        CorruptLogError: a frame is damaged; the bytes before it were passed on.
    """
    at = segment.local(known.offset)
    for data in _verified_frames(file, segment, known, size):
        for start in range(0, len(data), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            end = at + len(piece)
            if end > has:
                more = piece[max(0, has - at) :]
                put(end - len(more), more, end == size)
            at = end


class _PieceWriter:
    """Passes a file to `put` in pieces; holds the last one back until `end`, to mark it as last."""

    def __init__(self, put: Put) -> None:
        self._put = put
        self._offset = 0
        self._buffer = bytearray()

    def add_bytes(self, data: bytes) -> None:
        """Adds the next bytes, and passes on every piece that another one follows."""
        self._buffer += data
        while len(self._buffer) > PIECE_BYTES:
            self._write(bytes(self._buffer[:PIECE_BYTES]), last=False)

    def end(self) -> None:
        """Passes on the remaining bytes as the last piece."""
        self._write(bytes(self._buffer), last=True)

    def _write(self, data: bytes, *, last: bool) -> None:
        self._put(self._offset, data, last)
        self._offset += len(data)
        del self._buffer[: len(data)]


def _verified_frames(file: File, segment: Segment, known: Mark, size: int) -> Iterator[bytes]:
    """Yields the verified bytes of the frames after a mark, up to `size`."""
    stop = segment.start.offset + size - HEADER_BYTES
    for each in walk_runs(file.read_at, segment, stop, start=known, resume=False):
        if isinstance(each, FrameGap):
            raise _damaged_error(segment.name, f"frame {each.seq}: {each.reason}")
        yield each.data


def _damaged_error(name: str, why: str) -> CorruptLogError:
    return CorruptLogError(
        f"'{name}' is damaged on this machine, and is not shipped: {why}",
        hint="restore it from a copy if it is not repaired from a replica",
    )
