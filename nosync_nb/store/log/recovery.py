"""Finds the state of a log without changing it, and makes the segment of a new owner."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from nosync_nb.errors import CorruptLogError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.log import checkpoint, segments, tail
from nosync_nb.store.log.checkpoint import Checkpoint
from nosync_nb.store.log.fencing import ControlBlock, WriterLease
from nosync_nb.store.log.frames import Mark, genesis_mark
from nosync_nb.store.log.owner import HostIdentity, LastWriter, LogOwner
from nosync_nb.store.log.segments import Chain, Segment
from nosync_nb.store.log.tail import LogTail
from nosync_nb.store.log.writer import Writer

NOTHING = Mark(0, 0, b"")


class RecoveredLog(NamedTuple):
    """The newest checkpoint that fits, the frames after it, and the notes to report.

    `clean`: the last owner closed the log properly and all its frames are present. `noted` is the
    last number that it left (`Log.note`), 0 if it is not known. `unread` are newer checkpoints that
    could not be read now. `heads` are the headers of all segments, part of the log or not.
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

    With `follow`, if the owner may still be writing, only the frames that it has published are
    read.

    Raises:
        CorruptLogError: something that was on disk is missing or damaged.
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
    rest = tail.read_tail(
        files, folder, chain, start, known=known, strict=same_boot, upto=published
    )
    closed = owner is not None and last.closed and owner.known == rest.end.seq
    noted = words.last_note(_newest_generation(names)) or 0
    notes += rest.notes
    heads = [] if follow else _read_headers(files, folder, names, chain.live)
    return RecoveredLog(state, rest, chain.live, closed, notes, noted, unread, heads)


def _read_headers(
    files: Files, folder: str, names: Sequence[str], live: Sequence[Segment]
) -> list[Segment]:
    """Returns the headers of all segments; those of the log are read already."""
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
    """Makes the segment of a new owner, with all frames that are not known to be synced."""
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
    """Returns the checkpoints before the one that is used if this one cannot be read.

    Failure: 1. The writer of a checkpoint dies before it deletes the oldest of three. 2. The next
    opening deletes the files that the other two do not name. 3. A later opening falls back to the
    oldest: files that it names, and frames after it, are missing. Hence an opening deletes these.
    """
    if state is None:
        return []
    current = checkpoint.file_name(state.mark.seq, state.generation)
    return [name for name in checkpoint.checkpoint_names(names) if name < current][1:]


def _last_durable(words: ControlBlock, names: Sequence[str]) -> int:
    """Returns the last seq that the newest generation recorded as on disk; 0 if unknown."""
    return words.durable(_newest_generation(names)) or 0


def _newest_generation(names: Sequence[str]) -> int:
    """Returns the generation that wrote last; 0 for a new log."""
    listed = segments.segment_names(names)
    return listed[-1][0] if listed else 0


def newest_checkpoint(
    files: Files, folder: str, names: Sequence[str]
) -> tuple[Checkpoint | None, Chain, list[str], list[str]]:
    """Returns the newest checkpoint that is whole and belongs to this history.

    Returns as well the names of those that could not be read, which a later opening may succeed to
    read, and the notes to report.
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
        if tail.tail_holds(files, folder, chain, state.mark):
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
