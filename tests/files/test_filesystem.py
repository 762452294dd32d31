"""File primitives: every implementation keeps the same promises."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from faults.faults import FaultyFiles, HastyFiles
from internals import descriptor_of

from nosync_nb.errors import DurabilityError
from nosync_nb.files.filesystem import Files


@pytest.fixture(params=[Files, HastyFiles, FaultyFiles])
def files(request: pytest.FixtureRequest) -> Files:
    made: Files = request.param()
    return made


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path)


def test_appends_are_read_back_in_order(files: Files, folder: str) -> None:
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


def test_create_refuses_existing_file(files: Files, folder: str) -> None:
    path = os.path.join(folder, "a")
    files.create(path).close()
    with pytest.raises(DurabilityError, match=r"cannot create '.*a': file exists \(EEXIST\)"):
        files.create(path)


@pytest.mark.fault(19)
def test_short_writes_are_continued(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.fault(19)
def test_short_reads_are_continued(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files, path = Files(), os.path.join(folder, "a")
    files.create(path).append(b"0123456789")
    whole = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: whole(fd, min(size, 3), at))
    assert files.open(path).read_at(1, 8) == b"12345678"
    assert files.open(path).read_at(5, 80) == b"56789"


@pytest.mark.fault(19)
def test_write_without_progress_raises_error(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_error_names_path_reason_and_remedy(
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


def test_replace_leaves_only_the_new_content(files: Files, folder: str) -> None:
    path = os.path.join(folder, "a")
    files.replace(path, b"old")
    files.replace(path, b"new content")
    assert files.read(path) == b"new content"
    assert files.names(folder) == ["a"]


@pytest.mark.fault(9)
@pytest.mark.parametrize("sync", [True, False])
def test_synced_replacement_survives_power_loss(tmp_path: Path, sync: bool) -> None:
    seen = set()
    for seed in range(30):
        folder, files = str(tmp_path / f"{seed}"), FaultyFiles(seed=seed)
        files.make_folder(folder)
        files.replace(os.path.join(folder, "a"), b"old")
        files.replace(os.path.join(folder, "a"), b"new content", sync=sync)
        files.lose_power(folder)
        seen.add(Path(folder, "a").read_bytes())
    assert seen == {b"new content"} if sync else {b"old", b"new content"} <= seen


@pytest.mark.fault(8)
def test_copy_with_synced_name_survives_power_loss(tmp_path: Path) -> None:
    for seed in range(30):
        folder, files = str(tmp_path / f"{seed}"), FaultyFiles(seed=seed)
        files.make_folder(folder)
        files.replace(os.path.join(folder, "a"), b"content")
        files.copy(os.path.join(folder, "a"), os.path.join(folder, "b"))
        files.sync_folder(folder)
        files.lose_power(folder)
        assert Path(folder, "b").read_bytes() == b"content"


@pytest.mark.fault(20)
def test_failed_replacement_keeps_old_content_and_leaves_no_file(folder: str) -> None:
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


def test_make_folder_creates_private_parents(files: Files, folder: str) -> None:
    path = os.path.join(folder, "a", "b", "c")
    assert files.make_folder(path)
    assert not files.make_folder(path)
    assert {os.stat(os.path.join(folder, *"abc"[:n])).st_mode & 0o777 for n in (1, 2, 3)} == {0o700}
    files.create(os.path.join(folder, "file")).close()
    with pytest.raises(DurabilityError):
        files.make_folder(os.path.join(folder, "file"))


def test_lock_is_exclusive_until_released(files: Files, folder: str) -> None:
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


def test_map_shows_writes_in_place(files: Files, folder: str) -> None:
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


def test_file_reports_its_deletion(files: Files, folder: str) -> None:
    file = files.create(os.path.join(folder, "a"))
    assert not file.deleted()
    files.unlink(file.path)
    assert file.deleted()


@pytest.mark.fault(9)
def test_power_loss_drops_unsynced_bytes_and_names(tmp_path: Path) -> None:
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


@pytest.fixture(params=[0o000, 0o022, 0o277, 0o777], ids="{:03o}".format)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_created_files_are_private_under_any_umask(files: Files, folder: str) -> None:
    inner = os.path.join(folder, "a", "b")
    files.make_folder(inner)
    files.create(os.path.join(inner, "file")).close()
    files.replace(os.path.join(inner, "whole"), b"x")
    lock = files.lock(os.path.join(inner, "lock"))
    assert lock is not None
    lock.release()
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in Path(folder).rglob("*")}
    assert modes == {"a": 0o700, "b": 0o700, "file": 0o600, "whole": 0o600, "lock": 0o600}


def special_files(folder: str) -> dict[str, str]:
    """The kinds of files that are not regular, by name."""
    made = {name: os.path.join(folder, name) for name in ("pipe", "folder", "socket", "link")}
    os.mkfifo(made["pipe"])
    os.mkdir(made["folder"])
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(folder, os.O_RDONLY)  # the path may be too long for a socket
        server.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)
    os.symlink("/dev/zero", made["link"])
    return {**made, "device": "/dev/zero"}


@pytest.mark.timeout(20)
def test_only_regular_files_are_opened_and_no_call_hangs(files: Files, folder: str) -> None:
    for path in special_files(folder).values():
        acts: list[Callable[[str], Any]] = [files.read, files.open, files.mapped, files.lock]
        acts.append(lambda path: files.open(path, write=True))
        acts.append(lambda path: files.mapped(path, write=True))
        for act in acts:
            with pytest.raises(DurabilityError) as caught:
                act(path)
            assert path in str(caught.value)
            assert caught.value.hint


def test_folder_behind_link_is_refused(files: Files, folder: str) -> None:
    target, link = os.path.join(folder, "target"), os.path.join(folder, "link")
    os.mkdir(target)
    Path(target, "mine").write_bytes(b"12345678")
    os.symlink(target, link)
    mine = os.path.join(link, "mine")
    acts: list[Callable[[], Any]] = [
        lambda: files.names(link),
        lambda: files.sync_folder(link),
        lambda: files.make_folder(link),
        lambda: files.restrict(link),
        lambda: files.read(mine),
        lambda: files.mapped(mine),
        lambda: files.lock(mine),
        lambda: files.create(os.path.join(link, "new")),
        lambda: files.replace(mine, b"theirs"),
        lambda: files.unlink(mine),
    ]
    if type(files) is not Files:  # the other disks record their syncs themselves
        del acts[1]
    for act in acts:
        with pytest.raises(DurabilityError, match=r"not a directory|too many levels"):
            act()
    assert os.listdir(target) == ["mine"]
    assert Path(target, "mine").read_bytes() == b"12345678"


def test_file_above_size_limit_is_not_read(files: Files, folder: str) -> None:
    path = os.path.join(folder, "a")
    files.create(path).close()
    os.truncate(path, 1 << 40)
    with pytest.raises(DurabilityError, match="EFBIG"):
        files.read(path, most=1 << 20)


def open_descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def test_mapped_file_holds_no_descriptor_and_ends_with_its_last_view(folder: str) -> None:
    files, path = Files(), os.path.join(folder, "a")
    files.replace(path, bytes(range(64)))
    before = open_descriptors()
    maps = [files.mapped(path) for _ in range(50)]
    assert open_descriptors() == before
    views = [memoryview(each.words)[1:2] for each in maps]
    for each in maps:
        each.close()
    os.unlink(path)
    assert {view.tobytes() for view in views} == {bytes(range(8, 16))}
    del views
    assert path not in Path("/proc/self/maps").read_text()


def test_close_error_is_raised(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk may report a failed write only at close."""
    files, path = Files(), os.path.join(folder, "a")
    whole, failing = os.close, [0]

    def refuse(fd: int) -> None:
        whole(fd)
        if fd in failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "close", refuse)
    file = files.create(path)
    failing[0] = descriptor_of(file)
    with pytest.raises(DurabilityError, match=r"cannot close .*a': input/output error \(EIO\)"):
        file.close()
    file.close()


@pytest.mark.fault(21)
def test_no_call_leaks_descriptors(files: Files, folder: str) -> None:
    path, gone = os.path.join(folder, "a"), os.path.join(folder, "gone", "a")
    files.create(path).close()

    def steps(at: str) -> list[Callable[[], Any]]:
        around = os.path.dirname(at)
        return [
            lambda: files.replace(at, b"12345678"),
            lambda: files.read(at),
            lambda: files.read(at, most=1),
            lambda: files.mapped(at),
            lambda: files.open(at, write=True).close(),
            lambda: files.create(at).close(),
            lambda: files.create(f"{at}2").close(),
            lambda: files.rename(f"{at}2", f"{at}3"),
            lambda: files.unlink(f"{at}3"),
            lambda: files.names(around),
            lambda: files.restrict(around),
            lambda: files.sync_folder(around),
            lambda: files.make_folder(at),
            lambda: files.exists(at),
        ]

    def take() -> None:
        for step in steps(path) + steps(gone):
            with suppress(DurabilityError):
                step()

    take()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        take()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.fault(9)
def test_power_loss_drops_unsynced_rename(tmp_path: Path) -> None:
    """The faulty disk itself: a file that is synced is lost with a name that is not."""
    seen = set()
    for seed in range(30):
        folder = str(tmp_path / f"{seed}")
        os.mkdir(folder)
        files = FaultyFiles(seed=seed)
        file = files.create(os.path.join(folder, "draft"))
        file.append(b"synced")
        file.sync()
        files.rename(os.path.join(folder, "draft"), os.path.join(folder, "a"))
        files.lose_power(folder)
        seen.add(tuple(os.listdir(folder)))
    assert seen == {(), ("a",)}


@pytest.mark.fault(9)
def test_power_loss_drops_folder_with_unsynced_name(tmp_path: Path) -> None:
    class Forgetful(FaultyFiles):
        """Does not sync the folder above a new one."""

        forgets = False

        def sync_folder(self, path: str) -> None:
            if not self.forgets:
                super().sync_folder(path)

    for forgets in (False, True):
        seen = set()
        for seed in range(30):
            root = tmp_path / f"{forgets}{seed}"
            files = Forgetful(seed=seed)
            files.make_folder(str(root))
            files.forgets = forgets
            inner = str(root / "inner")
            files.make_folder(inner)
            files.forgets = False
            file = files.create(os.path.join(inner, "a"))
            file.append(b"x")
            file.sync()
            files.sync_folder(inner)
            files.lose_power(str(root))
            seen.add((root / "inner" / "a").exists())
        assert seen == ({True, False} if forgets else {True})


@pytest.mark.fault(8, 9)
def test_file_and_folder_are_synced_by_the_system_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulated power losses replace these two calls, so one test observes them."""
    synced: list[int] = []

    def watched(sync: Callable[[int], None]) -> Callable[[int], None]:
        def seen(fd: int) -> None:
            synced.append(os.fstat(fd).st_ino)
            sync(fd)

        return seen

    monkeypatch.setattr(os, "fsync", watched(os.fsync))
    monkeypatch.setattr(os, "fdatasync", watched(os.fdatasync))
    file = Files().create(str(tmp_path / "file"))
    file.append(b"data")
    file.sync()
    file.close()
    assert synced == [(tmp_path / "file").stat().st_ino]
    Files().sync_folder(str(tmp_path))
    assert synced[1:] == [tmp_path.stat().st_ino]
