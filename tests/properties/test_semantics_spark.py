"""Public cases of incremental semantics on executors.

Inner and semi joins are part of the others; loops on executors are in test_placement.py and
test_random_programs.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checks.checking import count, net

import nosync_nb
from nosync_nb import Collection, Session

JOINS = ("left", "right", "full", "anti")


INNER = {(1, "A", "X"): 2, (2, "B", "Y"): 1}
LONELY_LEFT = {(None, "p", None): 1}
LONELY_RIGHT = {(3, None, "Z"): 1, (None, None, "q"): 1}
FIRST: dict[str, dict[Any, int]] = {
    "pairs": {("apple", 5, 3): 2, ("apple", 5, 2): 2},
    "counts": {("apple", 4): 1, ("banana", 1): 1, ("kiwi", 1): 1},
    "figures": {("apple", 5, 2, 2, 3): 1, ("kiwi", 2, 1, 2, 2): 1},
    "left_": INNER | LONELY_LEFT,
    "right_": INNER | LONELY_RIGHT,
    "full_": INNER | LONELY_LEFT | LONELY_RIGHT,
    "anti_": {(None, "p"): 1},
    "triangles": {(1, 2, 3): 1, (1, 3, 2): 1},
    "once": {(1,): 1, (3,): 1},
    "copies": {(1, 2): 1, (2, -2): 1, (3, 1): 1, (4, -1): 1},
    "sums": {("a", None, 0, 2): 1},
    "whole": {(None, 0): 1},
}
GONE = {(1, "A", "X"): -1, (2, "B", "Y"): -1}
CHANGES: dict[str, dict[Any, int]] = {
    "pairs": {("apple", 5, 3): -2, ("apple", 5, 2): -1},
    "counts": {("apple", 4): -1, ("apple", 2): 1},
    "figures": {
        ("apple", 5, 2, 2, 3): -1,
        ("apple", 2, 1, 2, 2): 1,
        ("kiwi", 2, 1, 2, 2): -1,
    },
    "left_": {**GONE, (2, "B", None): 1},
    "right_": GONE,
    "full_": {**GONE, (2, "B", None): 1},
    "anti_": {(2, "B"): 1},
    "triangles": {(1, 2, 3): -1, (1, 3, 2): -1},
    "once": {(1,): -1, (2,): 1, (5,): 1},
    "copies": {(1, 2): -1, (2, -2): -1, (2, 1): 1, (4, -1): -1, (5, 1): 1},
    "sums": {("a", None, 0, 2): -1},
    "whole": {},
}
"""What changes at the second epoch."""


def inputs(session: Session) -> None:
    session.input("fruit", "fruit string, price int")
    session.input("more", "fruit string, price int")
    session.input("left", "k int, v string")
    session.input("right", "k int, w string")
    session.input("edges", "src int, dst int")
    session.input("signs", "x int")
    session.input("nulls", "k string, x double")


def stages(session: Session) -> dict[str, Collection]:
    """The stages of the public cases."""
    a, b = session["fruit"], session["more"]
    left, right = session["left"], session["right"]
    edges, nulls = session["edges"], session["nulls"]
    steps = edges.join(edges.select("src AS dst", "dst AS end"), on="dst")
    return {
        "pairs": a.join(b.rename({"price": "other"}), on="fruit"),
        "counts": a.concat(b).group_by("fruit").count(),
        "figures": b.group_by("fruit").agg(
            s="sum(price)", n="count(*)", low="min(price)", high="max(price)"
        ),
        **{f"{how}_": left.join(right, on="k", how=how) for how in JOINS},
        "triangles": steps.join(edges.rename({"dst": "end"}), on=["src", "end"]),
        "once": session["signs"].distinct(),
        "copies": session["signs"].multiplicity(),
        "sums": nulls.group_by("k").agg(t="sum(x)", c="count(x)", n="count(*)"),
        "whole": nulls.agg(t="sum(x)", c="count(x)"),
    }


def commit(session: Session, **changes: dict[Any, int]) -> None:
    """Commits signed rows of several inputs."""
    for name, diffs in changes.items():
        for row, n in diffs.items():
            source = session.inputs[name]
            (source.insert if n > 0 else source.remove)([row] * abs(n))
    session.commit()


@pytest.mark.spark
def test_public_cases_come_out_the_same_on_executors(tmp_path: Path, spark: Any) -> None:
    with nosync_nb.open(tmp_path / "log", spark=spark) as session:
        inputs(session)
        commit(
            session,
            fruit={("apple", 5): 2, ("banana", 2): 1},
            more={("apple", 3): 1, ("apple", 2): 1, ("kiwi", 2): 1},
            left={(1, "A"): 1, (2, "B"): 1, (None, "p"): 1},
            right={(1, "X"): 2, (2, "Y"): 1, (3, "Z"): 1, (None, "q"): 1},
            edges={(1, 2): 1, (2, 3): 1, (3, 2): 1, (1, 3): 1},
            signs={(1,): 2, (2,): -2, (3,): 1, (4,): -1},
            nulls={("a", None): 2},
        )
        session.define(stages(session), on="spark")
        assert "spark" in session["pairs"].explain().lower()
        assert {name: count(stage) for name, stage in session.stages.items()} == FIRST
        commit(
            session,
            fruit={("apple", 5): -1, ("kiwi", 9): 1},
            more={("apple", 3): -1, ("kiwi", 2): -1},
            right={(1, "X"): -1, (2, "Y"): -1},
            edges={(1, 2): -1, (1, 3): -1},
            signs={(1,): -2, (2,): 3, (4,): 1, (5,): 1},
            nulls={("a", None): -2},
        )
        assert {name: net(stage) for name, stage in session.stages.items()} == CHANGES
