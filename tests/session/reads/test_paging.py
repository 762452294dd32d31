"""Pages of a collection: in any order, equal to sorting all rows, during commits."""

from __future__ import annotations

import math
import os
import tempfile
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from internals import services_of

import nosync_nb
from nosync_nb import NegativeMultiplicityError, Session, StageError, TimeError
from nosync_nb.trace import paging

MEMORY = os.environ.get("PYTEST_DEBUG_TEMPROOT")
ROW = st.tuples(st.sampled_from([None, "", "a", "aa", "b"]), st.integers(-3, 3))
ORDERS: list[tuple[tuple[int, bool], ...]] = [
    (),
    ((1, False),),
    ((1, True),),
    ((0, True),),
    ((1, True), (0, False)),
    ((0, False), (1, True)),
]


@pytest.fixture
def session(session: Session) -> Session:
    """An input without rows."""
    session.input("rows", "name string, n int")
    return session


def cursor_of(session: Session, name: str = "rows", **options: Any) -> Any:
    return session.cursor(session[name], **options)


def sort_rows(order: tuple[tuple[int, bool], ...], rows: Any) -> list[Any]:
    """Rows as Python sorts them: null first, then by the order, then by all columns."""
    every = sorted(
        rows,
        key=lambda row: [
            (item is not None, item or 0 if i else item or "") for i, item in enumerate(row)
        ],
    )
    for place, descending in reversed(order):
        every.sort(
            key=lambda row: (row[place] is not None, row[place] or ("" if not place else 0)),
            reverse=descending,
        )
    return every


@given(
    epochs=st.lists(st.lists(ROW, max_size=8), min_size=1, max_size=4),
    order=st.sampled_from(ORDERS),
    limit=st.integers(1, 5),
    near=st.sampled_from([0, 5, 4096]),
    small=st.sampled_from([0, 8192]),
)
def test_pages_in_sequence_are_all_rows_in_order(
    epochs: list[list[Any]], order: Any, limit: int, near: int, small: int
) -> None:
    """Covers the fast path, a full sort, and the change between them."""
    with (
        pytest.MonkeyPatch.context() as patched,
        tempfile.TemporaryDirectory(dir=MEMORY) as folder,
        nosync_nb.open(Path(folder) / "log") as session,
    ):
        patched.setattr(paging, "NEAR_ROWS", near)
        patched.setattr(paging, "SMALL_ROWS", small)
        rows = session.input("rows", "name string, n int")
        for each in epochs:
            rows.insert(each)
            session.commit()
        taken = epochs[0][::2]
        rows.remove(taken)
        session.commit()
        remaining = list((Counter(chain.from_iterable(epochs)) - Counter(taken)).elements())
        cursor = cursor_of(session)
        pages = [cursor.page(order, at, limit) for at in range(0, len(remaining) + limit, limit)]
        assert sort_rows(order, remaining) == [tuple(row) for page in pages for row in page]
        assert cursor.count() == len(remaining)
        assert cursor.table(order).to_pylist() == [
            {"name": name, "n": n} for name, n in sort_rows(order, remaining)
        ]


def test_small_collection_is_merged_before_it_is_paged(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(20):
        session["rows"].insert([("a", n), ("b", n)])
        session.commit()
    monkeypatch.setattr(paging, "first_rows", None)
    monkeypatch.setattr(paging.stats, "row_count", None)
    cursor = cursor_of(session)
    assert [tuple(row) for row in cursor.page(((1, True),), 0, 3)] == [
        ("a", 19),
        ("b", 19),
        ("a", 18),
    ]
    assert cursor.count() == 40


def test_order_is_computed_once_for_distant_pages(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    sorts: list[Any] = []
    sort = paging.ordered
    n = 20_000

    def counted(columns: Any, *given: Any) -> Any:
        sorts.extend([given] if len(columns[0]) >= n else [])
        return sort(columns, *given)

    monkeypatch.setattr(paging, "ordered", counted)
    session["rows"].insert(pa.table({"name": [str(i) for i in range(n)], "n": range(n)}))
    session.commit()
    cursor = cursor_of(session)
    assert [row.n for row in cursor.page(((1, True),), 100, 3)] == [n - 101, n - 102, n - 103]
    assert sorts == [], "pages near the beginning need no sort"
    for at in (n // 2, n - 3, 5000):
        assert [row.n for row in cursor.page(((1, True),), at, 2)] == [n - 1 - at, n - 2 - at]
    assert len(sorts) == 1
    session.commit()
    assert cursor_of(session, previous=cursor).page(((1, True),), n - 1, 5)[0].n == 0
    assert len(sorts) == 1, "an epoch without changes keeps the order"
    session["rows"].insert([("x", -1)])
    session.commit()
    again = cursor_of(session, previous=cursor)
    assert again.page(((1, True),), n, 5)[0].n == -1
    assert len(sorts) == 2


def test_cursor_is_immutable(session: Session) -> None:
    session["rows"].insert([("a", 1)])
    session.commit()
    cursor = cursor_of(session)
    session["rows"].set([("b", 2)])
    session.commit()
    assert (cursor.epoch, cursor.page((), 0, 9), cursor.count()) == (1, [("a", 1)], 1)
    assert cursor.page((), 0, 9, where="n = 1") == [("a", 1)]
    assert cursor_of(session).page((), 0, 9) == [("b", 2)]
    past = cursor_of(session, at=1)
    assert (past.epoch, past.page((), 0, 9)) == (1, [("a", 1)])
    with pytest.raises(TimeError):
        cursor_of(session, at=9)


def test_filter_is_evaluated_once_for_a_cursor(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session["rows"].insert([("a", n) for n in range(5)])
    session.commit()
    cursor, owner = cursor_of(session), services_of(session).paging
    filters: list[str] = []
    filtered = owner.filtered
    monkeypatch.setattr(
        owner, "filtered", lambda cursor, w: (filters.append(w), filtered(cursor, w))[1]
    )
    for at in (0, 1, 0):
        cursor.page(((1, True),), at, 1, where="n > 2")
    assert cursor.count("n > 2") == 2
    assert cursor.profiles("n > 2")[1].low == 3
    assert filters == ["n > 2"]


def test_negative_counts_are_refused_by_each_page(session: Session) -> None:
    session.stage("less", session["rows"].negate())
    session["rows"].insert([("a", 1)])
    session.commit()
    cursor = cursor_of(session, "less")
    for read in (lambda: cursor.page((), 0, 1), cursor.count, lambda: cursor.table(())):
        with pytest.raises(NegativeMultiplicityError, match="collection 'less'"):
            read()


def test_default_order_of_a_top_is_by_its_columns(session: Session) -> None:
    rows = session["rows"]
    session.stage("top", rows.group_by("name").top(2, by="n desc"))
    session.stage("all", rows.group_by().top(2, by="n, name desc"))
    session.stage("computed", rows.group_by("name").top(2, by="abs(n), n desc"))
    session.stage("plain", rows.filter("n > 0"))
    orders = {name: cursor_of(session, name).order for name in session.stages}
    assert orders == {
        "top": ((0, False), (1, True)),
        "all": ((1, False), (0, True)),
        "computed": ((0, False), (1, True)),
        "plain": (),
    }


def test_cursor_of_a_dropped_stage_is_refused(session: Session) -> None:
    rows = session["rows"]
    session.stage("gone", rows)
    dropped = session["gone"]
    session.drop("gone")
    with pytest.raises(StageError, match="no stage or input 'gone'"):
        session.cursor(dropped)


def test_cursor_of_a_reader_sees_committed_rows(session: Session) -> None:
    with nosync_nb.open(session.path, mode="r") as reader:
        session["rows"].insert([("a", 1)])
        session.commit()
        cursor = cursor_of(reader)
        assert (reader.refresh(), cursor.page((), 0, 9)) == (1, [("a", 1)])


def test_cursor_over_an_unnamed_collection(session: Session) -> None:
    session["rows"].insert([("a", 1), ("b", 2)])
    session.commit()
    cursor = session.cursor(session["rows"].filter("n > 1"))
    assert (cursor.epoch, cursor.order, cursor.page((), 0, 9)) == (1, (), [("b", 2)])


# -- profiles --------------------------------------------------------------------------------------


def profile(session: Session, type_: str, *values: Any) -> Any:
    column = session.input("column", f"value {type_}")
    column.insert([(value,) for value in values])
    session.commit()
    return cursor_of(session, "column").profiles()[0]


def test_numbers_are_counted_in_equal_bins(session: Session) -> None:
    found = profile(session, "int", None, 0, 0, 0, 5, 11, None)
    assert found[:4] == (2, 3, 0, 11)
    assert found.bars == (3, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1)


@pytest.mark.parametrize(
    ("type_", "values", "distinct", "bars"),
    [
        ("double", [1.0, math.nan, math.inf, -math.inf, None], 4, (1,)),
        ("double", [-1.7e308, 1.7e308], 2, (1, *[0] * 10, 1)),
        ("decimal(38,2)", ["1.00", "2.00"], 2, (1, *[0] * 10, 1)),
        ("bigint", [2**63 - 1, -(2**63)], 2, (1, *[0] * 10, 1)),
        ("double", [math.nan], 1, ()),
        ("int", [], 0, ()),
        ("int", [None], 0, ()),
        ("date", ["2024-01-01", "2024-01-13"], 2, (1, *[0] * 10, 1)),
        ("timestamp_ntz", ["2024-01-01 00:00:00", None], 1, (1,)),
    ],
    ids=str,
)
def test_unusual_numbers_and_times_are_profiled(
    session: Session, type_: str, values: list[Any], distinct: int, bars: Any
) -> None:
    if values and isinstance(values[0], str):
        values = [None if v is None else parse_value(type_, v) for v in values]
    found = profile(session, type_, *values)
    assert (found.distinct, found.bars) == (distinct, bars)


def parse_value(type_: str, text: str) -> Any:
    kinds = {"date": pa.date32(), "timestamp_ntz": pa.timestamp("us")}
    return pa.scalar(text).cast(kinds.get(type_, pa.decimal128(38, 2))).as_py()


def test_most_frequent_texts_are_counted(session: Session) -> None:
    found = profile(session, "string", *"aabbbcdefg", None)
    assert (found.nulls, found.distinct) == (1, 7)
    assert found.common == (("b", 3), ("a", 2), ("c", 1), ("d", 1), ("e", 1))


@pytest.mark.parametrize(
    ("type_", "values", "expected"),
    [
        ("boolean", [True, False, True], (0, 2)),
        ("binary", [b"a", b"a"], (0, 1)),
        ("array<int>", [[1], None, []], (1, None)),
        ("struct<a int>", [{"a": 1}], (0, None)),
    ],
    ids=str,
)
def test_each_type_has_a_profile(
    session: Session, type_: str, values: list[Any], expected: Any
) -> None:
    assert profile(session, type_, *values)[:2] == expected


def test_large_column_is_counted_as_numpy_does(session: Session) -> None:
    values = np.random.default_rng(3).normal(0, 1, 30_000)
    rows = session.input("column", "value double")
    rows.insert(pa.table({"value": values}))
    session.commit()
    found = cursor_of(session, "column").profiles()[0]
    assert found.distinct == len(np.unique(values))
    assert (found.low, found.high) == (values.min(), values.max())
    assert list(found.bars) == np.histogram(values, 12)[0].tolist()
