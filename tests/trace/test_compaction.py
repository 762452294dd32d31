"""Compaction: sums are unchanged, layers tile epochs, work is bounded."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from models.batch_model import Count, check, count, counted, nonzero, numbers

from nosync_nb.trace import (
    Layer,
    Trace,
    adopt_merged,
    append_layer,
    append_young,
    compaction,
    plan_merges,
)
from nosync_nb.trace import layer as layer_module
from nosync_nb.trace.batch import Batch, Layout, merge
from nosync_nb.trace.compaction import (
    INLINE_ROWS,
    JOINED_MAX,
    LAYERS_MAX,
    STALL_LAYERS,
    WIDTH,
    YOUNG_ROWS,
    relieve_backlog,
)

LAYOUT = Layout(("bigint", "bigint"), (0,))


class Compaction(RuleBasedStateMachine):
    """Appends batches; a worker merges at any moment and is adopted at any later one."""

    def __init__(self) -> None:
        super().__init__()
        self.trace = Trace(LAYOUT)
        self.epoch = 0
        self.expected: Count = Counter()
        self.merging: tuple[tuple[Layer, ...], Layer] | None = None
        self.live = True

    @rule(
        rows=st.lists(
            st.tuples(st.tuples(st.integers(0, 3), st.integers(0, 2)), st.sampled_from([1, -1])),
            max_size=6,
        ),
        skipped=st.integers(0, 2),
        ordered=st.booleans(),
    )
    def append(self, rows: list[Any], skipped: int, ordered: bool) -> None:
        lower = self.epoch + skipped
        batch = numbers(LAYOUT, rows)
        self.expected.update(count(batch.updates, LAYOUT.types))
        self.expected = nonzero(self.expected)
        if ordered:
            self.trace, merged = append_layer(self.trace, Layer(lower, lower + 1, (batch,)))
        else:
            self.trace, merged = append_backwards(self.trace, lower, batch)
        self.epoch = lower + 1
        assert merged <= INLINE_ROWS

    @precondition(lambda self: self.merging is None)
    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        layers = self.trace.layers
        if not layers:
            return
        start = data.draw(st.integers(0, len(layers) - 1))
        stop = data.draw(st.integers(start + 1, len(layers)))
        inputs = layers[start:stop]
        batch = merge(LAYOUT, [part for layer in inputs for part in layer.parts])
        self.merging = inputs, Layer(inputs[0].lower, inputs[-1].upper, (batch,))

    @precondition(lambda self: self.merging is not None)
    @rule()
    def adopt(self) -> None:
        assert self.merging is not None
        inputs, output = self.merging
        self.merging = None
        live = {id(layer) for layer in inputs} <= {id(layer) for layer in self.trace.layers}
        adopted = adopt_merged(self.trace, inputs, output)
        assert (adopted is not None) == live
        if adopted is not None:
            self.trace = adopted

    @rule()
    def the_sum_is_that_of_the_batches(self) -> None:
        found = self.trace.consolidated()
        check(found)
        assert self.expected == counted([found])

    @invariant()
    def layers_are_in_order_and_end_at_the_last_epoch(self) -> None:
        layers = self.trace.layers
        assert all(a.upper <= b.lower for a, b in pairwise(layers))
        assert not layers or layers[-1].upper == self.epoch

    def teardown(self) -> None:
        self.the_sum_is_that_of_the_batches()


def append_backwards(trace: Trace, epoch: int, batch: Batch) -> tuple[Trace, int]:
    """Appends the updates of a batch in another order than its own."""
    backwards = batch.updates.take(np.arange(len(batch))[::-1])
    return append_young(trace, backwards, epoch)


Compaction.TestCase.settings = settings(stateful_step_count=30)
TestCompaction = Compaction.TestCase


class RowCount(Batch):
    """A batch with only a number of rows."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows


def sized(_: Layout, batches: list[Any]) -> RowCount:
    return RowCount(sum(map(len, batches)))


def run_planned_merges(trace: Trace) -> tuple[Trace, int]:
    """Runs the planned merges; returns the number of copied rows."""
    copied = 0
    while (planned := plan_merges(trace)) is not None:
        inputs = trace.layers[planned.start : planned.stop]
        rows = sum(layer.rows_count for layer in inputs)
        copied += rows
        adopted = adopt_merged(
            trace, inputs, Layer(inputs[0].lower, inputs[-1].upper, (RowCount(rows),))
        )
        assert adopted is not None
        trace = adopted
    return trace, copied


@pytest.mark.fault(46)
@pytest.mark.parametrize("rows", [0, 1, 10, 300, 1025, 5000])
def test_work_per_epoch_and_copies_are_bounded(rows: int) -> None:
    base = 10_000_000
    trace = Trace(LAYOUT, (Layer(0, 1, (RowCount(base),)),))
    copied = inline = 0
    epochs = 4000
    with mock.patch.object(layer_module, "merge", sized):
        for epoch in range(1, epochs):
            trace, merged = append_layer(trace, Layer(epoch, epoch + 1, (RowCount(rows),)))
            assert merged <= INLINE_ROWS
            inline += merged
            trace, more = run_planned_merges(trace)
            copied += more
            assert len(trace.layers) <= STALL_LAYERS
    assert base + (epochs - 1) * rows == trace.rows_count
    levels = np.log(max(epochs * rows, 4)) / np.log(WIDTH) + 2
    assert inline + copied <= levels * epochs * rows + (base if epochs * rows * 4 > base else 0)


@pytest.mark.parametrize("seed", range(5))
def test_copies_are_bounded_for_batches_of_any_size(seed: int) -> None:
    random = np.random.default_rng(seed)
    trace = Trace(LAYOUT)
    appended = copied = 0
    with mock.patch.object(layer_module, "merge", sized):
        for epoch in range(2000):
            rows = int(2 ** random.uniform(0, 16))
            appended += rows
            trace, merged = append_layer(trace, Layer(epoch, epoch + 1, (RowCount(rows),)))
            assert merged <= INLINE_ROWS
            trace, more = run_planned_merges(trace)
            copied += merged + more
            assert len(trace.layers) <= STALL_LAYERS
    assert copied <= 12 * appended


def test_commit_and_worker_never_merge_the_same_layer() -> None:
    random = np.random.default_rng(7)
    trace = Trace(LAYOUT)
    with mock.patch.object(layer_module, "merge", sized):
        for epoch in range(500):
            planned = plan_merges(trace)
            inputs = () if planned is None else trace.layers[planned.start : planned.stop]
            rows = int(2 ** random.uniform(0, 13))
            trace, _ = append_layer(trace, Layer(epoch, epoch + 1, (RowCount(rows),)))
            if inputs:
                output = Layer(inputs[0].lower, inputs[-1].upper, (RowCount(1),))
                assert adopt_merged(trace, inputs, output) is not None
                assert inputs[-1].rows_count > YOUNG_ROWS
            trace, _ = run_planned_merges(trace)


def test_unread_epochs_are_sorted_once() -> None:
    trace = Trace(LAYOUT)
    sorted_ = 0
    for epoch in range(JOINED_MAX - 1):
        rows = [((epoch, i), 1) for i in range(4)]
        batch = numbers(LAYOUT, rows)
        trace, merged = append_backwards(trace, epoch, batch)
        sorted_ += merged
    assert sorted_ == 0
    (layer,) = trace.layers
    assert (layer.lower, layer.upper, layer.rows_count) == (0, JOINED_MAX - 1, 4 * (JOINED_MAX - 1))
    assert len(layer.parts[0]) == layer.rows_count
    layer.parts[0].check()
    trace, _ = append_backwards(trace, 200, numbers(LAYOUT, [((0, 0), -1)]))
    assert len(trace.layers) == 2, "a layer that was read stays unchanged"


def test_full_young_layer_is_merged_by_worker() -> None:
    trace = Trace(LAYOUT)
    for epoch in range(WIDTH * JOINED_MAX + 2):
        batch = numbers(LAYOUT, [((epoch % 7, 0), 1)])
        trace, merged = append_backwards(trace, epoch, batch)
        assert merged == 0, "the committing thread sorts nothing"
        assert trace.layers[-1].pieces_count <= JOINED_MAX
        assert (plan_merges(trace) is None) == (epoch < WIDTH * JOINED_MAX)
    *full, last = trace.layers
    assert [layer.full for layer in (*full, last)] == [True] * WIDTH + [False]
    assert plan_merges(trace) == (0, WIDTH)
    merged_ = merge(LAYOUT, [part for layer in full for part in layer.parts])
    assert len(full[0].parts[0]) == 7
    assert plan_merges(trace) == (0, WIDTH), "also with the known row counts"
    trace, _ = append_layer(trace, Layer(9000, 9001, (numbers(LAYOUT, [((0, 0), 1)]),)))
    adopted = adopt_merged(trace, tuple(full), Layer(0, full[-1].upper, (merged_,)))
    assert adopted is not None
    found = adopted.consolidated()
    check(found)
    assert sorted(found.columns[0].tolist()) == list(range(7))
    assert found.diff.sum() == WIDTH * JOINED_MAX + 3


def test_small_first_layer_joins_later_ones() -> None:
    trace, merged = Trace(LAYOUT), 0
    with mock.patch.object(layer_module, "merge", sized):
        for epoch, rows in enumerate([1, 8, 2, 1, 8]):
            assert (len(trace.layers), merged) == (epoch, 0)
            trace, merged = append_layer(trace, Layer(epoch, epoch + 1, (RowCount(rows),)))
    assert (len(trace.layers), merged) == (1, 20)


def test_levels_grow_fourfold() -> None:
    found = [Layer(0, 1, (RowCount(rows),)).level for rows in (0, 1, 2, 7, 8, 31, 32, 1024)]
    assert found == [0, 0, 1, 1, 2, 2, 3, 5]


def test_backlog_merges_layers_not_claimed_by_worker() -> None:
    made = [Layer(i, i + 1, (RowCount(2000 + i),)) for i in range(STALL_LAYERS + 1)]
    for layer in made[:10]:
        layer.claim()
    with mock.patch.object(layer_module, "merge", sized):
        trace, merged = relieve_backlog(Trace(LAYOUT, tuple(made)))
        assert merged == sum(layer.rows_count for layer in made[10 : 10 + WIDTH])
        assert trace.layers[:10] == tuple(made[:10])
        assert len(trace.layers) == len(made) - WIDTH + 1
        for layer in made:
            layer.claim()
        assert relieve_backlog(Trace(LAYOUT, tuple(made))) == (mock.ANY, 0)


def test_occasionally_read_layers_are_merged() -> None:
    """A layer that is sorted between two epochs must not wait for ever."""
    trace = Trace(LAYOUT)
    for epoch in range(3000):
        trace, merged = append_backwards(trace, epoch, numbers(LAYOUT, [((epoch % 50, 0), 1)]))
        assert merged <= INLINE_ROWS
        if epoch % 10 == 0:
            assert all(layer.parts for layer in trace.layers)
        assert len(trace.layers) <= LAYERS_MAX
    assert trace.rows_count <= 50 * LAYERS_MAX


def test_commit_leaves_layers_just_below_full_alone() -> None:
    layers = tuple(Layer(e, e + 1, (RowCount(1000),)) for e in range(8))
    with mock.patch.object(layer_module, "merge", sized):
        trace, merged = append_layer(Trace(LAYOUT, layers), Layer(8, 9, (RowCount(1000),)))
    assert 0 < merged <= INLINE_ROWS
    assert trace.rows_count == 9000
    assert max(layer.rows_count for layer in trace.layers) == merged


def test_most_similar_of_too_many_layers_are_merged() -> None:
    """Otherwise the oldest layers would be copied dozens of times."""
    trace, copied, epochs = Trace(LAYOUT), 0, 5000
    for epoch in range(epochs):
        layer = Layer(epoch, epoch + 1, (RowCount(YOUNG_ROWS + 1),))
        trace, more = run_planned_merges(Trace(LAYOUT, (*trace.layers, layer)))
        copied += more
        assert len(trace.layers) <= LAYERS_MAX
    assert copied < 5 * epochs * (YOUNG_ROWS + 1)


def full(lower: int, rows_count: int) -> Layer:
    """A layer for the worker, regardless of its size."""
    layer = Layer(
        lower, lower + 1, (numbers(LAYOUT, [((x, lower), 1) for x in range(rows_count)]),)
    )
    layer.fill()
    return layer


def test_claimed_layers_are_left_out_of_plans() -> None:
    """A keeper may claim layers for long; neither they nor older ones are planned."""
    sizes = [300] * 4 + [80] * 3
    trace = Trace(LAYOUT, tuple(full(at, size) for at, size in enumerate(sizes)))
    for layer in trace.layers[:4]:
        layer.claim()
    assert plan_merges(trace) is None
    trace = Trace(LAYOUT, (*trace.layers, full(len(sizes), 80)))
    assert plan_merges(trace) == compaction.Merge(4, 8)
    stairs = [size for size in (300, 80, 20, 5, 1) for _ in range(3)]
    assert len(stairs) > LAYERS_MAX
    younger = tuple(full(4 + at, size) for at, size in enumerate(stairs))
    alone = plan_merges(Trace(LAYOUT, younger))
    assert alone is not None
    both = plan_merges(Trace(LAYOUT, (*trace.layers[:4], *younger)))
    assert both == compaction.Merge(4 + alone.start, 4 + alone.stop)
    for layer in trace.layers[:4]:
        layer.release()
    assert plan_merges(Trace(LAYOUT, trace.layers[:7])) == compaction.Merge(0, 7)


def test_layer_grows_until_it_is_full_or_read() -> None:
    one = numbers(LAYOUT, [((1, 1), 1)]).updates

    def grown(epochs: int, rows: int = 1) -> Trace:
        trace = Trace(LAYOUT)
        for epoch in range(epochs):
            some = numbers(LAYOUT, [((epoch, i), 1) for i in range(rows)]).updates
            trace, _ = append_young(trace, some, epoch)
        return trace

    assert compaction.grow_layer(Trace(LAYOUT), one, 0) is None
    assert compaction.grow_layer(grown(1), one, 1) is None, "no epoch was joined yet"
    two = grown(2)
    more = compaction.grow_layer(two, one, 2)
    assert more is not None
    assert [layer.pieces_count for layer in more.layers] == [3]
    assert (more.layers[-1].lower, more.layers[-1].upper) == (0, 3)
    assert two.layers[-1].pieces_count == 2, "layers of readers stay unchanged"
    assert list(more.parts())
    assert compaction.grow_layer(more, one, 3) is None, "the layer was read"
    before = grown(2)
    after = compaction.grow_layer(before, one, 2)
    assert after is not None
    assert len(before.layers[-1].parts) == 1
    assert compaction.grow_layer(after, one, 3) is None, "an earlier version was read"
    full = grown(JOINED_MAX)
    assert full.layers[-1].pieces_count == JOINED_MAX
    assert compaction.grow_layer(full, one, JOINED_MAX) is None
    rows = INLINE_ROWS // 8
    large = grown(8, rows)
    assert large.layers[-1].rows_count == 8 * rows == INLINE_ROWS
    assert compaction.grow_layer(large, one, 8) is None
    wary = grown(2)
    wary.layers[-1].watch(2)
    assert compaction.grow_layer(wary, one, 2) is None
    wary.layers[-1].watch(1)
    assert compaction.grow_layer(wary, one, 2) is not None
