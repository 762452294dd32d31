"""Verifies the files of a log and of its replicas in the keeper, and repairs them.

Bytes on a disk decay silently, and the last good copy may be lost before anyone reads the bad one.
So the scrubber compares every immutable file of a log with the log's records of it, slowly and in
rounds. A file that is damaged here is replaced by a verified copy. A file that is damaged at a
replica is marked as doubtful there. Earlier acknowledgements of that replica are then void, and its
shipper sends the file a second time if it is intact here.

IMPORTANT: the scrubber acknowledges nothing. It yields to the owner: after each message of the
owner it waits for a quiet moment before the next piece. It never reads faster than `BYTES_PER_S`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from nosync_nb.errors import FencedError, NosyncError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.log.owner import HostIdentity
from nosync_nb.store.replication.address import ReplicaAddress
from nosync_nb.store.replication.agent.log_source import LogSource
from nosync_nb.store.replication.comparison import LocalFiles, compare_replicas
from nosync_nb.store.replication.restore import repair
from nosync_nb.store.verification.survey import LogSurvey, survey_log
from nosync_nb.store.verification.verify import ImmutableFile, completed_report, immutable_files

BYTES_PER_S = 8 << 20
FIRST_S = 60.0
"""Seconds from the start of a keeper to its first round."""
ROUND_S = 6 * 3600.0
"""Seconds of rest between two rounds."""
QUIET_S = 1.0
"""Seconds without a message of the owner that count as quiet; also the longest wait per piece."""


class ScrubReport(NamedTuple):
    """The progress of scrubbing, as a keeper reports it.

    Attributes:
        rounds: the number of completed rounds.
        files, bytes: the number of files and bytes that were read in all rounds.
        repaired: the number of files that were replaced here, or marked as doubtful at a replica.
        event: a description of the latest action; empty if there is none.
    """

    rounds: int = 0
    files: int = 0
    bytes: int = 0
    repaired: int = 0
    event: str = ""


class Scrubber:
    """Scrubs one log and its replicas in a thread of its own.

    Args:
        generation: the generation of the owner that the keeper serves.
        replicas: the replicas, each with the function that receives the names of its damaged files.
        tell: called with each report.
        rate: the maximum number of bytes read per second; `None` means that there is no limit.
    """

    def __init__(
        self,
        folder: str,
        generation: int,
        replicas: Sequence[tuple[ReplicaAddress, Callable[[Iterable[str]], None]]],
        tell: Callable[[ScrubReport], None],
        files: Files,
        *,
        rate: float | None = BYTES_PER_S,
    ) -> None:
        self._folder, self._generation, self._replicas = folder, generation, replicas
        self._tell, self._files, self._rate = tell, files, rate
        self._stopping = threading.Event()
        self._last_message_s = float("-inf")
        self._totals = ScrubReport()
        self._thread = threading.Thread(target=self._run, name="scrub", daemon=True)

    def start(self) -> None:
        """Starts the thread; its first round begins `FIRST_S` seconds later."""
        self._thread.start()

    def news(self) -> None:
        """Records a message of the owner, so that the scrubber waits for a quiet moment."""
        self._last_message_s = time.monotonic()

    def end(self) -> None:
        """Stops the thread after the piece that it is reading."""
        self._stopping.set()

    def _run(self) -> None:
        rest = FIRST_S
        while not self._stopping.wait(rest):
            rest = ROUND_S
            try:
                self.round()
            except (_EndedError, FencedError):
                return
            except NosyncError as error:  # a disk fault: the next round retries
                self._report(f"the log cannot be scrubbed: {error}")

    def round(self) -> None:
        """Reads all immutable files once, compares the replicas, and repairs damaged files.

        Raises:
            FencedError: the log has another owner.
            DurabilityError: the disk cannot be read or written.
        """
        source = LogSource(self._folder, self._generation, files=self._files)
        try:
            surveyed = self._survey()
            bad = [item for item in immutable_files(surveyed).values() if self._damage(item)]
            if bad:
                surveyed = self._survey()
                now = immutable_files(surveyed)
                for item in bad:
                    if item.name in now:
                        self._repair(now[item.name], source)
            for address, doubt in self._replicas:
                self._compare_replica(surveyed, address, doubt)
        finally:
            source.close()
        self._totals = self._totals._replace(rounds=self._totals.rounds + 1)
        self._report("")

    def _survey(self) -> LogSurvey:
        surveyed = survey_log(self._files, self._folder, HostIdentity(), self._throttle)
        return completed_report(self._files, self._folder, surveyed, self._throttle)

    def _damage(self, item: ImmutableFile) -> str:
        self._totals = self._totals._replace(files=self._totals.files + 1)
        return repair.damage_reason(self._files, self._folder, item, self._throttle)

    def _repair(self, item: ImmutableFile, source: LogSource) -> None:
        """Replaces a file if it is still damaged, now that the log was surveyed again."""
        why = repair.damage_reason(self._files, self._folder, item, self._throttle)
        if not why:
            return
        addresses = [address for address, _ in self._replicas]
        mended = repair.repair_file(
            self._files, self._folder, item, why, addresses, source.log_id, check=source.check
        )
        if mended is None:
            self._report(f"'{item.name}' is damaged ({why}), and no replica has an intact copy")
        else:
            self._totals = self._totals._replace(repaired=self._totals.repaired + 1)
            self._report(str(mended))

    def _compare_replica(
        self, surveyed: LogSurvey, address: ReplicaAddress, doubt: Callable[[Iterable[str]], None]
    ) -> None:
        """Marks the files of a replica that differ from intact local files as doubtful."""
        hurt = frozenset(each.file for each in surveyed.damage)
        local = LocalFiles(self._files, self._folder, surveyed, hurt, self._throttle)
        copy = compare_replicas(local, address, self._survey)
        if not copy.damage:
            return
        fresh = self._survey()  # because files may have been damaged here meanwhile
        current, hurt = immutable_files(fresh), frozenset(each.file for each in fresh.damage)
        names = [
            name
            for name in (each.file for each in copy.damage)
            if name not in hurt and not (name in current and self._damage(current[name]))
        ]
        if not names:
            return
        doubt(names)
        self._totals = self._totals._replace(repaired=self._totals.repaired + len(names))
        for each in copy.damage:
            if each.file in names:
                self._report(f"{address.url}: '{each.file}': {each.what}; it is sent again")

    def _report(self, event: str) -> None:
        self._totals = self._totals._replace(event=event)
        self._tell(self._totals)

    def _throttle(self, count: int) -> None:
        """Sleeps after `count` bytes were read, to limit the rate and to let the owner go first."""
        self._totals = self._totals._replace(bytes=self._totals.bytes + count)
        quiet = self._last_message_s + QUIET_S - time.monotonic()
        rest = max(count / self._rate if self._rate else 0.0, min(quiet, QUIET_S))
        if self._stopping.wait(rest) if rest > 0 else self._stopping.is_set():
            raise _EndedError


class _EndedError(Exception):
    """Raised in the thread of a scrubber, because its keeper has ended."""
