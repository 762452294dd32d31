"""Where operators run changes nothing but the time: executors and this process agree."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import nosync_nb
from nosync_nb import Collection, Session

Rows = dict[str, list[Any]]


def stages(session: Session) -> dict[str, Collection]:
    """One stage for every operator."""
    edges, nodes = session["edges"], session["nodes"]
    joined = edges.filter("v IS NOT NULL").join(nodes, on={"a": "k"}).with_columns(twice="v * 2")
    return {
        "joined": joined,
        "summed": joined.group_by("w").agg(
            n="count(*)", most="max(v)", total="sum(v)", mean="avg(twice)", least="min(b)"
        ),
        "present": joined.group_by("w").agg(
            kinds="count(distinct b, v)",
            spread="stddev(v)",
            bits="bit_and(a) + bit_or(a) + bit_xor(a)",
            by="min_by(b, v)",
            all="collect_set(b)",
            most="sum(distinct twice)",
            some="bool_or(v > 1)",
        ),
        "different": edges.select("a", "b").distinct(),
        "counted": edges.select("b").multiplicity(),
        "reduced": edges.group_by("a").reduce(
            lambda key, rows: [(len(rows), str(rows[0].b))], "n int, first string"
        ),
        "left_": nodes.join(edges, on={"k": "a"}, how="left"),
        "lonely": nodes.join(edges, on={"k": "a"}, how="anti"),
        "all_pairs": edges.join(nodes, on={"a % 12": "k", "b": "lower(w)"}, how="full"),
        "nobody": edges.join(nodes, on={"a": "k"}, how="right"),
        "best": edges.group_by("b").top(3, by="v desc nulls first, a % 5", offset=1),
        "places": edges.group_by().rank(by="v, b desc", k=20),
        "twice": edges.select("a", "b").threshold(lambda n: n // 2),
        "pairs": crossed(nodes, edges.group_by("b").count()),
        "total": edges.agg(n="count(*)", mean="avg(v)"),
        "minus": edges.select("a").except_all(nodes.select("k AS a")),
        "reached": nodes.select("k AS a").iterate(
            lambda value: (
                value.join(
                    edges.filter("a IS NOT NULL").select("a", "(a * 5 + length(b)) % 15 AS next"),
                    on="a",
                )
                .select("next AS a")
                .concat(nodes.select("k AS a").filter("a % 4 = 0"))
                .distinct()
            )
        ),
        "nearest": nodes.filter("k % 5 = 0")
        .select("k AS a", "0 AS hops")
        .iterate(
            lambda value: (
                value.join(edges.select("a", "(a * 7 + 1) % 13 AS next"), on="a")
                .select("next AS a", "hops + 1 AS hops")
                .concat(nodes.filter("k % 5 = 0").select("k AS a", "0 AS hops"))
                .group_by("a")
                .agg(hops="min(hops)")
            )
        ),
        "shout": edges.select("upper(b) AS u", "a").map(
            lambda row: (row.u, row.a), "u string, a bigint"
        ),
    }


def crossed(left: Collection, right: Collection) -> Collection:
    """All pairs, which is warned of."""
    with pytest.warns(UserWarning, match="cross"):
        return left.join(right, how="cross")


def history(path: Path, on: str, spark: Any, seed: int) -> list[Rows]:
    """The rows of every stage at every epoch of a random history with retractions."""
    rng = random.Random(seed)
    held = [edge(rng) for _ in range(300)]
    with nosync_nb.open(path, spark=spark) as session:
        session.input("edges", "a bigint, b string, v double")
        session.input("nodes", "k bigint, w string", key="k")
        session["edges"].insert(held)  # type: ignore[attr-defined]
        session["nodes"].upsert([(i, f"w{i % 4}") for i in range(15)])  # type: ignore[attr-defined]
        session.commit()
        session.define(stages(session), on=on)
        found = [read(session)]
        for _ in range(2):
            gone = [held.pop(rng.randrange(len(held))) for _ in range(25)]
            new = [edge(rng) for _ in range(8)]
            held += new
            session["edges"].remove(gone)  # type: ignore[attr-defined]
            session["edges"].insert(new)  # type: ignore[attr-defined]
            session["nodes"].upsert([(rng.randrange(20), "new")])  # type: ignore[attr-defined]
            session["nodes"].delete([rng.randrange(15)])  # type: ignore[attr-defined]
            session.commit()
            found.append(read(session))
    with nosync_nb.open(path, spark=spark) as session:
        assert session.recovery.recomputed == 0
        assert repr(found[-1]) == repr(read(session))
    return found


def edge(rng: random.Random) -> tuple[Any, ...]:
    """A row with nulls, NaN, copies and letters beyond ASCII."""
    value = rng.choice([None, 1.5, float("nan"), 2.0, -3.25, 1e300])
    return (rng.choice([None, *range(12)]), rng.choice(["x", "y", None, "é", ""]), value)


def read(session: Session) -> Rows:
    """Every stage's rows."""
    return {name: stage.rows() for name, stage in session.stages.items()}


@pytest.mark.spark
def test_every_operator_gives_the_same_on_executors_and_here(tmp_path: Path, spark: Any) -> None:
    here = history(tmp_path / "here", "local", spark, seed=7)
    there = history(tmp_path / "there", "spark", spark, seed=7)
    for epoch, (ours, theirs) in enumerate(zip(here, there, strict=True)):
        for name in ours:
            assert repr(ours[name]) == repr(theirs[name]), (epoch, name)


@pytest.mark.spark
def test_a_first_run_over_many_rows_is_on_spark_and_a_small_epoch_is_not(
    tmp_path: Path, spark: Any
) -> None:
    with nosync_nb.open(tmp_path / "log", spark=spark, spark_rows=1000) as session:
        numbers = session.input("numbers", "n bigint")
        numbers.insert([(i,) for i in range(2000)])
        session.commit()
        (report,) = session.define({"odd": numbers.filter("n % 2 = 1").group_by("n").count()})
        assert "Spark job" in report.placement
        numbers.insert([(1,)])
        session.commit()
        assert "[in process" in session["odd"].explain()
        assert session["odd"].agg(n="sum(count)").rows()[0].n == 1001
        (report,) = session.define({"here": numbers.agg(n="count(*)")}, on="local")
        assert report.placement == "in process"


def test_work_of_an_epoch_does_not_grow_with_the_state_it_leaves_alone(tmp_path: Path) -> None:
    touched = []
    for size in (1_000, 50_000):
        with nosync_nb.open(tmp_path / str(size), spark_rows=10**9) as session:
            edges = session.input("edges", "src bigint, dst bigint")
            nodes = session.input("nodes", "node bigint, label bigint")
            nodes.insert([(i, i % 100) for i in range(1_000)])
            edges.insert([(i, i % 1_000) for i in range(size)])
            session.commit()
            counts = edges.join(nodes, on={"dst": "node"}).group_by("label").agg(n="count(*)")
            session.stage("counts", counts)
            before = session.stats["touched"]
            edges.insert([(1, 5), (2, 6), (3, 7)])
            edges.remove([(8, 8)])
            session.commit()
            touched.append(session.stats["touched"] - before)
    assert touched[0] == touched[1]
    assert touched[0] < 50
