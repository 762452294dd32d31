"""The disk: every implementation of its primitives keeps the same promises."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from faults import FaultyFiles, HastyFiles

from nosync_nb.errors import DurabilityError
from nosync_nb.files import Files


@pytest.fixture(params=[Files, HastyFiles, FaultyFiles])
def files(request: pytest.FixtureRequest) -> Files:
    made: Files = request.param()
    return made


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path)


def test_appends_follow_each_other_and_are_read_back(files: Files, folder: str) -> None:
    path = os.path.join(folder, "a")
    file = files.create(path)
    file.append(b"one")
    file.append(memoryview(b"two"))
    file.append(bytearray())
    file.sync()
    assert file.size() == 6
    assert file.read_at(0, 100) == b"onetwo"
    assert file.read_at(3, 2) == b"tw"
    assert file.read_at(6, 1) == b""
    file.close()
    file.close()
    assert files.read(path) == b"onetwo"


def test_creating_is_exclusive(files: Files, folder: str) -> None:
    path = os.path.join(folder, "a")
    files.create(path).close()
    with pytest.raises(DurabilityError, match=r"cannot create '.*a': file exists \(EEXIST\)"):
        files.create(path)


def test_short_writes_go_on_where_they_stopped(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: whole(fd, bytes(data)[:3]))
    whole_at = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: whole_at(fd, bytes(data)[:3], at))
    files, path = Files(), os.path.join(folder, "a")
    file = files.create(path)
    file.append(b"0123456789")
    assert files.read(path) == b"0123456789"
    other = files.open(path, write=True)
    other.write_at(2, b"abcdefg")
    assert files.read(path) == b"01abcdefg9"


def test_short_reads_go_on_where_they_stopped(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files, path = Files(), os.path.join(folder, "a")
    files.create(path).append(b"0123456789")
    whole = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: whole(fd, min(size, 3), at))
    assert files.open(path).read_at(1, 8) == b"12345678"
    assert files.open(path).read_at(5, 80) == b"56789"


def test_a_write_that_makes_no_progress_is_an_error(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Files().create(os.path.join(folder, "a"))
    monkeypatch.setattr(os, "write", lambda fd, data: 0)
    with pytest.raises(DurabilityError, match="EIO"):
        file.append(b"x")


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "mounted read-only"),
        (errno.EACCES, "permissions"),
        (errno.EIO, "device"),
        (errno.EMFILE, "too many open files"),
    ],
)
def test_an_error_names_path_reason_and_remedy(
    folder: str, code: int, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = os.path.join(folder, "a")
    file = Files().create(path)

    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    for name in ("write", "fdatasync", "pread"):
        monkeypatch.setattr(os, name, refuse)
    for act in (lambda: file.append(b"x"), file.sync, lambda: file.read_at(0, 1)):
        with pytest.raises(DurabilityError) as caught:
            act()
        assert caught.value.errno == code
        assert path in str(caught.value)
        assert errno.errorcode[code] in str(caught.value)
        assert remedy in str(caught.value.hint)


def test_replacing_is_all_or_nothing(files: Files, folder: str) -> None:
    path = os.path.join(folder, "a")
    files.replace(path, b"old")
    files.replace(path, b"new content")
    assert files.read(path) == b"new content"
    assert files.names(folder) == ["a"]


def test_a_failed_replacement_leaves_the_old_content_and_no_rest(folder: str) -> None:
    path = os.path.join(folder, "a")
    Files().replace(path, b"old")
    for action in ("create", "append", "sync", "rename"):
        refuse = FaultyFiles(
            error_at=lambda step, action=action: errno.ENOSPC if step.action == action else None
        )
        with pytest.raises(DurabilityError):
            refuse.replace(path, b"new")
        assert Files().read(path) == b"old"
        assert os.listdir(folder) == ["a"]


def test_a_folder_is_made_with_its_parents_for_the_user_alone(files: Files, folder: str) -> None:
    path = os.path.join(folder, "a", "b", "c")
    assert files.make_folder(path)
    assert not files.make_folder(path)
    assert {os.stat(os.path.join(folder, *"abc"[:n])).st_mode & 0o777 for n in (1, 2, 3)} == {0o700}
    files.create(os.path.join(folder, "file")).close()
    with pytest.raises(DurabilityError):
        files.make_folder(os.path.join(folder, "file"))


def test_a_lock_is_held_until_released(files: Files, folder: str) -> None:
    path = os.path.join(folder, "lock")
    first = files.lock(path)
    assert first is not None
    assert files.lock(path) is None
    assert files.lock(path, wait_s=0.03) is None
    first.release()
    first.release()
    second = files.lock(path)
    assert second is not None
    second.release()


def test_a_map_shows_what_is_written_in_place(files: Files, folder: str) -> None:
    path = os.path.join(folder, "words")
    files.replace(path, bytes(64))
    reader, writer = files.mapped(path), files.mapped(path, write=True)
    writer.words[3] = 7
    assert reader.words[3] == 7
    file = files.open(path, write=True)
    file.write_at(24, (9).to_bytes(8, "little"))
    assert reader.words[3] == writer.words[3] == 9
    with pytest.raises(TypeError):
        reader.words[3] = 1
    for each in (reader, writer):
        each.close()
        each.close()


def test_links_are_not_followed(files: Files, folder: str) -> None:
    target, link = os.path.join(folder, "target"), os.path.join(folder, "link")
    Path(target).write_bytes(b"secret")
    os.symlink(target, link)
    for act in (files.read, files.lock, files.mapped, files.create):
        with pytest.raises(DurabilityError):
            act(link)
    assert files.exists(link)
    files.unlink(link)
    files.unlink(link)
    assert files.read(target) == b"secret"


def test_a_deleted_file_knows_it(files: Files, folder: str) -> None:
    file = files.create(os.path.join(folder, "a"))
    assert not file.deleted()
    files.unlink(file.path)
    assert file.deleted()


def test_free_space_is_told(files: Files, folder: str) -> None:
    assert files.free_bytes(folder) > 0
    with pytest.raises(DurabilityError):
        files.free_bytes(os.path.join(folder, "none"))


def test_power_takes_what_was_not_synced(tmp_path: Path) -> None:
    """The faulty disk itself: unsynced bytes and names may be lost, synced ones never."""
    seen = set()
    for seed in range(60):
        folder = str(tmp_path / f"{seed}")
        files = FaultyFiles(seed=seed)
        files.make_folder(folder)
        file = files.create(os.path.join(folder, "a"))
        file.append(b"synced")
        file.sync()
        files.sync_folder(folder)
        file.append(b" loose")
        files.create(os.path.join(folder, "b")).append(b"loose")
        files.lose_power(folder)
        left = {name: Path(folder, name).read_bytes() for name in os.listdir(folder)}
        assert left["a"].startswith(b"synced")
        seen.add((left["a"] == b"synced", left["a"] == b"synced loose", "b" in left))
    assert {True, False} == {one for one, _, _ in seen} == {one for _, _, one in seen}
    assert any(whole for _, whole, _ in seen)
