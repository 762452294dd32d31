"""Functions of users: errors and results that an operator cannot accept.

Any fault of a function ends the commit with a `StageError` that names the stage, and nothing of the
epoch is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest

from nosync_nb import Collection, Session, StageError


class NoTruth:
    def __bool__(self) -> bool:
        raise TypeError("no truth")


class Unprintable(NoTruth):
    def __repr__(self) -> str:
        raise RuntimeError("no text")


def raising(*_: Any) -> Any:
    raise ZeroDivisionError("a fault")


def yielding(*_: Any) -> Iterator[Any]:
    yield (1,)
    raise ZeroDivisionError("a fault")


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def unprintable(*_: Any) -> Any:
    raise UnprintableError


RESULTS: dict[str, Callable[..., Any]] = {
    "raises": raising,
    "raises an error without a text": unprintable,
    "array": lambda *_: np.array([1, 2]),
    "frame": lambda *_: pd.DataFrame({"a": [1]}),
    "pandas.NA": lambda *_: pd.NA,
    "no truth": lambda *_: NoTruth(),
    "unprintable": lambda *_: Unprintable(),
    "array in a tuple": lambda *_: (np.array([1, 2]),),
    "unprintable in a tuple": lambda *_: (Unprintable(),),
    "text": lambda *_: "text",
    "number": lambda *_: 1.5,
    "nan": lambda *_: float("nan"),
    "long": lambda *_: 10**30,
    "long in a tuple": lambda *_: (10**30,),
    "decimal": lambda *_: Decimal("NaN"),
    "rows that end in an error": yielding,
    "rows without an end": lambda *_: [(1, 2)],
}
OPERATORS: dict[str, Callable[[Collection, Any], Collection]] = {
    "filter": lambda c, f: c.filter(f),
    "map": lambda c, f: c.map(f, "x int"),
    "flat_map": lambda c, f: c.flat_map(f, "x int"),
    "threshold": lambda c, f: c.threshold(f),
    "reduce": lambda c, f: c.group_by("k").reduce(f, "x int"),
}
TRUE = ("text", "number", "nan", "long", "long in a tuple", "decimal", "rows without an end")
ACCEPTED = {("filter", name) for name in (*TRUE, "array in a tuple", "unprintable in a tuple")}
ACCEPTED |= {("filter", "rows that end in an error")}
"""A filter takes any object that has a truth value."""


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("result", RESULTS)
def test_commit_reports_the_stage_of_a_function_that_fails(
    session: Session, operator: str, result: str
) -> None:
    data = session.input("data", "k bigint")
    stage = session.stage("failing", OPERATORS[operator](data, RESULTS[result]))
    data.insert([(7,)])
    if (operator, result) in ACCEPTED:
        session.commit()
        assert stage.count() == 1
        return
    with pytest.raises(StageError, match="stage 'failing'") as caught:
        session.commit()
    assert caught.value.stage == "failing"
    assert caught.value.hint
    assert session.now == 0
    assert data.count(at=session.now) == 0
    session.discard()
    session.commit()


def test_error_of_a_filter_names_the_row(session: Session) -> None:
    data = session.input("data", "k bigint, s string")
    session.stage("odd", data.filter(lambda row: np.array([row.k, 2]) if row.s else True))
    data.insert([(7, None), (8, "a")])
    with pytest.raises(StageError, match="ndarray without a truth value") as caught:
        session.commit()
    assert tuple(caught.value.row) == (8, "a")
