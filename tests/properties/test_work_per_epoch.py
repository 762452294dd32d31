"""Work per epoch: it depends on the change, not on the number of epochs.

The states do not grow, because each epoch removes as many rows as it adds. So the rows that
operators touch, sort and merge may not grow with the number of epochs. Loops have their own test.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from checks.touched import growth, work_of
from internals import traces_of

import nosync_nb
from nosync_nb import Collection
from nosync_nb.collections.library import windows
from nosync_nb.trace import compaction
from nosync_nb.trace.compaction import STALL_LAYERS

pytestmark = pytest.mark.usefixtures("no_disk")

GROWTH_MAX = 1.35
START = datetime(2024, 1, 1)
Build = Callable[[Collection, Collection], Collection]
ON = {"on": "ts"}
TAKEN = {"v": "w", "ts": "at"}

OPERATORS: dict[str, Build] = {
    "filter": lambda a, b: a.filter("v % 2 = 0"),
    "filter by function": lambda a, b: a.filter(lambda row: row.v % 2 == 0),
    "select": lambda a, b: a.select("k", "v + 1 as w"),
    "with_columns": lambda a, b: a.with_columns(w="v * 2"),
    "drop, rename": lambda a, b: a.drop("ts").rename(v="w"),
    "map": lambda a, b: a.map(lambda row: (row.k, row.v), "k bigint, w bigint"),
    "flat_map": lambda a, b: a.flat_map(lambda row: [(row.k,), (row.v,)], "n bigint"),
    "explode": lambda a, b: a.select("k", "explode(array(k, v)) AS n"),
    "concat": lambda a, b: a.concat(b),
    "negate": lambda a, b: a.concat(b.negate()),
    "distinct": lambda a, b: a.select("k").distinct(),
    "except_all": lambda a, b: a.except_all(b),
    "subtract": lambda a, b: a.subtract(b),
    "threshold": lambda a, b: a.select("k").threshold(lambda n: min(n, 2)),
    "consolidate": lambda a, b: a.select("k").consolidate(),
    "multiplicity": lambda a, b: a.select("k").multiplicity(),
    "join": lambda a, b: a.join(b.rename(TAKEN), on="k"),
    "join left": lambda a, b: a.join(b.rename(TAKEN), on="k", how="left"),
    "join right": lambda a, b: a.join(b.rename(TAKEN), on="k", how="right"),
    "join full": lambda a, b: a.join(b.rename(TAKEN), on="k", how="full"),
    "join semi": lambda a, b: a.join(b, on="k", how="semi"),
    "join anti": lambda a, b: a.join(b, on="k", how="anti"),
    "join with itself": lambda a, b: a.join(a.rename(TAKEN), on="k"),
    "join of a join": lambda a, b: a.join(b.rename(TAKEN), on="k").join(a.select("k"), on="k"),
    "agg": lambda a, b: a.group_by("k").agg(n="count(*)", s="sum(v)", m="avg(v)"),
    "agg of all": lambda a, b: a.agg(n="count(*)", s="sum(v)"),
    "min, max": lambda a, b: a.group_by("k").agg(low="min(v)", high="max(v)"),
    "count distinct": lambda a, b: a.group_by("k").agg(n="count(distinct v)"),
    "collect": lambda a, b: a.group_by("k").agg(each="collect_list(v)"),
    "reduce": lambda a, b: a.group_by("k").reduce(lambda k, rows: [(len(rows),)], "n bigint"),
    "top": lambda a, b: a.group_by("k").top(2, by="v desc"),
    "rank": lambda a, b: a.group_by("k").rank("v", 3),
    "lag": lambda a, b: a.window("k", "ts").with_columns(before="lag(v)"),
    "rows of a window": lambda a, b: a.window("k", "ts", rows_between=(-2, 2)).with_columns(
        s="sum(v)", m="max(v)", n="count(distinct v)"
    ),
    "positions": lambda a, b: a.window("k", "ts").with_columns(
        n="row_number()", d="dense_rank()", s="sum(v)", p="percent_rank()"
    ),
    "times of a window": lambda a, b: a.window(
        "k", "ts", range_between=(timedelta(minutes=-30), 0)
    ).with_columns(s="sum(v)"),
    "tumbling": lambda a, b: (
        windows.tumbling(a, every="1 hour", **ON).group_by("window_start").count()
    ),
    "sliding": lambda a, b: windows.sliding(a, size="2 hours", every="1 hour", **ON),
    "sessions": lambda a, b: windows.sessions(a, gap="10 minutes", keys="k", **ON),
    "retained": lambda a, b: windows.retained(a, retain="1 day", grain="1 hour", **ON),
    "asof_join": lambda a, b: windows.asof_join(a, b.rename(v="w"), on="k", time="ts"),
}


class Rows:
    """Rows of an input; each removed row is replaced by another of its key."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.chance = random.Random(seed)
        self.held = [self._row(number % 8) for number in range(24)]

    def _row(self, key: int) -> tuple[int, int, datetime]:
        at = START + timedelta(minutes=self.chance.randrange(600))
        return key, self.chance.randrange(1000), at

    def change(self, session: nosync_nb.Session, count: int) -> None:
        """Replaces some rows."""
        gone = [self.held.pop(self.chance.randrange(len(self.held))) for _ in range(count)]
        come = [self._row(row[0]) for row in gone]
        self.held += come
        session.inputs[self.name].remove(gone)
        session.inputs[self.name].insert(come)


@pytest.fixture
def small_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merges of young layers repeat every few epochs, not every hundred."""
    monkeypatch.setattr(compaction, "INLINE_ROWS", 64)
    monkeypatch.setattr(compaction, "YOUNG_ROWS", 16)
    monkeypatch.setattr(compaction, "JOINED_MAX", 4)


@pytest.mark.usefixtures("small_layers")
@pytest.mark.parametrize("rows", [pytest.param(2, id="sparse"), pytest.param(8, id="dense")])
@pytest.mark.parametrize("operator", OPERATORS)
def test_cost_of_epoch_depends_on_change_only(operator: str, rows: int, tmp_path: Path) -> None:
    left, right = Rows("left", 1), Rows("right", 2)
    with nosync_nb.open(tmp_path / "log") as session:
        sides = [
            session.input(each.name, "k bigint, v bigint, ts timestamp") for each in (left, right)
        ]
        session.stage("stage", OPERATORS[operator](*sides))
        for each in (left, right):
            session.inputs[each.name].insert(each.held)
        session.commit()

        def change(epoch: int) -> None:
            left.change(session, rows)
            if rows > 2 or epoch % 5 == 0:
                right.change(session, rows)

        touched, ordered = work_of(session, change)
        layers = [len(trace.layers) for trace in traces_of(session).values()]
    assert growth(touched) <= GROWTH_MAX
    assert growth(ordered) <= GROWTH_MAX
    assert max(layers) <= STALL_LAYERS  # the worker's and this thread's


def test_probed_state_is_not_sorted_again_each_epoch(
    tmp_path: Path,
) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        numbers = session.input("numbers", "k bigint, v bigint")
        session.stage("pairs", numbers.join(numbers.rename(v="w"), on="k"))

        def change(epoch: int) -> None:
            numbers.insert([(epoch, epoch)])

        _, ordered = work_of(session, change, 100)
    assert sum(ordered) <= 100 * 24  # O(log n) for each of four copies of a row, not O(n)
