"""Counts and first rows of a large input; one line of JSON: {what: [first ms, median ms]}."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from internals import settle_background

import nosync_nb

COMMITS = 200


def times(read: Callable[[], Any], runs: int = 7) -> list[float]:
    """Returns the milliseconds of the first call, and the median of some more."""
    found = []
    for _ in range(1 + runs):
        started = time.perf_counter()
        read()
        found.append((time.perf_counter() - started) * 1e3)
    return [found[0], statistics.median(found[1:])]


def main() -> None:
    """Loads, reads, and reads again after each of some commits that add and remove rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    n = parser.parse_args().rows
    random = np.random.default_rng(7)
    kinds = pa.array([f"kind {i:02}" for i in range(16)]).take(pa.array(random.integers(0, 16, n)))
    columns = {"src": random.integers(0, n, n), "kind": kinds, "x": random.random(n)}
    with tempfile.TemporaryDirectory() as folder, nosync_nb.open(Path(folder) / "log") as session:
        edges = session.input("edges", pa.table(columns).slice(0, 0))
        texts = session.input("texts", "kind string, src bigint")
        edges.insert(pa.table(columns))
        texts.insert(pa.table({"kind": kinds, "src": columns["src"]}))
        session.commit()
        settle_background(session)
        found = {
            "count()": times(edges.count),
            "head(20)": times(lambda: edges.head(20)),
            "rows(limit=20)": times(lambda: edges.rows(limit=20)),
            "rows(limit=20), text first": times(lambda: texts.rows(limit=20)),
            'head(20, by="x desc")': times(lambda: edges.head(20, by="x desc")),
        }

        def changed(epoch: int) -> None:
            gone = edges.head(3)
            edges.insert([(-epoch, "kind 99", 0.5)] * 5)
            edges.remove(gone)
            session.commit()

        for what, read in (("count()", edges.count), ("head(20)", lambda: edges.head(20))):
            each = []
            for epoch in range(COMMITS):
                changed(epoch)
                each.append(times(read, 1)[0])
            found[f"{what}, after a commit"] = [each[0], statistics.median(each)]
    print(json.dumps({"reads": found}))


if __name__ == "__main__":
    main()
