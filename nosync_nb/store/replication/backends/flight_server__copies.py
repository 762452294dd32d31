"""Copies: the logs in a replica server's folder, and which session ships to each.

The copies are those of a folder replica. All calls about a log are made one after the other. A
session that is promised has the copy for itself; any other one of the token may read.

Failure: a call takes longer than its client waits. The client comes again in a new session, is
promised, and stores a file anew. Then the disk answers the first call, which is about to give that
file its name. Hence the promise waits for what is under way, and ends the session before: nothing
of it comes through afterwards.

A session that was ended, idle for long or before the server was started is told that the copy is
not the one it was; it is promised again, as after any failure.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from nosync_nb.errors import DurabilityError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.replication import fencing_grant
from nosync_nb.store.replication.backends.flight_protocol__wire import PIECE_BYTES
from nosync_nb.store.replication.backends.folder import FolderReplica, FolderSite
from nosync_nb.store.replication.fencing_grant import FencingGrant
from nosync_nb.store.replication.protocol import LogName, OwnerTerm, ReplicaHoldings

LOGS_MAX = 1024
SESSIONS_MAX = 256
IDLE_S = 900.0
"""How long a session may be silent; a keeper with nothing to ship asks every few seconds."""

_SILENT_S = 60.0
"""How long it may be if there are too many."""

_PROMISE_BYTES_MAX = fencing_grant.BYTES_MAX // 2
_BUSY_S = 4.0
_LOCKS = 64
_ID_HEX = 32
_OFFSET_MAX = 1 << 50


class _Held(NamedTuple):
    """A copy that a session ships to, and when it did last."""

    session: bytes
    replica: FolderReplica
    used: float


class ServerCopies:
    """Answers calls of sessions about the logs in a folder; any thread may.

    Owns, under `_lock`, which session has which copy. What is done with a copy is done under one
    of `_turns`, by the log's id, which is taken first.
    """

    def __init__(self, folder: str, files: Files | None = None) -> None:
        self._folder, self._files = folder, files or Files()
        self._lock = threading.Lock()
        self._turns = [threading.Lock() for _ in range(_LOCKS)]
        self._held: dict[bytes, _Held] = {}

    def call(self, session: bytes, header: dict[str, Any], data: bytes) -> bytes:
        """Does what is asked; returns what the client gets.

        Raises:
            NosyncError: as `Replica` has it; also for a call that makes no sense.
        """
        asked = _word(header, "do")
        if asked == "logs":
            return self._logs()
        call = _CALLS.get(asked)
        if call is None:
            raise DurabilityError(f"'{asked:.40}' is not known here", hint="update the server")
        log_id = _log_id(header)
        turn = self._turns[log_id[0] % _LOCKS]
        if not turn.acquire(timeout=_BUSY_S):
            raise DurabilityError(
                f"the server is busy with log {log_id.hex()}", hint="it is tried again"
            )
        try:
            if asked == "promise":
                return self._promise(session, log_id, header, data)
            with self._lock:
                held = self._held.get(log_id)
                if held is not None and held.session == session:
                    self._held[log_id] = held._replace(used=time.monotonic())
            if held is not None and held.session == session:
                return call(held.replica, header, data)
            replica = self._replica(log_id)
            try:
                if "term" in header:  # an earlier owner is told who has come after him
                    said = replica.promised()
                    if said is not None and fencing_grant.conflicts(said, _term(header)):
                        raise fencing_grant.grant_conflict_error(replica.folder, said)
                return call(replica, header, data)
            finally:
                replica.close()
        finally:
            turn.release()

    def drop_idle(self, idle_s: float = IDLE_S) -> int:
        """Ends the sessions that were silent for long; returns how many there were."""
        before = time.monotonic() - idle_s
        with self._lock:
            idle = [log_id for log_id, held in self._held.items() if held.used < before]
        dropped = 0
        for log_id in idle:
            turn = self._turns[log_id[0] % _LOCKS]
            if turn.acquire(blocking=False):  # what is in use is not idle
                try:
                    dropped += self._drop(log_id)
                finally:
                    turn.release()
        return dropped

    def close(self) -> None:
        """Ends all sessions; what was appended and not synced counts for nothing."""
        with self._lock:
            ids = list(self._held)
        for log_id in ids:
            with self._turns[log_id[0] % _LOCKS]:
                self._drop(log_id)

    def _logs(self) -> bytes:
        said = FolderSite(self._folder, self._files).logs()
        known = {
            log_id.hex(): fencing_grant.encode_grant(one).decode() for log_id, one in said.items()
        }
        return json.dumps(known).encode()

    def _promise(self, session: bytes, log_id: bytes, header: dict[str, Any], data: bytes) -> bytes:
        """Gives a copy to a session, if its term may have it."""
        if len(data) > _PROMISE_BYTES_MAX:  # what cannot be read again is not kept
            raise _senseless("name")
        self._room(log_id)
        asked = fencing_grant.decode_grant(data, "the call")
        replica = self._replica(log_id)
        try:
            holdings = replica.promise(asked.term, asked.name)
        except BaseException:
            replica.close()
            raise
        self._drop(log_id)
        with self._lock:
            self._held[log_id] = _Held(session, replica, time.monotonic())
        return _told(holdings)

    def _room(self, log_id: bytes) -> None:
        """Raises unless there may be a copy and a session more."""
        copies = [name for name in self._files.names(self._folder) if len(name) == _ID_HEX]
        if len(copies) >= LOGS_MAX and log_id.hex() not in copies:
            raise DurabilityError(
                f"the server has copies of {len(copies)} logs already",
                hint=f"start one with another folder, or delete some in '{self._folder}'",
            )
        with self._lock:
            full = len(self._held) >= SESSIONS_MAX and log_id not in self._held
        if full and not self.drop_idle(_SILENT_S):
            raise DurabilityError(
                f"{SESSIONS_MAX} sessions ship to the server already", hint="it is tried again"
            )

    def _replica(self, log_id: bytes) -> FolderReplica:
        return FolderReplica(self._folder, log_id, files=self._files)

    def _drop(self, log_id: bytes) -> bool:
        """Ends the session that has a copy; its turn has come."""
        with self._lock:
            held = self._held.pop(log_id, None)
        if held is not None:
            with suppress(DurabilityError):
                held.replica.close()
        return held is not None


# -- what can be asked of a copy -----------------------------------------------------------------


def _promised(replica: FolderReplica, _header: dict[str, Any], _data: bytes) -> bytes:
    term = replica.promised()
    return (
        b"" if term is None else fencing_grant.encode_grant(FencingGrant(term, "", LogName("", "")))
    )


def _holdings(replica: FolderReplica, _header: dict[str, Any], _data: bytes) -> bytes:
    return _told(replica.held())


def _store(replica: FolderReplica, header: dict[str, Any], data: bytes) -> bytes:
    name, offset = _word(header, "name"), _number(header, "offset")
    replica.store(_term(header), name, offset, data, last=header.get("last") is True)
    return b""


def _append(replica: FolderReplica, header: dict[str, Any], data: bytes) -> bytes:
    replica.append(_term(header), _word(header, "name"), _number(header, "offset"), data)
    return b""


def _sync(replica: FolderReplica, header: dict[str, Any], data: bytes) -> bytes:
    if "name" in header:  # what was to be appended before
        _append(replica, header, data)
    seq = _number(header, "seq") if header.get("seq") is not None else None
    replica.sync(_term(header), seq)
    return b""


def _acknowledged(replica: FolderReplica, _header: dict[str, Any], _data: bytes) -> bytes:
    return str(replica.acknowledged()).encode()


def _digest(replica: FolderReplica, header: dict[str, Any], _data: bytes) -> bytes:
    return replica.digest(_word(header, "name"), _number(header, "size"))


def _read(replica: FolderReplica, header: dict[str, Any], _data: bytes) -> bytes:
    size = min(_number(header, "size"), PIECE_BYTES)
    return replica.read(_word(header, "name"), _number(header, "offset"), size)


def _discard(replica: FolderReplica, header: dict[str, Any], _data: bytes) -> bytes:
    names = header.get("names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _senseless("names")
    replica.discard(_term(header), names)
    return b""


_CALLS: dict[str, Callable[[FolderReplica, dict[str, Any], bytes], bytes]] = {
    "promise": _holdings,  # by who is promised
    "promised": _promised,
    "held": _holdings,
    "store": _store,
    "append": _append,
    "sync": _sync,
    "acknowledged": _acknowledged,
    "digest": _digest,
    "read": _read,
    "discard": _discard,
}


def _told(holdings: ReplicaHoldings) -> bytes:
    return json.dumps([holdings.incarnation, dict(holdings.files)]).encode()


def _log_id(header: dict[str, Any]) -> bytes:
    word = _word(header, "log")
    if len(word) != _ID_HEX or not set(word) <= set("0123456789abcdef"):
        raise _senseless("log")
    return bytes.fromhex(word)


def _term(header: dict[str, Any]) -> OwnerTerm:
    match header.get("term"):
        case [int(generation), str(owner)]:
            return OwnerTerm(generation, owner)
    raise _senseless("term")


def _word(header: dict[str, Any], key: str) -> str:
    value = header.get(key)
    if not isinstance(value, str):
        raise _senseless(key)
    return value


def _number(header: dict[str, Any], key: str) -> int:
    value = header.get(key)
    if type(value) is not int or not 0 <= value < _OFFSET_MAX:
        raise _senseless(key)
    return value


def _senseless(key: str) -> DurabilityError:
    return DurabilityError(f"a call has no '{key}' that makes sense", hint="update the client")
