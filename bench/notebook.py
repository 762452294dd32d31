"""The waits of a person at a notebook: steps of views, the import, a killed kernel.

    python -m bench.notebook steps       {what: [first ms, median of others, rows sent]}
    python -m bench.notebook imports     {"engine": [s, ...], "peers": [s, ...]}
    python -m bench.notebook restarts    {"plain": [s, ...], "NoSync": [s, ...]}

A view gets the requests of its front end; its message is built, and sent nowhere. A kernel is
killed and started again as a Jupyter server does it, without the seconds until the server notices.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from internals import settle_background

import nosync_nb
from bench.reads import times
from bench.report import TOP, Goals, Table, run
from nosync.kernelspec import kernel_spec
from nosync_widgets.views.grid import GridRequest, GridView
from nosync_widgets.views.time_slider import TravelView

EPOCHS = 20
ENGINE = "import nosync, nosync_nb; nosync_nb.open"
PEERS = "import pandas, pyarrow"
SETUP = """
orders = nosync.input("orders", "id int, amount double")
for number in range(20):
    with nosync.epoch():
        orders.insert([(100 * number + i, float(i)) for i in range(100)])
large = orders.filter("amount > 50")
nosync.session().stage("large", large)
"""
FIRST = {"plain": "print(20 * 49)", "NoSync": "print(large.count())"}


def notebook(options: argparse.Namespace, goals: Goals) -> None:
    """Measures steps of views over a million rows, the import, and a killed kernel."""
    rows = 100_000 if options.quick else 1_000_000
    table = Table(
        f"Views of a stage of {rows:,} rows", f"{'what':28}", "first ms", "ms", "rows sent"
    )
    for what, (first, then, sent) in run("-m", "bench.notebook", "steps", "--rows", rows)[
        "notebook"
    ].items():
        table.row(what, first, then, int(sent))
        goals.add(f"{what}, ms", then, 50)
        goals.add(f"{what}, rows sent", sent, 200)
    runs = 3 if options.quick else 7
    table = Table("What comes first", f"{'what':34}", "NoSync s", "plain s", "x plain", "more s")
    for title, part, names, most in (
        ("import with engine / pandas, pyarrow", "imports", ("engine", "peers"), 0.5),
        ("SIGKILL to the first answered cell", "restarts", ("NoSync", "plain"), 1.0),
    ):
        found = run("-m", "bench.notebook", part, "--runs", runs)["notebook"]
        ours, plain = (min(found[name]) for name in names)
        table.row(title, ours, plain, ours / plain, ours - plain)
        goals.add(f"{title}, s more", ours - plain, most)


def steps(n: int) -> dict[str, list[float]]:
    """Returns the milliseconds and rows of requests to views and cells."""
    random = np.random.default_rng(7)
    names = pa.array([f"name {i:08}" for i in random.permutation(n)])
    rows = pa.table({"id": np.arange(n), "name": names, "x": random.random(n)})
    with tempfile.TemporaryDirectory() as folder, nosync_nb.open(Path(folder) / "log") as session:
        items = session.input("items", rows.schema)
        stage = session.stage("known", items.filter("x >= 0"))
        items.insert(rows)
        session.commit()
        for epoch in range(EPOCHS):
            gone = stage.head(3)
            items.insert([(n + epoch, "new", 0.5)] * 10)
            items.remove(gone)
            session.commit()
        settle_background(session)
        slider, grid = TravelView(session, "known"), GridView(session, "known")
        grid.summing.close()
        places, pages = cycle(range(2, session.now)), cycle(range(200, n, n // 9))
        asked: dict[str, Callable[[], Any]] = {
            "slider step": lambda: slider.travel(next(places)),
            "page by x": lambda: grid.show(GridRequest(((2, True),), "", next(pages), 200)),
            "head(20)": lambda: stage.head(20),
            "rows(limit=20)": lambda: stage.rows(limit=20),
        }
        found = {}
        for what, ask in asked.items():
            first, then = times(ask)
            sent = 20
            if what == "slider step":
                sent = len(slider.page["rows"]) + len(slider.page["changes"])
            elif what == "page by x":
                sent = len(grid.page["rows"])
            found[what] = [first, then, sent]
        slider.close()
        grid.close()
    return found


def imports(runs: int) -> dict[str, list[float]]:
    """Returns the seconds of processes that import, in turns."""
    found: dict[str, list[float]] = {"engine": [], "peers": []}
    for _ in range(runs + 1):  # the first time files are read from the disk
        for name, source in (("engine", ENGINE), ("peers", PEERS)):
            begun = time.perf_counter()
            subprocess.run([sys.executable, "-c", source], check=True, cwd=TOP, env=_compiled())
            found[name].append(time.perf_counter() - begun)
    return {name: each[1:] for name, each in found.items()}


def restarts(runs: int) -> dict[str, list[float]]:
    """Returns the seconds from SIGKILL to the reply of the next kernel's first cell, in turns."""
    with kernel("plain") as plain, kernel("NoSync") as ours:
        reply = answer(ours[1], SETUP)
        assert reply["status"] == "ok", reply
        found: dict[str, list[float]] = {"plain": [], "NoSync": []}
        for _ in range(runs):
            for name, each in (("plain", plain), ("NoSync", ours)):
                found[name].append(_revived(*each, FIRST[name]))
    return found


def _compiled() -> dict[str, str]:
    """Returns the environment of processes that find compiled modules, whatever is set outside."""
    return {key: each for key, each in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


def _revived(manager: Any, client: Any, source: str) -> float:
    """Kills a kernel; returns the seconds until the next one has answered a cell."""
    begun = time.perf_counter()
    os.kill(manager.provisioner.pid, signal.SIGKILL)
    manager.restart_kernel(now=True)
    reply = answer(client, source)
    assert reply["status"] == "ok", reply
    return time.perf_counter() - begun


def answer(client: Any, source: str) -> dict[str, Any]:
    """Runs a cell; returns the content of its reply."""
    number = client.execute(source)
    while True:
        reply = client.get_shell_msg(timeout=120)
        if reply["parent_header"].get("msg_id") == number:
            content: dict[str, Any] = reply["content"]
            return content


@contextmanager
def kernel(name: str) -> Iterator[tuple[Any, Any]]:
    """Starts a kernel of that name with a client, in a folder of its own."""
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import KernelManager

    spec = kernel_spec()
    if name == "plain":
        spec["argv"] = spec["argv"][: spec["argv"].index("--ext")]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "specs" / "bench").mkdir(parents=True)
        (Path(folder) / "specs" / "bench" / "kernel.json").write_text(json.dumps(spec), "utf-8")
        specs = KernelSpecManager(kernel_dirs=[str(Path(folder) / "specs")])
        manager: Any = KernelManager(kernel_name="bench", kernel_spec_manager=specs)
        manager.start_kernel(cwd=folder, env={**_compiled(), "NOSYNC_SESSION": "log"})
        client = manager.blocking_client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=120)
            yield manager, client
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)


def main() -> None:
    """Runs one of the three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("steps", "imports", "restarts"))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    if options.what == "steps":
        found = steps(options.rows)
    else:
        found = {"imports": imports, "restarts": restarts}[options.what](options.runs)
    print(json.dumps({"notebook": found}))


if __name__ == "__main__":
    main()
