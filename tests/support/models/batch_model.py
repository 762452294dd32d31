"""Batches against a model: a counter of encoded rows. Layouts, updates and weak hashes to try."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import strategies as st
from row_strategies import column_forms, scalar_types, types, values

from nosync_nb import rows
from nosync_nb.rows.encoding import encode_column
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange

Row = tuple[bytes, ...]
Count = Counter[Row]


def encoded(columns: Sequence[Any], kinds: Sequence[str], n: int) -> list[Row]:
    """Rows as tuples of canonical bytes: equal exactly if the rows are."""
    parts = [encode_column(c, t) for c, t in zip(columns, kinds, strict=True)]
    return list(zip(*parts, strict=True)) if parts else [()] * n


def count(updates: Updates, kinds: Sequence[str]) -> Count:
    total: Count = Counter()
    pairs = zip(encoded(updates.columns, kinds, len(updates.diff)), updates.diff, strict=True)
    for row, diff in pairs:
        total[row] += int(diff)
    return nonzero(total)


def counted(batches: Iterable[Batch]) -> Count:
    total: Count = Counter()
    for batch in batches:
        total.update(count(batch.updates, batch.layout.types))
    return nonzero(total)


def nonzero(total: Count) -> Count:
    return Counter({row: n for row, n in total.items() if n})


def check(batch: Batch) -> None:
    """Asserts the invariants of a batch: order, hashes of its rows, each row once."""
    batch.check()
    kinds, key, order = batch.layout
    n = len(batch)
    held = encoded(batch.columns, kinds, n)
    assert len(set(held)) == n, "a row stands in it twice"
    assert batch.rhash.tolist() == rows.hash_columns(batch.columns, kinds, n).tolist()
    picked = range(len(kinds)) if key is None else key
    keys = [batch.columns[i] for i in picked]
    hashes = rows.hash_columns(keys, [kinds[i] for i in picked], n)
    assert batch.khash.tolist() == hashes.tolist()
    codes = np.zeros(n, np.uint64)
    if order is not None:
        codes = rows.order_codes(batch.columns[order], kinds[order])
        assert batch.code is not None
        assert batch.code.tolist() == codes.tolist()
    places = list(zip(batch.khash.tolist(), codes.tolist(), batch.rhash.tolist(), strict=True))
    assert places == sorted(places)


@contextlib.contextmanager
def weak_hashes(buckets: int = 2) -> Iterator[None]:
    strong = rows.hash_columns

    def weak(columns: Sequence[Any], kinds: Sequence[str], n: int) -> Any:
        return strong(columns, kinds, n) % np.uint64(buckets)

    with (
        mock.patch.object(rows, "hash_columns", weak),
        mock.patch.object(rows, "extend_hashes", return_value=None),
    ):
        yield


@st.composite
def layouts(draw: st.DrawFn, of: st.SearchStrategy[str] = types) -> Layout:
    """Layouts of up to three columns with any key, some ordered by a scalar column."""
    kinds = tuple(draw(st.lists(of, min_size=1, max_size=3)))
    plain = [i for i, t in enumerate(kinds) if "map<" not in t]
    key = None
    if draw(st.booleans()):
        key = tuple(draw(st.permutations(plain))[: draw(st.integers(0, 3))])
    scalars = [i for i, t in enumerate(kinds) if not t.endswith(">")]
    order = draw(st.none() | st.sampled_from(scalars)) if scalars and key is not None else None
    return Layout(kinds, key, order)


few_layouts = layouts(scalar_types)


@st.composite
def pools(draw: st.DrawFn, kinds: Sequence[str]) -> list[tuple[Any, ...]]:
    """A few rows from which updates are drawn, so that equal rows meet."""
    columns = [draw(st.lists(st.none() | values(t), min_size=1, max_size=3)) for t in kinds]
    row = st.tuples(*(st.sampled_from(c) for c in columns))
    return draw(st.lists(row, min_size=1, max_size=6))


@st.composite
def updates_of(
    draw: st.DrawFn, kinds: Sequence[str], pool: Sequence[tuple[Any, ...]], max_size: int = 10
) -> Updates:
    """Updates of rows of a pool, in any order and any physical form."""
    one = st.tuples(st.sampled_from(pool), st.sampled_from([-2, -1, 1, 1, 3]))
    some = draw(st.lists(one, max_size=max_size))
    columns = []
    for i, type_ in enumerate(kinds):
        forms = column_forms(type_, [row[i] for row, _ in some])
        columns.append(forms[draw(st.integers(0, len(forms) - 1))])
    return Updates(columns, np.array([diff for _, diff in some], np.int64))


@st.composite
def batches_of(draw: st.DrawFn, layout: Layout, max_batches: int = 4) -> list[Batch]:
    """Batches of one layout over one pool of rows."""
    pool = draw(pools(layout.types))
    some = draw(st.lists(updates_of(layout.types, pool), min_size=1, max_size=max_batches))
    return [arrange(layout, each) for each in some]


def numbers(layout: Layout, listed: Sequence[tuple[tuple[int, ...], int]]) -> Batch:
    """A batch of bigint columns from (row, diff) pairs."""
    diff = np.array([d for _, d in listed], np.int64)
    columns = [np.array([r[i] for r, _ in listed], np.int64) for i in range(len(layout.types))]
    return arrange(layout, Updates(columns, diff))
