"""The location of a notebook's log, and the facts recorded beside it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from nosync.log.location import (
    MEMO,
    LogPlace,
    chosen_place,
    default_place,
    notebook_path,
    prepare_folder,
    temporary_place,
)
from nosync.log.notebook_memo import NotebookMemo
from nosync_nb.errors import DurabilityError, TrustError

_UUID = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"


def test_log_is_beside_notebook(tmp_path: Path) -> None:
    environ = {"JPY_SESSION_NAME": str(tmp_path / "flights.ipynb")}
    notebook = notebook_path({}, environ, Path.cwd())
    assert notebook is not None
    assert tmp_path / ".nosync" / "flights" == default_place(notebook)
    assert chosen_place(environ, Path.cwd()) is None


@pytest.mark.parametrize("told", [f"flights-jvsc-{_UUID}.ipynb", "flights.ipynb"])
def test_name_from_remote_vscode_loses_suffix(tmp_path: Path, told: str) -> None:
    assert tmp_path / "flights.ipynb" == notebook_path({}, {"JPY_SESSION_NAME": told}, tmp_path)


def test_path_from_vscode_precedes_name_from_server(tmp_path: Path) -> None:
    told = {"__vsc_ipynb_file__": str(tmp_path / "a.ipynb")}
    environ = {"JPY_SESSION_NAME": str(tmp_path / "b.ipynb"), "NOSYNC_SESSION": "logs/x"}
    assert tmp_path / "a.ipynb" == notebook_path(told, environ, tmp_path)
    assert tmp_path / "logs" / "x" == chosen_place(environ, tmp_path)


@pytest.mark.parametrize("told", ["", _UUID, "console-1", "/nowhere/at/all/x.ipynb"])
def test_incomplete_notebook_name_gives_no_path(told: str, tmp_path: Path) -> None:
    assert notebook_path({}, {"JPY_SESSION_NAME": told}, tmp_path) is None


def test_folder_of_logs_ignores_itself_in_git(tmp_path: Path) -> None:
    place = LogPlace(tmp_path / ".nosync" / "flights", "the notebook's name")
    prepare_folder(place)
    assert (tmp_path / ".nosync" / ".gitignore").read_text() == "*\n"
    assert not place.has_log


def test_folder_that_cannot_be_created_names_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DurabilityError, match=r"cannot create .*/file/.nosync'") as raised:
        prepare_folder(LogPlace(tmp_path / "file" / ".nosync" / "log", "a test"))
    assert "%dd open PATH" in raised.value.__notes__[-1]


def test_read_only_file_system_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(DurabilityError, match="read-only file system") as raised:
        prepare_folder(LogPlace(tmp_path / ".nosync" / "log", "a test"))
    assert "remount it" in raised.value.__notes__[0]


def test_memo_alone_is_no_log(tmp_path: Path) -> None:
    place = LogPlace(tmp_path / "log", "test")
    place.path.mkdir()
    NotebookMemo(attempts=1).write(place.path)
    assert not place.has_log
    (place.path / "segment").write_bytes(b"x")
    assert place.has_log


def test_memo_is_read_as_written(tmp_path: Path) -> None:
    memo = NotebookMemo(2, {"x": "In[1]: x = 5"}, {"a": "delays"})
    memo.write(tmp_path)
    assert memo == NotebookMemo.read(tmp_path)
    assert [tmp_path / "notebook.json"] == list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "{", "[]", '{"attempts": "many"}'])
def test_damaged_memo_reads_as_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / "notebook.json").write_text(text)
    assert NotebookMemo() == NotebookMemo.read(tmp_path)


def test_temporary_place_exists() -> None:
    place = temporary_place()
    try:
        assert place.temporary
        assert place.path.is_dir()
    finally:
        place.path.rmdir()


@pytest.fixture
def profile_file(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    path = tmp_path / "home" / "profile"
    path.write_text("mine")
    return path


def test_log_folder_that_is_a_link_is_refused(tmp_path: Path, profile_file: Path) -> None:
    """The repository of another user may contain links; their targets must not be written."""
    above = tmp_path / "work" / ".nosync"
    above.parent.mkdir()
    above.symlink_to(profile_file.parent)
    for write in (True, False):
        with pytest.raises(TrustError, match="is a link"):
            prepare_folder(LogPlace(above / "nb", "the notebook's name"), write=write)
    above.unlink()
    above.mkdir()
    (above / "nb").symlink_to(profile_file.parent)
    with pytest.raises(TrustError, match="is a link"):
        prepare_folder(LogPlace(above / "nb", "the notebook's name"))
    assert [p.name for p in profile_file.parent.iterdir()] == ["profile"]


def test_files_beside_log_follow_no_link(tmp_path: Path, profile_file: Path) -> None:
    above = tmp_path / ".nosync"
    folder = above / "nb"
    folder.mkdir(parents=True)
    drafts = [f"{MEMO}.{os.getpid()}", f"{MEMO}.{os.getpid()}.tmp", MEMO]
    for link in (above / ".gitignore", *(folder / name for name in drafts)):
        link.symlink_to(profile_file)
    place = LogPlace(folder, "the notebook's name")
    prepare_folder(place)
    assert NotebookMemo.read(folder) == NotebookMemo()
    NotebookMemo(1, {"words of": "somebody"}).write(folder)
    assert profile_file.read_text() == "mine"
    assert NotebookMemo.read(folder).attempts == 1
    assert not (folder / MEMO).is_symlink()


@pytest.mark.timeout(20)
def test_memo_that_is_pipe_or_sparse_file_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / MEMO)
    assert NotebookMemo.read(tmp_path) == NotebookMemo()
    (tmp_path / MEMO).unlink()
    (tmp_path / MEMO).touch()
    os.truncate(tmp_path / MEMO, 1 << 42)
    assert NotebookMemo.read(tmp_path) == NotebookMemo()


def test_files_beside_log_are_private_to_user(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        prepare_folder(LogPlace(tmp_path / ".nosync" / "nb", "the notebook's name"))
        NotebookMemo(1).write(tmp_path / ".nosync")
    finally:
        os.umask(before)
    modes = {p.name: p.stat().st_mode & 0o777 for p in tmp_path.rglob("*")}
    assert modes == {".nosync": 0o700, ".gitignore": 0o600, MEMO: 0o600}


@pytest.mark.fault(22)
def test_folder_of_logs_writable_by_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".nosync").mkdir()
    (tmp_path / ".nosync").chmod(0o777)
    with pytest.raises(TrustError, match="is writable by other users"):
        prepare_folder(LogPlace(tmp_path / ".nosync" / "nb", "the notebook's name"))
