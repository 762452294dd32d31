"""What it costs to go on from an epoch of a long log: branches, rewinds, and the disk of updates.

A branch is made of hard links and a checkpoint, and a rewind is one frame beside a branch of now,
so neither knows how much is held. Bytes are those that were written: times of epochs, and what had
not been packed. Of an epoch near now what operators remember is had by what was changed since; of
an older one they are run once over their inputs, before the first epoch there, as they were at
first. Where a machine does other things too, times of the thread say more than those of the clock.
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
COLUMNS = (
    "epoch    ",
    "     ms",
    "thread",
    "kB written",
    "read ms",
    "count ms",
    "first epoch ms",
    "thread",
    "x first run",
    "x median",
)


def branches(options: argparse.Namespace, goals: Goals) -> None:
    """Measures branches and rewinds at epochs of a log, and what its updates take."""
    epochs = options.epochs or (5_000 if options.quick else 100_000)
    edges = options.edges or (100_000 if options.quick else 10_000_000)
    base = options.logs or Path(tempfile.mkdtemp(prefix="nosync-bench-"))
    try:
        made = {kept: _made(base, edges, epochs, kept) for kept in (0, RETAINED)}
        first = made[0]["first_run"]
        print(f"\n{edges:,} rows, {epochs:,} epochs; the first run took {first['ms']:,.0f} ms,")
        print(f"{first['cpu_ms']:,.0f} ms of its thread")
        _forks("branch", base / "all", epochs, first, goals)
        _forks("rewind", base / "all", epochs, first, goals)
        _disk(base, made, epochs, goals)
    finally:
        if options.logs is None:
            shutil.rmtree(base, ignore_errors=True)


def _folder(base: Path, retain: int) -> Path:
    return base / (f"retain-{retain}" if retain else "all")


def _made(base: Path, edges: int, epochs: int, retain: int) -> dict[str, Any]:
    """A log and what making it took, made now if it is not there."""
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


def _forks(what: str, folder: Path, epochs: int, first: Mapping[str, float], goals: Goals) -> None:
    """Goes on from some epochs, and tells what each took."""
    last = epochs + 1
    ats = [last, last - 10, last - NEAR // 2, last - NEAR + 1, last // 2, last // 5, 2]
    table = Table({"branch": "Branches", "rewind": "Rewinds"}[what], *COLUMNS)
    runs = [ats] if what == "branch" else [[at] for at in ats]
    figures: list[dict[str, Any]] = []
    for some in runs:
        told = run("-m", "bench.forks", what, folder, "--at", *some)
        for each in told["found"]:
            usual = told["usual"]
            ratios = _ratio(each["first"], first), _ratio(each["first"], usual)
            figures.append({**each, "runs": ratios[0], "usual": ratios[1], "held": told["bytes"]})
            forked, counted = each["forked"], each["counted"]["ms"]
            made = (forked["ms"], forked["cpu_ms"], forked["bytes"] / 1000)
            row = (*made, each["read"]["ms"], counted, each["first"]["ms"])
            table.row(f"{each['at']:,}", *row, each["first"]["cpu_ms"], *ratios)
    near = [each["usual"] for each in figures if each["at"] > last - NEAR]
    name = f"{what}(), any of {epochs:,} epochs"
    worst = max(figures, key=lambda each: float(each["forked"]["ms"]))
    goals.add(f"{name}, worst ms", worst["forked"]["ms"], 50)
    goals.add(f"{name}, worst ms of its thread", max(_of(figures, "forked", "cpu_ms")), 50)
    share = max(_of(figures, "forked", "bytes")) / figures[0]["held"]
    goals.add(f"{what}(): bytes written / bytes of the log", share, 0.01 if epochs > NEAR else 1)
    goals.add(f"{what}(): a stage read at once, worst ms", max(_of(figures, "read", "ms")), 50)
    runs_worst = max(each["runs"] for each in figures)
    goals.add(f"first epoch after {what}() / first run, CPU", runs_worst, 1.5)
    goals.add(f"the same of the newest {NEAR:,} / median epoch, CPU", max(near), 10)


def _of(figures: Sequence[Mapping[str, Any]], step: str, what: str) -> list[float]:
    return [float(each[step][what]) for each in figures]


def _ratio(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Of the times of two threads: other programs do not take part in it."""
    return one["cpu_ms"] / other["cpu_ms"]


def _disk(base: Path, made: Mapping[int, Mapping[str, Any]], epochs: int, goals: Goals) -> None:
    """What updates take on disk, with all of the past and with some, and opening then."""
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
