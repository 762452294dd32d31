"""Branches and rewinds of stages at every durability level: against evaluation from scratch.

A session has stages that read each other, durable in memory, on disk and on replicas; some are
nondeterministic. They are defined before or after the epoch to which the session returns. Then the
session is branched, rewound, follows its parent and is reopened, in any order. After each step
every readable epoch of every stage equals evaluation from scratch.

Of a nondeterministic stage only the deterministic columns are compared. A memoised result stays as
long as its source row, also on a branch and after a rewind. Only stages that lost memoised results
are stale, and the stages that read them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from zlib import crc32

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from internals import rebuild, services_of
from soak import tried

import nosync_nb
from nosync_nb import Session, TimeError
from nosync_nb.dataflow.stage import StageOptions
from nosync_nb.session.durability.replication import ReplicationService
from nosync_nb.session.state.worker import BackgroundWorker
from nosync_nb.store import point_in_time

pytestmark = [
    pytest.mark.usefixtures("no_disk"),
    pytest.mark.filterwarnings("ignore:.*before the restart"),  # random rows may be equal
]

Rows = Counter[tuple[int, int]]
Held = Counter[tuple[Any, ...]]

LEVELS = ("memory", "disk", "replicas")


def _components(rows: Rows) -> Held:
    """The nodes of a graph, each with the smallest node of its component."""
    least = {node: node for edge in rows for node in edge}
    for _ in least:
        for a, b in rows:
            least[a] = least[b] = min(least[a], least[b])
    return Counter(least.items())


def _groups(rows: Rows) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for k, v in rows.elements():
        groups.setdefault(k, []).append(v)
    return groups


def _plus(rows: Rows) -> Rows:
    return Counter({(k + 1, v): n for (k, v), n in rows.items()})


def _totals(rows: Rows) -> Held:
    return Counter((k, len(v), max(v)) for k, v in _groups(_plus(rows)).items())


def _both(rows: Rows) -> Held:
    made: Held = Counter()
    for (k, v), count in rows.items():
        for key, n, _ in _totals(rows):
            made[k, v, n] += count * (key == k)
    return +made


def _counts(rows: Rows) -> Held:
    return Counter((k, len(v)) for k, v in _groups(rows).items())


def _large(rows: Rows) -> Rows:
    return Counter({row: n for row, n in rows.items() if row[1] > 3})


class Case(NamedTuple):
    """A stage.

    Attributes:
        define: its definition over the input and other stages.
        holds: its rows for rows of the input, without the columns of `values`.
        leveled: True if it has the durability level of the test.
        values: the number of nondeterministic columns at its end.
        source: the source of a result, by the other columns of its row; None: `holds`.
    """

    define: Callable[[Session], Any]
    holds: Callable[[Rows], Counter[Any]]
    leveled: bool = False
    values: int = 0
    source: Callable[[Rows, Any], Hashable] | None = None


def _group(rows: Rows, held: tuple[int, ...]) -> Hashable:
    return tuple(sorted(_groups(rows).get(held[0], ())))


def _edges(collection: Any) -> Any:
    return collection.select("k as src", "v as dst")


def _drawn(session: Session) -> Any:
    return session["rows"].with_columns(r="rand()")


CASES = {
    "plus": Case(lambda s: s["rows"].select("k + 1 as k", "v"), _plus, leveled=True),
    "kinds": Case(lambda s: s["plus"].distinct(), lambda r: Counter({*_plus(r)})),
    "totals": Case(
        lambda s: s["plus"].group_by("k").agg(n="count(*)", most="max(v)"), _totals, leveled=True
    ),
    "both": Case(
        lambda s: s["rows"].join(s["totals"].select("k", "n"), on="k").select("k", "v", "n"), _both
    ),
    "over": Case(
        lambda s: s["both"].filter("n > 1").select("k", "v"),
        lambda r: Counter({(k, v): c for (k, v, n), c in _both(r).items() if n > 1}),
        leveled=True,
    ),
    "parts": Case(
        lambda s: nosync_nb.graphs.connected_components(_edges(s["plus"])),
        lambda r: _components(_plus(r)),
        leveled=True,
    ),
    "sizes": Case(
        lambda s: s["parts"].group_by("component").agg(n="count(*)"),
        lambda r: Counter(Counter(c for _, c in _components(_plus(r))).items()),
    ),
}

DRAWN = {
    "tags": Case(_drawn, lambda r: r, values=1),
    "late_tags": Case(
        lambda s: s["rows"].filter("v > 3").with_columns(u="uuid()"), _large, values=1
    ),
    "looped": Case(
        lambda s: nosync_nb.graphs.connected_components(_edges(s["rows"])).with_columns(r="rand()"),
        _components,
        values=1,
    ),
    "highest": Case(
        lambda s: _drawn(s).group_by("k").agg(n="count(*)", top="max(r)"),
        _counts,
        values=1,
        source=_group,
    ),
    "sums": Case(
        lambda s: _drawn(s).filter("v > 3").group_by("k").agg(n="count(*)", total="sum(r)"),
        lambda r: _counts(_large(r)),
        values=1,
        source=lambda r, held: _group(_large(r), held),
    ),
    "reduced": Case(
        lambda s: (
            s["rows"]
            .group_by("k")
            .reduce(lambda key, rows: [(len(rows), random.random())], "n bigint, r double")
        ),
        _counts,
        values=1,
        source=_group,
    ),
    "mapped": Case(
        lambda s: s["plus"].map(
            lambda row: (row.k, row.v, random.random()), "k bigint, v bigint, r double"
        ),
        _plus,
        values=1,
    ),
    "tag_counts": Case(lambda s: s["tags"].group_by("k").agg(n="count(*)"), _counts, leveled=True),
    "tag_roots": Case(
        lambda s: s["looped"].select("component").distinct(),
        lambda r: Counter({(c,): 1 for _, c in _components(r)}),
    ),
}
CASES |= DRAWN
BASES = {"plus", "totals", "parts", "tags", "looped", "highest", "sums", "reduced"}
"""The stages that are defined early if their readers are defined late."""

READS = {
    "kinds": ("plus",),
    "totals": ("plus",),
    "both": ("totals",),
    "over": ("both",),
    "parts": ("plus",),
    "sizes": ("parts",),
    "mapped": ("plus",),
    "tag_counts": ("tags",),
    "tag_roots": ("looped",),
}


class World:
    """A session and its model: the rows of its input and the known results of its stages.

    Attributes:
        epochs: the rows of the input at each epoch.
        was: by nondeterministic stage and epoch, its rows.
        begin: the first epoch of its log, which has no frame of an earlier one.
        lost: the stages whose memoised results may be lost, and those that read one.
        parents: the sessions that this one was branched from, with their model.
    """

    def __init__(self, folder: Path, level: str, seed: int, *, frames: bool) -> None:
        self.level, self.frames, self.chance = level, frames, random.Random(seed)
        self.session = nosync_nb.open(folder / "log")
        self.session.input("rows", "k bigint, v bigint")
        self.epochs: list[Rows] = [Counter()]
        self.defined: set[str] = set()
        self.was: dict[str, dict[int, Held]] = {name: {} for name in DRAWN}
        self.lost: set[str] = set()
        self.parents: list[tuple[Session, list[Rows], int]] = []
        self.count = self.begin = 0

    def define(self, names: Iterable[str]) -> None:
        for name in CASES:
            case = CASES[name]
            if name in names and name not in self.defined:
                persist = self.level if case.leveled else ""
                kept = StageOptions(nondeterministic=case.values > 0, persist=persist)
                services_of(self.session).definitions.define_checked(
                    {name: case.define(self.session)}, kept
                )
                self.defined.add(name)

    def commit(self) -> None:
        """An epoch of any changes, the first ones with small values."""
        chance, now = self.chance, Counter(self.epochs[-1])
        most = 3 if len(self.epochs) < 4 else 6
        more = [(chance.randrange(4), chance.randrange(most)) for _ in range(chance.randrange(4))]
        gone = [row for row in now.elements() if chance.random() < 0.2]
        self._committed(more, gone)

    def clear(self) -> None:
        """An epoch after which the input is empty."""
        self._committed([], [*self.epochs[-1].elements()])

    def _committed(self, more: list[tuple[int, int]], gone: list[tuple[int, int]]) -> None:
        self.session.inputs["rows"].insert(more)
        self.session.inputs["rows"].remove(gone)
        now = Counter(self.epochs[-1])
        now.update(more)
        now.subtract(gone)
        assert self.session.commit() == len(self.epochs)
        self.epochs.append(+now)

    def branch(self) -> None:
        """Branches at any epoch and continues in the branch."""
        at, self.count = self.chance.randrange(len(self.epochs)), self.count + 1
        known = self.known(at)
        self.parents.append((self.session, [*self.epochs], at))
        self.session = self.session.branch(f"b{self.count}", at=at)
        self.returned(at, known)
        self.begin = at

    def rewind(self) -> None:
        at = self.chance.randrange(len(self.epochs))
        known = self.known(at)
        self.session.rewind(to=at)
        if self.parents and at < self.parents[-1][2]:
            self.parents[-1] = (*self.parents[-1][:2], -1)
        self.returned(at, known)

    def known(self, at: int) -> set[str]:
        """The stages that are readable at an epoch."""
        return {name for name in self.defined if at in self.readable(name)}

    def readable(self, name: str) -> list[int]:
        return [epoch for each in self.session[name].history() for epoch in each]

    def returned(self, at: int, known: set[str]) -> None:
        """Updates the model when the session continues from an epoch."""
        if at == len(self.epochs) - 1:
            return
        has_frames = self.frames and at >= self.begin
        for name, was in self.was.items():
            self.was[name] = {e: r for e, r in was.items() if e <= at and name in known}
            if name in known and CASES[name].values and self.epochs[at] and not has_frames:
                self.lost.add(name)
        self.epochs = self.epochs[: at + 1]
        for name, reads in READS.items():
            if self.lost.intersection(reads):
                self.lost.add(name)

    def follow(self) -> None:
        """Follows the parent as far as possible."""
        if not self.parents or self.parents[-1][2] < 0:
            return
        parent, epochs, taken = self.parents[-1]
        for at in range(taken + 1, len(epochs)):
            now = Counter(self.epochs[-1])
            now.update(epochs[at])
            now.subtract(epochs[at - 1])
            if any(count < 0 for count in now.values()):
                break  # the parent removes a row that is not there
            assert self.session.follow(parent, upto=at) == len(self.epochs)
            self.epochs.append(+now)
            self.parents[-1] = (parent, epochs, at)

    def reopen(self) -> None:
        path = self.session.path
        self.session.close()
        self.session = nosync_nb.open(path)

    def kill(self) -> None:
        """Another process takes over from a dead one."""
        before = self.session
        self.session = nosync_nb.open(before.path, takeover=True)
        before.close()

    def rebuild(self) -> None:
        rebuild(self.session)

    def check(self) -> None:
        """Compares every readable epoch of every stage with evaluation from scratch."""
        session, now = self.session, len(self.epochs) - 1
        assert session.now == now
        assert session.stale.keys() <= self.lost, session.stale
        for why in session.stale.values():
            assert "memoised" in why or "stale" in why or "is unknown" in why, why
        for name in self.defined:
            self.holds(name, CASES[name])

    def holds(self, name: str, case: Case) -> None:
        epochs = self.readable(name)
        if not epochs:
            assert name in self.session.stale, name
            with pytest.raises(TimeError):
                self.session[name].rows()
        elif name not in self.session.stale:
            assert epochs[-1] == self.session.now, (name, epochs)
            now = [tuple(row) for row in self.session[name].rows()]
            assert Counter(now) == Counter(map(tuple, self.session[name].rows(at=epochs[-1])))
        for at in epochs:
            rows = Counter(tuple(row) for row in self.session[name].rows(at=at))
            held: Held = Counter()
            for row, count in rows.items():
                held[row[: len(row) - case.values]] += count
            assert held == case.holds(self.epochs[at]), (name, at)
            if name in self.was:
                assert self.was[name].setdefault(at, rows) == rows, (name, at)
        for before, after in pairwise(epochs) if case.values else ():
            if after == before + 1:
                self.stays(name, case, before, after)

    def stays(self, name: str, case: Case, before: int, after: int) -> None:
        """A memoised result stays at the next epoch if its source row does."""
        found = []
        for at in (before, after):
            values: dict[Any, set[Any]] = {}
            for row in self.was[name][at]:
                held = row[: -case.values]
                source = held if case.source is None else case.source(self.epochs[at], held)
                values.setdefault((held, source), set()).add(row[-case.values :])
            found.append(values)
        for each in found[0].keys() & found[1].keys():
            assert found[0][each] == found[1][each], (name, before, each)

    def close(self) -> None:
        for session in (self.session, *(parent for parent, _, _ in self.parents)):
            session.close()


STEPS = ("commit", "clear", "branch", "rewind", "follow", "reopen", "kill", "rebuild")
WHEN = ("before", "readers after", "after")


@pytest.fixture(autouse=True)
def quiet(own_key: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops shipping and background work; the steps do the work."""
    monkeypatch.setattr(ReplicationService, "start", lambda self: None)
    monkeypatch.setattr(BackgroundWorker, "submit", lambda *_, **__: False)


def run(level: str, when: str, steps: Iterable[str], seed: int, *, frames: bool) -> None:
    with TemporaryDirectory() as folder:
        world = World(Path(folder), level, seed, frames=frames)
        try:
            if when != "after":
                world.define(CASES if when == "before" else BASES)
            for epoch in range(1, 7):
                world.commit()
                if epoch == 4:
                    world.define(CASES)
            world.check()
            for step in steps:
                getattr(world, step)()
                world.check()
            world.commit()
            world.check()
        finally:
            world.close()


SEQUENCES = (
    ["branch"],
    ["rewind"],
    ["branch", "clear", "reopen"],
    ["rewind", "kill", "clear"],
    ["branch", "follow"],
    ["rewind", "rebuild", "branch"],
    ["branch", "commit", "rewind", "reopen"],
    ["kill", "branch", "branch", "follow"],
)


@pytest.mark.parametrize("steps", SEQUENCES, ids="-".join)
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("level", LEVELS)
def test_every_read_equals_evaluation_from_scratch(
    level: str, when: str, steps: list[str], seed: int
) -> None:
    """With the frames since the epoch, no memoised result is lost."""
    run(level, when, steps, seed, frames=True)


@pytest.fixture
def seed(level: str, when: str, steps: list[str]) -> int:
    """Derives the seed from the case, so that every run is equal."""
    return crc32(repr((level, when, steps)).encode())


@settings(max_examples=tried(25, 10_000))
@given(
    level=st.sampled_from(LEVELS),
    when=st.sampled_from(WHEN),
    frames=st.booleans(),
    steps=st.lists(st.sampled_from(STEPS), min_size=1, max_size=6),
    seed=st.integers(0, 2**32 - 1),
)
@example("replicas", "readers after", False, ["branch", "kill", "branch"], 477)
@example("memory", "before", True, ["branch", "clear", "reopen", "clear"], 22)
@example("disk", "readers after", False, ["rewind"], 381)
def test_only_lost_results_make_a_stage_stale(
    level: str, when: str, frames: bool, steps: list[str], seed: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if not frames:  # no frame of an old epoch is read
            patch.setattr(point_in_time, "EPOCHS_MAX", -(1 << 40))
        run(level, when, steps, seed, frames=frames)
