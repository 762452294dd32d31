"""Window functions and frames: against a model in Python, over histories of changes.

Constants are so small that every path runs on a few rows: further lookups, sums of blocks, and
intervals of single changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from checks.checking import run
from hypothesis import given
from hypothesis import strategies as st
from models import model
from models.batch_model import weak_hashes
from models.model import Bag, Row
from strategies import schemas, types

from nosync_nb import Collection
from nosync_nb.operators.windows import frames, intervals, prefixes, reading, running, window

pytestmark = pytest.mark.usefixtures("no_disk")

By = Sequence[tuple[int, bool, bool]]  # position, descending, nulls first
Frame = tuple[str, Any, Any]
Compute = Callable[[list[Row], list[Any], int, list[int]], Any]


@pytest.fixture(scope="module", autouse=True)
def _small_constants() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window, "_MOST", 0)
        patch.setattr(window, "_NEAR", 0)
        patch.setattr(window, "_LARGE", 0)
        patch.setattr(reading, "LOOK", 1)
        patch.setattr(reading, "SMALL", 0)
        patch.setattr(reading, "FURTHER", 2)
        patch.setattr(prefixes, "BLOCK", 2)
        patch.setattr(running, "BLOCK", 2)
        patch.setattr(intervals, "_FEW", 1)
        patch.setattr(frames, "AT_ONCE", 3)
        yield


# -- the model ---------------------------------------------------------------------------------


def sorted_group(group: Sequence[Row], by: By) -> list[Row]:
    found = sorted(group, key=model.row_order)
    for place, descending, nulls_first in reversed(by):
        there = [r for r in found if r[place] is not None]
        missing = [r for r in found if r[place] is None]
        there.sort(key=lambda r, i=place: model.order(r[i]), reverse=descending)  # type: ignore[misc]
        found = missing + there if nulls_first else there + missing
    return found


def marks_of(group: Sequence[Row], by: By) -> list[Any]:
    """A value for each row that is equal for equal rows of the order."""
    return [tuple(model.order(row[i]) for i, _, _ in by) for row in group]


def frame_rows(frame: Frame, group: list[Row], marks: list[Any], i: int, by: By) -> list[int]:
    """The positions of the rows of the frame of row i."""
    unit, low, high = frame
    every = range(len(group))
    if unit == "rows":
        return [
            j for j in every if (low is None or j - i >= low) and (high is None or j - i <= high)
        ]
    peers = list(dict.fromkeys(marks))
    number = [peers.index(mark) for mark in marks]
    if unit == "groups":
        return [
            j
            for j in every
            if (low is None or number[j] - number[i] >= low)
            and (high is None or number[j] - number[i] <= high)
        ]
    place, descending, _ = by[0]

    def inside(j: int, bound: Any, last: bool) -> bool:
        if bound is None:
            return True
        own, other = group[i][place], group[j][place]
        if bound == 0 or own is None:
            return number[j] <= number[i] if last else number[j] >= number[i]
        if other is None:
            return (number[j] < number[i]) if last else (number[j] > number[i])
        limit = moved(own, bound, descending)
        if last:
            return (
                bool(model.order(other) >= model.order(limit))
                if descending
                else bool(model.order(other) <= model.order(limit))
            )
        return (
            bool(model.order(other) <= model.order(limit))
            if descending
            else bool(model.order(other) >= model.order(limit))
        )

    return [j for j in every if inside(j, low, False) and inside(j, high, True)]


def moved(value: Any, bound: Any, descending: bool) -> Any:
    return value - bound if descending else value + bound


def windowed(bag: Bag, keys: Sequence[int], by: By, frame: Frame, calls: list[Compute]) -> Bag:
    """Each copy of each row with the results of functions."""
    groups: dict[Row, list[Row]] = {}
    for row, n in bag.items():
        groups.setdefault(tuple(row[k] for k in keys), []).extend([row] * max(n, 0))
    found = []
    for group in groups.values():
        ordered = sorted_group(group, by)
        marks = marks_of(ordered, by)
        for i, row in enumerate(ordered):
            inside = frame_rows(frame, ordered, marks, i, by)
            found.append((*row, *(call(ordered, marks, i, inside) for call in calls)))
    return model.bag(found)


def ntile(size: int, i: int, n: int) -> int:
    small, larger = divmod(size, n)
    edge = larger * (small + 1)
    return i // (small + 1) + 1 if i < edge else larger + (i - edge) // max(small, 1) + 1


RANKS: dict[str, Compute] = {
    "row_number()": lambda g, m, i, _: i + 1,
    "rank()": lambda g, m, i, _: m.index(m[i]) + 1,
    "dense_rank()": lambda g, m, i, _: list(dict.fromkeys(m)).index(m[i]) + 1,
    "percent_rank()": lambda g, m, i, _: m.index(m[i]) / max(len(g) - 1, 1),
    "cume_dist()": lambda g, m, i, _: (len(m) - m[::-1].index(m[i])) / len(g),
    "ntile(3)": lambda g, m, i, _: ntile(len(g), i, 3),
}


def offset(place: int, n: int, default: Any = None) -> Compute:
    return lambda g, m, i, _: g[i + n][place] if 0 <= i + n < len(g) else default


def filled_offset(place: int, n: int) -> Compute:
    def value(group: list[Row], marks: list[Any], i: int, _: list[int]) -> Any:
        rest = group[i + 1 :] if n > 0 else group[:i][::-1]
        there = [row[place] for row in rest if row[place] is not None]
        return there[abs(n) - 1] if len(there) >= abs(n) else None

    return value


OFFSETS: dict[str, Compute] = {
    "lag(c1)": offset(1, -1),
    "lag(c2)": offset(2, -1),
    "lead(c2, 2)": offset(2, 2),
    "lag(c1, -1)": offset(1, 1),
    "lead(c2, 0)": offset(2, 0),
    "lag(c2, 2) ignore nulls": filled_offset(2, -2),
    "lead(c1) ignore nulls": filled_offset(1, 1),
}


def values_of(place: int, group: list[Row], inside: list[int]) -> list[Any]:
    return [group[j][place] for j in inside if group[j][place] is not None]


def over(place: int, function: Callable[[list[Any]], Any]) -> Compute:
    """An aggregate of the values that are not null; null without such values."""

    def value(group: list[Row], marks: list[Any], i: int, inside: list[int]) -> Any:
        values = values_of(place, group, inside)
        return function(values) if values else None

    return value


def mean(values: list[Any]) -> float:
    return float(Fraction(sum(values), len(values)))


def pick(place: int, at: int, *, filled: bool = False) -> Compute:
    def value(group: list[Row], marks: list[Any], i: int, inside: list[int]) -> Any:
        values = values_of(place, group, inside) if filled else [group[j][place] for j in inside]
        there = len(values) > at if at >= 0 else len(values) >= -at
        return values[at] if there else None

    return value


FRAMED: dict[str, Compute] = {
    "count(*)": lambda g, m, i, inside: len(inside),
    "count(c2)": lambda g, m, i, inside: len(values_of(2, g, inside)),
    "sum(c2)": over(2, sum),
    "avg(c2)": over(2, mean),
    "min(c2)": over(2, min),
    "max(c2)": over(2, max),
    "sum(c2) filter (where c2 > 0)": lambda g, m, i, inside: (
        sum(found) if (found := [v for v in values_of(2, g, inside) if v > 0]) else None
    ),
    "count(distinct c2)": lambda g, m, i, inside: len(set(values_of(2, g, inside))),
    "collect_list(c2)": lambda g, m, i, inside: tuple(values_of(2, g, inside)),
    "collect_set(c2)": lambda g, m, i, inside: tuple(sorted(set(values_of(2, g, inside)))),
    "bit_xor(c2)": over(2, lambda values: __import__("functools").reduce(int.__xor__, values)),
    "percentile(c2, 0.5)": over(
        2, lambda v: float(Fraction(sorted(v)[(len(v) - 1) // 2] + sorted(v)[len(v) // 2], 2))
    ),
    "first_value(c2)": pick(2, 0),
    "last_value(c2)": pick(2, -1),
    "nth_value(c2, 2)": pick(2, 1),
    "first_value(c2) ignore nulls": pick(2, 0, filled=True),
    "last_value(c2) ignore nulls": pick(2, -1, filled=True),
    "nth_value(c2, 2) ignore nulls": pick(2, 1, filled=True),
}
WHOLE: Frame = ("rows", None, None)
DEFAULT: Frame = ("range", None, 0)


# -- histories ---------------------------------------------------------------------------------

small = st.none() | st.integers(0, 3)
rows = st.tuples(st.none() | st.sampled_from("xy"), small, st.none() | st.integers(-2, 3))
TYPES = ("string", "int", "int")
orders = st.lists(
    st.tuples(st.integers(1, 2), st.booleans(), st.booleans()),
    min_size=1,
    max_size=2,
    unique_by=lambda term: term[0],
)


def text(by: By) -> str:
    return ", ".join(
        f"c{place}{' desc' if down else ''} nulls {'first' if first else 'last'}"
        for place, down, first in by
    )


def some(calls: dict[str, Compute], least: int = 1) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(list(calls)), min_size=least, max_size=3, unique=True)


def named(calls: Sequence[str]) -> dict[str, str]:
    return {f"r{i}": call for i, call in enumerate(calls)}


@given(st.data(), st.booleans(), orders, some({**RANKS, **OFFSETS}))
def test_positions_and_offsets_equal_model(
    data: st.DataObject, keyed: bool, by: By, calls: list[str]
) -> None:
    every = {**RANKS, **OFFSETS}
    run(
        data,
        {"a": TYPES},
        lambda a: a.window("c0" if keyed else None, text(by)).with_columns(named(calls)),
        lambda a: windowed(a, [0] if keyed else [], by, WHOLE, [every[call] for call in calls]),
        pools={"a": rows},
    )


bounds = st.none() | st.integers(-2, 2)


@given(
    st.data(), st.booleans(), orders, st.sampled_from(["rows", "groups"]), bounds, bounds,
    some(FRAMED),
)  # fmt: skip
def test_frames_of_rows_and_groups_equal_model(
    data: st.DataObject,
    keyed: bool,
    by: By,
    unit: str,
    low: int | None,
    high: int | None,
    calls: list[str],
) -> None:
    if low is not None and high is not None:
        low, high = min(low, high), max(low, high)
    run(
        data,
        {"a": TYPES},
        lambda a: framed(a, keyed, by, (unit, low, high), named(calls)),
        lambda a: windowed(
            a, [0] if keyed else [], by, (unit, low, high), [FRAMED[call] for call in calls]
        ),
        pools={"a": rows},
    )


def framed(a: Collection, keyed: bool, by: By, frame: Frame, calls: dict[str, str]) -> Collection:
    unit, low, high = frame
    keys = "c0" if keyed else None
    return a.window(keys, text(by), **{f"{unit}_between": (low, high)}).with_columns(calls)  # type: ignore[arg-type]


TIMES: dict[str, tuple[st.SearchStrategy[Any], st.SearchStrategy[Any]]] = {
    "int": (st.integers(0, 9), st.integers(-3, 3)),
    "tinyint": (st.integers(-5, 5), st.integers(-3, 3)),
    "double": (st.integers(0, 20).map(lambda n: n / 10), st.sampled_from([-0.3, -0.1, 0.1, 0.7])),
    "decimal(10,2)": (
        st.integers(0, 30).map(lambda n: Decimal(n) / 4),
        st.sampled_from([Decimal("-1.5"), Decimal("0.25"), Decimal(2)]),
    ),
    "decimal(30,2)": (
        st.integers(0, 30).map(lambda n: Decimal(10**20) + Decimal(n) / 4),
        st.sampled_from([Decimal("-1.5"), Decimal("0.25"), Decimal(2)]),
    ),
    "date": (
        st.integers(0, 9).map(lambda n: date(2024, 2, 25) + timedelta(days=n)),
        st.integers(-3, 3).map(lambda n: timedelta(days=n)),
    ),
    "timestamp_ntz": (
        st.integers(0, 30).map(lambda n: datetime(2024, 2, 25) + timedelta(minutes=n)),
        st.integers(-9, 9).map(lambda n: timedelta(minutes=n)),
    ),
}
Span = tuple[str, Any, Any]


@st.composite
def spans(draw: st.DrawFn) -> Span:
    """A type, and the bounds of a RANGE frame of its values."""
    type_ = draw(st.sampled_from(list(TIMES)))
    distance = st.none() | st.just(0) | TIMES[type_][1]
    zero = timedelta(0) if type_ in ("date", "timestamp_ntz") else 0
    low, high = draw(distance), draw(distance)
    low, high = (0 if bound is not None and bound in (0, zero) else bound for bound in (low, high))
    if low is not None and high is not None and (low or zero) > (high or zero):
        low, high = high, low
    return type_, low, high


@given(st.data(), st.booleans(), spans(), st.booleans(), st.booleans(), some(FRAMED))
def test_frames_of_values_equal_model(
    data: st.DataObject,
    keyed: bool,
    span: Span,
    down: bool,
    first: bool,
    calls: list[str],
) -> None:
    type_, low, high = span
    by = [(1, down, first)]
    own = st.tuples(st.sampled_from("xy"), st.none() | TIMES[type_][0], st.integers(-2, 3))
    run(
        data,
        {"a": ("string", type_, "int")},
        lambda a: framed(a, keyed, by, ("range", low, high), named(calls)),
        lambda a: windowed(
            a, [0] if keyed else [], by, ("range", low, high), [FRAMED[call] for call in calls]
        ),
        pools={"a": own},
    )


@given(st.data(), some({**RANKS, **OFFSETS}, 0), some(FRAMED, 0))
def test_functions_without_frame_share_a_window(
    data: st.DataObject, positions: list[str], values: list[str]
) -> None:
    by = [(1, False, True)]
    every = {**RANKS, **OFFSETS, **FRAMED}
    calls = [*positions, *values, "count(*)"]
    run(
        data,
        {"a": TYPES},
        lambda a: a.window("c0", "c1").with_columns(named(calls)),
        lambda a: windowed(a, [0], by, DEFAULT, [every[call] for call in calls]),
        pools={"a": rows},
    )


@given(st.data(), st.booleans(), some(FRAMED))
def test_aggregates_of_whole_partitions_equal_model(
    data: st.DataObject, keyed: bool, calls: list[str]
) -> None:
    calls = [call for call in calls if not call.startswith(("nth_value", "collect_list"))]
    calls = calls or ["max(c2)"]
    run(
        data,
        {"a": TYPES},
        lambda a: a.window("c0" if keyed else None).with_columns(named(calls)),
        lambda a: windowed(a, [0] if keyed else [], [], WHOLE, [FRAMED[c] for c in calls]),
        pools={"a": rows},
    )


@given(st.data(), schemas(types, 3, 3), st.booleans(), st.booleans())
def test_values_of_all_types_are_ordered_and_picked(
    data: st.DataObject, of: tuple[str, ...], down: bool, first: bool
) -> None:
    by = [(1, down, first)]
    calls = [
        "row_number()", "dense_rank()", "lag(c2)", "lead(c2) ignore nulls", "last_value(c2)",
        "count(c2)",
    ]  # fmt: skip
    models = [
        RANKS["row_number()"], RANKS["dense_rank()"], offset(2, -1), filled_offset(2, 1),
        FRAMED["last_value(c2)"], FRAMED["count(c2)"],
    ]  # fmt: skip
    run(
        data,
        {"a": of},
        lambda a: a.window("c0", text(by)).with_columns(named(calls)),
        lambda a: windowed(a, [0], by, DEFAULT, models),
    )


MIXED = ["row_number()", "rank()", "dense_rank()", "cume_dist()", "lag(c2)", "sum(c2)", "max(c2)"]


@given(st.data(), some({**RANKS, **OFFSETS}, 0))
def test_row_with_negative_count_is_absent(data: st.DataObject, positions: list[str]) -> None:
    every = {**RANKS, **OFFSETS, **FRAMED}
    calls = list(dict.fromkeys([*MIXED, *positions]))
    run(
        data,
        {"a": TYPES, "b": TYPES},
        lambda a, b: (
            a.concat(b.rename({f"d{i}": f"c{i}" for i in range(3)}).negate())
            .window("c0", "c1")
            .with_columns(named(calls))
        ),
        lambda a, b: windowed(
            model.concat(a, model.negated(b)),
            [0],
            [(1, False, True)],
            DEFAULT,
            [every[call] for call in calls],
        ),
        pools={"a": rows, "b": rows},
    )


@given(st.data(), some({**RANKS, **OFFSETS}, 0))
def test_partitions_of_equal_hashes_stay_apart(data: st.DataObject, positions: list[str]) -> None:
    every = {**RANKS, **OFFSETS, **FRAMED}
    calls = list(dict.fromkeys([*MIXED, *positions]))
    with weak_hashes():
        run(
            data,
            {"a": TYPES},
            lambda a: a.window("c0", "c1").with_columns(named(calls)),
            lambda a: windowed(
                a, [0], [(1, False, True)], DEFAULT, [every[call] for call in calls]
            ),
            pools={"a": rows},
        )


def test_model_of_frames_is_that_of_spark() -> None:
    bag = model.bag([("x", 1, 10), ("x", 2, 20), ("x", 2, 30), ("x", None, 40)])
    by = [(1, False, True)]
    found = windowed(bag, [0], by, ("range", -1, 0), [FRAMED["sum(c2)"]])
    assert found == model.bag(
        [("x", 1, 10, 10), ("x", 2, 20, 60), ("x", 2, 30, 60), ("x", None, 40, 40)]
    )
    found = windowed(bag, [0], by, ("groups", -1, 0), [FRAMED["sum(c2)"]])
    assert sorted(row[3] for row in found) == [40, 50, 60, 60]
