"""Gate: the one lock under which anything is published, and who may pass.

    with gate.lock:
        gate.turn("commit")

Lock order: `ending`, the follower or who writes a checkpoint or looks for removed rows, the gate,
then one leaf, which is what else has a lock of its own here or below (ledger, names, listeners,
works, worker, link, log). A leaf calls nobody who takes the gate.

IMPORTANT: `with` is on the lock itself. An error may come between any two steps of what is written
in Python; a method that took the lock could be left before the block is entered that gives it back.

Whoever enters finishes first what an interrupted call has left. That is a record, which stands from
before a frame is written until all is assigned that follows from it; see `publisher`.
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
"""How long at most others wait for the end of an epoch, again and again until they are done."""


class RedoRecord(Protocol):
    """What an interrupted call may leave."""

    def finish(self) -> None:
        """Assigns all of it, or nothing; may be called twice."""


class PendingRebuild(Protocol):
    """What operators lack of what they remember, which is made before the next write."""

    def finish(self) -> None:
        """Makes it, or waits a while for who does, without the lock; with the lock."""

    def cancel(self) -> None:
        """Nobody waits for it any more; with the lock."""


class _Thread(threading.local):
    """What a thread does: whether it runs stages, or tells users' functions of an epoch."""

    running = False
    telling = False


class WriterLock:
    """Who may write to a session, and when.

    All but `closed` and `closing` is changed with the lock alone.

    Args:
        mode: how the session was opened: `w` or `r`.
        check: raises if this process may not write the log, or not any more; some 0.2 us.

    Attributes:
        lock: of all that is published.
        ending: of giving back what is held, which must not keep others from the gate.
        inherited: this is a forked child, and the session its parent's.
        closing: it is refused to write.
        closed: nothing is held any more.
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
        self._unready: Callable[[], None] | None = None  # what the first write has to do before
        self._rebuild: PendingRebuild | None = None  # and what may go on behind its back
        self._unfinished: RedoRecord | None = None
        _gates.add(self)

    def inherit(self) -> None:
        """Notes that this is a forked child; a lock that another thread held is never released."""
        self.inherited = True
        self.lock, self.ending = threading.RLock(), threading.RLock()

    # -- with the lock -----------------------------------------------------------------------

    def turn(self, what: str, *, rebuilt: bool = True) -> None:
        """Begins a change: finishes the one before, and refuses it if it may not be made.

        Args:
            rebuilt: it needs what operators remember, and waits for that.
        """
        self.finish()
        self.writable(what, rebuilt=rebuilt)

    def finish(self) -> None:
        """Assigns what a written frame has left to assign; before anything else."""
        if self._unfinished is not None:
            self._unfinished.finish()
            self._unfinished = None

    def give_way(self) -> bool:
        """Waits until nobody has the lock, but for `WAY_S` at most; says whether somebody had it.

        Who works beside an epoch takes the interpreter and the cache away from it, and gets on as
        little as it does; it may as well wait for its end. The main thread waits for nobody: it
        could be interrupted with the lock in hand.
        """
        if threading.current_thread() is threading.main_thread():
            return False
        free = self.lock.acquire(blocking=False)
        if free or self.lock.acquire(timeout=WAY_S):
            self.lock.release()
        return not free

    def begin(self, unfinished: RedoRecord) -> None:
        """Keeps what is to be finished, whatever comes."""
        self._unfinished = unfinished

    def run(self, run: Callable[[], Result], cleanup: Callable[..., None]) -> Result:
        """Runs stages; inside, the session refuses to be changed. Needs no lock.

        Args:
            cleanup: called when they have run, with `failed`.
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
        except BaseException:  # also one that came on the way out
            thread.running = False
            raise
        return result

    def first(self, task: Callable[[], None] | None) -> None:
        """Has something done before the first write, and nothing of what was to be done so far."""
        if self._rebuild is not None:
            self._rebuild.cancel()
        self._unready, self._rebuild = task, None

    def lack(self, rebuild: PendingRebuild | None) -> None:
        """Has something made before the first write that needs it; None: it is there."""
        self._rebuild = rebuild

    @property
    def lacking(self) -> bool:
        """Whether operators lack something of what they remember."""
        return self._rebuild is not None

    # -- by anybody --------------------------------------------------------------------------

    def writable(self, what: str, *, rebuilt: bool = True) -> None:
        """Raises if nothing may be changed here and now; sees to it that it can be; see `turn`."""
        loops.refuse_inside(what)
        if self._thread.running:
            raise StageError(
                f"{what} inside a stage's function is not possible",
                hint="a function computes from its rows alone; change inputs and commit outside",
            )
        if self._thread.telling:
            raise StageError(
                f"{what} inside a function that hears of an epoch is not possible",
                hint="keep what it hears in a list, and insert that later",
            )
        if self.closing:
            self._refuse_closed()
        if self._mode == "r":
            raise FencedError(
                f"{what}: the session is open for reading", hint='open it without mode="r"'
            )
        self._check()
        if self._unready is not None or self._rebuild is not None:
            self.ready(rebuilt=rebuilt)

    def _refuse_closed(self) -> None:
        if self.closing:
            raise DurabilityError(
                "the session is closed",
                hint="open it again: nosync.open(path), in a notebook nosync.session()",
            )

    def ready(self, *, rebuilt: bool = True) -> None:
        """Does what is to be done before the first write, once.

        While it waits for what another thread makes others have the lock, who may go back or close:
        hence it is called before anything is looked at that they change.

        Args:
            rebuilt: what operators lack is to be there too.
        """
        with self.lock:
            while True:
                self.finish()
                if self._unready is not None:
                    self._unready()
                    self._unready = None
                if not rebuilt or self._rebuild is None:
                    return
                self._rebuild.finish()
                self._refuse_closed()

    def tell(self, tell: Callable[..., None], *what: Any) -> None:
        """Calls functions of users, which must not change the session.

        Without the lock where it can be: what such a function waits for may need it.
        """
        thread, before = self._thread, self._thread.telling
        try:
            try:
                thread.telling = True
                tell(*what)
            finally:
                thread.telling = before
        except BaseException:  # also one that came on the way out
            thread.telling = before
            raise

    def settle(self, error: BaseException, outcome: DefinitionOutcome, what: str) -> None:
        """Finishes what an error has interrupted; says with it what stands all the same."""
        with self.lock:
            self.finish()
        if outcome.stands:
            error.add_note(what)

    # -- closing -----------------------------------------------------------------------------

    def close(self) -> bool:
        """Refuses to write from now on; whether there is anything left to give back.

        A forked child gives nothing back: threads, files and queries are its parent's.
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

    def end(self) -> None:
        """Notes that nothing is held any more."""
        self.closed = True


_gates: WeakSet[WriterLock] = WeakSet()


def _inherit() -> None:
    for gate in _gates:
        gate.inherit()


os.register_at_fork(after_in_child=_inherit)


class DefinitionOutcome:
    """Whether a definition stands: its frame is written, whatever was raised then."""

    stands = False

    def stand(self) -> None:
        """It stands."""
        self.stands = True
