"""Random values from a seed: those of Spark for the rows of one partition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nosync_nb import ExpressionError, Session
from nosync_nb.expressions import compile_expression, waits
from nosync_nb.rows import Schema

SCHEMA = Schema.parse("k bigint")


def random_values(sql: str, n: int) -> Any:
    e = compile_expression(sql, SCHEMA)
    assert not e.deterministic
    return e.evaluate([np.arange(n)], n)


def test_seed_gives_same_values_each_time() -> None:
    assert random_values("rand(42)", 2).tolist() == [0.619189370225301, 0.5096018842446481]
    assert random_values("random(0)", 1).tolist() == random_values("rand(null)", 1).tolist()
    assert random_values("rand(-1)", 5000).tolist() == random_values("rand(-1)", 5000).tolist()
    assert random_values("rand()", 9).tolist() != random_values("rand()", 9).tolist()
    assert abs(float(random_values("randn(7)", 5000).mean())) < 0.05
    for left in ("rand(k)", "rand('1')", "rand(1.5)"):
        assert waits(left, SCHEMA)


def test_seeded_values_are_retracted_and_survive_restart(opened: Callable[..., Session]) -> None:
    session = opened()
    given = session.input("given", "k bigint")
    stage = session.stage("drawn", given.select("k", "rand(42) AS r"))
    given.insert([(k,) for k in range(20)])
    session.commit()
    before = dict(stage.rows())
    given.insert([(k,) for k in range(20, 30)])
    session.commit()
    given.remove([(k,) for k in range(5, 30)])
    session.commit()
    assert dict(stage.rows()) == {k: before[k] for k in range(5)}
    session.close()
    assert dict(opened()["drawn"].rows()) == {k: before[k] for k in range(5)}


def test_seed_inside_aggregate_is_refused(session: Session) -> None:
    given = session.input("given", "k bigint")
    with pytest.raises(ExpressionError, match="is not deterministic"):
        session.stage("sums", given.agg(s="sum(rand(1))"))


@pytest.mark.spark
@pytest.mark.parametrize("seed", ["0", "42", "-1", "123456789012", "null"])
def test_seeded_values_equal_spark(seed: str, spark: Any) -> None:
    frame = spark.range(0, 300, 1, 1).selectExpr(f"rand({seed}) AS u", f"randn({seed}) AS v")
    uniform, normal = (np.array(column) for column in zip(*frame.collect(), strict=True))
    assert (random_values(f"rand({seed})", 300) == uniform).all()
    off = np.abs(random_values(f"randn({seed})", 300) - normal) / np.spacing(np.abs(normal))
    assert off.max() <= 2
