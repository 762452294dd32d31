"""Scrubbing: the keeper reads what nobody has read for long, here and at replicas, and mends it.

Bytes on a disk go bad in silence, and the last good copy may be lost before somebody reads them. So
all files of a log that do not change any more are held against what the log knows of them, one
after the other, slowly, over and over. One that is bad here is replaced by a proven copy; one that
is bad at a replica is doubted there: what the replica has acknowledged counts no more, and who
ships to it sends it anew, when it is whole here.

IMPORTANT: the scrubber acknowledges nothing. It makes way for its owner: after news of him it
waits for a moment of quiet before each piece, and it never reads faster than `BYTES_PER_S`.
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
from nosync_nb.store.verification.inventory import ImmutableFile, immutable_files
from nosync_nb.store.verification.survey import LogSurvey, survey_log
from nosync_nb.store.verification.verify import completed_report

BYTES_PER_S = 8 << 20
FIRST_S = 60.0
"""How long after it began a keeper scrubs for the first time."""
ROUND_S = 6 * 3600.0
"""How long it rests when it has read all."""
QUIET_S = 1.0
"""How long the owner has to say nothing; no longer is waited for that before each piece."""


class ScrubReport(NamedTuple):
    """What a keeper says of its scrubbing.

    Attributes:
        rounds: how often all was read.
        files, bytes: what was read in all rounds.
        repaired: how many files were replaced here, or doubted at a replica.
        event: what was done just now, in words; empty: nothing.
    """

    rounds: int = 0
    files: int = 0
    bytes: int = 0
    repaired: int = 0
    event: str = ""


class Scrubber:
    """Scrubs one log and its replicas, in a thread of its own.

    Args:
        generation: of the owner for whom this is done.
        doubt: for each replica, who is told of files that are bad there.
        tell: called with what was done.
        rate: how many bytes it reads in a second at most; None: as many as it can.
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
        self._ended = threading.Event()
        self._heard = float("-inf")
        self._said = ScrubReport()
        self._thread = threading.Thread(target=self._run, name="scrub", daemon=True)

    def start(self) -> None:
        """Begins, after a while."""
        self._thread.start()

    def news(self) -> None:
        """Says that the owner has something to do."""
        self._heard = time.monotonic()

    def end(self) -> None:
        """Ends it after the piece that it is reading."""
        self._ended.set()

    def _run(self) -> None:
        rest = FIRST_S
        while not self._ended.wait(rest):
            rest = ROUND_S
            try:
                self.round()
            except (_EndedError, FencedError):
                return
            except NosyncError as error:  # of this disk: it is tried again, and told
                self._note(f"the log cannot be scrubbed: {error}")

    def round(self) -> None:
        """Reads all once, and mends what is bad.

        Raises:
            FencedError: the log has another owner.
            DurabilityError: the disk cannot be read or written.
        """
        source = LogSource(self._folder, self._generation, files=self._files)
        try:
            surveyed = self._survey()
            bad = [item for item in immutable_files(surveyed).values() if self._flaw(item)]
            if bad:
                surveyed = self._survey()
                now = immutable_files(surveyed)
                for item in bad:
                    if item.name in now:
                        self._mend(now[item.name], source)
            for address, doubt in self._replicas:
                self._compare(surveyed, address, doubt)
        finally:
            source.close()
        self._said = self._said._replace(rounds=self._said.rounds + 1)
        self._note("")

    def _survey(self) -> LogSurvey:
        surveyed = survey_log(self._files, self._folder, HostIdentity(), self._pace)
        return completed_report(self._files, self._folder, surveyed, self._pace)

    def _flaw(self, item: ImmutableFile) -> str:
        self._said = self._said._replace(files=self._said.files + 1)
        return repair.damage_reason(self._files, self._folder, item, self._pace)

    def _mend(self, item: ImmutableFile, source: LogSource) -> None:
        """Replaces a file that is still bad, after another look at the log."""
        why = repair.damage_reason(self._files, self._folder, item, self._pace)
        if not why:
            return
        addresses = [address for address, _ in self._replicas]
        mended = repair.repair_file(
            self._files,
            self._folder,
            item,
            why,
            addresses,
            source.log_id,
            check=source.check,
        )
        if mended is None:
            self._note(f"'{item.name}' is damaged ({why}), and no replica has it whole")
        else:
            self._said = self._said._replace(repaired=self._said.repaired + 1)
            self._note(str(mended))

    def _compare(
        self, surveyed: LogSurvey, address: ReplicaAddress, doubt: Callable[[Iterable[str]], None]
    ) -> None:
        """Has files sent anew to a replica that are other there, if they are whole here."""
        hurt = frozenset(each.file for each in surveyed.damage)
        own = LocalFiles(self._files, self._folder, surveyed, hurt, self._pace)
        copy = compare_replicas(own, address, self._survey)
        if not copy.damage:
            return
        fresh = self._survey()  # what has gone bad here meanwhile is no fault of the replica
        known, hurt = immutable_files(fresh), frozenset(each.file for each in fresh.damage)
        names = [
            name
            for name in (each.file for each in copy.damage)
            if name not in hurt and not (name in known and self._flaw(known[name]))
        ]
        if not names:
            return
        doubt(names)
        self._said = self._said._replace(repaired=self._said.repaired + len(names))
        for each in copy.damage:
            if each.file in names:
                self._note(f"{address.url}: '{each.file}': {each.what}; it is sent anew")

    def _note(self, event: str) -> None:
        self._said = self._said._replace(event=event)
        self._tell(self._said)

    def _pace(self, count: int) -> None:
        """After some bytes: lets the owner go first, and rests as long as they may take."""
        self._said = self._said._replace(bytes=self._said.bytes + count)
        quiet = self._heard + QUIET_S - time.monotonic()
        rest = max(count / self._rate if self._rate else 0.0, min(quiet, QUIET_S))
        if self._ended.wait(rest) if rest > 0 else self._ended.is_set():
            raise _EndedError


class _EndedError(Exception):
    """Whoever it scrubs for has ended."""
