"""Throttles the background work of views so that it does not slow down commits.

A throttle calls its function at most five times a second, however often a call is requested. It
rests between calls, so that all throttles of a budget together use at most 3 % of one processor.
So the load on a committing thread stays within this limit, even with ten open views or during a
summary of a large input. If other processes use the processor as well, the rests grow accordingly.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

REST_S = 0.2
SHARE = 0.03
IDLE = 0.125
"""A process that used less than this share of a processor was idle, and not starved."""


class ThreadBudget:
    """A share of one processor that throttles divide equally.

    Threads: any may call.

    Attributes:
        sharing: the number of throttles that share the budget.
    """

    def __init__(self, share: float = SHARE) -> None:
        self._share = share
        self._lock = threading.Lock()
        self.sharing = 0

    def join(self) -> None:
        """Adds a throttle."""
        with self._lock:
            self.sharing += 1

    def leave(self) -> None:
        """Removes a throttle."""
        with self._lock:
            self.sharing -= 1

    def rest_s(self, spent_s: float) -> float:
        """Returns the rest after `spent_s` of work that keeps a throttle within its share."""
        return max(REST_S, spent_s * self.sharing / self._share)


class Throttle:
    """Calls a function soon after a request, in a background thread; calls never overlap.

    Threads: any may request; a request costs some microseconds and never waits.

    Attributes:
        budget: the budget that it shares with other throttles.
        acted: the number of calls.
        spent_s: the processor seconds of all calls.
    """

    def __init__(self, act: Callable[[], None], budget: ThreadBudget) -> None:
        self._act = act
        self.budget = budget
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._running = False
        self._requested_again = False
        self._closed = False
        self._last_s = 0.0
        self._ended_s = self._used_s = 0.0
        self.acted = 0
        self.spent_s = 0.0
        budget.join()

    @property
    def waits(self) -> bool:
        """True if a call is pending."""
        return self._timer is not None or self._requested_again

    def ask(self, *, soon: bool = False) -> None:
        """Requests a call; all requests before the call share it.

        Args:
            soon: calls without a rest, because a user waits for the result.
        """
        with self._lock:
            if self._closed or (self._timer is not None and not soon):
                return
            if self._running:
                self._requested_again = True
            else:
                self._start(0.0 if soon else self.budget.rest_s(self._last_s))

    def close(self) -> None:
        """Prevents further calls; a running call continues."""
        with self._lock:
            if not self._closed:
                self.budget.leave()
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def run(self) -> None:
        """Calls the function now, as the timer does."""
        with self._lock:
            if self._closed or self._running:
                return
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._running, self._requested_again = None, True, False
        started = time.thread_time()
        try:
            self._act()
        finally:
            with self._lock:
                self.acted += 1
                self._running = False
                self._last_s = time.thread_time() - started
                self._ended_s, self._used_s = time.monotonic(), time.process_time()
                self.spent_s += self._last_s
                if self._requested_again and not self._closed:
                    self._start(self.budget.rest_s(self._last_s))

    def _run_when_due(self) -> None:
        """Calls the function after its rest, or extends the rest if the process was starved."""
        with self._lock:
            if self._timer is not None and (rest_s := self._additional_rest_s()) > 0:
                self._start(rest_s)
                return
        self.run()

    def _additional_rest_s(self) -> float:
        """Returns the additional rest if other processes used the processor during the rest."""
        rest_s = self.budget.rest_s(self._last_s)
        passed_s = time.monotonic() - self._ended_s
        used_s = time.process_time() - self._used_s
        if rest_s <= REST_S or used_s >= rest_s or used_s < IDLE * passed_s:
            return 0.0
        return (rest_s - used_s) * passed_s / used_s

    def _start(self, rest_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._requested_again = False
        self._timer = threading.Timer(rest_s, self._run_when_due if rest_s > 0 else self.run)
        self._timer.daemon = True
        self._timer.start()
