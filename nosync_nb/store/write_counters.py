"""Writes: the bytes that a log has written since it was opened, of what came in and once more.

What comes in is written once: frames, and the files that they name. What is merged, packed and put
into checkpoints is written again. How much more that makes is the write amplification of storage
engines, O'Neil's and Dayan's; a budget of it makes merges wait that save little yet.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from nosync_nb.trace.parts.part_file import PartRef


class WriteCounters:
    """Counts them. Threads: who commits, and the worker; under its own lock.

    Attributes:
        begun: where the stream of frames ended then.
        came: bytes of the files that came in.
        again: bytes of files and checkpoints that were written once more; not those of packs.
    """

    def __init__(self, begun: int) -> None:
        self._lock = threading.Lock()
        self.begun = begun
        self.came = self.again = 0
        self._coming: dict[str, int] = {}  # who commits, one after the other

    def add(self, refs: Iterable[PartRef]) -> None:
        """Notes files of an epoch or a definition; several things may name one."""
        self._coming.update((ref.path, ref.size_bytes) for ref in refs)

    def come(self, refs: Iterable[PartRef]) -> None:
        """Counts files, and those that were noted, each once."""
        self.add(refs)
        self.count(sum(self._coming.values()), again=False)
        self._coming = {}

    def repeat(self, refs: Iterable[PartRef]) -> None:
        """Counts files of what was there."""
        self.count(sum({ref.path: ref.size_bytes for ref in refs}.values()), again=True)

    def count(self, size_bytes: int, *, again: bool) -> None:
        """Counts bytes."""
        with self._lock:
            self.came += 0 if again else size_bytes
            self.again += size_bytes if again else 0
