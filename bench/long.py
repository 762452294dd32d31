"""NoSync for long: many epochs over a state that does not grow; one line of JSON.

    upserts   replaces 5000 rows of a keyed input in each epoch, for a join, an aggregate, reduce
              and top
    single    one row in, one out: 100 000 epochs
    join      one row in, one out; the other side of the join changes every tenth epoch
    bare      one row in, one out, and no stage: a million epochs, if requested

Measured from `insert` to the return of `commit()`, with the resources of the process: its own
memory, descriptors, layers. Then the log is opened again, and some past epochs are read. The
process has at most 256 descriptors.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import nosync_nb
from bench.r1 import IN_PROCESS

DESCRIPTORS = 256
KEYS = 100_000
UPSERTS = 5000
GROUPS = 20_000
HELD = 1000
SAMPLES = 10

Change = Callable[[int], None]


def upserts(session: Any, rng: Any) -> Change:
    """Replaces keyed rows in every epoch."""
    events = session.input("events", "id bigint, k bigint, v bigint", key="id")
    names = session.input("names", "k bigint, name bigint")
    session.stage("joined", events.join(names, on="k"))
    session.stage("sums", events.group_by("k").agg(n="count(*)", s="sum(v)", m="max(v)"))
    session.stage("top", events.group_by("k").top(3, by="v desc"))
    spread = events.group_by("k").reduce(lambda key, rows: [(len(rows),)], "n bigint")
    session.stage("spread", spread)
    names.insert(pa.table({"k": np.arange(GROUPS), "name": np.arange(GROUPS)}))

    def rows(ids: Any) -> Any:
        return pa.table({"id": ids, "k": ids % GROUPS, "v": rng.integers(0, 1 << 40, len(ids))})

    events.upsert(rows(np.arange(KEYS)))
    return lambda epoch: events.upsert(rows(rng.choice(KEYS, UPSERTS, replace=False)))


def single(session: Any, rng: Any) -> Change:
    """One row in and one out."""
    events = session.input("events", "k bigint, v bigint")
    session.stage("sums", events.group_by("k").agg(n="count(*)", s="sum(v)", m="max(v)"))
    return replacing(events)


def bare(session: Any, rng: Any) -> Change:
    """One row in and one out of an input that no stage reads."""
    return replacing(session.input("events", "k bigint, v bigint"))


def replacing(events: Any) -> Change:
    """Fills an input with some rows, of which each epoch replaces one: see `past`."""
    held = [(number % HELD, number) for number in range(HELD)]
    events.insert(held)

    def change(epoch: int) -> None:
        row = (epoch % HELD, HELD + epoch)
        events.insert([row])
        events.remove([held[epoch % HELD]])
        held[epoch % HELD] = row

    return change


def past(session: Any, epochs: int) -> list[float]:
    """Reads some past epochs of the log of `replacing`; returns the milliseconds of each."""
    latencies = []
    for change in np.linspace(0, epochs - 1, SAMPLES).astype(int).tolist():
        started = time.perf_counter()
        found = sorted(map(tuple, session["events"].rows(at=change + 2)))
        latencies.append(1000 * (time.perf_counter() - started))
        latest = range(change + 1, change + 1 + HELD)
        assert found == sorted((value % HELD, value) for value in latest)
    return latencies


def join(session: Any, rng: Any) -> Change:
    """One row in and one out; every tenth epoch also on the other side."""
    left = session.input("left", "k bigint, v bigint")
    right = session.input("right", "k bigint, w bigint")
    session.stage("joined", left.join(right, on="k"))
    sides = [[(number % HELD, number) for number in range(HELD)] for _ in range(2)]
    left.insert(sides[0])
    right.insert(sides[1])

    def change(epoch: int) -> None:
        for side, held in ((left, sides[0]), (right, sides[1]))[: 1 + (epoch % 10 == 0)]:
            at = (epoch // (1 if side is left else 10)) % HELD
            row = (held[at][0], HELD + epoch)
            side.insert([row])
            side.remove([held[at]])
            held[at] = row

    return change


WORKLOADS = {"upserts": upserts, "single": single, "join": join, "bare": bare}


def held(session: Any) -> dict[str, int]:
    """Returns the private memory in KiB, the descriptors, and the most layers of a trace."""
    gc.collect()
    # What was freed and malloc still has is no growth: the largest merge leaves it.
    ctypes.CDLL(None).malloc_trim(0)
    status = Path("/proc/self/status").read_text().splitlines()
    anon = next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
    names = [*session.inputs, *session.stages]
    return {
        "rss_kib": anon,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "layers": max(len(session.info.layers(name)) for name in names),
    }


def main() -> None:
    """Runs the epochs and prints their latencies in milliseconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--epochs", type=int, required=True)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
    folder = Path(tempfile.mkdtemp(prefix="nosync-bench-"))
    # What is measured is the process: what grows in it must not be its measurements.
    latencies, computed = np.ones(options.epochs), np.ones(options.epochs)
    samples = []
    clock, work = time.perf_counter, time.thread_time
    try:
        with nosync_nb.open(folder / "long.nosync", spark_rows=IN_PROCESS) as session:
            change = WORKLOADS[options.workload](session, np.random.default_rng(1))
            session.commit()
            for epoch in range(options.epochs):
                started = clock(), work()
                change(epoch)
                session.commit()
                latencies[epoch] = 1000 * (clock() - started[0])
                computed[epoch] = 1000 * (work() - started[1])
                if (epoch + 1) % max(1, options.epochs // SAMPLES) == 0:
                    samples.append(held(session))
        sizes = [each.stat().st_size for each in folder.rglob("*") if each.is_file()]
        started = clock(), work()
        with nosync_nb.open(folder / "long.nosync", spark_rows=IN_PROCESS) as session:
            opening = clock() - started[0]
            assert session.now == options.epochs + 1
            assert not session.recovery.recomputed
            reads = past(session, options.epochs) if options.workload in ("single", "bare") else []
            reopened = held(session)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found = {
        "latencies_ms": latencies.tolist(),
        "computed_ms": computed.tolist(),
        "held": samples,
        "open_ms": 1000 * opening,
        "past_ms": reads,
        "reopened": reopened,
        "files": len(sizes),
        "bytes": sum(sizes),
    }
    print(json.dumps({"peer": "NoSync", **found}))


if __name__ == "__main__":
    main()
