"""The folder of a log: only real folders and regular files of the user.

The folder may come with a repository or an archive of another user.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
from pathlib import Path

import pytest
from internals import checkpoint_now

import nosync_nb
from nosync_nb import NosyncError, TrustError
from nosync_nb.files.filesystem import Files

pytestmark = pytest.mark.usefixtures("own_key", "large_from_four_rows")


def write_log(folder: Path, *, checkpoint: bool = True) -> None:
    """A log with parts and packs, two checkpoints and a tail."""
    with nosync_nb.open(folder) as session:
        rows = session.input("rows", "k int, v int")
        for epoch in range(4):
            rows.insert([(k, epoch) for k in range(12)])
            session.commit()
            if checkpoint and epoch < 3:
                checkpoint_now(session)


def paths_below(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*")}


@pytest.mark.fault(22)
@pytest.mark.parametrize("inner", ["layers", "history"])
@pytest.mark.parametrize("mode", ["w", "r"])
def test_link_in_place_of_inner_folder_is_refused(tmp_path: Path, inner: str, mode: str) -> None:
    write_log(tmp_path / "log")
    victim = tmp_path / "victim"
    shutil.move(tmp_path / "log" / inner, victim)
    (victim / "mine.arrow").write_bytes(b"mine")
    (victim / "mine.pack").write_bytes(b"mine")
    (tmp_path / "log" / inner).symlink_to(victim)
    before = paths_below(victim)
    with pytest.raises(TrustError, match=rf"'.*{inner}' is a link"):
        nosync_nb.open(tmp_path / "log", mode=mode)  # type: ignore[arg-type]
    assert paths_below(victim) == before


@pytest.mark.fault(22)
@pytest.mark.parametrize("inner", ["layers", "history"])
@pytest.mark.parametrize("mode", ["w", "r"])
def test_inner_folder_writable_by_others_is_refused(tmp_path: Path, inner: str, mode: str) -> None:
    write_log(tmp_path / "log")
    (tmp_path / "log" / inner).chmod(0o777)
    with pytest.raises(TrustError, match="is writable by other users") as caught:
        nosync_nb.open(tmp_path / "log", mode=mode)  # type: ignore[arg-type]
    assert "chmod 700" in (caught.value.hint or "")


@pytest.mark.fault(22)
@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("inner", ["layers", "history"])
def test_inner_folder_of_other_user_is_refused(tmp_path: Path, inner: str) -> None:
    write_log(tmp_path / "log")
    os.chown(tmp_path / "log" / inner, 12345, 12345)
    with pytest.raises(TrustError, match="belongs to user 12345"):
        nosync_nb.open(tmp_path / "log")


def test_log_files_are_private_to_user(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_log(tmp_path / "above" / "log")
    finally:
        os.umask(before)
    for path in (tmp_path / "above").rglob("*"):
        wanted = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path


def pipe(path: Path) -> None:
    os.mkfifo(path)


def listening(path: Path) -> None:
    here = os.open(path.parent, os.O_RDONLY)  # the path may be too long for a socket
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


def link(path: Path) -> None:
    (path.parent.parent / "elsewhere").write_bytes(b"12345678")
    path.symlink_to(path.parent.parent / "elsewhere")


def folder(path: Path) -> None:
    path.mkdir()


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def absurd(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 42)


STRANGERS = [pipe, listening, link, folder, endless, absurd]
KINDS = ["checkpoint-", "segment-", "generation", "owner", "lock", "layers/", "history/"]


@pytest.mark.fault(22)
@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS)
def test_special_files_are_reported_and_no_call_hangs(tmp_path: Path, kind: str) -> None:
    write_log(tmp_path / "whole")
    with nosync_nb.open(tmp_path / "whole") as session:
        wanted = session["rows"].rows()
    log = tmp_path / "log"
    for put in STRANGERS:
        shutil.copytree(tmp_path / "whole", log)
        names = sorted(str(p.relative_to(log)) for p in log.rglob("*") if p.is_file())
        name = next(name for name in reversed(names) if name.startswith(kind))
        (log / name).unlink()
        put(log / name)
        for mode in ("r", "w"):
            error = None
            try:
                with nosync_nb.open(log, mode=mode) as session:  # type: ignore[arg-type]
                    assert session["rows"].rows() == wanted
            except NosyncError as found:
                error = found
            assert error is None or (str(log) in str(error) and error.hint), (put, mode)
        shutil.rmtree(log)


def test_log_below_a_link_is_accepted(tmp_path: Path) -> None:
    """The path to the folder may contain links."""
    (tmp_path / "real").mkdir()
    (tmp_path / "way").symlink_to(tmp_path / "real")
    write_log(tmp_path / "way" / "log", checkpoint=False)
    assert (tmp_path / "real" / "log" / "owner").is_file()
    assert Files().names(str(tmp_path / "real")) == ["log"]
