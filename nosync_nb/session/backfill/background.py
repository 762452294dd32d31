"""Rebuilds operator state in a background thread while other threads commit.

After a rewind to an old epoch, and at the beginning of a branch, the state of operators is missing,
because it has no history. It is rebuilt from the contents of their inputs before the next write
that needs it:

    plan with the writer's lock -> compute without it -> adopt with it

A commit in the meantime waits until the state is adopted, and releases the lock while it waits.
Other callers can then close the session or rewind it again, which cancels the rebuild. A cancelled
rebuild stops between two operators and deletes the files that it has written.

The files of the snapshot stay readable, because only the worker deletes files. The rebuild is a
task of the worker, so deletions come after it.

The state is adopted if the session still has the planned graph, catalog and epoch. Merges do not
prevent this, because they change no rows. If the rebuild fails or its result is not adopted, the
next caller that needs the state computes it, and gets any error.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from nosync_nb.dataflow.runtime.activity import ActivityMonitor
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.errors import NosyncError
from nosync_nb.session.backfill.definition_diff import unchanged_decision
from nosync_nb.session.backfill.execute import (
    BackfillExecutor,
    BackfillResult,
    Prepared,
    first_names,
)
from nosync_nb.session.backfill.plan import missing_nodes
from nosync_nb.session.maintenance.maintenance import Maintenance
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.session.state.worker import BackgroundWorker
from nosync_nb.session.state.writer_lock import WriterLock

WAIT_S = 1.0
"""Seconds after which a waiting commit checks again: a worker may lack the memory to notify it."""


class CancelledError(Exception):
    """The run was cancelled, because no caller waits for its result."""


class _OffLockRun:
    """One run of missing operator state from a snapshot, without the writer's lock.

    Attributes:
        ended: True if the run has ended and its result cannot change any more.
    """

    def __init__(self, executor: BackfillExecutor, prepared: Prepared) -> None:
        self.prepared = prepared
        self.ended = False
        self._executor = executor
        self._cancelled = self._adopted = False
        self._result: BackfillResult | None = None

    def compute(self, activities: ActivityMonitor) -> None:
        """Runs the missing nodes. The caller does not hold the lock.

        Raises:
            CancelledError: if the run was cancelled meanwhile.
        """
        graph = self.prepared.runner.graph
        new = missing_nodes(graph, self.prepared.old)
        stages = dict.fromkeys(node.stage for node in graph if node.id in new)
        what = f"rebuilding operator state of {first_names([*stages])}"
        with activities.record(what, len(new)) as progress:

            def step() -> None:
                if self._cancelled:
                    raise CancelledError
                progress.step()

            self._result = self._executor.run(self.prepared, step, _keep_files)

    def fits(self, now: Snapshot) -> bool:
        """Returns True if the result applies to a snapshot; its layers may have been merged."""
        snapshot = self.prepared.snapshot
        same = now.graph is snapshot.graph and now.catalog is snapshot.catalog
        return same and now.epoch == snapshot.epoch and self._result is not None

    def over(self, now: Snapshot) -> BackfillResult:
        """Returns the result, based on the current layers. After this call the log owns its files.

        IMPORTANT: this is called before a frame names the files, because after an error it is
        unknown whether the frame was written.
        """
        assert self._result is not None
        self._adopted = True
        self._result.draft.over(now.version, self.prepared.snapshot.version)
        return self._result

    def cancel(self) -> None:
        """Cancels the run: it stops before its next operator."""
        self._cancelled = True

    def clear(self) -> None:
        """Deletes the files of the ended run, unless the log owns them."""
        self.prepared.files.end(failed=not self._adopted)


class BackgroundRebuild:
    """Rebuilds missing operator state; owns the run in progress, guarded by the writer's lock."""

    def __init__(
        self,
        writer_lock: WriterLock,
        publisher: Publisher,
        executor: BackfillExecutor,
        maintenance: Maintenance,
        worker: BackgroundWorker,
    ) -> None:
        self._writer_lock = writer_lock
        self._publisher = publisher
        self._executor = executor
        self._maintenance = maintenance
        self._worker = worker
        self._ended = threading.Condition(writer_lock.lock)
        self._in_progress: _OffLockRun | None = None

    def plan(self) -> None:
        """Schedules the rebuild before the next write that needs it. Requires the lock."""
        self._writer_lock.set_rebuild(self)

    def submit_rebuild(self) -> None:
        """Starts the rebuild in the background, if any state is missing."""
        self._worker.submit(object(), self._run_in_worker, name="rebuilding operator state")

    def finish(self) -> None:
        """Rebuilds the state in this thread, or waits for the worker, up to `WAIT_S`.

        The caller holds the lock.
        """
        if self._in_progress is not None and not self._in_progress.ended:
            self._ended.wait(WAIT_S)
        else:
            self._executor.install_stages({})
            self._writer_lock.set_rebuild(None)

    def cancel(self) -> None:
        """Cancels the rebuild in progress. Requires the lock."""
        rebuild, self._in_progress = self._in_progress, None
        if rebuild is not None:
            rebuild.cancel()
            self._ended.notify_all()

    def _run_in_worker(self) -> None:
        """Computes the state without the lock, and adopts it. Runs in the worker."""
        rebuild = self._plan_run()
        if rebuild is None:
            return
        try:
            with suppress(Exception):  # the caller that needs it retries and gets the error
                rebuild.compute(self._publisher.metrics.activities)
            self._adopt(rebuild)
        finally:
            rebuild.ended = True
            with self._writer_lock.lock:
                if self._in_progress is rebuild:
                    self._in_progress = None
                self._ended.notify_all()
            rebuild.clear()

    def _plan_run(self) -> _OffLockRun | None:
        """Returns the run to compute; None if there is nothing to compute, or planning failed."""
        with (
            self._writer_lock.lock,
            suppress(NosyncError),
        ):  # the caller that needs it gets the error
            self._writer_lock.finish()
            if self._writer_lock.closing:
                return None
            self._writer_lock.run_pre_write_tasks(rebuilt=False)
            if self._writer_lock.is_state_missing and (
                self._in_progress is None or self._in_progress.ended
            ):
                unchanged = unchanged_decision(dict(self._publisher.snapshot.catalog))
                prepared = self._executor.prepare(unchanged)
                self._in_progress = _OffLockRun(self._executor, prepared)
                return self._in_progress
        return None

    def _adopt(self, rebuild: _OffLockRun) -> None:
        with self._writer_lock.lock:
            self._writer_lock.finish()
            if self._in_progress is not rebuild or not rebuild.fits(self._publisher.snapshot):
                return
            prepared = rebuild.prepared
            computed = prepared, rebuild.over(self._publisher.snapshot)
            self._executor.install(prepared.decision, computed=computed)
            self._writer_lock.set_rebuild(None)
        self._maintenance.plan_checkpoint()


def _keep_files(*, failed: bool) -> None:
    """Does nothing, because the caller that adopts a run decides about its files."""
