"""Fetches frames of a log's last owner that replicas have and the log's own disk has lost.

This runs while a log is opened, and only if its disk may lack frames (`store/log/catch_up.py`):
after a power loss, or if the folder was restored from a copy. The keeper may have shipped frames
that were written and never synced. All replicas are asked at once, and none is waited for longer
than `remote_call.CATCH_UP` allows. The log is then opened without the silent ones, as when no
replica can be reached. If such a replica has more frames, the takeover vote finds them later, and
the log does not continue (takeover.py).

A copy is asked for acknowledged frames in segments of that owner, identified by its word, that lead
back to the end of the log here. Files of rows are fetched when they are read (lazy_fetch.py).

Failure: a copy has a checkpoint, and has deleted the files that it made obsolete: segments, and
files that only earlier frames name. Such a frame would be taken without its rows. Hence the result
ends before the first frame that names a file which the copy lacks. If the segments do not lead back
to the log's end, nothing is taken. A log that is so far behind is restored from its replicas
(restore.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from nosync_nb.errors import CorruptLogError, NosyncError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.log import Frame, frames, segments
from nosync_nb.store.log.catch_up import Ask, CaughtUpFrames
from nosync_nb.store.log.frames import Mark
from nosync_nb.store.log.segments import HEADER_BYTES, Segment
from nosync_nb.store.records import file_references, payloads
from nosync_nb.store.replication import config, file_layout, remote_call
from nosync_nb.store.replication.address import ReplicaAddress
from nosync_nb.store.replication.config import ReplicaConfig
from nosync_nb.store.replication.endpoints import connect_site
from nosync_nb.store.replication.protocol import Replica
from nosync_nb.store.replication.remote_call import Beat, call_all
from nosync_nb.store.safe_decoding import guarded_decoding

BYTES_MAX = 64 << 20
"""The most bytes that are taken; a checkpoint is due after much fewer."""


def replicas_to_ask(files: Files, path: str, named: ReplicaConfig | None = None) -> Ask:
    """Returns the function that asks the given replicas, or those that are stored with a log.

    A folder that was restored from a copy has no valid settings: they are signed for the original.
    """

    def ask(head: Segment, end: Mark) -> CaughtUpFrames | None:
        with suppress(NosyncError):
            settings = named or config.read_config(files, path, head.log_id)
            if settings.replicas and not settings.unprepared:
                return furthest_replica(files, settings.replicas, head, end)
        return None

    return ask


def furthest_replica(
    files: Files, replicas: Sequence[ReplicaAddress], head: Segment, end: Mark
) -> CaughtUpFrames | None:
    """Returns the frames of the replica that goes furthest; None if none goes beyond a mark.

    Args:
        head: of the newest local segment.
    """
    calls = [(each.url, _FramesAfter(files, each, head, end)) for each in replicas]
    answers = zip(replicas, call_all(calls, remote_call.CATCH_UP), strict=True)
    results = [(each.url, reply) for each, reply in answers if isinstance(reply, bytes) and reply]
    if not results:
        return None
    url, data = max(results, key=lambda one: len(one[1]))
    return CaughtUpFrames(data, lambda taken: _notice(url, taken))


def _has_files(frame: Frame, sizes: Mapping[str, int]) -> bool:
    """Returns True if a copy has the files that a frame names."""
    with guarded_decoding(f"frame {frame.position.seq}"):
        wanted = file_references.files_of_frame(frame.payload).files.values()
    return all(each.held_in(sizes) for each in wanted)


def _notice(url: str, taken: list[Frame]) -> str:
    """Returns the notice to the user about the fetched frames."""
    epochs = [
        payloads.decode_payload(frame.payload).epoch
        for frame in taken
        if frame.kind == payloads.EPOCH
    ]
    what = f"epochs {epochs[0]} to {epochs[-1]}" if epochs[1:] else f"frame {taken[0].position.seq}"
    what = f"epoch {epochs[0]}" if len(epochs) == 1 else what
    return f"this disk had lost {what}; restored from {url}"


class _FramesAfter:
    """Reads the frames of one replica after a mark, of the owner of a segment."""

    def __init__(self, files: Files, address: ReplicaAddress, head: Segment, end: Mark) -> None:
        self._files, self._address = files, address
        self._head, self._end = head, end

    def __call__(self, beat: Beat) -> bytes:
        replica = connect_site(self._address, self._files).replica(self._head.log_id)
        try:
            acknowledged = replica.acknowledged()
            beat()
            has_more = acknowledged > self._end.seq
            return self._readable_bytes(replica, acknowledged, beat) if has_more else b""
        finally:
            replica.close()

    def _readable_bytes(self, replica: Replica, acknowledged: int, beat: Beat) -> bytes:
        """Returns the bytes of the frames after the mark that can be read with their rows."""
        sizes = replica.held().files
        beat()
        stream = self._segment_bytes(replica, sizes, beat)
        last = self._end
        for frame in frames.scan_buffer(stream, self._end.offset, self._end)[0]:
            if frame.position.seq > acknowledged or not _has_files(frame, sizes):
                break
            last = frame.end
        return stream[: last.offset - self._end.offset]

    def _segment_bytes(self, replica: Replica, sizes: Mapping[str, int], beat: Beat) -> bytes:
        """Returns the bytes after the mark; empty if they are missing, or of several owners."""
        parts: list[bytes] = []
        newest = segments.segment_names([*filter(file_layout.is_segment, sizes)])[-1:]
        which, stop, size = newest[0] if newest else None, None, 0
        while which is not None:
            name = segments.file_name(*which)
            segment = (
                segments.decode_header(replica.read(name, 0, HEADER_BYTES))
                if name in sizes
                else None
            )
            if segment is None or not self._same_owner(segment):
                return b""
            last = segment.start.offset + sizes[name] - HEADER_BYTES if stop is None else stop
            first = max(segment.start.offset, self._end.offset)
            size += last - first
            if last < first or size > BYTES_MAX:
                return b""
            data = replica.read(name, segment.local(first), last - first)
            if len(data) < last - first:
                raise CorruptLogError(
                    f"'{name}' ends before byte {segment.local(last)} on the replica"
                )
            parts.append(data)
            beat()
            if segment.start.offset <= self._end.offset:
                return b"".join(reversed(parts))
            which, stop = segment.before, segment.start.offset
        return b""

    def _same_owner(self, segment: Segment) -> bool:
        """Returns True if a segment is of the owner that wrote last here."""
        one, two = segment, self._head
        return (one.log_id, one.generation, one.word) == (two.log_id, two.generation, two.word)
