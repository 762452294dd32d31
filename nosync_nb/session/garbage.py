"""Garbage: files that nothing names any more, until they may be deleted.

A file that is retired is named by the newest checkpoint; it expires when the next one is written,
and is deleted after the one that follows, as an opening may begin at the one before the newest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from itertools import chain

EXPORTS_MAX = 64
"""DataFrames whose files are kept; older ones fail, and say so, once their files were merged."""


class Garbage:
    """The files of a session that are on their way out.

    Threads: `export` is for any, as adding to a deque is one step; all else is done with the gate.

    Attributes:
        retired: files that are not needed since the last checkpoint.
        expiring: files that were not needed any more before it.
        exports: the files that Spark DataFrames read when they are executed. Nobody tells when a
            DataFrame, or one made of it, is gone: the last ones are kept until the session ends.
        spilled: files that were written for such DataFrames alone, since the last checkpoint.
    """

    def __init__(self) -> None:
        self.retired: set[str] = set()
        self.expiring: set[str] = set()
        self.exports: deque[frozenset[str]] = deque(maxlen=EXPORTS_MAX)
        self.spilled: deque[str] = deque()

    @property
    def files(self) -> set[str]:
        """All that are not to be deleted yet, but for exports."""
        return self.retired | self.expiring

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

    def leaving(self) -> set[str]:
        """The files that the checkpoint that is begun does not need; they are its own now."""
        retired, self.retired = self.retired, set()
        while self.spilled:
            retired.add(self.spilled.popleft())
        return retired

    def expired(self, retired: set[str]) -> set[str]:
        """Files that may be deleted, as a checkpoint is written that does not need `retired`."""
        read = self.expiring.intersection(chain.from_iterable(list(self.exports)))
        expired, self.expiring = self.expiring, retired | read
        return expired
