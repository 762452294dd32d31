"""The messages from a keeper to the owner of its log: one line of JSON each.

Writer and reader are two processes. A line is accepted only if it parses to one of the message
types. Messages are dropped if the owner does not read them any more.
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
        replica: the index of the replica in the settings.
        condition: the state of shipping. The keeper retries after `failing`, but not after `fenced`
            or `ahead`.
        seq, epoch: the last frame and epoch up to which the log can be read back from this replica
            alone; 0 if unknown.
        why: the error with its hint; for `failing` also the local time of the first failure.
        bytes_sent: the number of bytes that this keeper has sent to the replica.
        offset: the offset in the stream of frames, in bytes, to which `backlog_bytes` refers; -1 if
            unknown.
        backlog_bytes: the number of bytes that the replica lacks up to `offset`, without local
            files.
        last_bytes: the number of bytes that the replica lacks of local files, which ship last.
        obeys: the generation of the replica's grant, if the grant excludes this owner; else 0.
        incarnation: the id of the replica's copy; empty before this keeper has reached it.
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
    """Parses one line of a keeper's output.

    Raises:
        ValueError, TypeError, CorruptLogError: the line is malformed.
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
