"""Downsampling of history: every readable epoch is unchanged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from internals import archive_of, tree_of
from models.batch_model import Count, counted, nonzero, numbers
from soak import SOAK

from nosync_nb.files.filesystem import File, Files
from nosync_nb.trace.batch import Layout
from nosync_nb.trace.history import downsampling
from nosync_nb.trace.history.downsampling import RecutNode, RetainedEpochs
from nosync_nb.trace.history.history import History
from nosync_nb.trace.history.pack_tree import PackNode
from nosync_nb.trace.parts.part_file import write_parts

PAIRS = Layout(("bigint", "bigint"), (0,))


def tidy_all(history: History, keep: RetainedEpochs | None) -> int:
    """Packs and downsamples completely; returns the number of bytes written."""
    written = 0
    while (plan := history.tidy(keep)) is not None:
        packed = plan.perform(lambda: None)
        assert not history.loses(packed, keep)  # the plan retains them
        written += sum(node.size_bytes for node in packed.new if node.name in packed.files)
        assert history.adopt(packed)
    return written


def packed(history: History, upto: int) -> None:
    plan = history.pack(upto)
    if plan is not None:
        assert history.adopt(plan.perform(lambda: None))


def readable(history: History, trace: int, now: int) -> list[int]:
    found = [epoch for each in history.epochs(trace, now) for epoch in each]
    assert found == sorted(set(found))
    return found


class ThinnedPast:
    """Changes of two traces; the second one may get changes for packed epochs."""

    def __init__(self, folder: Path, seed: int) -> None:
        (folder / "layers").mkdir()
        self.random = Random(seed)
        self.history = History.restore(str(folder / "history"), None)
        self.changes: dict[int, list[tuple[int, Count]]] = {1: [], 2: []}
        self.now = 0

    def change(self, trace: int, epoch: int) -> None:
        """Adds and removes a few rows."""
        keys = [self.random.randrange(6) for _ in range(self.random.randint(1, 3))]
        batch = numbers(PAIRS, [((k, k % 2), self.random.choice([-1, 1, 2])) for k in keys])
        if len(batch) and self.random.random() < 0.3:
            refs = write_parts(archive_of(self.history).parts, [batch], "log")
            self.history.append_files(trace, epoch, PAIRS, refs)
        else:
            self.history.append(trace, epoch, batch)
        self.changes[trace].append((epoch, counted([batch])))

    def advance(self, count: int) -> None:
        for _ in range(count):
            self.now += 1
            self.change(1, self.now)

    def catch_up(self) -> None:
        """The second trace catches up."""
        last = self.changes[2][-1][0] if self.changes[2] else 0
        for epoch in range(last + 1, self.now + 1, self.random.choice([1, 3, 10])):
            self.change(2, epoch)

    def states(self, trace: int) -> Iterator[Count]:
        """The trace at each epoch from 0 on."""
        total: Count = Counter()
        changes = sorted(self.changes[trace], key=lambda each: each[0])
        for at in range(self.now + 1):
            while changes and changes[0][0] <= at:
                total.update(changes.pop(0)[1])
            yield nonzero(total)

    def rewind(self, to: int) -> None:
        self.history.truncate(to)
        self.now = to
        for trace, some in self.changes.items():
            self.changes[trace] = [each for each in some if each[0] <= to]

    def check(self) -> None:
        """Compares readable epochs and the changes between them with the model."""
        for trace in self.changes:
            epochs = readable(self.history, trace, self.now)
            assert epochs[-1] == self.now
            looked = {*self.random.sample(epochs, min(len(epochs), 60)), epochs[0], epochs[-1]}
            states = {at: each for at, each in enumerate(self.states(trace)) if at in looked}
            for at, state in states.items():
                assert counted(self.history.state(trace, at)) == state, (trace, at)
            after, upto = sorted(self.random.choices(sorted(looked), k=2))
            change = Counter(states[upto])
            change.subtract(states[after])
            assert counted(self.history.changes(trace, after, upto)) == nonzero(change)


STEPS = ["advance"] * 4 + ["pack"] * 3 + ["thin"] * 4 + ["pin", "unpin", "catch up", "rewind"]
BASE: list[Path] = []


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> object:
    """Skips syncs; sums of more than a few rows become files."""
    BASE.append(tmp_path_factory.mktemp("thinned"))
    with (
        mock.patch.object(File, "sync"),
        mock.patch.object(Files, "sync_folder"),
        mock.patch("nosync_nb.trace.history.pack_plans.LARGE", 5),
    ):
        yield


@settings(max_examples=400 if SOAK else 15)
@given(st.integers(0, 2**32 - 1), st.lists(st.sampled_from(STEPS), min_size=5, max_size=25))
def test_readable_epochs_are_unchanged_by_downsampling(seed: int, steps: list[str]) -> None:
    folder = BASE[0] / f"{seed}-{len(list(BASE[0].iterdir()))}"
    folder.mkdir()
    model = ThinnedPast(folder, seed)
    pins: set[int] = set()
    for step in steps:
        chance, history = model.random, model.history
        if step == "advance":
            model.advance(chance.choice([1, 5, 40, 150]))
        elif step == "catch up":
            model.catch_up()
        elif step == "pin":
            pins.add(chance.choice(readable(history, 1, model.now)))
        elif step == "unpin" and pins:
            pins.remove(chance.choice(sorted(pins)))
        elif step == "rewind":
            model.rewind(chance.choice(readable(history, 1, model.now)))
            pins = {epoch for epoch in pins if epoch <= model.now}
        elif step == "pack":
            packed(history, model.now - chance.choice([0, 0, 3]))
        elif step == "thin":
            single = chance.choice([1, 2, 10, 50])
            before = {epoch: readable(history, epoch, model.now) for epoch in model.changes}
            tidy_all(history, RetainedEpochs(single, frozenset(pins)))
            for trace, epochs in before.items():
                new = max(0, model.now + 1 - single)
                assert {e for e in epochs if e >= new} <= {*readable(history, trace, model.now)}
        assert pins <= {*readable(history, 1, model.now)}
        model.check()


def packed_past(folder: Path, count: int, every: int) -> ThinnedPast:
    """A history of `count` epochs, packed every `every` epochs."""
    model = ThinnedPast(folder, 1)
    for _ in range(count // every):
        model.advance(every)
        packed(model.history, model.now)
    return model


def test_pack_is_downsampled_in_its_old_part_only(tmp_path: Path) -> None:
    model = packed_past(tmp_path, 1000, 1000)
    tidy_all(model.history, RetainedEpochs(100))
    assert model.history.epochs(1, 1000) == [range(15, 896, 16), range(896, 1001)]
    model.check()


def test_pin_retains_only_its_epoch(tmp_path: Path) -> None:
    model = packed_past(tmp_path, 1000, 1000)
    tidy_all(model.history, RetainedEpochs(100, frozenset([500, 31])))
    epochs = readable(model.history, 1, 1000)
    assert 500 in epochs
    assert [e for e in epochs if e < 896] == sorted([500, *range(15, 896, 16)])
    tidy_all(model.history, RetainedEpochs(100))
    assert 500 not in readable(model.history, 1, 1000)
    model.check()


def test_intervals_grow_and_packs_shrink_in_number(tmp_path: Path) -> None:
    model = packed_past(tmp_path, 6000, 50)
    before = len(model.history.files())
    tidy_all(model.history, RetainedEpochs(2))
    steps = {each.step for each in model.history.epochs(1, 6000)}
    assert 4096 in steps
    assert len(readable(model.history, 1, 6000)) < 80
    assert len(model.history.files()) < before / 4
    model.check()


def test_bytes_written_by_downsampling_follow_history(tmp_path: Path) -> None:
    model, written, made = ThinnedPast(tmp_path, 1), 0, 0
    for _ in range(60):
        model.advance(37)
        packed(model.history, model.now)
        made += tree_of(model.history)[-1].size_bytes
        written += tidy_all(model.history, RetainedEpochs(20))
    assert written < 3 * made
    assert tidy_all(model.history, RetainedEpochs(20)) == 0


def test_number_of_packs_follows_readable_epochs(tmp_path: Path) -> None:
    """Packs of which downsampling left one group must not all stay files."""
    model = ThinnedPast(tmp_path, 1)
    for _ in range(240):
        model.advance(16)
        packed(model.history, model.now)
        tidy_all(model.history, RetainedEpochs(64))
    nodes = [node for top in tree_of(model.history) for node in top.walk()]
    assert 3 * len(nodes) < len(readable(model.history, 1, model.now))
    model.check()


def test_recut_never_loses_epochs_to_be_retained() -> None:
    leaf = PackNode("a", 1, "", 0, 100, 100)
    (found,) = downsampling.recut_nodes([leaf], 200, RetainedEpochs(10, frozenset([50])))
    assert not downsampling.would_lose(found, 200, RetainedEpochs(10, frozenset([50])))
    assert not downsampling.would_lose(found, 230, RetainedEpochs(10, frozenset()))
    assert downsampling.would_lose(found, 200, RetainedEpochs(10, frozenset([50, 51])))
    assert downsampling.would_lose(found, 200, RetainedEpochs(110))
    assert downsampling.would_lose(found, 200, None)
    coarse = leaf._replace(grain=16)
    again = RecutNode(coarse, (downsampling.PackFragment(0, 100, 256),))
    assert not downsampling.would_lose(again, 20_000, RetainedEpochs(10, frozenset([50])))
    assert downsampling.would_lose(again, 20_000, RetainedEpochs(10, frozenset([31])))


def test_sum_of_downsampled_leaves_is_recut_as_a_whole() -> None:
    ends = [*range(0, 1024 + 1, 64), 1040]
    leaves = [PackNode(f"{a}", 1, "", a, b, b, grain=16) for a, b in pairwise(ends)]
    whole = PackNode("sum", 1, "", 0, 1040, 1040, 1, children=tuple(leaves))
    (found,) = downsampling.recut_nodes([whole], 1039, RetainedEpochs(1))
    assert found.old is whole
    assert found.pieces[-1] == (1024, 1040, 16)
    assert len(found.pieces) > 1


def test_late_changes_of_rewound_epochs_are_downsampled(tmp_path: Path) -> None:
    model = packed_past(tmp_path, 100, 100)
    model.advance(1)
    model.catch_up()
    packed(model.history, model.now)
    model.rewind(100)
    model.check()
    model.advance(400)
    packed(model.history, model.now)
    tidy_all(model.history, RetainedEpochs(10))
    tidy_all(model.history, RetainedEpochs(1))
    tidy_all(model.history, RetainedEpochs(300))
    model.check()
