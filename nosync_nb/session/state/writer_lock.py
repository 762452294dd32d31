"""The writer lock: serialises commits, definitions and rewinds.

    with writer_lock.lock:
        writer_lock.begin_change("commit")

Lock order: `ending`; then the lock of the follower or of the checkpoint writer; then the writer
lock; then one leaf. A leaf is any other lock here or below (ledger, definition names,
subscriptions, metrics, worker, Spark connection, log). A leaf never calls code that takes the
writer lock.

IMPORTANT: `with` is used on the lock itself. An error may come between any two steps of Python
code. A method that took the lock could be left before the caller enters the block that releases it.

Each caller that acquires the lock first completes an interrupted call. That is a redo record, which
exists from before a frame is written until everything that follows from it is assigned; see
`publisher`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from nosync_nb.collections import loops
from nosync_nb.errors import DurabilityError, FencedError, StageError

Result = TypeVar("Result")

WAY_S = 0.01
"""The longest single wait of background work for the end of an epoch, in seconds."""


class RedoRecord(Protocol):
    """A call that may have been interrupted."""

    def finish(self) -> None:
        """Assigns all values of the call if its frame is in the log, otherwise none; idempotent."""


class PendingRebuild(Protocol):
    """Missing operator state, which must be rebuilt before the next write."""

    def finish(self) -> None:
        """Rebuilds the state, or waits for the thread that does. Requires the lock.

        It releases the lock while it waits.
        """

    def cancel(self) -> None:
        """Cancels the rebuild, because no call waits for it any longer. Requires the lock."""


class _Thread(threading.local):
    """The activity of a thread.

    Attributes:
        running: True while it runs stages.
        telling: True while it calls functions of users that are notified of an epoch.
    """

    running = False
    telling = False


class WriterLock:
    """The lock of a session's writers, and the checks that a write must pass.

    All attributes except `closed` and `closing` are changed only with the lock.

    Args:
        mode: mode of the session: `w` or `r`.
        check: raises if this process may not write the log, or has lost it; takes about 0.2 us.

    Attributes:
        lock: guards everything that is published.
        ending: serialises the release of resources, which must not block the writer lock.
        inherited: True in a forked child; the session belongs to the parent.
        closing: True if writes are refused.
        closed: True if all resources are released.
    """

    def __init__(self, mode: str, check: Callable[[], None]) -> None:
        self.lock = threading.RLock()
        self.ending = threading.RLock()
        self.inherited = False
        self.closing = False
        self.closed = False
        self._mode = mode
        self._check = check
        self._thread = _Thread()
        self._pre_write: Callable[[], None] | None = None  # runs before the first write
        self._rebuild: PendingRebuild | None = None  # finishes before the first write that needs it
        self._redo: RedoRecord | None = None
        _locks.add(self)

    def inherit(self) -> None:
        """Marks a forked child, and replaces the locks.

        A lock that another thread of the parent held is never released in the child.
        """
        self.inherited = True
        self.lock, self.ending = threading.RLock(), threading.RLock()

    # -- with the lock -----------------------------------------------------------------------

    def begin_change(self, what: str, *, rebuilt: bool = True) -> None:
        """Begins a change: completes the previous one, and raises if this one is not allowed.

        Args:
            rebuilt: True if the change needs the operator state, and waits for its rebuild.
        """
        self.finish()
        self.writable(what, rebuilt=rebuilt)

    def finish(self) -> None:
        """Completes an interrupted call. Each caller must do this first."""
        if self._redo is not None:
            self._redo.finish()
            self._redo = None

    def give_way(self) -> bool:
        """Waits until the lock is free, for `WAY_S` at most; returns True if it was not free.

        Background work during an epoch competes with it for the interpreter and the cache, so that
        both are slow. So it is better to wait for the end of the epoch. The main thread does not
        wait, because an interrupt could come while it holds the lock.
        """
        if threading.current_thread() is threading.main_thread():
            return False
        free = self.lock.acquire(blocking=False)
        if free or self.lock.acquire(timeout=WAY_S):
            self.lock.release()
        return not free

    def register_redo(self, unfinished: RedoRecord) -> None:
        """Registers a redo record, which the next caller completes whatever is raised."""
        self._redo = unfinished

    def run(self, run: Callable[[], Result], cleanup: Callable[..., None]) -> Result:
        """Runs stages; meanwhile this thread cannot change the session. Does not need the lock.

        Args:
            cleanup: called after the run, with `failed`.
        """
        thread, failed = self._thread, True
        try:
            try:
                thread.running = True
                result = run()
                failed = False
            finally:
                thread.running = False
                cleanup(failed=failed)
        except BaseException:  # also one that is raised by the clean-up
            thread.running = False
            raise
        return result

    def run_before_first_write(self, task: Callable[[], None] | None) -> None:
        """Sets the task to run before the first write; replaces any earlier one."""
        if self._rebuild is not None:
            self._rebuild.cancel()
        self._pre_write, self._rebuild = task, None

    def set_rebuild(self, rebuild: PendingRebuild | None) -> None:
        """Sets or (None) removes the rebuild to finish before the first write that needs it."""
        self._rebuild = rebuild

    @property
    def is_state_missing(self) -> bool:
        """True if operator state is missing."""
        return self._rebuild is not None

    # -- without the lock ---------------------------------------------------------------------

    def writable(self, what: str, *, rebuilt: bool = True) -> None:
        """Raises if this thread may not write now; completes what the first write waits for.

        See `begin_change` for the argument.
        """
        loops.refuse_inside(what)
        if self._thread.running:
            raise StageError(
                f"{what} inside a stage's function is not possible",
                hint="change inputs and commit outside; the function may only use its rows",
            )
        if self._thread.telling:
            raise StageError(
                f"{what} inside a subscriber is not possible",
                hint="collect the changes in a list, and insert them later",
            )
        if self.closing:
            self._refuse_closed()
        if self._mode == "r":
            raise FencedError(
                f"{what}: the session is open for reading", hint='open it without mode="r"'
            )
        self._check()
        if self._pre_write is not None or self._rebuild is not None:
            self.run_pre_write_tasks(rebuilt=rebuilt)

    def _refuse_closed(self) -> None:
        if self.closing:
            raise DurabilityError(
                "the session is closed",
                hint="open it again: nosync.open(path), in a notebook nosync.session()",
            )

    def run_pre_write_tasks(self, *, rebuilt: bool = True) -> None:
        """Runs, once, the tasks that the first write waits for.

        While it waits for the rebuild of another thread, the lock is free, so another thread may
        rewind or close the session. Hence callers call it before they read state that these change.

        Args:
            rebuilt: True if missing operator state must be rebuilt, too.
        """
        with self.lock:
            while True:
                self.finish()
                if self._pre_write is not None:
                    self._pre_write()
                    self._pre_write = None
                if not rebuilt or self._rebuild is None:
                    return
                self._rebuild.finish()
                self._refuse_closed()

    def call_user_functions(self, tell: Callable[..., None], *what: Any) -> None:
        """Calls functions of users, which must not change the session.

        Callers do not hold the lock where that is possible, because such a function may wait for
        another thread that needs it.
        """
        thread, before = self._thread, self._thread.telling
        try:
            try:
                thread.telling = True
                tell(*what)
            finally:
                thread.telling = before
        except BaseException:  # also one that is raised by the clean-up
            thread.telling = before
            raise

    def complete_interrupted(
        self, error: BaseException, outcome: DefinitionOutcome, what: str
    ) -> None:
        """Completes the call that an error has interrupted.

        Adds a note to the error if the definition is nevertheless committed.
        """
        with self.lock:
            self.finish()
        if outcome.committed:
            error.add_note(what)

    # -- closing -----------------------------------------------------------------------------

    def close(self) -> bool:
        """Closes the session for writes; returns True if the caller must release resources.

        A forked child releases nothing, because threads, files and queries are its parent's.
        """
        if self.inherited:
            self.closing = self.closed = True
            return False
        with self.lock:
            self.finish()
            if self._thread.running and not self.closed:
                raise StageError(
                    "close inside a stage's function is not possible", hint="close it outside"
                )
            self.closing = True
            if self._rebuild is not None:
                self._rebuild.cancel()
        return not self.closed

    def mark_closed(self) -> None:
        """Records that all resources are released."""
        self.closed = True


_locks: WeakSet[WriterLock] = WeakSet()


def _inherit_all() -> None:
    for writer_lock in _locks:
        writer_lock.inherit()


os.register_at_fork(after_in_child=_inherit_all)


class DefinitionOutcome:
    """The outcome of a definition.

    Attributes:
        committed: True once its frame is written, whatever is raised afterwards.
    """

    committed = False

    def mark_committed(self) -> None:
        """Records that the definition is committed."""
        self.committed = True
