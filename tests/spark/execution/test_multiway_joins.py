"""Multiway joins on executors: one join for each lookup, and the same rows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import nosync_nb
from nosync_nb.collections.session_protocol import definition_of
from nosync_nb.dataflow.planner import plan_definition

pytestmark = pytest.mark.spark

N = 3000


def integers(**columns: Any) -> pa.Table:
    return pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})


def run(path: Path, **options: Any) -> tuple[list[Any], list[str]]:
    """Loads, defines two stages and commits large epochs; returns rows and placements."""
    with nosync_nb.open(path, **options) as session:
        people = session.input("people", "p bigint, town bigint")
        bought = session.input("bought", "p bigint, thing bigint, n bigint")
        people.insert(integers(p=range(N), town=[p % 11 for p in range(N)]))
        lines = [(None if i % 9 == 0 else i % N, i % 60, i % 5) for i in range(2 * N)]
        bought.insert(
            integers(**dict(zip(("p", "thing", "n"), zip(*lines, strict=True), strict=True)))
        )
        session.commit()
        towns = people.rename({"town": "origin"})
        chain = people.join(bought, on="p").join(towns, on="p")
        assert any(
            part.op == "joins"
            for part in plan_definition(definition_of("test", chain), None).walk()
        )
        stages = {
            "named": chain.filter("town <> origin and (origin > 2 or n > 3)").select(
                "town", "thing", "n"
            ),
            "counted": chain.group_by("town").agg(n="sum(n * origin)"),
        }
        reports = session.define(stages)
        seen, placed = [], [report.placement for report in reports]
        for epoch in range(2):
            seen.append([sorted(map(tuple, session[name].rows())) for name in stages])
            people.insert(integers(p=range(epoch, N, 2), town=[p % 7 for p in range(epoch, N, 2)]))
            gone = zip(*lines[epoch * N : (epoch + 1) * N], strict=True)
            bought.remove(integers(**dict(zip(("p", "thing", "n"), gone, strict=True))))
            session.commit()
            placed.append(session["named"].explain())
        seen.append([sorted(map(tuple, session[name].rows())) for name in stages])
        return seen, placed


def test_multiway_join_has_same_rows_on_executors(tmp_path: Path, spark: Any) -> None:
    here, at_home = run(tmp_path / "here", spark_rows=10**9)
    there, away = run(tmp_path / "there", spark=spark, spark_rows=1000)
    assert there == here
    assert all("Spark job" in each for each in away)
    assert not any("Spark job" in each for each in at_home)
    # The second lookup of the stage that counts is done on the way to counting.
    assert len(re.findall(r"Spark job", away[1])) == 2
