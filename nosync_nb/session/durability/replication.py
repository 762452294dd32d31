"""Runs the keeper of a session's log, and tracks the progress of each replica.

The keeper is a process (store/replication/agent/keeper.py) that reads the log's files and ships
them. The thread that syncs the log only writes a byte to a pipe for it; a committing thread does
nothing. A thread of its own receives the keeper's messages, under `heard`, which is a leaf lock.

A keeper that dies is restarted: it begins by asking each replica what it holds. Earlier
acknowledgements of a replica still count meanwhile, if it is the same copy. An announced epoch is
not withdrawn, unless the user removes a replica that it depends on.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from nosync_nb.collections.functions import signing
from nosync_nb.dataflow.runtime.activity import Activity
from nosync_nb.errors import CorruptLogError, DurabilityError, FencedError, NosyncError
from nosync_nb.session.durability.replication_lag import (
    ReplicaStatus,
    ReplicationBacklog,
    backlog_of,
    replica_status,
)
from nosync_nb.session.maintenance.offloaded_merges import OffloadedMerges
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.store import interruptible_wait
from nosync_nb.store.background_thread import SingleThread
from nosync_nb.store.replication import config, registry
from nosync_nb.store.replication.agent.offloaded_merges import MergeProposal
from nosync_nb.store.replication.agent.progress import ReplicaProgress, Told, parse_progress
from nosync_nb.store.replication.agent.scrub import ScrubReport
from nosync_nb.store.replication.config import ReplicaConfig
from nosync_nb.store.replication.endpoints import prepare_copy

_RETRY_S, _RETRY_S_MAX = 0.5, 30.0
_LOST = ("fenced", "ahead")


class _ReplicaSet(NamedTuple):
    """The replicas and their last known progress; replaced as one value.

    Attributes:
        told: the last message about each, in the order of the settings.
        knowing: the replicas that have acknowledged under these settings.
        announced: the frame and the epoch that were safe before the settings were changed.
    """

    settings: ReplicaConfig
    told: list[ReplicaProgress]
    knowing: set[int]
    announced: tuple[int, int]


class ReplicationService:
    """The replicas of a log that this session writes.

    Args:
        settings: the replicas; without any, no keeper is started.
        say: reports to the user what the keeper has repaired.
        look, propose: called, without a lock, after a message about a replica, or a merge.

    Attributes:
        merges: the merges that are offloaded to the keeper.
        scrubbed: the last scrub report of the keeper.
        heard: a condition that is notified, with its lock held, after each message.
    """

    def __init__(
        self,
        publisher: Publisher,
        settings: ReplicaConfig,
        say: Callable[[str], None],
        look: Callable[[], None],
        propose: Callable[[], None],
    ) -> None:
        self.merges = OffloadedMerges(publisher.store, propose, self.ask)
        self._publisher, self._store = publisher, publisher.store
        self._log = publisher.store.log
        self._say, self._look = say, look
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

    def start(self) -> None:
        """Starts the keeper, if there are replicas."""
        if self._log.mode == "w":
            self._log.on_durable(self._wake)
            self._start_thread()

    def change(self, settings: ReplicaConfig) -> None:
        """Changes the replicas; ends a keeper that runs with the previous ones."""
        self._log.check()
        if settings == self.settings.settled:
            return
        prepare_copy(settings.replicas, self._store.files)
        with self.heard:
            self._switch(self._under_settings(self.settings.changed(settings, self._log.head.seq)))
            self.heard.notify_all()
        with suppress(NosyncError):
            registry.register_replicas(
                self._store.files, self._store.path, self._log.id, self.settings
            )
        self._start_thread()

    def _under_settings(self, settings: ReplicaConfig) -> _ReplicaSet:
        """Returns the state under other settings, before any message under them; with the lock."""
        now = self._replicas
        before = {a.url: t for a, t in zip(now.settings.replicas, now.told, strict=True)}
        return _ReplicaSet(settings, _initial_progress(settings, before), set(), self.reached())

    def _switch(self, ours: _ReplicaSet) -> None:
        """Writes settings and adopts them; with the lock.

        After any error the written settings decide, because a restarted keeper reads them.
        """
        if self._keeper is not None and ours.told is not self._replicas.told:
            self._keeper.kill()  # safe at any moment
        try:
            self._write(ours.settings)
            self._replicas = ours
        except BaseException:
            with suppress(NosyncError):
                if (
                    config.read_config(self._store.files, self._store.path, self._log.id)
                    == ours.settings
                ):
                    self._replicas = ours
            raise

    def _write(self, settings: ReplicaConfig) -> None:
        config.write_config(self._store.files, self._store.path, self._log.id, settings)

    def _start_thread(self) -> None:
        """Starts the thread that reads a keeper's messages, unless it runs or is not needed."""
        with self.heard:
            if self._thread is None or self._thread.ended:
                wanted = self._progress and not self._closing.is_set() and not self._lost_replicas()
                self._thread = SingleThread("nosync keeper") if wanted else None
            if self._thread is not None:
                self._thread.start(self._run)

    @property
    def _progress(self) -> list[ReplicaProgress]:
        """The last message about each replica."""
        return self._replicas.told

    def _lost_replicas(self) -> list[ReplicaProgress]:
        """Returns the replicas that belong to another owner, or have more than the disk."""
        return [told for told in self._progress if told.condition in _LOST]

    def safe(self, lost: int | None = None) -> int:
        """Returns the last epoch that survives the loss of the disk and some replicas, or 0.

        Args:
            lost: how many replicas; None: as many as the quorum allows for.
        """
        return self.reached(lost)[1]

    def reached(self, lost: int | None = None) -> tuple[int, int]:
        """Returns the last frame and the last epoch that survive; see `safe`."""
        with self.heard:
            frames, ledger = [told.seq for told in self._progress], self._publisher.ledger
            epochs = [ledger.held(told.seq, told.epoch) for told in self._progress]
            if lost is not None:
                return config.quorum_index(frames, lost + 1), config.quorum_index(epochs, lost + 1)
            (frame, epoch), counted = self._replicas.announced, self.settings.counted
            return counted(self._confirmed, frames, frame), counted(self._confirmed, epochs, epoch)

    @property
    def owed(self) -> int:
        """The number of replicas that still must learn of a lowered quorum before it counts.

        An acknowledgement since the settings were changed confirms the new settings.
        """
        with self.heard:
            return self.settings.owed(self._confirmed)

    @property
    def _confirmed(self) -> list[bool]:
        """For each replica, True if it has confirmed the current settings; with the lock."""
        return [number in self._replicas.knowing for number in range(len(self._progress))]

    def status(self) -> list[ReplicaStatus]:
        """Returns the status of each replica, in the order of the settings."""
        now, end, ledger = self._publisher.now, self._log.head.offset, self._publisher.ledger
        with self.heard:
            addresses, told = self.settings.replicas, list(self._progress)
        return [
            replica_status(address.url, each, ledger, now, end)
            for address, each in zip(addresses, told, strict=True)
        ]

    def backlog(self) -> ReplicationBacklog | None:
        """Returns the backlog of the most advanced quorum; None if it is unknown.

        Other replicas delay no epoch.
        """
        end = self._log.head.offset
        with self.heard:
            return backlog_of(self._progress, self.settings.quorum, end)

    def wait(self, seq: int, epoch: int, timeout: float | None, activity: Activity) -> None:
        """Waits until a frame, after which `epoch` is the last, is on a quorum of replicas.

        Args:
            activity: receives the names and states of the replicas, and the bytes that the quorum
                lacks.

        Raises:
            DurabilityError: if it takes longer than `timeout` seconds, or cannot succeed.
        """
        until = None if timeout is None else time.monotonic() + timeout
        self._start_thread()
        with self.heard:
            while self.reached()[0] < seq:
                left = None if until is None else until - time.monotonic()
                if (
                    self._lost_replicas()
                    or self._closing.is_set()
                    or (left is not None and left <= 0)
                ):
                    raise DurabilityError(self._shortfall_text(seq, epoch, timeout))
                activity.say(f"waits: {self._shortfall_text(seq, epoch, None)}")
                if backlog := self.backlog():
                    activity.left(backlog.owed)
                interruptible_wait.wait_event(self.heard, left)

    def _shortfall_text(self, seq: int, epoch: int, timeout: float | None) -> str:
        """Returns a message that lists the state of the replicas for an epoch; with the lock."""
        have = sum(told.seq >= seq for told in self._progress)
        why = "; ".join(
            f"{address.url}: {told.why or f'epoch {told.epoch}, {told.condition}'}"
            for address, told in zip(self.settings.replicas, self._progress, strict=True)
            if told.seq < seq
        )
        after = "" if timeout is None else f" after {timeout:g} s"
        owed = self.owed
        also = f"; the lower quorum counts when {owed} more know it" if owed else ""
        return f"{have} of {self.settings.quorum} replicas have epoch {epoch}{after}: {why}{also}"

    def close(self) -> None:
        """Releases the keeper: it ships the frames on disk and ends by itself."""
        with self.heard:
            self._closing.set()
            self._close_pipe()
            self.heard.notify_all()

    def _close_pipe(self) -> None:
        """Closes the pipe to a keeper; with the lock, because its descriptor may be reused then."""
        if self._keeper is not None and self._keeper.stdin is not None:
            with suppress(OSError):
                self._keeper.stdin.close()

    # -- the keeper --------------------------------------------------------------------------

    def _wake(self, _seq: int) -> None:
        """Notifies the keeper that frames have reached the disk; from the thread that syncs."""
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
        again = _RETRY_S
        while True:
            with self.heard:
                told = self._progress
                if self._closing.is_set() or not told or self._lost_replicas():
                    self._thread = None
                    return
            try:
                keeper = start_keeper(self._log.path, self._log.generation)
            except OSError as error:
                self._mark_failing(told, f"its keeper cannot be started: {error}")
            else:
                with self.heard:
                    self._keeper = keeper
                    if self._changed(told):
                        keeper.kill()
                    if self._closing.is_set():
                        self._close_pipe()
                assert keeper.stdout is not None
                with keeper.stdout:
                    for line in keeper.stdout:
                        with suppress(ValueError, TypeError, CorruptLogError):  # a torn last line
                            self._handle(told, parse_progress(line))
                            again = _RETRY_S
                code = keeper.wait()
                self.merges.proposals.lose()
                with self.heard:
                    self._close_pipe()
                    self._keeper = None
                self._mark_failing(told, f"its keeper ended ({code}) and is started again")
            with self.heard:
                if not self._changed(told):
                    self.heard.wait_for(self._closing.is_set, again)
                    again = min(2 * again, _RETRY_S_MAX)

    def _changed(self, told: list[ReplicaProgress]) -> bool:
        """Returns True if the replicas were changed since `told` was read; with the lock."""
        return self._progress is not told

    def _handle(self, heard: list[ReplicaProgress], told: Told) -> None:
        """Handles a message of a keeper, and reports its repairs to the user."""
        if isinstance(told, ReplicaProgress):
            self._record_progress(heard, told)
            return
        if isinstance(told, MergeProposal):
            self.merges.proposals.hear(told)
            return
        self.scrubbed = told
        if told.event:
            self._say(told.event)

    def _record_progress(self, heard: list[ReplicaProgress], told: ReplicaProgress) -> None:
        """Records the progress of a replica; `heard` is the list that its keeper started with."""
        if told.replica >= len(heard):
            return  # another session has changed the settings meanwhile
        with self.heard:
            heard[told.replica] = _with_acknowledged(heard[told.replica], told)
            if told.seq and not self._changed(heard):
                self._replicas.knowing.add(told.replica)
                self._drop_former_settings()
            self.heard.notify_all()
        self._look()
        if told.condition in _LOST:
            self._log.go_beyond(told.obeys)
            with suppress(DurabilityError):  # the log is closed and has another owner
                error = FencedError(told.why, hint="what this session did since is here only")
                self._log.stop(error)

    def _drop_former_settings(self) -> None:
        """Drops the previous settings when enough replicas have confirmed the current ones."""
        was, frames = self.settings, [told.seq for told in self._progress]
        if was.former is None or not was.settles(self._confirmed, frames):
            return
        settled = self._replicas._replace(settings=was.settled)
        if was.promised != was.quorum:
            settled = self._under_settings(was.settled)  # replicas promise it now
        try:
            self._log.check()
            self._switch(settled)
        except NosyncError:  # the next session repeats this step
            self._replicas = self._replicas._replace(settings=was.settled)

    def _mark_failing(self, heard: list[ReplicaProgress], why: str) -> None:
        with self.heard:
            for number, told in enumerate(heard):
                if told.condition not in _LOST:
                    heard[number] = told._replace(condition="failing", why=why)
            self.heard.notify_all()


def _initial_progress(
    settings: ReplicaConfig, before: Mapping[str, ReplicaProgress] | None = None
) -> list[ReplicaProgress]:
    """Returns the initial progress of replicas, before any message of a keeper.

    Args:
        before: by URL, the progress under other settings.
    """
    known = [
        (before or {}).get(each.url, ReplicaProgress(0, "starting")) for each in settings.replicas
    ]
    return [
        ReplicaProgress(number, "starting", said.seq, said.epoch, incarnation=said.incarnation)
        for number, said in enumerate(known)
    ]


def _with_acknowledged(before: ReplicaProgress, told: ReplicaProgress) -> ReplicaProgress:
    """Returns a message of a keeper, completed with earlier acknowledgements of the same copy."""
    another = told.incarnation and told.incarnation != before.incarnation
    if told.seq or told.void or another:
        return told
    return told._replace(seq=before.seq, epoch=before.epoch, incarnation=before.incarnation)


def start_keeper(folder: str, generation: int) -> subprocess.Popen[bytes]:
    """Starts the keeper of a log in a process session of its own, outside the current folder."""
    here = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
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
