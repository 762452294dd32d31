"""Serves the copies of logs in its own folder to clients with its token, over Arrow Flight.

    python -m nosync_nb.replica DIR --port P [--host H] [--token-file F] [--tls-cert C --tls-key K]

The server is a process with its own disk, and syncs everything before it acknowledges it. It has no
state in memory that a kill could lose, and checks every call before it acts (`flight_protocol`,
`ServerCopies`).
Without a token file it uses this user's own token. Without `--host` it listens on this machine
only. To listen elsewhere it requires TLS and a token file.

The copies are those of a folder replica. Calls about one log are serialised. The session that was
last promised has write access to the copy; every other session with the token may read.

Failure: a call takes longer than its client waits. The client opens a new session, is promised, and
stores a file again. Then the disk completes the first call, which is about to rename its file.
Hence a promise waits for the running call, and ends the previous session: none of its calls takes
effect afterwards.

If a session was ended, was idle for too long, or began before the server's last start, its next
write fails, because the copy may have changed. Its client must be promised again, as after any
failure.

Failure: Flight accepts a message of any length before its sender is authenticated. So a process
that has grown beyond the needs of all its calls restarts itself, as after a kill.

Failure: 1. A client without the token opens a thousand connections and sends nothing. 2. The server
has no descriptors left, and accepts no client. 3. Replication stops. Hence, if there are many
connections, those without a signed call are shut down after a second. A client needs less for its
first call.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.flight as flight

from nosync_nb.errors import DurabilityError, NosyncError, SchemaError
from nosync_nb.files import secret_files
from nosync_nb.files.filesystem import Files, Lock
from nosync_nb.store.log import folder as log_folder
from nosync_nb.store.replication import protocol
from nosync_nb.store.replication.address import is_loopback
from nosync_nb.store.replication.backends import flight_protocol
from nosync_nb.store.replication.backends.flight_protocol import (
    CALL_BYTES_MAX,
    NONCE_BYTES,
    PIECE_BYTES,
    ServerHandshake,
    UnauthenticatedError,
    check_answer,
)
from nosync_nb.store.replication.backends.folder import FolderReplica, FolderSite
from nosync_nb.store.replication.protocol import FencingGrant, LogName, OwnerTerm, ReplicaHoldings

LOGS_MAX = 1024
SESSIONS_MAX = 256
IDLE_S = 900.0
"""Seconds that a session may be silent; a keeper with nothing to ship calls every few seconds."""

_SILENT_S = 60.0
"""Seconds that a session may be silent once there are `SESSIONS_MAX` sessions."""

_PROMISE_BYTES_MAX = protocol.GRANT_BYTES_MAX // 2
_BUSY_S = 4.0
_LOCKS = 64
_ID_HEX = 32
_OFFSET_MAX = 1 << 50

CALLS_MAX = 64
"""The maximum number of calls that are answered in parallel."""

MEMORY_BYTES_MAX = 768 << 20
_LOOK_S = 0.1
_IDLE_LOOKS = 100
_PORT_MAX = 65535


class _SessionCopy(NamedTuple):
    """A session's copy, and the time of its last call."""

    session: bytes
    replica: FolderReplica
    used: float


class ServerCopies:
    """Answers the calls of sessions about the logs in a folder; any thread may call.

    Owns, under `_lock`, the copy of each session. A call to a copy runs under the lock of
    `_log_locks` that the log's id selects. That lock is acquired before `_lock`.
    """

    def __init__(self, folder: str, files: Files | None = None) -> None:
        self._folder, self._files = folder, files or Files()
        self._lock = threading.Lock()
        self._log_locks = [threading.Lock() for _ in range(_LOCKS)]
        self._session_copies: dict[bytes, _SessionCopy] = {}

    def call(self, session: bytes, header: dict[str, Any], data: bytes) -> bytes:
        """Executes a call; returns the bytes for the client.

        Raises:
            NosyncError: the errors that `Replica` lists; DurabilityError also if the call is
                malformed or unknown, or if the server is busy.
        """
        action = _text_field(header, "do")
        if action == "logs":
            return self._list_logs()
        call = _CALLS.get(action)
        if call is None:
            raise DurabilityError(
                f"the server does not know '{action:.40}'", hint="update the server"
            )
        log_id = _log_id_field(header)
        turn = self._log_locks[log_id[0] % _LOCKS]
        if not turn.acquire(timeout=_BUSY_S):
            raise DurabilityError(
                f"the server is busy with log {log_id.hex()}", hint="wait: NoSync tries again"
            )
        try:
            if action == "promise":
                return self._promise(session, log_id, data)
            with self._lock:
                owned = self._session_copies.get(log_id)
                if owned is not None and owned.session == session:
                    self._session_copies[log_id] = owned._replace(used=time.monotonic())
            if owned is not None and owned.session == session:
                return call(owned.replica, header, data)
            replica = self._replica(log_id)
            try:
                if "term" in header:  # the error tells an earlier owner about its successor
                    accepted = replica.promised()
                    if accepted is not None and protocol.conflicts(accepted, _term_field(header)):
                        raise protocol.grant_conflict_error(replica.folder, accepted)
                return call(replica, header, data)
            finally:
                replica.close()
        finally:
            turn.release()

    def drop_idle(self, idle_s: float = IDLE_S) -> int:
        """Ends the sessions without a call for `idle_s` seconds; returns their number."""
        before = time.monotonic() - idle_s
        with self._lock:
            idle = [log_id for log_id, owned in self._session_copies.items() if owned.used < before]
        dropped = 0
        for log_id in idle:
            turn = self._log_locks[log_id[0] % _LOCKS]
            if turn.acquire(blocking=False):  # a copy in use is not idle
                try:
                    dropped += self._end_session(log_id)
                finally:
                    turn.release()
        return dropped

    def close(self) -> None:
        """Ends all sessions; appended bytes that were not synced may be lost."""
        with self._lock:
            ids = list(self._session_copies)
        for log_id in ids:
            with self._log_locks[log_id[0] % _LOCKS]:
                self._end_session(log_id)

    def _list_logs(self) -> bytes:
        grants = FolderSite(self._folder, self._files).logs()
        encoded = {
            log_id.hex(): protocol.encode_grant(one).decode() for log_id, one in grants.items()
        }
        return json.dumps(encoded).encode()

    def _promise(self, session: bytes, log_id: bytes, data: bytes) -> bytes:
        """Makes a copy accept the term of a session, and grants that session write access."""
        if len(data) > _PROMISE_BYTES_MAX:  # a longer grant could not be read back
            raise _malformed_call("name")
        self._check_limits(log_id)
        grant = protocol.decode_grant(data, "the call")
        replica = self._replica(log_id)
        try:
            holdings = replica.promise(grant.term, grant.name)
        except BaseException:
            replica.close()
            raise
        self._end_session(log_id)
        with self._lock:
            self._session_copies[log_id] = _SessionCopy(session, replica, time.monotonic())
        return _encode_holdings(holdings)

    def _check_limits(self, log_id: bytes) -> None:
        """Raises DurabilityError if the limit of copies or of sessions is reached."""
        copies = [name for name in self._files.names(self._folder) if len(name) == _ID_HEX]
        if len(copies) >= LOGS_MAX and log_id.hex() not in copies:
            raise DurabilityError(
                f"the server has copies of {len(copies)} logs, its maximum",
                hint=f"start a server with another folder, or delete copies in '{self._folder}'",
            )
        with self._lock:
            full = len(self._session_copies) >= SESSIONS_MAX and log_id not in self._session_copies
        if full and not self.drop_idle(_SILENT_S):
            raise DurabilityError(
                f"{SESSIONS_MAX} sessions ship to the server already",
                hint="wait: NoSync tries again",
            )

    def _replica(self, log_id: bytes) -> FolderReplica:
        return FolderReplica(self._folder, log_id, files=self._files)

    def _end_session(self, log_id: bytes) -> bool:
        """Ends the session that may write to a copy; the caller holds the lock of the log."""
        with self._lock:
            owned = self._session_copies.pop(log_id, None)
        if owned is not None:
            with suppress(DurabilityError):
                owned.replica.close()
        return owned is not None


# -- the calls about a copy ----------------------------------------------------------------------


def _promised(replica: FolderReplica, _header: dict[str, Any], _data: bytes) -> bytes:
    term = replica.promised()
    return b"" if term is None else protocol.encode_grant(FencingGrant(term, "", LogName("", "")))


def _holdings(replica: FolderReplica, _header: dict[str, Any], _data: bytes) -> bytes:
    return _encode_holdings(replica.held())


def _store(replica: FolderReplica, header: dict[str, Any], data: bytes) -> bytes:
    name, offset = _text_field(header, "name"), _int_field(header, "offset")
    replica.store(_term_field(header), name, offset, data, last=header.get("last") is True)
    return b""


def _append(replica: FolderReplica, header: dict[str, Any], data: bytes) -> bytes:
    replica.append(
        _term_field(header), _text_field(header, "name"), _int_field(header, "offset"), data
    )
    return b""


def _sync(replica: FolderReplica, header: dict[str, Any], data: bytes) -> bytes:
    if "name" in header:  # bytes to append first
        _append(replica, header, data)
    seq = _int_field(header, "seq") if header.get("seq") is not None else None
    replica.sync(_term_field(header), seq)
    return b""


def _acknowledged(replica: FolderReplica, _header: dict[str, Any], _data: bytes) -> bytes:
    return str(replica.acknowledged()).encode()


def _digest(replica: FolderReplica, header: dict[str, Any], _data: bytes) -> bytes:
    return replica.digest(_text_field(header, "name"), _int_field(header, "size"))


def _read(replica: FolderReplica, header: dict[str, Any], _data: bytes) -> bytes:
    size = min(_int_field(header, "size"), PIECE_BYTES)
    return replica.read(_text_field(header, "name"), _int_field(header, "offset"), size)


def _discard(replica: FolderReplica, header: dict[str, Any], _data: bytes) -> bytes:
    names = header.get("names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _malformed_call("names")
    replica.discard(_term_field(header), names)
    return b""


_CALLS: dict[str, Callable[[FolderReplica, dict[str, Any], bytes], bytes]] = {
    "promise": _holdings,  # handled by `ServerCopies._promise`
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


def _encode_holdings(holdings: ReplicaHoldings) -> bytes:
    return json.dumps([holdings.incarnation, dict(holdings.files)]).encode()


def _log_id_field(header: dict[str, Any]) -> bytes:
    word = _text_field(header, "log")
    if len(word) != _ID_HEX or not set(word) <= set("0123456789abcdef"):
        raise _malformed_call("log")
    return bytes.fromhex(word)


def _term_field(header: dict[str, Any]) -> OwnerTerm:
    match header.get("term"):
        case [int(generation), str(owner)]:
            return OwnerTerm(generation, owner)
    raise _malformed_call("term")


def _text_field(header: dict[str, Any], key: str) -> str:
    value = header.get(key)
    if not isinstance(value, str):
        raise _malformed_call(key)
    return value


def _int_field(header: dict[str, Any], key: str) -> int:
    value = header.get(key)
    if type(value) is not int or not 0 <= value < _OFFSET_MAX:
        raise _malformed_call(key)
    return value


def _malformed_call(key: str) -> DurabilityError:
    return DurabilityError(f"a call has no valid '{key}'", hint="update the client")


class ReplicaService(flight.FlightServerBase):  # type: ignore[misc]
    """The Flight service; its only actions are `hello` and `call`.

    Args:
        where: the address to listen at: `grpc://host:port` or `grpc+tls://host:port`.
        token: the token that clients must have.
        tls: the certificate and its key, as PEM; `None` listens without TLS.
    """

    def __init__(
        self, where: str, copies: ServerCopies, token: bytes, tls: tuple[bytes, bytes] | None
    ) -> None:
        self._copies, self._handshake = copies, ServerHandshake(token)
        self._call_slots = threading.BoundedSemaphore(CALLS_MAX)
        super().__init__(where, tls_certificates=[tls] if tls else None)
        self.connections = Connections(self.port)

    def do_action(self, context: Any, action: Any) -> list[Any]:
        """Answers a client; one with another token learns nothing except that the token differs."""
        try:
            if action.type == "hello" and action.body.size == NONCE_BYTES:
                return [_result(self._handshake.hello(action.body.to_pybytes()))]
            if action.type != "call" or action.body.size > CALL_BYTES_MAX:
                raise UnauthenticatedError("no call")
            call = self._handshake.opened(action.body.to_pybytes())
            self.connections.prove(context.peer())
        except UnauthenticatedError as error:
            raise flight.FlightUnauthenticatedError(str(error)) from None
        answer: bytes | NosyncError
        if not self._call_slots.acquire(blocking=False):
            answer = DurabilityError("the server is busy", hint="wait: NoSync tries again")
            return [_result(piece) for piece in check_answer(call, answer)]
        try:
            answer = self._copies.call(call.nonce, call.header, call.data)
        except NosyncError as error:
            answer = error
        except Exception as error:  # reported to the client, so that the server continues
            answer = DurabilityError(f"the server failed: {type(error).__name__}: {error}")
        finally:
            self._call_slots.release()
        return [_result(piece) for piece in check_answer(call, answer)]


def _result(data: bytes) -> Any:
    return flight.Result(pa.py_buffer(data))


def main(arguments: Sequence[str]) -> int:
    """Runs a server until it gets a SIGTERM or SIGINT; returns the exit code of the process."""
    options = _parser().parse_args(arguments)
    try:
        _serve(options, Files())
    except NosyncError as error:
        hint = f"\nHint: {error.hint}" if error.hint else ""
        sys.stderr.write(f"nosync replica: {error}{hint}\n")
        return 2
    return 0


def _serve(options: argparse.Namespace, files: Files) -> None:
    """Runs the server until the process gets a signal to end."""
    tls = _tls_identity(files, options)
    token = (
        flight_protocol.client_token(files, options.token_file)
        if options.token_file
        else flight_protocol.server_token(files)
    )
    with ExitStack() as ends:
        lock = _lock_folder(files, options.dir)
        ends.callback(lock.release)
        copies = ServerCopies(options.dir, files)
        ends.callback(copies.close)
        service = _start_service(options, copies, token, tls)
        ends.callback(service.shutdown)
        signals = _signal_descriptor()
        kind = "grpc+tls" if tls else "grpc"
        at = f"{kind}://{_bracketed(options.host)}:{service.port}"
        sys.stdout.write(f"{at} stores copies in {options.dir}\n")
        sys.stdout.flush()
        looks = 0
        while not select.select([signals], [], [], _LOOK_S)[0]:
            looks += 1
            if looks % _IDLE_LOOKS == 0:
                copies.drop_idle()
            service.connections.limit()
            if _memory_bytes(files) > MEMORY_BYTES_MAX:
                _restart(service.port)


def _signal_descriptor() -> int:
    """Returns a descriptor that becomes readable when the process gets a SIGTERM or SIGINT."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return reader


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nosync_nb.replica", description="Serves replicas of logs from a folder."
    )
    parser.add_argument(
        "dir", type=os.path.abspath, metavar="DIR", help="the folder of the replicas"
    )
    parser.add_argument("--port", type=_port, required=True, help="the port; 0 picks a free one")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="the address to listen at; default: this machine only. Other machines require TLS",
    )
    parser.add_argument(
        "--token-file", help="a file with 64 or more hex digits; default: the user's own token"
    )
    parser.add_argument("--tls-cert", help="the certificate, as PEM")
    parser.add_argument("--tls-key", help="its key, as PEM, in a file that only the user can read")
    return parser


def _port(word: str) -> int:
    number = int(word)
    if not 0 <= number <= _PORT_MAX:
        raise argparse.ArgumentTypeError(f"{number} is not a port: 0 to {_PORT_MAX}")
    return number


def _tls_identity(files: Files, options: argparse.Namespace) -> tuple[bytes, bytes] | None:
    """Returns the TLS certificate and its key; None if the options contain none.

    Raises:
        SchemaError: only one of the two is passed; or the host is reachable from other machines,
            and a certificate or a token file is missing.
        TrustError: other users can read the key.
    """
    if bool(options.tls_cert) != bool(options.tls_key):
        raise SchemaError("--tls-cert and --tls-key go together", hint="name both")
    if not is_loopback(f"{options.host}:0") and not (options.tls_cert and options.token_file):
        raise SchemaError(
            f"host '{options.host}' is reachable from other machines",
            hint="pass --token-file, --tls-cert and --tls-key, or omit --host",
        )
    if not options.tls_cert:
        return None
    secret_files.check_secret_file(files, options.tls_key, "TLS key")
    return files.read(options.tls_cert), files.read(options.tls_key)


def _lock_folder(files: Files, folder: str) -> Lock:
    """Creates the folder of copies if its parent exists, and locks it for this process.

    Raises:
        DurabilityError: another server uses the folder, or the folder cannot be created.
        TrustError: other users can write to the folder.
    """
    if not files.exists(folder):
        if not files.exists(os.path.dirname(folder)):
            raise DurabilityError(
                f"'{os.path.dirname(folder)}' does not exist", hint="mount its disk, or create it"
            )
        files.make_folder(folder)
    log_folder.is_owned_by_user(files, folder, write=True)
    lock = files.lock(os.path.join(folder, "server.lock"))
    if lock is None:
        raise DurabilityError(
            f"another server uses '{folder}'", hint="stop it, or use another folder"
        )
    return lock


def _start_service(
    options: argparse.Namespace, copies: ServerCopies, token: bytes, tls: tuple[bytes, bytes] | None
) -> ReplicaService:
    host = _bracketed(options.host)
    where = f"{'grpc+tls' if tls else 'grpc'}://{host}:{options.port}"
    try:
        return ReplicaService(where, copies, token, tls)
    except (pa.ArrowException, flight.FlightError, OSError) as error:
        raise DurabilityError(
            f"cannot listen at {host}:{options.port}: {error}",
            hint="check that the port is free (--port 0 picks a free one), that the address is"
            " local, and that certificate and key match",
        ) from None


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _memory_bytes(files: Files) -> int:
    """Returns the unshared resident memory of this process in bytes; 0 if it is unknown."""
    try:
        resident, shared = files.read(f"/proc/{os.getpid()}/statm").split()[1:3]
    except DurabilityError:
        return 0  # not Linux: only the limits of the system apply
    return (int(resident) - int(shared)) * resource.getpagesize()


def _restart(port: int) -> None:
    """Restarts the server process at the same port; its clients reconnect."""
    sys.stderr.write("nosync replica: a message was larger than allowed; the server restarts\n")
    sys.stderr.flush()
    os.execv(sys.executable, [*sys.orig_argv, "--port", str(port)])


UNPROVED_MAX = 64
"""The maximum number of connections that may stay open without a signed call."""

PROOF_S = 1.0
"""Seconds until the first signed call of a connection, if more than `UNPROVED_MAX` lack one."""

_FEW_DESCRIPTORS = 128
"""The number of open descriptors up to which connections are not checked."""
_PEERS_MAX = 4096
_MAPPED_PREFIX = "::ffff:"


class Connections:
    """The connections to one port of this process. Any thread may call.

    Flight accepts every connection and has no option to close idle ones. It does not expose the
    descriptor of a client, so the sockets of the process are compared with the peers of calls.

    Owns, under `_lock`, the peers that have made a signed call, and the first sighting of the
    others.
    """

    def __init__(self, port: int, files: Files | None = None) -> None:
        self._port, self._files = port, files or Files()
        self._lock = threading.Lock()
        self._proved: set[str] = set()
        self._first_seen: dict[str, float] = {}

    def prove(self, peer: str) -> None:
        """Records that a client has made a signed call.

        Args:
            peer: the client's address in Flight's form: `ipv4:127.0.0.1:50000` or
                `ipv6:%5B::1%5D:50000`.
        """
        _, _, address = unquote(peer).partition(":")
        with self._lock:
            self._proved.add(address.replace("[", "").replace("]", ""))

    def limit(self, now: float | None = None) -> int:
        """Shuts down old connections without a signed call if there are many; returns their number.

        Args:
            now: the monotonic time in seconds; `None` means the current time.

        Cost: about 20 us while few descriptors are open.
        """
        descriptors = self._descriptors()
        if len(descriptors) <= _FEW_DESCRIPTORS and len(self._proved) <= _PEERS_MAX:
            return 0
        peers = _peers(descriptors, self._port)
        now = time.monotonic() if now is None else now
        with self._lock:
            self._proved.intersection_update(peers)
            unproved = [peer for peer in peers if peer not in self._proved]
            self._first_seen = {peer: self._first_seen.get(peer, now) for peer in unproved}
            if len(unproved) <= UNPROVED_MAX:
                return 0
            old = [peer for peer in unproved if now - self._first_seen[peer] >= PROOF_S]
        for peer in old:
            _shut_down(peers[peer], peer)
        return len(old)

    def _descriptors(self) -> range | list[int]:
        """Returns the open descriptors; all possible ones if none is free for listing them."""
        try:
            return [int(name) for name in self._files.names(f"/proc/{os.getpid()}/fd")]
        except DurabilityError:
            return range(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _peers(descriptors: Iterable[int], port: int) -> Mapping[str, int]:
    """Returns the descriptors of the connections to a port, by the address of the client."""
    peers = {}
    for fd in descriptors:
        with suppress(OSError):  # closed meanwhile, or a listening socket
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                peer = _peer(fd, port)
                if peer is not None:
                    peers[peer] = fd
    return peers


def _peer(fd: int, port: int) -> str | None:
    """Returns the address of the client of a connection; None if it is not to the port."""
    connection = socket.socket(fileno=fd)
    try:
        if (
            connection.family not in (socket.AF_INET, socket.AF_INET6)
            or connection.getsockname()[1] != port
        ):
            return None
        host, number = connection.getpeername()[:2]
        return f"{host.removeprefix(_MAPPED_PREFIX)}:{number}"
    finally:
        connection.detach()


def _shut_down(fd: int, peer: str) -> None:
    """Shuts down a connection as its client would; Flight then closes the descriptor."""
    with suppress(OSError):
        connection = socket.socket(fileno=fd)
        try:
            host, number = connection.getpeername()[:2]
            if (
                f"{host.removeprefix(_MAPPED_PREFIX)}:{number}" == peer
            ):  # else it was closed meanwhile, and the descriptor belongs to another connection
                connection.shutdown(socket.SHUT_RDWR)
        finally:
            connection.detach()
