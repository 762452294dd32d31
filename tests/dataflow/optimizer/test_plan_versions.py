"""Plans of other releases: another plan of a definition makes no other stage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from internals import checkpoint_now, log_of

import nosync_nb
from nosync_nb import Session
from nosync_nb.dataflow import compiler
from nosync_nb.operators import Operator


def define_stages(session: Session) -> dict[str, Any]:
    edges = session.input("edges", "a int, b int")
    names = session.input("names", "a int, name string", key="a")
    even = edges.filter("a >= 0").select("a", "b").filter("b >= 0")
    counts = even.group_by("a").agg(n="count(*)", most="max(b)")
    paths = even.iterate(
        lambda x: (
            x.join(even.select("a AS b", "b AS c"), on="b")
            .select("a", "c AS b")
            .union(x)
            .distinct()
        )
    )
    return {
        "even": even,
        "counts": counts,
        "distinct": edges.select("b").filter("b > 0").distinct(),
        "named": counts.join(names, on="a"),
        "top": counts.filter("n > 0").group_by("n").top(2, by="a"),
        "paths": paths,
    }


def change(session: Session, number: int) -> None:
    edges, names = session.inputs["edges"], session.inputs["names"]
    edges.insert([(number, number + 1), (number, number + 2), (number, number + 2)])
    names.upsert([(number, f"name {number}"), (1, f"first at {number}")])
    if number > 2:
        edges.remove([(number - 1, number + 1), (number - 2, number)])
    session.commit()


def rows(session: Session, at: int | None = None) -> dict[str, list[Any]]:
    return {name: sorted(map(tuple, s.rows(at))) for name, s in session.stages.items()}


def unfused(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(compiler, "_fused_chain", lambda tree, uses: [tree])


def bump_plan_version(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Operator, "plan", Operator.plan + 1)


def replan_all(patch: pytest.MonkeyPatch) -> None:
    unfused(patch)
    bump_plan_version(patch)


@pytest.mark.fault(38)
@pytest.mark.parametrize(
    ("replan", "checkpoint"), [(unfused, False), (bump_plan_version, True), (replan_all, False)]
)
def test_other_plan_changes_no_stage(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    replan: Callable[[pytest.MonkeyPatch], None],
    checkpoint: bool,
) -> None:
    expected = []
    with nosync_nb.open(tmp_path / "model") as model:
        model.define(define_stages(model))
        for number in range(1, 9):
            change(model, number)
            expected.append(rows(model))
    with nosync_nb.open(tmp_path / "log") as session:
        session.define(define_stages(session))
        for number in range(1, 4):
            change(session, number)
        if checkpoint:
            checkpoint_now(session)
    replan(monkeypatch)
    for number in (4, 6):
        with nosync_nb.open(tmp_path / "log") as session:
            assert rows(session) == expected[number - 2]
            change(session, number)
            assert rows(session) == expected[number - 1]
            reports = session.define(define_stages(session))
            assert {(r.status, r.version) for r in reports} == {("unchanged", 1)}
            change(session, number + 1)
            assert rows(session) == expected[number]
            assert not [name for name in session.info.reads if "@" in name]
            for epoch in range(1, number + 2):
                assert rows(session, epoch) == expected[epoch - 1]


def test_other_plan_is_logged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        session.define(define_stages(session))
        change(session, 1)
    replan_all(monkeypatch)
    heads = []
    for number in (2, 3, 4):
        with nosync_nb.open(tmp_path / "log") as session:
            before = log_of(session).head.seq
            change(session, number)
            heads.append(log_of(session).head.seq - before)
    assert heads == [2, 1, 1]


def test_nondeterministic_stage_with_other_plan_waits_for_its_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stage(session: Session) -> Any:
        edges = session.input("edges", "a int, b int")
        return edges.select("a", "uuid() AS tag")

    with nosync_nb.open(tmp_path / "log") as session:
        session.stage("tags", stage(session), nondeterministic=True)
        session.stage("read", session["tags"].select("tag").distinct())
        session.inputs["edges"].insert([(1, 2)])
        session.commit()
        was = rows(session)
    bump_plan_version(monkeypatch)
    with nosync_nb.open(tmp_path / "log") as session:
        session.inputs["edges"].insert([(2, 3)])
        session.commit()
        assert set(session.stale) == {"tags", "read"}
        assert rows(session, 1) == was
    with nosync_nb.open(tmp_path / "log") as session:
        (report,) = session.define({"tags": stage(session)}, nondeterministic=True)[:1]
        assert (report.status, report.version) == ("changed", 2)
        assert sorted(a for a, _ in session["tags"].rows()) == [1, 2]
        assert sorted(map(tuple, session["tags@1"].rows())) == was["tags"]
        assert not session.stale
