"""The size of expanded rows is known before they are created."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from nosync_nb.rows import arrow_type
from nosync_nb.rows.columns import copied_bytes

VALUES = {
    "int": [1, None, 3],
    "string": ["a", None, "é" * 1000],
    "binary": [b"", b"x" * 500, None],
    "decimal(10,2)": [None, 1, 2],
    "array<string>": [["x" * 300], [], None],
    "array<array<int>>": [[[1, 2], []], [[3] * 400], None],
    "map<string,int>": [{"k" * 200: 1}, {}, None],
    "struct<a:string,b:array<int>>": [{"a": "z" * 700, "b": [1] * 9}, {"a": None, "b": None}, None],
    "boolean": [True, None, False],
}


@pytest.mark.parametrize("type_", VALUES)
def test_estimated_bytes_of_copies_bound_arrow_bytes(type_: str) -> None:
    values = VALUES[type_]
    if type_.startswith("map"):
        values = [None if each is None else list(each.items()) for each in values]  # type: ignore[union-attr]
    array = pa.array(values, arrow_type(type_))
    counts = np.array([1, 7, 400])
    for each in (array, array.slice(1), array.slice(1, 1)):
        own = counts[: len(each)]
        copies = each.take(pa.array(np.arange(len(each)).repeat(own)))
        estimated = copied_bytes([each], [type_], own)
        assert estimated + 64 >= copies.nbytes * 0.9  # without the bitmaps of nulls
        assert estimated <= 8 * copies.nbytes + 64 * int(own.sum())


def test_counts_above_64_bits_are_summed() -> None:
    counts = np.array([2**62, 2**62, 2**62])
    estimated = copied_bytes([pa.array(["a", "b", "c"])], ["string"], counts)
    assert estimated > 2**63
    assert copied_bytes([np.arange(3, dtype=np.int64)], ["bigint"], counts) == 8 * 3 * 2**62
