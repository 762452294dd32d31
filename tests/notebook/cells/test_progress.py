"""Progress of long work: it is shown while it runs, and short work is not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from internals import services_of
from jupyter.kernels import Kernel

import nosync_nb
from nosync.progress import Progress, ProgressState, TerminalLine, bar_html, seen_in
from nosync_nb import rows
from nosync_nb.dataflow.runtime.activity import Activity, ActivityMonitor
from nosync_nb.session.durability import replication
from nosync_nb.store.replication.agent import progress


class Recorder:
    def __init__(self) -> None:
        self.told: Queue[ProgressState | None] = Queue()

    def update(self, seen: ProgressState) -> None:
        self.told.put(seen)

    def close(self) -> None:
        self.told.put(None)


def test_current_activity_is_last_begun() -> None:
    doing = ActivityMonitor()
    assert doing.current is None
    with doing.record("replays", 3) as replaying:
        replaying.step()
        with doing.record("starts Spark") as starting:
            assert doing.current is starting
        assert doing.current is replaying
        assert (replaying.done, replaying.total) == (1, 3)
        with pytest.raises(KeyboardInterrupt), doing.record("waits"):
            raise KeyboardInterrupt
        assert doing.current is replaying
    assert doing.current is None


def test_progress_disappears_when_cell_ends() -> None:
    recorder = Recorder()
    progress = Progress(lambda: ProgressState("runs", 1, 2), lambda: recorder)
    progress.start_polling()
    assert recorder.told.get(timeout=60) == ProgressState("runs", 1, 2)
    progress.end()
    shown = list(recorder.told.queue)
    assert shown[-1] is None
    assert all(each == ProgressState("runs", 1, 2) for each in shown[:-1])
    assert all(each.name != "nosync progress" for each in threading.enumerate())


def test_short_cell_is_not_polled() -> None:
    looked = threading.Event()
    progress = Progress(looked.set, Recorder)
    for _ in range(20):
        progress.start_polling()
        progress.end()
    assert not looked.is_set()


def test_progress_is_hidden_between_activities() -> None:
    recorder, turns = Recorder(), iter([ProgressState("a"), None, ProgressState("b")])
    progress = Progress(lambda: next(turns, None), lambda: recorder)
    progress.start_polling()
    assert [recorder.told.get(timeout=60) for _ in range(4)] == [
        ProgressState("a"),
        None,
        ProgressState("b"),
        None,
    ]
    progress.end()


def test_session_reports_current_activity(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        numbers = session.input("numbers", "n int")
        assert seen_in(session, 0) is None
        for n in range(3):
            numbers.insert([(n,)])
            session.commit()
        assert seen_in(session, 2) is None, "one epoch is the cell's own"
        assert seen_in(session, 0) == ProgressState("epochs 1 to 3 are committed")
        seen: list[ProgressState | None] = []

        def looking(row: object) -> tuple[bool]:
            seen.append(seen_in(session, 3))
            return (True,)

        with pytest.warns(UserWarning, match="cannot be stored"):
            session.define({"kept": numbers.filter(looking)}, replay=1)
        assert any(each and "epochs 1 to 3" in each.text and each.total == 2 for each in seen)
        with pytest.warns(UserWarning, match="cannot be stored"):
            session.define({"other": numbers.map(looking, schema="kept boolean")})
        assert any(each and each.text == "first run of other" for each in seen)
        with services_of(session).metrics.activities.record("waits"):
            assert seen_in(session, 3) == ProgressState("waits")
    assert seen_in(session, 0) is None
    assert seen_in(None, 0) is None


def test_remaining_count_of_activity_may_grow() -> None:
    waiting = Activity("waits", in_bytes=True)
    for left, expected in ((300, (0, 300)), (100, (200, 300)), (400, (200, 600)), (0, (600, 600))):
        waiting.left(left)
        assert (waiting.done, waiting.total) == expected


def test_large_load_shows_rows_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[ProgressState | None] = []
    real = rows.to_columns

    def looked(*arguments: Any) -> Any:
        seen.append(seen_in(session, 1))
        return real(*arguments)

    def looking(row: object) -> tuple[bool]:
        if len(seen) < 3:
            seen.append(seen_in(session, 1))
        return (True,)

    monkeypatch.setattr(rows, "to_columns", looked)
    with nosync_nb.open(tmp_path / "log") as session:
        numbers = session.input("numbers", "n bigint")
        with pytest.warns(UserWarning, match="cannot be stored"):
            session.define({"kept": numbers.filter(looking)})
        numbers.insert([(1,)])
        session.commit()
        assert seen == [None, None], "few rows are not worth it"
        seen.clear()
        numbers.insert([(n,) for n in range(1 << 17)])
        session.commit()
    taking, computing = (each.text if each else "" for each in seen[:2])
    assert taking.startswith("inserting 131,072 rows into numbers, 1.0 MiB")
    assert computing.startswith("computing the epoch of 131,072 rows, 2.0 MiB")


def test_wait_for_replicas_shows_remaining_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int, int]] = []
    lacking, counted = threading.Event(), threading.Event()

    def left(self: Activity, count: int) -> None:
        real(self, count)
        if self.total > 1 << 19:
            seen.append((str(seen_in(session, 5)), self.done, self.total))
            counted.set()

    def told(line: bytes) -> progress.Told:
        """Delays the report that the replica has the rows until its backlog was displayed."""
        assert not lacking.is_set() or counted.wait(120)
        said = progress.parse_progress(line)
        if isinstance(said, progress.ReplicaProgress) and said.backlog_bytes > 1 << 19:
            lacking.set()
        return said

    real = Activity.left
    monkeypatch.setattr(Activity, "left", left)
    monkeypatch.setattr(replication, "parse_progress", told)
    with nosync_nb.open(tmp_path / "log", replicas=[(tmp_path / "copy").as_uri()]) as session:
        numbers = session.input("numbers", "n bigint")
        numbers.insert([(1,)])
        session.commit(wait="replicas")  # it is known from now on what the replica has
        assert not seen
        numbers.insert([(n,) for n in range(1 << 17)])
        session.commit(wait="replicas")
    shown, done, total = seen[-1]
    assert 0 <= done < total
    assert " MiB" in shown or " KiB" in shown


def test_progress_bar_escapes_html() -> None:
    shown = bar_html(ProgressState("<b>bold</b>", 3, 2, 'http://host:4040"><script>'))
    assert "<b>" not in shown
    assert "<script>" not in shown
    assert 'max="2" value="2"' in shown
    assert "href" not in bar_html(ProgressState("a", url="javascript:alert(1)"))


def test_terminal_line_overwrites_itself(capsys: pytest.CaptureFixture[str]) -> None:
    line = TerminalLine()
    line.update(ProgressState("a long text"))
    line.update(ProgressState("short"))
    line.close()
    written = capsys.readouterr().err.split("\r")
    assert written[1].rstrip() == "NoSync: a long text"
    assert len(written[3]) == len(written[1])
    assert written[-1] == ""


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    kernel = Kernel(tmp_path)
    yield kernel
    kernel.close()


LOOP = """
import time
numbers = nosync.input("numbers", "n int")
until = time.monotonic() + 1.5
n = 0
while time.monotonic() < until:
    with nosync.epoch():
        numbers.insert([(n,)])
    n += 1
"""


def test_loop_of_commits_shows_progress_in_its_cell(kernel: Kernel) -> None:
    shown = kernel.run(LOOP)
    assert shown.status == "ok"
    assert "are committed" in shown.text
    assert "<progress>" in shown.html
    assert "NoSync: new log" in shown.text
    assert "progress" not in kernel.run("n").html
