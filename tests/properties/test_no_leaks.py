"""Leaks: entries, layers, descriptors, threads and names do not grow without the state."""

from __future__ import annotations

import gc
import os
import random
import threading
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from checks.growth import entries, grown
from hypothesis import given
from hypothesis import strategies as st
from internals import checkpoint_now, kernel_identities, services_of, settle_background, traces_of

import nosync_nb
from nosync_nb.collections.functions import closure
from nosync_nb.store import store
from nosync_nb.store.durability import EpochOffsets
from nosync_nb.store.log import batch_codec
from nosync_nb.trace import compaction
from nosync_nb.trace.compaction import LAYERS_MAX

pytestmark = pytest.mark.usefixtures("no_disk")


# -- durable epochs --------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=40))
def test_durable_epoch_is_that_of_last_durable_frame(steps: list[tuple[bool, int]]) -> None:
    written, frames, seq, epoch, durable = EpochOffsets(7), [], 20, 7, 0
    for is_epoch, synced in steps:
        seq += 1
        epoch += is_epoch
        if is_epoch:
            written.note(seq, epoch, durable)
            frames.append((seq, epoch))
        durable = max(durable, seq - 3 + synced)
        for at in range(durable, seq + 1):
            assert max((e for s, e in frames if s <= at), default=7) == written.upto(at)


def test_epoch_offsets_stay_bounded_without_readers() -> None:
    written = EpochOffsets()
    for epoch in range(1, 1000):
        written.note(2 * epoch, epoch, 2 * epoch - 2)  # a definition between each two of them
    assert len(written) <= 2
    assert [written.upto(seq) for seq in (1996, 1998, 5000)] == [998, 999, 999]


# -- unused descriptions and functions -------------------------------------------------------------


def test_rerun_cell_leaves_no_description(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        flights = session.input("flights", "carrier string, delay double")
        for _ in range(20):
            slow = flights.filter("delay > 60")
            slow.select("carrier").inspect(print)  # never named
            session.define({"slow": slow})
        gc.collect()
        assert len(services_of(session).publisher.definition_names) <= 2
        assert not services_of(session).subscriptions.unnamed_inspectors
        assert slow.name == "slow"


def test_name_is_known_while_stage_is_defined(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        flights = session.input("flights", "carrier string, delay double")
        slow = flights.filter("delay > 60")
        session.define({"slow": slow})
        session.rename("slow", "late")
        assert slow.name == "late"
        session.drop("late")
        assert slow.name is None
        assert not services_of(session).metrics.stages


class _KernelCallable:
    """A callable whose identity is valid in this kernel only."""

    def __init__(self) -> None:
        self.lock = object()

    def __call__(self, row: Any) -> bool:
        return bool(row)


def test_identity_of_collected_function_is_not_reused() -> None:
    before = kernel_identities()
    names = set()
    for _ in range(50):
        function = _KernelCallable()
        name = closure.kernel_identity(function)
        assert name == closure.kernel_identity(function)
        names.add(name)
    del function
    gc.collect()
    assert len(names) == 50
    assert kernel_identities() <= before


# -- listeners -------------------------------------------------------------------------------------


def test_failing_listener_is_reported_once_per_error_type(tmp_path: Path) -> None:
    def raises(epoch: int, *_: Any) -> None:
        raise ValueError(epoch) if epoch < 20 else KeyError(epoch)

    with nosync_nb.open(tmp_path / "log") as session:
        numbers = session.input("numbers", "n bigint")
        numbers.inspect(raises)
        session.subscribe(raises)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for n in range(40):
                numbers.insert([(n,)])
                session.commit()
    assert len(caught) == 4


def test_unsubscribing_listener_takes_no_epoch_from_others(tmp_path: Path) -> None:
    heard: list[int] = []
    with nosync_nb.open(tmp_path / "log") as session:
        stop = session.subscribe(lambda _: stop())
        session.subscribe(heard.append)
        session.commit()
        session.commit()
    assert heard == [1, 2]


# -- checkpoints -----------------------------------------------------------------------------------


def test_checkpoint_encodes_only_changes_since_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []
    encode = batch_codec.encode_batch

    def counting(columns: Any, types: Any, diff: Any) -> bytes:
        encoded.append(len(diff))
        return encode(columns, types, diff)

    def checkpoint() -> int:
        encoded.clear()
        checkpoint_now(session)
        return len(encoded)

    with nosync_nb.open(tmp_path / "log") as session:
        numbers = session.input("numbers", "k bigint, v bigint")
        for k in range(20):
            session.stage(f"of_{k}", numbers.filter(f"k = {k}"))
        numbers.insert([(k, k) for k in range(20)])
        session.commit()
        monkeypatch.setattr(batch_codec, "encode_batch", counting)
        assert checkpoint() >= 20
        assert checkpoint() == 0
        numbers.insert([(3, 1)])
        session.commit()
        encoded.clear()
        assert checkpoint() <= 2  # of the input and of one stage


def test_large_value_is_in_one_file_named_by_checkpoints(tmp_path: Path) -> None:
    text = "many bytes " * 100_000
    path = tmp_path / "log"
    with nosync_nb.open(path) as session:
        texts = session.input("texts", "k bigint, v string")
        session.stage("longest", texts.group_by("k").agg(v="max(v)"))
        texts.insert([(0, text)])
        session.commit()
        settle_background(session)
        checkpoint_now(session)
        files = set(path.glob("layers/*"))
        assert all(path.stat().st_size > len(text) for path in files)
        for k in range(1, 40):
            texts.insert([(k, "short")])
            session.commit()
            settle_background(session)
            if k % 10 == 0:
                checkpoint_now(session)
                newest = max(path.glob("checkpoint-*"))
                assert newest.stat().st_size < 20_000
        assert set(path.glob("layers/*")) == files
        expected = session["longest"].rows()
    with nosync_nb.open(path) as session:
        assert session.recovery.recomputed == 0
        assert session["longest"].rows() == expected
        assert session["texts"].rows(limit=1)[0].v == text


@pytest.mark.parametrize("ended", [True, False])
def test_value_too_large_for_frame_is_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    """It is not repeated in the frame, the pack and a layer, and is read back unchanged."""
    for bound in ("FRAME_BYTES", "SPILL_BYTES", "SETTLED_BYTES"):
        monkeypatch.setattr(store, bound, 1000)
    path = tmp_path / "log"
    text = "many bytes " * 1000
    session = nosync_nb.open(path)
    texts = session.input("texts", "k bigint, v string, raw binary, more array<string>")
    session.stage("longest", texts.group_by("k").agg(v="max(v)"))
    session.stage("pairs", texts.join(texts.rename({"v": "w"}).select("k", "w"), on="k"))
    texts.insert([(0, "", None, None)])
    session.commit()
    at = dict.fromkeys(["texts", "longest", "pairs"])
    past = {}
    for row in [(1, text, None, None), (2, "", text.encode(), None), (3, None, b"", [text] * 2)]:
        texts.insert([row, (row[0], "beside", b"x", [])])
        frames = sum(each.stat().st_size for each in path.glob("segment-*"))
        assert session.commit()
        frames = sum(each.stat().st_size for each in path.glob("segment-*")) - frames
        assert frames < 5000
        past[session.now] = {name: sorted(map(repr, session[name].rows())) for name in at}
    held = {n: len(t.consolidated()) for n, t in traces_of(session).items()}
    assert {each.name for each in path.glob("layers/*")} <= services_of(
        session
    ).publisher.named_files
    settle_background(session)
    if ended:
        checkpoint_now(session)
        session.close()
        assert max(path.glob("checkpoint-*")).stat().st_size < 20_000
    for mode in ("r", "w"):
        with nosync_nb.open(path, mode=mode, takeover=mode == "w") as again:  # type: ignore[arg-type]
            for epoch, expected in past.items():
                for name, found in expected.items():
                    assert sorted(map(repr, again[name].rows(at=epoch))) == found
            if mode == "w":
                services_of(again).writer_lock.run_pre_write_tasks()
                assert again.recovery.recomputed == 0
                assert {n: len(t.consolidated()) for n, t in traces_of(again).items()} == held
                again["texts"].remove([(1, text, None, None)])
                again.commit()
                assert [r.v for r in again["longest"].rows() if r.k == 1] == ["beside"]
    if not ended:
        session.close()


def test_small_epochs_measure_no_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> int:
        raise AssertionError("an epoch of few bytes was measured")

    monkeypatch.setattr(store, "size_bytes", never)
    with nosync_nb.open(tmp_path / "log") as session:
        texts = session.input("texts", "k bigint, v string")
        for k in range(10):
            texts.insert([(k, "short")])
            session.commit()


def test_values_moved_to_files_are_read_after_next_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SPILL_BYTES", 400)
    monkeypatch.setattr(store, "SETTLED_BYTES", 100)
    chance = random.Random(3)
    for life in range(6):
        with nosync_nb.open(tmp_path / "log") as session:
            numbers = session.input("numbers", "k bigint, v bigint")
            session.stage("sums", numbers.group_by("k").agg(s="sum(v)", top="max(v)"))
            for _ in range(30):
                numbers.insert([(chance.randrange(9), chance.randrange(99)) for _ in range(5)])
                session.commit()
                if chance.random() < 0.4:
                    checkpoint_now(session)
            rows = numbers.rows()
            assert len(rows) == 150 * (life + 1)
            sums: dict[int, int] = {}
            for row in rows:
                sums[row.k] = sums.get(row.k, 0) + row.v
            assert {row.k: row.s for row in session["sums"].rows()} == sums
            named = services_of(session).publisher.named_files
        there = {each.name for each in (tmp_path / "log" / "layers").iterdir()}
        assert {name for name in named if name.endswith(".arrow")} <= there


# -- thousands of epochs ---------------------------------------------------------------------------

PHASE = 480
GROWS = {  # by design: a number for each epoch, and the packs that hold them
    "ledger._times": PHASE,
    "snapshot.history._view.tree": 16,
    "store.history._view.tree": 16,
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints, packs, merges, segments and files of few rows; few files are kept open."""
    monkeypatch.setattr("nosync_nb.store.log.checkpoint.FRAMES_MAX", 48)
    monkeypatch.setattr("nosync_nb.store.log.segments.SEGMENT_BYTES_MAX", 32 << 10)
    monkeypatch.setattr("nosync_nb.store.log.writer.SEGMENT_BYTES_MAX", 32 << 10)
    monkeypatch.setattr("nosync_nb.trace.history.archive.OPEN_MAX", 4)
    monkeypatch.setattr("nosync_nb.store.log.frame_index._OPEN_FILES_MAX", 4)
    monkeypatch.setattr(compaction, "INLINE_ROWS", 64)
    monkeypatch.setattr(compaction, "YOUNG_ROWS", 16)
    monkeypatch.setattr(compaction, "JOINED_MAX", 8)
    monkeypatch.setattr(store, "SETTLED_BYTES", 1000)


class Life:
    """A session in use: it changes and is read, and its rows stay of one size."""

    def __init__(self, session: nosync_nb.Session) -> None:
        self.session = session
        self.left = session.input("left", "k bigint, v bigint")
        self.right = session.input("right", "k bigint, w bigint", key="k")
        self.define()
        self.epoch = 0
        self.held = [(n % 8, n) for n in range(32)]
        self.left.insert(self.held)

    def define(self) -> None:
        """Defines everything again, like a rerun cell."""
        left, right = self.left, self.right
        by_key = left.group_by("k")
        self.session.define(
            {
                "sums": by_key.agg(n="count(*)", s="sum(v)", m="max(v)"),
                "pairs": left.join(right, on="k", how="left"),
                "best": by_key.top(2, by="v desc"),
                "sizes": by_key.reduce(_size, "n bigint"),
            }
        )

    def run(self, epochs: int) -> None:
        """Commits epochs, and sometimes reads, listens and defines."""
        session = self.session
        for _ in range(epochs):
            at = self.epoch % len(self.held)
            row = (self.held[at][0], self.held[at][1] + 32)
            self.left.remove([self.held[at]])
            self.left.insert([row])
            self.held[at] = row
            if self.epoch % 10 == 0:
                self.right.upsert([(self.epoch % 8, self.epoch)])
            session.commit()
            self.epoch += 1
            if self.epoch % 48 == 0:
                self.look()
            settle_background(session)

    def look(self) -> None:
        session = self.session
        stop = session.subscribe(lambda epoch: None)
        assert len(session["pairs"].rows()) == len(self.held)
        session["sums"].rows(at=-5)
        session["best"].changes(after=session.now - 7, upto=session.now)
        session["sizes"].head(3)
        session.epochs()[-1]
        session["sums"].history()
        session.info.layers("pairs")
        session["sums"].explain()
        self.left.filter("v > 3").count()
        self.define()
        stop()


def _size(key: Any, rows: Any) -> Any:
    return [(len(rows),)]


@pytest.mark.fault(46)
def test_thousands_of_epochs_leave_session_size_unchanged(tmp_path: Path, small: None) -> None:
    def size() -> tuple[Counter[str], int, int]:
        settle_background(session)
        gc.collect()
        descriptors = len(os.listdir("/proc/self/fd"))
        return entries(session), descriptors, threading.active_count()

    with nosync_nb.open(tmp_path / "log") as session:
        life = Life(session)
        life.run(PHASE)
        before, *others = size()
        life.run(PHASE)
        after, *others_after = size()
        layers = [len(trace.layers) for trace in traces_of(session).values()]
        checkpoints = session.stats["checkpoints"]
    more = grown(before, after, spare=64)
    by_design = {place: n for end, n in GROWS.items() for place in more if place.endswith(end)}
    assert {place: n for place, n in more.items() if n > by_design.get(place, 0)} == {}
    assert others_after <= others
    assert max(layers) <= LAYERS_MAX
    assert checkpoints > PHASE // 48
    files = [path for path in (tmp_path / "log").rglob("*") if path.is_file()]
    assert len(files) < 3 * PHASE // 48 + 64
