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
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The worker does nothing: tests merge and make checkpoints."""
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "key"))
    monkeypatch.setattr(BackgroundWorker, "submit", lambda *_, **__: False)
    monkeypatch.setattr(store, "SPILL_BYTES", 1 << 12)


def defined(folder: Path) -> Session:
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
    """The next epoch: what it does depends on its number alone."""
    i = session.now + 1
    session.inputs["edges"].insert([(i % 50, 100 + i), (3, i % 40)])
    session.inputs["edges"].remove([(i % 50, i % 40 if i % 2 else i % 50 % 40)])
    session.inputs["names"].upsert([(i % 40, f"m{i % 7}")])
    session.commit()


def settled(session: Session) -> None:
    """All is merged that may be, and a checkpoint made of it."""
    for number in list(traces_of(session)):
        merge_trace(session, number)
    checkpoint_now(session)


def contents(session: Session, at: int | None = None) -> dict[str, list[Any]]:
    return {name: sorted(session[name].rows(at=at)) for name in NAMES}


def gone_on(session: Session, was: dict[int, dict[str, list[Any]]]) -> None:
    """Commits all epochs again that there were, each as it was the first time."""
    assert contents(session) == was[session.now]
    for epoch in range(session.now + 1, max(was) + 1):
        commit(session)
        assert contents(session) == was[epoch], epoch


@pytest.fixture
def was() -> dict[int, dict[str, list[Any]]]:
    return {}


@pytest.fixture
def log(tmp_path: Path, was: dict[int, dict[str, list[Any]]]) -> Path:
    """A log of 25 epochs whose checkpoint is of the last but two, closed."""
    with defined(tmp_path / "log") as session:
        for _ in range(24):
            was[session.now] = contents(session)
            if session.now in (9, 23):
                settled(session)
            commit(session)
        was[session.now] = contents(session)
    return tmp_path / "log"


@pytest.mark.parametrize("to", [24, 22, 10, 2])
def test_the_first_epoch_after_it_touches_what_it_touched_the_first_time(
    tmp_path: Path, to: int
) -> None:
    with defined(tmp_path / "log") as session:
        touched: dict[int, int] = {}

        def counted() -> int:
            before = session.stats["touched"]
            commit(session)
            return session.stats["touched"] - before

        while session.now < 25:
            touched[session.now + 1] = counted()
            if session.now % 9 == 0:
                settled(session)
        assert session.rewind(to=to).remade == ()
        again = counted()
        assert again <= 2 * touched[to + 1]
        assert again < ROWS / 10, "to make it anew touches every row"


@pytest.mark.parametrize("to", [24, 20, 11, 5, 2])
def test_who_opens_the_log_needs_no_frame_before_its_checkpoint(
    log: Path, was: dict[int, dict[str, list[Any]]], to: int
) -> None:
    with nosync_nb.open(log) as session:
        assert session.rewind(to=to).remade == ()
        with nosync_nb.open(log, takeover=True) as opened:
            assert log_of(opened).checkpoint_seq > 0
            assert contents(opened) == was[to]
            before = opened.stats["touched"]
            commit(opened)
            assert opened.stats["touched"] - before < ROWS / 10
            gone_on(opened, was)
            assert opened.verify().whole


def trimmed(folder: Path) -> int:
    """Deletes the segments of a log before its newest checkpoint; returns how many."""
    names = Files().names(str(folder))
    marks = [
        checkpoint.mark_of((folder / name).read_bytes())
        for name in checkpoint.checkpoint_names(names)
    ]
    newest, oldest = marks[0], marks[-1]
    assert newest is not None
    assert oldest is not None
    live = segments.linked_segments(Files(), str(folder), names, since=oldest.offset).live
    gone = [one for one, after in pairwise(live) if after.start.offset <= newest.offset]
    for each in gone:
        (folder / each.name).unlink()
    return len(gone)


def checkpointed(session: Session, was: dict[int, dict[str, list[Any]]]) -> None:
    """Commits 32 epochs, with a checkpoint after each tenth; `was` tells what they were."""
    while session.now < 32:
        was[session.now] = contents(session)
        if session.now in (10, 20, 30):
            settled(session)
        commit(session)
    was[session.now] = contents(session)


@pytest.mark.parametrize("to", [28, 24, 21])
def test_frames_that_were_trimmed_since_are_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was: dict[int, dict[str, list[Any]]], to: int
) -> None:
    for place in (segments, writer):
        monkeypatch.setattr(place, "SEGMENT_BYTES_MAX", 1 << 10)
    with defined(tmp_path / "log") as session:
        checkpointed(session, was)
        assert session.rewind(to=to).remade == ()
        shutil.copytree(tmp_path / "log", tmp_path / "copy")
        assert trimmed(tmp_path / "copy")
        with nosync_nb.open(tmp_path / "copy", takeover=True) as opened:
            gone_on(opened, was)


def test_going_back_again_and_again_is_one_way_back(
    log: Path, was: dict[int, dict[str, list[Any]]]
) -> None:
    with nosync_nb.open(log) as session:
        for to, more in ((20, 2), (18, 3), (21, 0), (15, 4), (19, 1), (12, 0), (6, 0)):
            assert session.rewind(to=to).remade == (), to
            for _ in range(more):
                commit(session)
            assert contents(session) == was[to + more]
        shutil.copytree(log, log.parent / "copy")
        gone_on(session, was)
    with nosync_nb.open(log.parent / "copy", takeover=True) as opened:
        gone_on(opened, was)
        assert opened.verify().whole


def test_merges_and_checkpoints_between_make_no_other_of_it(
    log: Path, was: dict[int, dict[str, list[Any]]]
) -> None:
    with nosync_nb.open(log) as session:
        session.rewind(to=20)
        for _ in range(2):
            commit(session)
        settled(session)
        assert session.rewind(to=17).remade == ()
        with nosync_nb.open(log, takeover=True) as opened:
            assert opened.rewind(to=14).remade == ()
            settled(opened)
            with nosync_nb.open(log, takeover=True) as again:
                gone_on(again, was)


def test_where_much_would_be_taken_back_operators_run_again(
    log: Path, was: dict[int, dict[str, list[Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewind, "UNDONE_BYTES", 100)
    with nosync_nb.open(log) as session:
        before = log_of(session).head.offset
        told = session.rewind(to=12)
        assert told.remade
        position = services_of(session).publisher.position
        assert position is not None
        payload = log_of(session).read(position).payload
        assert log_of(session).head.offset - before < len(payload) + 200
        with nosync_nb.open(log, takeover=True) as opened:
            gone_on(opened, was)


def test_the_frame_grows_with_what_is_taken_back_not_with_what_is_held(log: Path) -> None:
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
def test_a_process_that_dies_has_gone_behind_the_checkpoint_or_has_not(
    log: Path,
    was: dict[int, dict[str, list[Any]]],
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
                assert contents(again) == was[again.now], at
                gone.add(again.now)
                commit(again)
                assert contents(again)["counts"] == was.get(again.now, contents(again))["counts"]
            shutil.rmtree(folder)

    gone: set[int] = set()
    at = 1
    while died(at, lambda session: session.rewind(to=21)):
        at += 1
    assert at > 20
    assert gone == {21, 25}


def test_a_stage_of_which_a_rewind_left_nothing_stops_no_definition(tmp_path: Path) -> None:
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
def test_epochs_that_cancel_out_are_gone_back_to_behind_a_checkpoint(
    tmp_path: Path, to: int
) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        names = session.input("names", "k int, name string", key="k")
        names.upsert([(k, "a") for k in range(ROWS)])
        session.stage("some", names.filter("k < 3").distinct())
        session.commit()
        settled(session)
        for name in "bca":
            names.upsert([(1, name)])
            session.commit()
        settled(session)
    was = [(0, "a"), (1, " abc"[to]), (2, "a")]
    with nosync_nb.open(tmp_path / "log") as session:
        with session.branch("then", at=to) as branch:
            assert sorted(branch["some"].rows()) == was
            assert sorted(branch["names"].rows(limit=3)) == was
        session.rewind(to=to)
        assert sorted(session["some"].rows()) == was
    with nosync_nb.open(tmp_path / "log") as session:
        assert sorted(session["some"].rows()) == was
        assert sorted(session["names"].rows(limit=3)) == was
        session.inputs["names"].upsert([(1, "z")])
        session.commit()
        assert sorted(session["some"].rows()) == [(0, "a"), (1, "z"), (2, "a")]


def test_frames_that_say_nothing_of_an_epoch_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was: dict[int, dict[str, list[Any]]]
) -> None:
    """Those that a rewind has left count up from where they begin, as far as they are kept."""
    monkeypatch.setattr(writer, "SEGMENT_BYTES_MAX", 1 << 10)
    monkeypatch.setattr(writer, "NEAR_FRAMES", 4)
    monkeypatch.setattr(segments, "NEAR_FRAMES", 4)
    read: list[int] = []

    def counted(*args: Any) -> Any:
        frames = retained_frames(*args)
        read.append(len(frames))
        return frames

    with defined(tmp_path / "log") as session:
        checkpointed(session, was)
        monkeypatch.setattr(point_in_time, "retained_frames", counted)
        for to, told in ((31, True), (8, False), (8, False), (7, False), (6, False)):
            read.clear()
            session.rewind(to=to)
            assert bool(read) == told, to
            assert contents(session) == was[to]
        commit(session)
        commit(session)
        read.clear()
        session.rewind(to=7)  # these frames are kept, although older ones are of later epochs
        assert read
        assert contents(session) == was[7]
        gone_on(session, was)
