"""Views: pages of a large input in a grid, and R1 with a grid open; one line of JSON.

    python -m bench.views pages     {what: [first ms, median of others]}
    python -m bench.views r1        {which: {"open": [ms of each block], "closed": [...]}}

In `r1` blocks of epochs with a grid open and closed take turns in one session, so that other work
of the machine affects both of a pair equally. Of each block the mean milliseconds of an epoch are
printed: of the clock, of all threads of the process, and of those that read for the grid. On a
machine with other work only a median over pairs is meaningful. The cost of opening a grid is
excluded.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from internals import settle_background

import nosync_nb
from bench.r1 import IN_PROCESS, edge_table, load
from bench.reads import times
from bench.report import Goals, Table, run
from bench.workload import Workload
from nosync_widgets.views.grid import GridRequest, GridView

LIMIT = 200


def views(options: argparse.Namespace, goals: Goals) -> None:
    """Measures pages of a grid over a million rows, and R1 with a grid open."""
    table = Table("A grid over a million rows", f"{'what':44}", "first ms", "then ms")
    found = run("-m", "bench.views", "pages")["views"]
    for what, (first, then) in found.items():
        table.row(what, first, then)
    for kind, most in (("number", 50), ("text", 250)):
        # Only the first time: what is first in an order is remembered.
        goals.add(f"first page by a {kind}, ms", found[f"first page by a {kind}"][0], most)
        goals.add(f"far page by a {kind}, ms", found[f"pages of the middle by a {kind}"][1], 50)
    table = Table(
        "R1 with a grid open, ms an epoch",
        "on       ",
        "closed",
        "open",
        "x closed",
        "processor, closed",
        "open",
        "x closed",
        "of the views",
    )
    epochs = 4000 if options.quick else 20_000
    found = run("-m", "bench.views", "r1", "--epochs", epochs, "--blocks", 5)["views"]
    for name, blocks in found.items():
        clock, processor = (_paired(blocks, which) for which in (0, 1))
        views = sum(each[2] for each in blocks["open"]) / sum(each[1] for each in blocks["open"])
        table.row(name, *clock, *processor, views)
        goals.add(f"R1, grid open on {name} / closed, by the clock", clock[2], 1.05)
        goals.add(f"R1, grid open on {name} / closed, processor time", processor[2], 1.05)
        goals.add(f"R1, the grid's part of an epoch with one on {name}", views, 0.05)


def _paired(blocks: dict[str, list[list[float]]], which: int) -> tuple[float, float, float]:
    """Returns medians of blocks with the grid closed and open, and of the differences of pairs."""
    closed, opened = (np.array([each[which] for each in blocks[k]]) for k in ("closed", "open"))
    ratio = float(np.median(opened / closed))
    return float(np.median(closed)), float(np.median(opened)), ratio


def pages(rows: int) -> dict[str, list[float]]:
    """Returns the milliseconds of requests to a grid, the message to the browser included."""
    random = np.random.default_rng(7)
    kinds = pa.array([f"kind {i:02}" for i in range(16)]).take(
        pa.array(random.integers(0, 16, rows))
    )
    names = pa.array([f"name {i:08}" for i in random.permutation(rows)])
    columns = {"src": random.integers(0, rows, rows), "kind": kinds, "name": names}
    table = pa.table({**columns, "x": random.random(rows)})
    with tempfile.TemporaryDirectory() as folder, nosync_nb.open(Path(folder) / "log") as session:
        edges = session.input("edges", table.slice(0, 0))
        edges.insert(table)
        session.commit()
        settle_background(session)
        grid = GridView(session, "edges")
        grid.summing.close()

        def turn(order: Any, where: str, offsets: Iterator[int]) -> Any:
            return lambda: grid.show(GridRequest(order, where, next(offsets), LIMIT))

        found = {}
        for name, column in (("number", 3), ("text", 2), ("text of few values", 1)):
            order = ((column, True),)
            fresh = iter([0] * 8)
            found[f"first page by a {name}"] = times(turn(order, "", fresh))
            near = iter(range(LIMIT, 9 * LIMIT, LIMIT))
            found[f"next pages by a {name}"] = times(turn(order, "", near))
            far = iter(range(rows // 2, rows // 2 + 8 * LIMIT, LIMIT))
            found[f"pages of the middle by a {name}"] = times(turn(order, "", far))
        where = "x > 0.5 and kind = 'kind 03'"
        found["pages of a filter"] = times(
            turn(((3, True),), where, iter(range(0, 8 * LIMIT, LIMIT)))
        )
        found["summaries of 4 columns"] = times(lambda: _summaries(session), runs=2)
        grid.close()
    return found


def _summaries(session: Any) -> None:
    session.cursor(session["edges"]).profiles()


def r1(edges: int, epochs: int, blocks: int) -> dict[str, dict[str, list[list[float]]]]:
    """Returns the time of an epoch in each block, with a grid open on a stage or an input.

    Of `open` blocks the third figure is the time of the grid's own threads.
    """
    workload = Workload(edges, seed=1)
    found: dict[str, dict[str, list[list[float]]]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        nosync_nb.open(Path(folder) / "log", spark_rows=IN_PROCESS) as session,
    ):
        given, _ = load(session, workload, strings=False)
        changes = workload.epochs((4 * blocks + 1) * epochs + 4 * blocks)
        _block(session, given, changes, epochs)  # warm-up
        for name in ("per_label", "edges"):
            found[name] = {"closed": [], "open": []}
            for _ in range(blocks):
                found[name]["closed"].append(_block(session, given, changes, epochs))
                grid = GridView(session, name)
                grid.show(GridRequest(((1, True),), "", 0, 20))
                for _ in range(2):  # what is loaded and made once
                    _block(session, given, changes, 1)
                    grid.pace.run()
                    grid.summing.run()
                before = grid.pace.spent_s + grid.summing.spent_s
                block = _block(session, given, changes, epochs)
                spent = grid.pace.spent_s + grid.summing.spent_s - before
                found[name]["open"].append([*block, spent / epochs * 1e3])
                grid.close()
    return found


def _block(session: Any, edges: Any, changes: Iterator[Any], epochs: int) -> list[float]:
    """Returns the mean milliseconds of some epochs, of the clock and of all threads."""
    tables = [
        (
            edge_table(c.src, c.dst, strings=False),
            edge_table(c.gone_src, c.gone_dst, strings=False),
        )
        for c in (next(changes) for _ in range(epochs))
    ]
    started, spent = time.perf_counter(), time.process_time()
    for inserts, removals in tables:
        edges.insert(inserts)
        edges.remove(removals)
        session.commit()
    ends = time.perf_counter() - started, time.process_time() - spent
    return [each / epochs * 1e3 for each in ends]


def main() -> None:
    """Runs one of the two."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("pages", "r1"))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--epochs", type=int, default=4000)
    parser.add_argument("--blocks", type=int, default=5)
    options = parser.parse_args()
    if options.what == "pages":
        print(json.dumps({"views": pages(options.rows)}))
    else:
        print(json.dumps({"views": r1(options.rows, options.epochs, options.blocks)}))


if __name__ == "__main__":
    main()
