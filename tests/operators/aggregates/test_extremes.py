"""`min` and `max` of few rows: the scalar path finds what numpy finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nosync_nb import rows
from nosync_nb.operators.aggregates import extremes
from nosync_nb.operators.aggregates.extremes import extreme
from nosync_nb.operators.base import Step
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Layout, Updates, arrange

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bigint": st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2),
    "string": st.text(max_size=3) | st.sampled_from(["", "a", "é", "\U0001f600", "\uffee"]),
    "boolean": st.booleans(),
    "binary": st.binary(max_size=2),
    "double": st.floats() | st.integers(-2, 2).map(float),
}


@pytest.mark.parametrize("type_", VALUES)
@given(st.data())
def test_scalar_extremes_equal_vectorised_ones(type_: str, data: st.DataObject) -> None:
    layout = Layout(("int", type_), (0,), 1)
    row = st.tuples(st.integers(0, 2), VALUES[type_], st.integers(-2, 2))
    trace = Trace(layout)
    for listed in data.draw(st.lists(st.lists(row, max_size=5), max_size=4)):
        keys, values, diffs = zip(*listed, strict=True) if listed else ((), (), ())
        columns = [np.array(keys, np.int32), rows.from_arrow(_arrow(values, type_), type_)]
        batch = arrange(layout, Updates(columns, np.array(diffs, np.int64)))
        trace = trace.with_batch(batch) if len(batch) else trace
    groups = [np.arange(3, dtype=np.int32)]
    khash = rows.hash_columns(groups, ("int",), 3)
    for greatest in (False, True):
        found = []
        for few in (extremes.FEW_ROWS, 0):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(extremes, "FEW_ROWS", few)
                step = Step([None], [None], [None], ())
                has, (column,) = extreme(trace, khash, groups, greatest, step)
            found.append((has.tolist(), list(map(repr, rows.to_pylist(column, type_)))))
        assert found[0] == found[1]


def _arrow(values: Any, type_: str) -> Any:
    import pyarrow as pa

    return pa.array(list(values), rows.arrow_type(type_))
