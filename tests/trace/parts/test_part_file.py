"""Part files: a round trip, opened in O(1), and damage raises an error."""

from __future__ import annotations

import itertools
import json
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from checks.damaged_bytes import flaws_in, flipped
from hypothesis import given
from hypothesis import strategies as st
from models.batch_model import (
    batches_of,
    check,
    count,
    counted,
    layouts,
    numbers,
    pools,
    updates_of,
)
from row_strategies import types

from nosync_nb import rows
from nosync_nb.errors import CorruptLogError, DurabilityError
from nosync_nb.files.filesystem import File, Files
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange, merge
from nosync_nb.trace.parts import arrow_file, part_file
from nosync_nb.trace.parts.part_file import (
    PartRef,
    open_part,
    open_updates,
    split,
    write_part,
    write_parts,
    write_updates,
)

PAIRS = Layout(("bigint", "bigint"), (0,))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("layers"))


@pytest.fixture(autouse=True)
def skip_syncs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Skips syncs except in tests of durability."""
    if "durable" in request.node.name:
        yield
        return
    with mock.patch.object(File, "sync"), mock.patch.object(Files, "sync_folder"):
        yield


def sample_batch(n: int = 1000, layout: Layout = PAIRS) -> Batch:
    return numbers(layout, [((i % 97, i), 1 + i % 3) for i in range(n)])


@given(data=st.data())
def test_part_round_trip(data: st.DataObject, folder: str) -> None:
    layout = data.draw(layouts())
    batch = merge(layout, data.draw(batches_of(layout)))
    ref = PartRef(*json.loads(json.dumps(write_part(folder, batch, "layer"))))
    found = open_part(folder, ref, layout)
    check(found)
    assert counted([batch]) == counted([found])
    assert len(batch) == ref.rows == len(found)
    assert all(ref.low <= k < ref.high for k in batch.khash.tolist())
    assert os.path.getsize(os.path.join(folder, ref.path)) == ref.size_bytes
    assert flaws_in(Path(folder, ref.path), ref.digest) == []
    sliced = batch.slice(len(batch) // 3, len(batch))
    assert counted([sliced]) == counted(
        [open_part(folder, write_part(folder, sliced, "x"), layout)]
    )


@given(data=st.data())
def test_unordered_updates_round_trip(data: st.DataObject, folder: str) -> None:
    kinds = data.draw(st.lists(types, min_size=1, max_size=3))
    updates = data.draw(updates_of(kinds, data.draw(pools(kinds))))
    ref = write_updates(folder, updates, kinds, "shuffle")
    found = open_updates(folder, ref, kinds)
    assert count(updates, kinds) == count(found, kinds)
    assert updates.diff.tolist() == found.diff.tolist()


def test_columns_of_fixed_types_are_views_of_the_file(folder: str) -> None:
    layout = Layout(("bigint", "double", "boolean", "string", "timestamp", "int"), (0,))
    n = 5000
    columns = [
        np.arange(n),
        np.arange(n) / 3,
        np.arange(n) % 2 == 0,
        pa.array([f"s{i}" for i in range(n)]),
        np.arange(n),
        rows.from_arrow(pa.array([None, *range(n - 1)], pa.int32()), "int"),
    ]
    batch = arrange(layout, Updates(columns, np.ones(n, np.int64)))
    found = open_part(folder, write_part(folder, batch, "views"), layout)
    forms = [type(c) is np.ndarray for c in found.columns]
    assert forms == [True, True, True, False, True, False]
    assert not any(c.flags.owndata for c in found.columns if isinstance(c, np.ndarray))
    with pytest.raises(ValueError, match="read-only"):
        found.columns[0][0] = 1
    assert found.rhash is not found.khash
    keyed_by_row = arrange(Layout(layout.types), Updates(columns, np.ones(n, np.int64)))
    again = open_part(folder, write_part(folder, keyed_by_row, "row"), Layout(layout.types))
    assert again.rhash is again.khash


def test_part_is_a_plain_arrow_file(folder: str) -> None:
    batch = sample_batch()
    ref = write_part(folder, batch, "plain")
    with pa.memory_map(os.path.join(folder, ref.path)) as source:
        table = pa.ipc.open_file(source).read_all()
    assert table.column_names == ["c0", "c1", "khash", "rhash", "diff"]
    assert batch.columns[1].tolist() == table["c1"].to_pylist()


def test_redundant_columns_are_not_stored(folder: str) -> None:
    layout = Layout(("bigint",))
    batch = arrange(layout, Updates([np.arange(100)], np.ones(100, np.int64)))
    ref = write_part(folder, batch, "small")
    with pa.memory_map(os.path.join(folder, ref.path)) as source:
        assert pa.ipc.open_file(source).schema.names == ["c0", "khash"]
    assert open_part(folder, ref, layout).diff.tolist() == [1] * 100


def test_opening_cost_is_independent_of_rows(folder: str) -> None:
    """No object as large as a column is created, and unread rows are not checked."""
    n = 400_000
    columns = [np.arange(n), np.arange(n)]
    batch = arrange(PAIRS, Updates(columns, np.ones(n, np.int64)))
    ref = write_part(folder, batch, "large")
    path = os.path.join(folder, ref.path)
    with open(path, "r+b") as file:
        file.seek(ref.size_bytes // 3)
        file.write(bytes(4096))
    tracemalloc.start()
    try:
        opened = open_part(folder, ref, PAIRS)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(opened) == n
    assert peak < n
    assert flaws_in(Path(path))


@given(st.lists(st.integers(0, 12), max_size=60), st.integers(1, 9), st.integers(100, 1000))
def test_parts_are_bounded_and_never_split_a_key(keys: list[int], rows_max: int, size: int) -> None:
    batch = numbers(PAIRS, [((key, i), 1) for i, key in enumerate(keys)])
    pieces = list(split(batch, rows_max, size))
    assert counted([batch]) == counted(pieces)
    for piece in pieces:
        assert len(piece)
        check(piece)
        if len(set(piece.khash.tolist())) > 1:
            assert len(piece) <= rows_max
            assert len(piece) * 40 <= size
    for before, after in itertools.pairwise(pieces):
        assert before.khash[-1] < after.khash[0]


def test_written_parts_are_disjoint_and_complete(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_file.split, "__defaults__", (300, 1 << 30))
    batch = sample_batch()
    refs = write_parts(folder, [batch.slice(0, 0), batch], "many")
    assert len(refs) >= 4
    assert all(a.high <= b.low for a, b in itertools.pairwise(refs))
    assert counted([batch]) == counted([open_part(folder, r, PAIRS) for r in refs])
    assert write_parts(folder, [batch.slice(0, 0)], "none") == []


def test_two_attempts_never_write_one_file(folder: str) -> None:
    batch = sample_batch(10)
    first, second = (write_part(folder, batch, "layer-3") for _ in range(2))
    assert first.path != second.path
    assert first.digest == second.digest


@pytest.mark.fault(12)
def test_every_changed_bit_is_found(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_file, "BLOCK", 512)
    ref = write_part(folder, sample_batch(60), "damage")
    path = Path(folder) / ref.path
    good = path.read_bytes()
    kept, found = [], []
    for at in range(len(good)):
        path.write_bytes(flipped(good, at, at % 8))
        try:
            open_part(folder, ref, PAIRS, checked=True)
            kept.append(at)
        except CorruptLogError as error:
            found.append(ref.path in str(error) and bool(error.hint))
        assert flaws_in(path, ref.digest), at
    path.write_bytes(good)
    assert flaws_in(path, ref.digest) == []
    # Only the padding before the table of checksums is unused.
    assert len(kept) < 8
    assert all(found)
    assert all(good[at] == 0 for at in kept)


def test_truncated_part_is_refused(folder: str) -> None:
    ref = write_part(folder, sample_batch(60), "cut")
    path = Path(folder) / ref.path
    good = path.read_bytes()
    for size in [*range(0, len(good), 37), len(good) - 8]:
        path.write_bytes(good[:size])
        with pytest.raises(CorruptLogError, match=ref.path):
            open_part(folder, ref, PAIRS)
        assert flaws_in(path, ref.digest)
    path.write_bytes(good + bytes(8))
    with pytest.raises(CorruptLogError, match="bytes, not"):
        open_part(folder, ref, PAIRS)


def test_replaced_part_is_refused(folder: str) -> None:
    ref, other = (
        write_part(folder, sample_batch(60), "one"),
        write_part(folder, sample_batch(60), "two"),
    )
    os.replace(os.path.join(folder, other.path), os.path.join(folder, ref.path))
    open_part(folder, ref, PAIRS)  # the same content is the same part
    third = write_part(folder, numbers(PAIRS, [((1, i + 5), 1 + i % 3) for i in range(60)]), "x")
    os.replace(os.path.join(folder, third.path), os.path.join(folder, ref.path))
    with pytest.raises(CorruptLogError, match="does not match"):
        open_part(folder, ref, PAIRS)
    with pytest.raises(CorruptLogError, match="missing"):
        open_part(folder, third, PAIRS)


@pytest.mark.fault(45)
def test_part_of_another_layout_is_refused(folder: str) -> None:
    ref = write_part(folder, sample_batch(60), "layout")
    for layout in (Layout(("bigint", "bigint")), Layout(("bigint", "string"), (0,))):
        with pytest.raises(CorruptLogError, match="ordered by"):
            open_part(folder, ref, layout)
    with pytest.raises(CorruptLogError, match="columns"):
        open_updates(folder, ref, PAIRS.types)


class FullDisk(Files):
    """A disk without space."""

    def create(self, path: str) -> File:
        file = super().create(path)
        self.file = mock.Mock(wraps=file)
        self.file.append.side_effect = DurabilityError("no space")
        return self.file  # type: ignore[no-any-return]


@pytest.mark.fault(20)
def test_refused_write_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(DurabilityError):
        write_part(str(tmp_path), sample_batch(), "full", files=FullDisk())
    assert os.listdir(tmp_path) == []


class RecordingDisk(Files):
    """A disk that records its steps."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def create(self, path: str) -> File:
        file = mock.Mock(wraps=super().create(path))
        file.append.side_effect = lambda _: self.steps.append("append")
        file.sync.side_effect = lambda: self.steps.append("sync")
        return file  # type: ignore[no-any-return]

    def sync_folder(self, path: str) -> None:
        self.steps.append("sync folder")


def test_part_is_durable_before_it_is_named(tmp_path: Path) -> None:
    disk = RecordingDisk()
    write_parts(str(tmp_path), [sample_batch()], "layer", files=disk)
    assert disk.steps[-2:] == ["sync", "sync folder"]
    assert set(disk.steps[:-2]) == {"append"}
    disk.steps.clear()
    write_updates(str(tmp_path), sample_batch().updates, PAIRS.types, "loose", files=disk)
    assert set(disk.steps) == {"append"}, "temporary updates are not synced"


FEW = Layout(("bigint", "string", "string"), (0,))


def coded_batch(n: int = part_file.CODED_ROWS) -> Batch:
    """Rows with one text column of few values and one of distinct values."""
    sample_batch = [["rail", "ship", "", None][i % 4] for i in range(n)]
    columns = [np.arange(n), pa.array(sample_batch), pa.array([f"note {i}" for i in range(n)])]
    return arrange(FEW, Updates(columns, np.ones(n, np.int64)))


@pytest.mark.parametrize("few", [False, True])
def test_columns_of_few_texts_are_encoded_in_large_parts(folder: str, few: bool) -> None:
    batch = coded_batch(part_file.CODED_ROWS - few)
    ref = write_part(folder, batch, "coded")
    assert ref.path.endswith(part_file.CODED) != few
    for thorough in (False, True):
        read = open_part(folder, ref, FEW, checked=True, thorough=thorough)
        assert isinstance(read.columns[1], pa.DictionaryArray) != few
        assert not isinstance(read.columns[2], pa.DictionaryArray)
        assert_same_rows(read, batch)
    again = write_part(folder, read, "again")
    assert_same_rows(open_part(folder, again, FEW), batch)
    pieces = write_parts(folder, [*split(read, rows_max=3000)], "split")
    assert_same_rows(merge(FEW, [open_part(folder, each, FEW) for each in pieces]), batch)


def test_encoding_makes_part_smaller(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = coded_batch()
    few = write_part(folder, batch, "few").size_bytes
    monkeypatch.setattr(part_file, "CODED_ROWS", 1 << 40)
    plain = write_part(folder, batch, "plain").size_bytes
    texts = sum(len(text or "") for text in batch.columns[1].to_pylist())
    assert plain - few > 3 * len(batch) + texts - 1000


def assert_same_rows(one: Batch, other: Batch) -> None:
    """Both hold the same rows in the same order."""
    for column, own, type_ in zip(one.columns, other.columns, FEW.types, strict=True):
        assert rows.to_pylist(column, type_) == rows.to_pylist(own, type_)
    for name in ("khash", "rhash", "diff"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist()


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"1": ["rail", "ship"]}, "column 1 has codes without a text"),
        ({"1": ["rail", "ship", 7]}, "column 1 has an invalid table of texts"),
        ({"1": [f"{i}" for i in range(257)]}, "column 1 has an invalid table of texts"),
        ({"1": ["rail", "ship", ""], "7": ["a"]}, "column 7 has an invalid table of texts"),
        ({"1": ["rail", "ship", ""], "0": ["a"]}, "column 0 is of the type int64"),
        ({"x": ["rail"]}, "invalid literal"),
        (["rail"], "has no attribute"),
        ({}, "column 1 is of the type uint8"),
    ],
)
def test_invalid_texts_of_file_are_damage(
    folder: str, monkeypatch: pytest.MonkeyPatch, texts: object, message: str
) -> None:
    write = arrow_file.write_arrow

    def crafted(folder: str, name: str, names: object, arrays: object, head: object, *more: object):  # type: ignore[no-untyped-def]
        codes = pa.array([3] * len(arrays[0]), pa.uint8())
        arrays[1] = codes if texts == {"1": ["rail", "ship"]} else arrays[1]
        return write(folder, name, names, arrays, {**head, "texts": texts}, *more)

    monkeypatch.setattr(part_file, "write_arrow", crafted)
    ref = write_part(folder, coded_batch(), "crafted")
    with pytest.raises(CorruptLogError, match=message):
        open_part(folder, ref, FEW, checked=True, thorough=True)
