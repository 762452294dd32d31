"""Restores a lost log, and the lost last frames of a log, from the copies of its replicas.

`restore_log` restores a lost log:

    promise: replicas are made to reject earlier owners: enough that one has every safe frame
    choose: the readable copy that goes furthest is chosen; its rows may be at any replica
    copy: its frames are copied into a folder beside the log's, which then gets the log's name

Files of rows stay at the replicas. The log names them, and they are fetched when they are read
(lazy_fetch.py). Hence the cost of a restore does not depend on the size of the state. A log that
is opened, killed and opened again continues to fetch the missing files.

Failure: a replica was absent when a log was restored, and holds frames that were never reported as
safe; the log continued without them. It returns, and its copy is the longest. Hence the copy that
goes furthest is the longest of those that the latest owner shipped to. A copy that has the same
frames and more is better, no matter which owner shipped it: it contains every frame that was safe
under that owner. So a damaged copy of that owner, which seems shorter than it was, hides nothing
(consistency.py).

Failure: replicas were emptied, and the one that has the log does not answer. A new log would take
its name. Hence no new log is begun where there was one, before all replicas have answered. No
policy overrides that.

Failure: a copy is damaged between its examination and its use. Hence the copied frames are examined
a second time. If they are not the chosen ones, the replica counts as one that did not answer. The
next copy is taken if enough are left that one of them has every safe frame.

Data from a replica is verified before it is used, frame by frame and file by file, as at any
opening. A crash during a restore leaves the log's folder as empty as it was.

`replicas_to_ask` fetches frames of a log's last owner that replicas have and the log's own disk has
lost. This runs while a log is opened, and only if its disk may lack frames
(`store/log/recovery.py`): after a power loss, or if the folder was restored from a copy. The keeper
may have shipped frames that were written and never synced. All replicas are asked at once, and none
is waited for longer than `remote_call.CATCH_UP` allows. The log is then opened without the silent
ones, as when no replica can be reached. If such a replica has more frames, the takeover vote finds
them later, and the log does not continue (takeover.py).

From a copy, only acknowledged frames in segments of that owner are taken; the word in a segment's
header identifies the owner. The segments must lead back to the end of the local log. Files of rows
are fetched when they are read (lazy_fetch.py).

Failure: a copy has a checkpoint, and has deleted the files that it made obsolete: segments, and
files that only earlier frames name. Such a frame would be taken without its rows. Hence the result
ends before the first frame that names a file which the copy lacks. If the segments do not lead back
to the log's end, nothing is taken. A log that is so far behind is restored as a whole.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, suppress
from typing import NamedTuple, TypeVar

from nosync_nb.errors import CorruptLogError, DurabilityError, FencedError, NosyncError, SchemaError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.log import Frame, fencing, frames, segments
from nosync_nb.store.log.frames import Mark
from nosync_nb.store.log.recovery import Ask, CaughtUpFrames
from nosync_nb.store.log.segments import HEADER_BYTES, Segment
from nosync_nb.store.records import file_references, payloads
from nosync_nb.store.records.file_references import FileReference
from nosync_nb.store.replication import config, file_layout, remote_call
from nosync_nb.store.replication.address import ReplicaAddress, parse_address
from nosync_nb.store.replication.config import (
    ReplicaConfig,
    config_signer,
    read_quorum,
    write_config,
)
from nosync_nb.store.replication.consistency import (
    CopyClaims,
    ReadableExtent,
    check_log,
    examine_copy,
    examine_folder,
)
from nosync_nb.store.replication.endpoints import connect_site, open_copy, prepare_copy
from nosync_nb.store.replication.protocol import LogName, OwnerTerm, Replica, ReplicaHoldings
from nosync_nb.store.replication.remote_call import (
    Beat,
    RemoteTimeoutError,
    call_all,
    call_remote,
    copy_file,
)
from nosync_nb.store.safe_decoding import guarded_decoding

Answer = TypeVar("Answer")


class RestoreResult(NamedTuple):
    """The source of a restored log, and its last frame.

    Attributes:
        url: the URL of the replica; empty if a new log may begin, because no replica that answers
            has a log of this path.
        seq: the number of the last frame.
        rows: the files of rows that the log names; none of them has been fetched.
        doubts: the reasons why some copies, which may have gone further, were not examined or used.
        uncertain: True if there may be safe frames that only the unreadable replicas have.
    """

    url: str
    seq: int
    rows: tuple[FileReference, ...]
    doubts: tuple[str, ...] = ()
    uncertain: bool = False


class QuorumUnavailableError(DurabilityError):
    """Too few replicas can be read to be sure that nothing is lost."""

    kind = "missing"


Answers = list[tuple[ReplicaAddress, dict[bytes, LogName]]]
"""The replicas that answer, each with the `LogName` of every log that it holds, by log id."""


class BoundedReplica:
    """A copy for reading; a call that hangs raises RemoteTimeoutError. See `ReadableCopy`.

    A log is opened in the user's thread. So a call that hangs is abandoned after several seconds,
    and the replica counts as one that does not answer. It is not called again, because the
    abandoned thread still uses it.

    Attributes:
        url: the URL of the replica.
        inner: the wrapped replica, for calls that already run in another thread.
    """

    def __init__(self, url: str, inner: Replica) -> None:
        self.url, self.inner = url, inner
        self._error: NosyncError | None = None

    @property
    def folder(self) -> str | None:
        """The local folder with the replica's files; None for a remote copy."""
        return self.inner.folder

    def promised(self) -> OwnerTerm | None:
        """Returns the term whose writes the copy accepts; None if it has no grant."""
        return self._call(lambda _: self.inner.promised())

    def held(self) -> ReplicaHoldings:
        """Returns the files that the copy holds."""
        return self._call(lambda _: self.inner.held())

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Returns `size` bytes of a file from an offset; fewer only at the end of the file."""
        return self._call(lambda _: self.inner.read(name, offset, size))

    def acknowledged(self) -> int:
        """Returns the number of the last acknowledged frame; 0 if no frame was acknowledged."""
        return self._call(lambda _: self.inner.acknowledged())

    def examined(self, files: Files, others: Sequence[Mapping[str, int]]) -> ReadableExtent:
        """Returns the part of the copy that can be read back; see `consistency.examine_copy`."""
        if self.folder is None:
            return examine_copy(files, self.url, self, others)

        def look(beat: Beat) -> ReadableExtent:
            return examine_copy(files, self.url, self.inner, others, beat)

        return self._call(look)._replace(replica=self)

    def leave(self, why: NosyncError) -> None:
        """Records an error of the replica, which every later call raises."""
        self._error = why

    def close(self) -> None:
        """Closes the replica, unless an abandoned call still uses it."""
        if not isinstance(self._error, RemoteTimeoutError):
            self.inner.close()

    def _call(self, call: Callable[[Beat], Answer]) -> Answer:
        if self._error is not None:
            raise self._error
        try:
            return call_remote(self.url, call)
        except RemoteTimeoutError as error:
            self._error = error
            raise


def restore_log(
    path: str, settings: ReplicaConfig, files: Files | None = None, *, gap: bool = False
) -> RestoreResult | None:
    """Restores a log whose folder is missing or empty.

    Returns None if the folder has content, if the settings have no replicas, or if all replicas
    answer and none has the log.

    If a log's id follows a replica's URL, that log is restored. Otherwise it is the log that was at
    this path and was signed with this user's key.

    If this user's registry lists replicas of the path, no new log begins there before all of them
    have answered.

    Args:
        gap: True restores the readable part, even if too few replicas can be read to be sure that
            no safe frame is missed.

    Raises:
        QuorumUnavailableError: too few replicas can be read.
        DurabilityError: the log cannot be written.
        SchemaError: the log is ambiguous.
        CorruptLogError: no copy can be read.
    """
    files = files or Files()
    if not settings.replicas or (files.exists(path) and files.names(path)):
        return None
    name = LogName(path, config_signer(files), len(settings.replicas), settings.quorum)
    former = _registered_urls(files, path)
    _prepare(files, settings.replicas, former)
    answers, silent = _ask_logs(files, settings)
    which = _requested_log(name, answers, settings, silent)
    if which is None:
        return _without_copy(path, settings, former, silent)
    _prepare(files, settings.replicas)
    # A replica without a copy of the log may have held one before.
    silent += [f"{a.url}: it has no data of the log" for a, logs in answers if which not in logs]
    names = [logs[which] for _, logs in answers if which in logs]
    strict = _strictest_settings(settings, names)
    if not gap:
        _check_quorum(path, strict, silent)
    holders = [address for address, logs in answers if which in logs]
    replicas = [
        BoundedReplica(each.url, connect_site(each, files).replica(which)) for each in holders
    ]
    with ExitStack() as given_back:
        for replica in replicas:
            given_back.callback(replica.close)
        promised, replicas, refused = _promise_all(
            replicas, name._replace(quorum=max(1, strict.quorum))
        )
        copies, unusable = _examined_copies(files, replicas, promised, which)
        silent += refused + unusable
        while copies:
            best = _furthest_copy(copies, silent)
            if not gap:
                _check_quorum(path, strict, silent)
            copies.remove(best)
            try:
                restored_settings = _settings_after(settings, names, max(1, strict.quorum), best)
                _write_log(files, path, best, promised.generation, which, restored_settings)
                return _result(best, strict, silent)
            except (CorruptLogError, RemoteTimeoutError) as error:
                silent.append(f"{best.url}: {error}")
    if not gap:
        _check_quorum(path, strict, silent)
    raise _unreadable_error(path, silent)


def _registered_urls(files: Files, path: str) -> set[str]:
    """Returns the URLs of the replicas that the registry lists for a path."""
    entry = config.registered_replicas(files, path)
    return {parse_address(url).url for url in entry[0]} if entry is not None else set()


def _prepare(
    files: Files, replicas: Iterable[ReplicaAddress], but: AbstractSet[str] = frozenset()
) -> None:
    """Creates the folders of copies that the user names for the first time.

    Failure: the disk is lost, and the volume of a replica is not mounted. 1. Its folder is made in
    the mount point. 2. It holds nothing. 3. A new log is begun. Hence a folder that held a copy of
    the log is not made before another replica has answered that it has the log.

    Args:
        but: the URLs of replicas that held copies of the log; they are omitted.
    """
    with suppress(DurabilityError):  # the next call reports why the site fails
        prepare_copy([each for each in replicas if each.url not in but], files)


def _without_copy(
    path: str, settings: ReplicaConfig, former: AbstractSet[str], silent: Sequence[str]
) -> RestoreResult | None:
    """Lets a new log begin, because no replica that answers has a copy.

    Args:
        former: the URLs of the replicas that a log at this path had.
        silent: the reasons why other replicas do not answer.

    Returns:
        an empty result with these reasons; None if all replicas answer.

    Raises:
        QuorumUnavailableError: a replica does not answer, and there was a log at the path or one is
            requested by its id; or too few replicas can be read.
    """
    if silent and (former or any(each.log_id for each in settings.replicas)):
        raise _missing_error(path, settings, silent)
    _check_quorum(path, settings, silent)
    return RestoreResult("", 0, (), tuple(silent)) if silent else None


def _missing_error(
    path: str, settings: ReplicaConfig, silent: Sequence[str]
) -> QuorumUnavailableError:
    """Returns the error for a log that no answering replica has, while others are silent."""
    count = len(settings.replicas)
    return QuorumUnavailableError(
        f"'{path}' is empty, and no reachable replica has a copy of it; {len(silent)} of"
        f" {count} do not answer, and may have one: {'; '.join(silent)}",
        hint="reconnect these replicas and open the log again, or wait for them with"
        " on_loss='wait'; if there is no such log, open it without replicas and add them later",
    )


def _unreadable_error(path: str, silent: Sequence[str]) -> CorruptLogError:
    """Returns the error for a log that replicas have, while no copy can be read."""
    return CorruptLogError(
        f"'{path}' is empty, and none of its copies can be read: {'; '.join(silent)}",
        hint="reconnect more of the replicas",
    )


def _furthest_copy(copies: list[ReadableExtent], silent: list[str]) -> ReadableExtent:
    """Returns the copy that goes furthest, and thus has every safe frame if any copy does.

    Copies that cannot be read any more are moved from `copies` to `silent`, with the reason.
    """
    best, *rest = sorted(copies, key=lambda copy: (copy.generation, copy.end.seq), reverse=True)
    for each in rest:
        try:
            best = each if each.continues(best) else best
        except (CorruptLogError, DurabilityError) as error:
            copies.remove(each)
            silent.append(f"{each.url}: {error}")
    return best


def _result(best: ReadableExtent, settings: ReplicaConfig, silent: Sequence[str]) -> RestoreResult:
    count = len(settings.replicas)
    uncertain = count - len(silent) < read_quorum(count, settings.quorum)
    return RestoreResult(
        best.url, best.end.seq, tuple(best.rows.values()), tuple(silent), uncertain
    )


Held = tuple[BoundedReplica, Mapping[str, int]]
"""A replica, and the sizes of its files."""


def _distinct_copies(
    replicas: Sequence[BoundedReplica], promised: OwnerTerm
) -> tuple[list[Held], list[str]]:
    """Returns the replicas that accepted the term, each copy once, and why others are omitted."""
    claims = CopyClaims([each.url for each in replicas])
    why, copies = [], []
    for number, replica in enumerate(replicas):
        try:
            if replica.promised() == promised:
                incarnation, files = replica.held()
                claims.claim(number, incarnation)
                copies.append((replica, files))
        except (CorruptLogError, DurabilityError) as error:
            why.append(f"{replica.url}: {error}")
    return copies, why


def _examined_copies(
    files: Files, replicas: Sequence[BoundedReplica], promised: OwnerTerm, log_id: bytes
) -> tuple[list[ReadableExtent], list[str]]:
    """Returns the readable copies of a log, and why copies are unusable or may lack frames."""
    copies = []
    distinct, why = _distinct_copies(replicas, promised)
    holdings = [sizes for _, sizes in distinct]
    for replica, sizes in distinct:
        try:
            others = [each for each in holdings if each is not sizes]
            examined = replica.examined(files, others)
            check_log(examined, log_id)
            copies.append(examined)
            if not replica.acknowledged():
                why.append(f"{replica.url}: it has acknowledged nothing, and may have lost frames")
        except (CorruptLogError, DurabilityError) as error:
            why.append(_reason(replica.url, error))
    return copies, why


def _reason(url: str, error: NosyncError) -> str:
    """Returns the reason why the copy at a URL cannot be used, with the hint of the error."""
    return f"{url}: {error}" + (f" ({error.hint})" if error.hint else "")


def _ask_logs(files: Files, settings: ReplicaConfig) -> tuple[Answers, list[str]]:
    """Asks the replicas for their logs; returns the answers, and why some do not answer."""
    answers: Answers = []
    silent = []
    sites = [(address.url, connect_site(address, files).logs) for address in settings.replicas]
    for address, answer in zip(settings.replicas, call_all(sites), strict=True):
        if isinstance(answer, NosyncError):
            silent.append(f"{address.url}: {answer}")
        else:
            answers.append((address, {log_id: one.name for log_id, one in answer.items()}))
    return answers, silent


def _strictest_settings(settings: ReplicaConfig, names: Iterable[LogName]) -> ReplicaConfig:
    """Returns the settings with the quorum that requires the most readable replicas."""
    by = max(names, key=lambda name: read_quorum(name.replicas, name.quorum))
    count, needed = len(settings.replicas), read_quorum(by.replicas, by.quorum)
    return settings._replace(quorum=min(settings.quorum, max(0, count - needed + 1)))


def _settings_after(
    settings: ReplicaConfig, names: Iterable[LogName], strict: int, best: ReadableExtent
) -> ReplicaConfig:
    """Returns the settings as a change of those that the copies have recorded.

    Until the replicas have the restored frames, they record the stricter of both read quorums.

    Args:
        names: the settings that the copies have recorded.
        strict: the quorum that requires the most readable replicas.
        best: the restored copy.
    """
    most = max(name.quorum for name in names)
    before = settings._replace(quorum=most if most > settings.quorum else strict)
    return before.changed(settings, best.end.seq)


def _requested_log(
    name: LogName, answers: Answers, settings: ReplicaConfig, silent: Sequence[str]
) -> bytes | None:
    """Returns the id of the requested log; None if no replica that answers has it.

    Raises:
        SchemaError: the log is ambiguous; or all replicas answer, and none has the requested id.
    """
    known_logs = {log_id: known for _, logs in answers for log_id, known in logs.items()}
    requested = {each.log_id for each in settings.replicas if each.log_id is not None}
    if requested:
        (which, *others) = requested
        if not others and which not in known_logs and silent:
            return None
        if others or which not in known_logs:
            listed = ", ".join(
                f"{log_id.hex()} ({known.path})" for log_id, known in known_logs.items()
            )
            raise SchemaError(
                f"'{name.path}' cannot be the log{'s' if others else ''}"
                f" {', '.join(sorted(log_id.hex() for log_id in requested))}",
                hint=f"the replicas hold {listed or 'no log'}",
            )
        return which
    named = sorted(log_id for log_id, known in known_logs.items() if known.path == name.path)
    signed = [log_id for log_id in named if known_logs[log_id].signer == name.signer != ""]
    if len(signed) == 1:
        return signed[0]
    if named:
        listed = ", ".join(f"#{log_id.hex()}" for log_id in signed or named)
        why = "several logs" if signed else "a log that another key has signed"
        raise SchemaError(
            f"the replicas hold {why} of '{name.path}': {listed}",
            hint="append the log's id to a replica URL (file:///...#ID), import its key first"
            " (`python -m nosync key import`), or open another path",
        )
    return None


def _check_quorum(path: str, settings: ReplicaConfig, silent: Sequence[str]) -> None:
    """Raises QuorumUnavailableError if there may be safe frames that only silent replicas have."""
    count = len(settings.replicas)
    needed, answered = read_quorum(count, settings.quorum), count - len(silent)
    if answered < needed:
        raise QuorumUnavailableError(
            f"'{path}' is empty, and {answered} of its {count} replicas can be read; {needed}"
            f" are needed to find every acknowledged epoch: {'; '.join(silent)}",
            hint="reconnect the replicas; or use on_loss='wait' to wait for them, or on_loss='gap'"
            " to restore without them; to start a new log, open it without replicas and add"
            " them later",
        )


def _promise_all(
    replicas: Sequence[BoundedReplica], name: LogName
) -> tuple[OwnerTerm, list[BoundedReplica], list[str]]:
    """Makes the replicas accept a new term.

    Returns:
        the term; the replicas that accepted it, which alone may be read then; and the reasons why
        others did not accept it.
    """
    why, promised = [], []
    accepted = call_all(
        [(each.url, lambda _, each=each: each.inner.promised()) for each in replicas]  # type: ignore[misc]
    )
    terms = [each for each in accepted if isinstance(each, OwnerTerm)]
    term = OwnerTerm(max((each.generation for each in terms), default=0) + 1, secrets.token_hex(16))
    calls = [(each.url, lambda _, each=each: each.inner.promise(term, name)) for each in replicas]
    for replica, each in zip(replicas, call_all(calls, remote_call.PROMISE), strict=True):
        if isinstance(each, NosyncError):
            replica.leave(each)
            why.append(f"{replica.url}: {each}")
        else:
            promised.append(replica)
    return term, promised, why


def _write_log(
    files: Files,
    path: str,
    best: ReadableExtent,
    promised: int,
    log_id: bytes,
    settings: ReplicaConfig,
) -> None:
    """Writes a copy's frames into a folder beside the log's, and renames it to the log's.

    Raises:
        CorruptLogError: the frames have changed since they were examined.
        FencedError: another process has written to the log's folder meanwhile.
    """
    files.make_folder(os.path.dirname(path))
    beside = f"{os.path.basename(path)}.{os.getpid()}.restoring"
    beside = os.path.join(os.path.dirname(path), f".{beside}")
    files.remove_folder(beside)
    files.make_folder(beside)
    try:
        for inner in file_layout.FOLDERS.values():
            files.make_folder(os.path.join(beside, inner))
        for name, size in sorted(best.sizes.items()):
            copy_file(files, best.replica, name, size, file_layout.file_path(beside, name))
        rows = {each.name: each.size or 0 for each in best.rows.values()}
        again = examine_folder(files, best.url, best.replica, beside, best.sizes, [rows])
        if again.end != best.end or again.rows.keys() != best.rows.keys():
            raise CorruptLogError(f"the copy at '{best.url}' changed while it was read")
        fencing.create_control_block(files, beside, promised)
        # Written last, because this also syncs the folder.
        write_config(files, beside, log_id, settings)
        if files.exists(path):
            for name in files.names(path):
                raise FencedError(
                    f"'{path}' is no longer empty ('{name}')",
                    hint="try again: another process is opening it",
                )
        files.rename(beside, path)
    except BaseException:
        files.remove_folder(beside)
        raise
    files.sync_folder(os.path.dirname(path))


CATCH_UP_BYTES_MAX = 64 << 20
"""The maximum number of bytes that are taken; a checkpoint is due after far fewer bytes."""


def replicas_to_ask(files: Files, path: str, named: ReplicaConfig | None = None) -> Ask:
    """Returns the function that asks replicas for frames that the log's disk has lost.

    Args:
        named: the replicas to ask; `None` means those that are stored with the log. A folder that
            was restored from a copy has no valid settings, because they are signed for the
            original.
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
    """Returns the lost frames of the replica that goes furthest; None if no replica has more.

    Args:
        head: the newest local segment.
        end: the mark after the last local frame.
    """
    calls = [(each.url, _FramesAfter(files, each, head, end)) for each in replicas]
    answers = zip(replicas, call_all(calls, remote_call.CATCH_UP), strict=True)
    results = [(each.url, reply) for each, reply in answers if isinstance(reply, bytes) and reply]
    if not results:
        return None
    url, data = max(results, key=lambda one: len(one[1]))
    return CaughtUpFrames(data, lambda taken: _notice(url, taken))


def _has_files(frame: Frame, sizes: Mapping[str, int]) -> bool:
    """Returns True if a copy has all files that a frame names."""
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
    """Reads from one replica the frames after a mark that the local segment's owner wrote."""

    def __init__(self, files: Files, address: ReplicaAddress, head: Segment, end: Mark) -> None:
        self._files, self._address = files, address
        self._head, self._end = head, end

    def __call__(self, beat: Beat) -> bytes:
        with open_copy(self._address, self._files, self._head.log_id) as replica:
            acknowledged = replica.acknowledged()
            beat()
            has_more = acknowledged > self._end.seq
            return self._readable_bytes(replica, acknowledged, beat) if has_more else b""

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
        """Returns the bytes after the mark.

        Returns no bytes if they are incomplete or too many, or if another owner wrote some of them.
        """
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
            if last < first or size > CATCH_UP_BYTES_MAX:
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
        """Returns True if the owner of the newest local segment also wrote the given one."""
        one, two = segment, self._head
        return (one.log_id, one.generation, one.word) == (two.log_id, two.generation, two.word)
