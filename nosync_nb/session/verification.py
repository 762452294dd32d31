"""Verification: every byte of a session's log, read while the session goes on.

Nothing is locked: what is verified is what the folder says, as another process would see it. Who
commits meanwhile is given the interpreter back after each piece.

Short, and on its own: it is where a session meets what reads folders.
"""

from __future__ import annotations

from nosync_nb.session.publisher import Publisher
from nosync_nb.store.verification.findings import Verified
from nosync_nb.store.verification.verifying import verify
from nosync_nb.trace.past.packing import Rest


class Verification:
    """Verifies the log of one session."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    def verify(self) -> Verified:
        """What of the log is not what was written; see `Session.verify`."""
        store = self._publisher.store
        return verify(store.path, files=store.files, pause=Rest())
