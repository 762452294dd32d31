"""Garbage: files that nothing names any more, until they may be deleted.

A file that is retired is named by the newest checkpoint; it expires when the next one is written,
and is deleted after the one that follows, as an opening may begin at the one before the newest.

Each step adds before it takes away, so an error between any two of them loses no file: what is
noted twice is deleted a checkpoint later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from itertools import chain

EXPORTS_MAX = 64
"""DataFrames whose files are kept; older ones fail, and say so, once their files were merged."""


class FileCollector:
    """The files of a session that are on their way out.

    Threads: `export` is for any, as adding to a deque is one step; all else is done with the gate.

    Attributes:
        retired: files that are not needed since the last checkpoint.
        leaving: files that the checkpoint does not need that is being written, or that failed.
        expiring: files that were not needed any more before it.
        exports: the files that Spark DataFrames read when they are executed. Nobody tells when a
            DataFrame, or one made of it, is gone: the last ones are kept until the session ends.
        spilled: files that were written for such DataFrames alone, since the last checkpoint.
    """

    def __init__(self) -> None:
        self.retired: set[str] = set()
        self.leaving: set[str] = set()
        self.expiring: set[str] = set()
        self.exports: deque[frozenset[str]] = deque(maxlen=EXPORTS_MAX)
        self.spilled: deque[str] = deque()

    @property
    def files(self) -> set[str]:
        """All that are not to be deleted yet, but for exports."""
        return self.retired | self.leaving | self.expiring

    def retire(self, names: AbstractSet[str]) -> None:
        """Notes files that are not needed any more; may be done again."""
        self.retired |= names

    def expire(self, names: Iterable[str]) -> None:
        """Notes the files that were retired before the checkpoint that a log was opened at."""
        self.expiring = set(names)

    def export(self, names: frozenset[str], *, spilled: bool = False) -> None:
        """Notes files that a DataFrame reads, and whether they were written for it."""
        self.exports.append(names)
        if spilled:
            self.spilled.extend(names)

    def leave(self) -> set[str]:
        """The files that the checkpoint that is begun does not need; not to be changed."""
        spilled = list(self.spilled)
        self.leaving = self.leaving | self.retired | set(spilled)
        self.retired = set()
        for _ in spilled:
            self.spilled.popleft()
        return self.leaving

    def expired(self) -> set[str]:
        """Files that may be deleted, as the checkpoint is written that was begun last."""
        read = self.expiring.intersection(chain.from_iterable(list(self.exports)))
        expired, self.expiring = self.expiring, self.leaving | read
        self.leaving = set()
        return expired
