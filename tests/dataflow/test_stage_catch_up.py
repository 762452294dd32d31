"""Catch-up of stopped stages: they continue from their last epoch, without a recomputation."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from internals import (
    catalog_of,
    checkpoint_now,
    history_of,
    log_of,
    notices_of,
    other_versions,
    services_of,
)

import nosync_nb
from nosync_nb import Session, TimeError
from nosync_nb.trace.history.downsampling import RetainedEpochs

ROWS = 500
"""Rows before the stages stop; far fewer are missed."""


class Kernels:
    """Opens one log with the cloudpickle of its functions, or with another one."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch
        self.sessions: list[Session] = []

    def opened(self, *, known: bool, **options: Any) -> Session:
        version = "1" if known else f"1.{len(self.sessions)}"
        other_versions(self.patch, cloudpickle=version)
        self.sessions.append(nosync_nb.open(self.folder / "log", **options))
        return self.sessions[-1]


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernels]:
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "key"))
    made = Kernels(tmp_path, monkeypatch)
    yield made
    for session in reversed(made.sessions):
        session.close()


def stages(session: Session) -> dict[str, nosync_nb.Collection]:
    """The stages over one shared part, without the stage that reads another by name."""
    numbers = session.input("numbers", "x int")
    odd = numbers.map(lambda row: (row.x % 2, row.x), "odd int, x int")
    return {
        "odd": odd,
        "sums": odd.group_by("odd").agg(n="count(*)", total="sum(x)"),
        "least": odd.group_by("odd").agg(least="min(x)"),
        "pairs": odd.join(numbers, on="x").select("x"),
        "kinds": odd.select("odd").distinct(),
    }


def define(session: Session) -> None:
    session.define(stages(session))
    session.stage("reader", session["odd"].group_by("odd").count())


STAGES = ("odd", "sums", "least", "pairs", "kinds", "reader")


def change(session: Session) -> None:
    """Commits three epochs, one of them empty, with a retraction of earlier rows."""
    numbers = session.inputs["numbers"]
    numbers.insert([(ROWS,), (ROWS + 1,)])
    session.commit()
    session.commit()
    numbers.remove([(0,), (1,)])
    session.commit()


def all_rows(session: Session, epochs: range) -> dict[Any, Any]:
    return {(n, at): session[n].rows(at=at) for n in STAGES for at in epochs}


@pytest.fixture
def expected(tmp_path: Path) -> dict[Any, Any]:
    """The stages at each epoch if they never stop."""
    with nosync_nb.open(tmp_path / "model") as session:
        define(session)
        session.inputs["numbers"].insert([(x,) for x in range(ROWS)])
        session.commit()
        change(session)
        return all_rows(session, range(5))


@pytest.fixture
def stopped(kernels: Kernels) -> Session:
    """A session whose stages stopped at epoch 1; it is at epoch 4."""
    session = kernels.opened(known=True)
    define(session)
    session.inputs["numbers"].insert([(x,) for x in range(ROWS)])
    session.commit()
    session.close()
    session = kernels.opened(known=False)
    change(session)
    assert session.frontiers["sums"].memory == 1
    return session


def commit_further_changes(session: Session) -> None:
    """Commits further changes, which need intact operator state."""
    for x in (2, 12):
        session.inputs["numbers"].remove([(x,), (x + 1,)])
        session.inputs["numbers"].insert([(5,), (1000 + x,)])
        session.commit()
    for name in STAGES:
        definition = catalog_of(session)[name].definition
        assert definition is not None
        scratch = nosync_nb.Collection(services_of(session).host, definition)
        assert session[name].rows() == scratch.rows(), name


def test_each_missed_epoch_is_computed_separately(
    stopped: Session, expected: dict[Any, Any]
) -> None:
    stopped.stats.update(touched=0, executed=0)
    define(stopped)
    assert all_rows(stopped, range(5)) == expected
    assert stopped["sums"].history() == [range(5)]
    assert {catalog_of(stopped)[n].version for n in STAGES} == {1}
    assert not [name for name in catalog_of(stopped) if "@" in name]
    assert stopped.stats["touched"] < ROWS
    assert {stopped.recovery.stages[n] for n in STAGES} == {"extend"}
    assert stopped.recovery.recomputed == stopped.stats["executed"] > 0
    commit_further_changes(stopped)


def test_many_missed_epochs_become_one_change(
    stopped: Session, expected: dict[Any, Any], kernels: Kernels
) -> None:
    stopped.replay_rows = 0
    stopped.stats.update(touched=0)
    define(stopped)
    assert stopped.stats["touched"] < ROWS

    def check(session: Session) -> None:
        assert session["sums"].history() == [range(2), range(4, 5)]
        for at in (0, 1, 4):
            assert session["sums"].rows(at=at) == expected["sums", at]
        with pytest.raises(TimeError, match="epoch 2 is no longer retained separately"):
            session["sums"].rows(at=2)

    check(stopped)
    assert [epoch.number for epoch in stopped.epochs()] == [4]
    session = kernels.opened(known=False, takeover=True)
    check(session)
    checkpoint_now(session)
    session = kernels.opened(known=False, takeover=True)
    check(session)


def test_reader_of_stage_with_gap_has_same_gap(stopped: Session) -> None:
    stopped.replay_rows = 0
    define(stopped)
    stopped.replay_rows = 1_000_000
    (report,) = stopped.define({"late": stopped["sums"].filter("n > 0")}, replay=0)
    assert report.status == "new"
    assert stopped["late"].history() == stopped["sums"].history()
    assert stopped["late"].rows(at=1) == stopped["sums"].rows(at=1)
    (report,) = stopped.define({"late": stopped["sums"].filter("n > 0")}, replay=0)
    assert report.status == "unchanged"
    with pytest.raises(TimeError, match="cannot replay from epoch 2"):
        stopped.define({"later": stopped["sums"].filter("n > 1")}, replay=2)


def test_replay_fills_gap(stopped: Session, expected: dict[Any, Any]) -> None:
    stopped.replay_rows = 0
    define(stopped)
    reports = {r.name: r.status for r in stopped.define(stages(stopped), replay=2)}
    assert reports["odd"] == reports["sums"] == "changed"
    for at in (2, 3, 4):
        assert stopped["sums"].rows(at=at) == expected["sums", at]


@pytest.mark.parametrize("when", ["never", "before", "while stopped", "after", "always"])
def test_open_with_loadable_functions_extends_stages(
    kernels: Kernels, expected: dict[Any, Any], when: str
) -> None:
    def checkpoint(moment: str) -> None:
        if when in (moment, "always"):
            checkpoint_now(session)

    session = kernels.opened(known=True)
    define(session)
    session.inputs["numbers"].insert([(x,) for x in range(ROWS)])
    session.commit()
    checkpoint("before")
    session = kernels.opened(known=False, takeover=True)
    change(session)
    checkpoint("while stopped")
    session = kernels.opened(known=True, takeover=True)
    assert set(session.recovery.stages.values()) == {"extend"}
    assert "extend" in str(session.recovery)
    assert session.recovery.recomputed > 0
    assert all_rows(session, range(5)) == expected
    assert session.stats["touched"] < ROWS
    checkpoint("after")
    session = kernels.opened(known=True, takeover=True)
    assert set(session.recovery.stages.values()) == {"read"}
    assert session.recovery.recomputed == 0
    assert all_rows(session, range(5)) == expected
    commit_further_changes(session)


def test_stages_stopped_at_different_epochs_are_extended_together(
    kernels: Kernels, expected: dict[Any, Any]
) -> None:
    """`sums` continues while `reader` and others still lack their functions."""
    session = kernels.opened(known=True)
    define(session)
    session.inputs["numbers"].insert([(x,) for x in range(ROWS)])
    session.commit()
    session.close()
    session = kernels.opened(known=False)
    session.inputs["numbers"].insert([(ROWS,), (ROWS + 1,)])
    session.commit()
    session.define({"sums": stages(session)["sums"]})
    assert session["sums"].rows() == expected["sums", 2]
    assert session.frontiers["odd"].memory == 1
    session.close()
    session = kernels.opened(known=False)
    session.commit()
    session.inputs["numbers"].remove([(0,), (1,)])
    session.commit()
    assert session.frontiers["sums"].memory == 2
    define(session)
    assert all_rows(session, range(5)) == expected
    commit_further_changes(session)


@pytest.mark.fault(5)
def test_crash_while_extending_changes_nothing(
    stopped: Session, expected: dict[Any, Any], kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All frames are written at once after the epochs are computed."""
    append = type(log_of(stopped)).append
    kinds: list[int] = []

    def crash(log: Any, kind: int, payload: bytes) -> Any:
        kinds.append(kind)
        raise KeyboardInterrupt

    monkeypatch.setattr(type(log_of(stopped)), "append", crash)
    with pytest.raises(KeyboardInterrupt):
        define(stopped)
    monkeypatch.setattr(type(log_of(stopped)), "append", append)
    assert len(kinds) == 1
    assert stopped.frontiers["sums"].memory == 1
    assert stopped["sums"].rows(at=1) == expected["sums", 1]
    session = kernels.opened(known=True, takeover=True)
    assert all_rows(session, range(5)) == expected
    commit_further_changes(session)


def test_stage_over_unreadable_epoch_is_recomputed(kernels: Kernels) -> None:
    session = kernels.opened(known=True)
    numbers = session.input("numbers", "x int")
    for x in range(20):
        numbers.insert([(x,)])
        session.commit()
    session.stage("doubled", numbers.map(lambda row: (row.x * 2,), "y int"))
    session.close()
    session = kernels.opened(known=False)
    for x in range(20, 400):
        session.inputs["numbers"].insert([(x,)])
        session.commit()
        if x % 50 == 0:
            checkpoint_now(session)
    history = history_of(session)
    while (plan := history.tidy(RetainedEpochs(8))) is not None:
        assert history.adopt(plan.perform())
    services_of(session).publisher.repacked()
    assert not any(20 in each for each in session["numbers"].history())
    numbers = session.inputs["numbers"]
    (report,) = session.define({"doubled": numbers.map(lambda row: (row.x * 2,), "y int")})
    assert (report.status, report.version) == ("changed", 2)
    assert len(session["doubled"]) == 400
    assert len(session["doubled@1"]) == 20
    assert any("'numbers' is no longer readable at epoch 20" in n for n in notices_of(session))
    assert session.recovery.stages["doubled"] == "recompute"


def test_new_stage_over_shared_unnamed_part_sees_all_rows(kernels: Kernels) -> None:
    session = kernels.opened(known=True)
    session.replay_rows = 0
    third = session.input("numbers", "x int").select("x % 3 as y")
    session.stage("counts", third.group_by("y").agg(n="count(*)"))
    session.inputs["numbers"].insert([(1,), (2,), (3,), (4,)])
    session.commit()
    late: dict[str, Callable[[], Any]] = {
        "kinds": third.distinct,
        "sums": lambda: third.group_by("y").agg(total="sum(y)"),
        "some": lambda: third.filter("y > 0").group_by("y").agg(n="count(*)"),
    }
    for name, made in late.items():
        session.stage(name, made())
    for _ in range(2):
        assert [tuple(r) for r in session["counts"].rows()] == [(0, 1), (1, 2), (2, 1)]
        assert [tuple(r) for r in session["kinds"].rows()] == [(0,), (1,), (2,)]
        assert [tuple(r) for r in session["sums"].rows()] == [(0, 0), (1, 2), (2, 2)]
        assert [tuple(r) for r in session["some"].rows()] == [(1, 2), (2, 1)]
        session.inputs["numbers"].insert([(7,)])
        session.commit()
        session.inputs["numbers"].remove([(1,)])
        session.commit()


def test_stage_with_restored_column_continues(kernels: Kernels) -> None:
    session = kernels.opened(known=True)
    people = session.input("people", "name string, city string")
    session.stage("grown", people.filter("name <> ''"))
    session.stage("cities", session["grown"].group_by("city").agg(n="count(*)"))
    people.insert([("ann", "rome"), ("bob", "rome")])
    session.commit()
    session.stage("grown", people.filter("name <> ''").select("name"))
    assert catalog_of(session)["cities"].reason is not None
    session.stage("grown", people.filter("name <> ''"))
    people.insert([("cy", "rome")])
    session.commit()
    assert [tuple(row) for row in session["cities"].rows()] == [("rome", 3)]


@pytest.mark.filterwarnings("ignore:.*before the restart")
@pytest.mark.parametrize("seed", range(8))
def test_every_readable_epoch_is_right_after_any_stops(kernels: Kernels, seed: int) -> None:
    chance = random.Random(seed)
    session = kernels.opened(known=True)
    define(session)
    held: Counter[int] = Counter()
    past = {0: held.copy()}
    for _ in range(14):
        what = chance.choice(["change", "change", "change", "lose", "find", "some", "checkpoint"])
        session.replay_rows = chance.choice([0, 1_000_000])
        if what == "change":
            changes = Counter(chance.randrange(12) for _ in range(chance.randrange(6)))
            session.inputs["numbers"].insert([(x,) for x in changes.elements()])
            gone = Counter(x for x in held if held[x] and chance.random() < 0.3)
            session.inputs["numbers"].remove([(x,) for x in gone])
            held += changes
            held -= gone
            past[session.commit()] = held.copy()
        elif what == "checkpoint":
            checkpoint_now(session)
        elif what == "some":
            session.define({n: c for n, c in stages(session).items() if chance.random() < 0.5})
        else:
            session = kernels.opened(known=what == "find", takeover=True)
        for name in STAGES:
            check_history(session, name, past)
    session = kernels.opened(known=False, takeover=True)
    define(session)
    assert not [s.name for s in catalog_of(session).values() if s.reason and not s.frozen]
    for name in STAGES:
        assert session.frontiers[name].memory == session.now
        check_history(session, name, past)


def check_history(session: Session, name: str, past: dict[int, Counter[int]]) -> None:
    for epochs in session[name].history():
        for at in epochs:
            found = [tuple(row) for row in session[name].rows(at=at)]
            assert found == sorted(computed(name, past[at])), (name, at)


def computed(name: str, held: Counter[int]) -> list[Any]:
    """Computes a stage without any dataflow."""
    odd = [(x % 2, x) for x in held.elements()]
    groups: dict[int, list[int]] = {}
    for kind, x in odd:
        groups.setdefault(kind, []).append(x)
    return {
        "odd": odd,
        "sums": [(kind, len(group), sum(group)) for kind, group in groups.items()],
        "least": [(kind, min(group)) for kind, group in groups.items()],
        "pairs": [(x,) for x in held for _ in range(held[x] ** 2)],
        "kinds": [(kind,) for kind in groups],
        "reader": [(kind, len(group)) for kind, group in groups.items()],
    }[name]


def test_stages_continue_beside_reader_by_other_key(kernels: Kernels) -> None:
    def made(session: Session) -> dict[str, nosync_nb.Collection]:
        pairs = session.input("pairs", "k int, x int")
        odd = pairs.map(lambda row: (row.k % 2, row.x), "odd int, x int")
        return {"sums": odd.group_by("odd").agg(n="count(*)", total="sum(x)")}

    session = kernels.opened(known=True)
    session.define(made(session))
    session.inputs["pairs"].insert([(x, -x) for x in range(ROWS)])
    session.commit()
    session.close()
    session = kernels.opened(known=False)
    others = session.input("others", "x int, z int")
    session.inputs["pairs"].insert([(ROWS, -ROWS)])
    others.insert([(-x, x) for x in range(10)])
    session.commit()
    session.inputs["pairs"].remove([(3, -3)])
    session.commit()
    met = session["pairs"].join(others, on="x")
    before = session.stats["touched"]
    session.define({**made(session), "met": met.select("k", "z")})
    assert session.stats["touched"] - before < 2 * ROWS
    for at in range(1, 4):
        live = [x for x in range(ROWS + (at > 1)) if at < 3 or x != 3]
        totals = [(odd, [-x for x in live if x % 2 == odd]) for odd in (0, 1)]
        assert session["sums"].rows(at=at) == [(o, len(xs), sum(xs)) for o, xs in totals]
    assert session["met"].rows() == [(x, x) for x in range(10) if x != 3]
    session.inputs["pairs"].remove([(4, -4)])
    session.commit()
    assert session["met"].rows() == [(x, x) for x in range(10) if x not in (3, 4)]


def test_stage_with_shared_memoised_results_is_not_extended(kernels: Kernels) -> None:
    """One of two stages of a cell stops, and their shared part memoises further results."""

    def define(session: Session) -> None:
        part = session.input("numbers", "x int").select("x % 3 AS k", "x", "rand() AS r")
        tops = part.group_by("k").agg(n="count(*)", top="max(r)").filter(lambda row: row.k >= 0)
        both = {"left": part.group_by("k").agg(top="max(r)"), "right": tops.select("k", "top")}
        session.define(both, nondeterministic=True)

    session = kernels.opened(known=True)
    define(session)
    session.inputs["numbers"].insert([(x,) for x in range(30)])
    session.commit()
    assert session["left"].rows() == session["right"].rows()
    session.close()
    session = kernels.opened(known=False)
    session.inputs["numbers"].insert([(x,) for x in range(30, 60)])
    session.commit()
    assert session.stale.keys() == {"right"}
    session.close()
    session = kernels.opened(known=True)
    session.inputs["numbers"].remove([(x,) for x in range(50)])
    session.commit()
    assert session.stale.keys() == {"right"}
    define(session)
    assert not session.stale
    assert [row.k for row in session["right"].rows()] == [row.k for row in session["left"].rows()]
    session.inputs["numbers"].clear()
    session.commit()
    assert session["left"].rows() == session["right"].rows() == []
