"""Fetching: the files of a session's log that lie with its replicas, and are brought when needed.

After a lost disk a log is opened with its frames alone. Whoever reads rows that are not here waits
for the files that hold them (store/replication/restore/lazy_fetch.py), and the rest comes
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from nosync_nb.files.filesystem import Files
from nosync_nb.store.records import file_references
from nosync_nb.store.records.file_references import Wanted
from nosync_nb.store.replication.address import Address
from nosync_nb.store.replication.restore.lazy_fetch import Elsewhere, Fetcher, Left, unfinished
from nosync_nb.store.store import Store

_MB = 1e6


class Lacking(NamedTuple):
    """Files that the log names and that are not here.

    Attributes:
        missing: those that nobody has.
        said: what people are told of those that replicas have.
    """

    missing: frozenset[str]
    said: str = ""


class Fetching:
    """The files of one session that are not here.

    Args:
        replicas: those that the log has now.
    """

    def __init__(self, store: Store, replicas: Callable[[], Sequence[Address]]) -> None:
        self._store, self._replicas = store, replicas
        self._fetcher: Fetcher | None = None
        if isinstance(store.files, Elsewhere):
            self._fetcher = Fetcher(Files(), store.path, store.log.id, replicas)
            store.files.ask(self._fetcher)
            for path in unfinished(store.files, store.path):
                store.files.unlink(path)

    def expect(self, names: Sequence[str]) -> Lacking:
        """Takes the files that the log names and its folder lacks.

        To be called while the store has what it read.
        """
        if not names or self._fetcher is None or not self._replicas():
            return Lacking(frozenset(names))
        known = file_references.wanted(self._store.meta, [self._store.changes])
        missing = self._fetcher.expect(known.get(name, Wanted(name)) for name in names)
        files, size, _ = self.left
        if not files:
            return Lacking(missing)
        return Lacking(
            missing,
            f"{files} file{'s' if files != 1 else ''} of rows ({size / _MB:.1f} MB) are still with"
            " the replicas: each is brought when it is first read, the rest meanwhile",
        )

    @property
    def left(self) -> Left:
        """What is not here yet; while there is some, the folder alone is no full copy."""
        return Left(0, 0, "") if self._fetcher is None else self._fetcher.left

    @property
    def requests(self) -> tuple[int, int]:
        """How many files replicas gave, and how many bytes."""
        return (
            (0, 0)
            if self._fetcher is None
            else (self._fetcher.files_read, self._fetcher.bytes_read)
        )

    def complete(self) -> None:
        """Has all here; see `Fetcher.fetch`."""
        if self._fetcher is not None:
            self._fetcher.complete()

    def start(self) -> None:
        """Begins to bring what nobody has read yet."""
        if self._fetcher is not None:
            self._fetcher.start()

    def close(self) -> None:
        """Ends it; the next opening goes on."""
        if self._fetcher is not None:
            self._fetcher.close()
