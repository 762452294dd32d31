"""Runs the measurements and shows each figure beside that of a peer: `make bench`.

make bench                          all sections, about half an hour on two cores
make bench ARGS=--quick             smaller sizes, some minutes
make bench ARGS="r1 recovery"       some sections: r1, peers, load, spark, recovery, history, reads,
                                    views, notebook, loops, long, pairs, persist, lost, objects,
                                    fenced, snapshots, kills, branches, tpch, tpcds,
                                    expressions, ranges, large_epochs;
                                    `faults` stands for those of replicas, recovery and snapshots
make bench ARGS="tpch --sf 1"       TPC-H at another scale factor than 0.1
make bench ARGS="tpch --decimals"   TPC-H with decimals, beside doubles
make bench ARGS="tpch --sql"        the 22 queries of TPC-H in SQL, beside DuckDB
make bench ARGS="long --million"    also a log of a million epochs, some ten minutes
make bench ARGS="pairs --kind server"     replicas at servers instead of in folders
make bench ARGS="branches --logs FOLDER"  keeps the long logs in FOLDER, and measures them again
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
from pathlib import Path
from statistics import fmean, median
from typing import Any

from bench.branches import branches
from bench.expressions import expressions
from bench.large_epochs import STAGES
from bench.notebook import notebook
from bench.ranges import ranges
from bench.replicas.faults import lost
from bench.replicas.fencing import fenced
from bench.replicas.kills import kills
from bench.replicas.objects import objects
from bench.replicas.pairs import pairs
from bench.replicas.persist import persist
from bench.replicas.servers import KINDS
from bench.report import (
    PATHWAY,
    TOP,
    Goals,
    MeasurementError,
    Table,
    percentiles,
    run,
    run_killed,
)
from bench.snapshots import snapshots
from bench.sql.tpcds import tpcds
from bench.tpch.plans import tpch
from bench.views import views
from nosync_nb.spark.execution import cost_model

MILLION = 1_000_000
RUNS = 3
"""How often what is compared to some microseconds is run; the middle one counts."""
EPOCH_COLUMNS = (
    "what changes ten rows of R1             ",
    "     edges",
    "p50 ms",
    "p99",
    "p99.9",
    "max",
    "x peer",
)


def epochs_of(found: dict[str, Any]) -> dict[str, float]:
    """Returns the percentiles of a measurement of epochs."""
    return percentiles(found["latencies_ms"])


def r1(options: argparse.Namespace, goals: Goals) -> None:
    """Measures epochs of NoSync over sizes, kinds of values, with and without the log."""
    table = Table("Epochs", *EPOCH_COLUMNS)
    sizes = [100_000, MILLION] if options.quick else [100_000, MILLION, 10 * MILLION]
    epochs = 1000 if options.quick else 5000
    p50: dict[Any, float] = {}

    def one(title: str, key: Any, edges: int, *flags: str, peer: Any = None) -> dict[str, float]:
        command = ("-m", "bench.r1", "--edges", edges, "--epochs", epochs, *flags)
        tries = [epochs_of(run(*command)) for _ in range(RUNS if edges == MILLION else 1)]
        found = sorted(tries, key=lambda each: each["p50"])[len(tries) // 2]
        p50[key] = found["p50"]
        ratio = p50[key] / p50[peer] if peer else None
        table.row(title, f"{edges:,}", *found.values(), ratio)
        return found

    for edges in sizes:
        off = one("NoSync, log taken out", ("off", edges), edges, "--no-log")
        on = one("NoSync", edges, edges, peer=("off", edges))
        if edges == MILLION:
            goals.add("R1 epoch, median, ms", on["p50"], 0.35)
            goals.add("R1 p99 / median", on["p99"] / on["p50"], 4)
            goals.add("R1 p99.9 / median", on["p99.9"] / on["p50"], 20)
            goals.add("the log on the critical path, median, ms", on["p50"] - off["p50"], 0.08)
            goals.add("p99 with the log / without", on["p99"] / off["p99"], 2)
    one("NoSync, strings (R1s)", "strings", MILLION, "--strings", peer=MILLION)
    goals.add("R1s / R1, medians", p50["strings"] / p50[MILLION], 1.5)
    goals.add(f"state {sizes[-1]:,} / 100,000 edges, medians", p50[sizes[-1]] / p50[sizes[0]], 1.3)


def peers(options: argparse.Namespace, goals: Goals) -> None:
    """Measures the peers on the same changes, and NoSync beside them."""
    table = Table("Peers, the same changes", *EPOCH_COLUMNS)
    epochs = 1000 if options.quick else 3000
    few = 10 if options.quick else 30
    ours = epochs_of(run("-m", "bench.r1", "--epochs", epochs))
    table.row("NoSync", f"{MILLION:,}", *ours.values(), None)

    def peer(title: str, *command: str | int, python: Path | None = None) -> float | None:
        try:
            found = epochs_of(run(*command, python=python))
        except MeasurementError as error:
            print(f"{title}: not measured\n{error}")
            return None
        table.row(title, f"{MILLION:,}", *found.values(), ours["p50"] / found["p50"])
        return ours["p50"] / found["p50"]

    peer(
        "the kernels of R1 alone in numpy: the limit",
        "-m",
        "bench.peers.numpy_r1",
        "--epochs",
        epochs,
    )
    if PATHWAY.exists():
        script = TOP / "bench" / "peers" / "pathway_r1.py"
        pathway = (script, "--epochs", epochs)
        persisted = peer("Pathway, each commit in files", *pathway, "--persisted", python=PATHWAY)
        if persisted is not None:
            goals.add("R1 epoch / Pathway that writes files too, medians", persisted, 0.5)
        memory = peer("Pathway, in memory alone", *pathway, python=PATHWAY)
        if memory is not None:
            goals.add("R1 epoch / Pathway in memory alone, medians", memory, 0.5)
    else:
        print("Pathway: not installed (make bench installs it)")
    peer(
        "Spark, recomputing from cache", "-m", "bench.peers.spark_r1", "recompute", "--epochs", few
    )
    peer("Structured Streaming, RocksDB", "-m", "bench.peers.spark_r1", "stream", "--epochs", few)


def load(options: argparse.Namespace, goals: Goals) -> None:
    """Measures the bulk load on Spark."""
    edges = MILLION if options.quick else 10 * MILLION
    table = Table("Bulk load on Spark", "edges     ", "NoSync s", "plain Spark s", "x peer")
    found = run("-m", "bench.load", "--edges", edges)
    ratio = found["ours"] / found["plain"]
    table.row(f"{edges:,}", found["ours"], found["plain"], ratio)
    goals.add("bulk load / plain Spark", ratio, 1.5)
    places(options, goals)


def spark(options: argparse.Namespace, goals: Goals) -> None:
    """Measures loads and first runs on Spark, beside plain Spark that also sorts its inputs."""
    lines = MILLION if options.quick else 5 * MILLION
    measured = run("-m", "bench.firsts", "--lines", lines)
    ours, plain, inputs = measured["ours"], measured["plain"], measured["sorted"]
    columns = ("lines     ", "load s", "first run s", "jobs", "bytes / given", "plain Spark s")
    table = Table("Load, join of three, sum: DataFrames", *columns, "and inputs sorted: s")
    load_seconds, size = ours["all"] - ours["define"], ours["bytes"] / measured["given_bytes"]
    table.row(f"{lines:,}", load_seconds, ours["define"], ours["jobs"], size, plain, inputs)
    goals.add("load and first run / plain Spark that sorts its inputs", ours["all"] / inputs, 1.2)
    goals.add("load and first run / plain Spark", ours["all"] / plain, 3)
    goals.add("1000 rows as a DataFrame, seconds", ours["few"], 0.4)


def places(options: argparse.Namespace, goals: Goals) -> None:
    """Measures load and first run in process, on Spark and as chosen; goals for the choice."""
    sizes = (10_000, 100_000) if options.quick else (10_000, 100_000, MILLION)
    found = run("-m", "bench.places", "--rows", *sizes)
    columns = (
        "from    ",
        "     rows",
        "here s",
        "Spark s",
        "chosen s",
        "x better way",
        "Spark, started first: s",
    )
    table = Table("Load, join and count: in process, on Spark, by cost", *columns)
    for line in found["lines"]:
        better = min(line["local"], line["spark"])
        ratio = line["auto"] / better
        cold = None if line["origin"] == "frame" else line["spark"] + found["start"]
        times = (line["local"], line["spark"], line["auto"], ratio, cold)
        table.row(line["origin"], f"{line['rows']:,}", *times)
        if line["origin"] == "arrow":
            goals.add(f"load of {line['rows']:,} Arrow rows, as chosen / better way", ratio, 1.2)
    table = Table(
        "What placement believes (costs.py)", "figure          ", "here", "on Spark", "believed"
    )
    for kind, (here, there) in found["rates"].items():
        believed = cost_model.ROWS_PER_SECOND[kind.partition("_")[0]]
        table.row(f"{kind}, rows/s", here, there, believed)
    table.row("a Spark job, s", None, found["job"], cost_model.JOB_SECONDS)
    table.row("starting Spark, s", None, found["start"], cost_model.START_SECONDS)


def windows(options: argparse.Namespace, goals: Goals) -> None:
    """Measures window functions beside R1 epochs of one row, and DuckDB from scratch."""
    rows, epochs = (100_000, 50) if options.quick else (MILLION, 200)
    found = run("-m", "bench.windows", "--rows", rows, "--epochs", epochs)
    columns = ("window                 ", "epoch ms", "R1 ms", "x R1", "rows", "first", "DuckDB")
    limits = {"lag, in the middle": 15, "sum of 100 rows": 15, "row_number, at the end": 15}
    for part, title in (
        ("large", f"A row of a partition of {rows:,}"),
        ("small", f"100 of {rows // 10:,} partitions of 10 rows"),
    ):
        table = Table(title, *columns)
        for name, each in found[part].items():
            ratio = each["ms"] / each["r1"]
            rest = (each["touched"], each["first"], each["duckdb"])
            table.row(name, each["ms"], each["r1"], ratio, *rest)
            limit = limits.get(name) if part == "large" else 30
            if limit is not None:
                goals.add(f"window {name}, {part} / R1 epoch of a row", ratio, limit)


def recovered(base: Path, **sizes: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Makes a history, kills its process, opens it three times; returns the median opening."""
    folder = base / "-".join(f"{key}{value}" for key, value in sizes.items())
    flags = [text for key, value in sizes.items() for text in (f"--{key}", str(value))]
    made = run_killed("-m", "bench.recovery", "make", folder, *flags)
    tries = []
    for number in range(3):
        copy = base / f"copy-{number}"
        shutil.copytree(folder, copy)
        tries.append(run("-m", "bench.recovery", "open", copy))
        shutil.rmtree(copy)
    shutil.rmtree(folder)
    found = sorted(tries, key=lambda each: float(each["seconds"]))[1]
    assert found["result"] == made["result"], "recovery gave another result"
    assert (found["now"], found["lost"], found["recomputed"]) == (made["now"], [], 0)
    return made, found


def recovery(options: argparse.Namespace, goals: Goals) -> None:
    """Measures opening after kill -9, over the size of the state, of history and of the graph."""
    columns = ("after kill -9, open to rows", "     edges", "epochs", "stages", "ms", "x first")
    table = Table("Recovery", *columns)
    base = Path(tempfile.mkdtemp(prefix="nosync-bench-"))
    large = MILLION if options.quick else 10 * MILLION
    long = 5_000 if options.quick else 100_000
    seconds: dict[str, float] = {}
    cases: list[tuple[str, dict[str, int]]] = [
        ("small", {"edges": 100_000, "epochs": 1000, "stages": 4}),
        ("large state", {"edges": large, "epochs": 1000, "stages": 4}),
        ("long history", {"edges": 100_000, "epochs": long, "stages": 4}),
        ("many stages", {"edges": 100_000, "epochs": 1000, "stages": 64}),
    ]
    try:
        for title, sizes in cases:
            _, found = recovered(base, **sizes)
            seconds[title] = found["seconds"]
            ratio = seconds[title] / seconds["small"]
            table.row(title, *(f"{v:,}" for v in sizes.values()), 1000 * seconds[title], ratio)
        anew = run("-m", "bench.recovery", "again", base / "again", "--edges", large)["seconds"]
        factor = anew / seconds["large state"]
        table.row("computing it anew instead", f"{large:,}", "1", "1", 1000 * anew, None)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    goals.add("kill -9, open to rows, seconds", seconds["small"], 0.1)
    goals.add(f"state {large:,} / 100,000 edges", seconds["large state"] / seconds["small"], 1.5)
    goals.add(f"{long:,} / 1,000 past epochs", seconds["long history"] / seconds["small"], 1.5)
    goals.add("64 / 4 stages", seconds["many stages"] / seconds["small"], 3)
    goals.add(f"computing anew / recovery, {large:,} rows", factor, 290, at_least=True)


def history(options: argparse.Namespace, goals: Goals) -> None:
    """Measures reads of the past, and the disk usage of history."""
    epochs = 5_000 if options.quick else 100_000
    columns = ("epochs  ", "retained", "rows(at=) ms", "worst ms", "open ms", "x update on disk")
    table = Table("History", *columns)
    base = Path(tempfile.mkdtemp(prefix="nosync-bench-"))
    update_bytes = 24  # two numbers and the signed count, of edges and of the result alike
    worst, disk, opened = [], [], []
    try:
        start, _ = recovered(base, edges=100_000, epochs=1, stages=1)
        for retain in (0, 1000):
            made, found = recovered(base, edges=100_000, epochs=epochs, stages=1, retain=retain)
            each = (made["bytes"] - start["bytes"]) / (made["updates"] - start["updates"])
            reads = sorted(found["reads_ms"])
            worst.append(reads[-1])
            disk.append(each / update_bytes)
            opened.append(found["seconds"])
            middle, kept = reads[len(reads) // 2], f"{retain:,}" if retain else "all"
            table.row(f"{epochs:,}", kept, middle, worst[-1], 1000 * opened[-1], disk[-1])
    finally:
        shutil.rmtree(base, ignore_errors=True)
    goals.add(f"rows(at=) of 100 rows, any of {epochs:,} epochs, worst ms", worst[0], 5)
    goals.add("disk per update / its bytes, all history kept", disk[0], 4)
    goals.add("disk per update / its bytes, 1000 epochs retained", disk[1], 2)
    goals.add("opening after retention / with all of it", opened[1] / opened[0], 1)


def reads(options: argparse.Namespace, goals: Goals) -> None:
    """Measures counts and first rows of a large input, alone and after each commit."""
    size = MILLION if options.quick else 5 * MILLION
    found = run("-m", "bench.reads", "--rows", size)
    table = Table(
        f"Reads of {size:,} rows", "what                          ", "first ms", "then ms"
    )
    for what, (first, then) in found["reads"].items():
        table.row(what, first, then)
    goals.add(f"count() at {size:,} rows, ms", found["reads"]["count(), after a commit"][1], 2)
    goals.add(f"head(20) at {size:,} rows, ms", found["reads"]["head(20), after a commit"][1], 20)


def loops(options: argparse.Namespace, goals: Goals) -> None:
    """Measures distances under single changes of edges, and the peers on the same changes."""
    nodes, edges = (20_000, 100_000) if options.quick else (100_000, 500_000)
    columns = (
        "one edge in, one out         ",
        "     edges",
        "p50 ms",
        "p99",
        "rows p50",
        "rows p99",
    )
    table = Table("Loops: distances from a node", *columns, "load s", "x ours")
    epochs, few = (300, 5) if options.quick else (2000, 20)
    sizes = ("--nodes", nodes, "--edges", edges)
    found = run("-m", "bench.loops", *sizes, "--epochs", epochs)
    ours, rows = epochs_of(found), percentiles(found["touched"])
    shown = (ours["p50"], ours["p99"], rows["p50"], rows["p99"], found["load_seconds"], None)
    table.row("NoSync", f"{edges:,}", *shown)
    anew = found["again_ms"]
    table.row("NoSync, a new stage each time", f"{edges:,}", anew, *[None] * 4, anew / ours["p50"])
    goals.add(f"distances, {edges:,} edges, epoch, median, ms", ours["p50"], 10)

    def peer(title: str, script: str, *flags: str | int, python: Path | None = None) -> None:
        try:
            theirs = run(TOP / "bench" / "peers" / script, *flags, *sizes, python=python)
        except MeasurementError as error:
            print(f"{title}: not measured\n{error}")
            return
        each = epochs_of(theirs)
        figures = (each["p50"], each["p99"], None, None, theirs.get("load_seconds"))
        table.row(title, f"{edges:,}", *figures, each["p50"] / ours["p50"])

    peer("networkx, all of it again", "graph_libraries.py", "networkx", "--epochs", few)
    if PATHWAY.exists():
        peer(
            "SciPy, all of it again", "graph_libraries.py", "scipy", "--epochs", few, python=PATHWAY
        )
        script = "pathway_loops.py"
        peer("Pathway, iterate", script, "--epochs", epochs // 2, python=PATHWAY)
    else:
        print("SciPy, Pathway: not installed (make bench installs them)")
    updates(options, goals)


def large_epochs(options: argparse.Namespace, goals: Goals) -> None:
    """Measures epochs that replace a share of the input of a stage, over its first run."""
    rows = 50_000 if options.quick else 300_000
    shares = {"10 %": 0.1, "50 %": 0.5, "100 %": 1.0}
    columns = ("first ms", *(f"{share}, x first" for share in shares))
    table = Table(f"Replaced shares of {rows:,} rows, CPU of the stage", "stage     ", *columns)
    kinds = ("select", "join") if options.quick else tuple(STAGES)
    for kind in kinds:
        flags = ("--rows", rows, "--rounds", 1 if options.quick else 5)
        found = {
            share: run("-m", "bench.large_epochs", kind, "--share", part, *flags)
            for share, part in shares.items()
        }
        ratios = [each["ratio"] for each in found.values()]
        table.row(kind, 1000 * found["100 %"]["first"], *ratios)
        goals.add(f"{kind}, all rows replaced / first run", ratios[-1], 1.2)


ALGORITHMS = ("pagerank", "connected", "labels", "core", "distances", "strong")


def updates(options: argparse.Namespace, goals: Goals) -> None:
    """Measures updates of graph algorithms, relative to their first run."""
    columns = ("nodes ", "epochs", "first ms", "median", "longest", "x first", "longest x", "trend")
    title = "Loops: graph algorithms, one edge in, one out; networkx: all of it again"
    table = Table(title, "algorithm ", *columns, "kB logged", "networkx ms")
    for nodes in (100, 1000) if options.quick else (100, 1000, 10_000):
        for name in ALGORITHMS:
            epochs = 50 if options.quick else 200
            found = run("-m", "bench.algorithms", name, "--nodes", nodes, "--epochs", epochs)
            first, each = found["first_ms"], found["latencies_ms"]
            span = len(each) // 4 or 1
            median, longest = statistics.median(each), max(each)
            trend = statistics.median(each[-span:]) / statistics.median(each[:span])
            logged = statistics.mean(found["bytes"]) / 1000
            ratios = (median / first, longest / first, trend)
            theirs = found["peer_ms"]
            table.row(name, nodes, len(each), first, median, longest, *ratios, logged, theirs)
            limit = 1.2 if name == "pagerank" else 0.1
            goals.add(f"{name}, {nodes:,} nodes: median update / first run", ratios[0], limit)
            goals.add(f"{name}, {nodes:,} nodes: longest update / first run", ratios[1], 2)


def long(options: argparse.Namespace, goals: Goals) -> None:
    """Measures how epochs, memory and descriptors change over many epochs."""
    columns = ("epochs  ", "first ms", "last ms", "last/first", "means", "CPU", "RSS")
    table = Table(
        "For long: the last hundred epochs by the first",
        "workload",
        *columns,
        "descriptors",
        "layers",
    )
    sizes = {"upserts": 200, "single": 100_000, "join": 10_000}
    for workload, epochs in sizes.items():
        if options.quick:
            epochs = max(200, epochs // 10)
        found = run("-m", "bench.long", workload, "--epochs", epochs)
        each, computed, held = found["latencies_ms"], found["computed_ms"], found["held"]
        first, last = median(each[:100]), median(each[-100:])
        span = max(100, epochs // 10)
        means = fmean(each[-span:]) / fmean(each[:span])
        work = fmean(computed[-span:]) / fmean(computed[:span])
        memory = held[-1]["rss_kib"] / held[1]["rss_kib"]
        files = max(sample["descriptors"] for sample in held)
        layers = max(sample["layers"] for sample in held)
        ratios = (last / first, means, work, memory)
        table.row(workload, f"{epochs:,}", first, last, *ratios, files, layers)
        goals.add(f"{workload}: last hundred / first hundred epochs, medians", last / first, 1.2)
        thread = median(computed[-100:]) / median(computed[:100])
        goals.add(f"{workload}: the same of the thread, whatever else runs", thread, 1.2)
        goals.add(f"{workload}: last / first tenth of the epochs, means", means, 1.2)
        goals.add(f"{workload}: memory at the end / after a fifth", memory, 1.1)
        goals.add(f"{workload}: descriptors", files, 256)
    if options.million:
        million(goals)


def million(goals: Goals) -> None:
    """Measures the size of a log of a million epochs, and its opening and reads."""
    columns = ("files", "MB", "MB held", "at a tenth", "descriptors", "open ms", "past ms")
    table = Table("A log of a million epochs, one row in, one out", "epochs   ", *columns)
    found = run("-m", "bench.long", "bare", "--epochs", MILLION)
    held, reopened = found["held"], found["reopened"]
    files = max(sample["descriptors"] for sample in (*held, reopened))
    first, last = held[0]["rss_kib"], held[-1]["rss_kib"]
    sizes = (found["bytes"] / MILLION, last / 1000, first / 1000)
    table.row(
        f"{MILLION:,}", found["files"], *sizes, files, found["open_ms"], max(found["past_ms"])
    )
    goals.add("a million epochs: descriptors", files, 256)
    each = 1024 * (last - first) / (0.9 * MILLION)
    goals.add("a million epochs: bytes of memory for each more", each, 100)


SECTIONS = {
    "r1": r1,
    "peers": peers,
    "load": load,
    "spark": spark,
    "recovery": recovery,
    "fenced": fenced,
    "history": history,
    "reads": reads,
    "expressions": expressions,
    "ranges": ranges,
    "views": views,
    "notebook": notebook,
    "loops": loops,
    "long": long,
    "large_epochs": large_epochs,
    "pairs": pairs,
    "persist": persist,
    "lost": lost,
    "objects": objects,
    "kills": kills,
    "snapshots": snapshots,
    "branches": branches,
    "tpch": tpch,
    "windows": windows,
    "tpcds": tpcds,
}
GROUPS = {
    "faults": ("pairs", "persist", "lost", "objects", "recovery", "fenced", "snapshots", "kills"),
}


def main() -> int:
    """Runs the chosen sections; the exit code is 0 if all were measured, however fast."""
    parser = argparse.ArgumentParser(prog="make bench", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="smaller sizes, fewer epochs")
    text = "of long: also a log of a million epochs"
    parser.add_argument("--million", action="store_true", help=text)
    text = "of branches: where its logs are made and stay, to be measured again"
    parser.add_argument("--logs", type=Path, help=text)
    text = "of replicas: where they are"
    parser.add_argument("--kind", choices=KINDS, default="folder", help=text)
    text = "of TPC-H: the scale factor; 1 is about a gigabyte of text"
    parser.add_argument("--sf", type=float, default=0.1, help=text)
    text = "of TPC-H: with decimals, beside doubles"
    parser.add_argument("--decimals", action="store_true", help=text)
    text = "of TPC-H: the 22 queries in SQL, over changes of all tables"
    parser.add_argument("--sql", action="store_true", help=text)
    text = "of TPC-H in SQL and TPC-DS: the folder of the tables, instead of generated ones"
    parser.add_argument("--tables", type=Path, help=text)
    text = "of replicas: how many pairs of runs, edges and epochs; 0: as many as the figure needs"
    for name in ("--pairs", "--edges", "--epochs"):
        parser.add_argument(name, type=int, default=0, help=text)
    options = parser.parse_args()
    sections = [each for name in options.sections for each in GROUPS.get(name, (name,))]
    unknown = set(sections) - set(SECTIONS)
    if unknown:
        parser.error(f"no section {', '.join(unknown)}; there are: {', '.join(SECTIONS)}")
    print(f"{os.cpu_count()} cores, seed 1; the first tenth of the epochs is warm-up")
    goals, failed = Goals(), 0
    with tempfile.TemporaryDirectory(prefix="nosync-bench-") as keys:
        # What is noted beside a key of the user's own logs is none of a measurement's business.
        # The logs that stay are signed with a key that stays with them: else nobody branches them.
        if options.logs is not None:
            options.logs.mkdir(parents=True, exist_ok=True)
        os.environ["NOSYNC_KEY_FILE"] = str((options.logs or Path(keys)).resolve() / "key")
        for name in sections or SECTIONS:
            try:
                SECTIONS[name](options, goals)
            except MeasurementError as error:
                failed += 1
                print(f"{name}: not measured\n{error}")
    goals.show()
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
