"""Decimals as integers: one form among many rows and few, beside wide values and nulls."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from nosync_nb.operators.aggregates import accumulators
from nosync_nb.rows import columns, decimals, hash_columns, objects, order_codes, sort_indices
from nosync_nb.rows.arrow import FEW_DECIMALS
from nosync_nb.rows.encoding import encode_column

NARROW, WIDE = "decimal(15,2)", "decimal(38,2)"
VALUES = [None, *map(Decimal, ("0.00", "-0.01", "12.50", "-9999999999999.99", "9999999999999.99"))]
FAR = [*VALUES, Decimal("-123456789012345678901234567890.12"), Decimal("18446744073709551616.00")]


def forms(type_: str, copies: int) -> tuple[pa.Array, columns.Column]:
    """The same values as an Arrow slice, and as objects."""
    values = (VALUES if type_ == NARROW else FAR) * copies
    arrow = columns.to_arrow(objects([Decimal("1.00"), *values]), type_).slice(1)
    return arrow, objects(values)


@pytest.mark.parametrize("copies", [1, 5, 30])
@pytest.mark.parametrize("type_", [NARROW, WIDE])
def test_both_forms_of_decimals_agree(type_: str, copies: int) -> None:
    arrow, plain = forms(type_, copies)
    n = len(arrow)
    expected = hash_columns([plain[:n]], (type_,), n).tolist()
    assert expected == hash_columns([arrow], (type_,), n).tolist()
    few = [hash_columns([plain[i : i + 1]], (type_,), 1).tolist()[0] for i in range(n)]
    assert few == expected
    assert order_codes(arrow, type_).tolist() == order_codes(plain, type_).tolist()
    assert columns.equal(arrow, plain, type_).all()
    assert not columns.equal(arrow.slice(1), columns.slice_(plain, 0, n - 1), type_).all()
    ranked = sorted(range(n), key=encode_column(plain, type_).__getitem__)
    for form in (arrow, plain):
        assert sort_indices([form], (type_,)).tolist() == ranked
    index = np.array([n - 1, 0, 3, 3])
    taken = columns.take(arrow, index)
    assert encode_column(taken, type_) == encode_column(plain[index], type_)
    assert len(columns.take(arrow, index[:0])) == 0


def test_many_decimals_are_stored_in_arrow() -> None:
    arrow, _ = forms(NARROW, 30)
    for n, kept in ((FEW_DECIMALS, np.ndarray), (FEW_DECIMALS + 1, pa.Array)):
        assert isinstance(columns.from_arrow(arrow.slice(0, n), NARROW), kept)
        halves = [columns.from_arrow(part, NARROW) for part in (arrow[:20], arrow[20:n])]
        assert isinstance(columns.concat(halves, NARROW), kept)
        wholes, nulls = decimals.load_decimals(arrow.slice(0, n), NARROW)
        made = decimals.store_decimals(wholes, nulls, NARROW)
        assert isinstance(made, kept)
        assert columns.equal(made, arrow.slice(0, n), NARROW).all()


def test_limbs_of_decimal_do_not_depend_on_other_rows() -> None:
    """Otherwise a value inserted beside wide ones could not be removed from a sum later."""
    near = [value for value in VALUES if value is not None]
    alone = accumulators.contributions("sum", objects(near), WIDE, len(near))
    beside = accumulators.contributions("sum", objects([*near, FAR[-2]]), WIDE, len(near) + 1)
    for limb in range(4):
        found = np.zeros(len(near) + 1, np.int64)
        if limb in alone:
            index, values = alone[limb]
            found[index] = values
        assert found[:-1].tolist() == beside[limb][1][:-1].tolist()
    total = sum(int(beside[limb][1][-1]) << (32 * limb) for limb in range(4))
    assert total == -12345678901234567890123456789012
