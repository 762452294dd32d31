"""A replica wrapper for opening a log: every call is bounded by a timeout.

A log is opened in the thread of the user. A call that hangs there is abandoned after some seconds
(see `remote_call`), and the replica counts as one that does not answer. It is not called again,
because the abandoned thread still uses it.
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
    """A copy for reading; a call that hangs raises RemoteTimeoutError. See `ReadableCopy`.

    Attributes:
        url: the URL of the replica.
        inner: the wrapped replica, for calls that run in another thread already.
    """

    def __init__(self, url: str, inner: Replica) -> None:
        self.url, self.inner = url, inner
        self._error: NosyncError | None = None

    @property
    def folder(self) -> str | None:
        """The local folder of its files, if any."""
        return self.inner.folder

    def promised(self) -> OwnerTerm | None:
        """Returns the term that the copy accepts writes from."""
        return self._call(lambda _: self.inner.promised())

    def held(self) -> ReplicaHoldings:
        """Returns the files that the copy holds."""
        return self._call(lambda _: self.inner.held())

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Returns bytes of a file; fewer than `size` only at its end."""
        return self._call(lambda _: self.inner.read(name, offset, size))

    def acknowledged(self) -> int:
        """Returns the last acknowledged frame; 0: nothing was acknowledged."""
        return self._call(lambda _: self.inner.acknowledged())

    def examined(self, files: Files, others: Sequence[Mapping[str, int]]) -> ReadableExtent:
        """Returns how much of it can be read back; see `consistency.examine_copy`."""
        if self.folder is None:
            return examine_copy(files, self.url, self, others)

        def look(beat: Beat) -> ReadableExtent:
            return examine_copy(files, self.url, self.inner, others, beat)

        return self._call(look)._replace(replica=self)

    def leave(self, why: NosyncError) -> None:
        """Makes every later call raise this error."""
        self._error = why

    def close(self) -> None:
        """Closes the replica, unless an abandoned call still uses it."""
        if not isinstance(self._error, RemoteTimeoutError):
            self.inner.close()

    def _call(self, call: Callable[[Beat], Answer]) -> Answer:
        if self._error is not None:
            raise self._error
        try:
            return call_remote(self.url, call)
        except RemoteTimeoutError as error:
            self._error = error
            raise
