"""SQL functions of further modules: each computes what Spark computes.

A run holds some of the cases against Spark, a soak all of them; every run holds all of them against
what was computed when Spark agreed.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from soak import tried
from sql_cases.expression_cases import Case
from sql_cases.expression_frames import Mask, null_mask, values
from sql_cases.further_cases import RECORD, computed, digests_of_further, further

from nosync_nb import rows
from nosync_nb.expressions import Expression

_TOGETHER = 60
_EVERY = tried(9, 1)


def test_further_cases_are_computed_in_process_as_recorded() -> None:
    recorded, now = json.loads(RECORD.read_text()), digests_of_further()
    changed = {sql: (recorded.get(sql), text) for sql, text in now.items()}
    assert {sql: pair for sql, pair in changed.items() if pair[0] != pair[1]} == {}, (
        "pass this file under the nightly profile, then run "
        "tests/support/sql_cases/further_cases.py"
    )
    assert recorded.keys() == now.keys()
    assert len(computed()) == len(further())


def test_further_cases_accept_zero_rows_and_large_columns() -> None:
    own = values()
    nothing = [rows.empty(t) for t in own.schema.types]
    copies = rows.SMALL // own.n + 2
    for case, e, column, fine in computed()[:: tried(4, 1)]:
        assert (case.sql, 0) == (case.sql, len(e.evaluate(nothing, 0)))
        keep = np.ones(own.n, np.bool_) if fine is None else fine
        every = np.tile(np.arange(own.n), copies)[np.tile(keep, copies)]
        wide = [None] * len(own.columns)
        for c in e.columns:
            large = own.arrays[c].take(rows.to_arrow(every, "bigint"))
            wide[c] = rows.from_arrow(large, own.schema.types[c])
        large = e.evaluate(wide, len(every))
        assert rows.equal(rows.take(column, every), large, e.type).all(), case


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_further_cases_equal_spark(spark: Any) -> None:
    some = computed()[::_EVERY]
    for start in range(0, len(some), _TOGETHER):
        _as_in_spark(some[start : start + _TOGETHER], spark)


def _as_in_spark(some: list[tuple[Case, Expression, Any, Mask | None]], spark: Any) -> None:
    own = values()
    named: dict[str, tuple[str, Mask | None]] = {}
    for i, (case, _, _, fine) in enumerate(some):
        named[f"r{i}"] = (case.sql, fine)
        if case.twin is not None:
            named[f"t{i}"] = (case.twin, None)
    theirs = own.spark_values(spark, named)
    for i, (case, e, column, fine) in enumerate(some):
        result = theirs[f"r{i}"]
        assert (case.sql, rows.spark_type(result.type)) == (case.sql, e.type)
        wrong = np.flatnonzero(~rows.equal(rows.from_arrow(result, e.type), column, e.type))
        assert not len(wrong), f"{case.sql} on {own.row(e, int(wrong[0]))}"
        if case.twin is None:
            assert fine is None, f"{case} has no twin, but raises"
            continue
        nulls = theirs[f"t{i}"].is_null().to_numpy()
        wrong = np.flatnonzero(nulls != null_mask(column, own.n))
        assert not len(wrong), f"{case} on {own.row(e, int(wrong[0]))}: only one raises"
