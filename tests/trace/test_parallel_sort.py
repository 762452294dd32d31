"""Sorting on several cores: the same rows in the same order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from nosync_nb.rows import parallel
from nosync_nb.trace import batch as batch_module
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange

N = 5000
TYPES = ("bigint", "string", "double")
LAYOUTS = {
    "rows": Layout(TYPES),
    "key": Layout(TYPES, (0,)),
    "key and order": Layout(TYPES, (0,), 2),
    "all in one": Layout(TYPES, ()),
}


@pytest.fixture(autouse=True)
def small_thresholds() -> Iterator[None]:
    """Lowers the thresholds to some thousand rows, on three cores."""
    with (
        mock.patch.object(parallel, "MANY", 1000),
        mock.patch.object(batch_module, "MANY", 1000),
        mock.patch.object(batch_module, "GROUP", 100),
        mock.patch.object(parallel, "usable_cores", return_value=3),
    ):
        yield


def updates(seed: int) -> Updates:
    random = np.random.default_rng(seed)
    keys = random.integers(0, 700, N)
    texts = pa.array([f"text {n % 9}" if n % 5 else None for n in random.integers(0, 90, N)])
    numbers = random.integers(0, 3, N) / 4
    return Updates([keys, texts, numbers], random.choice([-1, 1, 2], N))


def lists_of(batch: Batch) -> list[Any]:
    columns = [c.to_pylist() if isinstance(c, pa.Array) else c.tolist() for c in batch.columns]
    numbers = [batch.khash, batch.rhash, batch.diff, batch.code]
    return [*columns, *(None if each is None else each.tolist() for each in numbers)]


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("seed", [1, 2])
def test_several_cores_sort_like_one(name: str, seed: int) -> None:
    given = updates(seed)
    with mock.patch.object(parallel, "usable_cores", return_value=1):
        alone = arrange(LAYOUTS[name], given)
    with mock.patch.object(batch_module, "MANY", N + 1):
        as_few = arrange(LAYOUTS[name], given)
    together = arrange(LAYOUTS[name], given)
    together.check()
    assert lists_of(together) == lists_of(alone) == lists_of(as_few)
    assert (together.rhash is together.khash) == (alone.rhash is alone.khash)


def test_rows_of_equal_hashes_stay_apart() -> None:
    given, layout = updates(3), LAYOUTS["key"]
    one = np.zeros(N, np.uint64)
    with mock.patch.object(batch_module, "MANY", N + 1):
        alone = arrange(layout, given, khash=one, rhash=one.copy())
    together = arrange(layout, given, khash=one, rhash=one.copy())
    assert lists_of(together) == lists_of(alone)
    assert len(together) > 700


def test_parts_run_once_and_concurrently() -> None:
    met = threading.Barrier(3)
    done = []

    def work(part: int) -> None:
        if part < 3:
            met.wait(60)  # three parts wait for each other
        done.append(part)

    before = threading.active_count()
    parallel.map_parallel(work, 10, 3)
    assert sorted(done) == [*range(10)]
    assert threading.active_count() == before


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_error_ends_work_and_leaves_no_thread(error: type[BaseException]) -> None:
    begun = []

    def work(part: int) -> None:
        begun.append(part)
        raise error

    before = threading.active_count()
    with pytest.raises(error):
        parallel.map_parallel(work, 100, 2)
    assert len(begun) <= 2
    assert threading.active_count() == before


def test_one_core_does_all_work_without_threads() -> None:
    done: list[int] = []
    no = RuntimeError("can't start new thread")
    with mock.patch.object(threading.Thread, "start", side_effect=no):
        parallel.map_parallel(done.append, 10, 3)
    assert done == [*range(10)]


def test_background_work_is_single_threaded() -> None:
    seen = []

    def background() -> None:
        parallel.single_threaded()
        seen.append(parallel.count(N))

    thread = threading.Thread(target=background)
    thread.start()
    thread.join()
    assert seen == [1]
    assert parallel.count(N) == 3
    assert parallel.count(999) == 1


def test_interrupted_sort_changes_no_input() -> None:
    given = updates(4)
    kept = lists_of(Batch(LAYOUTS["rows"], given.columns, *[given.diff] * 3))
    with (
        mock.patch("nosync_nb.rows.take", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        arrange(LAYOUTS["rows"], given)
    assert lists_of(Batch(LAYOUTS["rows"], given.columns, *[given.diff] * 3)) == kept
