"""Pace: how often views do their work in the background, so that commits do not feel it.

However often it is asked, each acts at most five times a second, and rests as long as it takes for
all that share a budget to take 3 % of the time of one processor together: an open view costs who
commits no more with ten others open, nor while a summary of a large input is made. On a machine
that does other work the kernel has less of a processor, and the rests are longer by as much.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

REST_S = 0.2
SHARE = 0.03
IDLE = 0.125
"""A process that has used less of a processor since then has not waited for one, but for cells."""


class ThreadBudget:
    """The time of one processor that paces share, in equal parts. Threads: any may call.

    Attributes:
        sharing: how many paces there are.
    """

    def __init__(self, share: float = SHARE) -> None:
        self._share = share
        self._lock = threading.Lock()
        self.sharing = 0

    def join(self) -> None:
        """One more shares it."""
        with self._lock:
            self.sharing += 1

    def leave(self) -> None:
        """One less."""
        with self._lock:
            self.sharing -= 1

    def rest_s(self, spent_s: float) -> float:
        """How long one who has spent some seconds rests to stay within its part."""
        return max(REST_S, spent_s * self.sharing / self._share)


class Throttle:
    """Has one function called soon after it is asked for, in a thread, never twice at once.

    Threads: any may ask; asking costs some microseconds and waits for nobody.

    Attributes:
        budget: the time that it shares with others.
        acted: how often the function was called.
        spent_s: the seconds of a processor that it took, in all.
    """

    def __init__(self, act: Callable[[], None], budget: ThreadBudget) -> None:
        self._act = act
        self.budget = budget
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._running = False
        self._again = False
        self._closed = False
        self._last_s = 0.0
        self._ended_s = self._used_s = 0.0
        self.acted = 0
        self.spent_s = 0.0
        budget.join()

    @property
    def waits(self) -> bool:
        """Whether the function is to be called."""
        return self._timer is not None or self._again

    def ask(self, *, soon: bool = False) -> None:
        """Has the function called, once for all who ask until then.

        Args:
            soon: without a rest, as somebody waits for it.
        """
        with self._lock:
            if self._closed or (self._timer is not None and not soon):
                return
            if self._running:
                self._again = True
            else:
                self._start(0.0 if soon else self.budget.rest_s(self._last_s))

    def close(self) -> None:
        """Has it called no more; one that is under way goes on."""
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
            self._timer, self._running, self._again = None, True, False
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
                if self._again and not self._closed:
                    self._start(self.budget.rest_s(self._last_s))

    def _due(self) -> None:
        """Calls the function after its rest, unless the process had less than that to work in."""
        with self._lock:
            if self._timer is not None and (rest_s := self._owed_s()) > 0:
                self._start(rest_s)
                return
        self.run()

    def _owed_s(self) -> float:
        """How much longer it rests, as others had the processor in the meantime."""
        rest_s = self.budget.rest_s(self._last_s)
        passed_s = time.monotonic() - self._ended_s
        used_s = time.process_time() - self._used_s
        if rest_s <= REST_S or used_s >= rest_s or used_s < IDLE * passed_s:
            return 0.0
        return (rest_s - used_s) * passed_s / used_s

    def _start(self, rest_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._again = False
        self._timer = threading.Timer(rest_s, self._due if rest_s > 0 else self.run)
        self._timer.daemon = True
        self._timer.start()
