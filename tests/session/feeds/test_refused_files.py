"""Refused files of a watched folder: where they are shown, and how to wait for them."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from checks.sessions import in_thread
from internals import notices_of
from pyarrow import parquet

import nosync_nb
from nosync_nb import FencedError, NosyncError, Session, StageError
from nosync_nb.files import user_files
from nosync_nb.files.user_files import FileMark
from nosync_nb.session.feeds.folder_watch import FolderWatch


@pytest.fixture
def session(session: Session) -> Session:
    """Inputs with and without key, and a stage whose function refuses some rows."""
    flights = session.input("flights", "carrier string, delay int")
    session.input("worst", "carrier string, delay int", key="carrier")
    session.stage("late", flights.filter(refuse_thirteen))
    return session


def refuse_thirteen(row: Any) -> bool:
    if row.delay == 13:
        raise ValueError("no such delay")
    return bool(row.delay > 60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The watched folder."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def put(path: Path, text: str, *, old: bool = True) -> Path:
    """Writes a file, as if hours ago, so that it is settled."""
    path.write_text(text)
    if old:
        age(path)
    return path


def age(path: Path) -> None:
    os.utime(path, (path.stat().st_mtime - 7200,) * 2)


def watch_folder(session: Session, folder: Path, into: str = "flights") -> FolderWatch:
    """A watch whose thread does not scan during a test."""
    return nosync_nb.watch(folder / "*", session.inputs[into], every=3600)


GOOD = "carrier,delay\nAA,70\n"
BAD = "carrier,delay\nAA,soon\n"


def write_parquet(path: Path, columns: dict[str, list[Any]]) -> None:
    parquet.write_table(pa.table(columns), path)
    age(path)


REFUSED: dict[str, tuple[str, str, Callable[[Path], Any], str]] = {
    "a value of another type": ("1.csv", "flights", lambda p: put(p, BAD), "soon"),
    "columns that are missing": ("1.csv", "flights", lambda p: put(p, "carrier\nAA\n"), "delay"),
    "a line that is too long": ("1.csv", "flights", lambda p: put(p, GOOD + "1,2,3\n"), "3"),
    "json of another type": (
        "1.json",
        "flights",
        lambda p: put(p, json.dumps({"carrier": "AA", "delay": "soon"})),
        "delay",
    ),
    "no json": ("1.jsonl", "flights", lambda p: put(p, "{"), "json"),
    "no parquet": ("1.parquet", "flights", lambda p: put(p, "no"), "parquet"),
    "parquet of other columns": (
        "1.parquet",
        "flights",
        lambda p: write_parquet(p, {"carrier": ["AA"]}),
        "delay",
    ),
    "a row that a stage refuses": (
        "1.csv",
        "flights",
        lambda p: put(p, "carrier,delay\nAA,13\n"),
        "no such delay",
    ),
    "a key that is null": (
        "1.json",
        "worst",
        lambda p: put(p, json.dumps({"carrier": None, "delay": 1})),
        "null",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_file_is_reported_with_its_reason_until_corrected(
    session: Session, folder: Path, case: str
) -> None:
    name, into, write, reason = REFUSED[case]
    watch = watch_folder(session, folder, into)
    path = folder / name
    write(path)
    in_thread(watch.look)
    assert [*watch.refused] == [str(path)]
    assert reason in watch.refused[str(path)]
    assert "Hint: " in watch.refused[str(path)]
    assert repr(watch).endswith("0 loaded, 1 refused>")
    with pytest.warns(UserWarning, match="was not loaded") as warned:
        session.commit()
    assert [each.filename for each in warned] == [__file__], "not a line of the package"
    with pytest.raises(NosyncError, match=f"1 file was not loaded into '{into}'") as raised:
        watch.catch_up()
    assert reason in str(raised.value)
    path.unlink()
    put(folder / "2.csv", GOOD)
    assert watch.catch_up() == session.now
    assert watch.refused == {}
    assert repr(watch).endswith("1 loaded>")
    watch.stop()


def test_catch_up_names_all_refused_files_and_loads_the_others(
    session: Session, folder: Path
) -> None:
    with watch_folder(session, folder) as watch:
        for number in range(15):
            put(folder / f"{number:02}.csv", GOOD if number % 2 else BAD)
        with pytest.raises(NosyncError, match="8 files were not loaded") as raised:
            watch.catch_up()
        assert all(f"{number:02}.csv" in str(raised.value) for number in range(0, 15, 2))
        assert "move it out of the folder" in raised.value.__notes__[0]
        assert len(watch.loaded) == session.now == 7
        session.commit()  # and does not report them again: warnings are errors here


def test_error_of_many_refused_files_names_the_first_and_counts_the_others(
    session: Session, folder: Path
) -> None:
    with watch_folder(session, folder) as watch:
        for number in range(25):
            put(folder / f"{number:02}.csv", BAD)
        with pytest.raises(NosyncError, match="25 files were not loaded") as raised:
            watch.catch_up()
        assert str(raised.value).endswith("\nand 15 more")
        assert len(watch.refused) == 25
        assert watch.status.refusal_texts[-1] == "and 15 more: .refused has all"
        session.commit()


def test_catch_up_waits_until_a_file_is_settled(session: Session, folder: Path) -> None:
    put(folder / "1.csv", GOOD, old=False)
    with nosync_nb.watch(folder / "*.csv", session.inputs["flights"]) as watch:
        assert watch.catch_up(timeout=60) == 1
        put(folder / "2.csv", GOOD, old=False)
        put(folder / "3.csv", GOOD)
        assert watch.catch_up() == 3
        assert session.inputs["flights"].count() == 3
        assert watch.catch_up() == 3
    assert time.time() - (folder / "2.csv").stat().st_mtime > 1, "not before it is settled"


def test_young_file_is_counted_and_ends_a_wait_with_a_timeout(
    session: Session, folder: Path
) -> None:
    put(folder / "1.csv", GOOD, old=False)
    put(folder / "notes.txt", "no table", old=False)
    with watch_folder(session, folder) as watch:
        assert repr(watch).endswith("0 loaded, 1 still being written>")
        assert "1 still being written" in notices_of(session)[-1]
        for timeout in (0, 0.02):
            with pytest.raises(
                NosyncError, match=r"still being written after .* s: .*1\.csv'"
            ) as raised:
                watch.catch_up(timeout=timeout)
            assert ".catch_up(timeout=60)" in raised.value.__notes__[0]
        assert session.now == 0
        age(folder / "1.csv")
        assert watch.catch_up(timeout=0) == 1
        assert repr(watch).endswith(": 1 loaded>")


def test_catch_up_notices_scans_of_the_watch_thread(session: Session, folder: Path) -> None:
    put(folder / "1.csv", GOOD, old=False)
    with watch_folder(session, folder) as watch:
        waits = threading.Thread(target=watch.catch_up)
        waits.start()
        assert watch.look() == 1, "the file is unchanged since the scan before"
        waits.join(60)
        assert not waits.is_alive()


def test_catch_up_does_not_wait_for_deleted_or_later_files(
    session: Session, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both files are still being written."""
    written, names = itertools.count(), ["1.csv"]

    def matching(_pattern: str) -> dict[str, FileMark]:
        return {name: FileMark(next(written), time.time_ns(), 1) for name in names}

    with watch_folder(session, folder) as watch:
        monkeypatch.setattr(user_files, "matching_files", matching)
        waits = threading.Thread(target=watch.catch_up)
        waits.start()
        assert (watch.look(), watch.look()) == (0, 0)
        names[:] = ["2.csv"]
        while waits.is_alive():
            watch.look()
            waits.join(0.01)
        assert watch.loaded == {}
        assert repr(watch).endswith("1 still being written>")


@pytest.mark.parametrize("end", ["stop", "close", "takeover"])
def test_catch_up_ends_with_its_watch(tmp_path: Path, folder: Path, end: str) -> None:
    session = nosync_nb.open(tmp_path / "log")
    session.input("flights", "carrier string, delay int")
    watch = watch_folder(session, folder)
    put(folder / "1.csv", GOOD, old=False)
    results: list[Any] = []
    waits = threading.Thread(target=lambda: results.append(in_thread(watch.catch_up)))
    waits.start()
    if end == "takeover":
        nosync_nb.open(tmp_path / "log", takeover=True).close()
        age(folder / "1.csv")
        watch.look()
    else:
        (watch.stop if end == "stop" else session.close)()
    waits.join(60)
    expected = FencedError if end == "takeover" else StageError
    assert isinstance(results[0], NosyncError if end == "close" else expected), results
    session.close()


def test_refused_file_is_not_reported_to_the_thread_of_another_watch(
    session: Session, folder: Path, tmp_path: Path
) -> None:
    """A warning in that thread would be invisible."""
    (tmp_path / "other").mkdir()
    loaded = threading.Event()
    session["worst"].inspect(lambda epoch, changes: loaded.set())
    with (
        watch_folder(session, folder) as watch,
        nosync_nb.watch(tmp_path / "other" / "*", session.inputs["worst"]),
    ):
        put(folder / "1.csv", BAD)
        in_thread(watch.look)
        put(tmp_path / "other" / "1.csv", GOOD)
        assert loaded.wait(60)
        with pytest.warns(UserWarning, match="was not loaded"):
            session.commit()


def test_refused_file_is_reported_to_a_notebook_once_instead_of_a_warning(
    session: Session, folder: Path
) -> None:
    notices: list[str] = []
    session.on_notice(notices.append)
    with warnings.catch_warnings(record=True) as warned, watch_folder(session, folder) as watch:
        warnings.simplefilter("always")
        put(folder / "1.csv", BAD)
        in_thread(watch.look)
        in_thread(watch.look)
        assert [each.startswith(f"'{folder}/1.csv' was not loaded") for each in notices] == [True]
        session.commit()
    assert (len(notices), warned) == (1, [])


def test_unreadable_folder_is_reported_once(
    session: Session, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notices: list[str] = []
    attempts = threading.Semaphore(0)
    session.on_notice(notices.append)

    def refuse(watch: FolderWatch) -> int:
        attempts.release()
        raise OSError("no such device")

    with nosync_nb.watch(folder / "*", session.inputs["flights"]):
        monkeypatch.setattr(FolderWatch, "look", refuse)
        for _ in range(3):
            assert attempts.acquire(timeout=60)
    assert notices == [f"watching '{folder}/*': no such device"]
