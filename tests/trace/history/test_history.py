"""History: any epoch reads as it was, whenever packs were written or cut."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import pytest
from checks.damaged_bytes import flaws_in, flipped
from faults.faults import FaultyFiles
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from internals import archive_of, tails_of, tree_of
from models.batch_model import (
    Count,
    check,
    counted,
    few_layouts,
    nonzero,
    numbers,
    pools,
    updates_of,
    weak_hashes,
)

from nosync_nb import rows
from nosync_nb.errors import CorruptLogError, TimeError
from nosync_nb.files.filesystem import File, Files
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange, concat_updates, merge
from nosync_nb.trace.checksums import file_damage
from nosync_nb.trace.history import (
    incremental_seek,
    pack_file,
    pack_tree,
    sections,
)
from nosync_nb.trace.history.downsampling import RetainedEpochs
from nosync_nb.trace.history.history import History
from nosync_nb.trace.history.incremental_seek import NearbyState
from nosync_nb.trace.parts.part_file import open_part, write_parts

PAIRS = Layout(("bigint", "bigint"), (0,))
TRACES = (1, 2, 3)
LAYOUTS = {
    1: Layout(("bigint", "string"), (0,)),
    2: Layout(("bigint", "string", "double"), (1,), 0),
    3: Layout(("bigint",)),
}
POOLS: list[list[Any]] = [[0, 0, 1, 1, 2, 3], [None, "a", "b", None, "", "a"]]
POOLS += [[0.5, None, 1.0, float("nan"), 2.5, 0.5]]


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    """Skips syncs, which other tests cover."""
    with mock.patch.object(File, "sync"), mock.patch.object(Files, "sync_folder"):
        yield


def no_pause() -> None:
    """Does not pause."""


def pack(history: History, upto: int, keep: RetainedEpochs | None = None) -> bool:
    """Packs and tidies up; returns True if there was something to pack."""
    plan = history.pack(upto)
    adopted = plan is not None and history.adopt(plan.perform(no_pause))
    while (more := history.tidy(keep)) is not None:
        assert history.adopt(more.perform(no_pause))
    return adopted


def decode_changes(batches: Sequence[Batch], types: Sequence[str]) -> tuple[Updates, list[int]]:
    """Decodes changes that need no decoding."""
    return concat_updates([batch.updates for batch in batches], types), [*map(len, batches)]


def restored(history: History, folder: str) -> History:
    """The history restored from a checkpoint; its tail comes from the log."""
    again = History.restore(folder, json.loads(json.dumps(history.manifest())))
    for trace, tail in tails_of(history).items():
        for epoch, change in tail:
            if isinstance(change, Batch):
                again.append_encoded(trace, change.layout, [(epoch, change)], decode_changes)
            else:
                tails_of(again).setdefault(trace, []).append((epoch, change))
    return again


class Past(RuleBasedStateMachine):
    """Random epochs, packs at random moments, restarts and rewinds, against counters."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.steps = 0
        self.epochs: dict[int, list[tuple[int, Count]]] = {trace: [] for trace in TRACES}
        self.waiting: Any = None
        self.known: dict[int, list[NearbyState]] = {trace: [] for trace in TRACES}
        self.few = [
            mock.patch.object(pack_tree, "FANOUT", 3),
            mock.patch.object(incremental_seek, "FEW_ROWS", 2),
            mock.patch.object(incremental_seek, "MANY_LAYERS", 3),
        ]
        for each in self.few:
            each.start()

    def teardown(self) -> None:
        for each in self.few:
            each.stop()

    @initialize(folder=st.uuids())
    def open(self, folder: Any) -> None:
        self.folder = os.path.join(BASE, folder.hex, "history")
        self.history = History.restore(self.folder, None)

    @rule(
        skip=st.sampled_from([0, 0, 1, 14, 300]),
        traces=st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=20),
        seed=st.integers(0, 2**16),
    )
    def change(self, skip: int, traces: list[int], seed: int) -> None:
        """Some epochs in which the first trace, the second or both change."""
        self.now += skip
        random = Random(seed)
        for which in traces:
            self.now += 1
            for trace in TRACES[:-1]:
                if trace & which:
                    self.changed(random, trace, self.now)

    @rule(
        steps=st.lists(st.sampled_from([1, 1, 2, 20]), max_size=8),
        seed=st.integers(0, 2**16),
    )
    def catch_up(self, steps: list[int], seed: int) -> None:
        """The last trace lags: its changes are appended after their epochs are packed."""
        own = self.epochs[TRACES[-1]]
        epoch = own[-1][0] if own else 0
        for step in steps:
            epoch += step
            if epoch <= self.now:
                self.changed(Random(seed + epoch), TRACES[-1], epoch)

    def changed(self, random: Random, trace: int, epoch: int) -> None:
        """Changes a trace at an epoch, in one of the possible forms."""
        layout = LAYOUTS[trace]
        picked = random.choices(range(6), k=random.randint(0, 4))
        columns = [rows.objects([pool[i] for i in picked]) for pool in POOLS[: len(layout.types)]]
        diff = np.array([random.choice([-2, -1, 1, 1, 3]) for _ in picked], np.int64)
        batch = arrange(layout, Updates(columns, diff))
        self.append(trace, epoch, batch, random.randint(0, 4))
        self.epochs[trace].append((epoch, counted([batch])))

    def append(self, trace: int, epoch: int, batch: Batch, form: int) -> None:
        """Appends a change in one of the possible forms."""
        history, folder = self.history, archive_of(self.history).parts
        layout = batch.layout
        if form < 2:
            history.append(trace, epoch, batch)
        elif form == 2:
            history.append_encoded(trace, layout, [(epoch, batch)], decode_changes)
        else:
            refs = write_parts(folder, [batch], "log")
            parts = [open_part(folder, r, layout) for r in refs] if form == 3 else ()
            history.append_files(trace, epoch, layout, refs, parts)

    @precondition(lambda self: self.waiting is None)
    @rule(back=st.sampled_from([0, 0, 1, 5]))
    def plan(self, back: int) -> None:
        self.waiting = self.history.pack(self.now - back) or self.history.tidy()

    @precondition(lambda self: self.waiting is not None)
    @rule()
    def perform(self) -> None:
        packed = self.waiting.perform(no_pause)
        self.waiting = None
        self.history.adopt(packed)

    @rule()
    def pack_and_tidy(self) -> None:
        self.waiting = None
        pack(self.history, self.now)

    @rule()
    def restart(self) -> None:
        self.waiting = None
        self.history = restored(self.history, self.folder)

    @precondition(lambda self: self.now > 1)
    @rule(back=st.integers(1, 40))
    def rewind(self, back: int) -> None:
        self.now = max(0, self.now - back)
        self.history.truncate(self.now)
        for trace, changes in self.epochs.items():
            self.epochs[trace] = [(epoch, c) for epoch, c in changes if epoch <= self.now]
            self.known[trace] = [each for each in self.known[trace] if each.epoch <= self.now]

    @invariant()
    def any_epoch_reads_as_it_was(self) -> None:
        """Reads the last epoch, and around epochs with a change or anywhere else."""
        self.steps += 1
        random = Random(self.steps)
        trace = TRACES[self.steps % 3]
        changed = [0, *(epoch for epoch, _ in self.epochs[trace])]
        self.compare(trace, None, self.now)
        after, upto = (
            random.choice([random.choice(changed), random.randint(0, self.now)]) for _ in "ab"
        )
        self.compare(trace, min(after, upto), max(after, upto))
        self.compare(trace, None, min(after, upto))
        self.compare_apart(trace, min(after, upto), max(after, upto))
        for epoch in (after, upto):
            self.compare_near(trace, epoch, random)

    def compare_near(self, trace: int, epoch: int, random: Random) -> None:
        """Reads by way of cached neighbouring epochs."""
        known = self.known[trace]
        if trace == TRACES[-1]:
            known.clear()  # its past may change while it lags
        found = incremental_seek.nearby_state(self.history, trace, LAYOUTS[trace], epoch, known)
        for part in found.parts():
            check(part)
        assert self.expected(trace, None, epoch) == counted([found.consolidated()])
        weight = self.history.weight(trace, None, epoch)
        assert sum(weight) >= sum(map(len, self.history.state(trace, epoch)))
        known.append(NearbyState(epoch, found))
        random.shuffle(known)
        del known[4:]

    def compare_apart(self, trace: int, lower: int, upper: int) -> None:
        """Compares single epochs; for files the reported number of rows is a lower bound."""
        found = self.history.changes_by_epoch(trace, lower, upper)
        apart = Counter[tuple[int, Any]]()
        for layout, epochs, updates in found.small:
            for epoch in {*epochs.tolist()}:
                at = np.flatnonzero(epochs == epoch)
                columns = [rows.take(column, at) for column in updates.columns]
                batch = arrange(layout, Updates(columns, updates.diff[at]))
                apart.update({(epoch, row): n for row, n in counted([batch]).items()})
        changed = {epoch for epoch, _ in self.epochs[trace] if lower <= epoch < upper}
        assert {epoch for epoch, _ in apart} | found.large.keys() <= changed
        for epoch in changed - found.large.keys():
            own = {row: n for (e, row), n in apart.items() if e == epoch and n}
            assert self.expected(trace, epoch - 1, epoch) == own
        for epoch, least in found.large.items():
            assert least <= sum(len(b) for b in self.history.changes(trace, epoch - 1, epoch))

    def compare(self, trace: int, after: int | None, upto: int) -> None:
        batches = self.history.changes(trace, after, upto)
        for batch in batches:
            check(batch)
        assert self.expected(trace, after, upto) == counted(batches)

    def expected(self, trace: int, after: int | None, upto: int) -> Count:
        lower = -1 if after is None else after
        total: Count = Counter()
        for epoch, change in self.epochs[trace]:
            if lower < epoch <= upto:
                total.update(change)
        return nonzero(total)


BASE = ""


@pytest.fixture(autouse=True, scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> None:
    global BASE
    BASE = str(tmp_path_factory.mktemp("histories"))


Past.TestCase.settings = settings(stateful_step_count=30)
TestPast = Past.TestCase


def packed_history(folder: Path, epochs: int, every: int, *, retain: int | None = None) -> History:
    """A history where row (e % 7, e) comes at e and goes at e + 50, packed now and then."""
    history = History.restore(str(folder / "history"), None)
    for epoch in range(1, epochs + 1):
        rows = [((epoch % 7, epoch), 1)]
        if epoch > 50:
            rows.append((((epoch - 50) % 7, epoch - 50), -1))
        history.append(1, epoch, numbers(PAIRS, rows))
        if epoch % every == 0:
            pack(history, epoch, None if retain is None else RetainedEpochs(retain))
    return history


def rows_at(history: History, epoch: int) -> list[int]:
    found = merge(PAIRS, history.state(1, epoch))
    assert found.diff.tolist() == [1] * len(found)
    return sorted(found.columns[1].tolist())


@pytest.mark.fault(46)
@pytest.mark.parametrize("every", [7, 16, 100])
def test_any_epoch_of_long_history_is_readable(tmp_path: Path, every: int) -> None:
    history = packed_history(tmp_path, 2000, every)
    for epoch in [*range(1, 60), *range(900, 1000), *range(1, 2001, 37), 1999, 2000]:
        assert list(range(max(1, epoch - 49), epoch + 1)) == rows_at(history, epoch)
    assert history.state(1, 0) == []


def test_summed_epochs_are_not_reported_as_single_epochs(tmp_path: Path) -> None:
    history = packed_history(tmp_path, 600, 16, retain=32)
    assert history.is_thinned
    readable = {epoch for each in history.epochs(1, 600) for epoch in each}
    found = {
        e for _, epochs, _ in history.changes_by_epoch(1, 0, 601).small for e in epochs.tolist()
    }
    assert {*range(585, 601)} <= found
    assert found <= readable
    assert len(found) < 100, "summed epochs are not reported"


def test_frame_changes_are_decoded_in_bulk(tmp_path: Path) -> None:
    history = History.restore(str(tmp_path / "history"), None)
    steps: list[int] = []

    def counting_decode(data: Sequence[Batch], types: Sequence[str]) -> tuple[Updates, list[int]]:
        steps.append(len(data))
        return decode_changes(data, types)

    made = [(e, numbers(PAIRS, [((0, e), 1), ((1, e), 1)][: e % 3])) for e in range(1, 1001)]
    history.append_encoded(1, PAIRS, made, counting_decode)
    before = {e: counted(history.changes(1, e - 1, e)) for e in (1, 2, 3, 500, 1000)}
    steps.clear()
    assert sum(len(epochs) for _, epochs, _ in history.changes_by_epoch(1, 1, 1001).small) == 1000
    assert steps == [1000]
    steps.clear()
    assert pack(history, 1000)
    assert sum(steps) == 1000
    assert len(steps) <= 1 + 1000 // sections.AT_ONCE
    assert before == {e: counted(history.changes(1, e - 1, e)) for e in before}


def test_state_is_the_sum_of_few_batches(tmp_path: Path) -> None:
    history = packed_history(tmp_path, 5000, 16)
    levels = {node.level for top in tree_of(history) for node in top.walk()}
    assert levels == {0, 1, 2}
    assert len(tree_of(history)) < 2 * 16
    seen = []
    for epoch in range(3000, 3100):
        sums = archive_of(history).read(tree_of(history), 1, 0, epoch + 1)
        seen.append(sum(map(len, sums.updates.values())))
    assert max(seen) <= 3 * 16


def test_sum_names_no_trace_with_own_interval(tmp_path: Path) -> None:
    history = packed_history(tmp_path, 600, 16)
    sums = [node for top in tree_of(history) for node in top.walk() if node.children]
    assert len(sums) > 1
    assert all(not node.own for node in sums)


def test_unchanged_traces_cost_nothing(tmp_path: Path) -> None:
    history = packed_history(tmp_path, 200, 50)
    assert history.state(9, 150) == []
    assert history.changes(9, 20, 150) == []


def test_replay_over_packed_epochs_keeps_its_epochs(tmp_path: Path) -> None:
    history = packed_history(tmp_path, 64, 16)
    for epoch in range(1, 65):
        history.append(2, epoch, numbers(PAIRS, [((0, epoch), 1)]))
    before = {e: counted(history.state(2, e)) for e in range(65)}
    assert pack(history, 64)
    for epoch in range(65, 300):
        history.append(1, epoch, numbers(PAIRS, [((9, epoch), 1)]))
        if epoch % 10 == 0:
            pack(history, epoch)
    assert before == {e: counted(history.state(2, e)) for e in range(65)}
    history = restored(history, str(tmp_path / "history"))
    assert before == {e: counted(history.state(2, e)) for e in range(65)}
    history.truncate(40)
    assert before[40] == counted(history.state(2, 40))
    assert before[17] == counted(history.state(2, 17))


def test_lagging_stage_catches_up_after_packs(tmp_path: Path) -> None:
    history = packed_history(tmp_path, 100, 20)
    history.append(2, 5, numbers(PAIRS, [((1, 1), 1)]))
    pack(history, 100)
    for epoch in range(101, 121):
        history.append(1, epoch, numbers(PAIRS, [((9, epoch), 1)]))
    history.append(2, 30, numbers(PAIRS, [((1, 2), 1)]))
    history.append(2, 110, numbers(PAIRS, [((1, 1), -1)]))
    pack(history, 120)
    epochs = (4, 5, 29, 30, 109, 110, 120)
    assert [len(counted(history.state(2, e))) for e in epochs] == [0, 1, 1, 2, 2, 1, 1]


def test_row_in_two_layouts_is_read_in_both(tmp_path: Path) -> None:
    wide = Layout(("bigint", "bigint", "string"), (0,))
    history = History.restore(str(tmp_path / "history"), None)
    history.append(1, 1, numbers(PAIRS, [((1, 1), 1)]))
    columns = [np.array([2]), np.array([2]), np.array(["x"], dtype=object)]
    history.append(1, 2, arrange(wide, Updates(columns, np.array([1]))))
    pack(history, 2)
    assert {PAIRS, wide} == {b.layout for b in history.state(1, 2)}
    assert [b.layout for b in history.state(1, 1)] == [PAIRS]


def test_large_sums_become_part_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nosync_nb.trace.history.pack_plans.LARGE", 20)
    (tmp_path / "layers").mkdir()
    history = packed_history(tmp_path, 600, 10)
    parts = {name for name in history.files() if name.endswith(".arrow")}
    assert parts == set(os.listdir(tmp_path / "layers"))
    assert parts
    for epoch in (1, 100, 333, 599):
        assert list(range(max(1, epoch - 49), epoch + 1)) == rows_at(history, epoch)


def test_hidden_epochs_undone_by_rewind_are_single_again(tmp_path: Path) -> None:
    history = packed_history(tmp_path, 30, 1000)
    history.start_at(1, 5)
    history.hide(1, 8, 12)
    history.hide(1, 18, 29)
    history.truncate(20)
    for epoch in range(21, 25):
        history.append(1, epoch, numbers(PAIRS, [((0, 10_000 + epoch), 1)]))
    assert history.epochs(1, 24) == [range(5, 8), range(12, 18), range(20, 25)]
    assert rows_at(history, 17) == list(range(1, 18))


def test_pack_of_abandoned_copy_is_not_adopted(tmp_path: Path) -> None:
    history = packed_history(tmp_path, 30, 1000)
    plan = history.pack(29)
    assert plan is not None
    packed = plan.perform()
    back = history.copied(())
    back.truncate(10)
    history.become(back)
    assert not history.adopt(packed)
    assert rows_at(history, 10) == list(range(1, 11))
    again = history.pack(10)
    assert again is not None
    assert history.adopt(again.perform())
    assert rows_at(history, 10) == list(range(1, 11))


def test_retention_keeps_last_epochs_single(tmp_path: Path) -> None:
    history = packed_history(tmp_path, 5000, 64, retain=100)
    every = packed_history(tmp_path / "all", 5000, 64)
    ranges = history.epochs(1, 5000)
    assert [r.step for r in ranges] == [256, 16, 1]
    assert 5000 in ranges[-1]
    assert ranges[-1][0] <= 4900
    for r in ranges:
        for epoch in [*r[:3], *r[-3:]]:
            assert rows_at(every, epoch) == rows_at(history, epoch)
    assert counted(every.changes(1, 255, 4991)) == counted(history.changes(1, 255, 4991))
    assert [range(5001)] == every.epochs(1, 5000)
    with pytest.raises(TimeError, match="epoch 3000 ") as caught:
        history.state(1, 3000)
    near = "{} or {}".format(*pack_tree.nearest_epochs(ranges, 3000))
    assert near in str(caught.value.hint)
    with pytest.raises(TimeError, match="cannot use epoch 3000"):
        history.truncate(3000)
    history.truncate(ranges[0][2])
    assert rows_at(every, ranges[0][2]) == rows_at(history, ranges[0][2])


def test_pinned_epoch_is_readable_until_released(tmp_path: Path) -> None:
    history = packed_history(tmp_path, 3000, 64)
    pack(history, 3000, RetainedEpochs(100, frozenset((1000, 255))))
    ranges = history.epochs(1, 3000)
    assert any(1000 in each and each.step == 1 for each in ranges)
    assert 255 in ranges[0]
    assert ranges[0].step == 256  # it is readable without a pin
    assert rows_at(history, 1000) == list(range(951, 1001))
    assert 1100 not in {e for each in ranges for e in each}
    pack(history, 3000, RetainedEpochs(100))
    assert not any(1000 in each for each in history.epochs(1, 3000))


@pytest.mark.parametrize("back", [5, 9, 15, 31, 40, 255, 300])
def test_pack_cut_by_rewind_is_readable_after_downsampling(tmp_path: Path, back: int) -> None:
    history = packed_history(tmp_path, 320, 320)
    history.truncate(back)
    for epoch in range(back + 1, 2001):
        history.append(1, epoch, numbers(PAIRS, [((0, epoch), 1)]))
        if epoch % 64 == 0:
            pack(history, epoch, RetainedEpochs(2))
    pack(history, 2000, RetainedEpochs(2))
    kept = list(range(max(1, back - 49), back + 1))
    readable = [epoch for each in history.epochs(1, 2000) for epoch in each]
    assert 10 < len(readable) < 1000
    for epoch in readable:
        later = list(range(back + 1, epoch + 1))
        if epoch >= back:
            assert rows_at(history, epoch) == kept + later
    assert rows_at(history, 2000) == kept + list(range(back + 1, 2001))


STEPS = st.sampled_from([1, 16, 256])


@given(st.lists(st.tuples(st.integers(0, 40), STEPS), max_size=4), st.integers(0, 999), STEPS)
def test_common_epochs_are_in_both_lists(
    spans: list[tuple[int, int]], begin: int, step: int
) -> None:
    def aligned(lower: int, upper: int, step: int) -> range:
        return range(-(-(lower + 1) // step) * step - 1, upper, step)

    one: list[range] = []
    at = 0
    for width, grain in sorted(spans, key=lambda each: -each[1]):
        each = aligned(at, at + 256 * (width + 1), grain)
        one += [each] if each else []
        at += 256 * (width + 1)
    other = [each for each in [aligned(begin, 9000, step)] if each]
    both = pack_tree.common(one, other)
    wanted = {e for each in one for e in each} & {e for each in other for e in each}
    assert [e for each in both for e in each] == sorted(wanted)


def test_hidden_epochs_name_readable_neighbours(tmp_path: Path) -> None:
    history = packed_history(tmp_path, 30, 1000)
    history.start_at(1, 7)
    history.hide(1, 12, 20)
    assert [range(7, 12), range(20, 31)] == history.epochs(1, 30)
    with pytest.raises(TimeError) as caught:
        history.state(1, 15)
    assert "11 or 20" in str(caught.value.hint)
    with pytest.raises(TimeError) as caught:
        history.changes(1, 3, 25)
    assert str(caught.value.hint) == "read at 7, the nearest epochs"
    assert list(range(1, 26)) == rows_at(history, 25)
    again = History.restore(str(tmp_path / "history"), json.loads(json.dumps(history.manifest())))
    assert [range(7, 12), range(20, 31)] == again.epochs(1, 30)
    history.drop(1)
    assert history.state(1, 15) == []


@pytest.mark.fault(12)
def test_damage_is_found_by_read_and_scrubber(tmp_path: Path) -> None:
    history = packed_history(tmp_path, 40, 40)
    (name,) = history.files()
    path = tmp_path / "history" / name
    assert flaws_in(path) == []
    good = path.read_bytes()
    for at in range(0, len(good), 61):
        path.write_bytes(flipped(good, at))
        again = History.restore(str(tmp_path / "history"), history.manifest())
        with pytest.raises(CorruptLogError, match=name):
            again.state(1, 20)
    counts = [
        good[:-16] + n.to_bytes(8, "little") + good[-8:] for n in (1 << 20, 1 << 60, 2**64 - 1)
    ]
    for bad in [*counts, *(good[:cut] for cut in (0, 1, 8, 16, 64, len(good) - 8))]:
        path.write_bytes(bad)
        assert flaws_in(path)
        again = History.restore(str(tmp_path / "history"), history.manifest())
        with pytest.raises(CorruptLogError, match=name):
            again.state(1, 20)
    path.unlink()
    again = History.restore(str(tmp_path / "history"), history.manifest())
    with pytest.raises(CorruptLogError, match="missing"):
        again.state(1, 20)


@pytest.mark.parametrize(
    "hidden",
    [
        [[1, [[0, "3"]]]],
        [[1, [[0.0, 3]]]],
        [[1, [[3, 3]]]],
        [[1, [[-1, 3]]]],
        [["1", [[0, 3]]]],
        [[1, [[0, 3]]], [1, []]],
        [[True, [[0, 3]]]],
    ],
)
def test_hidden_epochs_in_manifest_are_validated(tmp_path: Path, hidden: Any) -> None:
    history = packed_history(tmp_path, 4, 4)
    good = history.manifest()
    assert History.restore(str(tmp_path / "history"), {**good, "hidden": [[1, [[0, 3]]]]})
    with pytest.raises(CorruptLogError, match="hides"):
        History.restore(str(tmp_path / "history"), {**good, "hidden": hidden})


@pytest.mark.fault(45)
def test_manifest_of_another_format_is_refused(tmp_path: Path) -> None:
    history = History.restore(str(tmp_path / "history"), None)
    with pytest.raises(CorruptLogError, match="format 99"):
        History.restore(str(tmp_path / "history"), {**history.manifest(), "format": 99})


@pytest.mark.fault(41)
def test_readers_never_wait_and_see_whole_epochs(tmp_path: Path) -> None:
    history = History.restore(str(tmp_path / "history"), None)
    done = threading.Event()
    reached = [0]
    wrong: list[Any] = []

    def read() -> None:
        random = np.random.default_rng(1)
        while not done.is_set():
            at = int(random.integers(0, reached[0] + 1))
            found = history.state(1, at)
            total = sum(int(b.diff.sum()) for b in found)
            if total != at:
                wrong.append((at, total))

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for epoch in range(1, 800):
        history.append(1, epoch, numbers(PAIRS, [((epoch % 3, 0), 1)]))
        reached[0] = epoch
        if epoch % 20 == 0:
            pack(history, epoch)
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []


@given(st.data())
def test_sections_number_rows_by_value_when_hashes_collide(data: st.DataObject) -> None:
    layout = data.draw(few_layouts)
    pool = data.draw(pools(layout.types))
    with weak_hashes(data.draw(st.sampled_from([1, 2]))):
        some: list[Batch] = []
        for _ in range(data.draw(st.integers(1, 5))):
            some.append(arrange(layout, data.draw(updates_of(layout.types, pool))))
        epochs, counts = [3, 17, 18, 19, 300][: len(some)], [*map(len, some)]
        section = sections.build_section(layout, 0, 400, epochs, counts, [b.updates for b in some])
        assert len({*map(repr, pool)}) >= len(section.columns[0])
        for lower, upper in [(0, 400), (0, 18), (3, 18), (16, 300), (18, 19), (17, 400)]:
            wanted = [
                b for e, b in zip([3, 17, 18, 19, 300], some, strict=False) if lower <= e < upper
            ]
            updates = section.updates(lower, upper)
            found = [] if updates is None else [arrange(layout, updates)]
            assert counted(wanted) == counted(found)


def test_rows_of_one_epoch_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(("bigint",), (0,))
    monkeypatch.setattr(rows, "hash_columns", lambda *_: pytest.fail("rows are hashed"))
    updates = Updates([np.array([7, 3, 5])], np.array([1, -2, 1]))
    section = sections.build_section(layout, 0, 40, [9], [3], [updates])
    read = section.updates(0, 40)
    assert read is not None
    assert [*zip(read.columns[0].tolist(), read.diff.tolist(), strict=True)] == [
        (7, 1),
        (3, -2),
        (5, 1),
    ]
    assert section.updates(0, 9) is None
    assert section.updates(10, 40) is None


@given(st.data())
def test_cover_is_disjoint_complete_and_small(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, 600))
    stop = data.draw(st.integers(start + 1, start + 1500))
    lower = data.draw(st.integers(0, 2200))
    upper = data.draw(st.integers(lower, 2300))
    shifts = (0, 4, 8, pack_tree.WHOLE)
    runs = pack_tree.cover(lower, upper, start, stop, shifts)
    assert runs is not None
    covered = sorted(
        e
        for shift, first, end in runs
        for e in range(max(start, first << shift), min(stop, end << shift))
    )
    assert covered == list(range(max(lower, start), min(upper, stop)))
    assert len(runs) <= 6
    assert sum(run.end - run.first for run in runs) <= 2 * 15 + 2 * 15 + 6


@given(st.data())
def test_neighbours_are_the_nearest_epochs(data: st.DataObject) -> None:
    spans = [(3, 40), (50, 60), (90, 200)]
    grains = [(0, 10, 16), (20, 130, 16), (130, 150, 1), (150, 180, 4)]
    ranges = pack_tree.readable(spans, grains)
    listed = [e for r in ranges for e in r]
    expected = [
        e
        for a, b in spans
        for e in range(a, b)
        if not any(lo <= e < hi and (e + 1) % g for lo, hi, g in grains)
    ]
    assert expected == listed
    at = data.draw(st.integers(0, 210))
    before = max((e for e in listed if e < at), default=None)
    after = min((e for e in listed if e > at), default=None)
    assert (before, after) == pack_tree.nearest_epochs(ranges, at)


def test_hint_names_no_future_epoch(tmp_path: Path) -> None:
    history = History(str(tmp_path / "history"))
    history.append(1, 3, numbers(PAIRS, [((0, 0), 1)]))
    history.hide(1, 0, 4)
    with pytest.raises(TimeError, match="epoch 2 is no longer retained") as caught:
        history.state(1, 2)
    assert caught.value.hint == "read at a later epoch"


def test_pack_without_known_digest_is_checked_against_itself(tmp_path: Path) -> None:
    name, size, digest = pack_file.write_pack(str(tmp_path), [], "x")
    content = (tmp_path / name).read_bytes()

    def read(offset: int, count: int) -> bytes:
        return content[offset : offset + count]

    def flaws(known: str | None) -> list[str]:
        return [flaw.why for flaw in file_damage(name, read, size, known)]

    assert flaws(None) == flaws(digest) == []
    assert len(flaws("0" * 32)) == 1


@pytest.mark.parametrize("count", [1, 2**40])
def test_pack_with_impossible_count_is_damaged(tmp_path: Path, count: int) -> None:
    words = np.array([0, 0, count, pack_file.MAGIC], np.uint64).tobytes()
    (tmp_path / "x.pack").write_bytes(words)
    with pytest.raises(CorruptLogError, match="its end is missing or overwritten"):
        pack_file.Pack(str(tmp_path), "x.pack", len(words), "")


@pytest.mark.parametrize("seed", range(8))
def test_written_pack_survives_power_loss(tmp_path: Path, seed: int) -> None:
    files = FaultyFiles(seed=seed)
    name, size, digest = pack_file.write_pack(str(tmp_path), [], "x", files=files)
    files.lose_power(str(tmp_path))
    assert pack_file.Pack(str(tmp_path), name, size, digest).numbers == set()
