"""Backfill plans: each kind of damage and of change has its outcome, and each run its epochs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from internals import files_of_log, graph_of, history_of, snapshot_of

from nosync_nb import Session, TimeError
from nosync_nb.dataflow.runtime.historical_inputs import HistoricalInputs
from nosync_nb.session.backfill.damage import plan_repairs
from nosync_nb.session.backfill.plan import (
    CURRENT,
    OUTCOMES,
    BackfillPlan,
    Base,
    definition_plan,
    level_plan,
    next_run,
)
from nosync_nb.store.lazy_layer import files_needed

pytestmark = pytest.mark.usefixtures("own_key", "large_from_ten_rows")

READ, EXTEND, REPLAY, RECOMPUTE, STALE = OUTCOMES


def draw_random(row: Any) -> tuple[int, float]:
    """Returns another value each time."""
    return row.x, random.random()


@pytest.fixture
def session(opened: Callable[..., Session]) -> Session:
    """Stages over rows that are in files: sums, rows without state, and random results."""
    session = opened()
    numbers = session.input("numbers", "x int, y int")
    session.stage("sums", numbers.group_by("x").agg(total="sum(y)"))
    session.stage("even", numbers.filter("y % 2 = 0"))
    session.stage(
        "drawn", numbers.select("x").map(draw_random, "x int, r double"), nondeterministic=True
    )
    for epoch in range(1, 4):
        numbers.insert([(x, 2 * x + 100 * epoch) for x in range(40)])
        session.commit()
    return session


def files_in(session: Session, name: str, part: str) -> set[str]:
    """The files of the log, the arrangements, or the operator state of a stage or an input."""
    snapshot = snapshot_of(session)
    node = snapshot.graph.named[name]
    assert node.log is not None
    if part == "log":
        return files_of_log(history_of(session), node.log)
    numbers = node.traces.values() if part == "rows" else node.state
    traces = (snapshot.version.traces[number] for number in numbers)
    return {file for trace in traces for file in files_needed(trace)}


def plans_without(session: Session, missing: set[str]) -> dict[str, BackfillPlan]:
    """The plans if some files are missing, by the name of the stage."""
    assert missing
    lost = history_of(session).copied(()).remove_missing(missing)
    return {plan.name: plan for plan in plan_repairs(snapshot_of(session), lost, missing)}


def test_lost_rows_with_a_complete_log_are_read_from_it(session: Session) -> None:
    missing = files_in(session, "even", "rows") - files_in(session, "even", "log")
    plan = plans_without(session, missing)["even"]
    assert plan.outcome == READ
    assert plan.arranged == {*graph_of(session).named["even"].traces.values()}
    assert not plan.refused | plan.bare


def test_lost_operator_state_alone_is_recomputed_at_the_current_epoch(session: Session) -> None:
    log = files_in(session, "sums", "log") | files_in(session, "sums", "rows")
    plan = plans_without(session, files_in(session, "sums", "state") - log)["sums"]
    assert (plan.outcome, plan.first) == (RECOMPUTE, None)
    assert plan.bare == {graph_of(session).named["sums"].id}


def test_log_that_ends_early_is_extended_and_a_lost_one_is_replayed(session: Session) -> None:
    log = graph_of(session).named["even"].log
    assert log is not None
    complete = history_of(session)
    by_epoch = sorted(
        (lost[0], file)
        for file in files_in(session, "even", "log")
        if (lost := complete.copied(()).remove_missing({file}).first_missing(log, 0)) is not None
    )
    epochs = [epoch for epoch, _ in by_epoch]
    assert epochs == [1, 2, 3]
    node = graph_of(session).named["even"]
    for epoch, file in by_epoch:
        plan = plans_without(session, {file} | files_in(session, "even", "rows"))["even"]
        assert node.id in plan.refused
        wanted = (EXTEND, epoch - 1) if epoch > 1 else (REPLAY, 0)
        assert (plan.outcome, plan.first) == wanted


def test_lost_random_results_make_their_stage_stale(session: Session) -> None:
    missing = {
        file for part in ("log", "rows", "state") for file in files_in(session, "drawn", part)
    }
    plan = plans_without(session, missing)["drawn"]
    assert plan.outcome == STALE
    assert "run its cell" in plan.why
    assert not plan.rebuilds


@pytest.mark.parametrize(
    ("status", "first", "plan"),
    [
        (["new"], None, CURRENT),
        (["unchanged", "extended", "stale"], None, CURRENT),
        (["unchanged", "changed"], None, BackfillPlan(REPLAY)),
        (["followed"], None, BackfillPlan(REPLAY)),
        (["new"], 2, BackfillPlan(REPLAY, first=2)),
        (["changed"], 2, BackfillPlan(REPLAY, first=2)),
    ],
)
def test_edited_stage_is_replayed_and_a_new_one_only_on_request(
    status: list[str], first: int | None, plan: BackfillPlan
) -> None:
    assert definition_plan(status, first) == plan


def base_without(session: Session, name: str) -> Base:
    """The base of a run that lacks the node of a stage."""
    snapshot = snapshot_of(session)
    node = snapshot.graph.named[name]
    old = type(snapshot.graph)(
        (each for each in snapshot.graph if each.id != node.id), snapshot.graph.numbers
    )
    past = HistoricalInputs(history_of(session), snapshot.epoch)
    return Base(old, snapshot.version, past)


def test_replay_runs_every_readable_epoch_unless_it_has_too_many_rows(session: Session) -> None:
    snapshot, base = snapshot_of(session), base_without(session, "even")
    node = snapshot.graph.named["even"]
    run = next_run(snapshot.graph, base, BackfillPlan(REPLAY), snapshot.catalog, 1000)
    assert run is not None
    assert (run.outcome, run.first, [*run.epochs]) == (REPLAY, 0, [1, 2, 3])
    assert run.span.new == {node.id}
    assert [source.name for source in run.span.sources] == ["numbers"]
    assert next_run(snapshot.graph, base, BackfillPlan(REPLAY), snapshot.catalog, 10) is None
    assert next_run(snapshot.graph, base, CURRENT, snapshot.catalog, 1000) is None


def test_replay_from_an_unreadable_epoch_names_a_readable_one(session: Session) -> None:
    snapshot, base = snapshot_of(session), base_without(session, "even")
    plan = BackfillPlan(REPLAY, first=9)
    with pytest.raises(TimeError, match="its inputs are readable from 0 to 3") as raised:
        next_run(snapshot.graph, base, plan, snapshot.catalog, 10)
    assert raised.value.hint == "use --replay 0"
    run = next_run(snapshot.graph, base, plan._replace(first=2), snapshot.catalog, 10)
    assert run is not None
    assert (run.first, [*run.epochs]) == (2, [3])


def test_stage_moved_out_of_memory_runs_from_the_first_input_epoch(session: Session) -> None:
    plan = level_plan(snapshot_of(session), "even")
    assert plan == BackfillPlan(EXTEND, frozenset(["even"]), first=0)
