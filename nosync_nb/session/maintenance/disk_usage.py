"""Footprint: what a log takes on its disk, by what it is for, and a stage by its layers.

Files are asked for their sizes when somebody wants to know; nothing is counted on the way. One that
has several names, as a branch and its parent share it, counts where it is live first.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Any, NamedTuple

from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.errors import DurabilityError
from nosync_nb.files.filesystem import Files
from nosync_nb.rows.types import row_bytes
from nosync_nb.session.state.publisher import Publisher, files_of
from nosync_nb.store.retention_policy import DiskBudget
from nosync_nb.trace import Trace, plan_merges
from nosync_nb.trace.history.pack_plans import Less

BRANCHES = "branches"
"""The folder in which the logs of branches lie."""

HASH_BYTES = 8
"""What each row in memory has beside its values: a hash, and a count."""

_OWN = frozenset(("live", "history", "log"))

DEEP = 64
"""How far below it files are looked for: branches have branches."""


class DiskUsage(NamedTuple):
    """Bytes by purpose.

    Attributes:
        live: of files that the state of now is read from.
        history: of those that only the past is read from.
        log: of frames, checkpoints, and who owns them.
        branches: of files that branches have, and this log has not.
        garbage: of files that nobody needs any more, until they are deleted.
        files: how many there are.
        needed: how many of them the log itself needs.
    """

    live: int = 0
    history: int = 0
    log: int = 0
    branches: int = 0
    garbage: int = 0
    files: int = 0
    needed: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.own + self.branches + self.garbage

    @property
    def own(self) -> int:
        """Those that the log itself needs: what a budget bounds."""
        return self.live + self.history + self.log


def measure_disk_usage(publisher: Publisher) -> DiskUsage:
    """What a log takes now. Cost: some us a file."""
    store = publisher.store
    live, past = files_of(publisher.snapshot.version), store.history.files()
    sizes = dict.fromkeys(DiskUsage._fields, 0)
    seen: set[tuple[int, int]] = set()
    for path, status in _below(store.files, store.path, 1):
        inner, name = os.path.relpath(path, store.path).split(os.sep)[0], os.path.basename(path)
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        purpose = "log"
        if inner == BRANCHES:
            purpose = "branches"
        elif inner in ("layers", "history"):
            purpose = "live" if name in live else "history" if name in past else "garbage"
        sizes[purpose] += status.st_size
        sizes["files"] += 1
        sizes["needed"] += purpose in _OWN
    return DiskUsage(**sizes)


def minimum_bytes(publisher: Publisher) -> DiskBudget:
    """What a log needs though its past were gone: the state of now, and its tail."""
    past, taken = publisher.store.history.files(), measure_disk_usage(publisher)
    old = len(past - files_of(publisher.snapshot.version))
    return DiskBudget(taken.live + taken.log, taken.needed - old)


def over_budget(publisher: Publisher) -> tuple[Less, ...]:
    """Of what a log needs more than it may: bytes, files, or both."""
    said = publisher.retention
    if not said.bounded:
        return ()
    taken = measure_disk_usage(publisher)
    sizes: dict[Less, tuple[int, int | None]] = {
        "bytes": (taken.own, said.budget),
        "files": (taken.needed, said.files),
    }
    return tuple(what for what, (size, most) in sizes.items() if most is not None and size > most)


class Amplification(NamedTuple):
    """The bytes that a log has written since it was opened: what came in, and what once more."""

    came: int
    again: int

    @property
    def times(self) -> float:
        """The write amplification: how often what came in was written."""
        return (self.came + self.again) / max(1, self.came)


def write_amplification(publisher: Publisher) -> Amplification:
    """What a log has written since it was opened."""
    store = publisher.store
    writes, past = store.writes, store.history.written
    return Amplification(writes.came + store.log.head.offset - writes.begun, writes.again + past)


def should_defer_rewrites(publisher: Publisher) -> bool:
    """Whether what can wait is not to be written again, as more was than may be."""
    most = publisher.retention.writes
    return most is not None and write_amplification(publisher).times > most


def _below(files: Files, folder: str, depth: int) -> Iterator[tuple[str, os.stat_result]]:
    """Every file below a folder, those of its branches last; what is deleted meanwhile is not."""
    try:
        names = files.names(folder)
    except DurabilityError:
        return
    for name in sorted(names, key=lambda each: each == BRANCHES):
        path = os.path.join(folder, name)
        try:
            status = files.status(path)
        except DurabilityError:
            continue
        if not stat.S_ISDIR(status.st_mode):
            yield path, status
        elif depth < DEEP:
            yield from _below(files, path, depth + 1)


def merge_gain(trace: Trace | None) -> float:
    """The layers that the next merge of a trace saves, for each byte that it writes."""
    planned = None if trace is None else plan_merges(trace)
    if trace is None or planned is None:
        return 0.0
    inputs = trace.layers[planned.start : planned.stop]
    rows_count = sum(layer.rows_count for layer in inputs)
    return (len(inputs) - 1) / max(1, rows_count * _width(trace))


def _width(trace: Trace) -> int:
    return row_bytes(trace.layout.types) + 2 * HASH_BYTES


def stage_layers(snapshot: Snapshot, name: str, disk: int) -> list[dict[str, Any]]:
    """The layers of a stage, oldest first; nothing is put in order to tell it.

    Of each its interval (half open), rows, bytes, in files or about so many in memory, where it is
    kept, its level, and whether it is being merged.

    Args:
        disk: the last epoch that is there.
    """
    stage, trace = snapshot.stage(name), snapshot.contents(name)
    result = []
    for layer in trace.layers:
        where = ["memory"] if not layer.files else []
        there = layer.files or layer.upper - 1 <= disk or stage.begin > layer.lower
        if there and not stage.in_memory:
            where.append("disk")
        size = sum(ref.size_bytes for ref in layer.files) or layer.rows_count * _width(trace)
        result.append(
            {
                "lower": layer.lower,
                "upper": layer.upper,
                "rows": layer.rows_count,
                "bytes": int(size),
                "persistence": "+".join(where),
                "level": layer.level,
                "merging": layer.claimed,
            }
        )
    return result
