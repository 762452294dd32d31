"""Rewinds to recent epochs: later changes are subtracted, and nothing is recomputed."""

from __future__ import annotations

import atexit
import shutil
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from faults.faults import Crash, FaultyFiles, HastyFiles, Phase, on_disk
from internals import checkpoint_now, log_of, merge_trace, services_of, traces_of

import nosync_nb
from nosync_nb import Session
from nosync_nb.files.filesystem import Files
from nosync_nb.session.state.worker import BackgroundWorker
from nosync_nb.session.timetravel import rewind
from nosync_nb.store import point_in_time, store
from nosync_nb.store.log import Log, checkpoint, segments, writer
from nosync_nb.store.log.frame_index import retained_frames
from nosync_nb.store.store import Store

NAMES = ("edges", "counts", "pairs", "named")
ROWS = 3000


pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def no_background_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Disables the background worker: the tests merge and take checkpoints themselves."""
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "key"))
    monkeypatch.setattr(BackgroundWorker, "submit", lambda *_, **__: False)
    monkeypatch.setattr(store, "SPILL_BYTES", 1 << 12)


def define_stages(folder: Path) -> Session:
    session = nosync_nb.open(folder)
    edges = session.input("edges", "src long, dst long")
    names = session.input("names", "dst long, name string", key="dst")
    names.upsert([(i, f"n{i % 5}") for i in range(40)])
    edges.insert([(i % 50, i % 40) for i in range(ROWS)])
    session.stage("counts", edges.group_by("src").agg(n="count(*)", most="max(dst)"))
    session.stage("pairs", edges.filter("src > 0").distinct())
    session.stage("named", edges.join(names, on="dst").select("src", "name").distinct())
    session.commit()
    return session


def commit(session: Session) -> None:
    """Commits the next epoch; its changes depend on its number alone."""
    i = session.now + 1
    session.inputs["edges"].insert([(i % 50, 100 + i), (3, i % 40)])
    session.inputs["edges"].remove([(i % 50, i % 40 if i % 2 else i % 50 % 40)])
    session.inputs["names"].upsert([(i % 40, f"m{i % 7}")])
    session.commit()


def merge_and_checkpoint(session: Session) -> None:
    """Merges all traces and takes a checkpoint."""
    for number in list(traces_of(session)):
        merge_trace(session, number)
    checkpoint_now(session)


def contents(session: Session, at: int | None = None) -> dict[str, list[Any]]:
    return {name: sorted(session[name].rows(at=at)) for name in NAMES}


def check_later_epochs(session: Session, by_epoch: dict[int, dict[str, list[Any]]]) -> None:
    """Commits all undone epochs again, and compares each with the first time."""
    assert contents(session) == by_epoch[session.now]
    for epoch in range(session.now + 1, max(by_epoch) + 1):
        commit(session)
        assert contents(session) == by_epoch[epoch], epoch


@pytest.fixture
def by_epoch() -> dict[int, dict[str, list[Any]]]:
    return {}


@pytest.fixture
def log(tmp_path: Path, by_epoch: dict[int, dict[str, list[Any]]]) -> Path:
    """A closed log of 25 epochs with checkpoints at epochs 9 and 23."""
    with define_stages(tmp_path / "log") as session:
        for _ in range(24):
            by_epoch[session.now] = contents(session)
            if session.now in (9, 23):
                merge_and_checkpoint(session)
            commit(session)
        by_epoch[session.now] = contents(session)
    return tmp_path / "log"


@pytest.mark.parametrize("to", [24, 22, 10, 2])
def test_first_epoch_after_rewind_touches_as_many_rows_as_before(tmp_path: Path, to: int) -> None:
    with define_stages(tmp_path / "log") as session:
        touched: dict[int, int] = {}

        def counted() -> int:
            before = session.stats["touched"]
            commit(session)
            return session.stats["touched"] - before

        while session.now < 25:
            touched[session.now + 1] = counted()
            if session.now % 9 == 0:
                merge_and_checkpoint(session)
        assert session.rewind(to=to).remade == ()
        again = counted()
        assert again <= 2 * touched[to + 1]
        assert again < ROWS / 10, "a recomputation touches every row"


@pytest.mark.parametrize("to", [24, 20, 11, 5, 2])
def test_opening_after_rewind_needs_no_frame_before_its_checkpoint(
    log: Path, by_epoch: dict[int, dict[str, list[Any]]], to: int
) -> None:
    with nosync_nb.open(log) as session:
        assert session.rewind(to=to).remade == ()
        with nosync_nb.open(log, takeover=True) as opened:
            assert log_of(opened).checkpoint_seq > 0
            assert contents(opened) == by_epoch[to]
            before = opened.stats["touched"]
            commit(opened)
            assert opened.stats["touched"] - before < ROWS / 10
            check_later_epochs(opened, by_epoch)
            assert opened.verify().whole


def delete_old_segments(folder: Path) -> int:
    """Deletes the segments before the newest checkpoint of a log; returns their number."""
    names = Files().names(str(folder))
    marks = [
        checkpoint.mark_of((folder / name).read_bytes())
        for name in checkpoint.checkpoint_names(names)
    ]
    newest, oldest = marks[0], marks[-1]
    assert newest is not None
    assert oldest is not None
    live = segments.linked_segments(Files(), str(folder), names, since=oldest.offset).live
    old = [one for one, after in pairwise(live) if after.start.offset <= newest.offset]
    for each in old:
        (folder / each.name).unlink()
    return len(old)


def commit_with_checkpoints(session: Session, by_epoch: dict[int, dict[str, list[Any]]]) -> None:
    """Commits 32 epochs with a checkpoint after each tenth, and records them in `by_epoch`."""
    while session.now < 32:
        by_epoch[session.now] = contents(session)
        if session.now in (10, 20, 30):
            merge_and_checkpoint(session)
        commit(session)
    by_epoch[session.now] = contents(session)


@pytest.mark.parametrize("to", [28, 24, 21])
def test_opening_after_rewind_needs_no_trimmed_frames(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    by_epoch: dict[int, dict[str, list[Any]]],
    to: int,
) -> None:
    for place in (segments, writer):
        monkeypatch.setattr(place, "SEGMENT_BYTES_MAX", 1 << 10)
    with define_stages(tmp_path / "log") as session:
        commit_with_checkpoints(session, by_epoch)
        assert session.rewind(to=to).remade == ()
        shutil.copytree(tmp_path / "log", tmp_path / "copy")
        assert delete_old_segments(tmp_path / "copy")
        with nosync_nb.open(tmp_path / "copy", takeover=True) as opened:
            check_later_epochs(opened, by_epoch)


def test_repeated_rewinds_equal_one_rewind(
    log: Path, by_epoch: dict[int, dict[str, list[Any]]]
) -> None:
    with nosync_nb.open(log) as session:
        for to, more in ((20, 2), (18, 3), (21, 0), (15, 4), (19, 1), (12, 0), (6, 0)):
            assert session.rewind(to=to).remade == (), to
            for _ in range(more):
                commit(session)
            assert contents(session) == by_epoch[to + more]
        shutil.copytree(log, log.parent / "copy")
        check_later_epochs(session, by_epoch)
    with nosync_nb.open(log.parent / "copy", takeover=True) as opened:
        check_later_epochs(opened, by_epoch)
        assert opened.verify().whole


def test_rewinds_between_merges_and_checkpoints(
    log: Path, by_epoch: dict[int, dict[str, list[Any]]]
) -> None:
    with nosync_nb.open(log) as session:
        session.rewind(to=20)
        for _ in range(2):
            commit(session)
        merge_and_checkpoint(session)
        assert session.rewind(to=17).remade == ()
        with nosync_nb.open(log, takeover=True) as opened:
            assert opened.rewind(to=14).remade == ()
            merge_and_checkpoint(opened)
            with nosync_nb.open(log, takeover=True) as again:
                check_later_epochs(again, by_epoch)


def test_rewind_of_large_changes_reruns_operators(
    log: Path, by_epoch: dict[int, dict[str, list[Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewind, "UNDONE_BYTES", 100)
    with nosync_nb.open(log) as session:
        before = log_of(session).head.offset
        rewound = session.rewind(to=12)
        assert rewound.remade
        position = services_of(session).publisher.position
        assert position is not None
        payload = log_of(session).read(position).payload
        assert log_of(session).head.offset - before < len(payload) + 200
        with nosync_nb.open(log, takeover=True) as opened:
            check_later_epochs(opened, by_epoch)


def test_rewind_frame_grows_with_undone_changes_not_with_state(log: Path) -> None:
    with nosync_nb.open(log) as session:
        before = log_of(session).head.offset
        session.rewind(to=24)
        one = log_of(session).head.offset - before
        commit(session)
        before = log_of(session).head.offset
        session.rewind(to=15)
        ten = log_of(session).head.offset - before
        assert one < ten < one + 10 * 2000


@pytest.mark.parametrize("phase", ["before", "inside", "after"])
def test_crash_in_rewind_behind_a_checkpoint_leaves_all_or_nothing(
    log: Path,
    by_epoch: dict[int, dict[str, list[Any]]],
    monkeypatch: pytest.MonkeyPatch,
    phase: Phase,
) -> None:
    opened = Store.open

    def on(disk: Files, folder: Path) -> Session:
        with monkeypatch.context() as patch:
            patch.setattr(Store, "open", on_disk(opened, disk))
            patch.setattr(Log, "open", partial(Log.open, background=False))
            session = nosync_nb.open(folder, takeover=True)
        atexit.unregister(session.close)
        return session

    def died(at: int, act: Callable[[Session], Any]) -> bool:
        folder = log.parent / f"{phase}{at}"
        shutil.copytree(log, folder)
        disk = FaultyFiles(seed=at)
        session = on(disk, folder)
        disk.crash_in(at, phase)
        try:
            act(session)
            return False
        except Crash:
            return True
        finally:
            disk.go_on()
            with on(HastyFiles(), folder) as again:
                assert again.now in (21, 25), at
                assert contents(again) == by_epoch[again.now], at
                gone.add(again.now)
                commit(again)
                assert (
                    contents(again)["counts"] == by_epoch.get(again.now, contents(again))["counts"]
                )
            shutil.rmtree(folder)

    gone: set[int] = set()
    at = 1
    while died(at, lambda session: session.rewind(to=21)):
        at += 1
    assert at > 20
    assert gone == {21, 25}


def test_stage_without_epochs_after_rewind_can_be_redefined(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        data = session.input("data", "k int, v int")
        for epoch in range(1, 6):
            data.insert([(epoch % 2, epoch)])
            session.commit()
        session.stage("some", data.select("k", "v"))
        session.stage("sums", session["some"].group_by("k").agg(total="sum(v)"))
        session.stage("some", data.select("k"))
        session.rewind(to=2)
        assert "sums" in session.stale
        session.stage("many", session["data"].filter("v > 1"))
        assert [tuple(row) for row in session["many"].rows()] == [(0, 2)]
        session.stage("some", session["data"].select("k", "v"))
        assert sorted(tuple(row) for row in session["sums"].rows()) == [(0, 2), (1, 1)]


@pytest.mark.parametrize("to", [2, 3])
def test_rewind_to_epochs_that_cancel_out_behind_a_checkpoint(tmp_path: Path, to: int) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        names = session.input("names", "k int, name string", key="k")
        names.upsert([(k, "a") for k in range(ROWS)])
        session.stage("some", names.filter("k < 3").distinct())
        session.commit()
        merge_and_checkpoint(session)
        for name in "bca":
            names.upsert([(1, name)])
            session.commit()
        merge_and_checkpoint(session)
    expected = [(0, "a"), (1, " abc"[to]), (2, "a")]
    with nosync_nb.open(tmp_path / "log") as session:
        with session.branch("then", at=to) as branch:
            assert sorted(branch["some"].rows()) == expected
            assert sorted(branch["names"].rows(limit=3)) == expected
        session.rewind(to=to)
        assert sorted(session["some"].rows()) == expected
    with nosync_nb.open(tmp_path / "log") as session:
        assert sorted(session["some"].rows()) == expected
        assert sorted(session["names"].rows(limit=3)) == expected
        session.inputs["names"].upsert([(1, "z")])
        session.commit()
        assert sorted(session["some"].rows()) == [(0, "a"), (1, "z"), (2, "a")]


def test_rewind_reads_no_frames_that_lack_its_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_epoch: dict[int, dict[str, list[Any]]]
) -> None:
    """Undone frames count from the epoch where they begin, as far as they are retained."""
    monkeypatch.setattr(writer, "SEGMENT_BYTES_MAX", 1 << 10)
    monkeypatch.setattr(writer, "NEAR_FRAMES", 4)
    monkeypatch.setattr(segments, "NEAR_FRAMES", 4)
    read: list[int] = []

    def counted(*args: Any) -> Any:
        frames = retained_frames(*args)
        read.append(len(frames))
        return frames

    with define_stages(tmp_path / "log") as session:
        commit_with_checkpoints(session, by_epoch)
        monkeypatch.setattr(point_in_time, "retained_frames", counted)
        for to, told in ((31, True), (8, False), (8, False), (7, False), (6, False)):
            read.clear()
            session.rewind(to=to)
            assert bool(read) == told, to
            assert contents(session) == by_epoch[to]
        commit(session)
        commit(session)
        read.clear()
        session.rewind(to=7)  # these frames are retained, although older ones have later epochs
        assert read
        assert contents(session) == by_epoch[7]
        check_later_epochs(session, by_epoch)
