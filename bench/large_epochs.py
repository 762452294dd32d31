"""Large epochs: what a stage costs if a share of its input is replaced, over its own first run.

Each kind of stage runs in a process of its own. The figures are CPU seconds of the thread that
defines and commits, which uses a single core: those of the definition, and those of an epoch, minus
those of the same epoch without the stage. Background merges of other threads do not count. The
rounds alternate, and the median of each figure counts. One line of JSON.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from internals import services_of, settle_background

import nosync_nb
from bench.r1 import IN_PROCESS
from bench.report import print_result
from nosync_nb.collections.library.asof import asof_join
from nosync_nb.collections.library.graphs import reachable
from nosync_nb.collections.library.windows import sessions
from nosync_nb.rows import parallel

SCHEMA = "id bigint, k bigint, c int, t bigint, v double, s string"
SMALL = "k bigint, w int"

STAGES: dict[str, Callable[[Any, Any], Any]] = {
    "select": lambda a, b: a.select("id", "k + 1 as k", "v * 2 as v", "s"),
    "filter": lambda a, b: a.filter("v > 50"),
    "join": lambda a, b: a.join(b, on="k"),
    "semi": lambda a, b: a.join(b, on="k", how="semi"),
    "distinct": lambda a, b: a.select("k", "c").distinct(),
    "aggregates": lambda a, b: a.group_by("k").agg(n="count(*)", sv="sum(v)", m="max(t)"),
    "reduce": lambda a, b: a.select("c", "t").group_by("c").reduce(_total, schema="st bigint"),
    "top": lambda a, b: a.group_by("c").top(2, by="v desc, id"),
    "top_many": lambda a, b: a.group_by("k").top(2, by="v desc, id"),
    "windows": lambda a, b: a.window("k", "t, id").with_columns(p="lag(v)"),
    "sessions": lambda a, b: sessions(
        a.select("k", "cast(t as timestamp) as t"), on="t", gap="20 seconds", keys="k"
    ),
    "asof": lambda a, b: asof_join(
        a.select("id", "k", "t"), b.select("k", "bigint(w) as t"), on="k", time="t"
    ),
    "loops": lambda a, b: reachable(
        a.select("id % 100000 as src", "t % 100000 as dst"),
        a.filter("id % 100000 < 5").select("id % 100000 as node"),
    ),
}


def _total(key: Any, rows: Any) -> Any:
    return [(sum(row.t for row in rows),)]


def rows_of(rng: Any, count: int, first: int) -> pa.Table:
    """Returns rows with ids from `first` on."""
    return pa.table(
        {
            "id": np.arange(first, first + count),
            "k": rng.integers(0, max(count // 8, 1), count),
            "c": rng.integers(0, 1000, count).astype(np.int32),
            "t": rng.integers(0, count * 2, count),
            "v": rng.random(count) * 100,
            "s": pa.array([f"name {n}" for n in rng.integers(0, 100_000, count).tolist()]),
        }
    )


class Replacing:
    """An input in a new log, and an epoch that replaces a share of its rows.

    Every round has the same rows, so that only the state of the machine differs.
    """

    def __init__(self, folder: Path, rows: int) -> None:
        self.session = nosync_nb.open(folder, spark_rows=IN_PROCESS)
        self.input = self.session.input("a", SCHEMA)
        self.small = self.session.input("b", SMALL)
        self.rng = np.random.default_rng(1)
        self.contents = rows_of(self.rng, rows, 0)
        self.input.insert(self.contents)
        keys = np.arange(rows // 8)[np.arange(rows // 8) % 3 > 0]
        few = self.rng.integers(0, 90, len(keys)).astype(np.int32)
        self.small.insert(pa.table({"k": keys, "w": few}))
        self.session.commit()
        settle_background(self.session)

    def define(self, kind: str) -> float:
        """Defines the stage; returns the CPU seconds of its first run."""
        start = time.thread_time()
        self.session.stage("stage", STAGES[kind](self.input, self.small))
        seconds = time.thread_time() - start
        settle_background(self.session)
        return seconds

    def replace(self, share: float) -> float:
        """Replaces a share of the rows; returns the CPU seconds of the commit."""
        rows = len(self.contents)
        count = round(rows * share)
        if count == rows:
            self.input.clear()
        else:
            self.input.remove(self.contents.take(self.rng.permutation(rows)[:count]))
        self.input.insert(rows_of(self.rng, count, rows))
        start = time.thread_time()
        self.session.commit()
        seconds = time.thread_time() - start
        settle_background(self.session)
        return seconds


def measure(kind: str, rows: int, share: float, rounds: int) -> dict[str, Any]:
    """Measures one kind of stage; returns the CPU seconds of the first run and of an epoch."""
    base = Path(tempfile.mkdtemp(prefix="nosync-bench-"))
    firsts, alone, both, scratch = [], [], [], 0
    try:
        for number in range(rounds + 1):
            with_stage = Replacing(base / f"with-{number}", rows)
            first = with_stage.define(kind)
            epoch = with_stage.replace(share)
            work = services_of(with_stage.session).publisher.metrics.last("stage")
            scratch = 0 if work is None else work.from_scratch
            with_stage.session.close()
            without = Replacing(base / f"without-{number}", rows)
            idle = without.replace(share)
            without.session.close()
            for each in base.iterdir():
                shutil.rmtree(each)
            if number:  # the first round is warm-up
                firsts.append(first)
                both.append(epoch)
                alone.append(idle)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    first, input_alone = statistics.median(firsts), statistics.median(alone)
    own = statistics.median(both) - input_alone
    return {
        "first": first,
        "epoch": own,
        "input": input_alone,
        "ratio": own / first,
        "from_scratch": scratch,
    }


def main() -> None:
    """Measures one kind of stage; the last line of its output is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=STAGES)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    parallel.single_threaded()
    print_result(measure(options.kind, options.rows, options.share, options.rounds))


if __name__ == "__main__":
    main()
