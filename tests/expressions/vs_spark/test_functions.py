"""SQL functions in process: each computes what Spark computes, and raises where it raises.

Spark evaluates all cases in a few jobs over one frame of values. Rows on which ours raises are
masked in the case, so that a row on which only Spark raises fails the job; and they must be the
rows on which the case's twin is null and ours is not.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from soak import tried
from sql_cases.expression_cases import LATER
from sql_cases.expression_frames import (
    Mask,
    Values,
    evaluated,
    local_cases,
    null_mask,
    same_numbers,
    values,
)
from sql_cases.function_cases import NEAR, PRINTED, Case
from sql_cases.random_expressions import expressions

from nosync_nb import rows
from nosync_nb.expressions import Expression, compile_expression
from nosync_nb.rows import Schema

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

_TOGETHER = 150
_LATER = {case.sql for module in LATER for case in module.every()}
_CASES = [each for each in local_cases() if each[0].sql not in _LATER]
_CASES += [each for each in local_cases() if each[0].sql in _LATER][:: tried(9, 1)]
_CHUNKS = [_CASES[i : i + _TOGETHER] for i in range(0, len(_CASES), _TOGETHER)]


def assert_as_in_spark(some: list[tuple[Case, Expression]], spark: Any) -> None:
    own = values()
    ours = [evaluated(e, own.columns, own.n) for _, e in some]
    named: dict[str, tuple[str, Mask | None]] = {}
    for i, ((case, _), (_, fine)) in enumerate(zip(some, ours, strict=True)):
        named[f"r{i}"] = (case.sql, fine)
        if case.twin is not None:
            named[f"t{i}"] = (case.twin, None)
    theirs = own.spark_values(spark, named)
    for i, ((case, e), (found, fine)) in enumerate(zip(some, ours, strict=True)):
        result = theirs[f"r{i}"]
        assert (case.sql, rows.spark_type(result.type)) == (case.sql, e.type)
        assert_equal(case.sql, e, rows.from_arrow(result, e.type), found, own)
        if case.twin is not None:
            nulls = theirs[f"t{i}"].is_null().to_numpy()
            wrong = np.flatnonzero(nulls != null_mask(found, own.n))
            assert not len(wrong), f"{case} on {own.row(e, wrong[0])}: only one raises"
        else:
            assert fine is None, f"{case} has no twin, but raises"


def assert_equal(sql: str, e: Expression, expected: Any, found: Any, own: Values) -> None:
    same = rows.equal(expected, found, e.type)
    if sql in NEAR:
        same |= _nearly_equal(rows.to_pylist(expected, e.type), rows.to_pylist(found, e.type))
    if sql in PRINTED:
        texts = (rows.to_pylist(column, e.type) for column in (expected, found))
        same |= np.array(same_numbers(*texts, PRINTED[sql]))
    wrong = np.flatnonzero(~same)
    if len(wrong):
        i = int(wrong[0])
        want, got = (rows.slice_(column, i, i + 1) for column in (expected, found))
        pytest.fail(f"{sql} on {own.row(e, i)}: in Spark {want}, here {got}")


_PLACES = 2
"""Units in the last place: one is Java's, one ours."""


def _nearly_equal(expected: list[Any], found: list[Any]) -> Any:
    a = np.array([np.nan if v is None else v for v in expected])
    b = np.array([np.nan if v is None else v for v in found])
    with np.errstate(all="ignore"):
        return np.abs(a - b) <= _PLACES * np.spacing(np.abs(a))


@pytest.mark.parametrize("chunk", range(len(_CHUNKS)))
def test_cases_equal_spark(chunk: int, spark: Any) -> None:
    assert_as_in_spark(_CHUNKS[chunk], spark)


def test_random_expressions_equal_spark(spark: Any) -> None:
    own = values()
    cases = _check_random_expressions(own, 130, 1, spark)
    assert cases > 80
    for seed in count(2):
        if cases >= tried(0, 100_000):
            break
        cases += _check_random_expressions(own.drawn(400, seed), 100, seed, spark)


def _check_random_expressions(own: Values, size: int, seed: int, spark: Any) -> int:
    """Compares random expressions with Spark; returns the number computed in process."""
    made = []
    for sql in expressions(size, seed=seed):
        e = compile_expression(sql, own.schema, types=lambda *_: ["int"])
        if e.local:
            made.append((sql, e, *evaluated(e, own.columns, own.n)))
    total = len(made)
    # What refuses every row is a constant, which Spark refuses before it looks at the mask.
    made = [each for each in made if each[3] is None or each[3].any()]
    theirs = own.spark_values(spark, {f"r{i}": (m[0], m[3]) for i, m in enumerate(made)})
    for i, (sql, e, found, _) in enumerate(made):
        assert (sql, rows.spark_type(theirs[f"r{i}"].type)) == (sql, e.type)
        assert_equal(sql, e, rows.from_arrow(theirs[f"r{i}"], e.type), found, own)
    return total


def test_case_mapping_equals_spark_for_every_letter(spark: Any) -> None:
    caseless = [*range(0x3400, 0xA000), *range(0xAC00, 0xE000)]  # and the planes from 0x20000 on
    alone = [chr(c) for c in sorted(set(range(1, 0x20000)) - set(caseless))]
    schema = Schema.parse("x string")
    frame = spark.createDataFrame(pa.table({"row": np.arange(len(alone)), "x": alone}))
    sqls = ["upper(x)", "lower(x)", "lower('A' || x || 'Σ')", "lower('AΣ' || x || 'b')"]
    theirs = frame.selectExpr("row", *sqls).toArrow().sort_by("row")
    for sql, wanted in zip(sqls, theirs.columns[1:], strict=True):
        e = compile_expression(sql, schema)
        found = e.evaluate([pa.array(alone)], len(alone))
        wrong = np.flatnonzero(~rows.equal(rows.from_arrow(wanted, "string"), found, "string"))
        assert (sql, []) == (sql, [hex(ord(alone[k])) for k in wrong])
