"""Missing files of a stage: it alone is rebuilt, and everything else is unchanged."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from internals import (
    checkpoint_now,
    files_of_log,
    graph_of,
    history_of,
    merge_trace,
    services_of,
    settle_background,
    snapshot_of,
    traces_of,
)

import nosync_nb
from nosync_nb import CorruptLogError, Session, StageError
from nosync_nb.session.backfill.definition_diff import DefinitionDecision
from nosync_nb.session.backfill.execute import BackfillExecutor, BackfillResult
from nosync_nb.session.backfill.plan import BackfillPlan
from nosync_nb.store.lazy_layer import files_needed

pytestmark = pytest.mark.usefixtures("own_key", "large_from_ten_rows")


Rows = dict[str, dict[int, list[tuple[Any, ...]]]]


def rows(session: Session, *names: str) -> Rows:
    """The rows of stages and inputs, all by default, at every readable epoch."""
    found: Rows = {}
    for name in names or [*session.inputs, *session.stages]:
        collection = session[name]
        epochs = [e for each in collection.history() for e in each]
        found[name] = {e: sorted(tuple(r) for r in collection.rows(e)) for e in epochs}
    return found


def define_and_fill(session: Session) -> None:
    """Defines stages over orders of customers, and commits large and small epochs."""
    orders = session.input("orders", "customer int, amount int")
    people = session.input("people", "customer int, name string")
    session.define(
        {
            "named": orders.join(people, on="customer"),
            "totals": orders.group_by("customer").agg(total="sum(amount)", n="count(*)"),
        }
    )
    session.stage("rich", session["totals"].filter("total > 100"))
    people.insert([(c, f"person {c}") for c in range(40)])
    for epoch in range(6):
        count = 40 if epoch % 2 == 0 else 3
        orders.insert([(c, 10 * epoch + c) for c in range(count)])
        session.commit()
        if epoch == 3:
            orders.remove([(0, 0)])
            session.commit()


def files_of(session: Session, name: str, *, log: bool = True, state: bool = True) -> set[str]:
    """The files of the rows, the history and the operator state of a stage."""
    snapshot = snapshot_of(session)
    node = snapshot.graph.named[name]
    numbers = [*node.traces.values()] + ([*node.state] if state else [])
    found = {
        n
        for number in numbers
        if number in snapshot.version.traces
        for n in files_needed(snapshot.version.traces[number])
    }
    if log:
        assert node.log is not None
        found |= files_of_log(history_of(session), node.log)
    return found


def log_digests(session: Session, without: str) -> dict[str, str]:
    """The digest of each file of the logs of the other stages."""
    found = {}
    for name, node in graph_of(session).named.items():
        assert node.log is not None
        for each in files_of_log(history_of(session), node.log):
            if name != without:
                data = Path(session.path, "layers", each).read_bytes()
                found[each] = hashlib.blake2b(data).hexdigest()
    assert found
    return found


def missing_file(session: Session, expected: object) -> CorruptLogError | None:
    """Reads all rows; returns the error if they need the lost file."""
    try:
        assert rows(session) == expected
    except CorruptLogError as error:
        return error
    return None


def delete_files(session: Session, names: set[str]) -> None:
    """Closes a session, and deletes some of its files."""
    assert names
    session.close()
    for name in names:
        os.unlink(os.path.join(session.path, "layers", name))


@pytest.fixture(params=["frames", "checkpoint"])
def end_session(request: pytest.FixtureRequest) -> Callable[[Session], None]:
    """Ends a session before its files are lost, with its past in frames or in packs."""

    def end(session: Session) -> None:
        if request.param == "checkpoint":
            checkpoint_now(session)

    return end


@pytest.mark.parametrize("name", ["named", "totals", "rich"])
def test_stage_that_lost_its_files_is_recomputed_alone(
    opened: Callable[..., Session], end_session: Callable[[Session], None], name: str
) -> None:
    session = opened()
    define_and_fill(session)
    end_session(session)
    expected, others = rows(session), log_digests(session, without=name)
    shared = set().union(*(files_of(session, n) for n in expected if n != name))
    delete_files(session, files_of(session, name) - shared)
    session = opened()
    assert session.recovery.stages[name] in ("recompute", "extend")
    assert "missing" in session.recovery.reasons[name]
    assert "before that" not in session.recovery.reasons[name]
    assert {n for n, how in session.recovery.stages.items() if how != "read"} == {name}
    assert services_of(session).metrics.stages.keys() == {name}
    assert rows(session) == expected
    assert others.items() <= log_digests(session, without=name).items()
    session["orders"].insert([(1, 1000)])
    session.commit()
    whole = rows(session)
    session.close()
    session = opened()
    assert rows(session) == whole
    assert {*session.recovery.stages.values()} == {"read"}
    assert session.recovery.recomputed == 0
    assert session.recovery.notes == []


def test_stage_keeps_its_first_epoch_when_a_later_one_is_lost(
    opened: Callable[..., Session],
) -> None:
    session = opened()
    define_and_fill(session)
    session.stage("late", session["orders"].select("customer", "amount"))
    first = session.now
    for count in (3, 3, 40):
        before = files_of(session, "late") | files_of(session, "orders")
        session["orders"].insert([(c, 500) for c in range(count)])
        session.commit()
    expected = rows(session)
    assert expected["late"][first]
    delete_files(session, files_of(session, "late") - files_of(session, "orders") - before)
    session = opened()
    assert session.recovery.stages["late"] == "extend"
    assert rows(session) == expected


def test_any_lost_file_is_recovered_or_its_input_is_named(
    opened: Callable[..., Session], end_session: Callable[[Session], None], tmp_path: Path
) -> None:
    session = opened()
    define_and_fill(session)
    settle_background(session)
    end_session(session)
    expected = rows(session)
    session.close()
    session = opened()
    session.close()  # swept
    seen = set()
    for name in sorted(os.listdir(tmp_path / "log" / "layers")):
        copy = tmp_path / f"without-{name}"
        shutil.copytree(tmp_path / "log", copy)
        os.unlink(copy / "layers" / name)
        with nosync_nb.open(copy) as session:
            notes = " ".join(session.recovery.notes)
            stopped = {n for n, how in session.recovery.stages.items() if how == "stale"}
            kinds = {*session.recovery.stages.values()} - {"read", "stale"}
            assert len(kinds) <= 1
            seen |= kinds or {"arranged" if "arranged" in notes else "input"}
            assert stopped == ({"named"} if "cannot be recomputed" in notes else set())
            if "can no longer be read" in notes or "cannot be recomputed" in notes:
                assert "input 'orders'" in notes or "input 'people'" in notes
                missing = missing_file(session, expected)
                if missing is not None:
                    assert "it is missing" in str(missing)
                    assert any("'orders'" in n or "'people'" in n for n in missing.__notes__)
                    seen.add("named")
                for stage in session.stages:
                    assert {stage: rows(session, stage)[stage]}.items() <= expected.items()
            else:
                assert rows(session) == expected
                session["orders"].insert([(3, 7)])
                session.commit()
        with nosync_nb.open(copy) as again:
            assert {n for n, how in again.recovery.stages.items() if how != "read"} == stopped
        shutil.rmtree(copy)
    assert seen == {"recompute", "extend", "input", "arranged", "named"}


def test_reader_of_a_lost_input_is_stale_and_others_continue(
    opened: Callable[..., Session],
) -> None:
    session = opened()
    define_and_fill(session)
    session.stage("copied", session["people"].select("name"))
    delete_files(session, files_of(session, "people"))
    whole = None
    for turn in range(2):
        session = opened()
        stopped = {n for n, how in session.recovery.stages.items() if how == "stale"}
        assert stopped == {"named"}
        assert "'people', which is lost" in session.recovery.reasons["named"]
        session.stage(f"other{turn}", session["orders"].filter("amount > 3"))
        assert whole in (None, rows(session, "totals", "copied"))
        session["orders"].insert([(77, 1000 + turn)])
        session.commit()
        assert (77, 1000 + turn) in [tuple(row)[:2] for row in session["orders"].rows()]
        with pytest.raises(StageError, match="'people', which is lost"):
            session.stage("more", session["orders"].join(session["people"], on="customer"))
        whole = rows(session, "totals", "copied")
        session.close()
    session = opened()
    session.drop("people", cascade=True)
    session["orders"].insert([(78, 1)])
    session.commit()
    session.close()
    assert {*opened().recovery.stages.values()} == {"read"}


def test_reader_of_a_lost_earlier_version_is_stale(opened: Callable[..., Session]) -> None:
    session = opened()
    define_and_fill(session)
    session.stage("totals", session["orders"].group_by("customer").agg(total="max(amount)"))
    session.stage("both", session["orders"].join(session["totals@1"], on="customer"))
    expected = rows(session, "totals", "rich")
    delete_files(session, files_of(session, "totals@1"))
    session = opened()
    assert session.recovery.stages["both"] == "stale"
    assert rows(session, "totals", "rich") == expected
    session["orders"].insert([(2, 2000)])
    session.commit()
    assert (2, 2000) in [tuple(row) for row in session["totals"].rows()]


@pytest.mark.parametrize("lost", ["people", "orders", "totals@1"])
def test_anything_can_be_dropped_after_a_loss(opened: Callable[..., Session], lost: str) -> None:
    session = opened()
    define_and_fill(session)
    session.stage("totals", session["orders"].group_by("customer").agg(total="max(amount)"))
    session.stage("both", session["orders"].join(session["totals@1"], on="customer"))
    names = [*session.inputs, *session.stages]
    delete_files(session, files_of(session, lost))
    path = Path(session.path)
    copy = shutil.copytree(path, path.with_name("copy"))
    for name in names:
        session = opened()
        session.drop(name, cascade=True)
        if name != "orders":
            session["orders"].insert([(2, 20)])
        session.commit()
        session.close()
        session = opened()
        assert name not in session
        session.close()
        shutil.rmtree(path)
        shutil.copytree(copy, path)


def draw_random(row: Any) -> tuple[int, float]:
    return row.x, random.random()


def test_lost_memoised_results_make_the_stage_stale_with_a_hint(
    opened: Callable[..., Session],
) -> None:
    session = opened()
    numbers = session.input("numbers", "x int")
    session.stage("drawn", numbers.map(draw_random, "x int, r double"), nondeterministic=True)
    session.stage("count", session["drawn"].group_by().agg(n="count(*)"))
    numbers.insert([(x,) for x in range(40)])
    session.commit()
    expected = rows(session, "numbers", "count")
    lost = files_of(session, "drawn")
    delete_files(session, lost)
    session = opened()
    assert {"drawn": "stale", "count": "stale"}.items() <= session.recovery.stages.items()
    assert all(name in session.recovery.reasons["drawn"] for name in lost)
    assert "run its cell" in session.recovery.reasons["drawn"]
    assert session.recovery.recomputed == 0
    assert rows(session, "numbers", "count") == expected
    with pytest.raises(CorruptLogError, match="missing"):
        session["drawn"].rows(at=1)
    numbers = session["numbers"]
    numbers.insert([(100,)])
    session.commit()
    session.stage("drawn", numbers.map(draw_random, "x int, r double"), nondeterministic=True)
    assert sorted(row[0] for row in session["drawn"].rows()) == [*range(40), 100]
    assert session["count"].rows() == [(41,)]


def test_stage_over_thinned_history_is_recovered_at_its_epochs(
    opened: Callable[..., Session],
) -> None:
    session = opened()
    numbers = session.input("numbers", "x int")
    session.stage("even", numbers.filter("x % 2 = 0"))
    for epoch in range(40):
        numbers.insert([(x,) for x in range(100 * epoch, 100 * epoch + 40)])
        session.commit()
    session.retain = 4
    checkpoint_now(session)
    settle_background(session)
    numbers.insert([(x,) for x in range(40)])
    session.commit()
    expected = rows(session)
    assert 0 not in expected["even"]
    history, log = history_of(session), graph_of(session).named["even"].log
    assert log is not None
    latest = {
        file
        for file in files_of_log(history, log)
        if history.copied(()).remove_missing({file}).first_missing(log) == (session.now, {file})
    }
    delete_files(
        session, (latest | files_of(session, "even", log=False)) - files_of(session, "numbers")
    )
    session = opened()
    assert session.recovery.stages == {"even": "extend"}
    assert rows(session) == expected


def test_stage_over_a_lost_past_starts_at_the_current_epoch(opened: Callable[..., Session]) -> None:
    session = opened()
    numbers = session.input("numbers", "x int")
    session.stage("even", numbers.filter("x % 2 = 0"))
    for start in (0, 100, 200):
        numbers.insert([(x,) for x in range(start, start + 40)])
        session.commit()
    for number in dict(traces_of(session)):  # the current rows have files of their own
        merge_trace(session, number)
    checkpoint_now(session)
    expected = rows(session)
    own_files = files_of(session, "even")
    log = graph_of(session).named["numbers"].log
    assert log is not None
    past = files_of_log(history_of(session), log)
    current = files_of(session, "numbers", log=False)
    delete_files(session, own_files | (past - current))
    session = opened()
    assert session.recovery.stages["even"] == "recompute"
    found = rows(session, "even")["even"]
    assert {e: expected["even"][e] for e in found} == found
    assert max(found) == 3
    assert past - current
    assert [*session["even"].history()] == [range(3, 4)]
    assert "can no longer be read" in str(session.recovery)


def test_lost_operator_state_is_rebuilt_and_rows_stay(opened: Callable[..., Session]) -> None:
    session = opened()
    define_and_fill(session)
    checkpoint_now(session)
    expected, others = rows(session), log_digests(session, without="")
    lost = files_of(session, "totals", log=False) - files_of(session, "totals", state=False)
    delete_files(session, lost)
    session = opened()
    assert session.recovery.stages["totals"] == "recompute"
    assert services_of(session).metrics.stages.keys() == {"totals"}
    assert rows(session) == expected
    assert log_digests(session, without="") == others
    session["orders"].insert([(1, 1000)])
    session.commit()
    assert (1, *sum_and_count(session, 1)) in rows(session, "totals")["totals"][session.now]


def sum_and_count(session: Session, customer: int) -> tuple[int, int]:
    amounts = [a for c, a in session["orders"].rows() if c == customer]
    return sum(amounts), len(amounts)


def test_lost_sums_over_packs_are_not_needed(
    opened: Callable[..., Session], tmp_path: Path
) -> None:
    session = opened()
    numbers = session.input("numbers", "x int")
    session.stage("odd", numbers.filter("x % 2 = 1"))
    for epoch in range(40):
        numbers.insert([(epoch,)])
        session.commit()
        checkpoint_now(session)
    expected = rows(session)
    session.close()
    sums = [*(tmp_path / "log" / "history").glob("sum-*")]
    assert sums
    for path in sums:
        path.unlink()
    session = opened()
    assert {*session.recovery.stages.values()} == {"read"}
    assert rows(session) == expected
    session["numbers"].insert([(100,)])
    session.commit()
    whole = rows(session)
    checkpoint_now(session)
    assert [*(tmp_path / "log" / "history").glob("sum-*")]
    assert rows(session) == whole


def test_interrupted_recovery_continues_at_the_next_opening(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened()
    define_and_fill(session)
    expected = rows(session)
    lost = files_of(session, "named") | files_of(session, "totals")
    shared = files_of(session, "orders") | files_of(session, "people") | files_of(session, "rich")
    delete_files(session, lost - shared)
    install = BackfillExecutor.install
    done: list[str] = []

    def install_once(
        executor: BackfillExecutor, decision: DefinitionDecision, plan: BackfillPlan
    ) -> BackfillResult:
        if done:
            raise KeyboardInterrupt
        done.append(plan.name)
        return install(executor, decision, plan)

    with monkeypatch.context() as patch:
        patch.setattr(BackfillExecutor, "install", install_once)
        with pytest.raises(KeyboardInterrupt):
            opened()
    session = opened()
    again = {name for name, how in session.recovery.stages.items() if how != "read"}
    assert {*done} | again == {"named", "totals"}
    assert not again & {*done}
    assert rows(session) == expected


def test_lost_file_of_a_replicated_log_is_read_and_nothing_recomputed(
    opened: Callable[..., Session], tmp_path: Path
) -> None:
    urls = [f"file://{tmp_path}/replica"]
    session = opened(replicas=urls)
    define_and_fill(session)
    expected = rows(session)
    session.sync("replicas", timeout=60)
    shared = set().union(*(files_of(session, n) for n in expected if n != "named"))
    delete_files(session, files_of(session, "named") - shared)
    session = opened()
    assert {*session.recovery.stages.values()} == {"read"}
    assert session.recovery.recomputed == 0
    assert rows(session) == expected
    assert session.stats["executed"] == 0


@pytest.mark.parametrize("touched", ["read", "past", "commit"])
@pytest.mark.parametrize("how", ["changed", "gone"])
def test_file_damaged_during_use_is_recomputed_at_the_first_read(
    opened: Callable[..., Session], how: str, touched: str
) -> None:
    session = opened()
    define_and_fill(session)
    settle_background(session)
    expected, others = rows(session), log_digests(session, without="named")
    session.close()
    session = opened()
    shared = set().union(*(files_of(session, n) for n in expected if n != "named"))
    own_files = files_of(session, "named") - shared
    assert own_files
    for name in own_files:
        path = Path(session.path, "layers", name)
        if how == "changed":
            data = bytearray(path.read_bytes())
            data[len(data) // 3] ^= 255
            path.write_bytes(data)
        else:
            path.unlink()
    if touched == "commit":
        session["orders"].insert([(c, 1) for c in range(40)])
        session.commit()
        expected["orders"] = rows(session, "orders")["orders"]
    elif touched == "past":
        assert sorted(tuple(r) for r in session["named"].rows(3)) == expected["named"][3]
    else:
        assert sorted(tuple(r) for r in session["named"].rows()) == expected["named"][7]
    found = rows(session)
    assert {name: {e: found[name][e] for e in expected[name]} for name in expected} == expected
    assert others.items() <= log_digests(session, without="named").items()
    if touched != "commit":
        assert services_of(session).metrics.stages.keys() == {"named"}
    session = opened(takeover=True)
    assert rows(session) == found


def test_lost_pack_loses_only_its_epochs(opened: Callable[..., Session], tmp_path: Path) -> None:
    session = opened()
    numbers = session.input("numbers", "x int")
    session.stage("odd", numbers.filter("x % 2 = 1"))
    for epoch in range(6):
        numbers.insert([(epoch,)])
        session.commit()
        if epoch % 2:
            checkpoint_now(session)
    expected = rows(session)
    session.close()
    middle = sorted((tmp_path / "log" / "history").iterdir())[1]
    middle.unlink()
    session = opened()
    assert {*session.recovery.stages.values()} == {"read"}
    assert "input 'numbers'" in str(session.recovery)
    assert "stage 'odd'" in str(session.recovery)
    for name in ("numbers", "odd"):
        for epoch in (0, 1, 2, 6):
            assert values(session, name, epoch) == expected[name][epoch]
        with pytest.raises(CorruptLogError, match="missing"):
            session[name].rows(at=4)
    session["numbers"].insert([(101,)])
    session.commit()
    assert (101,) in values(session, "odd", 7)


def values(session: Session, name: str, epoch: int) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in session[name].rows(epoch))
