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
from collections.abc import Callable
from typing import Any, NamedTuple

from nosync_nb.errors import NosyncError
from nosync_nb.rows import Schema
from nosync_nb.spark import failures
from nosync_nb.spark.shipping import Shipping
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
        self._shipping: Shipping | None = None
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

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(WAIT_S)
            try:
                if not _same_user(connection):
                    return
                request = json.loads(connection.makefile("rb").readline(_REQUEST_MAX))
                payload = pickle.dumps(self._asked(request))
            except NosyncError as error:
                payload = pickle.dumps(failures.pack(error))
            except OSError:
                return
            except Exception as error:
                text = NosyncError(f"the session cannot answer: {type(error).__name__}: {error}")
                payload = pickle.dumps(failures.pack(text))
            try:
                connection.sendall(_SIZE.pack(len(payload)) + payload)
            except OSError:
                return

    def _asked(self, request: dict[str, Any]) -> Served:
        """The snapshot for a request; the first one of a query pins its epoch."""
        stage, at, query = request["stage"], request["at"], request["query"]
        with self._lock:
            if at is None and query is not None:
                at = self._pins.get(query)
            found = self._provider(stage, at)
            if request["at"] is None and query is not None:
                self._pins[query] = found.epoch
                self._pins.move_to_end(query)
                while len(self._pins) > PINS_MAX:
                    self._pins.popitem(last=False)
            if self._shipping is None:
                self._shipping = Shipping(found.folder, "view")
            return served(found, self._shipping)


def served(found: Snapshot, shipping: Shipping | None = None) -> Served:
    """A snapshot ready to travel; `shipping` None: it stays in this process."""
    trace = found.trace
    if shipping is None:
        layers = tuple(layer.files or layer.parts for layer in trace.layers)
        stored = Stored(trace.layout, layers)
    else:
        stored = shipping.trace(trace)
    return Served(found.schema, stored, found.folder, trace.rows_count)


def ask(folder: str, stage: str, at: Any = None, query: str | None = None) -> Served:
    """Asks the session of a folder for a stage, or reads the folder if there is none.

    Raises:
        NosyncError: as the session would raise it.
    """
    request = {"stage": stage, "at": at, "query": query}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(WAIT_S)
        try:
            connection.connect(address(folder))
            if not _same_user(connection):
                raise ConnectionRefusedError
        except (ConnectionError, FileNotFoundError):
            return _read(folder, stage, at)
        connection.sendall(json.dumps(request).encode() + b"\n")
        stream = connection.makefile("rb")
        (size,) = _SIZE.unpack(stream.read(_SIZE.size))
        found = pickle.loads(stream.read(size))
    if isinstance(found, bytes):
        raise failures.unpack(found)
    assert isinstance(found, Served)
    return found


def _read(folder: str, stage: str, at: Any) -> Served:
    """The stage as the log in the folder has it."""
    # By name: this module is below the session in the house.
    session = importlib.import_module("nosync_nb").open(folder, mode="r")
    try:
        return served(session._spark._snapshot(stage, at))
    finally:
        session.close()


def _same_user(connection: socket.socket) -> bool:
    """Whether the other end is a process of this user."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(found)[1] == os.getuid())
