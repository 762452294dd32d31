"""Progress: what a keeper says to the owner of its log, line by line, and what it says of replicas.

Whoever says it and whoever hears it are two processes: nothing is believed of a line but that it is
one of these values. What the owner does not hear any more is dropped.
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
    """What a keeper says of a replica.

    Attributes:
        replica: its place in the settings.
        condition: `failing` is tried again, `fenced` and `ahead` are not.
        seq, epoch: how far the log can be read back from it alone; 0: nothing is known.
        why: what is wrong, in words, with the remedy and since when (local time).
        bytes_sent: what it was sent by this keeper.
        offset: up to where in the stream of frames, in bytes, it was seen what it lacks; -1 before.
        backlog_bytes: what it lacks of all that is to be shipped, up to there.
        last_bytes: what it lacks of files of rows that are owed last.
        obeys: the generation that it has promised itself to, if that is why it refuses.
        incarnation: of its copy; empty before this keeper has reached it.
        void: what it has acknowledged before counts no more: it is bad, or of another history.
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
    """What stands in a line of a keeper.

    Raises:
        ValueError, TypeError, CorruptLogError: it is none.
    """
    said = json.loads(line)
    if "merge" in said:
        return MergeProposal.of(said)
    return ReplicaProgress(**said) if "replica" in said else ScrubReport(**said)


class ProgressWriter:
    """Writes lines to an owner; what he does not hear any more is dropped."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._lock = threading.Lock()

    def __call__(self, told: Told) -> None:
        line = json.dumps(told._asdict()).encode() + b"\n"
        with self._lock:
            try:
                self._out.write(line)
                self._out.flush()
            except OSError:
                pass  # he is dead, which the end of the news tells as well
