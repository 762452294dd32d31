"""Patience: a replica as who opens a log reads it: each call is made elsewhere, and given up.

Whoever opens a log waits in the thread of the user, with nothing of it open yet. What hangs there
is left after some seconds (asking.py), and counts as a replica that does not answer: it is called
no more, as the thread that was left has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from nosync_nb.errors import NosyncError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.replication.consistency import ReadableExtent, examine_copy
from nosync_nb.store.replication.protocol import OwnerTerm, Replica, ReplicaHoldings
from nosync_nb.store.replication.remote_call import Beat, RemoteTimeoutError, call_remote

Answer = TypeVar("Answer")


class BoundedReplica:
    """A copy that is read; each call raises SilentError if it does not end. See `ReadableCopy`.

    Attributes:
        url: what it is asked by.
        inner: the replica itself, for calls that are made elsewhere already.
    """

    def __init__(self, url: str, inner: Replica) -> None:
        self.url, self.inner = url, inner
        self._left: NosyncError | None = None

    @property
    def folder(self) -> str | None:
        """Where its files lie on this machine."""
        return self.inner.folder

    def promised(self) -> OwnerTerm | None:
        """The term it has promised itself to."""
        return self._asked(lambda _: self.inner.promised())

    def held(self) -> ReplicaHoldings:
        """What it holds."""
        return self._asked(lambda _: self.inner.held())

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Some bytes of a file; fewer only at its end."""
        return self._asked(lambda _: self.inner.read(name, offset, size))

    def acknowledged(self) -> int:
        """The frame up to which it can be read for sure; 0 if it has acknowledged none."""
        return self._asked(lambda _: self.inner.acknowledged())

    def examined(self, files: Files, others: Sequence[Mapping[str, int]]) -> ReadableExtent:
        """What can be read back of it; see `examining.examined`."""
        if self.folder is None:
            return examine_copy(files, self.url, self, others)

        def look(beat: Beat) -> ReadableExtent:
            return examine_copy(files, self.url, self.inner, others, beat)

        return self._asked(look)._replace(replica=self)

    def leave(self, why: NosyncError) -> None:
        """Calls it no more."""
        self._left = why

    def close(self) -> None:
        """Gives back what it holds open, unless somebody who was left has it."""
        if not isinstance(self._left, RemoteTimeoutError):
            self.inner.close()

    def _asked(self, call: Callable[[Beat], Answer]) -> Answer:
        if self._left is not None:
            raise self._left
        try:
            return call_remote(self.url, call)
        except RemoteTimeoutError as error:
            self._left = error
            raise
