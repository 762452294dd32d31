"""The cost of continuing from an epoch of a long log: branches, rewinds, and the disk of updates.

A branch consists of hard links and a checkpoint, and a rewind is one frame beside a branch of the
current state, so neither depends on the number of rows. The bytes are those written: times of
epochs, and rows that had not been packed. At an epoch near the last one, operator state is rebuilt
by subtracting later changes; at an older one, operators run once over their inputs, before the
first new epoch, as in the first run. Where a machine does other work too, the processor times of
threads are more reliable than the clock. Both are compared to a first run, measured beside them.
After a rewind, another thread than the committing one may rebuild missing state first, so the times
of all threads are compared there.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.report import Goals, Table, run

NEAR = 1000
"""So many epochs before now are near."""
RETAINED = 1000
UPDATE_BYTES = 24
"""Of two numbers and the signed count, of edges and of the result alike."""
RATIOS = "runs", "clock", "usual"
"""Of a first epoch: to the first run, by all threads and by the clock; to the median epoch."""
COLUMNS = (
    "epoch    ",
    "     ms",
    "thread",
    "kB written",
    "read ms",
    "count ms",
    "first epoch ms",
    "threads",
    "x first run",
    "by clock",
    "x median",
)


def branches(options: argparse.Namespace, goals: Goals) -> None:
    """Measures branches and rewinds at epochs of a log, and the disk usage of its updates."""
    epochs = options.epochs or (5_000 if options.quick else 100_000)
    edges = options.edges or (100_000 if options.quick else 10_000_000)
    base = options.logs or Path(tempfile.mkdtemp(prefix="nosync-bench-"))
    try:
        made = {kept: _made(base, edges, epochs, kept) for kept in (0, RETAINED)}
        print(f"\n{edges:,} rows, {epochs:,} epochs")
        _forks("branch", base / "all", edges, epochs, goals)
        _forks("rewind", base / "all", edges, epochs, goals)
        _disk(base, made, epochs, goals)
    finally:
        if options.logs is None:
            shutil.rmtree(base, ignore_errors=True)


def _folder(base: Path, retain: int) -> Path:
    return base / (f"retain-{retain}" if retain else "all")


def _made(base: Path, edges: int, epochs: int, retain: int) -> dict[str, Any]:
    """Returns a log with the cost of making it; makes it if it does not exist."""
    folder = _folder(base, retain)
    told = folder / "made.json"
    if told.exists():
        figures: dict[str, Any] = json.loads(told.read_text())
        if (figures["edges"], figures["epochs"]) == (edges, epochs):
            return figures
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    sizes = ("--edges", edges, "--epochs", epochs, "--retain", retain)
    return run("-m", "bench.forks", "make", folder, *sizes)


def _first_run(folder: Path, edges: int) -> dict[str, Any]:
    """Returns the current cost of the first run."""
    told = run("-m", "bench.forks", "first", folder, "--edges", edges)
    print(f"the first run takes {told['ms']:,.0f} ms now, {told['all_ms']:,.0f} ms of its threads")
    return told


def _forks(what: str, folder: Path, edges: int, epochs: int, goals: Goals) -> None:
    """Continues from some epochs, and returns the cost of each."""
    last, first = epochs + 1, _first_run(folder, edges)
    ats = [last, last - 10, last - NEAR // 2, last - NEAR + 1, last // 2, last // 5, 2]
    table = Table({"branch": "Branches", "rewind": "Rewinds"}[what], *COLUMNS)
    runs = [ats] if what == "branch" else [[at] for at in ats]
    figures: list[dict[str, Any]] = []
    for some in runs:
        if what == "rewind" and max(some) <= last - NEAR:
            first = _first_run(folder, edges)
        told = run("-m", "bench.forks", what, folder, "--at", *some)
        for each in told["found"]:
            usual = told["usual"]
            ratios = [_ratio(each["first"], first, by) for by in ("all_ms", "ms")]
            ratios.append(_ratio(each["first"], usual, "cpu_ms"))
            figures.append(
                {**each, **dict(zip(RATIOS, ratios, strict=True)), "held": told["bytes"]}
            )
            forked, counted = each["forked"], each["counted"]["ms"]
            made = (forked["ms"], forked["cpu_ms"], forked["bytes"] / 1000)
            row = (*made, each["read"]["ms"], counted, each["first"]["ms"])
            table.row(f"{each['at']:,}", *row, each["first"]["all_ms"], *ratios)
    near = [each["usual"] for each in figures if each["at"] > last - NEAR]
    name = f"{what}(), any of {epochs:,} epochs"
    worst = max(figures, key=lambda each: float(each["forked"]["ms"]))
    goals.add(f"{name}, worst ms", worst["forked"]["ms"], 50)
    waited = [each["forked"]["ms"] - each["forked"]["queued_ms"] for each in figures]
    goals.add(f"{name}, worst ms but for waits for a core", max(waited), 50)
    goals.add(f"{name}, worst ms of its thread", max(_of(figures, "forked", "cpu_ms")), 50)
    if what == "rewind":  # while what operators lack is made in the background
        goals.add(f"{name}, once more at once, worst ms", max(_of(figures, "again", "ms")), 50)
        goals.add(f"{name}, the same, its thread", max(_of(figures, "again", "cpu_ms")), 50)
    share = max(_of(figures, "forked", "bytes")) / figures[0]["held"]
    goals.add(f"{what}(): bytes written / bytes of the log", share, 0.01 if epochs > NEAR else 1)
    goals.add(f"{what}(): a stage read at once, worst ms", max(_of(figures, "read", "ms")), 50)
    for ratio, by in (("runs", "CPU of all threads"), ("clock", "by the clock")):
        most = max(float(each[ratio]) for each in figures)
        goals.add(f"first epoch after {what}() / first run beside it, {by}", most, 1.5)
    goals.add(f"the same of the newest {NEAR:,} / median epoch, CPU", max(near), 10)


def _of(figures: Sequence[Mapping[str, Any]], step: str, what: str) -> list[float]:
    return [float(each[step][what]) for each in figures]


def _ratio(one: Mapping[str, float], other: Mapping[str, float], by: str) -> float:
    return one[by] / other[by]


def _disk(base: Path, made: Mapping[int, Mapping[str, Any]], epochs: int, goals: Goals) -> None:
    """Measures the disk usage of updates with full and with limited history, and the opening."""
    columns = ("retained", "MB", "x update on disk", "open ms", "thread")
    table = Table(f"{epochs:,} epochs on disk", *columns)
    opened: dict[int, float] = {}
    for retain, limit in ((0, 4), (RETAINED, 2)):
        told = made[retain]
        each = (told["bytes"] - told["loaded_bytes"]) / told["updates"] / UPDATE_BYTES
        taken = run("-m", "bench.forks", "open", _folder(base, retain))
        opened[retain] = taken["cpu_ms"]
        kept = f"{retain:,}" if retain else "all"
        table.row(kept, told["bytes"] / 1e6, each, taken["ms"], taken["cpu_ms"])
        what = f"{retain:,} epochs retained" if retain else "all epochs kept"
        goals.add(f"disk per update / its bytes, {what}", each, limit)
    goals.add("opening after retention / with all, CPU", opened[RETAINED] / opened[0], 1)
