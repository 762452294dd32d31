"""The cost of replicas for an epoch: R1 with them and with the disk alone, in turn.

One comparison is a write-first policy: all replicas have the result of a stage before the next
stage runs (`bench.r1 --write-first STAGES`). It takes the path of every epoch (log, keeper,
replicas), and waits once for each stage; the frame of each stage is an epoch of its own.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench.replicas.servers import places
from bench.report import Goals, Table, percentiles, run

PAIRS = 7
COUNT = 3
LATE_S = 0.05
TROUBLES = ("", "one 50 ms late", "one stopped")
STAGES = (1, 2, 4)
"""Stages in a row, for each of which a policy that writes first waits."""


class Found(NamedTuple):
    """The epochs of a run in ms, and the CPU ms of other processes for each."""

    epochs: dict[str, float]
    keeper: float
    servers: float


def pairs(options: argparse.Namespace, goals: Goals) -> None:
    """Measures epochs with and without replicas in turn, and those of the write-first policy."""
    count = options.pairs or (3 if options.quick else PAIRS)
    columns = (
        "R1 with 3 replicas, 2 of them safe       ",
        "disk alone, p50 ms",
        "replicas, p50 ms",
        "p99",
        "max",
        "x disk",
        "keeper, CPU ms per epoch",
        "servers",
    )
    table = Table(f"Replicas: {options.kind}s, {count} pairs, medians of ratios", *columns)
    for trouble in TROUBLES if options.kind == "server" else TROUBLES[:1]:
        for title, hertz, goal in (("100 epochs/s", 100, 1.05), ("back to back", 0, 1.15)):
            command = r1(options, hertz)
            made = [
                (percentiles(run(*command)["latencies_ms"]), copied(options.kind, trouble, command))
                for _ in range(count)
            ]
            alone = median(each["p50"] for each, _ in made)
            found = [each for _, each in made]
            middle = {key: median(each.epochs[key] for each in found) for key in ("p50", "p99")}
            longest = max(each.epochs["max"] for each in found)
            ratio = median(each.epochs["p50"] / one["p50"] for one, each in made)
            spent = median(each.keeper for each in found), median(each.servers for each in found)
            name = f"{title}, {trouble}" if trouble else title
            table.row(name, alone, *middle.values(), longest, ratio, *spent)
            goals.add(f"R1 with replicas / disk alone, {name}", ratio, goal)
    first(options)


def r1(options: argparse.Namespace, hertz: int) -> tuple[Any, ...]:
    """Returns the command of a run."""
    sizes = (options.edges, options.epochs) if options.edges else (100_000, 0)
    epochs = sizes[1] or (400 if hertz else 1000 if options.quick else 2500)
    return ("-m", "bench.r1", "--edges", sizes[0], "--hertz", hertz, "--epochs", epochs)


def first(options: argparse.Namespace) -> None:
    """Measures the write-first policy beside the default, by the delay of a replica."""
    columns = (
        "all 3 replicas have it first  ",
        "stages",
        "p50 ms",
        "p99",
        "x NoSync",
        "ms a stage",
    )
    table = Table("A policy that writes first, the same epochs", *columns)
    few = ("-m", "bench.r1", "--edges", options.edges or 100_000, "--epochs", options.epochs or 100)
    for trouble in TROUBLES[:2] if options.kind == "server" else TROUBLES[:1]:
        ours = copied(options.kind, trouble, few).epochs
        title = trouble or "all at once"
        table.row(f"NoSync, {title}", None, ours["p50"], ours["p99"], 1.0, None)
        for stages in STAGES:
            found = copied(options.kind, trouble, (*few, "--write-first", stages)).epochs
            each = (found["p50"] - ours["p50"]) / stages
            ratio = found["p50"] / ours["p50"]
            table.row(f"write first, {title}", stages, found["p50"], found["p99"], ratio, each)


def copied(kind: str, trouble: str, command: tuple[Any, ...]) -> Found:
    """Runs R1 with replicas."""
    with (
        tempfile.TemporaryDirectory(prefix="nosync-bench-") as folder,
        places(kind, Path(folder), COUNT, late_s=LATE_S if "late" in trouble else 0.0) as copies,
    ):
        if "stopped" in trouble:
            copies.stop(0)
        before = copies.cpu_seconds()
        found = run(*command, "--replicas", *copies.urls)
        epochs = found["latencies_ms"]
        servers = 1000 * (copies.cpu_seconds() - before) / len(epochs)
        return Found(percentiles(epochs), 1000 * found["keeper_seconds"] / len(epochs), servers)
