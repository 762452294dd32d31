"""Measures the disk usage of a log by purpose, and of a stage by its layers.

File sizes are read on request; nothing is counted in advance. A file that a branch shares with its
parent has several names. It is counted once, for the parent.
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
from nosync_nb.trace import Trace, plan_merges

BRANCHES = "branches"
"""The folder with the logs of branches."""

HASH_BYTES = 8
"""Bytes of the hash of a row in memory. The count of the row takes the same number of bytes."""

DEEP = 64
"""The depth to which folders are searched, because branches may have branches."""


class DiskUsage(NamedTuple):
    """Bytes by purpose.

    Attributes:
        live: files of the current state.
        history: files of the history only.
        log: frames, checkpoints, and the ownership files.
        branches: files that only branches have.
        garbage: unused files that are not deleted yet.
        files: the number of files.
    """

    live: int = 0
    history: int = 0
    log: int = 0
    branches: int = 0
    garbage: int = 0
    files: int = 0

    @property
    def total(self) -> int:
        """The bytes for all purposes."""
        return self.own + self.branches + self.garbage

    @property
    def own(self) -> int:
        """The bytes that the log itself needs: a budget bounds these."""
        return self.live + self.history + self.log


def measure_disk_usage(publisher: Publisher) -> DiskUsage:
    """Returns the current disk usage of a log.

    Cost: a few us for each file.
    """
    store = publisher.store
    live, past = files_of(publisher.snapshot.version), store.history.files()
    sizes = dict.fromkeys(DiskUsage._fields, 0)
    counted: set[tuple[int, int]] = set()
    for path, status in _files_below(store.files, store.path, 1):
        inner, name = os.path.relpath(path, store.path).split(os.sep)[0], os.path.basename(path)
        if (status.st_dev, status.st_ino) in counted:
            continue
        counted.add((status.st_dev, status.st_ino))
        purpose = "log"
        if inner == BRANCHES:
            purpose = "branches"
        elif inner in ("layers", "history"):
            purpose = "live" if name in live else "history" if name in past else "garbage"
        sizes[purpose] += status.st_size
        sizes["files"] += 1
    return DiskUsage(**sizes)


def minimum_bytes(publisher: Publisher) -> int:
    """Returns the bytes of a log without history: the current state, and its tail."""
    taken = measure_disk_usage(publisher)
    return taken.live + taken.log


def over_budget(publisher: Publisher) -> bool:
    """Returns True if the log takes more bytes than its budget."""
    budget = publisher.retention.budget
    return budget is not None and measure_disk_usage(publisher).own > budget


def _files_below(files: Files, folder: str, depth: int) -> Iterator[tuple[str, os.stat_result]]:
    """Yields every file below a folder, branches last; ignores concurrent deletions."""
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
            yield from _files_below(files, path, depth + 1)


def merge_gain(trace: Trace | None) -> float:
    """Returns the number of layers that the next merge of a trace saves per byte that it writes."""
    planned = None if trace is None else plan_merges(trace)
    if trace is None or planned is None:
        return 0.0
    inputs = trace.layers[planned.start : planned.stop]
    rows_count = sum(layer.rows_count for layer in inputs)
    return (len(inputs) - 1) / max(1, rows_count * _width(trace))


def _width(trace: Trace) -> int:
    return row_bytes(trace.layout.types) + 2 * HASH_BYTES


def stage_layers(snapshot: Snapshot, name: str, disk: int) -> list[dict[str, Any]]:
    """Returns the layers of a stage, oldest first, without sorting or merging them.

    Each layer is a dict with its half-open interval of epochs, its rows, its bytes (exact in files,
    estimated in memory), its storage, its level, and True if it is being merged.

    Args:
        disk: the last durable epoch.
    """
    stage, trace = snapshot.stage(name), snapshot.contents(name)
    result = []
    for layer in trace.layers:
        where = ["memory"] if not layer.files else []
        durable = layer.files or layer.upper - 1 <= disk or stage.begin > layer.lower
        if durable and not stage.in_memory:
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
