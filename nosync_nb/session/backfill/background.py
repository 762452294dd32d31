"""Rebuilds operator state in a background thread while other threads commit.

After a rewind to an old epoch, and at the beginning of a branch, the state of operators is missing,
because it has no history. It is rebuilt from the contents of their inputs before the next write
that needs it:

    plan with the writer's lock -> compute without it -> adopt with it

A commit in the meantime waits until the state is adopted, and releases the lock while it waits.
Other callers can then close the session or rewind it again, which cancels the rebuild. A cancelled
rebuild stops between two operators and deletes the files that it has written.

The state is adopted if the session still has the planned graph, catalog and epoch; merges in
between do not matter. If it was not adopted, or failed, the next caller that needs it computes it
and gets any error.
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
"""Seconds after which a waiting commit checks again: a worker without memory may not notify."""


class BackgroundRebuild:
    """Rebuilds missing operator state; owns the rebuild in progress, guarded by the writer's lock.

    Args:
        report: records which stages resume.
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
        self._maintenance = upkeep
        self._worker = worker
        self._types = types
        self._report = report
        self._ended = threading.Condition(gate.lock)
        self._in_progress: OffLockCompute | None = None

    def plan(self) -> None:
        """Requests the rebuild before the next write that needs it; with the lock."""
        self._gate.set_rebuild(self)

    def submit_rebuild(self) -> None:
        """Starts the rebuild in the background, if any state is missing."""
        self._worker.submit(object(), self._run_in_worker, name="rebuilding the state of operators")

    def finish(self) -> None:
        """Rebuilds the state in this thread, or waits a while for the worker; with the lock."""
        if self._in_progress is not None and not self._in_progress.ended:
            self._ended.wait(WAIT_S)
        else:
            self._install(None)

    def cancel(self) -> None:
        """Cancels the rebuild in progress; with the lock."""
        rebuild, self._in_progress = self._in_progress, None
        if rebuild is not None:
            rebuild.cancel()
            self._ended.notify_all()

    def _run_in_worker(self) -> None:
        """Computes the state without the lock; runs in the worker."""
        rebuild = self._plan_run()
        if rebuild is None:
            return
        try:
            with suppress(Exception):  # the caller that needs it retries and gets the error
                rebuild.compute(self._publisher.works.doing)
            self._adopt(rebuild)
        finally:
            rebuild.end()
            with self._gate.lock:
                if self._in_progress is rebuild:
                    self._in_progress = None
                self._ended.notify_all()
            rebuild.clear()

    def _plan_run(self) -> OffLockCompute | None:
        """Returns the run to compute; None if no state is missing, or planning failed."""
        with self._gate.lock, suppress(NosyncError):  # the caller that needs it gets the error
            self._gate.finish()
            if self._gate.closing:
                return None
            self._gate.run_pre_write_tasks(rebuilt=False)
            if self._gate.is_state_missing and (
                self._in_progress is None or self._in_progress.ended
            ):
                self._in_progress = self._installation.ahead(self._decision())
                return self._in_progress
        return None

    def _adopt(self, rebuild: OffLockCompute) -> None:
        with self._gate.lock:
            self._gate.finish()
            if self._in_progress is not rebuild or not rebuild.fits(self._publisher.snapshot):
                return
            self._install(rebuild)
        self._maintenance.plan_checkpoint()

    def _install(self, ahead: OffLockCompute | None) -> None:
        """Writes that the stages resume with complete operator state."""
        decision = self._decision() if ahead is None else ahead.decision
        missed = self._installation.install(decision, ahead=ahead)
        self._report.resumed(decision.extended, decision.lost, [draft.work for draft in missed])
        self._gate.set_rebuild(None)

    def _decision(self) -> definition_diff.DefinitionDecision:
        return definition_diff.resume_decision(self._publisher.snapshot, self._types, extend=False)
