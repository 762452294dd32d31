"""Counts the bytes that a log has written since it was opened: new data and rewritten data.

New data is written once: frames, and the files that they name. Merges, packs and checkpoints write
data again. The ratio is the write amplification of storage engines, O'Neil's and Dayan's. With a
budget for it, merges that would save little wait.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from nosync_nb.trace.parts.part_file import PartRef


class WriteCounters:
    """Counts written bytes. Threads: the writer and the worker, under its own lock.

    Attributes:
        begun: the end of the stream of frames at the opening.
        came: bytes of the files with new data.
        again: bytes of files and checkpoints that were rewritten, without packs.
    """

    def __init__(self, begun: int) -> None:
        self._lock = threading.Lock()
        self.begun = begun
        self.came = self.again = 0
        self._noted: dict[str, int] = {}  # the writer alone, under its lock

    def add(self, refs: Iterable[PartRef]) -> None:
        """Notes files of an epoch or a definition; several entries may name the same file."""
        self._noted.update((ref.path, ref.size_bytes) for ref in refs)

    def come(self, refs: Iterable[PartRef]) -> None:
        """Counts these files and the noted ones, each once."""
        self.add(refs)
        self.count(sum(self._noted.values()), again=False)
        self._noted = {}

    def repeat(self, refs: Iterable[PartRef]) -> None:
        """Counts files of rewritten data."""
        self.count(sum({ref.path: ref.size_bytes for ref in refs}.values()), again=True)

    def count(self, size_bytes: int, *, again: bool) -> None:
        """Adds bytes to the counter of new or of rewritten data."""
        with self._lock:
            self.came += 0 if again else size_bytes
            self.again += size_bytes if again else 0
