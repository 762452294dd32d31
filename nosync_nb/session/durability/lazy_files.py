"""Fetches files of a session's log from its replicas when they are read.

After a lost disk a log is opened with its frames only. A reader of rows that are not local waits
for their files (store/replication/restore/lazy_fetch.py); the other files are fetched in the
background.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nosync_nb.files.filesystem import Files
from nosync_nb.session.durability.replication import ReplicationService
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
    """Files that the log references and that are not local.

    Attributes:
        missing: the files that no replica has.
        said: the message about those that replicas have.
    """

    missing: frozenset[str]
    said: str = ""


class LazyFiles:
    """The files of one session that are not local."""

    def __init__(self, store: Store, replication: ReplicationService) -> None:
        self._store, self._replication = store, replication
        self._fetcher: LazyFetcher | None = None
        if isinstance(store.files, FetchingFiles):
            self._fetcher = LazyFetcher(Files(), store.path, store.log.id, self._replicas)
            store.files.ask(self._fetcher)
            for path in incomplete_restore(store.files, store.path):
                store.files.unlink(path)

    def _replicas(self) -> Sequence[ReplicaAddress]:
        return self._replication.settings.replicas

    def expect(self, names: Sequence[str]) -> MissingFiles:
        """Registers referenced files that the folder lacks; returns those that no replica has.

        To be called while the store still has the records that it has read.
        """
        if not names or self._fetcher is None or not self._replicas():
            return MissingFiles(frozenset(names))
        named = file_references.named_files(self._store.meta, self._store.changes)
        references = file_references.references(named)
        missing = self._fetcher.expect(references.get(name, FileReference(name)) for name in names)
        files, size, _ = self.left
        if not files:
            return MissingFiles(missing)
        return MissingFiles(
            missing,
            f"{files} file{'s' if files != 1 else ''} of rows ({size / _MB:.1f} MB) are not yet"
            " on this machine: each is fetched when it is first read, the others in the"
            " background",
        )

    @property
    def left(self) -> MissingSummary:
        """The files that are not local yet; until it is empty the folder alone is no full copy."""
        return MissingSummary(0, 0, "") if self._fetcher is None else self._fetcher.left

    @property
    def requests(self) -> tuple[int, int]:
        """The number of files, and of bytes, that replicas have sent."""
        return (
            (0, 0)
            if self._fetcher is None
            else (self._fetcher.files_read, self._fetcher.bytes_read)
        )

    def complete(self) -> None:
        """Fetches all files; see `LazyFetcher.fetch`."""
        if self._fetcher is not None:
            self._fetcher.complete()

    def start(self) -> None:
        """Starts to fetch the files in the background."""
        if self._fetcher is not None:
            self._fetcher.start()

    def close(self) -> None:
        """Stops fetching; the next opening continues."""
        if self._fetcher is not None:
            self._fetcher.close()
