"""Runs the keeper of a session's log, and tracks the progress of each replica.

The keeper is a process (store/replication/agent/keeper.py) that reads the log's files and ships
them. To notify it, the thread that syncs the log writes a byte to a pipe; a committing thread does
nothing. A separate thread receives the keeper's messages, and records them under `heard`, which is
a leaf lock. The replication lag is computed from the last messages; no replica is contacted.

A keeper that dies is restarted, and first asks each replica for its state. Meanwhile the earlier
acknowledgements of a replica still count, if it is the same copy. An announced epoch is not
withdrawn, unless the user removes a replica that it depends on.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from nosync_nb.collections.functions import signing
from nosync_nb.dataflow.runtime.activity import Activity
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import CorruptLogError, DurabilityError, FencedError, NosyncError
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.session.state.report import listed_names
from nosync_nb.session.state.subscriptions import Subscriptions
from nosync_nb.store import threads
from nosync_nb.store.catalog.epoch_index import EpochIndex
from nosync_nb.store.replication import config
from nosync_nb.store.replication.address import ReplicaAddress
from nosync_nb.store.replication.agent.offloaded_merges import MergeProposal
from nosync_nb.store.replication.agent.progress import ReplicaProgress, Told, parse_progress
from nosync_nb.store.replication.agent.scrub import ScrubReport
from nosync_nb.store.replication.config import ReplicaConfig
from nosync_nb.store.replication.endpoints import prepare_copy
from nosync_nb.store.replication.remote_call import Backoff
from nosync_nb.store.threads import SingleThread

_RETRY_S, _RETRY_S_MAX = 0.5, 30.0
_LOST = ("fenced", "ahead")


class _ReplicaSet(NamedTuple):
    """The replicas and their last known progress; replaced as one value.

    Attributes:
        progress: the last message about each replica, in the order of the settings.
        confirmed: the positions of the replicas that have acknowledged under these settings.
        announced: the frame and the epoch that were safe before the settings were changed.
    """

    settings: ReplicaConfig
    progress: list[ReplicaProgress]
    confirmed: set[int]
    announced: tuple[int, int]


class ReplicationService:
    """The replicas of a log that this session writes.

    Args:
        subscriptions: notified of repairs that the keeper has made.
        settings: the replicas; without any, no keeper is started.

    Attributes:
        scrubbed: the last scrub report of the keeper.
        heard: a condition that is notified, with its lock held, after each message.
    """

    def __init__(
        self, publisher: Publisher, subscriptions: Subscriptions, settings: ReplicaConfig
    ) -> None:
        self._publisher, self._store = publisher, publisher.store
        self._log = publisher.store.log
        self._subscriptions = subscriptions
        self._on_progress: list[Callable[[], None]] = []
        self._on_merge: list[Callable[[MergeProposal | None], None]] = []
        self.scrubbed = ScrubReport()
        self.heard = threading.Condition(threading.RLock())
        self._replicas = _ReplicaSet(settings, _initial_progress(settings), set(), (0, 0))
        self._keeper: subprocess.Popen[bytes] | None = None
        self._thread: SingleThread | None = None
        self._closing = threading.Event()

    @property
    def settings(self) -> ReplicaConfig:
        """The current settings of the replicas."""
        return self._replicas.settings

    def addresses(self) -> Sequence[ReplicaAddress]:
        """Returns the addresses of the current replicas."""
        return self._replicas.settings.replicas

    def on_progress(self, notify: Callable[[], None]) -> None:
        """Registers a function to call, without a lock, after each message about a replica."""
        self._on_progress.append(notify)

    def on_merge(self, notify: Callable[[MergeProposal | None], None]) -> None:
        """Registers a function to call, without a lock, with each message about a merge.

        When the keeper ends, the function is called with None.
        """
        self._on_merge.append(notify)

    def start(self) -> None:
        """Starts the keeper, if there are replicas."""
        if self._log.mode == "w":
            self._log.on_durable(self._wake)
            self._start_thread()

    def change(self, settings: ReplicaConfig) -> None:
        """Changes the replicas; ends a keeper that runs with the previous ones."""
        self._log.check()
        if settings == self.settings.without_former:
            return
        prepare_copy(settings.replicas, self._store.files)
        with self.heard:
            self._switch(self._under_settings(self.settings.changed(settings, self._log.head.seq)))
            self.heard.notify_all()
        with suppress(NosyncError):
            config.register_replicas(
                self._store.files, self._store.path, self._log.id, self.settings
            )
        self._start_thread()

    def _under_settings(self, settings: ReplicaConfig) -> _ReplicaSet:
        """Returns the initial state under other settings. Requires the lock."""
        current = self._replicas
        previous = {
            a.url: t for a, t in zip(current.settings.replicas, current.progress, strict=True)
        }
        return _ReplicaSet(
            settings, _initial_progress(settings, previous), set(), self.last_surviving()
        )

    def _switch(self, replicas: _ReplicaSet) -> None:
        """Writes settings and adopts them. Requires the lock.

        After an error, they are adopted if they were written, because a restarted keeper reads
        them.
        """
        if self._keeper is not None and replicas.progress is not self._replicas.progress:
            self._keeper.kill()  # safe at any moment
        try:
            self._write(replicas.settings)
            self._replicas = replicas
        except BaseException:
            with suppress(NosyncError):
                if (
                    config.read_config(self._store.files, self._store.path, self._log.id)
                    == replicas.settings
                ):
                    self._replicas = replicas
            raise

    def _write(self, settings: ReplicaConfig) -> None:
        config.write_config(self._store.files, self._store.path, self._log.id, settings)

    def _start_thread(self) -> None:
        """Starts the thread that reads a keeper's messages, unless it runs or is not needed."""
        with self.heard:
            if self._thread is None or self._thread.has_ended:
                needed = self._progress and not self._closing.is_set() and not self._lost_replicas()
                self._thread = SingleThread("nosync keeper") if needed else None
            if self._thread is not None:
                self._thread.start(self._run)

    @property
    def _progress(self) -> list[ReplicaProgress]:
        """The last message about each replica."""
        return self._replicas.progress

    def _lost_replicas(self) -> list[ReplicaProgress]:
        """Returns the replicas that belong to another owner, or are ahead of the local log."""
        return [replica for replica in self._progress if replica.condition in _LOST]

    def safe(self, lost: int | None = None) -> int:
        """Returns the last epoch that survives the loss of the disk and some replicas, or 0.

        Args:
            lost: the number of lost replicas; `None` means as many as the quorum allows.
        """
        return self.last_surviving(lost)[1]

    def last_surviving(self, lost: int | None = None) -> tuple[int, int]:
        """Returns the last frame and the last epoch that survive; see `safe`."""
        with self.heard:
            frames, ledger = [replica.seq for replica in self._progress], self._publisher.ledger
            epochs = [
                ledger.last_contained_epoch(replica.seq, replica.epoch)
                for replica in self._progress
            ]
            if lost is not None:
                return config.quorum_index(frames, lost + 1), config.quorum_index(epochs, lost + 1)
            (frame, epoch), counted = self._replicas.announced, self.settings.counted
            return counted(self._confirmed, frames, frame), counted(self._confirmed, epochs, epoch)

    @property
    def unconfirmed_count(self) -> int:
        """The number of replicas that still must learn of a lowered quorum before it counts.

        An acknowledgement since the settings were changed confirms the new settings.
        """
        with self.heard:
            return self.settings.unconfirmed(self._confirmed)

    @property
    def _confirmed(self) -> list[bool]:
        """For each replica, True if it has confirmed the current settings. Requires the lock."""
        return [number in self._replicas.confirmed for number in range(len(self._progress))]

    def status(self) -> list[ReplicaStatus]:
        """Returns the status of each replica, in the order of the settings."""
        now, end, ledger = self._publisher.last_epoch, self._log.head.offset, self._publisher.ledger
        with self.heard:
            addresses, progress = self.settings.replicas, list(self._progress)
        return [
            replica_status(address.url, replica, ledger, now, end)
            for address, replica in zip(addresses, progress, strict=True)
        ]

    def backlog(self) -> ReplicationBacklog | None:
        """Returns the backlog of the most advanced quorum; None if it is unknown.

        Other replicas delay no epoch.
        """
        end = self._log.head.offset
        with self.heard:
            return backlog_of(self._progress, self.settings.quorum, end)

    def wait(self, seq: int, epoch: int, timeout: float | None, activity: Activity) -> None:
        """Waits until a quorum of replicas has a frame; `epoch` is the last epoch up to that frame.

        Args:
            activity: receives the names and states of the replicas, and the bytes that the quorum
                lacks.

        Raises:
            DurabilityError: if it takes longer than `timeout` seconds, or cannot succeed.
        """
        until = None if timeout is None else time.monotonic() + timeout
        self._start_thread()
        with self.heard:
            while self.last_surviving()[0] < seq:
                left = None if until is None else until - time.monotonic()
                if (
                    self._lost_replicas()
                    or self._closing.is_set()
                    or (left is not None and left <= 0)
                ):
                    raise DurabilityError(
                        self._shortfall_text(seq, epoch, timeout),
                        hint="reconnect the replicas or wait longer; see `%dd replicas`",
                    )
                activity.rename(f"waiting: {self._shortfall_text(seq, epoch, None)}")
                if backlog := self.backlog():
                    activity.left(backlog.owed)
                threads.wait_event(self.heard, left)

    def _shortfall_text(self, seq: int, epoch: int, timeout: float | None) -> str:
        """Returns a message with the state of the replicas that lack a frame. Requires the lock."""
        have = sum(replica.seq >= seq for replica in self._progress)
        why = "; ".join(
            f"{address.url}: {replica.why or f'epoch {replica.epoch}, {replica.condition}'}"
            for address, replica in zip(self.settings.replicas, self._progress, strict=True)
            if replica.seq < seq
        )
        after = "" if timeout is None else f" after {timeout:g} s"
        owed = self.unconfirmed_count
        also = (
            f"; the lower quorum takes effect when {owed} more replicas have confirmed it"
            if owed
            else ""
        )
        return f"{have} of {self.settings.quorum} replicas have epoch {epoch}{after}: {why}{also}"

    def close(self) -> None:
        """Releases the keeper: it ships the frames on disk and ends by itself."""
        with self.heard:
            self._closing.set()
            self._close_pipe()
            self.heard.notify_all()

    def _close_pipe(self) -> None:
        """Closes the pipe to a keeper.

        Requires the lock, because a concurrent write could go to a reused descriptor.
        """
        if self._keeper is not None and self._keeper.stdin is not None:
            with suppress(OSError):
                self._keeper.stdin.close()

    # -- the keeper --------------------------------------------------------------------------

    def _wake(self, _seq: int) -> None:
        """Notifies the keeper that frames have reached the disk. The syncing thread calls it."""
        with self.heard:
            with suppress(RuntimeError):  # the system cannot start a thread
                self._start_thread()  # the call that named the replicas may have been interrupted
            self.ask(b".")

    def ask(self, news: bytes) -> bool:
        """Writes to the keeper; returns True if a keeper runs and can read all of it."""
        with self.heard, suppress(OSError):  # its pipe is full, or it has died
            pipe = None if self._keeper is None else self._keeper.stdin
            return pipe is not None and not pipe.closed and pipe.write(news) == len(news)
        return False

    def _run(self) -> None:
        """Reads the messages of a keeper, and restarts it if it dies; runs in a thread."""
        backoff = Backoff(_RETRY_S, _RETRY_S_MAX)
        while True:
            with self.heard:
                progress = self._progress
                if self._closing.is_set() or not progress or self._lost_replicas():
                    self._thread = None
                    return
            try:
                keeper = start_keeper(self._log.path, self._log.generation)
            except OSError as error:
                self._mark_failing(progress, f"its keeper cannot be started: {error}")
            else:
                with self.heard:
                    self._keeper = keeper
                    if self._changed(progress):
                        keeper.kill()
                    if self._closing.is_set():
                        self._close_pipe()
                assert keeper.stdout is not None
                with keeper.stdout:
                    for line in keeper.stdout:
                        with suppress(ValueError, TypeError, CorruptLogError):  # a torn last line
                            self._handle(progress, parse_progress(line))
                            backoff.reset()
                code = keeper.wait()
                self._notify_merge(None)
                with self.heard:
                    self._close_pipe()
                    self._keeper = None
                self._mark_failing(progress, f"its keeper ended ({code}) and is started again")
            with self.heard:
                if not self._changed(progress):
                    self.heard.wait_for(self._closing.is_set, backoff.next_s())

    def _changed(self, progress: list[ReplicaProgress]) -> bool:
        """Returns True if the replicas changed since `progress` was read; requires the lock."""
        return self._progress is not progress

    def _handle(self, progress: list[ReplicaProgress], message: Told) -> None:
        """Handles a message of a keeper, and reports its repairs to the user."""
        if isinstance(message, ReplicaProgress):
            self._record_progress(progress, message)
            return
        if isinstance(message, MergeProposal):
            self._notify_merge(message)
            return
        self.scrubbed = message
        if message.event:
            self._subscriptions.add_notice(message.event)

    def _notify_merge(self, message: MergeProposal | None) -> None:
        for notify in self._on_merge:
            notify(message)

    def _record_progress(self, progress: list[ReplicaProgress], message: ReplicaProgress) -> None:
        """Records the progress of a replica in `progress`, the list that its keeper updates."""
        if message.replica >= len(progress):
            return  # another session has changed the settings meanwhile
        with self.heard:
            progress[message.replica] = _with_acknowledged(progress[message.replica], message)
            if message.seq and not self._changed(progress):
                self._replicas.confirmed.add(message.replica)
                self._drop_former_settings()
            self.heard.notify_all()
        for notify in self._on_progress:
            notify()
        if message.condition in _LOST:
            self._log.go_beyond(message.obeys)
            with suppress(DurabilityError):  # the log is closed and has another owner
                error = FencedError(
                    message.why,
                    hint="the epochs of this session since then are on this machine only",
                )
                self._log.stop(error)

    def _drop_former_settings(self) -> None:
        """Drops the previous settings when enough replicas have confirmed the current ones."""
        current, frames = self.settings, [replica.seq for replica in self._progress]
        if current.former is None or not current.settles(self._confirmed, frames):
            return
        settled = self._replicas._replace(settings=current.without_former)
        if current.promised != current.quorum:
            settled = self._under_settings(current.without_former)  # replicas promise it now
        try:
            self._log.check()
            self._switch(settled)
        except NosyncError:  # the next session repeats this step
            self._replicas = self._replicas._replace(settings=current.without_former)

    def _mark_failing(self, progress: list[ReplicaProgress], why: str) -> None:
        with self.heard:
            for number, replica in enumerate(progress):
                if replica.condition not in _LOST:
                    progress[number] = replica._replace(condition="failing", why=why)
            self.heard.notify_all()


def _initial_progress(
    settings: ReplicaConfig, previous: Mapping[str, ReplicaProgress] | None = None
) -> list[ReplicaProgress]:
    """Returns the initial progress of replicas, before any message of a keeper.

    Args:
        previous: the progress under other settings, by URL.
    """
    latest = [
        (previous or {}).get(each.url, ReplicaProgress(0, "starting")) for each in settings.replicas
    ]
    return [
        ReplicaProgress(
            number, "starting", progress.seq, progress.epoch, incarnation=progress.incarnation
        )
        for number, progress in enumerate(latest)
    ]


def _with_acknowledged(previous: ReplicaProgress, message: ReplicaProgress) -> ReplicaProgress:
    """Returns a message of a keeper, completed with earlier acknowledgements of the same copy."""
    another = message.incarnation and message.incarnation != previous.incarnation
    if message.seq or message.void or another:
        return message
    return message._replace(
        seq=previous.seq, epoch=previous.epoch, incarnation=previous.incarnation
    )


def start_keeper(folder: str, generation: int) -> subprocess.Popen[bytes]:
    """Starts the keeper of a log in a process session of its own, outside the current folder."""
    root = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    keeper = subprocess.Popen(
        [sys.executable, "-P", "-m", "nosync_nb.keeper", folder, str(generation)],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path, "NOSYNC_KEY_FILE": signing.key_path()},
        cwd=os.sep,
        start_new_session=True,
    )
    assert keeper.stdin is not None
    os.set_blocking(keeper.stdin.fileno(), False)
    return keeper


# -- replication lag ---------------------------------------------------------------------------


class ReplicaStatus(NamedTuple):
    """The status of one replica: `epoch` is the last that can be restored from it alone.

    Its lag is given in epochs, in bytes to ship, and in seconds since the first missing epoch was
    committed. `last_bytes` counts deferred files, which belong to stages of level `disk`: no epoch
    waits for them.

    `frame` is its last frame of the log. `state` is `starting`, `level`, `behind`, `failing` (`why`
    has the reason; the keeper retries), `fenced` (another owner) or `ahead` (the replica has more
    than this session). After the last two this session cannot continue.
    """

    url: str
    state: str
    epoch: int
    behind: int
    behind_bytes: int
    behind_s: float
    bytes_sent: int
    why: str
    last_bytes: int = 0
    frame: int = 0


def replica_status(
    url: str, progress: ReplicaProgress, ledger: EpochIndex, now: int, end: int
) -> ReplicaStatus:
    """Returns the status of one replica.

    Args:
        now: the current epoch.
        end: the length of the stream of frames, in bytes.
    """
    epoch = ledger.last_contained_epoch(progress.seq, progress.epoch)
    lacks = epoch < now
    state = "behind" if progress.condition == "level" and lacks else progress.condition
    since = ledger.committed(epoch + 1) if lacks else None
    return ReplicaStatus(
        url,
        state,
        epoch,
        max(0, now - epoch),
        _missing_bytes(progress, end) if progress.offset >= 0 else progress.backlog_bytes,
        0.0 if since is None else max(0.0, time.time() - since),
        progress.bytes_sent,
        progress.why,
        progress.last_bytes,
        progress.seq,
    )


class ReplicationBacklog(NamedTuple):
    """The bytes that replicas must receive before the next epoch is safe.

    Attributes:
        owed: bytes in frames and files that epochs wait for.
        last: bytes in deferred files.
        seen: the offset in the stream of frames up to which files were counted.
        most: the largest backlog of any replica, whether epochs wait for it or not.
    """

    owed: int
    last: int
    seen: int
    most: int


def backlog_of(
    replicas: Iterable[ReplicaProgress], quorum: int, end: int
) -> ReplicationBacklog | None:
    """Returns the backlog of the most advanced quorum, because other replicas delay no epoch.

    Args:
        end: the length of the stream of frames, in bytes.

    Returns:
        None if the backlog of fewer replicas than the quorum is known.
    """
    known = [replica for replica in replicas if replica.offset >= 0]
    if not 0 < quorum <= len(known):
        return None
    least = sorted(
        (_missing_bytes(replica, end), replica.last_bytes, replica.offset) for replica in known
    )[:quorum]
    owed, last, counted = zip(*least, strict=True)
    return ReplicationBacklog(
        max(owed), max(last), min(counted), max(_missing_bytes(replica, end) for replica in known)
    )


def _missing_bytes(progress: ReplicaProgress, end: int) -> int:
    """Returns the number of bytes that epochs wait for, including the files counted so far."""
    return max(0, end - progress.offset) + progress.backlog_bytes


def demoted_stages(catalog: Mapping[str, Stage]) -> dict[str, int]:
    """Returns the demoted stages, with the last epoch that replicas had of each."""
    return {n: s.scaled for n, s in catalog.items() if s.scaled is not None and s.on_disk}


def demotion_text(catalog: Mapping[str, Stage]) -> list[str]:
    """Returns one line of status text that lists the demoted stages; empty if there are none."""
    names = [f"{name} (after epoch {epoch})" for name, epoch in demoted_stages(catalog).items()]
    if not names:
        return []
    return [
        "treated as persist='disk' because of the replication backlog; their files are sent last:"
        f" {listed_names(names)}"
    ]
