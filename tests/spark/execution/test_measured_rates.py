"""Measured rates of kernels: used after several runs of a kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import nosync_nb
from nosync_nb.spark.execution import placement
from nosync_nb.spark.execution.cost_model import (
    FACTOR_MAX,
    HERE,
    MEASURED,
    ROWS_MIN,
    ROWS_PER_SECOND,
    RUNS_MAX,
    RUNS_MIN,
    SPARK,
    CostEstimate,
    MeasuredRates,
    choose_placement,
)

BELIEVED = ROWS_PER_SECOND["key"]


def after(*speeds: float, kind: str = "key", rows: int = ROWS_MIN) -> MeasuredRates:
    """Rates after runs at some speeds, relative to the default rate."""
    rates = MeasuredRates()
    for speed in speeds:
        rates.note(kind, rows, rows / (speed * ROWS_PER_SECOND[kind]))
    return rates


@pytest.mark.parametrize("runs", range(RUNS_MIN))
def test_few_runs_change_no_rate(runs: int) -> None:
    assert after(*[0.5] * runs).per_second("key") == BELIEVED


def test_rate_is_median_of_runs_of_one_kind() -> None:
    rates = after(*[0.5] * (RUNS_MIN - 2), 3.9, 0.01)
    assert rates.per_second("key") == pytest.approx(0.5 * BELIEVED)
    assert {kind: rates.per_second(kind) for kind in ROWS_PER_SECOND if kind != "key"} == {
        kind: rate for kind, rate in ROWS_PER_SECOND.items() if kind != "key"
    }


def test_old_runs_are_forgotten() -> None:
    assert after(*[0.5] * 100, *[2.0] * RUNS_MAX).per_second("key") == pytest.approx(2 * BELIEVED)


@pytest.mark.parametrize(("speed", "bound"), [(1e-6, 1 / FACTOR_MAX), (1e6, FACTOR_MAX)])
def test_rate_is_bounded(speed: float, bound: float) -> None:
    assert after(*[speed] * RUNS_MIN).per_second("key") == pytest.approx(bound * BELIEVED)


def test_small_runs_loops_and_spark_expressions_are_not_measured() -> None:
    assert after(*[0.5] * 50, rows=ROWS_MIN - 1).per_second("key") == BELIEVED
    for kind in ROWS_PER_SECOND.keys() - set(MEASURED):
        assert after(*[0.5] * 50, kind=kind).per_second(kind) == ROWS_PER_SECOND[kind]


def test_measured_rate_decides_placement() -> None:
    rows = 10_000_000
    given = CostEstimate("key", rows, 24 * rows, 0, 24 * rows, "running", slots=8)
    assert choose_placement(given).place == SPARK
    assert choose_placement(given._replace(per_second=FACTOR_MAX * BELIEVED)).place == SPARK
    few = CostEstimate("key", 1_600_000, 24, 0, 24, "running", slots=8)
    assert choose_placement(few._replace(per_second=FACTOR_MAX * BELIEVED)).place == HERE
    assert choose_placement(few._replace(per_second=BELIEVED / FACTOR_MAX)).place == SPARK


def test_session_uses_rates_that_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimates: list[CostEstimate] = []
    runs: list[tuple[str, int]] = []
    note, chosen_for = MeasuredRates.note, placement.choose_placement

    def noting(rates: MeasuredRates, kind: str, rows: int, seconds: float) -> None:
        assert seconds > 0
        runs.append((kind, rows))
        note(rates, kind, rows, rows / (2.0 * ROWS_PER_SECOND[kind]))  # whatever the machine does

    def weighing(estimate: CostEstimate) -> Any:
        estimates.append(estimate)
        return chosen_for(estimate)

    monkeypatch.setattr(MeasuredRates, "note", noting)
    monkeypatch.setattr(placement, "choose_placement", weighing)
    with nosync_nb.open(tmp_path / "log") as session:
        numbers = session.input("numbers", "k int, x int")
        session.stage("counts", numbers.group_by("k").agg(n="count(*)"))
        for _ in range(RUNS_MIN + 1):
            numbers.insert(pa.table({"k": [n % 7 for n in range(ROWS_MIN)], "x": range(ROWS_MIN)}))
            session.commit()
        numbers.insert([(1, 1)])
        session.commit()
        assert session["counts"].agg(n="sum(n)").rows() == [((RUNS_MIN + 1) * ROWS_MIN + 1,)]
    keyed = [each for each in estimates if each.kind == "key"]
    assert runs.count(("key", ROWS_MIN)) == RUNS_MIN + 1, "few rows are not weighed"
    assert [each.per_second for each in keyed[: RUNS_MIN + 1]] == [
        *[BELIEVED] * RUNS_MIN,
        pytest.approx(2 * BELIEVED),
    ]
