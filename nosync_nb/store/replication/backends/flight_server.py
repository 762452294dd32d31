"""Server: copies of logs in a folder of its own, for whoever has its token, over Arrow Flight.

    python -m nosync_nb.replica DIR --port P [--host H] [--token-file F] [--tls-cert C --tls-key K]

A process with its own disk: what it acknowledges it has synced. It keeps nothing in memory that a
kill could take, and what it is asked is checked before anything is made of it (`wire`, `copies`).
Without a token file it takes this user's own token, and without `--host` this machine alone hears
it; from elsewhere it is heard with TLS and a token file alone.

Failure: Flight takes a message of any length before anybody is asked who sent it. So a process that
has grown beyond what all its calls together can need starts itself again, as after a kill.
"""

from __future__ import annotations

import argparse
import os
import resource
import select
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from nosync_nb.errors import DurabilityError, NosyncError, SchemaError
from nosync_nb.files import secret_files
from nosync_nb.files.filesystem import Files, Lock
from nosync_nb.store.log import folder as log_folder
from nosync_nb.store.replication.address import is_loopback
from nosync_nb.store.replication.backends import flight_protocol
from nosync_nb.store.replication.backends.flight_connections import Connections
from nosync_nb.store.replication.backends.flight_protocol__wire import (
    CALL_BYTES_MAX,
    NONCE_BYTES,
    ServerHandshake,
    UnauthenticatedError,
    check_answer,
)
from nosync_nb.store.replication.backends.flight_server__copies import ServerCopies

CALLS_MAX = 64
"""How many calls are answered at a time."""

MEMORY_BYTES_MAX = 768 << 20
_LOOK_S = 0.1
_IDLE_LOOKS = 100
_PORT_MAX = 65535


class ReplicaService(flight.FlightServerBase):  # type: ignore[misc]
    """Flight's face of the copies: `hello` and `call` are its actions, and there is nothing else.

    Args:
        where: `grpc://host:port` or `grpc+tls://host:port`, as Flight has it.
        tls: certificate and key, as PEM.
    """

    def __init__(
        self, where: str, copies: ServerCopies, token: bytes, tls: tuple[bytes, bytes] | None
    ) -> None:
        self._copies, self._greeter = copies, ServerHandshake(token)
        self._places = threading.BoundedSemaphore(CALLS_MAX)
        super().__init__(where, tls_certificates=[tls] if tls else None)
        self.connections = Connections(self.port)

    def do_action(self, context: Any, action: Any) -> list[Any]:
        """Answers a client; one that has another token learns nothing but that."""
        try:
            if action.type == "hello" and action.body.size == NONCE_BYTES:
                return [_result(self._greeter.hello(action.body.to_pybytes()))]
            if action.type != "call" or action.body.size > CALL_BYTES_MAX:
                raise UnauthenticatedError("no call")
            call = self._greeter.opened(action.body.to_pybytes())
            self.connections.prove(context.peer())
        except UnauthenticatedError as error:
            raise flight.FlightUnauthenticatedError(str(error)) from None
        said: bytes | NosyncError
        if not self._places.acquire(blocking=False):
            said = DurabilityError("the server is busy", hint="it is tried again")
            return [_result(piece) for piece in check_answer(call, said)]
        try:
            said = self._copies.call(call.nonce, call.header, call.data)
        except NosyncError as error:
            said = error
        except Exception as error:  # whatever it is, the client is told, and the server goes on
            said = DurabilityError(f"the server failed: {type(error).__name__}: {error}")
        finally:
            self._places.release()
        return [_result(piece) for piece in check_answer(call, said)]


def _result(data: bytes) -> Any:
    return flight.Result(pa.py_buffer(data))


def main(arguments: Sequence[str]) -> int:
    """Runs a server until it gets a SIGTERM; returns what the process exits with."""
    options = _parser().parse_args(arguments)
    try:
        _serve(options, Files())
    except NosyncError as error:
        hint = f"\nHint: {error.hint}" if error.hint else ""
        sys.stderr.write(f"nosync replica: {error}{hint}\n")
        return 2
    return 0


def _serve(options: argparse.Namespace, files: Files) -> None:
    """Listens until it is told to end."""
    tls = _identity(files, options)
    token = (
        flight_protocol.client_token(files, options.token_file)
        if options.token_file
        else flight_protocol.server_token(files)
    )
    with ExitStack() as ends:
        lock = _claimed(files, options.dir)
        ends.callback(lock.release)
        copies = ServerCopies(options.dir, files)
        ends.callback(copies.close)
        service = _listening(options, copies, token, tls)
        ends.callback(service.shutdown)
        told = _ending()
        kind = "grpc+tls" if tls else "grpc"
        at = f"{kind}://{_bracketed(options.host)}:{service.port}"
        sys.stdout.write(f"{at} keeps {options.dir}\n")
        sys.stdout.flush()
        looks = 0
        while not select.select([told], [], [], _LOOK_S)[0]:
            looks += 1
            if looks % _IDLE_LOOKS == 0:
                copies.drop_idle()
            service.connections.limit()
            if _memory_bytes(files) > MEMORY_BYTES_MAX:
                _again(service.port)


def _ending() -> int:
    """Has SIGTERM and SIGINT make a descriptor readable, whichever thread they come to."""
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return told


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nosync_nb.replica", description="Keeps copies of logs in a folder."
    )
    parser.add_argument("dir", type=os.path.abspath, metavar="DIR", help="where the copies are")
    parser.add_argument("--port", type=_port, required=True, help="0: one that is free")
    parser.add_argument("--host", default="127.0.0.1", help="beyond this machine it takes TLS")
    parser.add_argument("--token-file", help="64 hex digits or more; else the user's own token")
    parser.add_argument("--tls-cert", help="certificate, PEM")
    parser.add_argument("--tls-key", help="its key, PEM, which the user alone can read")
    return parser


def _port(word: str) -> int:
    number = int(word)
    if not 0 <= number <= _PORT_MAX:
        raise ValueError(word)
    return number


def _identity(files: Files, options: argparse.Namespace) -> tuple[bytes, bytes] | None:
    """Certificate and key, if there are any and they are needed or named.

    Raises:
        SchemaError: the server would be heard elsewhere without, or one of them is missing.
        TrustError: others can read the key.
    """
    if bool(options.tls_cert) != bool(options.tls_key):
        raise SchemaError("--tls-cert and --tls-key go together", hint="name both")
    if not is_loopback(f"{options.host}:0") and not (options.tls_cert and options.token_file):
        raise SchemaError(
            f"host '{options.host}' is heard beyond this machine",
            hint="name --token-file, --tls-cert and --tls-key, or leave --host out",
        )
    if not options.tls_cert:
        return None
    secret_files.check_secret_file(files, options.tls_key, "TLS key")
    return files.read(options.tls_cert), files.read(options.tls_key)


def _claimed(files: Files, folder: str) -> Lock:
    """Makes the folder of copies if the one above is there, and takes it for this process.

    Raises:
        DurabilityError: another server has it, or it cannot be made.
        TrustError: others can write there.
    """
    if not files.exists(folder):
        if not files.exists(os.path.dirname(folder)):
            raise DurabilityError(
                f"'{os.path.dirname(folder)}' is not there", hint="mount its disk, or make it"
            )
        files.make_folder(folder)
    log_folder.is_owned_by_user(files, folder, write=True)
    lock = files.lock(os.path.join(folder, "server.lock"))
    if lock is None:
        raise DurabilityError(
            f"another server keeps '{folder}'", hint="end it, or name another folder"
        )
    return lock


def _listening(
    options: argparse.Namespace, copies: ServerCopies, token: bytes, tls: tuple[bytes, bytes] | None
) -> ReplicaService:
    host = _bracketed(options.host)
    where = f"{'grpc+tls' if tls else 'grpc'}://{host}:{options.port}"
    try:
        return ReplicaService(where, copies, token, tls)
    except (pa.ArrowException, flight.FlightError, OSError) as error:
        raise DurabilityError(
            f"cannot listen at {host}:{options.port}: {error}",
            hint="something else listens there, the address is none of this machine's, or"
            " certificate and key do not go together; --port 0 takes a port that is free",
        ) from None


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _memory_bytes(files: Files) -> int:
    """What the process has in memory of its own."""
    try:
        resident, shared = files.read(f"/proc/{os.getpid()}/statm").split()[1:3]
    except DurabilityError:
        return 0  # another system: its own limits hold
    return (int(resident) - int(shared)) * resource.getpagesize()


def _again(port: int) -> None:
    """Starts the process again, at the port that it has; its clients come again as well."""
    sys.stderr.write("nosync replica: sent more than it may be, and starts again\n")
    sys.stderr.flush()
    os.execv(sys.executable, [*sys.orig_argv, "--port", str(port)])
