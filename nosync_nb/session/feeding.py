"""Feeding: what brings rows into inputs from a thread of its own, until it is stopped.

What goes wrong there nobody would see. It is kept in mind, and told to whoever commits next in
another thread, or stops it.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from nosync_nb.errors import warn
from nosync_nb.store import waiting

if TYPE_CHECKING:
    from typing import Self

    from nosync_nb.session.blocks import Blocks
    from nosync_nb.session.gate import Gate
    from nosync_nb.session.inputs import Inputs
    from nosync_nb.session.listeners import Listeners
    from nosync_nb.session.loads import Loads
    from nosync_nb.session.publisher import Publisher


class Feeder(ABC):
    """One that feeds an input; a `with` block stops it.

    Threads: any may ask or stop. What is to be told is one list, which is replaced under a lock.
    """

    def __init__(self, listeners: Listeners) -> None:
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._mutex = threading.Lock()
        self._untold: tuple[str, ...] = ()
        self._unsubscribe = listeners.subscribe(self._committed)

    @property
    def running(self) -> bool:
        """Whether what appears is loaded."""
        return not self._ended.is_set()

    def stop(self) -> None:
        """Ends it when what it has in hand is an epoch; what was not told yet is a warning now."""
        self._ended.set()
        self._unsubscribe()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            waiting.join(thread)
        self.tell()

    def tell(self) -> None:
        """Warns of what went wrong, once."""
        with self._mutex:
            untold, self._untold = self._untold, ()
        for text in untold:
            warn(text, stacklevel=3)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self.stop()

    @abstractmethod
    def _is_own(self) -> bool:
        """Whether this thread is the one that loads."""

    def _note(self, text: str) -> None:
        with self._mutex:
            if text not in self._untold:
                self._untold = (*self._untold, text)

    def _committed(self, _epoch: int) -> None:
        """Tells whoever commits, if he can see it."""
        if self._untold and not self._is_own():
            self.tell()


One = TypeVar("One", bound=Feeder)


class Feeders(Generic[One]):
    """Those of a session that do it in one way: one of each place and input.

    Attributes:
        publisher, listeners, blocks, inputs, loads: what they need of the session.
    """

    def __init__(
        self,
        gate: Gate,
        publisher: Publisher,
        listeners: Listeners,
        blocks: Blocks,
        inputs: Inputs,
        loads: Loads,
    ) -> None:
        self.publisher, self.listeners = publisher, listeners
        self.blocks, self.inputs, self.loads = blocks, inputs, loads
        self._gate = gate
        self._lock = threading.Lock()
        self._feeders: dict[tuple[str, str], One] = {}

    @property
    def inherited(self) -> bool:
        """True in a forked child: what feeds the session is its parent's."""
        return self._gate.inherited

    @property
    def over(self) -> bool:
        """Whether the session commits nothing any more."""
        return self._gate.closing or self.publisher.fenced

    def close(self) -> None:
        """Stops all of them."""
        with self._lock:
            feeders, self._feeders = list(self._feeders.values()), {}
        for each in feeders:
            each.stop()

    def _stop(self, key: tuple[str, str]) -> None:
        """Stops the one of a place and an input, if there is one."""
        with self._lock:
            before = self._feeders.get(key)
        if before is not None:
            before.stop()

    def _keep(self, key: tuple[str, str], made: One) -> None:
        with self._lock:
            self._feeders[key] = made
