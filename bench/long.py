"""NoSync for long: many epochs over a state that does not grow; one line of JSON.

    upserts   5000 rows of a keyed input anew each epoch, into a join, an aggregate, reduce and top
    single    one row in, one out: 100 000 epochs
    join      one row in, one out; the other side of the join changes every tenth epoch

Measured from `insert` to the return of `commit()`. Beside the time what the process holds: its
own memory, descriptors, layers. It runs with at most 256 descriptors.
"""

from __future__ import annotations

import argparse
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
    """Keyed rows that are replaced all the time."""
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
    held = [(number % HELD, number) for number in range(HELD)]
    events.insert(held)

    def change(epoch: int) -> None:
        row = (epoch % HELD, HELD + epoch)
        events.insert([row])
        events.remove([held[epoch % HELD]])
        held[epoch % HELD] = row

    return change


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


WORKLOADS = {"upserts": upserts, "single": single, "join": join}


def held(session: Any) -> dict[str, int]:
    """What the process holds: memory of its own in KiB, descriptors, the most layers of a trace."""
    gc.collect()
    status = Path("/proc/self/status").read_text().splitlines()
    anon = next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
    names = [*session.inputs, *session.stages]
    return {
        "rss_kib": anon,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "layers": max(len(session.layers(name)) for name in names),
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
    latencies, computed, samples = [], [], []
    clock, work = time.perf_counter, time.thread_time
    try:
        with nosync_nb.open(folder / "long.nosync", spark_rows=IN_PROCESS) as session:
            change = WORKLOADS[options.workload](session, np.random.default_rng(1))
            session.commit()
            for epoch in range(options.epochs):
                started = clock(), work()
                change(epoch)
                session.commit()
                latencies.append(1000 * (clock() - started[0]))
                computed.append(1000 * (work() - started[1]))
                if (epoch + 1) % max(1, options.epochs // SAMPLES) == 0:
                    samples.append(held(session))
        with nosync_nb.open(folder / "long.nosync", spark_rows=IN_PROCESS) as session:
            assert session.now == options.epochs + 1
            assert not session.recovery.recomputed
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found = {"latencies_ms": latencies, "computed_ms": computed, "held": samples}
    print(json.dumps({"peer": "NoSync", **found}))


if __name__ == "__main__":
    main()
