"""Recovery on an intact disk with replicas after a kill: to the rows, and to the fence.

The fence on the disk is in the first figure: a new owner fences the log before it reads it. The
second figure ends when a quorum of replicas is fenced too. No caller waits for that: until then the
session works, and reports no epoch as safe on replicas.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from bench.replicas.faults import urls
from bench.report import Goals, MeasurementError, Table, run, run_killed

TRIES, ANEW = 5, 3
SMALL, STAGES = 100_000, 4


def fenced(options: argparse.Namespace, goals: Goals) -> None:
    """Measures opening after kill -9 with three replicas, over the state and the graph."""
    columns = (
        "three replicas, disk intact",
        "     edges",
        "stages",
        "rows ms",
        "CPU ms",
        "fence ms",
        "x first",
    )
    table = Table("Recovery beside replicas", *columns)
    large = options.edges or (10 * SMALL if options.quick else 100 * SMALL)
    cases = {
        "small": (SMALL, STAGES),
        "large state": (large, STAGES),
        "many stages": (SMALL, 16 * STAGES),
    }
    found = recovered(cases, options.epochs or 1000)
    for title, (edges, stages) in cases.items():
        each = found[title]
        shown = [1000 * each[key] for key in ("seconds", "cpu_seconds", "fence_seconds")]
        ratio = each["seconds"] / found["small"]["seconds"]
        table.row(title, f"{edges:,}", f"{stages}", *shown, ratio)
    anew = computed_anew(large)
    shown = [1000 * anew[key] for key in ("seconds", "cpu_seconds")]
    table.row("computing it anew", f"{large:,}", "1", *shown, None, None)
    figures = (("rows", "seconds"), ("rows, CPU", "cpu_seconds"), ("fence", "fence_seconds"))
    for what, key in figures:
        for title, most in (("large state", 1.5), ("many stages", 3)):
            ratio = found[title][key] / found["small"][key]
            goals.add(f"with replicas, open to {what}: {title} / small", ratio, most)
    for what, key in figures[:2]:
        factor = anew[key] / found["large state"][key]
        name = f"computing anew / open to {what}, {large:,} edges"
        goals.add(name, factor, 290, at_least=True)


def computed_anew(edges: int) -> dict[str, float]:
    """Returns the median times of a first run of all stages."""
    found: list[dict[str, Any]] = []
    for _ in range(ANEW):
        with tempfile.TemporaryDirectory(prefix="nosync-bench-") as base:
            found.append(run("-m", "bench.recovery", "again", Path(base) / "x", "--edges", edges))
    return {key: median(each[key] for each in found) for key in ("seconds", "cpu_seconds")}


def recovered(cases: dict[str, tuple[int, int]], epochs: int) -> dict[str, dict[str, float]]:
    """Makes histories that replicas have; opens them in turn after kills; returns medians."""
    found: dict[str, list[dict[str, Any]]] = {title: [] for title in cases}
    with ExitStack() as given_back:
        made = {}
        for title, (edges, stages) in cases.items():
            base = Path(tempfile.mkdtemp(prefix="nosync-bench-"))
            given_back.callback(shutil.rmtree, base, ignore_errors=True)
            common: tuple[Any, ...] = (base / "x.nosync", "--replicas", *urls(base))
            sizes = ("--edges", edges, "--stages", stages, "--epochs", epochs)
            made[title] = common, run_killed("-m", "bench.recovery", "make", *common, *sizes)
        for _ in range(TRIES):
            for title, (common, wanted) in made.items():
                each = run_killed("-m", "bench.recovery", "open", *common)
                if (each["result"], each["now"]) != (wanted["result"], wanted["now"]):
                    raise MeasurementError("recovery gave another result")
                if each["lost"] or each["recomputed"]:
                    raise MeasurementError("something was lost, or computed anew")
                found[title].append(each)
    keys = ("seconds", "cpu_seconds", "fence_seconds")
    return {
        title: {key: median(each[key] for each in tries) for key in keys}
        for title, tries in found.items()
    }
