"""The messages from a keeper to the owner of its log: one line of JSON each.

Writer and reader are two processes. A line is accepted only if it parses to one of these values.
Messages are dropped if the owner does not read them any more.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import BinaryIO, Literal, NamedTuple

from nosync_nb.store.replication.agent.offloaded_merges import MergeProposal
from nosync_nb.store.replication.agent.scrub import ScrubReport

Condition = Literal["starting", "level", "failing", "fenced", "ahead"]


class ReplicaProgress(NamedTuple):
    """The state of a replica, as its keeper reports it.

    Attributes:
        replica: its index in the settings.
        condition: the keeper retries after `failing`, but not after `fenced` and `ahead`.
        seq, epoch: how far the log can be read back from this replica alone; 0: unknown.
        why: what is wrong, with the remedy and since when (local time).
        bytes_sent: bytes that this keeper has sent to it.
        offset: offset in the stream of frames, in bytes, that `backlog_bytes` refers to; -1:
            unknown.
        backlog_bytes: bytes that it misses up to there, of everything that must be shipped.
        last_bytes: bytes that it misses of local files, which ship last.
        obeys: the generation of its grant, if that is why it refuses.
        incarnation: id of its copy; empty before this keeper has reached it.
        void: True if its earlier acknowledgements are void: the copy is damaged, or has another
            history.
    """

    replica: int
    condition: Condition
    seq: int = 0
    epoch: int = 0
    why: str = ""
    bytes_sent: int = 0
    offset: int = -1
    backlog_bytes: int = 0
    last_bytes: int = 0
    obeys: int = 0
    incarnation: str = ""
    void: bool = False


Told = ReplicaProgress | ScrubReport | MergeProposal
Tell = Callable[[Told], None]


def parse_progress(line: bytes) -> Told:
    """Parses a line of a keeper.

    Raises:
        ValueError, TypeError, CorruptLogError: it is malformed.
    """
    fields = json.loads(line)
    if "merge" in fields:
        return MergeProposal.from_json(fields)
    return ReplicaProgress(**fields) if "replica" in fields else ScrubReport(**fields)


class ProgressWriter:
    """Writes messages to an owner, and drops them once the owner has ended."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._lock = threading.Lock()

    def __call__(self, message: Told) -> None:
        line = json.dumps(message._asdict()).encode() + b"\n"
        with self._lock:
            try:
                self._out.write(line)
                self._out.flush()
            except OSError:
                pass  # the owner is dead; the keeper also sees that at the end of its input
