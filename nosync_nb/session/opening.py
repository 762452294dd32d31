"""Opens a session's folder: creates it, or recovers it.

A log whose folder is gone is restored from its replicas. `on_loss` says what the opening does if
too few of them can be read:

    refuse  raises: the caller decides (the default)
    wait    asks again until enough of them answer, or until the timeout has passed
    gap     continues with the readable copies, and reports for each stage the first epoch that may
            be missing

A quorum may have acknowledged epochs that only the silent replicas have. So none of the three
starts an empty log, and the gap is reported until the log is opened again.
"""

from __future__ import annotations

import atexit
import gc
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Literal, NamedTuple, cast, get_args
from weakref import WeakValueDictionary

from nosync_nb.errors import (
    CorruptLogError,
    DurabilityError,
    NosyncError,
    SchemaError,
    TrustError,
    warn,
)
from nosync_nb.files.filesystem import Files
from nosync_nb.session.session import Session, services_of
from nosync_nb.session.state.report import RecoveryReport
from nosync_nb.session.timetravel.branch import record_restored_branches
from nosync_nb.spark.session_protocol import SparkOptions
from nosync_nb.spark.staging import location
from nosync_nb.store import retention_policy
from nosync_nb.store.log import Log
from nosync_nb.store.records.payloads import rewind_target
from nosync_nb.store.replication import config
from nosync_nb.store.replication.config import ReplicaConfig
from nosync_nb.store.replication.endpoints import is_prepared, prepare_copy
from nosync_nb.store.replication.restore import restore
from nosync_nb.store.replication.restore.lazy_fetch import FetchingFiles
from nosync_nb.store.replication.restore.restore import QuorumUnavailableError, RestoreResult
from nosync_nb.store.store import Store
from nosync_nb.store.timetravel import branches

OnLoss = Literal["refuse", "wait", "gap"]

_RETRY_S = 0.2

_open_sessions: WeakValueDictionary[str, Session] = WeakValueDictionary()
_opening_lock = threading.Lock()


def open(
    path: str | os.PathLike[str],
    *,
    spark: Any = None,
    bulk: str | None = None,
    spark_rows: int | None = None,
    mode: Literal["r", "w"] = "w",
    takeover: bool = False,
    replicas: Sequence[str] | None = None,
    quorum: int | None = None,
    on_loss: OnLoss = "refuse",
    timeout: float | None = None,
    retain: int | str | None = None,
    budget: int | str | None = None,
) -> Session:
    """Opens a session's folder: creates it, or recovers it.

    A second call in one process returns the same session. `nosync.open` also takes the path of a
    notebook that has a log.

    Args:
        spark: the Spark session to use, or a function that returns it when it is needed.
        bulk: URL of a location for staging files, if executors do not see the session's folder.
            Both this process and the executors must reach it: `file:///mnt/shared`,
            `s3://bucket/prefix`. Files are transferred through it and retained in the folder.
            Without it only small DataFrames can be exchanged, over Arrow.
        spark_rows: first runs and epochs above this many rows run on executors, all others in this
            process; `None` decides by estimated cost, see `explain()`.
        mode: "w" writes; "r" follows the log without becoming its owner.
        takeover: True to replace an owner that is alive, or may be.
        replicas: URLs of the copies of the log, `file:///absolute/folder` each, best on other
            disks; `None` means those of the last opening. If the session's folder is missing, it is
            restored from them.
        quorum: the number of replicas that must have an epoch before it is safe; `None` means more
            than half.
        on_loss: what to do if the folder is missing and too few replicas can be read to be sure
            that no safe epoch is lost. "refuse" raises, "wait" waits for more of them, "gap"
            continues with the readable ones; then `recovery.uncertain` lists what may be missing.
        retain, budget: values for the session's attributes; `"all"` and `"none"` remove the limit,
            `None` leaves it unchanged.
        timeout: the longest wait of `on_loss="wait"`, in seconds; `None` means until the call is
            interrupted.

    Raises:
        SchemaError: an argument is not valid.
        DurabilityError: too few replicas of a lost log can be read; or the notebook has no log.
        FencedError: another process writes the log; the notes list the possible actions.
        CorruptLogError: a file on disk is damaged.

    Examples:
        >>> reader = nosync.open("flights.nosync", mode="r")
        >>> reader["late"].count()
        2
    """
    _check_retention(mode, retain, budget)
    _check_mode(mode, bulk, named=replicas is not None or quorum is not None)
    where = os.path.realpath(plain_path(path, "open"))
    requested = None if replicas is None else config.checked_config(replicas, quorum, log=where)
    request = _OpenRequest(
        where, mode, takeover, _spark_options(spark, spark_rows, bulk), requested, quorum
    )
    policy = RestorePolicy(on_loss, timeout)
    while True:
        try:
            session = _open_or_reuse(request, gap=policy.gap)
            if retain is not None:
                services_of(session).retention_service.set(retain)
            if budget is not None:
                services_of(session).retention_service.bound(budget)
            return session
        except QuorumUnavailableError as missing:
            policy.wait(missing)


def plain_path(path: str | os.PathLike[str], what: str) -> str:
    """Returns a path as text.

    Raises:
        SchemaError: no file can have this name.
    """
    text = os.fsdecode(path)
    if not text or "\0" in text:
        raise SchemaError(f"{what}: {text!r:.80} is not a path", hint="pass a folder")
    return text


class _OpenRequest(NamedTuple):
    """The arguments of one opening; see `open`.

    Attributes:
        replicas: the requested replicas; `None` means those of the log.
        quorum: the requested quorum, which applies to the replicas of the log if no others are
            given.
    """

    where: str
    mode: Literal["r", "w"]
    takeover: bool
    spark: SparkOptions
    replicas: ReplicaConfig | None
    quorum: int | None

    def over(self, before: ReplicaConfig) -> ReplicaConfig | None:
        """Returns the requested replica settings of a log that has settings already.

        Returns None if neither replicas nor a quorum are requested.
        """
        if self.replicas is None and self.quorum is not None:
            urls = [address.url for address in before.replicas]
            return config.checked_config(urls, self.quorum, log=self.where)
        return self.replicas


def _open_or_reuse(request: _OpenRequest, *, gap: bool) -> Session:
    """Returns the usable open session of the folder in this process, or opens a new one."""
    with _opening_lock:
        session = (
            _usable_session(request.where) if request.mode == "w" and not request.takeover else None
        )
        if session is not None:
            replication = services_of(session).replication
            requested = request.over(replication.settings)
            if requested is not None:
                replication.change(requested)
            if request.spark.bulk:
                services_of(session).staging.name(request.spark.bulk)
            return session
        with _without_garbage_collection():
            return _open_new(request, gap=gap)


def _open_new(request: _OpenRequest, *, gap: bool) -> Session:
    """Opens a session and registers it for its folder.

    If anything fails, it closes everything and registers nothing.
    """
    started = time.perf_counter()
    where, mode, requested = request.where, request.mode, request.replicas
    restoration = restore.restore_log(where, requested, gap=gap) if requested is not None else None
    files = FetchingFiles() if mode == "w" else None
    copies = restore.replicas_to_ask(files or Files(), where, requested)
    opened = partial(Log.open, further=copies)
    branches.check_branch_exists(files or Files(), where)
    store = Store.open(where, mode=mode, takeover=request.takeover, files=files, opened=opened)
    read = time.perf_counter()
    session = None
    try:
        replicas, unfit = _configured_replicas(store, request)
        replicas, ready = _prepare_replicas(store, replicas)
        session = Session(store, replicas, open, spark=request.spark)
        if restoration is not None:
            report_restore(session.recovery, restoration, [*session.inputs, *session.stages])
            for said in (
                record_restored_branches(store.files, where, replicas) if restoration.url else ()
            ):
                session.recovery.note(said)
        for note in (unfit, ready):
            if note is not None:
                session.recovery.note(note)
        services, lacks = services_of(session), mode == "w" and _may_lack_state(store)
        if services.behind:
            services.writer_lock.run_pre_write_tasks()
        verified, restored = store.verified, time.perf_counter()
        session.recovery.took(verified - started, read - verified, restored - read)
        if mode == "w":
            _register(where, session)
            with suppress(NosyncError):  # opening must succeed even if the home is read-only
                config.register_replicas(store.files, where, store.log.id, replicas)
        store.log.start()
        services.replication.start()
        services.lazy_fetcher.start()
        services.spark_connection.follow()
        if lacks:
            services.background_rebuild.submit_rebuild()  # before a write waits for it
        return session
    except BaseException:
        (session or store).close()
        raise


def _may_lack_state(store: Store) -> bool:
    """Returns True if operator state may be missing: in a branch, or after a rewind.

    No checkpoint is written after a rewind before the state is complete.
    """
    return branches.branch_origin(store.meta) is not None or rewind_target(store.tail) is not None


def _configured_replicas(store: Store, request: _OpenRequest) -> tuple[ReplicaConfig, str | None]:
    """Returns the replicas of an opened log, and the reason why its settings cannot be used.

    The reason is None if they can be used.
    """
    log = store.log
    if log.mode == "r":
        return ReplicaConfig(), None
    try:
        stored = config.read_config(store.files, store.path, log.id)
    except (TrustError, CorruptLogError, DurabilityError) as error:
        if request.replicas is None:
            return ReplicaConfig(), str(error)
        stored = ReplicaConfig()
    requested = request.over(stored)
    if requested is None or requested == stored.without_former:
        return stored, None
    requested = stored.changed(requested, log.head.seq)
    prepare_copy(requested.replicas, store.files)
    config.write_config(store.files, store.path, log.id, requested)
    return requested, None


def _prepare_replicas(store: Store, replicas: ReplicaConfig) -> tuple[ReplicaConfig, str | None]:
    """Prepares the replicas that a branch inherits from its parent, at its first opening.

    Returns the replicas, and a note for the report (None without one). If a replica cannot be
    reached, the branch is opened without replication, and the next opening tries again.
    """
    if not replicas.unprepared:
        return replicas, None
    urls = ", ".join(each.url for each in replicas.replicas)
    if not is_prepared(replicas.replicas, store.files):
        return replicas, f"it is on this disk only, because not all of {urls} can be reached"
    replicas = replicas._replace(unprepared=False)
    config.write_config(store.files, store.path, store.log.id, replicas)
    return replicas, f"it was on this disk only, and is now replicated to {urls}"


def _usable_session(where: str) -> Session | None:
    """Returns the open session of a folder in this process, if it can be used."""
    session = _open_sessions.get(where)
    if session is not None and session.closed:
        session.close()  # completes a close that was interrupted
    if session is None or session.closed or services_of(session).publisher.fenced:
        return None
    return session


def _register(where: str, session: Session) -> None:
    """Registers the session of a folder in this process."""
    replaced = _open_sessions.get(where)
    if replaced is not None and not replaced.closed:
        services_of(
            replaced
        ).spark_connection.close()  # because its views would show outdated contents
    _open_sessions[where] = session
    atexit.register(session.close)


def _check_retention(mode: str, retain: int | str | None, budget: int | str | None) -> None:
    """Raises SchemaError if `retain` or `budget` is invalid, or given with `mode="r"`."""
    retention_policy.parse_retention(retain)
    retention_policy.parse_budget(budget)
    for name, value in (("retain", retain), ("budget", budget)):
        if value is not None and mode == "r":
            raise SchemaError(f"{name} is set by the log's owner", hint='omit mode="r"')


def _spark_options(spark: Any, spark_rows: int | None, bulk: str | None) -> SparkOptions:
    """Returns the options for Spark.

    Raises:
        SchemaError: `spark` is neither a Spark session nor a function, or `bulk` is not a valid
            URL.
    """
    from nosync_nb.spark.spark_session import is_session

    if not (spark is None or callable(spark) or is_session(spark)):
        raise SchemaError(
            f"spark={spark!r:.80} is neither a Spark session nor a function that returns one",
            hint="omit it to use your active session or one that is started when needed; spark_rows"
            ' sets what runs there, and `%config NoSync.spark = "off"` switches Spark off',
        )
    return SparkOptions(spark, spark_rows, "" if bulk is None else location.checked_url(bulk))


def _check_mode(mode: str, bulk: str | None, *, named: bool) -> None:
    """Raises SchemaError if `mode` is unknown, or an argument for writing comes with `mode="r"`.

    Args:
        named: True if replicas are given.
    """
    if mode not in ("r", "w"):
        raise SchemaError(
            f"mode={mode!r} is unknown",
            hint='use mode="w" to write, which creates the folder if needed, or mode="r" to read',
        )
    if mode == "r" and bulk is not None:
        raise SchemaError("bulk is set by the log's owner", hint='omit mode="r"')
    if mode == "r" and named:
        raise SchemaError("replicas are set by the log's owner", hint='omit mode="r"')


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """A block without garbage collection, because it creates thousands of lasting objects.

    At its end they are marked as examined; otherwise the collector would spend a tenth of the
    opening on them.
    """
    enabled = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if enabled:
            if not gc.get_freeze_count():  # otherwise another caller has frozen objects
                gc.freeze()
                gc.unfreeze()
            gc.enable()


class RestorePolicy:
    """The reaction of one opening to too few readable replicas.

    Args:
        on_loss: "refuse", "wait" or "gap".
        timeout: the longest wait, in seconds; `None` means no limit.

    Raises:
        SchemaError: an argument is not valid.
    """

    def __init__(self, on_loss: Any, timeout: Any) -> None:
        if on_loss not in get_args(OnLoss):
            raise SchemaError(
                f"on_loss={on_loss!r:.80} is unknown",
                hint="use 'refuse' to raise if too few replicas answer, 'wait' to wait for them, or"
                " 'gap' to restore without them and report what may be missing",
            )
        if timeout is not None and on_loss != "wait":
            raise SchemaError(
                f"timeout={timeout!r:.80} has no effect with on_loss={on_loss!r}",
                hint="use on_loss='wait', or omit timeout",
            )
        if timeout is not None and not (
            isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout > 0
        ):
            raise SchemaError(
                f"timeout={timeout!r:.80} is not a time",
                hint="use a number of seconds above 0, or None",
            )
        self._on_loss = cast(OnLoss, on_loss)
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._last_warning = ""

    @property
    def gap(self) -> bool:
        """True if the opening continues with the readable replicas."""
        return self._on_loss == "gap"

    def wait(self, missing: QuorumUnavailableError) -> None:
        """Waits before the next attempt to read the replicas; can be interrupted.

        Warns of the missing replicas at the first wait, and whenever the text of the warning
        changes.

        Raises:
            QuorumUnavailableError: the policy does not wait, or its timeout has passed.
        """
        if self._on_loss != "wait":
            raise missing
        if self._deadline is not None and time.monotonic() >= self._deadline:
            missing.add_note(f"on_loss='wait' waited for {self._timeout:g} s")
            raise missing
        if str(missing) != self._last_warning:
            self._last_warning = str(missing)
            warn(f"waiting for replicas (Ctrl-C to cancel): {missing}", stacklevel=4)
        threading.Event().wait(_RETRY_S)


def report_restore(report: RecoveryReport, restored: RestoreResult, stages: list[str]) -> None:
    """Notes in the report of an opening the replica that a log was restored from, and its gaps."""
    if not restored.url:
        for doubt in restored.doubts:
            report.note(f"a new log was created, although a replica did not answer: {doubt}")
        return
    report.note(f"restored from {restored.url}, up to frame {restored.seq}")
    for doubt in restored.doubts:
        report.note(f"replica not used: {doubt}")
    if restored.uncertain:
        report.gap(stages)
