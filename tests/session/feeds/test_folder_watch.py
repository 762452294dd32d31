"""`watch`: each file of a folder is one epoch, once, despite kills and closing."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from internals import services_of
from pyarrow import parquet

import nosync_nb
from nosync_nb import FencedError, SchemaError, Session, StageError
from nosync_nb.dataflow.runtime.activity import Activity
from nosync_nb.files import user_files
from nosync_nb.session.feeds import folder_watch
from nosync_nb.session.writes.commit import EpochBlock
from nosync_nb.session.writes.ingest import IngestService


@pytest.fixture
def session(session: Session) -> Session:
    """An input without key, and a stage."""
    flights = session.input("flights", "carrier string, delay int")
    session.stage("late", flights.filter("delay > 60"))
    return session


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The watched folder."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def put(path: Path, *rows: tuple[str, int], old: bool = True) -> Path:
    """Writes a file, as if hours ago, so that it is settled."""
    if path.suffix == ".parquet":
        table = pa.table({"delay": [d for _, d in rows], "carrier": [c for c, _ in rows]})
        parquet.write_table(table, path)
    elif path.suffix == ".csv":
        path.write_text("\n".join(["carrier,delay", *(f"{c},{d}" for c, d in rows)]))
    else:
        path.write_text("\n".join(json.dumps({"carrier": c, "delay": d}) for c, d in rows))
    if old:
        age(path, 7200)
    return path


def age(path: Path, seconds: float) -> None:
    changed = path.stat().st_mtime - seconds
    os.utime(path, (changed, changed))


def values(session: Session, name: str = "flights") -> list[Any]:
    return [tuple(row) for row in session[name].rows()]


@pytest.mark.parametrize("ending", ["parquet", "csv", "json", "jsonl", "ndjson"])
def test_existing_files_are_loaded_when_watch_returns(
    session: Session, folder: Path, ending: str
) -> None:
    put(folder / f"1.{ending}", ("AA", 70), ("007", 5))
    put(folder / f"2.{ending}", ("UA", 90))
    (folder / "notes.txt").write_text("no table")
    with nosync_nb.watch(folder / "*", into=session["flights"]) as watch:
        assert values(session) == [("007", 5), ("AA", 70), ("UA", 90)]
        assert session.now == 2
        assert values(session, "late") == [("AA", 70), ("UA", 90)]
        assert [tuple(r) for r in session["flights"].rows(at=1)] == [("007", 5), ("AA", 70)]
        assert watch.loaded == {str(folder / f"{n}.{ending}"): n for n in (1, 2)}
        assert watch.look() == 0


class InterruptAtStep:
    """Records the progress of activities, and can interrupt them at a step."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, int, int]] = []
        self.at = 0

    def took(self, activity: Activity, count: int) -> None:
        """Records a step, and raises at the chosen one."""
        activity.step()
        self.steps.append((activity.what, count, activity.total))
        if len(self.steps) == self.at:
            raise KeyboardInterrupt


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> InterruptAtStep:
    """Records the progress of files, which are read in small parts."""
    steps = InterruptAtStep()
    monkeypatch.setattr(user_files, "PART_BYTES", 1000)
    monkeypatch.setattr(Activity, "add_steps", lambda activity, count: steps.took(activity, count))
    return steps


@pytest.mark.parametrize("ending", ["parquet", "csv", "json"])
def test_progress_of_a_large_file_is_reported_while_it_is_read(
    session: Session, folder: Path, small_parts: InterruptAtStep, ending: str
) -> None:
    path = put(folder / f"big.{ending}", *((f"carrier {i}", i) for i in range(1000)))
    nosync_nb.watch(folder / "*", session.inputs["flights"]).stop()
    assert len(values(session)) == 1000
    size = path.stat().st_size
    assert {(what, total) for what, _, total in small_parts.steps} == {
        (f"reading big.{ending}", size),
        (f"decoding big.{ending}", size),
    }
    read = [count for what, count, _ in small_parts.steps if what.startswith("reading")]
    assert (sum(read), len(read)) == (size, -(-size // 1000))
    decoded = sum(count for what, count, _ in small_parts.steps if what.startswith("decoding"))
    assert decoded > 0 if ending == "parquet" else decoded == size  # its footer is read twice
    assert session.info.activity is None


@pytest.mark.parametrize("ending", ["parquet", "csv", "json"])
def test_interrupt_in_the_middle_of_a_file_leaves_the_epoch_unchanged(
    session: Session, folder: Path, small_parts: InterruptAtStep, ending: str
) -> None:
    """An interrupt at any step; watching again loads the file once."""
    put(folder / f"big.{ending}", *((f"carrier {i}", i) for i in range(500)))
    flights, before = session.inputs["flights"], session.now
    done = False
    while not done:
        small_parts.at, small_parts.steps = small_parts.at + 1, []
        try:
            nosync_nb.watch(folder / "*", flights).stop()
            done = True
        except KeyboardInterrupt:
            assert (session.now, values(session), session.pending) == (before, [], {})
            assert session.info.activity is None
    assert small_parts.at > 3
    assert (session.now, len(values(session))) == (before + 1, 500)
    assert {what for what, *_ in small_parts.steps} == {
        f"reading big.{ending}",
        f"decoding big.{ending}",
    }


def test_activity_never_exceeds_its_total() -> None:
    activity = Activity("reads", 10, in_bytes=True)
    activity.add_steps(4)
    assert activity.done == 4
    activity.add_steps(40)
    assert activity.done == 10


def test_new_file_becomes_an_epoch(session: Session, folder: Path) -> None:
    loaded, epochs = threading.Event(), []
    session["flights"].inspect(lambda epoch, changes: (epochs.append(epoch), loaded.set()))
    with nosync_nb.watch(str(folder / "*.csv"), into=session["flights"]):
        put(folder / "1.csv", ("AA", 70))
        assert loaded.wait(60)
    assert epochs == [1]
    assert values(session) == [("AA", 70)]


def test_file_is_loaded_once_it_is_unchanged_between_two_scans(
    session: Session, folder: Path
) -> None:
    with nosync_nb.watch(folder / "*.csv", session["flights"], every=3600) as watch:
        put(folder / "1.csv", ("AA", 70), old=False)
        assert watch.look() == 0
        put(folder / "1.csv", ("AA", 70), ("UA", 90), old=False)
        assert watch.look() == 0
        assert watch.look() == 1
    assert values(session) == [("AA", 70), ("UA", 90)]


def test_file_is_loaded_once_by_name_and_digest(session: Session, folder: Path) -> None:
    first = put(folder / "1.csv", ("AA", 70))
    with nosync_nb.watch(folder / "*.csv", session["flights"], every=3600) as watch:
        os.utime(first, (5, 5))
        put(folder / "2.csv", ("AA", 70))
        assert watch.look() == 1, "equal rows under another name are another load"
        first.unlink()
        watch.look()
        put(first, ("AA", 70))
        assert watch.look() == 0
        put(first, ("AA", 71))
        assert watch.look() == 1, "other bytes under an old name are another load"
    with nosync_nb.watch(folder / "*.csv", session["flights"]) as again:
        assert again.loaded == {}
    assert values(session) == [("AA", 70), ("AA", 70), ("AA", 71)]


def test_file_of_two_patterns_is_loaded_once(
    session: Session, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_reading, take = threading.Barrier(2, timeout=0.5), IngestService.ingest

    def both(inputs: IngestService, *user_files: Any) -> int:
        count = take(inputs, *user_files)
        with suppress(threading.BrokenBarrierError):  # the other watch does not arrive
            both_reading.wait()
        return count

    monkeypatch.setattr(IngestService, "ingest", both)
    into = session["flights"]
    with (
        nosync_nb.watch(folder / "*.csv", into, every=3600) as one,
        nosync_nb.watch(folder / "**/*.csv", into, every=3600) as other,
    ):
        put(folder / "1.csv", ("AA", 70))
        looks = [threading.Thread(target=each.look) for each in (one, other)]
        for each in looks:
            each.start()
        for each in looks:
            each.join()
        assert {**one.loaded, **other.loaded} == {str(folder / "1.csv"): 1}
    assert session.now == 1
    assert values(session) == [("AA", 70)]


def test_moved_folder_is_not_loaded_again(session: Session, folder: Path) -> None:
    put(folder / "1.csv", ("AA", 70))
    nosync_nb.watch(folder / "*.csv", session["flights"]).stop()
    moved = folder.rename(folder.parent / "moved")
    nosync_nb.watch(moved / "*.csv", session["flights"]).stop()
    assert session.now == 1


def test_files_undone_by_a_rewind_are_loaded_only_by_a_new_watch(
    session: Session, folder: Path
) -> None:
    """Otherwise a rewind during a watch would be repeated at once by the watch."""
    put(folder / "a.csv", ("AA", 10))
    flights = session.inputs["flights"]
    flights.insert([("UA", 1)])
    session.commit()
    with nosync_nb.watch(folder / "*.csv", into=flights) as watch:
        assert flights.rows() == [("AA", 10), ("UA", 1)]
        session.rewind(to=1)
        assert watch.look() == 0
        assert session.inputs["flights"].rows() == [("UA", 1)]
        put(folder / "b.csv", ("DL", 2))
        assert watch.look() == 1
    with nosync_nb.watch(folder / "*.csv", into=session.inputs["flights"]):
        rows = session.inputs["flights"].rows()
    assert rows == [("AA", 10), ("DL", 2), ("UA", 1)]


def test_input_declared_again_is_loaded_again(session: Session, folder: Path) -> None:
    put(folder / "1.csv", ("AA", 70))
    nosync_nb.watch(folder / "*.csv", session["flights"]).stop()
    session.drop("flights", cascade=True)
    flights = session.input("flights", "carrier string, delay int")
    nosync_nb.watch(folder / "*.csv", flights).stop()
    assert values(session) == [("AA", 70)]


def test_file_of_a_keyed_input_replaces_rows(session: Session, folder: Path) -> None:
    worst = session.input("worst", "carrier string, delay int", key="carrier")
    with nosync_nb.watch(folder / "*.csv", worst, every=3600) as watch:
        put(folder / "1.csv", ("AA", 70), ("UA", 5))
        put(folder / "2.csv", ("AA", 71))
        assert watch.look() == 2
    assert values(session, "worst") == [("AA", 71), ("UA", 5)]


def test_file_refused_at_the_first_scan_is_reported_and_loaded_when_corrected(
    session: Session, folder: Path
) -> None:
    put(folder / "1.csv", ("AA", 70))
    (folder / "1.csv").write_text("carrier,delay\nAA,soon\n")
    age(folder / "1.csv", 7200)
    with pytest.warns(UserWarning, match="was not loaded"):
        watch = nosync_nb.watch(folder / "*.csv", session["flights"], every=3600)
    assert session.now == 0
    put(folder / "1.csv", ("AA", 70))
    assert watch.look() == 1
    watch.stop()


def test_file_refused_by_a_stage_is_loaded_after_the_stage_is_fixed(
    session: Session, folder: Path
) -> None:
    def picky(row: Any) -> bool:
        if row.delay < 0:
            raise ValueError("no such delay")
        return True

    session.stage("picked", session["flights"].filter(picky))
    put(folder / "1.csv", ("AA", -70))
    with pytest.warns(UserWarning, match="no such delay"):
        watch = nosync_nb.watch(folder / "*.csv", session["flights"], every=3600)
    assert (watch.look(), session.now) == (0, 0)
    session.drop("picked")
    assert watch.look() == 1
    watch.stop()


def test_file_refused_by_the_disk_is_retried_at_the_next_scan(
    session: Session, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder / "1.csv", ("AA", 70))

    def refuse(*_: object) -> bytes:
        raise OSError("input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(folder_watch.user_files, "file_content", refuse)
        with pytest.warns(UserWarning, match="input/output error"):
            watch = nosync_nb.watch(folder / "*.csv", session["flights"], every=3600)
        assert watch.look() == 0  # not reported again: warnings are errors here
    assert watch.look() == 1
    watch.stop()


def test_pipes_folders_and_broken_links_are_ignored(session: Session, folder: Path) -> None:
    os.mkfifo(folder / "1.csv")
    (folder / "2.csv").mkdir()
    (folder / "3.csv").symlink_to(folder / "nowhere")
    real = put(folder.parent / "real.csv", ("AA", 70))
    (folder / "4.csv").symlink_to(real)
    with nosync_nb.watch(folder / "*.csv", session["flights"]) as watch:
        assert list(watch.loaded) == [str(folder / "4.csv")]


def test_pending_rows_stay_pending_while_a_file_is_loaded(session: Session, folder: Path) -> None:
    session["flights"].insert([("DL", 1)])
    put(folder / "1.csv", ("AA", 70))
    nosync_nb.watch(folder / "*.csv", session["flights"]).stop()
    assert session.now == 1
    assert session.pending["flights"].rows == 1
    session.discard()
    assert values(session) == [("AA", 70)]


def test_closed_session_stops_its_watches(tmp_path: Path, folder: Path) -> None:
    session = nosync_nb.open(tmp_path / "log")
    flights = session.input("flights", "carrier string, delay int")
    before = threading.active_count()
    watches = [nosync_nb.watch(folder / p, flights) for p in ("*.csv", "*.json", "*.csv")]
    assert [watch.running for watch in watches] == [False, True, True]
    listeners = services_of(session).subscriptions
    assert listeners.subscribers == 2
    session.close()
    assert [watch.running for watch in watches] == [False] * 3
    assert listeners.subscribers == 0
    assert threading.active_count() <= before
    put(folder / "1.csv", ("AA", 70))
    with nosync_nb.open(tmp_path / "log") as again:
        assert again.now == 0


def test_fenced_session_stops_its_watches(tmp_path: Path, folder: Path) -> None:
    session = nosync_nb.open(tmp_path / "log")
    flights = session.input("flights", "carrier string, delay int")
    watch = nosync_nb.watch(folder / "*.csv", flights, every=3600)
    with nosync_nb.open(tmp_path / "log", takeover=True) as other:
        put(folder / "1.csv", ("AA", 70))
        assert watch.look() == 0
        assert not watch.running
        nosync_nb.watch(folder / "*.csv", other["flights"]).stop()
        assert values(other) == [("AA", 70)]
    session.close()


def test_invalid_watch_is_refused(session: Session, tmp_path: Path, folder: Path) -> None:
    with pytest.raises(StageError, match="is not an input"):
        nosync_nb.watch(folder / "*.csv", into=session["late"])  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match=r"end with \.xlsx are not supported"):
        nosync_nb.watch(folder / "*.xlsx", into=session["flights"])
    with (
        nosync_nb.open(tmp_path / "log", mode="r") as reader,
        pytest.raises(FencedError, match="open for reading"),
    ):
        nosync_nb.watch(folder / "*.csv", into=reader["flights"])


KILLED = """
import os, signal, sys
import nosync_nb
log, pattern, last = sys.argv[1:]
session = nosync_nb.open(log)
flights = session.input("flights", "carrier string, delay int")
flights.inspect(lambda epoch, changes: epoch == int(last) and os.kill(os.getpid(), signal.SIGKILL))
nosync_nb.watch(pattern, into=flights)
"""


def test_process_killed_between_files_loads_each_once(tmp_path: Path, folder: Path) -> None:
    rows = [(f"{n}", n) for n in range(5)]
    for name, delay in rows:
        put(folder / f"{name}.csv", (name, delay))
    for last in (2, 3):
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, tmp_path / "log", folder / "*.csv", str(last)],
            timeout=120,
        )
        assert killed.returncode == -signal.SIGKILL
    with nosync_nb.open(tmp_path / "log") as session:
        nosync_nb.watch(folder / "*.csv", session["flights"]).stop()
        assert values(session) == rows
        assert session.now == 5


def test_file_that_changes_repeatedly_leaves_one_entry(session: Session, folder: Path) -> None:
    path = put(folder / "1.csv", ("AA", 0))
    others = epoch_blocks()  # of other tests
    with nosync_nb.watch(folder / "*", into=session["flights"]) as watch:
        for number in range(1, 6):
            put(path, *(("AA", each) for each in range(number + 1)))
            watch.look()
            assert watch.loaded == {str(path): session.now} == {str(path): number + 1}
        assert 1 <= len(epoch_blocks() - others) <= 2


def epoch_blocks() -> set[EpochBlock]:
    """The epoch blocks of this process that are alive."""
    gc.collect()
    return {each for each in gc.get_objects() if isinstance(each, EpochBlock)}
