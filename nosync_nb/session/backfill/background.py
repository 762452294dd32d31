"""Rebuilding: what operators remember is made again, behind the back of who commits.

After a session went back to an old epoch, and where a branch begins at one, operators lack what
they remember: it has no history. It is made of what their inputs hold, before the next write that
needs it.

    plan it with the gate's lock -> compute it without -> adopt it with the lock

Who commits meanwhile waits until it is adopted, and lets go of the lock for that: others can close
the session or go back once more, which cancels it. It ends between two operators then, and what it
has written is deleted. It is adopted if the session is what it was planned of, whatever was merged;
if not, or if it failed, who needs it makes it himself, and gets the error that comes of it.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from nosync_nb.errors import NosyncError
from nosync_nb.session.backfill.apply_catalog import CatalogInstaller
from nosync_nb.session.backfill.off_lock import OffLockCompute
from nosync_nb.session.maintenance.maintenance import Maintenance
from nosync_nb.session.planning import definition_diff
from nosync_nb.session.report import RecoveryReport
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.session.state.worker import BackgroundWorker
from nosync_nb.session.state.writer_lock import WriterLock
from nosync_nb.spark.sql_settings import SparkTypes

WAIT_S = 1.0
"""After so long who waits looks again: a thread that had no memory to say so has said nothing."""


class BackgroundRebuild:
    """Makes what operators lack; owns what is on its way, which the gate's lock guards.

    Args:
        report: is told which stages go on.
    """

    def __init__(
        self,
        gate: WriterLock,
        publisher: Publisher,
        installation: CatalogInstaller,
        upkeep: Maintenance,
        worker: BackgroundWorker,
        types: SparkTypes,
        report: RecoveryReport,
    ) -> None:
        self._gate = gate
        self._publisher = publisher
        self._installation = installation
        self._upkeep = upkeep
        self._worker = worker
        self._types = types
        self._report = report
        self._ended = threading.Condition(gate.lock)
        self._ahead: OffLockCompute | None = None

    def plan(self) -> None:
        """Has it made before the next write that needs it; with the gate's lock."""
        self._gate.lack(self)

    def begin(self) -> None:
        """Has the worker begin with it, if anything is lacking."""
        self._worker.submit(object(), self._behind, name="rebuilding the state of operators")

    def finish(self) -> None:
        """Makes it here, or waits a while for the worker; with the gate's lock."""
        if self._ahead is not None and not self._ahead.ended:
            self._ended.wait(WAIT_S)
        else:
            self._install(None)

    def cancel(self) -> None:
        """Lets it go; with the gate's lock."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.cancel()
            self._ended.notify_all()

    def _behind(self) -> None:
        """Makes it without the lock; the worker's."""
        ahead = self._planned()
        if ahead is None:
            return
        try:
            with suppress(Exception):  # who needs it makes it himself, and is told why that fails
                ahead.compute(self._publisher.works.doing)
            self._adopt(ahead)
        finally:
            ahead.end()
            with self._gate.lock:
                if self._ahead is ahead:
                    self._ahead = None
                self._ended.notify_all()
            ahead.clear()

    def _planned(self) -> OffLockCompute | None:
        """What is to be computed; None if nothing is lacking, or it cannot be planned."""
        with self._gate.lock, suppress(NosyncError):  # as above
            self._gate.finish()
            if self._gate.closing:
                return None
            self._gate.ready(rebuilt=False)
            if self._gate.lacking and (self._ahead is None or self._ahead.ended):
                self._ahead = self._installation.ahead(self._decision())
                return self._ahead
        return None

    def _adopt(self, ahead: OffLockCompute) -> None:
        with self._gate.lock:
            self._gate.finish()
            if self._ahead is not ahead or not ahead.fits(self._publisher.snapshot):
                return
            self._install(ahead)
        self._upkeep.plan_checkpoint()

    def _install(self, ahead: OffLockCompute | None) -> None:
        """Writes that the stages go on with all that they remember."""
        decision = self._decision() if ahead is None else ahead.decision
        missed = self._installation.install(decision, ahead=ahead)
        self._report.resumed(decision.extended, decision.lost, [draft.work for draft in missed])
        self._gate.lack(None)

    def _decision(self) -> definition_diff.DefinitionDecision:
        return definition_diff.resume_decision(self._publisher.snapshot, self._types, extend=False)
