"""Collects the files that are no longer referenced, until they may be deleted.

A retired file is still named by the newest checkpoint. It expires when the next checkpoint is
written. It is deleted after the checkpoint that follows, because recovery may start at the one
before the newest.

Each step adds a file to its new set before it removes the file from the old one. So an error
between two steps loses no file: a file in both sets is deleted one checkpoint later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from itertools import chain

EXPORTS_MAX = 64
"""DataFrames whose files are retained. An older one fails once its files were merged."""


class FileCollector:
    """The files of a session that are waiting to be deleted.

    Threads: any thread may call `export`, because appending to a deque is atomic. All else needs
    the writer lock.

    Attributes:
        retired: files that are unreferenced since the last checkpoint.
        leaving: files that the checkpoint that is being written, or that failed, does not need.
        expiring: files that were unreferenced before that checkpoint.
        exports: the files that Spark DataFrames read when they are executed. Spark does not report
            when a DataFrame, or one derived from it, is dropped. So the files of the last ones are
            retained until the session ends.
        spilled: files written for such DataFrames alone, since the last checkpoint.
    """

    def __init__(self) -> None:
        self.retired: set[str] = set()
        self.leaving: set[str] = set()
        self.expiring: set[str] = set()
        self.exports: deque[frozenset[str]] = deque(maxlen=EXPORTS_MAX)
        self.spilled: deque[str] = deque()

    @property
    def files(self) -> set[str]:
        """The files that must not be deleted yet, except those of exports."""
        return self.retired | self.leaving | self.expiring

    def retire(self, names: AbstractSet[str]) -> None:
        """Adds files that are no longer needed; may be repeated."""
        self.retired |= names

    def expire(self, names: Iterable[str]) -> None:
        """Sets the files that were retired before the checkpoint that recovery started at."""
        self.expiring = set(names)

    def export(self, names: frozenset[str], *, spilled: bool = False) -> None:
        """Records the files that a DataFrame reads.

        Args:
            spilled: True if they were written for this DataFrame.
        """
        self.exports.append(names)
        if spilled:
            self.spilled.extend(names)

    def leave(self) -> set[str]:
        """Returns the files that the checkpoint that starts now does not need.

        The caller must not change the set.
        """
        spilled = list(self.spilled)
        self.leaving = self.leaving | self.retired | set(spilled)
        self.retired = set()
        for _ in spilled:
            self.spilled.popleft()
        return self.leaving

    def expired(self) -> set[str]:
        """Returns the files that may be deleted, because the last checkpoint is written."""
        read = self.expiring.intersection(chain.from_iterable(list(self.exports)))
        expired, self.expiring = self.expiring, self.leaving | read
        self.leaving = set()
        return expired
