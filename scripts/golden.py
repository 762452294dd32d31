"""Writes tests/data/v1 anew: logs that later releases have to open, and what they hold.

Run it by hand when the format of the log changes, and say so in the change log:

    scripts/run python scripts/golden.py

A log is copied while its session lives, as a dead kernel would leave it; the same session then goes
on to tell what follows. Before anything is kept, each stage is held at each of its epochs against a
session that was given the rows of that epoch at once. The key is made once and stays; everybody
has it, so it must never be anybody's own. What the logs hold is the same each time, and they name
no machine; when their threads synced, merged and packed is not.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import runpy
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import cloudpickle
import golden_logs as golden
import pytest

import nosync_nb
from nosync_nb import Session, graphs, windows
from nosync_nb.collections.functions import signing
from nosync_nb.files.filesystem import Files
from nosync_nb.session.maintenance import maintenance
from nosync_nb.session.session import owners_of
from nosync_nb.store import store
from nosync_nb.store.log import log, owner, segments, writer
from nosync_nb.store.log.owner import HostIdentity, LogLocation, ProcessIdentity
from nosync_nb.trace import compaction, merge
from nosync_nb.trace.history import sections

SIZE_MAX = 2_000_000
EPOCHS = 40
UNITS = ("cents", "marks")
ONCE_ONLY = {"drawn"}
"""Stages that would be something else if they were computed again."""


@contextmanager
def reproducible() -> Iterator[None]:
    """A block in which times and names follow from a seed, and no machine is named."""
    pick, ticks = random.Random("golden"), itertools.count(1_767_225_600)
    who = ProcessIdentity("golden", "golden", "golden", 1, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HostIdentity, "identity", lambda machine: who)
        patch.setattr(time, "time", lambda: float(next(ticks)))
        patch.setattr(HostIdentity, "now_ms", lambda machine: 1_767_225_600_000)
        patch.setattr(os, "urandom", pick.randbytes)
        patch.setattr(uuid, "uuid4", lambda: uuid.UUID(bytes=pick.randbytes(16), version=4))
        patch.setattr(sys, "argv", ["golden"])
        yield


@contextmanager
def small() -> Iterator[None]:
    """A block in which few rows make files, checkpoints, packs and merges."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (store, maintenance):
            patch.setattr(module, "SPILL_ROWS", 40)
        patch.setattr(store, "SPILL_BYTES", 4000)
        patch.setattr(store, "SETTLED_BYTES", 2500)
        patch.setattr(merge, "RANGE_ROWS", 200)
        patch.setattr(log, "CHECKPOINT_FRAMES", 3)
        for module in (segments, writer):
            patch.setattr(module, "SEGMENT_BYTES_MAX", 16 << 10)
        patch.setattr(compaction, "INLINE_ROWS", 32)
        patch.setattr(compaction, "YOUNG_ROWS", 8)
        patch.setattr(sections, "LARGE", 40)
        yield


# -- a log of orders: every operator but loops, edits, versions, keyed rows, once-keys ----------


def scaled(by: float, unit: str) -> Callable[[Any], tuple[int, float, str, date]]:
    """A function that captures values, a module's constant and another function."""

    def scale(row: Any) -> tuple[int, float, str, date]:
        return row.id, row.amount * by, f"{unit}/{UNITS[row.id % 2]}", day(row.id)

    return scale


def day(number: int) -> date:
    """What the function above calls."""
    return date(2026, 1, 1) + timedelta(days=number % 40)


def letters(least: int) -> Callable[[Any], Iterator[tuple[int, str]]]:
    """A function that gives any number of rows for one."""
    return lambda row: ((row.id, c) for c in sorted(set(row.tag or "")) if ord(c) > least)


def spread(key: Any, rows: list[Any]) -> Iterator[tuple[float, int]]:
    """A function of a group."""
    amounts = [row.amount for row in rows]
    yield max(amounts) - min(amounts), len(rows)


def halved(count: int) -> int:
    """A function of a count."""
    return count // 2


def define_orders(on: Session) -> None:
    """Inputs and stages, as cells define them."""
    orders = on.input("orders", "id int, customer int, amount double, tag string")
    customers = on.input("customers", golden.CUSTOMERS, key="customer")
    joined = orders.join(customers, on="customer")
    owners_of(on).definitions.define(
        {
            "joined": joined,
            "padded": orders.join(customers, on="customer", how="full"),
            "known": orders.join(customers, on="customer", how="semi"),
            "totals": joined.group_by("region").agg(
                n="count(*)",
                total="sum(amount)",
                mean="avg(amount)",
                low="min(amount)",
                high="max(amount)",
                tags="collect_set(tag)",
                deviation="stddev(amount)",
                credit="sum(credit)",
            ),
            "regions": customers.select("region").distinct(),
            "missing": orders.select("customer").except_all(customers.select("customer")),
            "never": customers.select("customer").subtract(orders.select("customer")),
            "twice": orders.select("customer").multiplicity(),
            "pairs": orders.select("customer").threshold(halved),
            "dearest": orders.group_by("customer").top(2, by="amount desc, id"),
            "third": orders.group_by("customer").rank("amount desc, id", 2, offset=1),
            "all_in_all": orders.agg(n="count(*)", total="sum(amount)"),
            "scaled": orders.map(scaled(0.5, "half"), "id int, amount double, unit string, d date"),
            "letters": orders.flat_map(letters(ord("d")), "id int, letter string"),
            "spread": orders.group_by("customer").reduce(spread, "spread double, n int"),
        }
    )
    owners_of(on).definitions.define(
        {"busy": on["totals"].filter("n > 3"), "wide": on["spread"].filter("spread > 10")}
    )


def draw(row: Any) -> tuple[int, int]:
    """A function that gives something else each time."""
    import random

    return row.x, random.randrange(1_000_000)


def next_orders(on: Session) -> None:
    """The changes of an epoch."""
    pick = random.Random(f"orders-{on.now}")
    size = 45 if on.now % 20 == 7 else pick.randrange(5)
    tags = [None, "alpha", "béta", "gamma"]
    held = on["orders"].rows()
    on["orders"].insert(
        [
            (pick.randrange(200), pick.randrange(12), pick.randrange(400) / 8, pick.choice(tags))
            for _ in range(size)
        ]
    )
    on["orders"].remove(pick.sample(held, min(len(held), 30 if len(held) > 60 else 2)))
    if on.now % 3 == 0:
        keys = sorted(pick.sample(range(12), 3))
        places = ["north", "south", None]
        rows = [(k, f"name{pick.randrange(9)}", pick.choice(places)) for k in keys]
        on["customers"].upsert([(*row, Decimal(pick.randrange(999)) / 100) for row in rows])
    if on.now % 7 == 5:
        on["customers"].delete([pick.randrange(12)])
    if on.now % 6 == 4:
        on["draws"].insert([(on.now,), (on.now + 1,)])


def life_of_orders(on: Session) -> None:
    """All that has happened to it."""
    random.seed(7)
    define_orders(on)
    on["orders"].insert(golden.FIRST_ORDERS, once="first")
    on["customers"].upsert([(i, f"name{i}", "north", None) for i in range(6)])
    on.commit(label="first load")
    draws = on.input("draws", "x int")
    on.stage("drawn", draws.map(draw, "x int, drawn int"), nondeterministic=True)
    on.stage("edited", on["orders"].filter("id > 100"))
    on.stage("follows", on["edited"].select("customer").distinct())
    on.stage("short_lived", on["orders"].select("tag").distinct())
    on.stage("plain", on["orders"].filter("amount > 20"))
    while on.now < EPOCHS:
        next_orders(on)
        on.commit(label="halfway" if on.now == EPOCHS // 2 else None)
        owners_of(on).worker.settle()
        if on.now == 12:
            on.stage("edited", on["orders"].filter("id > 50"))
        elif on.now == 20:
            owners_of(on).definitions.define(
                {"edited": on["orders"].map(edit(3), "customer int, id int")}, replay=15
            )
        elif on.now == 24:
            with on.epoch(once="block", label="a block"):
                on["orders"].insert(golden.BLOCK)
        elif on.now == 30:
            on.rename("plain", "dear")
            on.drop("short_lived")
            on.stage("late", on["dear"].group_by("customer").count())


def edit(bound: int) -> Callable[[Any], tuple[int, int]]:
    """A function that is another one for each bound."""
    return lambda row: (row.customer, max(row.id, bound))


def tail_of_orders(on: Session) -> None:
    """What follows its last checkpoint: every kind of frame."""
    next_orders(on)
    on["orders"].insert([(600, 6, 6.0, None)], once=("tail", 1))
    on.commit(label="tail")
    on.stage("edited", on["orders"].map(edit(90), "customer int, id int"))
    on.stage("last", on["late"].filter("count > 1"))
    on.rename("dear", "dearer")
    on.drop("known")
    for _ in range(3):
        next_orders(on)
        on.commit()


# -- a log of a graph and of events: loops and windows -------------------------------------------


def define_graph(on: Session) -> None:
    """Inputs and stages, as cells define them."""
    edges = on.input("edges", "src int, dst int")
    events = on.input("events", "ts timestamp_ntz, k string, v int")
    roots = edges.filter("src = 1").select("src as node").distinct()
    start = roots.select("node", "0 as hops")
    both = on.iterate(
        lambda even, odd: {
            "even": roots.concat(_step(odd, edges)).distinct(),
            "odd": _step(even, edges).distinct(),
        },
        even=roots,
        odd=roots.filter("false"),
    )
    hourly = windows.tumbling(events, on="ts", every="1 hour", retain="6 hours")
    half = windows.sliding(events, on="ts", size="1 hour", every="30 minutes")
    quotes = events.filter("k = 'a'").select("ts as seen", "v as quote")
    owners_of(on).definitions.define(
        {
            "hops": start.iterate(
                lambda held: (
                    held.join(edges, on={"node": "src"})
                    .select("dst as node", "hops + 1 as hops")
                    .concat(start)
                    .group_by("node")
                    .agg(hops="min(hops)")
                )
            ),
            "near": roots.iterate(lambda n: n.concat(_step(n, edges)).distinct(), rounds=2),
            "even": both["even"],
            "odd": both["odd"],
            "reached": graphs.reachable(edges, roots),
            "together": graphs.connected_components(edges),
            "strongly": graphs.strongly_connected_components(edges),
            "core": graphs.k_core(edges, 2),
            "triangles": graphs.triangles(edges),
            "hourly": hourly.group_by("window_start", "k").agg(n="count(*)", v="sum(v)"),
            "half_hourly": half.group_by("window_end").agg(most="max(v)", whose="max_by(k, v)"),
            "visits": windows.sessions(events, on="ts", gap="20 minutes", keys="k"),
            "quoted": windows.asof_join(events, quotes, time={"ts": "seen"}, tolerance="3 hours"),
        }
    )
    owners_of(on).definitions.define({"far": on["hops"].map(distance(2), "node int, far boolean")})


def _step(nodes: Any, edges: Any) -> Any:
    return nodes.join(edges, on={"node": "src"}).select("dst as node")


def distance(most: int) -> Callable[[Any], tuple[int, bool]]:
    """A function over what a loop gives."""
    return lambda row: (row.node, row.hops > most)


def next_graph(on: Session) -> None:
    """The changes of an epoch."""
    pick = random.Random(f"graph-{on.now}")
    here = datetime(2026, 3, 1) + timedelta(minutes=23 * on.now)
    edges, events = on["edges"].rows(), on["events"].rows()
    on["edges"].insert([(pick.randrange(14), pick.randrange(14)) for _ in range(2)])
    on["events"].insert(
        [
            (here - timedelta(seconds=pick.randrange(9000)), pick.choice("abc"), pick.randrange(50))
            for _ in range(3)
        ]
    )
    if on.now > 8:
        on["edges"].remove(pick.sample(edges, 2))
        on["events"].remove(pick.sample(events, 2))


def life_of_graph(on: Session) -> None:
    """All that has happened to it, the last half of it to its second owner."""
    if not on.stages:
        define_graph(on)
    whose = "second" if on.now else "first"
    for epoch in range(13):
        next_graph(on)
        on.commit(label=f"{whose} owner" if epoch == 12 else None)
        owners_of(on).worker.settle()


# -- a log that went back, and its branches -------------------------------------------------------


def define_forks(on: Session) -> None:
    """Inputs and stages, as cells define them."""
    rows = on.input("rows", "k int, v int")
    named = on.input("named", "k int, name string", key="k")
    joined = rows.join(named, on="k")
    owners_of(on).definitions.define(
        {
            "some": rows.filter("v > 3"),
            "sums": rows.group_by("k").agg(n="count(*)", total="sum(v)"),
            "joined": joined,
            "most": joined.group_by("name").agg(most="max(v)"),
        }
    )
    owners_of(on).definitions.define({"many": on["sums"].filter("n > 2")}, persist="disk")


def define_what_if(on: Session) -> None:
    """The same with what was tried there."""
    define_forks(on)
    on.stage("some", on["rows"].filter("v > 6"))
    on.stage("brief", on["some"].group_by("k").agg(n="count(*)"), persist="memory")


def next_forks(on: Session, what: str = "", label: str | None = None) -> None:
    """The changes of an epoch."""
    pick = random.Random(f"forks-{what}-{on.now}")
    held = [] if what == "what_if" else on["rows"].rows()  # it is to follow what removes some
    on["rows"].insert(
        [(pick.randrange(6), pick.randrange(12)) for _ in range(pick.randrange(2, 6))]
    )
    on["rows"].remove(pick.sample(held, min(len(held), 2)))
    if on.now % 2 == 0:
        on["named"].upsert([(k, pick.choice(["one", "two", "née"])) for k in {on.now % 6, 3}])
    on.commit(label=label)
    owners_of(on).worker.settle()


def life_of_forks(on: Session) -> None:
    """All that has happened to it: it went back from epoch 10 to 7."""
    define_forks(on)
    for label in ("begun", None, None, None, None, "halfway", None, None):
        next_forks(on, label=label)
    on.pin(1, "first")
    on.pin(4, "kept")
    with on.branch("what_if", at=6) as branch:
        branch.stage("some", branch["rows"].filter("v > 6"))
        branch.stage("brief", branch["some"].group_by("k").agg(n="count(*)"), persist="memory")
        for _ in range(3):
            next_forks(branch, "what_if")
        with branch.branch("inner", at=8) as inner:
            next_forks(inner, "inner")
            inner.rename("some", "others")
        branch.follow(on, upto=8)
    for _ in range(2):
        next_forks(on)
    assert on.rewind(to=7).branch == "before-rewind-1"
    while on.now < 13:
        next_forks(on, "again")
    on.retain = 8


def tail_of_forks(on: Session) -> None:
    """What follows its last checkpoint: another rewind among it."""
    for _ in range(2):
        next_forks(on, "left")
    assert on.rewind(to=14).branch == "before-rewind-2"
    on.stage("some", on["rows"].filter("v > 4"))
    next_forks(on, "tail")
    next_forks(on, "tail", "tail")


def define_later_forks(on: Session) -> None:
    """All that its stages are in the end."""
    define_forks(on)
    on.stage("some", on["rows"].filter("v > 4"))


def kept_branches(log: Path) -> dict[str, Any]:
    """What the branches of the log that was kept show, and will after more epochs."""
    found = {}
    for name in golden.BRANCHES:
        with tempfile.TemporaryDirectory() as folder:
            copy = golden.copied(log.name, Path(folder))
            with nosync_nb.open(golden.branch_of(copy, name)) as branch:
                found[name] = golden.shown(branch)
                golden.go_on(branch, log.name)
                if name.startswith("before"):
                    for at in range(branch.now + 1):
                        from_scratch(branch, define_forks, at)
                elif name == "what_if":
                    for at in range(branch.now + 1):
                        from_scratch(branch, define_what_if, at)
                found[name]["after"] = golden.newest(branch)
    return found


# -- what is kept --------------------------------------------------------------------------------


def from_scratch(session: Session, define: Callable[[Session], None], at: int) -> None:
    """Holds what a log shows at an epoch against what its inputs of then give at once.

    Of an epoch of which an input is not known any more nothing is held.
    """
    if any(all(at not in epochs for epochs in each.history()) for each in session.inputs.values()):
        return
    with tempfile.TemporaryDirectory() as folder, nosync_nb.open(folder) as other:
        define(other)
        for name in other.inputs:
            other[name].insert(session[name].rows(at=at))
        other.commit()
        for name in other.stages.keys() & session.stages.keys() - ONCE_ONLY:
            if any(at in epochs for epochs in session[name].history()):
                assert session[name].rows(at=at) == other[name].rows(), (name, at)


def define_later_orders(on: Session) -> None:
    """All that its stages are in the end, over inputs that are all there."""
    define_orders(on)
    on.stage("dearer", on["orders"].filter("amount > 20"))
    on.stage("late", on["dearer"].group_by("customer").count())
    on.stage("last", on["late"].filter("count > 1"))
    on.stage("edited", on["orders"].map(edit(90), "customer int, id int"))
    on.stage("follows", on["edited"].select("customer").distinct())


def kept(session: Session, name: str, define: Callable[[Session], None]) -> dict[str, Any]:
    """Copies a log as it is now; returns what it shows, and what it will after more epochs."""
    if not session.closed:
        session.sync()
    shutil.rmtree(golden.GOLDEN / name, ignore_errors=True)
    shutil.copytree(session.path, golden.GOLDEN / name)
    placed(golden.GOLDEN / name)
    if session.closed:
        session = nosync_nb.open(session.path)
    found = golden.shown(session)
    golden.go_on(session, name)
    for at in range(session.now + 1):
        from_scratch(session, define, at)
    assert session.spark is None, "the logs are opened where there may be none"
    found["after"] = golden.newest(session)
    session.close()
    return found


def placed(log: Path) -> None:
    """Has the owners of a copied log and of its branches say that they lie in no real place."""
    for path in log.rglob("owner"):
        own = owner.read_owner(Files(), str(path.parent))
        assert own is not None
        lies = golden.PLACE / path.parent.relative_to(golden.GOLDEN)
        owner.write_owner(
            Files(), str(path.parent), own._replace(place=LogLocation(str(lies), 1, 1))
        )


def main() -> None:
    """Writes the logs, and what they hold."""
    golden.GOLDEN.mkdir(exist_ok=True)
    if not golden.KEY.exists():
        golden.KEY.write_bytes(signing.key_text(os.urandom(32)))
    found: dict[str, Any] = {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "cloudpickle": str(cloudpickle.__version__),
        "key": "",
    }
    with tempfile.TemporaryDirectory() as home:
        os.environ["NOSYNC_KEY_FILE"] = str(golden.carried(Path(home)))
        os.environ["TZ"] = "UTC"
        time.tzset()
        found["key"] = signing.key_id(signing.user_key(Files()))
        with reproducible(), small():
            orders = nosync_nb.open(Path(home) / "orders")
            life_of_orders(orders)
            owners_of(orders).worker.settle()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(log, "CHECKPOINT_FRAMES", 1 << 20)
                tail_of_orders(orders)
                found["orders"] = kept(orders, "orders", define_later_orders)
            for _ in range(2):
                with nosync_nb.open(Path(home) / "graph") as graph:
                    life_of_graph(graph)
            found["graph"] = kept(graph, "graph", define_graph)
            print("orders, graph done", flush=True)
            forks = nosync_nb.open(Path(home) / "forks")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(log, "CHECKPOINT_FRAMES", 6)
                life_of_forks(forks)
                owners_of(forks).worker.settle()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(log, "CHECKPOINT_FRAMES", 1 << 20)
                tail_of_forks(forks)
                found["forks"] = kept(forks, "forks", define_later_forks)
            found["forks"]["branches"] = kept_branches(golden.GOLDEN / "forks")
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    golden.EXPECTED.write_text(text.replace('"rows":{', '"rows":\n{') + "\n")
    size = sum(path.stat().st_size for path in golden.GOLDEN.rglob("*") if path.is_file())
    assert size <= SIZE_MAX, size
    print(f"{golden.GOLDEN}: {size} bytes")


if __name__ == "__main__":
    if Path(__file__).is_absolute():  # as functions would have it for ever
        os.chdir(Path(__file__).parent)
        runpy.run_path("golden.py", run_name="__main__")
    else:
        main()
