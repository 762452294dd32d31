"""The cost of losing a disk: from an empty folder and two of three replicas to the rows.

python -m bench.replicas.faults lose FOLDER ...  loads R1, waits for the replicas, kills itself
python -m bench.replicas.faults find FOLDER ...  opens the log from its replicas, reads a stage
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

from internals import services_of

from bench.replicas.servers import places
from bench.report import Goals, MeasurementError, Table, print_result, run, run_killed

COUNT, QUORUM = 3, 2


def urls(folder: Path) -> list[str]:
    """Returns the URLs of the replicas of a measurement."""
    return [f"file://{folder}/replica-{number}" for number in range(COUNT)]


def lost(options: argparse.Namespace, goals: Goals) -> None:
    """Measures the time from an empty folder and two of three replicas to the rows."""
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
    sizes = (100_000, 1_000_000) if options.quick else (100_000, 1_000_000, 10_000_000)
    for edges in (options.edges,) if options.edges else sizes:
        base = Path(tempfile.mkdtemp(prefix="nosync-bench-"))
        try:
            with places(options.kind, base, COUNT) as copies:
                command = ("--edges", edges, "--replicas", *copies.urls)
                made = run_killed("-m", "bench.replicas.faults", "lose", base, *command)
                shutil.rmtree(base / "x.nosync")
                copies.lose(1)
                found = run("-m", "bench.replicas.faults", "find", base, *command)
        finally:
            shutil.rmtree(base, ignore_errors=True)
        if found["result"] != made["result"] or found["recomputed"]:
            raise MeasurementError("what came back from the replicas is something else")
        gone = made["now"] - found["now"]
        read = found["frames"] + found["files"], found["megabytes"]
        shown = f"from {options.kind}s", f"{edges:,}"
        table.row(*shown, *read, found["all"], found["seconds"], gone)
        goals.add(f"lost disk to rows, {edges:,} edges, s", found["seconds"], 0.3)


def lose(options: argparse.Namespace) -> None:
    """Loads R1, commits some epochs that the replicas have, prints the result, and dies."""
    import nosync_nb
    from bench.r1 import IN_PROCESS, edge_table, load
    from bench.workload import Workload

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
    replication = services_of(session).replication
    with replication.heard:  # which of them is lost is not known: the last one has it as well
        replication.heard.wait_for(lambda: replication.safe(COUNT - 1) == session.now)
    print_result({"now": session.now, "result": sorted(map(list, stage.rows()))})
    os.kill(os.getpid(), signal.SIGKILL)


def find(options: argparse.Namespace) -> None:
    """Opens the log that is lost on this disk, and reads a small stage."""
    import nosync_nb
    from nosync_nb.store.replication.file_layout import is_frames

    started = time.perf_counter()
    session = nosync_nb.open(options.folder / "x.nosync", replicas=options.replicas, quorum=QUORUM)
    result = sorted(map(list, session["per_label"].rows()))
    seconds = time.perf_counter() - started
    fetcher = services_of(session).lazy_fetcher
    files, size = fetcher.files_read, fetcher.bytes_read
    frames = [p for p in (options.folder / "x.nosync").iterdir() if is_frames(p.name)]
    size += sum(p.stat().st_size for p in frames)
    copies = (p for p in (options.folder / "replica-0").rglob("*") if p.is_file())
    print_result(
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


def main() -> None:
    """Runs one of the two commands."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["lose", "find"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--edges", type=int, default=100_000)
    parser.add_argument("--replicas", nargs="+", metavar="URL")
    options = parser.parse_args()
    {"lose": lose, "find": find}[options.part](options)


if __name__ == "__main__":
    main()
