"""Overflow of counts: sums and products above 64 bits raise an error that names the rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nosync_nb
from nosync_nb import Collection, DivergenceError, ExpressionError, Session
from nosync_nb.rows.count_arithmetic import CountError, add_runs, products

COUNTS = st.one_of(st.integers(-5, 5), st.integers(-(2**63), 2**63 - 1))


@given(st.lists(st.tuples(COUNTS, COUNTS), max_size=80))
def test_products_are_exact_or_raise(pairs: list[tuple[int, int]]) -> None:
    left, right = (np.array([p[i] for p in pairs], np.int64) for i in (0, 1))
    expected = [a * b for a, b in pairs]
    wrong = [i for i, n in enumerate(expected) if not -(2**63) <= n < 2**63]
    if wrong:
        with pytest.raises(CountError) as caught:
            products(left, right)
        assert caught.value.at == wrong[0]
    else:
        assert expected == products(left, right).tolist()


@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4), min_size=1))
def test_sums_of_runs_are_exact_or_raise(runs: list[list[int]]) -> None:
    diff = np.array([d for run in runs for d in run], np.int64)
    starts = np.cumsum([0, *map(len, runs[:-1])])
    expected = [sum(run) for run in runs]
    if all(-(2**63) <= one < 2**63 for one in expected):
        assert expected == add_runs(diff, starts).tolist()
    else:
        with pytest.raises(CountError):
            add_runs(diff, starts)


LOOPS: dict[str, tuple[Callable[[Collection], Collection], str, str]] = {
    "doubled": (
        lambda r: r.iterate(lambda v: v.concat(v)),
        r"stage 'grown': \[RECURSION_ROW_LIMIT_EXCEEDED\] iterate does not converge: counts grow,"
        r" and in round 6\d row \(7,\)",
        "limit the rounds",
    ),
    "bounded": (
        lambda r: r.iterate(lambda v: v.concat(v), rounds=100),
        r"iterate does not converge: counts grow, and in round 6\d row \(7,\)",
        "reduce rounds=",
    ),
    "squared": (
        lambda r: r.concat(r).iterate(lambda v: v.join(v, on="n")),
        r"iterate does not converge: counts grow, and in round \d row \(7,\)",
        "limit the rounds",
    ),
    "inside": (
        lambda r: r.iterate(lambda v: v.iterate(lambda w: w.concat(w)).distinct()),
        r"iterate \(inner loop, at \(0,\) of the loops around it\) does not converge",
        "limit the rounds",
    ),
    "around": (
        lambda r: r.iterate(lambda v: v.iterate(lambda w: w.concat(w), rounds=1)),
        r"stage 'grown': .*iterate.* does not converge",
        "",
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loop_with_growing_counts_is_stopped_and_named(session: Session, name: str) -> None:
    build, says, remedy = LOOPS[name]
    numbers = session.input("numbers", "n int")
    stage = session.stage("grown", build(numbers))
    numbers.insert([(7,)])
    with pytest.raises(DivergenceError, match=says) as caught:
        session.commit()
    assert "more than 2**63 - 1 times" in str(caught.value)
    assert "distinct()" in str(caught.value.hint)
    assert remedy in str(caught.value.hint)
    assert session.now == 0
    session.discard()
    session.commit()
    assert stage.rows() == []


@pytest.mark.spark
def test_loop_with_growing_counts_is_stopped_on_executors(tmp_path: Path, spark: Any) -> None:
    with nosync_nb.open(tmp_path / "log", spark=spark, spark_rows=0) as session:
        numbers = session.input("numbers", "n int")
        body: Callable[[Collection], Collection] = lambda v: v.join(v, on="n")  # noqa: E731
        session.stage("grown", numbers.concat(numbers).iterate(body))
        numbers.insert([(7,)])
        with pytest.raises(DivergenceError, match=r"'grown': .*iterate does.* row \(7,\)"):
            session.commit()
        assert session.now == 0


def test_count_overflow_outside_loop_names_stage_and_operator(session: Session) -> None:
    numbers = session.input("numbers", "n int")
    many = numbers
    for _ in range(4):
        many = many.concat(many, many, many).consolidate()  # 256 copies
    for i in range(3):
        many = session.stage(f"times{i}", many.join(many, on="n"))
    numbers.insert([(7,)])
    with pytest.raises(ExpressionError, match=r"^stage 'times2': join: row \(7,\) is counted more"):
        session.commit()
    assert session.now == 0
    session.discard()
    session.drop("times2")
    numbers.insert([(7,)])
    session.commit()


def test_groups_above_64_bits_are_refused(tmp_path: Path) -> None:
    """In one epoch, and in two; nothing of the epoch that is refused remains."""
    with nosync_nb.open(tmp_path / "log", spark_rows=10**9) as session:
        ones: Any = session.input("ones", "k int, x int")
        many = ones
        for number, doublings in enumerate((10, 10, 10, 10, 10, 10, 2)):
            for _ in range(doublings):
                many = many.concat(many)
            many = session.stage(f"step{number}", many)
        groups = session.stage("groups", many.group_by("k").agg(n="count(*)"))
        ones.insert([(0, 1), (0, 2)])
        with pytest.raises(ExpressionError, match=r"stage 'groups': agg: .* more than 2"):
            session.commit()
        session.discard()
        ones.insert([(0, 1), (1, 1)])
        session.commit()
        assert groups.rows() == [(0, 2**62), (1, 2**62)]
        ones.insert([(0, 2)])
        for _ in range(2):
            with pytest.raises(ExpressionError, match=r"stage 'groups': agg: .* more than 2"):
                session.commit()
        session.discard()
        ones.remove([(1, 1)])
        session.commit()
        assert groups.rows() == [(0, 2**62)]
