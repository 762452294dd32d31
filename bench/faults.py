"""Replicas: what they cost an epoch, how far behind they are, and what a lost disk costs.

python -m bench.faults lose FOLDER ...    loads R1, waits for the replicas, kills itself
python -m bench.faults find FOLDER ...    opens the log from its replicas and reads a small stage
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from bench.report import TOP, Goals, MeasurementError, Table, percentiles, run
from bench.servers import places

PAIRS = 7
COUNT, QUORUM = 3, 2


def urls(folder: Path) -> list[str]:
    """Where the replicas of a measurement are."""
    return [f"file://{folder}/replica-{number}" for number in range(COUNT)]


def faults(options: argparse.Namespace, goals: Goals) -> None:
    """Measures epochs with and without replicas in turn, then the loss of the disk."""
    pairs_count = 3 if options.quick else PAIRS
    columns = (
        "R1 with 3 replicas           ",
        "disk alone, p50 ms",
        "replicas, p50 ms",
        "p99",
        "x disk",
        "servers, CPU ms per epoch",
    )
    table = Table(f"Replicas: {options.kind}s, {pairs_count} pairs, medians of ratios", *columns)
    epochs = 1000 if options.quick else 2500
    troubles = ("", ", one 50 ms late", ", one stopped") if options.kind == "server" else ("",)
    for trouble in troubles:
        for title, hertz, goal in (("100 epochs/s", 100, 1.05), ("back to back", 0, 1.15)):
            command = ("-m", "bench.r1", "--edges", 100_000, "--hertz", hertz)
            command = (*command, "--epochs", 400 if hertz else epochs)
            pairs, busy = [], []
            for _ in range(3 if trouble else pairs_count):
                alone = percentiles(run(*command)["latencies_ms"])
                found, spent = copied(options.kind, trouble, command)
                busy.append(spent)
                pairs.append((alone, percentiles(found)))
            p50 = [median(each[i]["p50"] for each in pairs) for i in (0, 1)]
            ratio = median(with_["p50"] / alone["p50"] for alone, with_ in pairs)
            p99 = median(with_["p99"] for _, with_ in pairs)
            table.row(title + trouble, *p50, p99, ratio, median(busy) if any(busy) else None)
            goals.add(f"R1 with replicas / disk alone, {title}{trouble}", ratio, goal)
    lost(options, goals)


def copied(kind: str, trouble: str, command: tuple[Any, ...]) -> tuple[list[float], float]:
    """Runs R1 with replicas: how long each epoch took, what servers computed for it; both in ms."""
    with (
        tempfile.TemporaryDirectory(prefix="nosync-bench-") as folder,
        places(kind, Path(folder), COUNT, late_s=0.05 if "late" in trouble else 0.0) as copies,
    ):
        if "stopped" in trouble:
            copies.stop(0)
        before = copies.cpu_seconds()
        found = run(*command, "--replicas", *copies.urls)["latencies_ms"]
        return found, 1000 * (copies.cpu_seconds() - before) / len(found)


def lost(options: argparse.Namespace, goals: Goals) -> None:
    """Measures how long it takes from an empty folder and two of three replicas to the rows."""
    columns = (
        "disk and a replica lost",
        "     edges",
        "files read",
        "MB read",
        "MB of all",
        "open to rows, s",
        "lost",
    )
    table = Table("The disk is lost", *columns)
    for edges in (100_000, 1_000_000) if options.quick else (100_000, 1_000_000, 10_000_000):
        base = Path(tempfile.mkdtemp(prefix="nosync-bench-"))
        try:
            with places(options.kind, base, COUNT) as copies:
                command = ("--edges", edges, "--replicas", *copies.urls)
                made = run_lost("-m", "bench.faults", "lose", base, *command)
                shutil.rmtree(base / "x.nosync")
                copies.lose(1)
                found = run("-m", "bench.faults", "find", base, *command)
        finally:
            shutil.rmtree(base, ignore_errors=True)
        if found["result"] != made["result"] or found["recomputed"]:
            raise MeasurementError("what came back from the replicas is something else")
        gone = made["now"] - found["now"]
        read = found["frames"] + found["files"], found["megabytes"]
        shown = f"from {options.kind}s", f"{edges:,}"
        table.row(*shown, *read, found["all"], found["seconds"], gone)
        goals.add(f"lost disk to rows, {edges:,} edges, s", found["seconds"], 0.3)


def run_lost(*arguments: Any) -> dict[str, Any]:
    """Runs a process that tells what it made and kills itself."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
    if done.returncode != -signal.SIGKILL:
        raise MeasurementError(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def lose(options: argparse.Namespace) -> None:
    """Loads R1, commits some epochs that the replicas have, tells the result, and dies."""
    import nosync_nb
    from bench.r1 import IN_PROCESS, edge_table, load
    from bench.workload import Workload
    from nosync_nb.session.session import owners_of

    workload = Workload(options.edges, seed=1)
    session = nosync_nb.open(
        options.folder / "x.nosync",
        replicas=options.replicas,
        quorum=QUORUM,
        spark_rows=IN_PROCESS,
    )
    edges, stage = load(session, workload, strings=False)
    for change in workload.epochs(200):
        edges.insert(edge_table(change.src, change.dst, strings=False))
        edges.remove(edge_table(change.gone_src, change.gone_dst, strings=False))
        session.commit()
    session.sync("replicas")
    replication = owners_of(session).replication
    with replication.heard:  # which of them is lost is not known: the last one has it as well
        replication.heard.wait_for(lambda: replication.safe(COUNT - 1) == session.now)
    tell({"now": session.now, "result": sorted(map(list, stage.rows()))})
    os.kill(os.getpid(), signal.SIGKILL)


def find(options: argparse.Namespace) -> None:
    """Opens the log that is not there any more, and reads a small stage."""
    import nosync_nb
    from nosync_nb.session.session import owners_of
    from nosync_nb.store.replicas.layout import is_frames

    started = time.perf_counter()
    session = nosync_nb.open(options.folder / "x.nosync", replicas=options.replicas, quorum=QUORUM)
    result = sorted(map(list, session["per_label"].rows()))
    seconds = time.perf_counter() - started
    fetching = owners_of(session).fetching
    files, size = fetching.requests
    frames = [p for p in (options.folder / "x.nosync").iterdir() if is_frames(p.name)]
    size += sum(p.stat().st_size for p in frames)
    copies = (p for p in (options.folder / "replica-0").rglob("*") if p.is_file())
    tell(
        {
            "now": session.now,
            "result": result,
            "seconds": seconds,
            "frames": len(frames),
            "files": files,
            "megabytes": size / 1e6,
            "all": sum(p.stat().st_size for p in copies) / 1e6,
            "recomputed": session.recovery.recomputed,
        }
    )
    session.close()


def tell(told: dict[str, Any]) -> None:
    """Prints what was measured, in a line."""
    print(json.dumps(told), flush=True)


def main() -> None:
    """Plays one of the two parts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["lose", "find"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--edges", type=int, default=100_000)
    parser.add_argument("--replicas", nargs="+", metavar="URL")
    options = parser.parse_args()
    {"lose": lose, "find": find}[options.part](options)


if __name__ == "__main__":
    main()
