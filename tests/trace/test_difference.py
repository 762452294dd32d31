"""Differences of two states: equal to their merge with opposite counts."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from nosync_nb import rows
from nosync_nb.trace import Layer, Trace
from nosync_nb.trace import batch as batch_module
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange, merge
from nosync_nb.trace.difference import difference, negated, uncancelled_files, uncancelled_parts
from nosync_nb.trace.parts.part_file import (
    REMOVED,
    REMOVED_CODED,
    PartRef,
    link_removed,
    open_part,
    split,
    write_parts,
)

TYPES = ("bigint", "string", "int")
LAYOUTS = [Layout(TYPES), Layout(TYPES, (1,)), Layout(TYPES, ()), Layout(TYPES, (1,), 2)]


def state(random_: random.Random, layout: Layout, count: int, values: int) -> Batch:
    """Rows of which some occur several times, and some have negative counts."""
    some = [
        (random_.randrange(values), f"k{random_.randrange(9)}", random_.randrange(3))
        for _ in range(count)
    ]
    columns = [
        np.array([row[0] for row in some], np.int64),
        rows.from_arrow(pa.array([row[1] for row in some]), "string"),
        np.array([row[2] for row in some], np.int32),
    ]
    diff = np.array([random_.choice((1, 1, 1, 2, -1)) for _ in some], np.int64)
    return arrange(layout, Updates(columns, diff))


def rows_of(batch: Batch) -> list[tuple[object, ...]]:
    columns = [rows.to_pylist(c, t) for c, t in zip(batch.columns, batch.layout.types, strict=True)]
    return sorted(zip(*columns, batch.diff.tolist(), strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("values", [4, 40, 4000])
@pytest.mark.parametrize("parts", [1, 3])
def test_difference_equals_merge(layout: Layout, values: int, parts: int) -> None:
    random_ = random.Random(values * parts)
    for count in (0, 1, 7, 400):
        after, before = (state(random_, layout, size, values) for size in (count, 300))
        pieces = [*split(before, -(-len(before) // parts))]
        result = difference(layout, after, pieces)
        assert result is not None
        removed = negated(before) if result.removed is None else result.removed
        assert rows_of(merge(layout, [result.added, removed])) == rows_of(
            merge(layout, [after, negated(before)])
        )
        distinct = [row[:-1] for row in rows_of(result.added) + rows_of(removed)]
        assert len(set(distinct)) == len(distinct), "the difference is a net change"
        result.added.check()
        removed.check()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_difference_of_equal_states_is_empty(layout: Layout) -> None:
    some = state(random.Random(1), layout, 200, 50)
    result = difference(layout, some, [some])
    assert result is not None
    assert result.removed is not None
    assert (len(result.added), len(result.removed)) == (0, 0)


@pytest.mark.parametrize("layout", LAYOUTS[:2])
def test_difference_leaves_equal_hashes_to_merge(layout: Layout) -> None:
    """Rows with equal hashes are only equal if their values are."""
    one, other = (state(random.Random(seed), layout, 60, 50) for seed in (1, 2))
    hashes = np.arange(len(one), dtype=np.uint64)
    one = Batch(layout, one.columns, hashes, hashes, one.diff, one.code)
    hashes = np.arange(len(other), dtype=np.uint64) + 7
    other = Batch(layout, other.columns, hashes, hashes, other.diff, other.code)
    assert difference(layout, one, [other]) is None


def test_counts_near_limit_are_left_to_merge() -> None:
    layout = Layout(("bigint",))
    one, other = (
        arrange(layout, Updates([np.arange(3)], np.array([count, 1, 1], np.int64)))
        for count in (2**63 - 1, -(2**62) - 1)
    )
    assert difference(layout, one, [other]) is None


@pytest.mark.parametrize("count", [50, 5000])
def test_second_name_of_part_has_opposite_counts(tmp_path: Path, count: int) -> None:
    layout = Layout(TYPES, (1,))
    batch = state(random.Random(3), layout, count * 2, count * 2)
    refs = write_parts(str(tmp_path), [batch], "rows")
    linked = link_removed(str(tmp_path), refs, "rows")
    assert [ref.removes for ref in (*refs, *linked)] == [False, True]
    assert linked[0].path.endswith(REMOVED_CODED if count > 100 else REMOVED)
    assert (tmp_path / refs[0].path).samefile(tmp_path / linked[0].path), "no row is written"
    opened = open_part(str(tmp_path), linked[0], layout, checked=True, thorough=True)
    assert rows_of(opened) == rows_of(negated(batch))
    once = arrange(layout, Updates(batch.columns, np.ones(len(batch), np.int64)))
    (ref,) = write_parts(str(tmp_path), [once], "once")
    (again,) = link_removed(str(tmp_path), [ref], "once")
    assert set(open_part(str(tmp_path), again, layout).diff.tolist()) == {-1}


def test_files_and_their_second_names_cancel(tmp_path: Path) -> None:
    layout = Layout(TYPES)
    folder = str(tmp_path)
    one, other = (state(random.Random(seed), layout, 90, 5000) for seed in (1, 2))
    (first,) = write_parts(folder, [one], "first")
    (second,) = write_parts(folder, [other], "second")
    (removed,) = link_removed(folder, [first], "first")

    def layer(lower: int, *refs: PartRef) -> Layer:
        parts = tuple(open_part(folder, ref, layout) for ref in refs)
        return Layer(lower, lower + 1, parts, refs)

    layers = layer(0, first), layer(1, second, removed)
    assert [each.ref for each in uncancelled_files(layers)] == [second]
    assert [len(part) for part in uncancelled_parts(layers)] == [len(other)]
    assert rows_of(Trace(layout, layers).consolidated()) == rows_of(other)
    twice = (*layers, layer(2, removed), layer(3, first), layer(4, removed))
    expected = merge(layout, [part for each in twice for part in each.parts])
    assert rows_of(merge(layout, uncancelled_parts(twice))) == rows_of(expected)
    assert layer(0, first).facts().rows is not layer(0, removed).facts().rows


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("values", [3, 300, 2**62])
def test_merge_in_linear_time_equals_sort(
    layout: Layout, values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_ = random.Random(values)
    batches = [state(random_, layout, size, values) for size in (300, 1, 200, 40)]
    batches.append(negated(batches[0]))
    expected = merge(layout, batches)
    monkeypatch.setattr(batch_module, "LINEAR", 0)
    merged = merge(layout, batches)
    assert np.array_equal(merged.khash, expected.khash)
    assert np.array_equal(merged.rhash, expected.rhash)
    assert np.array_equal(merged.diff, expected.diff)
    assert rows_of(merged) == rows_of(expected)
    hashes = np.arange(len(batches[2]), dtype=np.uint64) // np.uint64(3)
    equal = [Batch(layout, b.columns, hashes, hashes, b.diff, b.code) for b in (batches[2],) * 2]
    assert rows_of(merge(layout, [equal[0], negated(equal[1])])) == []
