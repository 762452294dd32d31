"""Replication: the keeper of a session's log, and how far each replica holds it.

The keeper is a process (store/replication/agent/keeper.py) that reads the log's files. All that the
thread which syncs the log does for it is to write a byte to a pipe; who commits does nothing. What
the keeper says is heard by a thread of its own, under `heard`, which is a leaf lock.

A keeper that dies is started again: it begins by asking each replica what it holds. What a replica
has acknowledged before counts on meanwhile, if it is the copy that it was: what was announced does
not fall, unless the user takes away a replica that it rests on.
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

_AGAIN_S, _AGAIN_MOST_S = 0.5, 30.0
_LOST = ("fenced", "ahead")


class _Ours(NamedTuple):
    """Which replicas there are, and what is known of them: it changes as one.

    Attributes:
        told: what was said last of each, in the order of the settings.
        knowing: those that have acknowledged under these settings.
        announced: the frame and the epoch that were safe before the settings were changed.
    """

    settings: ReplicaConfig
    told: list[ReplicaProgress]
    knowing: set[int]
    announced: tuple[int, int]


class ReplicationService:
    """The replicas of a log that is written here.

    Args:
        settings: which they are; of none, nothing is started.
        say: tells the user what the keeper has repaired.
        look, propose: called, without a lock, when there is news of a replica, or of a merge.

    Attributes:
        merges: those that the keeper is asked for.
        scrubbed: what the keeper has said last of its scrubbing.
        heard: notified, with its lock held, of whatever is known anew.
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
        self._ours = _Ours(settings, _untold(settings), set(), (0, 0))
        self._keeper: subprocess.Popen[bytes] | None = None
        self._thread: SingleThread | None = None
        self._closing = threading.Event()

    @property
    def settings(self) -> ReplicaConfig:
        """Which replicas there are."""
        return self._ours.settings

    def start(self) -> None:
        """Starts the keeper, if there are replicas."""
        if self._log.mode == "w":
            self._log.on_durable(self._wake)
            self._begin()

    def change(self, settings: ReplicaConfig) -> None:
        """Has other replicas from now on; a keeper that goes on with those before is ended."""
        self._log.check()
        if settings == self.settings.settled:
            return
        prepare_copy(settings.replicas, self._store.files)
        with self.heard:
            self._switch(self._following(self.settings.changed(settings, self._log.head.seq)))
            self.heard.notify_all()
        with suppress(NosyncError):
            registry.register_replicas(
                self._store.files, self._store.path, self._log.id, self.settings
            )
        self._begin()

    def _following(self, settings: ReplicaConfig) -> _Ours:
        """What is known under other settings, which a keeper is started for; with the lock."""
        now = self._ours
        before = {a.url: t for a, t in zip(now.settings.replicas, now.told, strict=True)}
        return _Ours(settings, _untold(settings, before), set(), self.reached())

    def _switch(self, ours: _Ours) -> None:
        """Writes settings, and goes by them; with the lock.

        Whatever is raised, what is written decides: a keeper that is started then goes by it.
        """
        if self._keeper is not None and ours.told is not self._ours.told:
            self._keeper.kill()  # it may be, at any moment
        try:
            self._write(ours.settings)
            self._ours = ours
        except BaseException:
            with suppress(NosyncError):
                if (
                    config.read_config(self._store.files, self._store.path, self._log.id)
                    == ours.settings
                ):
                    self._ours = ours
            raise

    def _write(self, settings: ReplicaConfig) -> None:
        config.write_config(self._store.files, self._store.path, self._log.id, settings)

    def _begin(self) -> None:
        """Starts the thread that hears keepers, unless it runs or nobody is to be heard."""
        with self.heard:
            if self._thread is None or self._thread.ended:
                wanted = self._told and not self._closing.is_set() and not self._lost()
                self._thread = SingleThread("nosync keeper") if wanted else None
            if self._thread is not None:
                self._thread.start(self._run)

    @property
    def _told(self) -> list[ReplicaProgress]:
        """What was said last of each replica."""
        return self._ours.told

    def _lost(self) -> list[ReplicaProgress]:
        """The replicas that obey another owner, or have more than the disk."""
        return [told for told in self._told if told.condition in _LOST]

    def safe(self, lost: int | None = None) -> int:
        """The last epoch that is left when the disk and some replicas are gone; 0: none is.

        Args:
            lost: how many replicas; None: as many as the quorum allows for.
        """
        return self.reached(lost)[1]

    def reached(self, lost: int | None = None) -> tuple[int, int]:
        """The last frame that is left then, and the last epoch; see `safe`."""
        with self.heard:
            frames, ledger = [told.seq for told in self._told], self._publisher.ledger
            epochs = [ledger.held(told.seq, told.epoch) for told in self._told]
            if lost is not None:
                return config.quorum_index(frames, lost + 1), config.quorum_index(epochs, lost + 1)
            (frame, epoch), counted = self._ours.announced, self.settings.counted
            return counted(self._known, frames, frame), counted(self._known, epochs, epoch)

    @property
    def owed(self) -> int:
        """How many more replicas have to know a lowered quorum before it counts.

        What a replica has acknowledged since the settings were changed it has promised under them.
        """
        with self.heard:
            return self.settings.owed(self._known)

    @property
    def _known(self) -> list[bool]:
        """Of each replica, whether it has promised itself under these settings; with the lock."""
        return [number in self._ours.knowing for number in range(len(self._told))]

    def status(self) -> list[ReplicaStatus]:
        """Each replica, in the order of the settings."""
        now, end, ledger = self._publisher.now, self._log.head.offset, self._publisher.ledger
        with self.heard:
            addresses, told = self.settings.replicas, list(self._told)
        return [
            replica_status(address.url, each, ledger, now, end)
            for address, each in zip(addresses, told, strict=True)
        ]

    def backlog(self) -> ReplicationBacklog | None:
        """What the quorum lacks that lacks least: others keep no epoch waiting. None: not known."""
        end = self._log.head.offset
        with self.heard:
            return backlog_of(self._told, self.settings.quorum, end)

    def wait(self, seq: int, epoch: int, timeout: float | None, activity: Activity) -> None:
        """Waits until a frame, after which `epoch` is the last, is on a quorum of replicas.

        Args:
            activity: is told who is waited for, and why, and how many bytes the quorum lacks.

        Raises:
            DurabilityError: it took longer than `timeout` seconds, or it cannot come about.
        """
        until = None if timeout is None else time.monotonic() + timeout
        self._begin()
        with self.heard:
            while self.reached()[0] < seq:
                left = None if until is None else until - time.monotonic()
                if self._lost() or self._closing.is_set() or (left is not None and left <= 0):
                    raise DurabilityError(self._short(seq, epoch, timeout))
                activity.say(f"waits: {self._short(seq, epoch, None)}")
                if backlog := self.backlog():
                    activity.left(backlog.owed)
                interruptible_wait.wait_event(self.heard, left)

    def _short(self, seq: int, epoch: int, timeout: float | None) -> str:
        """Says which replicas lack an epoch; with the lock."""
        have = sum(told.seq >= seq for told in self._told)
        why = "; ".join(
            f"{address.url}: {told.why or f'epoch {told.epoch}, {told.condition}'}"
            for address, told in zip(self.settings.replicas, self._told, strict=True)
            if told.seq < seq
        )
        after = "" if timeout is None else f" after {timeout:g} s"
        owed = self.owed
        also = f"; the lower quorum counts when {owed} more know it" if owed else ""
        return f"{have} of {self.settings.quorum} replicas have epoch {epoch}{after}: {why}{also}"

    def close(self) -> None:
        """Lets the keeper go: it ships what is on disk and ends by itself."""
        with self.heard:
            self._closing.set()
            self._let_go()
            self.heard.notify_all()

    def _let_go(self) -> None:
        """Ends the news of a keeper; with the lock, since a descriptor is given to others then."""
        if self._keeper is not None and self._keeper.stdin is not None:
            with suppress(OSError):
                self._keeper.stdin.close()

    # -- the keeper --------------------------------------------------------------------------

    def _wake(self, _seq: int) -> None:
        """Says that frames have reached the disk; from the thread that syncs."""
        with self.heard:
            with suppress(RuntimeError):  # the system gives no thread
                self._begin()  # because the call that named replicas may have been interrupted
            self.ask(b".")

    def ask(self, news: bytes) -> bool:
        """Writes to the keeper; whether there is one, and he can read all of it."""
        with self.heard, suppress(OSError):  # it is full of news, or dead
            pipe = None if self._keeper is None else self._keeper.stdin
            return pipe is not None and not pipe.closed and pipe.write(news) == len(news)
        return False

    def _run(self) -> None:
        """The thread: hears a keeper, and starts another one if it dies."""
        again = _AGAIN_S
        while True:
            with self.heard:
                told = self._told
                if self._closing.is_set() or not told or self._lost():
                    self._thread = None
                    return
            try:
                keeper = start_keeper(self._log.path, self._log.generation)
            except OSError as error:
                self._unheard(told, f"its keeper cannot be started: {error}")
            else:
                with self.heard:
                    self._keeper = keeper
                    if self._changed(told):
                        keeper.kill()
                    if self._closing.is_set():
                        self._let_go()
                assert keeper.stdout is not None
                with keeper.stdout:
                    for line in keeper.stdout:
                        with suppress(ValueError, TypeError, CorruptLogError):  # it died in one
                            self._heard_of(told, parse_progress(line))
                            again = _AGAIN_S
                code = keeper.wait()
                self.merges.proposals.lose()
                with self.heard:
                    self._let_go()
                    self._keeper = None
                self._unheard(told, f"its keeper ended ({code}) and is started again")
            with self.heard:
                if not self._changed(told):
                    self.heard.wait_for(self._closing.is_set, again)
                    again = min(2 * again, _AGAIN_MOST_S)

    def _changed(self, told: list[ReplicaProgress]) -> bool:
        """Whether there are other replicas than when something was begun; with the lock."""
        return self._told is not told

    def _heard_of(self, heard: list[ReplicaProgress], told: Told) -> None:
        """Notes what a keeper says, and tells the user what it has repaired."""
        if isinstance(told, ReplicaProgress):
            self._hear(heard, told)
            return
        if isinstance(told, MergeProposal):
            self.merges.proposals.hear(told)
            return
        self.scrubbed = told
        if told.event:
            self._say(told.event)

    def _hear(self, heard: list[ReplicaProgress], told: ReplicaProgress) -> None:
        """Notes what a keeper says; `heard` are the replicas that it was started for."""
        if told.replica >= len(heard):
            return  # of settings that another session has written since
        with self.heard:
            heard[told.replica] = _going_on(heard[told.replica], told)
            if told.seq and not self._changed(heard):
                self._ours.knowing.add(told.replica)
                self._settle()
            self.heard.notify_all()
        self._look()
        if told.condition in _LOST:
            self._log.go_beyond(told.obeys)
            with suppress(DurabilityError):  # it is closed, and the next owner has it
                error = FencedError(told.why, hint="what this session did since is here only")
                self._log.stop(error)

    def _settle(self) -> None:
        """Forgets the settings before, when enough replicas are as those of now take it."""
        was, frames = self.settings, [told.seq for told in self._told]
        if was.former is None or not was.settles(self._known, frames):
            return
        settled = self._ours._replace(settings=was.settled)
        if was.promised != was.quorum:
            settled = self._following(was.settled)  # replicas promise it now
        try:
            self._log.check()
            self._switch(settled)
        except NosyncError:  # the next session waits for it once more
            self._ours = self._ours._replace(settings=was.settled)

    def _unheard(self, heard: list[ReplicaProgress], why: str) -> None:
        with self.heard:
            for number, told in enumerate(heard):
                if told.condition not in _LOST:
                    heard[number] = told._replace(condition="failing", why=why)
            self.heard.notify_all()


def _untold(
    settings: ReplicaConfig, before: Mapping[str, ReplicaProgress] | None = None
) -> list[ReplicaProgress]:
    """What is known of replicas, of which no keeper has told yet.

    Args:
        before: by their URLs, what was told of them under other settings.
    """
    known = [
        (before or {}).get(each.url, ReplicaProgress(0, "starting")) for each in settings.replicas
    ]
    return [
        ReplicaProgress(number, "starting", said.seq, said.epoch, incarnation=said.incarnation)
        for number, said in enumerate(known)
    ]


def _going_on(before: ReplicaProgress, told: ReplicaProgress) -> ReplicaProgress:
    """What a keeper says, with what the same copy has acknowledged before it was reached."""
    another = told.incarnation and told.incarnation != before.incarnation
    if told.seq or told.void or another:
        return told
    return told._replace(seq=before.seq, epoch=before.epoch, incarnation=before.incarnation)


def start_keeper(folder: str, generation: int) -> subprocess.Popen[bytes]:
    """Starts the keeper of a log, in a session of its own; it imports nothing from where we are."""
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
