"""Ships a log to its replicas, in a process that outlives the process of the owner.

    python -m nosync_nb.keeper FOLDER GENERATION

The owner writes a byte to the keeper's standard input when frames have reached the disk. It reads a
line of JSON from the keeper's standard output whenever the state of a replica changes. The end of
the input means that the owner has ended: the keeper ships the published frames and ends. It also
ends when another owner has taken over, because that owner has its own keeper. In the log's folder
the keeper writes only verified copies in the place of damaged files (scrub.py), and files of rows
that its owner has requested and that nothing references yet (offloaded_merges.py).

Each replica has its own thread and reads the log for itself. So a replica that is slow, full or
unreachable delays no other one. For the memory of a thread see `shipper`.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from typing import Any

from nosync_nb.errors import DurabilityError, FencedError, NosyncError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.log import owner
from nosync_nb.store.log.owner import HostIdentity
from nosync_nb.store.replication import config, remote_call
from nosync_nb.store.replication.address import ReplicaAddress
from nosync_nb.store.replication.agent.log_source import LogSource, log_id
from nosync_nb.store.replication.agent.offloaded_merges import KeeperMerger, MergeRequests
from nosync_nb.store.replication.agent.progress import (
    Condition,
    ProgressWriter,
    ReplicaProgress,
    Tell,
)
from nosync_nb.store.replication.agent.scrub import Scrubber
from nosync_nb.store.replication.agent.shipper import Acknowledgement, Shipper
from nosync_nb.store.replication.agent.takeover import ReplicaAheadError, TakeoverPoll, TakeoverVote
from nosync_nb.store.replication.consistency import CopyClaims
from nosync_nb.store.replication.endpoints import connect_site
from nosync_nb.store.replication.protocol import LogName, Replica
from nosync_nb.store.replication.remote_call import Backoff, Progress

_GRACE_S = 10.0
_WAKE_S = 5.0
NICE = 10
"""The nice value of the keeper; positive, because the work of the owner has priority."""
_LOOK_S = 2.0


class ReplicaWorker:
    """The thread of one replica: ships when there are new frames, and retries after a failure.

    Owns, under `_news`, the flag for new frames, the doubtful files, and the end of the owner.
    """

    def __init__(
        self,
        number: int,
        address: ReplicaAddress,
        folder: str,
        generation: int,
        name: LogName,
        poll: TakeoverPoll,
        claims: CopyClaims,
        tell: Callable[[ReplicaProgress], None],
        files: Files,
    ) -> None:
        self._number, self._address = number, address
        self._folder, self._generation = folder, generation
        self._name, self._tell, self._files = name, tell, files
        self._poll, self._claims = poll, claims
        self._news = threading.Condition(threading.RLock())
        self._waiting = True
        self._owner_ended_s: float | None = None
        self._doubtful: set[str] = set()
        self._reported = ReplicaProgress(number, "starting")
        self._shipper: Shipper | None = None
        self._busy = False
        self._failing_since = ""  # time of the first failure in a row; empty without a failure
        self._progress = Progress()
        self._thread = threading.Thread(
            target=self._run, name=f"ship to {address.url}", daemon=True
        )

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Notifies the thread of new frames."""
        with self._news:
            self._waiting = True
            self._news.notify()

    def doubt(self, names: Iterable[str]) -> None:
        """Marks files of the replica as doubtful, because their bytes differ from the sent ones."""
        with self._news:
            self._doubtful.update(names)
            self._waiting = True
            self._news.notify()

    def end(self) -> None:
        """Records that the owner has ended: the thread ships all published frames, then ends."""
        with self._news:
            self._owner_ended_s = time.monotonic()
            self._waiting = True
            self._news.notify()
        self._progress.beat()

    def watch(self) -> None:
        """Reports a failure if a call to the replica has made no progress for too long.

        Failure: a mount hangs, and a call never returns. The thread itself cannot report that.
        """
        silent_s, limit_s = (
            self._progress.silent_s(self._bytes_sent()),
            remote_call.SHIPPING.silent_s,
        )
        with self._news:
            if self._busy and silent_s > limit_s:
                self._report_failure(
                    "failing", f"it has not answered for {limit_s:g} s, still waiting"
                )

    def works(self, wait_s: float) -> bool:
        """Waits at most `wait_s` for the thread's end; returns True if the keeper must wait longer.

        A thread without progress for a bit longer than the policy's `give_up_s` is abandoned,
        because a call on a hanging mount never returns.
        """
        self._thread.join(wait_s)
        silent_s = self._progress.silent_s(self._bytes_sent())
        return self._thread.is_alive() and silent_s < remote_call.SHIPPING.give_up_s + _GRACE_S

    def _bytes_sent(self) -> int:
        return self._shipper.bytes_sent if self._shipper is not None else 0

    def _run(self) -> None:
        backoff = Backoff(*remote_call.SHIPPING.retry_s)
        source = shipper = replica = None
        while True:
            with self._news:
                written = self._owner_ended_s is not None
                self._waiting = False
            try:
                if source is None:
                    source = LogSource(self._folder, self._generation, files=self._files)
                    replica = connect_site(self._address, self._files).replica(source.log_id)
                    shipper = Shipper(
                        source,
                        replica,
                        self._name,
                        self._cast_vote,
                        self._report_progress,
                        self._claim_copy,
                    )
                    self._shipper = shipper
                assert shipper is not None
                with self._news:
                    doubted, self._doubtful = self._doubtful, set()
                shipper.doubt(doubted)
                with self._marked_busy():
                    while shipper.ship(written=written):
                        pass
                self._failing_since = ""
                self._report_progress(shipper)
                backoff.reset()
                if written:
                    break
            except ReplicaAheadError as error:
                self._report_failure("ahead", _with_hint(error))
                break
            except FencedError as error:
                self._report_failure("fenced", _with_hint(error), _granted_generation(replica))
                break
            except Exception as error:  # reported: it must not stop the other replicas
                self._report_failure("failing", _with_hint(error))
                if not self._wait_to_retry(backoff.next_s()):
                    break
                continue
            with self._news:
                # The wait is bounded, because a new owner sends no message: the next pass checks
                # the control block.
                if not self._waiting:
                    self._news.wait(_WAKE_S)
        if replica is not None:
            replica.close()
        if source is not None:
            source.close()

    @contextmanager
    def _marked_busy(self) -> Iterator[None]:
        """Marks the worker as busy during a `with` block that calls the replica."""
        with self._news:
            self._busy = True
        self._progress.beat()
        try:
            yield
        finally:
            with self._news:
                self._busy = False

    def _wait_to_retry(self, delay: float) -> bool:
        """Waits before the next attempt; returns False if the worker must give up.

        It gives up if the owner has ended, and if either the log's folder is gone or the policy's
        `give_up_s` has passed since then.
        """
        gone = False
        with suppress(DurabilityError):  # the disk may come back
            gone = not self._files.exists(self._folder)
        with self._news:
            since = (
                time.monotonic() - self._owner_ended_s if self._owner_ended_s is not None else 0.0
            )
            if self._owner_ended_s is not None and (gone or since > remote_call.SHIPPING.give_up_s):
                return False
            self._news.wait_for(lambda: False, delay)
            return True

    def _cast_vote(self, vote: TakeoverVote) -> None:
        self._poll.ask(self._number, vote)

    def _claim_copy(self, incarnation: str) -> None:
        self._claims.claim(self._number, incarnation)

    def _report_progress(self, shipper: Shipper) -> None:
        known = shipper.acknowledged
        seq, epoch = (0, 0) if known is None else (known.seq, known.epoch)
        begins = known is None or known == Acknowledgement()
        self._report("starting" if begins else "level", "", seq, epoch)

    def _report_failure(self, condition: Condition, why: str, obeys: int = 0) -> None:
        if condition == "failing":
            self._failing_since = self._failing_since or time.strftime("%H:%M:%S")
            why = f"{why}; since {self._failing_since}"
        self._report(condition, why, self._reported.seq, self._reported.epoch, obeys)

    def _report(self, condition: Condition, why: str, seq: int, epoch: int, obeys: int = 0) -> None:
        """Reports the state of the replica if it has changed; any thread may call."""
        state = ReplicaProgress(self._number, condition, seq, epoch, why, obeys=obeys)
        shipper = self._shipper
        if shipper is not None:
            state = state._replace(
                bytes_sent=shipper.bytes_sent,
                offset=shipper.counted,
                backlog_bytes=shipper.backlog_bytes,
                last_bytes=shipper.last_bytes,
                incarnation=shipper.incarnation,
                void=shipper.acknowledged == Acknowledgement(),
            )
        with self._news:
            if state != self._reported:
                self._reported = state
                self._tell(state)


def _granted_generation(replica: Replica | None) -> int:
    """Returns the generation of a replica's grant; 0 if it cannot be read."""
    with suppress(NosyncError):
        grant = None if replica is None else replica.promised()
        return 0 if grant is None else grant.generation
    return 0


def _with_hint(error: Exception) -> str:
    """Returns the message of an error and its hint, in one line."""
    hint = error.hint if isinstance(error, NosyncError) else None
    return "; ".join(filter(None, (str(error) or type(error).__name__, hint)))


def run_keeper(folder: str, generation: int, news: FileIO, tell: Tell) -> None:
    """Ships a log until its owner has ended, or another one has taken over.

    Args:
        generation: the generation of the owner.
        news: the pipe from the owner. It delivers a byte whenever there are new frames; its end
            means that the owner has ended.
        tell: called with each message for the owner.
    """
    disk = Files()
    settings = config.read_config(disk, folder, log_id(disk, folder))
    count, needed = len(settings.replicas), settings.promised
    name = LogName(folder, config.config_signer(disk), count, needed)
    poll, claims = TakeoverPoll(count, needed), CopyClaims([each.url for each in settings.replicas])
    lanes = [
        ReplicaWorker(number, address, folder, generation, name, poll, claims, tell, disk)
        for number, address in enumerate(settings.replicas)
    ]
    doubts = [lane.doubt for lane in lanes]
    replicas = list(zip(settings.replicas, doubts, strict=True))
    scrubber = Scrubber(folder, generation, replicas, tell, disk)
    merger, requests = KeeperMerger(folder, generation, tell, disk), MergeRequests()
    for lane in lanes:
        lane.start()
    scrubber.start()
    try:
        while owner_is_alive(
            disk,
            folder,
            generation,
            news,
            lanes,
            lambda r: merger.ask(requests.complete_requests(r)),
        ):
            scrubber.news()
            for lane in lanes:
                lane.wake()
                lane.watch()
    finally:
        scrubber.end()
        for lane in lanes:
            lane.end()
        merger.end(_GRACE_S)
        while lanes:
            lanes = [lane for lane in lanes if lane.works(_LOOK_S)]


def owner_is_alive(
    files: Files,
    folder: str,
    generation: int,
    news: FileIO,
    lanes: Sequence[ReplicaWorker] = (),
    hear: Callable[[bytes], object] = len,
) -> bool:
    """Waits for a message of the owner; returns False if the owner has ended.

    Meanwhile the workers are watched. A forked child of the owner also holds the other end of the
    pipe, so the owner's process is checked as well.

    Args:
        hear: receives the bytes that the owner has written.
    """
    while not select.select([news], [], [], _LOOK_S)[0]:
        for lane in lanes:
            lane.watch()
        record = owner.read_owner(files, folder)
        if record is None or record.generation != generation or record.released:
            return False
        if HostIdentity().alive(record.identity) is False:
            return False
    data = news.read(1 << 12) or b""
    hear(data)
    return bool(data)


def lower_priority() -> None:
    """Gives the owner priority over this process, which is in a session of its own.

    Linux may divide its processors among sessions first, and then among the processes of each
    (`autogroup`). The nice value has no effect beyond the session, so the weight of the session is
    set here as well. Even then processors change hands only at scheduler ticks, a few milliseconds
    apart. So this process uses only the second half of the processors. Commits of the owner then
    need not wait for a processor.
    """
    os.nice(NICE)
    if hasattr(os, "sched_setaffinity"):
        usable = sorted(os.sched_getaffinity(0))
        with suppress(OSError):  # a processor has just gone offline
            os.sched_setaffinity(0, usable[len(usable) // 2 :])
    with suppress(DurabilityError):  # there may be no autogroup
        group = Files().open(f"/proc/{os.getpid()}/autogroup", write=True)
        try:
            group.append(str(NICE).encode())
        finally:
            group.close()


def main(arguments: Sequence[str]) -> Any:
    """Runs a keeper; returns the exit code of the process."""
    folder, generation = arguments
    lower_priority()
    run_keeper(
        folder,
        int(generation),
        FileIO(sys.stdin.fileno(), closefd=False),
        ProgressWriter(sys.stdout.buffer),
    )
    return 0
