"""Finds the state of a log without changing it, and creates the segment of a new owner.

`recover_log` finds the newest checkpoint and the tail after it. `catch_up_tail` appends frames that
the last owner acknowledged elsewhere and the local disk has lost. `begin_segment` is the only
function here that writes.

The valid tail is the longest run of frames that follow each other by number, offset and digest. If
the bytes after it were never synced, they are dropped, and that is reported. If they were, the log
is damaged, and nothing is dropped. The evidence is:

1. `known`: the last seq that the owner, a checkpoint or the caller knows to be on disk;
2. the field `durable` of every later header that still verifies: it states what was on disk when
   that frame was written;
3. `strict`: the machine has not been restarted since the last owner wrote. Then its page cache is
   complete, a gap cannot come from a power failure, and any later frame is evidence.

Frames that were written and not synced are lost in a power failure. A folder that is restored from
a copy ends with the last frame of the copy. Replicas may have received more frames. The opening
asks the replicas for these frames if the last owner did not close the log, and the disk may have
changed since. Frames in the reply are accepted while they continue the log by number, offset and
digest. They are written again into the new owner's segment, like all frames that are not known to
be synced. So no existing file is changed, and a crash leaves the log as it was.

Failure: 1. The reply contains frames of a later owner, which continued the log elsewhere. 2. This
owner would continue the log beside it. Hence only frames of the last owner of this folder are
accepted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import NamedTuple

from nosync_nb.errors import CorruptLogError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.log import checkpoint, frames, segments
from nosync_nb.store.log.checkpoint import Checkpoint
from nosync_nb.store.log.fencing import ControlBlock, WriterLease
from nosync_nb.store.log.frames import Damage, Frame, Mark, genesis_mark
from nosync_nb.store.log.owner import HostIdentity, LastWriter, LogOwner
from nosync_nb.store.log.segments import Chain, Segment
from nosync_nb.store.log.writer import Writer

_HINT = "restore the file from a copy; nothing in the segments was changed"


class LogTail(NamedTuple):
    """The frames after a mark.

    Attributes:
        end: the mark after the last frame.
        durable: the mark after the last frame that is known to be on disk.
        pieces: the bytes that were read, each piece with its offset in the stream.
        notes: messages to report.
    """

    frames: list[Frame]
    end: Mark
    durable: Mark
    pieces: list[tuple[int, bytes]]
    notes: list[str]

    def bytes_after(self, mark: Mark) -> list[bytes]:
        """Returns the stream from `mark` to the end, as it was read."""
        parts = []
        for origin, data in self.pieces:
            first = max(mark.offset, origin) - origin
            last = min(self.end.offset, origin + len(data)) - origin
            if first < last:
                parts.append(data[first:last])
        return parts


def read_tail(
    files: Files,
    folder: str,
    chain: Chain,
    start: Mark,
    *,
    known: int = 0,
    strict: bool = False,
    upto: int | None = None,
) -> LogTail:
    """Reads and verifies everything after `start`, or only up to the offset `upto`.

    Args:
        known: the number of the last frame that is known to be on disk.
        strict: True if any later frame is evidence that a gap is damage; see the module.

    Raises:
        CorruptLogError: a frame that was on disk is missing or damaged; names file and offset.
    """
    verified: list[Frame] = []
    pieces: list[tuple[int, bytes]] = []
    end, damage, cut = start, None, 0
    for index, segment in enumerate(chain.live):
        if not _continues(segment, end, first=index == 0):
            damage = Damage(end.offset, f"'{segment.name}' does not continue the chain")
            break
        cut = index + 1
        limit = chain.live[cut].start.offset if cut < len(chain.live) else upto
        if upto is not None and limit is not None and limit >= upto:
            limit, cut = upto, len(chain.live)
        data = _read_content(files, folder, segment, end.offset, limit)
        more, damage = frames.scan_buffer(data, end.offset, end)
        pieces.append((end.offset, data))
        verified += more
        end = more[-1].end if more else end
        if damage is None and limit is not None and end.offset < limit:
            damage = Damage(end.offset, "the file is too short")
        if damage is not None or (upto is not None and end.offset >= upto):
            break
    notes = _notes_or_damage(files, folder, chain, cut, end, damage, pieces, known, strict)
    headers = [segment.durable for segment in chain.live]
    durable = _mark_up_to(max([known, *headers]), start, verified)
    return LogTail(verified, end, durable, pieces, notes)


def tail_holds(files: Files, folder: str, chain: Chain, mark: Mark) -> bool:
    """Returns True if the frame that ends at `mark` is in the log, according to its digest."""
    for segment in reversed(chain.live):
        if segment.start.offset == mark.offset:
            return segment.start == mark
        if segment.start.offset < mark.offset:
            at = segment.local(mark.offset) - frames.TRAILER_BYTES
            with closing(files.open(os.path.join(folder, segment.name))) as file:
                trailer = file.read_at(at, frames.TRAILER_BYTES)
            return trailer[: frames.DIGEST_BYTES] == mark.chain
    return False


def _continues(segment: Segment, end: Mark, *, first: bool) -> bool:
    """Returns True if a segment begins at the end of the stream; the first may begin before it."""
    return segment.start == end or (first and segment.start.offset < end.offset)


def _read_content(
    files: Files, folder: str, segment: Segment, offset: int, limit: int | None
) -> bytes:
    """Reads a segment from an offset of the stream up to `limit`, or to its end."""
    with closing(files.open(os.path.join(folder, segment.name))) as file:
        stop = file.size() if limit is None else segment.local(limit)
        at = segment.local(offset)
        return file.read_at(at, max(0, stop - at))


def _notes_or_damage(
    files: Files,
    folder: str,
    chain: Chain,
    cut: int,
    end: Mark,
    damage: Damage | None,
    pieces: list[tuple[int, bytes]],
    known: int,
    strict: bool,
) -> list[str]:
    """Returns the notes about ignored bytes after `end`; raises CorruptLogError for damage."""
    later, durable = 0, known
    for origin, data in pieces[-1:]:
        later, stated = frames.proves(data, origin, end)
        durable = max(durable, stated)
    names = [segment.name for segment in chain.live[cut:]] + chain.detached
    for name in names:
        count, stated = _evidence(files, folder, name, end)
        later, durable = later + count, max(durable, stated)
    if damage is None and not names and durable <= end.seq:
        return []
    where = _break_position(chain, cut, end)
    reason = damage.reason if damage else f"'{chain.missing}' is missing or unreadable"
    if durable > end.seq or (strict and later):
        raise CorruptLogError(
            f"'{os.path.join(folder, where[0])}' is damaged at byte {where[1]}: {reason}; "
            f"frame {end.seq + 1} was in the log"
            + (f", and everything up to {durable} was on disk" if durable > end.seq else ""),
            hint=_HINT,
        )
    tail_bytes = sum(origin + len(data) - end.offset for origin, data in pieces[-1:])
    text = f"{where[0]}: {max(0, tail_bytes)} bytes after frame {end.seq} were never synced"
    return [f"{text} and are ignored ({reason})"]


def _break_position(chain: Chain, cut: int, end: Mark) -> tuple[str, int]:
    """Returns the file and the byte where the stream breaks off."""
    if chain.live:
        segment = chain.live[max(0, cut - 1)]
        return segment.name, segment.local(end.offset)
    return chain.missing or segments.file_name(0, 0), 0


def _evidence(files: Files, folder: str, name: str, end: Mark) -> tuple[int, int]:
    """Returns the number of later frames in a detached segment, and the greatest `durable`."""
    data = files.read(os.path.join(folder, name))
    segment = segments.decode_header(data)
    body = data[segments.HEADER_BYTES :]
    if segment is None:
        return frames.proves(body, None, end)
    count, durable = frames.proves(body, segment.start.offset, end)
    return count + 1, max(durable, segment.durable)


def _mark_up_to(seq: int, start: Mark, verified: list[Frame]) -> Mark:
    """Returns the mark after frame `seq`, or the nearest mark among those that were read."""
    if seq <= start.seq or not verified:
        return start
    return verified[min(seq - start.seq, len(verified)) - 1].end


NOTHING = Mark(0, 0, b"")


class RecoveredLog(NamedTuple):
    """The newest checkpoint that fits the log, the frames after it, and the notes to report.

    Attributes:
        clean: True if the last owner closed the log properly and all its frames are present.
        noted: the last number that this owner recorded (`Log.note`); 0 if it is not known.
        unread: the names of newer checkpoints that could not be read.
        heads: the headers of all segments, including those that are not part of the log.
    """

    checkpoint: Checkpoint | None
    tail: LogTail
    live: list[Segment]
    clean: bool
    notes: list[str]
    noted: int
    unread: list[str]
    heads: list[Segment]


def recover_log(
    files: Files,
    folder: str,
    words: ControlBlock,
    owner: LogOwner | None,
    machine: HostIdentity,
    *,
    follow: bool = False,
) -> RecoveredLog:
    """Finds the newest checkpoint and verifies the tail after it.

    Args:
        follow: if True and the owner may still be writing, only the frames that it has published
            are read.

    Raises:
        CorruptLogError: data that were on disk are missing or damaged.
    """
    me = machine.identity()
    names = files.names(folder)
    last = owner.last(_newest_generation(names)) if owner else LastWriter()
    # On the same boot the page cache of the last writer still exists.
    same_boot = bool(me.boot) and (last.host, last.boot) == (me.host, me.boot)
    published = words.published(words.generation) if follow and same_boot else None
    known = max(owner.known if owner else 0, _last_durable(words, names))
    state, chain, unread, notes = newest_checkpoint(files, folder, names)
    start = state.mark if state else chain.live[0].start if chain.live else NOTHING
    if start.offset < (chain.live[0].start.offset if chain.live else 0):
        raise CorruptLogError(
            f"'{folder}' has no segments before {chain.live[0].name}, and no checkpoint for them",
            hint="restore the missing files from a copy",
        )
    known = max(known, start.seq)
    rest = read_tail(files, folder, chain, start, known=known, strict=same_boot, upto=published)
    closed = owner is not None and last.closed and owner.known == rest.end.seq
    noted = words.last_note(_newest_generation(names)) or 0
    notes += rest.notes
    heads = [] if follow else _read_headers(files, folder, names, chain.live)
    return RecoveredLog(state, rest, chain.live, closed, notes, noted, unread, heads)


def _read_headers(
    files: Files, folder: str, names: Sequence[str], live: Sequence[Segment]
) -> list[Segment]:
    """Returns the headers of all segments; those of live segments are not read again."""
    live_headers = {one.key: one for one in live}
    headers = (
        live_headers.get(k) or segments.read_header(files, folder, k)
        for k in segments.segment_names(names)
    )
    return [one for one in headers if one is not None]


def begin_segment(
    files: Files,
    where: str,
    lease: WriterLease,
    recovered: RecoveredLog,
    *,
    delay_s: float,
    background: bool,
) -> Writer:
    """Creates the segment of a new owner, with all frames that are not known to be synced."""
    start, live = recovered.tail.durable, recovered.live
    word = os.urandom(segments.WORD_BYTES)
    if live:
        segment = segments.next_segment_name(live, start, lease.number, start.seq, word)
    else:
        log_id = os.urandom(16)
        start = genesis_mark(log_id)
        segment = Segment(log_id, lease.number, 1, start, None, 0, word)
    unsynced = recovered.tail.bytes_after(start)
    file = segments.create_segment(files, where, segment, unsynced, sync=True)
    head = recovered.tail.end if live else start
    empty = [one.name for one in live if one.start.offset >= head.offset]
    names = files.names(where)
    obsolete = _obsolete_checkpoints(names, recovered.checkpoint)
    for name in names:
        if name in empty or name in obsolete or name.endswith(".tmp"):
            files.unlink(os.path.join(where, name))
    older = [one for one in live if one.start.offset < start.offset]
    return Writer(
        files, where, lease, [*older, segment], file, head, delay_s=delay_s, background=background
    )


def _obsolete_checkpoints(names: Sequence[str], state: Checkpoint | None) -> list[str]:
    """Returns the checkpoints that are older than the one before the current checkpoint.

    Failure: 1. The writer of a checkpoint dies before it deletes the oldest of three. 2. The next
    opening deletes the files that the other two do not name. 3. A later opening falls back to the
    oldest: files that it names, and frames after it, are missing. Hence an opening deletes these.
    """
    if state is None:
        return []
    current = checkpoint.file_name(state.mark.seq, state.generation)
    return [name for name in checkpoint.checkpoint_names(names) if name < current][1:]


def _last_durable(words: ControlBlock, names: Sequence[str]) -> int:
    """Returns the last frame that the newest generation recorded as being on disk; 0 if unknown."""
    return words.durable(_newest_generation(names)) or 0


def _newest_generation(names: Sequence[str]) -> int:
    """Returns the generation that wrote last; 0 for a new log."""
    listed = segments.segment_names(names)
    return listed[-1][0] if listed else 0


def newest_checkpoint(
    files: Files, folder: str, names: Sequence[str]
) -> tuple[Checkpoint | None, Chain, list[str], list[str]]:
    """Returns the newest checkpoint that is undamaged and belongs to this history.

    Returns:
        the checkpoint, or None; the chain of segments; the names of newer checkpoints that could
        not be read now, but may be readable later; the notes to report.
    """
    unread: list[str] = []
    notes: list[str] = []
    for name in checkpoint.checkpoint_names(names):
        state = checkpoint.read_checkpoint(files, folder, name)
        if isinstance(state, str):
            notes.append(f"{state}; the previous one is used")
            unread.append(name)
            continue
        chain = segments.linked_segments(files, folder, names, since=state.mark.offset)
        if tail_holds(files, folder, chain, state.mark):
            return state, chain, unread, notes
        if not leftover_files(state, chain.live):
            place = chain.missing or (chain.live[0].name if chain.live else "its segment")
            raise CorruptLogError(
                f"'{os.path.join(folder, place)}': frame {state.mark.seq}, the position of"
                f" checkpoint '{name}', is missing or damaged",
                hint="restore the file from a copy; nothing was changed",
            )
        notes.append(f"{name}: ignored, because it was written by an owner that had been replaced")
    return None, segments.linked_segments(files, folder, names), unread, notes


def leftover_files(state: Checkpoint, live: Sequence[Segment]) -> bool:
    """Returns True if a later generation began before the mark of a checkpoint."""
    return any(
        one.generation > state.generation and one.start.offset < state.mark.offset for one in live
    )


class CaughtUpFrames(NamedTuple):
    """The bytes of frames after a mark, and a function that returns a note on accepted frames."""

    data: bytes
    told: Callable[[list[Frame]], str]


Ask = Callable[[Segment, Mark], CaughtUpFrames | None]
"""Returns the frames after a mark that replicas have from the owner of the newest segment."""


def may_lack_frames(recovered: RecoveredLog, lease: WriterLease, machine: HostIdentity) -> bool:
    """Returns True if the last owner may have written frames that this disk lacks."""
    before = lease.before
    if before is None or not recovered.live or lease.copied:
        return False
    wrote, me = before.last(recovered.live[-1].generation), machine.identity()
    same_boot = bool(me.boot) and (wrote.host, wrote.boot) == (me.host, me.boot)
    moved = bool(before.place.path) and before.place[1:] != lease.owner.place[1:]
    return not wrote.closed and (moved or not same_boot)


def catch_up_tail(
    recovered: RecoveredLog, lease: WriterLease, machine: HostIdentity, ask: Ask | None
) -> RecoveredLog:
    """Returns the recovered log, extended by the frames of its last owner that replicas have."""
    recovered.notes.extend(lease.copied)
    if ask is None or not may_lack_frames(recovered, lease, machine):
        return recovered
    tail, head = recovered.tail, recovered.live[-1]
    reply = ask(head, tail.end)
    if reply is None:
        return recovered
    received, _ = frames.scan_buffer(reply.data, tail.end.offset, tail.end)
    accepted = [each for each in received if each.generation == head.generation]
    if not accepted or len(accepted) < len(received):
        return recovered
    local_pieces = [(at, data[: max(0, tail.end.offset - at)]) for at, data in tail.pieces]
    longer = tail._replace(
        frames=[*tail.frames, *accepted],
        end=accepted[-1].end,
        pieces=[*local_pieces, (tail.end.offset, reply.data)],
    )
    return recovered._replace(tail=longer, notes=[*recovered.notes, reply.told(accepted)])
