"""A log follows its notebook through Jupyter servers, git and runners."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import nbformat
import pytest
from jupyter.kernels import Kernel
from jupyter.server import ServedNotebook, served

FLIGHTS = 'flights = nosync.input("flights", "carrier string, delay int")'
LOAD = 'flights.insert([("AA", 10), ("UA", 5)], once="first")'
COUNT = "print('rows', flights.count())"
CELLS = (("input", FLIGHTS), ("load", LOAD))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the server that most tests share; one user has one key."""
    made = tmp_path_factory.mktemp("server")
    before = os.environ.get("NOSYNC_KEY_FILE")
    os.environ["NOSYNC_KEY_FILE"] = str(made / "keys" / "key")
    yield made
    del os.environ["NOSYNC_KEY_FILE"]
    if before is not None:
        os.environ["NOSYNC_KEY_FILE"] = before


@pytest.fixture(scope="module")
def url(home: Path) -> Iterator[str]:
    (home / "root").mkdir()
    with served(home, home / "root", app="jupyter_server") as address:
        yield address


@pytest.fixture
def root(home: Path, url: str) -> Path:
    """The folder of the server's notebooks, emptied."""
    for each in (home / "root").iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    return home / "root"


def loaded(notebook: Kernel | ServedNotebook) -> None:
    """Runs the cells that load."""
    for cell, source in CELLS:
        assert notebook.run(source, cell=cell).status == "ok"


def test_log_follows_notebook_through_server(url: str, home: Path, root: Path) -> None:
    with closing(ServedNotebook(url, home)) as first:
        assert first.path == "Untitled.ipynb"
        loaded(first)
        first.save(*CELLS)
        first.rename("quick.ipynb")
        first.restart()
        shown = first.run(COUNT, cell="count")
        assert "recovered at epoch 1" in shown
        assert "rows 2" in shown
        first.save(*CELLS, ("count", COUNT))
        copied = first.copy()
    with closing(ServedNotebook(url, home, "quick.ipynb")) as next_day:
        assert "rows 2" in next_day.run(COUNT, cell="count")
    with closing(ServedNotebook(url, home)) as fresh:
        assert fresh.path == "Untitled.ipynb"
        assert fresh.run("x = 1", cell="fresh").text == ""
    with closing(ServedNotebook(url, home, copied)) as copy:
        shown = copy.run("x = 1", cell="input")
        assert "a copy of quick.ipynb" in shown
        assert "`%dd open .nosync/quick --branch NAME`" in shown


def test_notebook_renamed_before_first_cell_uses_new_name(url: str, home: Path, root: Path) -> None:
    """Its kernel started under the old name and gets no other."""
    with (
        closing(ServedNotebook(url, home)) as early,
        closing(ServedNotebook(url, home)) as neighbour,
    ):
        early.save(("1e0b1b6a", ""))
        early.rename("early.ipynb")
        loaded(early)
        assert {each.name for each in (root / ".nosync").iterdir()} == {"early", ".gitignore"}
        assert neighbour.run("x = 1", cell="fresh").text == ""
        listed = neighbour.run("%dd logs", cell="fresh")
        assert "early.ipynb  process " in listed
        assert "(deleted)" not in listed
        assert "delete" not in listed
        read = "print('rows', nosync.open('early.ipynb', mode='r')['flights'].count())"
        assert "rows 2" in neighbour.run(read, cell="fresh")


def test_notebook_that_loads_extension_late_is_identified_by_cells(
    url: str, home: Path, root: Path
) -> None:
    """The owner of the old name is unknown then; a copy has the same cells."""
    load = "%load_ext nosync\n" + FLIGHTS
    with closing(ServedNotebook(url, home)) as early:
        early.run("%unload_ext nosync", cell="1e0b1b6a")
        early.save(("1e0b1b6a", load))
        early.rename("early.ipynb")
        assert "new log .nosync/early" in early.run(load, cell="1e0b1b6a")
    with closing(ServedNotebook(url, home)) as copied:
        copied.run("%unload_ext nosync", cell="2e0b1b6a")
        copied.save(("2e0b1b6a", load))
        copied.copy()
        copied.rename("copied.ipynb")
        assert "new log .nosync/Untitled" in copied.run(load, cell="2e0b1b6a")


def test_two_tabs_share_kernel_and_log(url: str, home: Path, root: Path) -> None:
    with closing(ServedNotebook(url, home)) as first:
        loaded(first)
        first.save(*CELLS)
        second = ServedNotebook(url, home, first.path)
        try:
            assert "rows 2" in second.run(COUNT, cell="count")
        finally:
            second.leave()
        made = {each.name for each in (root / ".nosync").iterdir()}
        assert {"Untitled", ".gitignore"} == made


def test_renamed_running_notebook_is_named_when_another_takes_its_name(
    url: str, home: Path, root: Path
) -> None:
    with closing(ServedNotebook(url, home)) as first:
        loaded(first)
        first.save(*CELLS)
        first.rename("quick.ipynb")
        assert "rows 2" in first.run(COUNT, cell="count")
        first.delete()
    nbformat.write(nbformat.v4.new_notebook(), root / "quick.ipynb")
    with closing(ServedNotebook(url, home, "quick.ipynb")) as anew:
        shown = anew.run("x = 1", cell="other")
        assert ".nosync/Untitled is the log of another quick.ipynb" in shown
        assert "`%dd open .nosync/Untitled` adopts it" in shown


def test_second_server_reports_owner_of_log(
    url: str, home: Path, root: Path, tmp_path: Path
) -> None:
    with (
        closing(ServedNotebook(url, home)) as first,
        served(tmp_path, root, app="jupyter_server") as address,
    ):
        loaded(first)
        first.save(*CELLS)
        record = root / ".nosync" / "Untitled" / "identity.json"
        before = record.read_bytes()
        with closing(ServedNotebook(address, tmp_path, first.path)) as second:
            shown = second.run("1 + 1", cell="count")
            assert shown.status == "ok"
            assert "FencedError" in shown
            assert "it is the log of Untitled.ipynb; `%dd open .nosync/Untitled --mode r`" in shown
            opened = f"%dd open .nosync/Untitled --mode r\n{COUNT}"
            assert "rows 2" in second.run(opened, cell="count")
        assert before == record.read_bytes()
        assert [p.name for p in (root / ".nosync").iterdir() if p.is_dir()] == ["Untitled"]
        assert "rows 2" in first.run(COUNT, cell="count")


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def test_log_follows_notebook_through_git_checkout(tmp_path: Path) -> None:
    """git replaces the file: its inode changes, and its cells may be older."""
    work = tmp_path / "work"
    work.mkdir()
    path = work / "flights.ipynb"

    def write(*cells: tuple[str, str]) -> None:
        made = [nbformat.v4.new_code_cell(text, id=known) for known, text in cells]
        path.write_text(nbformat.writes(nbformat.v4.new_notebook(cells=made)))

    write(("title", "1"))
    git(work, "init", "-b", "main")
    git(work, "add", "flights.ipynb")
    git(work, "commit", "-m", "begun")
    git(work, "checkout", "-b", "more")
    write(("title", "1"), *CELLS)
    git(work, "commit", "-a", "-m", "loads")
    with closing(Kernel(tmp_path, notebook="work/flights.ipynb")) as kernel:
        loaded(kernel)
        assert "flights" in kernel.run("%dd status", cell="title")
        number = path.stat().st_ino
        git(work, "checkout", "main")
        assert path.stat().st_ino != number
        kernel.renew("work/flights.ipynb", folder="work")
        assert "rows 2" in kernel.run(COUNT, cell="title")
        git(work, "checkout", "more")
        kernel.renew("work/flights.ipynb", folder="work")
        assert "rows 2" in kernel.run(COUNT, cell="load")


RUNNERS = ("execute --inplace", "nbconvert --execute --to notebook --inplace")


@pytest.mark.parametrize("runner", RUNNERS)
def test_runner_reports_temporary_log(home: Path, url: str, tmp_path: Path, runner: str) -> None:
    """Runners pass no name; NOSYNC_SESSION does."""
    made = [nbformat.v4.new_code_cell(text, id=known) for known, text in CELLS]
    spec = {"name": "nosync", "display_name": "Python 3 (NoSync)", "language": "python"}
    notebook = nbformat.v4.new_notebook(
        cells=[*made, nbformat.v4.new_code_cell(COUNT)], metadata={"kernelspec": spec}
    )
    path = tmp_path / "flights.ipynb"
    nbformat.write(notebook, path)
    environ = {**os.environ, "JUPYTER_PATH": str(home / "prefix" / "share" / "jupyter")}
    environ.pop("JPY_SESSION_NAME", None)

    def ran(**more: str) -> str:
        command = [sys.executable, "-m", "jupyter", *runner.split(), str(path)]
        env = {**environ, **more}
        subprocess.run(command, env=env, cwd=tmp_path, check=True, capture_output=True, timeout=120)
        return path.read_text()

    shown = ran()
    assert "the notebook's name is unknown, so its log is temporary" in shown
    assert "rows 2" in shown
    assert not (tmp_path / ".nosync").exists()
    if runner == RUNNERS[0]:
        ran(NOSYNC_SESSION="kept")
        assert "recovered at epoch 1" in ran(NOSYNC_SESSION="kept")
