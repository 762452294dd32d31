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
from nosync_nb.store.records.file_references import FileReference
from nosync_nb.store.replication.address import ReplicaAddress
from nosync_nb.store.replication.restore.lazy_fetch import (
    FetchingFiles,
    LazyFetcher,
    MissingSummary,
    incomplete_restore,
)
from nosync_nb.store.store import Store

_MB = 1e6


class MissingFiles(NamedTuple):
    """Files that the log names and that are not here.

    Attributes:
        missing: those that nobody has.
        said: what people are told of those that replicas have.
    """

    missing: frozenset[str]
    said: str = ""


class LazyFiles:
    """The files of one session that are not here.

    Args:
        replicas: those that the log has now.
    """

    def __init__(self, store: Store, replicas: Callable[[], Sequence[ReplicaAddress]]) -> None:
        self._store, self._replicas = store, replicas
        self._fetcher: LazyFetcher | None = None
        if isinstance(store.files, FetchingFiles):
            self._fetcher = LazyFetcher(Files(), store.path, store.log.id, replicas)
            store.files.ask(self._fetcher)
            for path in incomplete_restore(store.files, store.path):
                store.files.unlink(path)

    def expect(self, names: Sequence[str]) -> MissingFiles:
        """Takes the files that the log names and its folder lacks.

        To be called while the store has what it read.
        """
        if not names or self._fetcher is None or not self._replicas():
            return MissingFiles(frozenset(names))
        known = file_references.file_references(self._store.meta, [self._store.changes])
        missing = self._fetcher.expect(known.get(name, FileReference(name)) for name in names)
        files, size, _ = self.left
        if not files:
            return MissingFiles(missing)
        return MissingFiles(
            missing,
            f"{files} file{'s' if files != 1 else ''} of rows ({size / _MB:.1f} MB) are still with"
            " the replicas: each is brought when it is first read, the rest meanwhile",
        )

    @property
    def left(self) -> MissingSummary:
        """What is not here yet; while there is some, the folder alone is no full copy."""
        return MissingSummary(0, 0, "") if self._fetcher is None else self._fetcher.left

    @property
    def requests(self) -> tuple[int, int]:
        """How many files replicas gave, and how many bytes."""
        return (
            (0, 0)
            if self._fetcher is None
            else (self._fetcher.files_read, self._fetcher.bytes_read)
        )

    def complete(self) -> None:
        """Has all here; see `LazyFetcher.fetch`."""
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
