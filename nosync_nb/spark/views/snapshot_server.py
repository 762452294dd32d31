"""Serves snapshots of stages in the driver's memory to Spark's Python processes.

Spark reads a data source in separate processes. They ask the session that owns the folder, over a
local socket of this user. The session returns the trace: the names of part files, and small layers
in memory as bytes. If no session answers (none is open, or it is on another machine), the processes
read the log in the folder themselves.

Spark plans a view once and runs it many times, so the session is asked at each run. All reads of
one Spark query have the same epoch: the first read pins the epoch under the query's number.

A reader trusts only the owner of the log. The name of the socket depends on the folder and on the
current generation of its log. A session that was closed or replaced stops serving. A reader ignores
a socket of another user, and opens the folder instead.

Other layers in memory are spilled to files, so that Spark's processes can read them. The tasks of a
query ask one after the other, so the files of the newest answer for each stage are retained. The
files of an answer are also retained until its reader has finished. After that they are deleted.

The socket is needed although the folder contains the log. The folder has no rows of stages in
memory, and processes that read it while epochs are committed would see different epochs within one
query. The socket is not needed for speed: a query of a view of 100 rows takes 0.1 s with either, at
most 1.2 times as long from the folder. Of this time, reading the folder takes 0.8 to 32 ms, and the
socket 0.4 to 0.6 ms, for logs of 1 to 20 stages with 1 to 1,000 epochs since the checkpoint.

Failure: an error of the session is sent as data and raised where the read runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import socket
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from nosync_nb.dataflow import snapshot as dataflow
from nosync_nb.dataflow.snapshot import trace_at
from nosync_nb.errors import FencedError, NosyncError, TimeError
from nosync_nb.files.filesystem import Files
from nosync_nb.rows import Schema
from nosync_nb.spark import error_translation
from nosync_nb.spark.execution.tasks import PlanPayload, StoredTrace, delete_parts
from nosync_nb.store import log_reader
from nosync_nb.store.catalog.epoch_index import EpochIndex, EpochNumbering
from nosync_nb.store.log.fencing import ControlBlock
from nosync_nb.store.replication.restore.lazy_fetch import fetch_all_files
from nosync_nb.store.store import Store
from nosync_nb.trace import Layer, Trace
from nosync_nb.trace.batch import Batch
from nosync_nb.trace.parts.part_file import PartRef

PINS_MAX = 64
WAIT_S = 30.0
NAMES = 4
"""The number of possible names of a socket, because another user may guess and bind a name."""

_SIZE = struct.Struct("<Q")
_CREDENTIALS = struct.Struct("3i")
_REQUEST_MAX = 1 << 16


Pin = tuple[int, int]
"""An epoch that remains unique after a rewind: its number, and the incarnation of the log."""


class StageSnapshot(NamedTuple):
    """A stage at an epoch, as a session returns it.

    Attributes:
        folder: the folder of the part files.
        thorough: True if another user signed the log.
        since: the incarnation of the log, read before the snapshot was taken.
        numbering: the numbering of epochs when the snapshot was taken.
    """

    epoch: int
    schema: Schema
    trace: Trace
    folder: str
    thorough: bool = False
    since: int = 0
    numbering: EpochNumbering = EpochNumbering()

    @property
    def pin(self) -> Pin:
        """The pin by which the same epoch can be requested again."""
        return self.epoch, self.since


class SerializedSnapshot(NamedTuple):
    """A snapshot in the form that is sent to readers; `rows` is the number of its rows."""

    schema: Schema
    trace: StoredTrace
    folder: str
    rows: int
    pin: Pin


def snapshot_of(
    store: Store, ledger: EpochIndex, seen: dataflow.Snapshot, stage: str, at: Any, since: int
) -> StageSnapshot:
    """Returns the snapshot of a stage at an epoch.

    Args:
        seen: the snapshot of the session.
        at: an epoch, a label or a time; `None` means the last epoch.
        since: the incarnation of the log, read before `seen` was taken.
    """
    if isinstance(at, str) and ledger.labelled(at) is None:
        with contextlib.suppress(ValueError):  # because options of a data source are texts
            at = datetime.fromisoformat(at)
    number, trace = trace_at(seen, stage, None if at is None else ledger.resolve(at, seen.epoch))
    fetch_all_files(store.files)
    schema, means = seen.stage(stage).schema, ledger.numbering
    return StageSnapshot(number, schema, trace, store.parts, store.foreign, since, means)


def check_pin(snapshot: StageSnapshot, stage: str, pin: Pin) -> None:
    """Checks that the epoch of a snapshot is the pinned one, not a later one of the same number.

    Raises:
        TimeError: if the log has been rewound to before the pinned epoch.
    """
    epoch, incarnation = pin
    if snapshot.numbering.has_left(epoch, incarnation):
        raise TimeError(
            f"stage '{stage}': epoch {epoch} was undone by a rewind",
            hint="create the DataFrame again; the undone epochs are in a branch, see"
            " session.branches",
        )


Provider = Callable[[str, Any], StageSnapshot]
"""A function `(stage, at)` that returns a snapshot; `None` for `at` means the current epoch."""


def socket_addresses(folder: str, generation: int | None = None) -> list[str]:
    """Returns the possible names of a folder's socket.

    The names are abstract, so the system releases a name when the process ends.

    Args:
        generation: the generation of the log; by default the one that may currently write it.
    """
    where = os.path.realpath(folder)
    if generation is None:
        generation = _generation(where)
    digest = hashlib.sha256(f"{generation} {where}".encode()).hexdigest()[:32]
    return [f"\0nosync/{os.getuid()}/{digest}/{i}" for i in range(NAMES)]


def _generation(folder: str) -> int:
    """Returns the generation that may currently write the log in a folder; 0 if unknown."""
    try:
        words = ControlBlock(Files().mapped(os.path.join(folder, "generation")))
    except NosyncError:
        return 0
    try:
        return words.generation
    finally:
        words.close()


class SpilledLayer:
    """A layer whose parts were spilled to files, and the number of users of these files."""

    def __init__(self, layer: Layer, sources: tuple[PartRef | Batch, ...], folder: str) -> None:
        self.layer = layer
        self.sources = sources
        self._folder = folder
        self._users = 0

    def add_user(self) -> None:
        """Adds a user."""
        self._users += 1

    def release(self) -> None:
        """Removes a user; after the last one the files are deleted."""
        self._users -= 1
        if not self._users:
            delete_parts((s for s in self.sources if isinstance(s, PartRef)), self._folder)


class SnapshotAnswer(NamedTuple):
    """The trace of an answer, and the spilled layers that it needs."""

    trace: StoredTrace
    spills: tuple[SpilledLayer, ...] = ()

    def with_user(self) -> SnapshotAnswer:
        """Adds a user to the spilled layers, and returns this answer."""
        for spill in self.spills:
            spill.add_user()
        return self

    def end(self) -> None:
        """Removes a user from the spilled layers."""
        for spill in self.spills:
            spill.release()


class SnapshotAnswers:
    """The newest answer for each stage of one server. The caller synchronises threads."""

    def __init__(self) -> None:
        self._newest: dict[str, SnapshotAnswer] = {}

    def answer(
        self, stage: str, trace: Trace, folder: str, *, thorough: bool = False
    ) -> SnapshotAnswer:
        """Returns a new answer for a stage; the caller must call its `end`.

        Cost: writes the large layers in memory, except those of the previous answer for the stage.
        """
        before = self._newest.get(stage)
        known = {id(spill.layer): spill for spill in before.spills} if before else {}
        shipping = PlanPayload.local(folder, "view")
        layers = []
        spills = []
        for layer in trace.layers:
            spill = known.get(id(layer))
            if spill is None:
                sources = shipping.layer(layer)
                if not layer.files and any(isinstance(s, PartRef) for s in sources):
                    spill = SpilledLayer(layer, sources, folder)
            if spill is not None:
                sources = spill.sources
                spills.append(spill)
            layers.append(sources)
        answer = SnapshotAnswer(StoredTrace(trace.layout, tuple(layers), thorough), tuple(spills))
        self._newest[stage] = answer.with_user()
        if before is not None:
            before.end()
        return answer.with_user()

    def forget(self, stage: str) -> None:
        """Drops the newest answer for a stage."""
        answer = self._newest.pop(stage, None)
        if answer is not None:
            answer.end()

    def close(self) -> None:
        """Drops all answers; their files stay until their readers have finished."""
        for stage in list(self._newest):
            self.forget(stage)


class SnapshotServer:
    """Answers reads of one folder, until the server is closed or its session is fenced.

    Args:
        provider: returns snapshots; it raises FencedError if the session was closed or replaced.
        generation: the generation of the log that the session writes.

    Raises:
        OSError: if all names are in use. Then reads open the folder.
    """

    def __init__(self, folder: str, provider: Provider, generation: int | None = None) -> None:
        self._provider = provider
        self._pins: OrderedDict[str, Pin] = OrderedDict()
        self._lock = threading.Lock()
        self._answers = SnapshotAnswers()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._bind(socket_addresses(folder, generation))
            self._socket.listen()
        except OSError:
            self._socket.close()
            raise
        self._thread = threading.Thread(target=self._accept, name="nosync views", daemon=True)
        self._thread.start()

    def _bind(self, names: Sequence[str]) -> None:
        """Binds the first name that is free."""
        for name in names:
            try:
                self._socket.bind(name)
            except OSError:
                if name == names[-1]:
                    raise
            else:
                return

    def close(self) -> None:
        """Stops serving."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        with self._lock:
            self._answers.close()

    def forget(self, stage: str) -> None:
        """Drops the newest answer for a stage."""
        with self._lock:
            self._answers.forget(stage)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve_request, args=(connection,), daemon=True).start()

    def _serve_request(self, connection: socket.socket) -> None:
        """Answers one request, and retains its files until the reader closes the connection."""
        answer = None
        with connection, contextlib.suppress(OSError):
            connection.settimeout(WAIT_S)
            if not _same_user(connection):
                return
            with connection.makefile("rb") as stream:
                asked = stream.readline(_REQUEST_MAX)
            try:
                payload, answer = self._payload(asked)
            except FencedError:
                connection.close()
                self.close()
                return
            try:
                connection.sendall(_SIZE.pack(len(payload)) + payload)
                connection.settimeout(None)
                connection.recv(1)
            finally:
                if answer is not None:
                    with self._lock:
                        answer.end()

    def _payload(self, asked: bytes) -> tuple[bytes, SnapshotAnswer | None]:
        """Returns the serialised answer to a request, a snapshot or an error; and its files."""
        answer = None
        try:
            request = json.loads(asked)
            with self._lock:
                snapshot = self._snapshot(request)
                answer = self._answers.answer(
                    request["stage"], snapshot.trace, snapshot.folder, thorough=snapshot.thorough
                )
            served = SerializedSnapshot(
                snapshot.schema,
                answer.trace,
                snapshot.folder,
                snapshot.trace.rows_count,
                snapshot.pin,
            )
            return pickle.dumps(served), answer
        except FencedError:
            raise
        except NosyncError as error:
            return pickle.dumps(error_translation.pack_error(error)), answer
        except Exception as error:
            text = NosyncError(f"the session cannot answer: {type(error).__name__}: {error}")
            return pickle.dumps(error_translation.pack_error(text)), answer

    def _snapshot(self, request: dict[str, Any]) -> StageSnapshot:
        """Returns the snapshot for a request; the first request of a query pins its epoch."""
        stage, at, query = request["stage"], request["at"], request["query"]
        pin: Pin | None = request["pin"]
        if at is None and query is not None:
            pin = self._pins.get(query)
        snapshot = self._provider(stage, at if pin is None else pin[0])
        if pin is not None:
            check_pin(snapshot, stage, pin)
        if at is None and query is not None:
            self._pins[query] = pin or snapshot.pin
            self._pins.move_to_end(query)
            while len(self._pins) > PINS_MAX:
                self._pins.popitem(last=False)
        return snapshot


def ask_session(
    folder: str, stage: str, at: Any = None, *, pin: Pin | None = None
) -> SerializedSnapshot:
    """Returns a snapshot without its rows: after the call, its files may be deleted.

    See `stage_snapshot`.
    """
    with stage_snapshot(folder, stage, at, pin=pin) as served:
        return served


@contextlib.contextmanager
def stage_snapshot(
    folder: str,
    stage: str,
    at: Any = None,
    query: str | None = None,
    *,
    pin: Pin | None = None,
) -> Iterator[SerializedSnapshot]:
    """Asks the session of a folder for a stage, or reads the folder if there is no session.

    The files of the answer are retained until the block ends.

    Args:
        at: an epoch, a label or a time; `None` means the current epoch.
        query: the number of a Spark query. All of its reads without `at` have the same epoch.
        pin: the epoch to which `at` was resolved before.

    Raises:
        NosyncError: the error of the session, for example if there is no such stage.
    """
    request = {"stage": stage, "at": at, "query": query, "pin": pin}
    connection, payload = _request_snapshot(folder, json.dumps(request).encode() + b"\n")
    if connection is None:
        yield _read_folder(folder, stage, at, pin)
        return
    with connection:
        served = _load_answer(payload, folder)
        try:
            yield served
        finally:
            with contextlib.suppress(OSError):  # waits until the server has released the files
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1)


def _request_snapshot(folder: str, request: bytes) -> tuple[socket.socket | None, bytes]:
    """Sends a request to the session that owns a folder.

    Returns:
        the connection and the answer; None and no bytes if no session answers.
    """
    for name in socket_addresses(folder):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        connection.settimeout(WAIT_S)
        try:
            connection.connect(name)
            if _same_user(connection):
                connection.sendall(request)
                with connection.makefile("rb") as stream:
                    (size,) = _SIZE.unpack(stream.read(_SIZE.size))
                    return connection, stream.read(size)
        except (OSError, struct.error):  # there is no server, or it does not answer
            pass
        connection.close()
    return None, b""


def _load_answer(payload: bytes, folder: str) -> SerializedSnapshot:
    """Deserialises the answer of a session; raises the error if the answer is one.

    Failure: 1. A session is open, and another release is installed. 2. Spark's process, which runs
    that release, asks the session. 3. The answer names classes that have moved. The folder is not
    read instead, because the session may commit between the reads of one query.

    Raises:
        NosyncError: the error of the session; also if the session runs another release.
    """
    try:
        served = pickle.loads(payload)
    except (ImportError, AttributeError) as error:
        raise NosyncError(
            f"the session that has '{folder}' open runs another release of nosync ({error})",
            hint="restart its kernel, then read again",
        ) from error
    if isinstance(served, bytes):
        raise error_translation.unpack_error(served)
    assert isinstance(served, SerializedSnapshot)
    return served


def _read_folder(folder: str, stage: str, at: Any, pin: Pin | None) -> SerializedSnapshot:
    """Returns a stage at an epoch as recorded in the log; see `stage_snapshot`."""
    store = Store.open(os.path.realpath(folder), mode="r")
    try:
        recovered = log_reader.recover_state(store)
        known = recovered.ledger
        at = at if pin is None else pin[0]
        snapshot = snapshot_of(store, known, recovered.snapshot, stage, at, known.incarnation)
        if pin is not None:
            check_pin(snapshot, stage, pin)
        trace = snapshot.trace
        layers = tuple(layer.files or layer.parts for layer in trace.layers)
        stored = StoredTrace(trace.layout, layers, snapshot.thorough)
        return SerializedSnapshot(
            snapshot.schema, stored, snapshot.folder, trace.rows_count, snapshot.pin
        )
    finally:
        store.close()


def _same_user(connection: socket.socket) -> bool:
    """Returns True if the peer of a connection is a process of this user."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[1] == os.getuid())
