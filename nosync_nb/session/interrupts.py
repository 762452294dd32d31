"""Interrupts are deferred from the first byte of an epoch's frame to its publication."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import threading
from types import FrameType, TracebackType
from typing import Any

# NOTE: the C module, as `signal` turns every number into an enum and back, 20 us an epoch.
_SIGINT = int(_signal.SIGINT)
_MAIN = threading.main_thread()


class deferred:  # noqa: N801 - used as a function
    """A context in which Ctrl-C waits until the block is done; only the main thread gets any."""

    __slots__ = ("_came", "_old")

    def __enter__(self) -> None:
        self._old: Any = None
        self._came: FrameType | bool | None = None
        if threading.get_ident() == _MAIN.ident:
            old = _signal.getsignal(_SIGINT)
            if callable(old):
                self._old = old
                _signal.signal(_SIGINT, self._note)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._old is not None:
            _signal.signal(_SIGINT, self._old)
            if self._came is not None and kind is None:
                self._old(_SIGINT, self._came)

    def _note(self, _: int, frame: FrameType | None) -> None:
        self._came = frame if frame is not None else True
