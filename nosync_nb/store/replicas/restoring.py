"""Restoring: a log made anew from what replicas hold, where its own disk has nothing any more.

    promise: replicas take nothing of an earlier owner, so many that one has all that was safe
    choose: of those the copy that goes furthest and is whole
    copy: into a folder beside the log's, which takes its place by one rename

Failure: a replica was not there when a log was made anew, and holds frames that nobody was told of;
the log went on without them. It comes back, and its copy is the longest. Hence the copy that goes
furthest is the longest of those that the latest owner shipped to.

Nothing that a replica holds is believed before it was verified, frame by frame and file by file as
at any opening. A crash on the way leaves the log's folder as empty as it was.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from itertools import pairwise
from typing import NamedTuple

from nosync_nb.errors import CorruptLogError, DurabilityError, FencedError, SchemaError, TrustError
from nosync_nb.files.disk import Files
from nosync_nb.store import journal, naming
from nosync_nb.store.decoding import decoding
from nosync_nb.store.log import checkpoint, frames, generation, segments, tail
from nosync_nb.store.log.checkpoint import Checkpoint
from nosync_nb.store.log.frames import Frame, Mark
from nosync_nb.store.log.segments import Chain, Segment
from nosync_nb.store.replicas import layout
from nosync_nb.store.replicas.address import Address
from nosync_nb.store.replicas.replica import Name, Replica, Term
from nosync_nb.store.replicas.settings import Replicas, readers, signer
from nosync_nb.store.replicas.sites import connect

_PIECE_BYTES = 1 << 20


class Copy(NamedTuple):
    """What of a replica can be read back: files with their sizes, and the last frame.

    Attributes:
        sizes: how many bytes of each file are part of it.
        generation: of the last owner who shipped to it.
        end: after the last frame.
    """

    url: str
    replica: Replica
    sizes: dict[str, int]
    generation: int
    end: Mark


class Stretch(NamedTuple):
    """Segments of a replica that follow each other, and the folder that they can be read in."""

    url: str
    replica: Replica
    folder: str
    held: Mapping[str, int]
    live: Sequence[Segment]


class Restored(NamedTuple):
    """From which replica a log was made anew, up to which frame."""

    url: str
    seq: int


Answers = list[tuple[Address, dict[bytes, Name]]]
"""Replicas that can be asked, each with the logs that it holds something of, by their ids."""


def restore(path: str, settings: Replicas, files: Files | None = None) -> Restored | None:
    """Makes a log's folder anew that is not there or empty; None if it is, or no replica has it.

    The log is the one that lay at this path and was signed with this user's key; or the one whose
    id follows a replica's URL.

    Raises:
        DurabilityError: too few replicas answer to be sure that nothing is lost, or the copy
            cannot be written.
        SchemaError: it cannot be told which log is meant.
        CorruptLogError: no copy can be read.
    """
    files = files or Files()
    if not settings.replicas or (files.exists(path) and files.names(path)):
        return None
    for address in settings.replicas:
        with suppress(DurabilityError):  # it is said below why it does not answer
            connect(address, files).prepare()
    name = Name(path, signer(files), len(settings.replicas), settings.quorum)
    answers, silent = _answers(files, settings)
    which = _which(name, answers, settings)
    if which is None and not silent:
        return None
    _enough(path, settings, silent)
    if which is None:
        return None
    # Of one that has nothing of the log it is not known whether it ever had.
    silent += [f"{a.url}: it holds nothing of the log" for a, logs in answers if which not in logs]
    said = [logs[which] for _, logs in answers if which in logs]
    settings = _strictest(settings, said)
    _enough(path, settings, silent)
    replicas = [
        (address.url, connect(address, files).replica(which))
        for address, logs in answers
        if which in logs
    ]
    with ExitStack() as given_back:
        for _, replica in replicas:
            given_back.callback(replica.close)
        promised, silent = _promise(replicas, name, silent)
        copies = []
        for url, replica in replicas:
            try:
                if replica.promised() == promised:
                    copies.append(examined(files, url, replica))
            except (CorruptLogError, DurabilityError) as error:
                silent.append(f"{url}: {error}")
        _enough(path, settings, silent)
        if not copies:
            raise CorruptLogError(
                f"'{path}' is empty, and none of its copies can be read: {'; '.join(silent)}",
                hint="bring more of the replicas back",
            )
        best = max(copies, key=lambda copy: (copy.generation, copy.end.seq))
        _copy(files, path, best, promised.generation)
        return Restored(best.url, best.end.seq)


def _answers(files: Files, settings: Replicas) -> tuple[Answers, list[str]]:
    """Asks the replicas which logs they hold; says also why some do not answer."""
    answers: Answers = []
    silent = []
    for address in settings.replicas:
        try:
            logs = connect(address, files).logs()
            answers.append((address, {log_id: said.name for log_id, said in logs.items()}))
        except (DurabilityError, CorruptLogError, TrustError) as error:
            silent.append(f"{address.url}: {error}")
    return answers, silent


def _strictest(settings: Replicas, said: Iterable[Name]) -> Replicas:
    """The settings, or those under which copies were made if it takes more of these to be sure."""
    by = max(said, key=lambda name: readers(name.replicas, name.quorum))
    count, needed = len(settings.replicas), readers(by.replicas, by.quorum)
    return settings._replace(quorum=min(settings.quorum, max(0, count - needed + 1)))


def _which(name: Name, answers: Answers, settings: Replicas) -> bytes | None:
    """The id of the log that is meant; None if the replicas that answer have none of its name."""
    there = {log_id: known for _, logs in answers for log_id, known in logs.items()}
    asked = {each.log_id for each in settings.replicas if each.log_id is not None}
    if asked:
        (which, *others) = asked
        if others or which not in there:
            listed = ", ".join(f"{log_id.hex()} ({known.path})" for log_id, known in there.items())
            raise SchemaError(
                f"'{name.path}' cannot be the log{'s' if others else ''}"
                f" {', '.join(sorted(log_id.hex() for log_id in asked))}",
                hint=f"the replicas hold {listed or 'no log'}",
            )
        return which
    named = sorted(log_id for log_id, known in there.items() if known.path == name.path)
    own = [log_id for log_id in named if there[log_id].signer == name.signer != ""]
    if len(own) == 1:
        return own[0]
    if named:
        listed = ", ".join(f"#{log_id.hex()}" for log_id in own or named)
        why = "several logs" if own else "a log that another key has signed"
        raise SchemaError(
            f"the replicas hold {why} of '{name.path}': {listed}",
            hint="put the one that is meant behind a replica's URL, import its key first"
            " (`python -m nosync key import`), or open another path",
        )
    return None


def _enough(path: str, settings: Replicas, silent: Sequence[str]) -> None:
    """Raises if what was safe may be with those alone that do not answer."""
    count = len(settings.replicas)
    needed, answered = readers(count, settings.quorum), count - len(silent)
    if answered < needed:
        raise DurabilityError(
            f"'{path}' is empty, and {answered} of its {count} replicas can be read; it takes"
            f" {needed} to know what was safe: {'; '.join(silent)}",
            hint="bring the replicas back; to begin a new log, open it without and add them later",
        )


def _promise(
    replicas: Sequence[tuple[str, Replica]], name: Name, silent: Sequence[str]
) -> tuple[Term, list[str]]:
    """Has replicas promise themselves to a new term; what they hold may be read then."""
    why = [*silent]
    said = []
    for _, each in replicas:
        with suppress(DurabilityError, CorruptLogError):  # it will say so when it is to promise
            said.append(each.promised())
    generation = max((term.generation for term in said if term), default=0) + 1
    term = Term(generation, secrets.token_hex(16))
    for url, replica in replicas:
        try:
            replica.promise(term, name)
        except (DurabilityError, CorruptLogError, FencedError, TrustError) as error:
            why.append(f"{url}: {error}")
    return term, why


def examined(files: Files, url: str, replica: Replica) -> Copy:
    """What can be read back of a copy: the newest checkpoint that its segments hold, and on.

    In the middle of catching up a copy has segments or a checkpoint of which the rest is missing:
    they are left out, and what was acknowledged before is found. It ends before the first frame
    that names a file which is not there. Frames are brought here if they lie elsewhere.

    Raises:
        CorruptLogError: there is nothing that can be read back.
    """
    held = replica.held().files
    if replica.folder is not None:
        return _examined(files, url, replica, replica.folder, held)
    folder = files.temporary_folder("nosync-frames-")
    try:
        for name in filter(layout.is_frames, held):
            _fetch(files, replica, name, held[name], layout.path_of(folder, name))
        return _examined(files, url, replica, folder, held)
    finally:
        files.remove_folder(folder)


def _examined(
    files: Files, url: str, replica: Replica, folder: str, held: Mapping[str, int]
) -> Copy:
    """As `examined`; the frames lie in `folder`."""
    names = list(held)
    states = _states(files, folder, names)
    why = ""
    for newest in reversed(segments.listed(names)):
        path, broken = segments.back(files, folder, newest, 0)
        missing = segments.file_name(*(broken or newest)) if broken or not path else None
        short = [
            index
            for index, (one, after) in enumerate(pairwise(path))
            if held[one.name] < one.local(after.start.offset)
        ]
        if short:
            path, missing = path[short[-1] + 1 :], path[short[-1]].name
        chain = Chain(path, [], None)
        stretch = Stretch(url, replica, folder, held, chain.live)
        for name, state in states if path else ():
            if _fits(files, folder, chain, state, held):
                return _cut(files, stretch, name, state)
        if missing is None:
            return _cut(files, stretch, None, None)
        why = why or f"'{missing}' is missing, or too short"
    raise CorruptLogError(f"the copy holds no whole log: {why or 'no segment is there'}")


def _states(files: Files, folder: str, names: Iterable[str]) -> list[tuple[str, Checkpoint]]:
    """The checkpoints that can be read, the newest first."""
    read = ((name, checkpoint.read(files, folder, name)) for name in checkpoint.listed([*names]))
    return [(name, state) for name, state in read if isinstance(state, Checkpoint)]


def _fits(files: Files, folder: str, chain: Chain, state: Checkpoint, held: Iterable[str]) -> bool:
    """Whether a checkpoint belongs to a chain, and all that its state lies in is there."""
    if state.mark.offset < chain.live[0].start.offset:
        return False
    if not tail.holds(files, folder, chain, state.mark):
        return False
    return _state_files(files, folder, state) <= set(held)


def _state_files(files: Files, folder: str, state: Checkpoint) -> set[str]:
    with decoding("a checkpoint"):
        payload = journal.unpack(state.payload)
        return naming.of_checkpoint(payload, os.path.join(folder, "history"), files)


def _cut(files: Files, stretch: Stretch, name: str | None, state: Checkpoint | None) -> Copy:
    """The part of a copy from a checkpoint to the last frame that counts."""
    held = stretch.held
    start = state.mark if state else stretch.live[0].start
    first = max(i for i, s in enumerate(stretch.live) if s.start.offset <= start.offset)
    live = stretch.live[first:]
    needed = _state_files(files, stretch.folder, state) if state else set()
    end = start
    for frame in _frames(files, stretch, live, start):
        named = _frame_files(frame)
        if not named <= held.keys():
            break
        needed |= named
        end = frame.end
    acknowledged = stretch.replica.acknowledged()
    if end.seq < acknowledged:
        raise CorruptLogError(
            f"'{stretch.url}' is damaged: it had frame {acknowledged}, and ends at {end.seq}",
            hint="it is repaired from the log; take another replica",
        )
    sizes = {each: held[each] for each in needed}
    for index, segment in enumerate(live):
        after = live[index + 1].start.offset if index + 1 < len(live) else end.offset
        if segment.start.offset <= end.offset:
            sizes[segment.name] = segment.local(max(segment.start.offset, min(after, end.offset)))
    if name is not None:
        sizes[name] = held[name]
    return Copy(stretch.url, stretch.replica, sizes, live[-1].generation, end)


def _frames(
    files: Files, stretch: Stretch, live: Sequence[Segment], start: Mark
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
        with closing(files.open(layout.path_of(stretch.folder, segment.name))) as file:
            data = file.read_at(segment.local(end.offset), max(0, size))
        more, _ = frames.scan(data, end.offset, end)
        yield from more
        end = more[-1].end if more else end


def _frame_files(frame: Frame) -> set[str]:
    with decoding(f"frame {frame.position.seq}"):
        return naming.of_frame(journal.unpack(frame.payload))


def _copy(files: Files, path: str, copy: Copy, promised: int) -> None:
    """Writes a copy into a folder beside the log's, which takes its place."""
    files.make_folder(os.path.dirname(path))
    beside = f"{os.path.basename(path)}.{os.getpid()}.restoring"
    beside = os.path.join(os.path.dirname(path), f".{beside}")
    files.remove_folder(beside)
    files.make_folder(beside)
    try:
        for inner in layout.FOLDERS.values():
            files.make_folder(os.path.join(beside, inner))
        for name, size in sorted(copy.sizes.items()):
            _fetch(files, copy.replica, name, size, layout.path_of(beside, name))
        generation.make(files, beside, promised)
        for inner in ("", *layout.FOLDERS.values()):
            files.sync_folder(os.path.join(beside, inner) if inner else beside)
        if files.exists(path):
            for name in files.names(path):
                raise FencedError(
                    f"'{path}' is not empty any more ('{name}')", hint="somebody else opens it"
                )
        files.rename(beside, path)
    except BaseException:
        files.remove_folder(beside)
        raise
    files.sync_folder(os.path.dirname(path))


def _fetch(files: Files, replica: Replica, name: str, size: int, path: str) -> None:
    """Copies the first bytes of a replica's file to a new one, and syncs it."""
    file = files.create(path)
    try:
        done = 0
        while done < size:
            data = replica.read(name, done, min(_PIECE_BYTES, size - done))
            if not data:
                raise CorruptLogError(f"the copy of '{name}' ends at byte {done}, before {size}")
            file.append(data)
            done += len(data)
        file.sync()
    finally:
        file.close()
