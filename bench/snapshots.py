"""The longest epoch, beside that of an engine that takes snapshots of the same state as a whole.

python -m bench.snapshots MODE ...    runs R1 or a loop in one mode; one line of JSON

    log         the default: each epoch is logged, merges and checkpoints run beside it
    trouble     likewise, with two replicas, one of which is away for a third of the run; all files
                are read over and over, and the keeper merges the layers of the base rows
    floor       the epochs alone: the longest ones are due to the machine
    aligned     a marker passes through the graph after every so many epochs, behind the rows in
                flight; after it the state is encoded, written and synced, before epochs continue
    copied      likewise, but the state is only copied meanwhile; another thread writes the copy
    unaligned   as `copied`, but the marker overtakes rows in flight, which go into the copy

The three snapshots have the state of the same operators in the same form (that of Chandy and
Lamport, as in current stream processors), without a log. Operators change their state in place, so
it has to be copied if it is written later. Immutable layers need neither.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from internals import services_of

import nosync_nb
from bench.r1 import IN_PROCESS, define, edge_table, load, node_table, without_log
from bench.replicas.trouble import Away, scrubbed, urls
from bench.report import Goals, Table, percentiles, run
from bench.workload import Network, Workload
from nosync_nb.collections.library import graphs
from nosync_nb.files.filesystem import Files
from nosync_nb.rows import columns as rows
from nosync_nb.store.log import batch_codec

SNAPSHOTS = ("aligned", "copied", "unaligned")
MODES = ("floor", "log", "trouble", *SNAPSHOTS)
MARKERS = 10
"""How many snapshots are taken in a run, at equal distances."""

LONG_MS, LOOK_EPOCHS = 8.0, 20
"""What the host takes is looked at after an epoch that takes so long, and after so many."""


class Snapshots:
    """Takes snapshots of the state of all operators of a session.

    Attributes:
        stalls_ms: the wait of epochs for each, beyond the rows in flight.
        size_bytes: of the last one.
    """

    def __init__(self, session: Any, folder: Path, *, inline: bool) -> None:
        self._publisher = services_of(session).publisher
        self._folder, self._inline = folder, inline
        self._writer: threading.Thread | None = None
        self.stalls_ms: list[float] = []
        self.size_bytes = 0

    def take(self, under_way: Any = None) -> None:
        """Takes one; with rows that are under way, if it overtakes them."""
        started = time.perf_counter()
        state = [
            ([rows.take(c, np.arange(len(part))) for c in part.columns], part.layout, +part.diff)
            for trace in self._publisher.snapshot.version.traces.values()
            for part in trace.parts()
        ]
        path = str(self._folder / f"snapshot-{len(self.stalls_ms)}")
        if self._inline:
            self._write(path, state, under_way)
        else:
            self.join()
            self._writer = threading.Thread(target=self._write, args=(path, state, under_way))
            self._writer.start()
        self.stalls_ms.append(1000 * (time.perf_counter() - started))

    def join(self) -> None:
        """Waits for the one that is being written."""
        if self._writer is not None:
            self._writer.join()

    def _write(self, path: str, state: list[Any], under_way: Any) -> None:
        file = Files().create(path)
        try:
            for columns, layout, diff in state:
                file.append(batch_codec.encode_batch(columns, layout.types, diff))
            if under_way is not None:
                file.append(json.dumps(under_way).encode())
            file.sync()
            self.size_bytes = file.size()
        finally:
            file.close()
        Files().unlink(path)


class Host:
    """The processor time that the host of a virtual machine takes away from all processes."""

    def __init__(self) -> None:
        self._before, self._left = self._taken_ms(), 0

    def since(self, latency_ms: float) -> float:
        """The ms that were taken since it was last looked: after a long epoch, or now and then."""
        self._left -= 1
        if self._left > 0 and latency_ms < LONG_MS:
            return 0.0
        before, self._before, self._left = self._before, self._taken_ms(), LOOK_EPOCHS
        return self._before - before

    def _taken_ms(self) -> float:
        try:
            fields = Path("/proc/stat").read_text().split(maxsplit=9)
        except OSError:  # not Linux
            return 0.0
        return 1000 * int(fields[8]) / os.sysconf("SC_CLK_TCK")


def steps(session: Any, options: argparse.Namespace) -> Any:
    """Loads the base rows; returns the input that changes, and its changes."""
    if options.loop:
        network = Network(options.edges // 5, options.edges, seed=1)
        edges, roots = (
            session.input("edges", "src bigint, dst bigint"),
            session.input("roots", "node bigint"),
        )
        session.stage("dist", graphs.distances(edges, roots))
        roots.insert([(network.root,)])
        edges.insert(edge_table(network.src, network.dst, strings=False))
        session.commit()
        return edges, list(network.epochs(options.epochs))
    workload = Workload(options.edges, seed=1)
    if options.mode != "trouble":
        edges, _ = load(session, workload, strings=False)
        return edges, list(workload.epochs(options.epochs))
    edges, nodes, _ = define(session, strings=False)
    nodes.insert(node_table(workload, strings=False))
    for places in np.array_split(np.arange(len(workload.src)), 4):
        edges.insert(edge_table(workload.src[places], workload.dst[places], strings=False))
        session.commit()
    return edges, list(workload.epochs(options.epochs))


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Runs the epochs in one mode."""
    trouble = options.mode == "trouble"
    replicas = urls(folder) if trouble else None
    session = nosync_nb.open(folder / "x.nosync", spark_rows=IN_PROCESS, replicas=replicas)
    edges, changes = steps(session, options)
    session.sync()
    if options.mode not in ("log", "trouble"):
        without_log(session)
    snapshots = Snapshots(session, folder, inline=options.mode == "aligned")
    every = max(1, options.epochs // MARKERS) if options.mode in SNAPSHOTS else 0
    latencies, own, without_host, host = [], [], [], Host()
    around = ExitStack()
    if trouble:
        session.sync("replicas")
        around.enter_context(scrubbed(session))
    away = Away(folder, options.epochs)
    gc.collect()
    gc.freeze()  # the changes to come are the benchmark's own, no garbage, and many
    if options.mode == "floor":
        gc.disable()  # without a log nobody drops what is on disk: ever more is looked at
    for number, change in enumerate(changes):
        if trouble:
            away.step(number)
        inserts = edge_table(change.src, change.dst, strings=False)
        removals = edge_table(change.gone_src, change.gone_dst, strings=False)
        marked = every and number % every == every // 2
        started, computed = time.perf_counter(), time.thread_time()
        edges.insert(inserts)
        edges.remove(removals)
        if marked and options.mode == "unaligned":
            snapshots.take([inserts.to_pydict(), removals.to_pydict()])
        session.commit()
        if marked and options.mode != "unaligned":
            snapshots.take()
        latencies.append(1000 * (time.perf_counter() - started))
        own.append(1000 * (time.thread_time() - computed))
        waited = max(latencies[-1] - own[-1], 0.0)
        without_host.append(latencies[-1] - min(waited, host.since(latencies[-1])))
    snapshots.join()
    around.close()
    session.close()
    return {
        "latencies_ms": latencies,
        "own_ms": own,
        "without_host_ms": without_host,
        "stalls_ms": snapshots.stalls_ms,
        "bytes": snapshots.size_bytes,
        "proposals": session.stats["proposals"],
    }


def snapshots(options: argparse.Namespace, goals: Goals) -> None:
    """Measures the modes over sizes of the state, on R1 and on a loop."""
    sizes = [100_000, 1_000_000] if options.quick else [100_000, 1_000_000, 10_000_000]
    title = "The longest epoch, beside snapshots of the whole state"
    columns = ("R1, 10 rows an epoch    ", "     edges", "p50 ms", "p99.9", "max", "stall", "MB")
    table = Table(title, *columns)
    for edges in sizes:
        epochs = 2000 if options.quick else 10_000
        found = compared(table, edges, epochs)
        for mode in ("log", "trouble"):
            one, what = percentiles(found[mode]["latencies_ms"]), f"{mode}, {edges:,} edges"
            goals.add(f"p99.9 / median, {what}", one["p99.9"] / one["p50"], 20)
            goals.add(f"longest epoch, {what}, ms", one["max"], 20)
            longest = max(found[mode]["without_host_ms"])
            goals.add(f"the same less what the host took, {what}, ms", longest, 20)
            own = percentiles(found[mode]["own_ms"])  # without waits for a core
            goals.add(f"p99.9 / median of its thread, {what}", own["p99.9"] / own["p50"], 20)
            goals.add(f"longest epoch of its thread, {what}, ms", own["max"], 20)
    table = Table("The same on a loop: distances, one edge in and out", *columns)
    compared(table, 100_000 if options.quick else 500_000, 1000, "--loop")


def compared(table: Table, edges: int, epochs: int, *flags: str) -> dict[str, Any]:
    """Runs all modes, a row for each."""
    found = {}
    for mode in MODES:
        command = ("-m", "bench.snapshots", mode, "--edges", edges, "--epochs", epochs, *flags)
        found[mode] = run(*command)
        one = percentiles(found[mode]["latencies_ms"])
        stalls = found[mode]["stalls_ms"]
        stall = median(stalls) if stalls else None
        size = found[mode]["bytes"] / 1e6 or None
        table.row(mode, f"{edges:,}", one["p50"], one["p99.9"], one["max"], stall, size)
    return found


def main() -> None:
    """Runs one mode and prints what was measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--epochs", type=int, default=2000)
    parser.add_argument("--loop", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="nosync-bench-"))
    try:
        print(json.dumps(measure(folder, options)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
