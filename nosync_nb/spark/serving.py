"""Serving snapshots: how Spark's Python processes see a stage as of now, in the driver's memory.

Spark reads a data source in processes of its own. They ask the session that owns the folder, over
a socket of this machine and this user, and get the trace: names of part files, and what is in
memory alone, as bytes. If nobody answers (no session is open, or it is on another machine) they
read the log in the folder themselves.

Spark plans a view once and runs it many times, so a read asks when it runs. All reads of one Spark
query get the same epoch: the first one pins it under the query's number.

Failure: an error of the session is sent as data and raised where the read runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import pickle
import socket
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from nosync_nb.errors import NosyncError
from nosync_nb.rows import Schema
from nosync_nb.spark import failures
from nosync_nb.spark.leases import Lease, Leases
from nosync_nb.spark.tasks import Stored
from nosync_nb.trace import Trace

PINS_MAX = 64
WAIT_S = 30.0

_SIZE = struct.Struct("<Q")
_CREDENTIALS = struct.Struct("3i")
_REQUEST_MAX = 1 << 16


class Snapshot(NamedTuple):
    """A stage at an epoch, as a session gives it; `folder` holds the part files."""

    epoch: int
    schema: Schema
    trace: Trace
    folder: str


class Served(NamedTuple):
    """A snapshot as it travels."""

    schema: Schema
    trace: Stored
    folder: str
    rows: int


Provider = Callable[[str, Any], Snapshot]
"""Gives the snapshot of a stage: `(stage, at)`, `at` None for now."""


def address(folder: str) -> str:
    """The name of the socket for a folder: abstract, so it ends with its process."""
    digest = hashlib.sha256(os.path.realpath(folder).encode()).hexdigest()[:32]
    return f"\0nosync/{os.getuid()}/{digest}"


class Server:
    """Answers reads of one folder until it is closed.

    Raises:
        OSError: another process of this user serves the folder; its answers are as good.
    """

    def __init__(self, folder: str, provider: Provider) -> None:
        self._provider = provider
        self._pins: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()
        self._leases = Leases()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.bind(address(folder))
            self._socket.listen()
        except OSError:
            self._socket.close()
            raise
        self._thread = threading.Thread(target=self._accept, name="nosync views", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends serving."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        with self._lock:
            self._leases.close()

    def forget(self, stage: str) -> None:
        """Lets go of what was served of a stage."""
        with self._lock:
            self._leases.forget(stage)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        """Answers one request; what it names stays until the reader has hung up."""
        lease = None
        with connection, contextlib.suppress(OSError):
            connection.settimeout(WAIT_S)
            if not _same_user(connection):
                return
            payload, lease = self._payload(connection.makefile("rb").readline(_REQUEST_MAX))
            try:
                connection.sendall(_SIZE.pack(len(payload)) + payload)
                connection.settimeout(None)
                connection.recv(1)
            finally:
                if lease is not None:
                    with self._lock:
                        lease.end()

    def _payload(self, asked: bytes) -> tuple[bytes, Lease | None]:
        """The answer to a request as it travels: a snapshot, or an error."""
        lease = None
        try:
            request = json.loads(asked)
            with self._lock:
                found = self._found(request)
                lease = self._leases.lease(request["stage"], found.trace, found.folder)
            answer = Served(found.schema, lease.trace, found.folder, found.trace.rows_count)
            return pickle.dumps(answer), lease
        except NosyncError as error:
            return pickle.dumps(failures.pack(error)), lease
        except Exception as error:
            text = NosyncError(f"the session cannot answer: {type(error).__name__}: {error}")
            return pickle.dumps(failures.pack(text)), lease

    def _found(self, request: dict[str, Any]) -> Snapshot:
        """The snapshot for a request; the first one of a query pins its epoch."""
        stage, at, query = request["stage"], request["at"], request["query"]
        if at is None and query is not None:
            at = self._pins.get(query)
        found = self._provider(stage, at)
        if request["at"] is None and query is not None:
            self._pins[query] = found.epoch
            self._pins.move_to_end(query)
            while len(self._pins) > PINS_MAX:
                self._pins.popitem(last=False)
        return found


def ask(folder: str, stage: str, at: Any = None) -> Served:
    """Asks the session of a folder about a stage; the files may be gone when this returns."""
    with asked(folder, stage, at) as found:
        return found


@contextlib.contextmanager
def asked(folder: str, stage: str, at: Any = None, query: str | None = None) -> Iterator[Served]:
    """Asks the session of a folder for a stage, or reads the folder if there is none.

    The files that the answer names stay until the block ends.

    Raises:
        NosyncError: as the session would raise it.
    """
    request = {"stage": stage, "at": at, "query": query}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(WAIT_S)
        if not _connected(connection, folder):
            yield _read(folder, stage, at)
            return
        connection.sendall(json.dumps(request).encode() + b"\n")
        stream = connection.makefile("rb")
        (size,) = _SIZE.unpack(stream.read(_SIZE.size))
        found = pickle.loads(stream.read(size))
        if isinstance(found, bytes):
            raise failures.unpack(found)
        assert isinstance(found, Served)
        try:
            yield found
        finally:
            with contextlib.suppress(OSError):  # until the other end has heard of it
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1)


def _connected(connection: socket.socket, folder: str) -> bool:
    """Whether a session of this user answers for a folder."""
    try:
        connection.connect(address(folder))
    except (ConnectionError, FileNotFoundError):
        return False
    return _same_user(connection)


def _read(folder: str, stage: str, at: Any) -> Served:
    """The stage as the log in the folder has it."""
    # By name: this module is below the session in the house.
    session = importlib.import_module("nosync_nb").open(folder, mode="r")
    try:
        found: Snapshot = session._spark._snapshot(stage, at)
        trace = found.trace
        layers = tuple(layer.files or layer.parts for layer in trace.layers)
        stored = Stored(trace.layout, layers)
        return Served(found.schema, stored, found.folder, trace.rows_count)
    finally:
        session.close()


def _same_user(connection: socket.socket) -> bool:
    """Whether the other end is a process of this user."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(found)[1] == os.getuid())
