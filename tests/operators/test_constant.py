"""Constant rows: every type is decoded as it was encoded, and damage is reported."""

from __future__ import annotations

import pytest
from hypothesis import given
from row_strategies import column_forms, typed_values

from nosync_nb.errors import CorruptLogError
from nosync_nb.operators import constant
from nosync_nb.operators.base import Step
from nosync_nb.rows.array_ops import ones
from nosync_nb.trace.batch import Layout, Updates, arrange


def decoded(types: tuple[str, ...], arguments: dict[str, object]) -> Updates | None:
    return constant.ConstantRows(types, arguments).step(Step((), (), (), (), first=True))


@given(typed_values(), typed_values())
def test_rows_of_every_type_are_decoded_as_encoded(
    one: tuple[str, list[object]], other: tuple[str, list[object]]
) -> None:
    n = min(len(one[1]), len(other[1]))
    types = one[0], other[0]
    layout = Layout(types)
    found = []
    for first, second in zip(
        column_forms(one[0], one[1][:n]), column_forms(other[0], other[1][:n]), strict=False
    ):
        updates = Updates([first, second], ones(n))
        arguments = constant.constant_arguments(types, updates, "t", 3)
        again = decoded(types, arguments)
        assert again is not None
        assert arguments["count"] == n
        expected, result = arrange(layout, updates), arrange(layout, again)
        assert (expected.khash == result.khash).all()
        assert (expected.diff == result.diff).all()
        found.append(arguments["digest"])
        if n and types[0] != types[1]:
            narrowed = decoded(types[1:], {**arguments, "columns": [1]})
            assert narrowed is not None
            only = Updates([second], ones(n))
            expected = arrange(Layout(types[1:]), only)
            assert (expected.khash == arrange(Layout(types[1:]), narrowed).khash).all()
    assert len(set(found)) <= 1  # the form of a column is no part of its identity


def test_rows_in_another_order_are_equal_and_other_rows_are_not() -> None:
    def digest(*rows: str) -> object:
        updates = Updates([list_column(rows)], ones(len(rows)))
        return constant.constant_arguments(("string",), updates, "t", 1)["digest"]

    assert digest("a", "b", "b") == digest("b", "a", "b")
    assert len({digest("a", "b"), digest("a", "b", "b"), digest("a"), digest()}) == 4


def list_column(rows: tuple[str, ...]) -> object:
    return column_forms("string", list(rows))[0]


def test_damaged_rows_are_not_computed() -> None:
    updates = Updates([list_column(("a", "b"))], ones(2))
    arguments = constant.constant_arguments(("string",), updates, "t", 3)
    text = arguments["rows"]
    for at in range(0, len(text), 7):
        damaged = text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]
        with pytest.raises(CorruptLogError, match="copied rows of 't' at epoch 3 are damaged"):
            decoded(("string",), {**arguments, "rows": damaged})
