"""Epochs that change nearly all rows: the operators run from scratch if that is cheaper."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from internals import services_of

import nosync_nb
from nosync_nb import Collection, Session
from nosync_nb.collections.library.graphs import reachable
from nosync_nb.dataflow.runtime import large_epoch, replacement, rerun_cost, runner
from nosync_nb.dataflow.runtime.epoch_result import StageWork
from nosync_nb.session.maintenance import maintenance
from nosync_nb.store import store

ROWS = 6_000
TEXT = "id int, k int, c int, v double, s string, t int"
Rows = list[tuple[Any, ...]]

STAGES: dict[str, Callable[[Session], Collection]] = {
    "selected": lambda s: s["a"].select("id", "k + 1 as k", "upper(s) as s"),
    "filtered": lambda s: s["a"].filter("v > 50").select("id", "s"),
    "joined": lambda s: s["a"].join(s["b"], on="k"),
    "semi": lambda s: s["a"].join(s["b"].filter("w > 20"), on="k", how="semi"),
    "left_joined": lambda s: s["a"].join(s["b"].filter("w > 20"), on="k", how="left"),
    "outer_joined": lambda s: s["a"].select("k", "c").join(s["b"], on="k", how="full"),
    "multiway": lambda s: s.sql(
        "SELECT a.id, b.w, d.name FROM a JOIN b ON a.k = b.k JOIN d ON a.c = d.c"
    ),
    "self_joined": lambda s: s.sql("SELECT x.id, y.v FROM a x JOIN a y ON x.id = y.t"),
    "chain": lambda s: s.sql(
        "SELECT name, sum(v) AS sv, count(*) AS n FROM a JOIN b ON a.k = b.k"
        " JOIN d ON a.c = d.c WHERE b.w > 9 GROUP BY name HAVING count(*) > 2"
    ),
    "sums": lambda s: s["a"].group_by("k").agg(n="count(*)", sv="sum(v)", av="avg(t)"),
    "total": lambda s: s["a"].agg(n="count(*)", sv="sum(v)", m="max(t)"),
    "extremes": lambda s: s["a"].group_by("c").agg(m="max(v)", l="min(s)", d="count(distinct k)"),
    "medians": lambda s: s["a"].group_by("c").agg(m="percentile(v, 0.5)", x="collect_set(k)"),
    "different": lambda s: s["a"].select("k", "c").distinct(),
    "without": lambda s: s["a"].select("k").except_all(s["b"].select("k")),
    "first": lambda s: s["a"].group_by("k").top(2, by="v desc, id"),
    "windows": lambda s: s.sql(
        "SELECT id, row_number() OVER (PARTITION BY c ORDER BY t, id) AS rn,"
        " lag(v) OVER (PARTITION BY c ORDER BY t, id) AS p,"
        " sum(t) OVER (PARTITION BY c ORDER BY t, id) AS r FROM a"
    ),
    "reduced": lambda s: (
        s["a"].select("c", "t").group_by("c").reduce(
            lambda key, rows: [(sum(row.t for row in rows),)], schema="st bigint"
        )
    ),
    "exists": lambda s: s.sql(
        "SELECT id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND b.w < a.v)"
    ),
    "stacked": lambda s: s["sums"].filter("n > 1").join(s["b"], on="k").group_by("w").agg(
        n="sum(n)"
    ),
}  # fmt: skip


def define(session: Session) -> None:
    for name, build in STAGES.items():
        session.stage(name, build(session))


def contents(random_: random.Random, count: int, first: int = 0) -> Rows:
    return [
        (
            first + i,
            random_.randrange(max(count // 8, 1)),
            random_.randrange(12),
            random_.randrange(400) / 4,
            f"name {random_.randrange(50)}",
            random_.randrange(count * 2),
        )
        for i in range(count)
    ]


def small(session: Session, random_: random.Random, count: int) -> None:
    session["b"].insert([(k, random_.randrange(90)) for k in range(max(count // 8, 1)) if k % 3])  # type: ignore[attr-defined]
    session["d"].insert([(c, f"c{random_.randrange(8)}") for c in range(10)])  # type: ignore[attr-defined]


def create(path: Path) -> Session:
    session = nosync_nb.open(path)
    session.input("a", TEXT)
    session.input("b", "k int, w int")
    session.input("d", "c int, name string")
    return session


def work_of(session: Session, name: str) -> StageWork:
    work = services_of(session).publisher.metrics.last(name)
    assert work is not None
    return work


def every_row(session: Session, at: int | None = None) -> dict[str, list[str]]:
    return {
        name: sorted(map(repr, session[name].rows() if at is None else session[name].rows(at=at)))
        for name in STAGES
    }


def assert_from_scratch(session: Session, path: Path) -> None:
    """All stages equal those that another session computes once over the same rows."""
    again = create(path)
    for name in ("a", "b", "d"):
        again[name].insert([tuple(row) for row in session[name].rows()])  # type: ignore[attr-defined]
    again.commit()
    define(again)
    expected = every_row(again)
    again.close()
    for name, rows in every_row(session).items():
        assert rows == expected[name], name


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[Session]:
    """A session with all stages, whose inputs are loaded."""
    session, random_ = create(tmp_path / "log"), random.Random(1)
    session["a"].insert(contents(random_, ROWS))  # type: ignore[attr-defined]
    small(session, random_, ROWS)
    session.commit()
    define(session)
    yield session
    session.close()


def replace_all(session: Session, seed: int, count: int = ROWS) -> None:
    random_ = random.Random(seed)
    for name in ("a", "b", "d"):
        session[name].clear()  # type: ignore[attr-defined]
    session["a"].insert(contents(random_, count))  # type: ignore[attr-defined]
    small(session, random_, count)
    session["b"].insert([(1, seed)])  # type: ignore[attr-defined]
    session.commit()


def test_total_change_runs_from_scratch_and_small_one_does_not(
    loaded: Session, tmp_path: Path
) -> None:
    replace_all(loaded, 2)
    for name in ("joined", "multiway", "chain", "first", "windows", "stacked"):
        assert work_of(loaded, name).from_scratch, name
        assert work_of(loaded, name).why.startswith("run from scratch: "), name
        assert f"{work_of(loaded, name).why}]" in loaded[name].explain().splitlines()[0]
    assert_from_scratch(loaded, tmp_path / "again")
    loaded["a"].insert([(-1, 1, 2, 3.0, "one", 5)])  # type: ignore[attr-defined]
    loaded.commit()
    assert not any(work_of(loaded, name).from_scratch for name in STAGES if name != "stacked")
    assert work_of(loaded, "joined").touched < 10
    assert_from_scratch(loaded, tmp_path / "third")


def test_total_change_touches_rows_in_proportion_to_contents(loaded: Session) -> None:
    first = {name: work_of(loaded, name).touched for name in ("joined", "multiway", "chain")}
    replace_all(loaded, 2)
    for name, touched in first.items():
        assert work_of(loaded, name).touched <= 1.2 * touched + 100, name


def test_load_into_empty_inputs_follows(tmp_path: Path) -> None:
    session, random_ = create(tmp_path / "log"), random.Random(1)
    define(session)
    session["a"].insert(contents(random_, ROWS))  # type: ignore[attr-defined]
    small(session, random_, ROWS)
    session.commit()
    assert not [name for name in STAGES if work_of(session, name).from_scratch]
    session.close()


def test_loop_follows_small_change_and_runs_from_scratch_after_total_one(tmp_path: Path) -> None:
    def links(seed: int) -> list[tuple[int, int]]:
        random_ = random.Random(seed)
        return [(random_.randrange(4000), random_.randrange(4000)) for _ in range(9000)]

    def touched(path: Path, *loads: list[tuple[int, int]]) -> list[int]:
        session = nosync_nb.open(path)
        edges = session.input("edges", "src int, dst int")
        session.stage("found", reachable(edges, edges.filter("src < 5").select("src as node")))
        counts = []
        for rows in loads:
            edges.clear()
            edges.insert(rows)
            session.commit()
            counts.append(work_of(session, "found").touched)
        session.close()
        return counts

    first, total, few = touched(
        tmp_path / "log", links(1), links(2), [*links(2)[10:], (1, 2), (3, 4)]
    )
    (alone,) = touched(tmp_path / "alone", links(2))
    assert total <= 1.2 * alone + 4 * 9000, "beside the loop, filters follow the changes"
    assert few < first / 5


def test_large_change_of_few_rows_follows(loaded: Session) -> None:
    big = contents(random.Random(3), 5 * ROWS, ROWS)
    loaded["a"].insert(big)  # type: ignore[attr-defined]
    loaded.commit()
    loaded["a"].insert(contents(random.Random(4), 4_500, 20 * ROWS))  # type: ignore[attr-defined]
    loaded.commit()
    assert not work_of(loaded, "joined").from_scratch
    assert not work_of(loaded, "sums").from_scratch


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("in_files", [False, True])
def test_random_changes_equal_from_scratch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, eager: bool, in_files: bool
) -> None:
    """Small and total changes in any order; recovery and past epochs in between."""
    monkeypatch.setattr(runner, "SMALL_ROWS", 30)
    monkeypatch.setattr(large_epoch, "FEW_ROWS", 30)
    if in_files:  # all but the smallest changes are in files, and total changes reference them
        for module in (replacement, store, maintenance):
            monkeypatch.setattr(module, "SPILL_ROWS", 20)
    if eager:  # from scratch whenever that is possible
        monkeypatch.setattr(rerun_cost, "CLEARLY", 1e9)
        monkeypatch.setattr(large_epoch, "LEAST_SHARE", 0.0)
    random_, path, count = random.Random(seed), tmp_path / "log", 200
    session = create(path)
    define(session)
    stored: dict[int, dict[str, list[str]]] = {}
    ran = 0
    for epoch in range(8):
        change = random_.choice(["all", "all", "half", "few", "few", "none", "b"])
        rows = [tuple(row) for row in session["a"].rows()]
        if change == "all" or not rows:
            replace_all(session, epoch, random_.randrange(50, count))
        elif change == "half":
            session["a"].remove(rows[::2])  # type: ignore[attr-defined]
            session["a"].insert(contents(random_, len(rows) // 2 + 1, 1000 * epoch))  # type: ignore[attr-defined]
        elif change == "few":
            session["a"].remove(random_.sample(rows, 3))  # type: ignore[attr-defined]
            session["a"].insert(contents(random_, 2, 1000 * epoch))  # type: ignore[attr-defined]
        elif change == "none":
            session["a"].clear()  # type: ignore[attr-defined]
        else:
            session["b"].clear()  # type: ignore[attr-defined]
            session["b"].insert([(k, random_.randrange(9)) for k in range(60)])  # type: ignore[attr-defined]
        session.commit()
        ran += sum(work_of(session, n).from_scratch for n in STAGES)
        stored[session.now] = every_row(session)
        if random_.random() < 0.3:
            session.close()
            session = create(path)
            define(session)
            assert every_row(session) == stored[session.now]
    assert_from_scratch(session, tmp_path / "again")
    assert ran
    for epoch, rows in stored.items():
        assert every_row(session, epoch) == rows
    back = random_.choice([*stored])
    session.rewind(to=back)
    assert every_row(session) == stored[back]
    replace_all(session, 99, count)
    session["a"].remove([tuple(session["a"].rows()[0])])  # type: ignore[attr-defined]
    session.commit()
    assert_from_scratch(session, tmp_path / "after")
    session.close()


def test_failed_run_from_scratch_changes_nothing(
    loaded: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The epoch fails after some states were emptied: none of it is visible, and it can be run."""
    before, epoch, calls = every_row(loaded), loaded.now, 0
    publish = runner.Runner.publish

    def fail(*arguments: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == 12:
            raise KeyboardInterrupt
        return publish(*arguments)

    monkeypatch.setattr(runner.Runner, "publish", fail)
    with pytest.raises(KeyboardInterrupt):
        replace_all(loaded, 2)
    monkeypatch.undo()
    loaded.discard()
    assert (loaded.now, every_row(loaded)) == (epoch, before)
    loaded["a"].insert([(-1, 1, 2, 3.0, "one", 5)])  # type: ignore[attr-defined]
    loaded.commit()
    assert_from_scratch(loaded, tmp_path / "again")


def test_part_without_rows_serves_both_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One stage runs from scratch and another one follows; both read a part without a log.

    Failure: 1. The part runs for the first stage. 2. Its change is dropped, or was never computed.
    3. The second stage follows no change.
    """
    session, random_ = create(tmp_path / "log"), random.Random(1)
    session["a"].insert(contents(random_, ROWS))  # type: ignore[attr-defined]
    small(session, random_, ROWS)
    session.commit()
    part = session["a"].select("k", "c", "v + 1 as v")
    wider = part.select("k", "c % 5 as c", "v")
    sums = {"n": "count(*)", "sv": "sum(v)"}
    session.stage("following", part.group_by("c").agg(**sums))
    session.stage("nearer", wider.group_by("c").agg(**sums))
    session.stage("farther", part.group_by("k").agg(**sums))
    session.stage("last", wider.group_by("k").agg(**sums))
    chosen = large_epoch.LargeEpoch.why_from_scratch
    for epoch, names in enumerate(
        [{"following"}, {"farther", "last"}, {"nearer"}, {"following", "nearer", "last"}]
    ):

        def choose(
            epoch: large_epoch.LargeEpoch,
            segment: large_epoch.GraphSegment,
            names: set[str] = names,
        ) -> str | None:
            return "run from scratch: chosen" if segment.last.name in names else None

        monkeypatch.setattr(large_epoch.LargeEpoch, "why_from_scratch", choose)
        session["a"].clear()  # type: ignore[attr-defined]
        session["a"].insert(contents(random.Random(epoch + 5), ROWS))  # type: ignore[attr-defined]
        session.commit()
        monkeypatch.setattr(large_epoch.LargeEpoch, "why_from_scratch", chosen)
        for name in ("following", "nearer", "farther", "last"):
            assert (work_of(session, name).from_scratch > 0) == (name in names), name
        rows = nosync_nb.open(tmp_path / f"fresh {epoch}")
        again = rows.input("a", TEXT)
        again.insert([tuple(row) for row in session["a"].rows()])
        rows.commit()
        of = again.select("k", "c", "v + 1 as v")
        wide = of.select("k", "c % 5 as c", "v")
        expected = {
            "following": of.group_by("c").agg(**sums),
            "nearer": wide.group_by("c").agg(**sums),
            "farther": of.group_by("k").agg(**sums),
            "last": wide.group_by("k").agg(**sums),
        }
        for name, collection in expected.items():
            assert sorted(map(repr, session[name].rows())) == sorted(map(repr, collection.rows()))
        rows.close()
    session.close()


def test_nodes_shared_by_two_stages_are_changed_once(tmp_path: Path) -> None:
    """Both stages share an aggregate, whose state is replaced or changed only once."""
    session = create(tmp_path / "log")
    session["a"].insert(contents(random.Random(1), ROWS))  # type: ignore[attr-defined]
    session.commit()
    sums = session["a"].group_by("k").agg(n="count(*)", sv="sum(v)")
    session.stage("some", sums.filter("n > 3"))
    session.stage(
        "others", sums.select("k", "sv * 2 as double_sv").group_by("double_sv").agg(n="count(*)")
    )
    for seed in (2, 3):
        session["a"].clear()  # type: ignore[attr-defined]
        session["a"].insert(contents(random.Random(seed), ROWS))  # type: ignore[attr-defined]
        session.commit()
        session["a"].insert([(-seed, 1, 2, 3.0, "one", 5)])  # type: ignore[attr-defined]
        session.commit()
    again = {
        "some": sums.filter("n > 3"),
        "others": sums.select("k", "sv * 2 as double_sv").group_by("double_sv").agg(n="count(*)"),
    }
    fresh = create(tmp_path / "fresh")
    fresh["a"].insert([tuple(row) for row in session["a"].rows()])  # type: ignore[attr-defined]
    fresh.commit()
    of = fresh["a"].group_by("k").agg(n="count(*)", sv="sum(v)")
    again["some"] = of.filter("n > 3")
    again["others"] = of.select("k", "sv * 2 as double_sv").group_by("double_sv").agg(n="count(*)")
    for name, collection in again.items():
        assert sorted(map(repr, session[name].rows())) == sorted(map(repr, collection.rows()))
    session.close()
    fresh.close()
