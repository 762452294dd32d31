"""Row counts in a trace: few rows are looked up in Python, many in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nosync_nb import rows
from nosync_nb.operators.base import Step
from nosync_nb.operators.distinct import row_counts
from nosync_nb.rows.count_arithmetic import CountError
from nosync_nb.trace import Layer, Trace
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange

LAYOUT = Layout(("bigint", "string"))

VALUES = st.tuples(st.integers(0, 3), st.sampled_from(["a", "ä", "", None]))
BATCHES = st.lists(st.lists(st.tuples(VALUES, st.integers(-2, 2)), min_size=1), max_size=5)


def batch(pairs: list[tuple[tuple[int, str | None], int]], *, collide: bool) -> Batch:
    """Rows in order; with `collide` all have one hash."""
    columns: list[Any] = [
        np.array([number for (number, _), _ in pairs], np.int64),
        rows.objects([text for (_, text), _ in pairs]),
    ]
    updates = Updates(columns, np.array([diff for _, diff in pairs], np.int64))
    one = np.zeros(len(pairs), np.uint64) if collide else None
    return arrange(LAYOUT, updates, khash=one, rhash=one)


def with_arrow_texts(part: Batch) -> Batch:
    """The same rows with texts as Arrow has them."""
    text = pa.array(part.columns[1].tolist(), pa.string())
    return Batch(part.layout, [part.columns[0], text], part.khash, part.rhash, part.diff)


def counted(held: Trace, asked: Batch) -> tuple[list[int], int]:
    """The counts, and the number of rows read for them."""
    step = Step((), (), (), ())
    return row_counts(held, asked, step).tolist(), step.touched


@pytest.mark.parametrize("collide", [False, True])
@given(parts=BATCHES, probes=st.lists(VALUES, min_size=1, max_size=12, unique=True))
def test_scalar_row_counts_equal_vectorised_ones(
    collide: bool, parts: list[Any], probes: list[Any]
) -> None:
    layers = [batch(pairs, collide=collide) for pairs in parts]
    layers = [with_arrow_texts(each) if at % 2 else each for at, each in enumerate(layers)]
    held = Trace(LAYOUT, tuple(Layer(i, i + 1, (each,)) for i, each in enumerate(layers)))
    asked = batch([(values, 1) for values in probes], collide=collide)
    found = counted(held, asked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(row_counts.__globals__, "_FEW", 0)
        assert counted(held, asked) == found
    sums: dict[Any, int] = {}
    for pairs in parts:
        for values, diff in pairs:
            sums[values] = sums.get(values, 0) + diff
    each = zip(asked.columns[0].tolist(), asked.columns[1].tolist(), strict=True)
    assert found[0] == [sums.get(values, 0) for values in each]


def test_row_count_over_64_bits_is_error() -> None:
    asked = batch([((1, "a"), 1)], collide=False)
    most = Batch(LAYOUT, asked.columns, asked.khash, asked.rhash, np.array([2**63 - 1]))
    once = Trace(LAYOUT, (Layer(0, 1, (most,)),))
    assert counted(once, asked)[0] == [2**63 - 1]
    with pytest.raises(CountError):
        counted(once.with_batch(most), asked)
