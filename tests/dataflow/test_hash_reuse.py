"""Reuse of row hashes: a row is hashed once, whatever orders its readers need."""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from nosync_nb import rows
from nosync_nb.dataflow.runtime.delta import SMALL_ROWS, ArrangedChange, Delta
from nosync_nb.rows import hashes
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange

N = 3 * SMALL_ROWS
TYPES = ("bigint", "string")
ROWS, KEY, OTHER = Layout(TYPES), Layout(TYPES, (0,)), Layout(TYPES, (1,))


def batch(layout: Layout) -> Batch:
    numbers = np.arange(N) * 7 % N
    texts = pa.array([f"text {n % 50}" for n in range(N)])
    return arrange(layout, Updates([numbers, texts], np.ones(N, np.int64)))


def plain(made: Batch) -> list[Any]:
    numbers = [made.khash.tolist(), made.rhash.tolist(), made.diff.tolist()]
    return [*numbers, *(rows.to_pylist(c, t) for c, t in zip(made.columns, TYPES, strict=True))]


@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("given", [ROWS, KEY])
@pytest.mark.parametrize("wanted", [KEY, OTHER])
def test_rearranged_change_hashes_its_key_only(given: Layout, wanted: Layout, parts: int) -> None:
    whole = batch(given)
    ends = [N * i // parts for i in range(parts + 1)]
    cut = tuple(whole.slice(a, b) for a, b in pairwise(ends))
    expected, seen = plain(batch(wanted)), []
    chain = vars(hashes)["_chain"]

    def noted(column: Any, type_: str, seeds: Any) -> Any:
        seen.append((type_, len(column)))
        return chain(column, type_, seeds)

    delta = Delta(TYPES, None, {given: ArrangedChange(cut)})
    with mock.patch.object(hashes, "_chain", noted):
        made = delta.batch(wanted)
    assert plain(made) == expected
    asked = set() if wanted == given else {TYPES[wanted.places[0]]}
    assert {type_ for type_, _ in seen} == asked
    assert sum(n for _, n in seen) == N * len(asked), "each row once"
    assert all(len(part) for part in cut)
    assert plain(whole) == plain(batch(given))
