"""Counts and first rows: right without merging all layers."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from internals import batch_of, on_enough, on_places, settle_background

import nosync_nb
from nosync_nb import Session, rows
from nosync_nb.errors import NegativeMultiplicityError
from nosync_nb.rows.order import exact_codes, order_codes
from nosync_nb.trace import Layer, Trace, empty_batch, paging, stats
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange

NAN = float("nan")
VALUES: dict[str, list[Any]] = {
    "bigint": [None, -(2**63), -1, 0, 1, 2**63 - 1],
    "int": [None, -(2**31), -1, 0, 2**31 - 1],
    "double": [None, float("-inf"), -0.5, 0.0, 1e300, float("inf"), NAN],
    "boolean": [None, False, True],
    "string": [None, "", "\0", "a", "a\0", "aaaaaaaa", "aaaaaaaab", "aaaaaaaa\0", "b", "é", "ｚ"],
    "binary": [None, b"", b"\0", b"\xff", b"aaaaaaaaaaaaaaaa", b"aaaaaaaaaaaaaaaa\0"],
    "date": [None, date(1, 1, 1), date(1969, 12, 31), date(2024, 1, 1)],
    "decimal(9,2)": [None, Decimal("-1.00"), Decimal("0.00"), Decimal("9.99")],
    "decimal(30,2)": [None, Decimal("-1.00"), Decimal("0.00"), Decimal("9.99")],
    "array<int>": [None, [], [None], [1], [1, 2]],
}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes blocks so small that few rows take the path of millions."""
    shrink_blocks(monkeypatch)


def shrink_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "_BLOCK_ROWS", 8)
    monkeypatch.setattr(paging, "_TIES_MAX", 2)
    monkeypatch.setattr(stats, "_SLACK_ROWS", 2)
    monkeypatch.setattr(stats, "_LOOKUP_COST", 0)


@pytest.fixture
def no_consolidation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if all layers are merged."""

    def consolidated(trace: Trace) -> Batch:
        assert not trace.layers
        return empty_batch(trace.layout)

    monkeypatch.setattr(Trace, "consolidated", consolidated)


def ordered(full: list[Any], by: str) -> list[Any]:
    """Sorts rows in canonical order by columns, null first, as Python does."""
    for part in reversed([each.split() for each in by.split(",")]):
        full = sorted(
            full,
            key=lambda row: (getattr(row, part[0]) is not None, getattr(row, part[0])),
            reverse=part[-1] == "desc",
        )
    return full


def equal_rows(left: list[Any], right: list[Any]) -> bool:
    """True if rows are equal; NaN equals itself."""
    return repr(left) == repr(right)


@settings(max_examples=40)
@given(
    types=st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3),
    data=st.data(),
    limit=st.integers(0, 9),
)
def test_first_rows_equal_those_of_all_rows(
    types: list[str], data: st.DataObject, limit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    row = st.tuples(*(st.sampled_from(VALUES[t]) for t in types))
    names = [f"c{i}" for i in range(len(types))]
    folder = tmp_path_factory.mktemp("log")
    with pytest.MonkeyPatch.context() as patch, nosync_nb.open(str(folder / "l")) as session:
        shrink_blocks(patch)
        given_ = session.input("given", ", ".join(map(" ".join, zip(names, types, strict=True))))
        held: list[Any] = []
        for _ in range(data.draw(st.integers(1, 4))):
            new = data.draw(st.lists(row, max_size=40))
            gone = data.draw(st.lists(st.sampled_from(held), unique_by=id)) if held else []
            given_.insert(new)
            given_.remove(gone)
            held = [each for each in held if not any(each is x for x in gone)] + new
            session.commit()
        full = given_.rows()
        assert len(full) == len(held) == given_.count() == len(given_)
        assert equal_rows(given_.rows(limit=limit), full[:limit])
        assert equal_rows(given_.head(limit), full[:limit])
        for by in ("c0", "c0 desc"):
            descending = by.endswith("desc")
            batch = batch_of(given_)
            order = rows.order.ordered(batch.columns, given_.schema.types, [(0, descending)])
            copies = order.repeat(batch.diff[order])[:limit]
            expected = list(
                zip(
                    *(
                        rows.to_pylist(rows.take(c, copies), t)
                        for c, t in zip(batch.columns, given_.schema.types, strict=True)
                    ),
                    strict=True,
                )
            )
            assert equal_rows([tuple(each) for each in given_.head(limit, by=by)], expected)


@pytest.mark.usefixtures("no_consolidation")
def test_large_table_gives_first_rows_and_count_without_merge(
    session: Session,
) -> None:
    random = np.random.default_rng(5)
    data = session.input("data", "kind string, n bigint, x double")
    held: list[tuple[str, int, float]] = []
    for _ in range(3):
        kinds = random.choice(["a", "b", "c"], 10_000).tolist()
        numbers, reals = random.integers(0, 5000, 10_000), random.random(10_000).round(2)
        new = list(zip(kinds, numbers.tolist(), reals.tolist(), strict=True))
        data.insert(pa.table({"kind": kinds, "n": numbers, "x": reals}))
        held += new
        session.commit()
    held.sort()
    gone = held[:50] + held[100:120]
    data.remove(gone)
    session.commit()
    held = held[50:100] + held[120:]
    assert data.count() == len(held)
    assert data.rows(limit=60) == held[:60]
    assert data.head(7) == held[:7]
    for by in ("n desc", "x desc, n", "kind desc, x desc", "x, kind desc"):
        assert equal_rows(
            [tuple(each) for each in data.head(9, by=by)],
            [tuple(each) for each in ordered(list(map(data_row, held)), by)[:9]],
        )


class data_row(tuple[Any, ...]):  # noqa: N801
    """A row with names, for the oracle."""

    kind = property(lambda self: self[0])
    n = property(lambda self: self[1])
    x = property(lambda self: self[2])


@pytest.mark.usefixtures("no_consolidation")
def test_count_after_commit_probes_removed_rows_only(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    on_enough(monkeypatch, looked.append)
    data = session.input("data", "id bigint, n bigint", key="id")
    total = session.stage("total", data.group_by("n").agg(c="count(*)"))
    data.upsert([(i, i % 7) for i in range(3000)])
    session.commit()
    assert (data.count(), total.count()) == (3000, 7)
    looked.clear()
    for epoch in range(40):
        data.upsert([(epoch, 7 + epoch % 3)])
        session.commit()
        assert data.count() == 3000
        assert total.count() == 7 + min(epoch + 1, 3)
    assert sum(looked) <= 40 * 8  # rows of layers merged in the commit are probed again
    looked.clear()
    assert data.count() == 3000
    assert sum(looked) == 0


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("read", ["count", "head", "rows"])
def test_negative_row_fails_every_read(session: Session, read: str) -> None:
    data = session.input("data", "id bigint")
    reads = {"count": data.count, "head": lambda: data.head(2), "rows": lambda: data.rows(limit=2)}
    data.insert([(i,) for i in range(100)])
    session.commit()
    reads[read]()
    data.remove([(99,), (50,)])
    session.commit()
    reads[read]()
    data.remove([(99,), (3,)])
    session.commit()
    with pytest.raises(NegativeMultiplicityError, match=r"row \(99,\) has a count of -1"):
        reads[read]()
    data.insert([(98,)])
    session.commit()
    with pytest.raises(NegativeMultiplicityError, match=r"row \(99,\) has a count of -1"):
        reads[read]()
    data.insert([(99,), (99,)])
    session.commit()
    reads[read]()
    assert data.count() == 99
    assert data.head(2) == [(0,), (1,)]


def test_removed_row_is_probed_only_where_its_hash_occurs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The parts of a large layer have disjoint hashes, and other layers have other rows."""
    looked: list[int] = []
    on_places(monkeypatch, looked.append)
    layout = Layout(("bigint", "bigint"), (0,))

    def batch(ids: range, diff: int) -> Batch:
        columns = [np.array(ids), 7 * np.array(ids)]
        return arrange(layout, Updates(columns, np.full(len(ids), diff)))

    base = batch(range(3000), 1)
    parts = tuple(base.slice(start, start + 500) for start in range(0, 3000, 500))
    others = [batch(range(3000 + 90 * i, 3090 + 90 * i), 1) for i in range(5)]
    layers = [Layer(0, 1, parts), *(Layer(1 + i, 2 + i, (each,)) for i, each in enumerate(others))]
    gone = Layer(6, 7, (batch(range(0, 3000, 30), -1),))
    assert stats.row_count(Trace(layout, (*layers, gone))) == 3000 + 450 - 100
    assert sum(looked) == 2 * 100, "once in the old layer, once in the removing one"
    twice = Layer(7, 8, (batch(range(0, 90, 30), -1),))
    assert stats.row_count(Trace(layout, (*layers, gone, twice))) is None


def test_merge_learns_if_rows_stay_nonnegative() -> None:
    layout = Layout(("bigint",), (0,))

    def trace(*changes: dict[int, int]) -> Trace:
        batches = [
            arrange(layout, Updates([np.array([*each])], np.array([*each.values()])))
            for each in changes
        ]
        return Trace(layout, tuple(Layer(i, i + 1, (b,)) for i, b in enumerate(batches)))

    def nonnegative_until(read: Trace, stop: int, most: int = 1000) -> int:
        stats.keep_nonnegative(read, stop, most)
        sound = [layer.upper for layer in read.layers if layer.facts().sound]
        return max(sound, default=0)

    base = dict.fromkeys(range(100), 1)
    some = trace(base, {3: -1, 4: -1}, {5: -1, 200: 1}, {3: -1}, {3: 1, 200: -1})
    assert nonnegative_until(some, 3) == 0, "the first layer is unknown"
    some.layers[0].facts().sum_up()
    assert nonnegative_until(some, 1) == 1
    assert nonnegative_until(some, 3, most=3) == 1, "the limit of rows is reached"
    assert nonnegative_until(some, 3) == 3
    assert not some.layers[1].facts().sound, "inner layers are not checked, because they become one"
    assert nonnegative_until(some, 4) == 3, "3 was removed twice"
    assert nonnegative_until(some, 5) == 5

    twice = trace(base, {3: -1}, {3: -1})
    twice.layers[0].facts().sum_up()
    assert nonnegative_until(twice, 3) == 1
    grown = trace(base, {200: 1}, {200: 1, 201: 1})
    grown.layers[0].facts().sum_up()
    assert nonnegative_until(grown, 3) == 3


@pytest.mark.usefixtures("small_blocks")
def test_rows_of_one_hash_stay_apart(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def collide(columns: Any, types: Any, n: int) -> Any:
        return np.full(n, 7, np.uint64)

    monkeypatch.setattr(rows, "hash_columns", collide)
    data = session.input("data", "id bigint")
    data.insert([(i,) for i in range(20)])
    session.commit()
    data.remove([(0,), (5,)])
    session.commit()
    assert data.count() == 18
    assert data.head(3) == [(1,), (2,), (3,)]
    data.remove([(0,)])
    session.commit()
    with pytest.raises(NegativeMultiplicityError):
        data.head(1)


def test_counts_and_first_rows_survive_merges_and_restart(tmp_path: Path) -> None:
    with nosync_nb.open(str(tmp_path / "log")) as session:
        data = session.input("data", "id bigint, name string")
        for epoch in range(60):
            data.insert([(epoch * 10 + i, f"n{i}") for i in range(10)])
            if epoch:
                data.remove([(epoch * 10 - 10 + i, f"n{i}") for i in range(5)])
            session.commit()
        settle_background(session)
        expected = data.rows()
        assert (data.count(), data.rows(limit=30)) == (305, expected[:30])
    with nosync_nb.open(str(tmp_path / "log"), mode="r") as session:
        data = session["data"]
        assert (data.count(), data.rows(limit=30), data.rows()) == (305, expected[:30], expected)


def test_counts_above_64_bits_are_exact(session: Session) -> None:
    data = session.input("data", "id bigint")
    data.insert([(1,), (2,)])
    session.commit()
    many = data
    for step, times in enumerate([128] * 8 + [64]):
        many = session.stage(f"step{step}", many.concat(*[many] * (times - 1)))
    assert many.count() == 2**63
    assert many.head(3) == many.rows(limit=3) == [(1,)] * 3


@pytest.mark.parametrize("type_", [t for t in VALUES if t not in ("decimal(30,2)", "array<int>")])
def test_exact_codes_order_like_values(type_: str) -> None:
    values = VALUES[type_] * 3
    columns, _ = rows.to_columns([(v,) for v in values], rows.Schema([("x", type_)]), "")
    for column in (columns[0], rows.from_arrow(rows.to_arrow(columns[0], type_), type_)):
        every = [codes(slice(0, len(values))) for codes in exact_codes(column, type_) or ()]
        found = np.lexsort(every[::-1])
        assert found.tolist() == rows.sort_indices([column], (type_,)).tolist()
        reversed_ = np.arange(len(values))[::-1]
        again = [codes(reversed_) for codes in exact_codes(column, type_) or ()]
        assert [each[::-1].tolist() for each in again] == [each.tolist() for each in every]


def test_codes_of_sliced_texts_are_those_of_the_texts() -> None:
    texts = ["", "a", "aaaaaaaaa", "z" * 8, "é", "end"] * 3
    expected = [int.from_bytes(t.encode()[:8].ljust(8, b"\0")) for t in texts]
    array = pa.array(texts)
    for start in range(len(texts)):
        part = array.slice(start)
        assert order_codes(part, "string").tolist() == expected[start:]
