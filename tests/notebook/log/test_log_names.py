"""The name of a log's folder: it follows its notebook, and former names find it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter.shell import Notebook, Shown

import nosync
from nosync.log.binding import Binding
from nosync_nb import DurabilityError, SchemaError
from nosync_nb.files.filesystem import Files

FLIGHTS = 'import math\nflights = nosync.input("flights", "carrier string, delay int")'
LOAD = 'flights.insert([("AA", 10), ("UA", 5)], once="first")'
COUNT = "print('rows', flights.count(), math.floor(2.5))"
CELLS = (("1e0b1b6a", FLIGHTS), ("70f4c7d2", LOAD), ("2f0b1b6a", COUNT))
OWN = (
    "import sys, nosync; s = nosync.open(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with its own key and without a chosen log."""
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "keys" / "key"))
    monkeypatch.delenv("NOSYNC_SESSION", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def save(path: Path) -> None:
    made = [nbformat.v4.new_code_cell(text, id=known) for known, text in CELLS]
    path.write_text(nbformat.writes(nbformat.v4.new_notebook(cells=made)))


class FrontEndShell(Notebook):
    """A shell whose front end sends the text of the running cell, as a kernel's does.

    `begun` is the output of its first cell, which loads the extension.
    """

    begun: Shown

    def cell(self, source: str) -> Shown:
        vars(self.shell)["get_parent"] = lambda: {"content": {"code": source}}
        return super().cell(source)


@contextmanager
def opened(path: Path) -> Iterator[FrontEndShell]:
    """A shell of the given notebook."""
    before = os.environ.get("JPY_SESSION_NAME")
    os.environ["JPY_SESSION_NAME"] = str(path)
    shell = FrontEndShell()
    try:
        shell.begun = shell.cell("%load_ext nosync")
        yield shell
    finally:
        shell.close()
        del os.environ["JPY_SESSION_NAME"]
        if before is not None:
            os.environ["JPY_SESSION_NAME"] = before


def loaded(folder: Path, *, to: str = "job.ipynb") -> Path:
    """The path of a notebook that was loaded as Untitled and then renamed."""
    untitled = folder / "Untitled.ipynb"
    save(untitled)
    with opened(untitled) as notebook:
        for _, source in CELLS[:2]:
            notebook.ok(source)
    return untitled.rename(folder / to)


def logs(folder: Path) -> list[str]:
    return sorted(each.name for each in (folder / ".nosync").iterdir() if each.is_dir())


@contextmanager
def log_owner(log: Path) -> Iterator[int]:
    """The id of another process that has a log open."""
    with subprocess.Popen(
        [sys.executable, "-c", OWN, str(log)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        yield other.pid
        other.communicate()


def test_log_folder_is_renamed_after_notebook_at_open(folder: Path) -> None:
    job = loaded(folder)
    with opened(job) as notebook:
        told = "log .nosync/Untitled was renamed after its notebook: .nosync/job"
        assert told in notebook.begun
        assert "rows 2 2" in notebook.ok(COUNT)
    assert logs(folder) == ["job"]
    with opened(job) as notebook:
        assert "rows 2 2" in notebook.ok(COUNT)
        assert "recovered at epoch 1" in notebook.begun
        assert "was renamed" not in notebook.begun


def test_rename_interrupted_at_any_step_leaves_one_whole_log(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an interrupt of any disk call, rows, imports and the list of logs are found."""
    rename, calls, stop = Binding.rename, [0], [-1]
    names = ("exists", "names", "read", "status", "lock", "make_folder", "replace", "rename")

    def counting(name: str) -> Any:
        real = getattr(Files, name)

        def call(files: Files, *args: Any, **options: Any) -> Any:
            calls[0] += 1
            if calls[0] == stop[0] + 1:
                raise KeyboardInterrupt
            return real(files, *args, **options)

        return call

    def renaming(binding: Binding, place: Any) -> Any:
        with monkeypatch.context() as patched:
            for name in (*names, "sync_folder"):
                patched.setattr(Files, name, counting(name))
            return rename(binding, place)

    steps = 0
    while steps == stop[0] + 1:
        steps, stop[0], calls[0] = steps + 1, steps, 0
        job = loaded(folder)
        monkeypatch.setattr(Binding, "rename", renaming)
        with opened(job) as notebook:
            interrupted = notebook.begun.error is not None
        monkeypatch.setattr(Binding, "rename", rename)
        assert logs(folder) in (["Untitled"], ["job"])
        with opened(job) as notebook:
            assert "rows 2 2" in notebook.ok(COUNT)
        assert logs(folder) == ["job"]
        listed = json.loads((folder / "keys" / "logs.json").read_text())
        assert str(folder / ".nosync" / "job") in listed
        shutil.rmtree(folder / ".nosync")
        job.unlink()
        steps -= not interrupted
    assert steps > 20


def test_open_log_or_log_with_open_branch_is_not_renamed(folder: Path) -> None:
    job = loaded(folder)
    log = folder / ".nosync" / "Untitled"
    with nosync.open(log) as session:
        session.branch("other").close()
    with log_owner(log / "branches" / "other"), opened(job) as notebook:
        assert "rows 2 2" in notebook.ok(COUNT)
        assert "was renamed" not in notebook.begun
    assert logs(folder) == ["Untitled"]
    with log_owner(log) as pid, opened(job) as notebook:
        assert f"process {pid}" in notebook.begun
    assert logs(folder) == ["Untitled"]
    with opened(job) as notebook:
        assert "rows 2 2" in notebook.ok(COUNT)
    assert logs(folder) == ["job"]
    with nosync.open(folder / ".nosync" / "job" / "branches" / "other", mode="r") as branch:
        assert branch["flights"].count() == 2


@pytest.mark.parametrize("taken", ["file", "folder", "link"])
def test_rename_overwrites_nothing(folder: Path, taken: str) -> None:
    job = loaded(folder)
    target = folder / ".nosync" / "job"
    match taken:
        case "file":
            target.write_text("mine")
        case "folder":
            target.mkdir()
            (target / "mine").write_text("mine")
        case "link":
            target.symlink_to(folder / "elsewhere")
    with opened(job) as notebook:
        assert "rows 2 2" in notebook.ok(COUNT)
    assert logs(folder) == (["job", "job-2"] if taken == "folder" else ["Untitled"])
    match taken:
        case "file":
            assert target.read_text() == "mine"
        case "folder":
            assert [each.name for each in target.iterdir()] == ["mine"]
        case "link":
            assert target.is_symlink()


def test_log_folder_named_by_user_keeps_its_name(folder: Path) -> None:
    save(folder / "job.ipynb")
    with opened(folder / "job.ipynb") as notebook:
        notebook.ok("%dd open .nosync/special")
        notebook.ok(FLIGHTS)
        notebook.ok(LOAD)
    with opened(folder / "job.ipynb") as notebook:
        assert "rows 2 2" in notebook.ok(COUNT)
    assert logs(folder) == ["special"]


def test_renamed_log_is_found_by_former_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = loaded(folder)
    old = folder / ".nosync" / "Untitled"
    with nosync.open(old) as session:
        session.branch("other").close()
    with nosync.open(old, mode="r") as reader:
        with opened(job) as notebook:
            notebook.ok(COUNT)
            notebook.ok('flights.insert([("DL", 1)])')
        assert logs(folder) == ["job"]
        assert reader["flights"].count() == 3
        assert reader.now == 2
    for path in (old, old / "branches" / "other", Path(".nosync/Untitled")):
        with nosync.open(path, mode="r") as again:
            assert Path(again.path).is_relative_to(folder / ".nosync" / "job")
    save(folder / "Untitled.ipynb")
    shutil.copy(job, folder / "next")  # a file of other cells
    (folder / "next").unlink()
    (folder / "Untitled.ipynb").write_text(nbformat.writes(nbformat.v4.new_notebook()))
    with opened(folder / "Untitled.ipynb") as notebook:
        assert "new log .nosync/Untitled-2" in notebook.ok("nosync.session()")
    monkeypatch.setenv("NOSYNC_SESSION", ".nosync/Untitled")
    with opened(job) as notebook:
        assert notebook.ok("flights.count()").value == 3
    assert logs(folder) == ["Untitled-2", "job"]


def test_replicas_of_renamed_log_are_remembered(folder: Path) -> None:
    untitled = folder / "Untitled.ipynb"
    save(untitled)
    with opened(untitled) as notebook:
        for _, source in CELLS[:2]:
            notebook.ok(source)
        notebook.ok(f"%dd replicas add file://{folder}/copy")
        notebook.ok("%dd branch other\n%dd switch other")
        notebook.ok('nosync.session().sync("replicas", timeout=60)')
        notebook.ok("%dd switch\nnosync.session().sync('replicas', timeout=60)")
    job = untitled.rename(folder / "job.ipynb")
    with opened(job) as notebook:
        assert "rows 2 2" in notebook.ok(COUNT)
    known = json.loads((folder / "keys" / "replicas.json").read_text())
    log = folder / ".nosync" / "job"
    assert sorted(known) == [str(log), str(log / "branches" / "other")]
    shutil.rmtree(log)
    with opened(job) as notebook:
        assert notebook.ok("nosync.session()['flights'].count()").value == 2
        assert "at replicas" in notebook.ok("%dd branch")


def test_log_opens_by_path_of_notebook(folder: Path) -> None:
    job = loaded(folder)
    with pytest.raises(DurabilityError, match=r"no log of notebook 'nope\.ipynb'") as missing:
        nosync.open("nope.ipynb", mode="r")
    assert ".nosync/Untitled (job.ipynb)" in str(missing.value)
    assert "nosync.open('.nosync/Untitled', mode='r')" in str(missing.value.hint)
    with nosync.open("job.ipynb", mode="r") as reader:
        assert reader["flights"].count() == 2
        with log_owner(folder / ".nosync" / "Untitled"), nosync.open(job, mode="r") as other:
            assert other["flights"].count() == 2
    with nosync.open("job.ipynb") as session:
        session.inputs["flights"].insert([("DL", 1)])
        session.commit()
    with opened(folder / "reader.ipynb") as notebook:
        assert "the log of job.ipynb is .nosync/Untitled" in notebook.ok("%dd open job.ipynb")
        assert notebook.ok("flights.count()").value == 3
    with pytest.raises(DurabilityError, match="there are no logs in"):
        nosync.open(folder / "keys" / "job.ipynb")
    assert not (folder / "keys" / ".nosync").exists()
    with pytest.raises(SchemaError):
        nosync.open("")


def test_notebook_whose_log_was_taken_is_notified(folder: Path) -> None:
    job = loaded(folder)
    other = folder / "other.ipynb"
    other.write_text(nbformat.writes(nbformat.v4.new_notebook()))
    with opened(other) as notebook:
        notebook.ok("%dd open job.ipynb")
    with opened(other) as notebook:
        notebook.ok("1")
    with opened(job) as notebook:
        assert "was this notebook's log until other.ipynb took it" in notebook.begun
        notebook.ok(f"%dd open .nosync/{logs(folder)[0]}")
        assert notebook.ok("flights.count()").value == 2


def test_open_log_is_listed_with_process_and_not_for_deletion(folder: Path) -> None:
    loaded(folder).unlink()
    with opened(folder / "new.ipynb") as notebook:
        notebook.ok("nosync.session()")
        with log_owner(folder / ".nosync" / "Untitled") as pid:
            shown = notebook.ok("%dd logs")
            assert f"process {pid}" in shown
            assert "(deleted)" not in shown
            assert "delete" not in shown
        shown = notebook.ok("%dd logs")
        assert "Untitled.ipynb (deleted)" in shown
        assert "delete" in shown
