"""A program that dies under load: it reports its commits, and checks the recovered contents.

All commits follow from the seed and the number of the epoch, so each process can recompute the
contents that its predecessors left. For each line of input, `serve` forks a process that opens the
folder, checks it, commits as fast as possible, and writes a line per event:

    verified EPOCH · returned EPOCH DIGEST · failed TEXT · ended STATUS

Its mode is `load` (die near a step on the disk, at a given moment), `again` (die after the check),
or `stop` (end properly after a few epochs).
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import signal
import sys
import traceback
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import internals
import pandas  # noqa: F401 - Arrow would import it in every life
from models import model
from models.model import Bag

import nosync_nb
from nosync_nb.files.filesystem import File, Files

REGIONS = ("north", "south", "east", "west", None)
EDIT_EVERY = 40


# -- what is committed ---------------------------------------------------------------------------


class World:
    """The contents of the inputs after an epoch, and the changes of the next epoch."""

    def __init__(self, seed: int) -> None:
        self.seed, self.epoch = seed, 0
        self.orders: Bag = Counter()
        self.customers: dict[int, tuple[Any, ...]] = {}
        self.calls: list[tuple[str, str, list[Any]]] = []

    def advance(self) -> None:
        """Advances to the next epoch; `calls` are the method calls that make it."""
        self.epoch += 1
        pick = random.Random(f"{self.seed}-{self.epoch}")
        self.calls = []
        size = 50 if pick.random() < 0.04 else pick.randrange(5)
        self._order("insert", [self._row(pick) for _ in range(size)])
        held = sum(self.orders.values())
        gone = pick.randrange(4) if held < 150 else min(held, 40)
        rows = model.rows(self.orders)
        self._order("remove", pick.sample(rows, min(gone, len(rows))))
        if pick.random() < 0.4:
            count = 30 if pick.random() < 0.05 else pick.randrange(1, 4)
            keys = sorted(pick.sample(range(40), count))
            rows = [(k, f"name{pick.randrange(5)}", pick.choice(REGIONS)) for k in keys]
            self.calls.append(("customers", "upsert", rows))
            self.customers.update((row[0], row) for row in rows)
        if pick.random() < 0.2:
            keys = sorted(pick.sample(range(40), 2))
            self.calls.append(("customers", "delete", keys))
            for k in keys:
                self.customers.pop(k, None)

    def _order(self, call: str, rows: list[Any]) -> None:
        if rows:
            self.calls.append(("orders", call, rows))
            sign = 1 if call == "insert" else -1
            self.orders = model.summed([*self.orders.items(), *((row, sign) for row in rows)])

    def _row(self, pick: random.Random) -> tuple[Any, ...]:
        amount = pick.choice([0.1, 0.2, 0.3, 1e16, -1e16, 7.5, float(pick.randrange(100))])
        tag = pick.choice([None, "a", "b", "ü"])
        return (pick.randrange(30), pick.randrange(40), amount, tag)

    def expected(self) -> dict[str, Bag]:
        """Computes every stage from scratch."""
        customers = model.bag(self.customers.values())
        joined = model.join(self.orders, customers, [(1, 0)], "inner", (4, 3))
        left = model.join(self.orders, customers, [(1, 0)], "left", (4, 3))
        calls = [
            ("count_star", 0), ("sum", 2), ("avg", 2), ("min", 2), ("max", 2), ("count", 3)
        ]  # fmt: skip
        totals = model.aggregated(joined, [5], calls)
        return {
            "orders": self.orders,
            "customers": customers,
            "joined": joined,
            "padded": left,
            "totals": totals,
            "busy": model.filtered(totals, lambda row: row[1] > 2),
            "regions": model.distinct(model.mapped(customers, lambda row: (row[2],))),
            "described": model.mapped(self.orders, described),
            "best": model.reduced(self.orders, [1], lambda _, rows: [best(rows)]),
            "missing": model.except_all(
                model.mapped(self.orders, lambda row: (row[1],)),
                model.mapped(customers, lambda row: (row[0],)),
            ),
            "hops": hops(self.orders, customers),
        }


def worlds(seed: int, upto: int) -> Iterator[World]:
    world = World(seed)
    yield world
    while world.epoch < upto:
        world.advance()
        yield world


def hops(orders: Bag, customers: Bag) -> Bag:
    """The number of orders, each from its id to its customer, that lead from the north to a
    customer.
    """
    north = model.filtered(customers, lambda row: row[2] == "north")
    start = model.mapped(north, lambda row: (row[0], 0))

    def body(held: Bag) -> Bag:
        joined = model.join(held, orders, [(0, 0)], "inner", (2, 4))
        further = model.mapped(joined, lambda row: (row[2], row[1] + 1))
        return model.aggregated(model.concat(further, start), [0], [("min", 1)])

    return model.iterated(start, body)


# -- what is defined -----------------------------------------------------------------------------


def described(row: Any) -> tuple[int, str]:
    return row[0], f"{row[2]:.1f}/{row[3]}"


def best(rows: list[Any]) -> tuple[float, int]:
    return max(row[2] for row in rows), len(rows)


def define(on: nosync_nb.Session) -> list[str]:
    """Defines inputs and stages like cells of a notebook; returns the names of the new ones."""
    orders = on.input("orders", "id int, customer int, amount double, tag string")
    customers = on.input("customers", "customer int, name string, region string", key="customer")
    joined = orders.join(customers, on="customer")
    totals = joined.group_by("region").agg(
        n="count(*)",
        total="sum(amount)",
        mean="avg(amount)",
        low="min(amount)",
        high="max(amount)",
        tagged="count(tag)",
    )
    links = orders.select("id", "customer as next")
    start = customers.filter("region = 'north'").select("customer", "0 as hops")
    reports = on.define(
        {
            "hops": start.iterate(
                lambda held: (
                    held.join(links, on={"customer": "id"})
                    .select("next as customer", "hops + 1 as hops")
                    .concat(start)
                    .group_by("customer")
                    .agg(hops="min(hops)")
                )
            ),
            "joined": joined,
            "padded": orders.join(customers, on="customer", how="left"),
            "totals": totals,
            "busy": totals.filter("n > 2"),
            "regions": customers.select("region").distinct(),
            "described": orders.map(described, "id int, text string"),
            "best": orders.group_by("customer").reduce(
                lambda key, rows: [best(rows)], "most double, n int"
            ),
            "missing": orders.select("customer").except_all(customers.select("customer")),
        }
    )
    return [report.name for report in reports if report.status != "unchanged"]


def edit(on: nosync_nb.Session, bound: int) -> None:
    """Edits `edited`, defines or drops `briefly`, and renames a stage."""
    on.stage("edited", on["orders"].filter(f"id > {bound}"))
    if "briefly" in on:
        on.drop("briefly")
    else:
        on.stage("briefly", on["edited"].select("customer").distinct())
    names = [name for name in ("first_name", "second_name") if name in on]
    if names:
        on.rename(names[0], "second_name" if names[0] == "first_name" else "first_name")
    else:
        on.stage("first_name", on["orders"].filter("amount > 1"))


def edited(on: nosync_nb.Session, name: str, world: World) -> Bag:
    """The rows of a version of `edited`, by the bound in its definition."""
    found = re.search(r"id > (\d+)", on[name].explain())
    assert found, on[name].explain()
    return model.filtered(world.orders, lambda row: row[0] > int(found[1]))


# -- checks --------------------------------------------------------------------------------------


def bag(rows: list[Any]) -> Bag:
    return model.bag(map(tuple, rows))


def check(on: nosync_nb.Session, world: World, at: int | None = None) -> None:
    """Compares every stage with its expected rows."""
    epoch = on.now if at is None else at
    assert world.epoch == epoch, (world.epoch, epoch)
    expected = world.expected()
    for name in on.stages:
        if name in ("edited", "briefly", "first_name", "second_name"):
            continue
        assert bag(on[name].rows(at)) == expected[name], f"{name} at {epoch}"
    for name in ("orders", "customers"):
        assert bag(on[name].rows(at)) == expected[name], f"{name} at {epoch}"
    late: dict[str, Any] = {
        "edited": lambda: edited(on, "edited", world),
        "briefly": lambda: model.distinct(
            model.mapped(edited(on, "edited", world), lambda row: (row[1],))
        ),
    }
    for name in ("first_name", "second_name"):
        late[name] = lambda: model.filtered(world.orders, lambda row: row[2] > 1)
    for name, compute in late.items():
        if name in on and epoch in on[name].history()[0]:
            assert bag(on[name].rows(at)) == compute(), f"{name} at {epoch}"


def check_versions(on: nosync_nb.Session, past: Mapping[int, World]) -> None:
    """Compares the frozen versions with their rows at their last epoch."""
    for name in on.info.reads:
        if name.startswith("edited@"):
            last = on[name].history()[0][-1]
            if last in past:
                assert bag(on[name].rows(at=last)) == edited(on, name, past[last]), name


def digest(on: nosync_nb.Session, at: int | None = None) -> str:
    rows = repr(on["totals"].rows(at)).encode()
    return f"{zlib.crc32(rows):08x}"


def copied(world: World) -> World:
    other = World(world.seed)
    other.epoch, other.orders = world.epoch, Counter(world.orders)
    other.customers = dict(world.customers)
    return other


# -- the life ------------------------------------------------------------------------------------


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def verified(on: nosync_nb.Session, seed: int, exposed: Mapping[int, str]) -> World:
    """Checks the recovered contents, current and past; returns the current world."""
    report = on.recovery
    assert report.resumed_at == on.now
    assert report.recomputed == 0
    assert set(report.stages.values()) <= {"read"}
    assert not report.lost
    assert not report.notes
    assert all(f.memory == on.now for n, f in on.frontiers.items() if "@" not in n)
    pick = random.Random(f"{seed}-{on.now}")
    wanted = {pick.randrange(on.now + 1) for _ in range(2)} | {max(0, on.now - 1)}
    lasts = {on[n].history()[0][-1] for n in on.info.reads if n.startswith("edited@")}
    first = on.epochs()[0].number if "briefly" not in on else 0
    past = {}
    for world in worlds(seed, on.now):
        if world.epoch in lasts:
            past[world.epoch] = copied(world)
        if world.epoch in wanted and world.epoch >= min(first, on.now):
            check(on, world, world.epoch)
    check(on, world)
    check_versions(on, past)
    for epoch, text in exposed.items():
        assert digest(on, epoch) == text, f"epoch {epoch} shows something else than before"
    return world


class Fuse:
    """Kills the process before or after a step on the disk, in any thread."""

    STEPS = (
        *((File, name) for name in ("append", "write_at", "sync")),
        *((Files, name) for name in ("rename", "unlink", "sync_folder", "make_folder")),
    )

    def __init__(self) -> None:
        self.left = math.inf
        for kind, name in self.STEPS:
            setattr(kind, name, self._burning(getattr(kind, name)))

    def light(self, moments: float) -> None:
        """Starts the countdown; infinity stops it."""
        self.left = moments

    def burn(self) -> None:
        self.left -= 1
        if self.left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def _burning(self, step: Any) -> Any:
        def burning(*arguments: Any, **options: Any) -> Any:
            self.burn()
            try:
                return step(*arguments, **options)
            finally:
                self.burn()

        return burning


def live(
    folder: str, seed: int, mode: str, exposed: Mapping[int, str], quota: int, steps: int
) -> None:
    """Runs one process: recovers, checks, and commits until it is killed.

    Args:
        quota: with the mode `load`, the number of epochs before the fuse is lit.
        steps: the number of moments around steps on the disk before the kill.
    """
    fuse = Fuse()
    on = nosync_nb.open(folder)
    if not on.stages:
        define(on)
    world = verified(on, seed, exposed)
    say("verified", on.now)
    if mode == "again":
        os.kill(os.getpid(), signal.SIGKILL)
    assert define(on) == []
    pick = random.Random(f"{seed}-{on.now}-{mode}")
    checked = on.now + 2
    while mode == "load" or on.now < checked + 5:
        world.advance()
        if world.epoch % EDIT_EVERY == 0:
            edit(on, world.epoch % 29)
        for name, call, rows in world.calls:
            getattr(on[name], call)(rows)
        epoch = on.commit(wait="disk" if pick.random() < 0.05 else None)
        assert epoch == world.epoch
        if epoch <= checked:
            check(on, world)
        say("returned", epoch, digest(on))
        quota -= 1
        if quota == 0 and mode == "load":
            fuse.light(steps)
    on.close()


def serve() -> None:
    """Forks a process for each line of input: folder, seed, mode, earlier digests, as JSON."""
    internals.lower_thresholds()
    for line in sys.stdin:
        folder, seed, mode, exposed, *fuse = json.loads(line)
        pid = os.fork()
        if pid == 0:
            try:
                seen = {int(epoch): text for epoch, text in exposed.items()}
                live(folder, seed, mode, seen, *fuse)
                os._exit(0)
            except BaseException:
                say("failed", json.dumps(traceback.format_exc()))
                os._exit(1)
        say("ended", os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    serve()
