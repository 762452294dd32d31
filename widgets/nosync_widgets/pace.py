"""Pace: how often a view does its work in the background, so that commits do not feel it.

However often it is asked, it acts at most five times a second, and rests as long as it takes for
its work to be a fiftieth of the time of one processor.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

REST_S = 0.2
SHARE = 0.02
FIRST_REST_S = 2.0


class Pace:
    """Has one function called soon after it is asked for, in a thread, never twice at once.

    Threads: any may ask; asking costs some microseconds and waits for nobody.

    Attributes:
        acted: how often the function was called.
    """

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._running = False
        self._again = False
        self._closed = False
        self._rest_s = REST_S
        self.acted = 0

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
                self._start(0.0 if soon else self._rest_s)

    def close(self) -> None:
        """Has it called no more; one that is under way goes on."""
        with self._lock:
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
                rest_s = max(REST_S, (time.thread_time() - started) / SHARE)
                # The first time of all it loads what it needs, which says little of the next.
                self._rest_s = rest_s if self.acted > 1 else min(rest_s, FIRST_REST_S)
                if self._again and not self._closed:
                    self._start(self._rest_s)

    def _start(self, rest_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._again = False
        self._timer = threading.Timer(rest_s, self.run)
        self._timer.daemon = True
        self._timer.start()
