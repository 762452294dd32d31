"""Documented examples of Spark: the same results with ANSI mode and without.

The examples come from Spark's own list of functions; see spark_examples.py. A run compares some of
them, a soak all, and all variants with columns in place of literals. Of one example for each
function, six in ten are computed in this process, in either mode.
"""

from __future__ import annotations

from typing import Any

import pytest
from soak import tried
from sql_cases import spark_examples
from sql_cases.spark_examples import Example

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

_FUNCTIONS = tried(slice(0, None, 3), slice(None))
_VARIED = tried(slice(1, None, 14), slice(None))
_TOGETHER = 40


@pytest.fixture(scope="module")
def names(spark: Any) -> list[str]:
    return spark_examples.functions(spark)


@pytest.fixture(params=[True, False], ids=["ansi", "not ansi"])
def mode(request: pytest.FixtureRequest, second_spark_session: Any) -> tuple[Any, bool]:
    """A Spark session in a mode, beside the session of other tests."""
    session = second_spark_session
    session.conf.set("spark.sql.ansi.enabled", request.param)
    return session, request.param


def compared(examples: list[Example], mode: tuple[Any, bool]) -> tuple[int, dict[str, str]]:
    """The number of examples computed in process, and their differences from Spark."""
    spark, ansi = mode
    answered = [(x, spark_examples.here(x, ansi=ansi)) for x in examples]
    local = [(x, answer) for x, answer in answered if answer is not None]
    found: dict[str, str] = {}
    for start in range(0, len(local), _TOGETHER):
        found |= spark_examples.differences(spark, local[start : start + _TOGETHER])
    return len(local), found


def test_documented_examples_equal_spark(
    names: list[str], spark: Any, mode: tuple[Any, bool]
) -> None:
    documented = [(name, spark_examples.documented(spark, name)) for name in names[_FUNCTIONS]]
    first = [spark_examples.plain(name, sqls[0]) for name, sqls in documented if sqls]
    more = [spark_examples.plain(name, sql) for name, sqls in documented for sql in sqls[1:]]
    assert len(first) > tried(90, 300)
    local, differing = compared(first, mode)
    assert differing == {}
    assert local >= 0.6 * len(first)
    local, differing = compared(more[:: tried(3, 1)], mode)
    assert differing == {}


def test_examples_with_columns_equal_spark(
    names: list[str], spark: Any, mode: tuple[Any, bool]
) -> None:
    documented = [(name, spark_examples.documented(spark, name)) for name in names[_VARIED]]
    varied = [
        variant
        for name, sqls in documented
        for sql in sqls[:: tried(2, 1)]
        for variant in spark_examples.variants(name, sql)
    ]
    local, differing = compared(varied, mode)
    assert differing == {}
    assert local > len(varied) // 4
