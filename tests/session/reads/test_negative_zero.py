"""Negative zero: it is stored as zero, however it comes in."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import nosync_nb
from nosync_nb import Session

WAYS = {
    "tuples": lambda x, d: [(x, d)],
    "dicts": lambda x, d: [{"x": x, "d": d}],
    "numpy": lambda x, d: {"x": np.array([x], np.float32), "d": np.array([d])},
    "pandas": lambda x, d: pd.DataFrame({"x": np.array([x], np.float32), "d": [d]}),
    "arrow": lambda x, d: pa.table({"x": pa.array([x], pa.float32()), "d": pa.array([d])}),
    "polars": lambda x, d: pl.DataFrame({"x": pl.Series([x], dtype=pl.Float32), "d": [d]}),
}


def sign(value: float) -> float:
    return math.copysign(1.0, value)


@pytest.mark.parametrize("way", WAYS)
def test_negative_zero_is_read_as_zero(session: Session, way: str) -> None:
    data = session.input("data", "x float, d double")
    data.insert(WAYS[way](-0.0, -0.0))
    session.commit()
    assert [(sign(row.x), sign(row.d)) for row in data.rows()] == [(1.0, 1.0)]
    assert [sign(value.as_py()) for value in data.to_arrow()["d"]] == [1.0]
    data.remove(WAYS[way](0.0, 0.0))
    session.commit()
    assert data.count() == 0


def test_rows_with_either_zero_are_one_row(session: Session) -> None:
    data = session.input("data", "d double, a array<double>, s struct<f:float>, m map<int,double>")
    for zero in (-0.0, 0.0):
        data.insert([(zero, [zero, 1.0], (zero,), {1: zero})])
    session.commit()
    assert data.distinct().count() == 1
    assert [tuple(row)[-1] for row in data.group_by("d", "a", "s").count().rows()] == [2]
    data.remove([(-0.0, [0.0, 1.0], (-0.0,), {1: 0.0})] * 2)
    session.commit()
    assert data.count() == 0


def test_computed_negative_zero_loses_its_sign_when_stored(
    session: Session, tmp_path: Path
) -> None:
    """Within one expression the sign counts, as in Spark."""
    data = session.input("data", "d double")
    stage: Any = session.stage(
        "signs",
        data.select(
            "-d AS opposite", "cast(-d as string) AS within", "cast(d as string) AS stored"
        ),
    )
    data.insert([(-0.0,)])
    session.commit()
    (row,) = stage.rows()
    assert sign(row.opposite) == 1.0
    assert tuple(row)[1:] == ("-0.0", "0.0")
    session.close()
    with nosync_nb.open(tmp_path / "log") as again:
        (row,) = again["signs"].rows()
        assert (sign(row.opposite), row.within) == (1.0, "-0.0")
