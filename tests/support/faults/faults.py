"""Faults: a disk that fails on command, loses power, and a machine that can be restarted.

`FaultyFiles` works on a real folder, but nothing in it is durable before a sync: it records
the synced content of each file and folder, and `lose_power` brings the real folder into a
state that this record allows. Every step that changes the disk is counted, so that a
test can crash before, inside or after each of them.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest

import nosync_nb
from nosync_nb import Session
from nosync_nb.errors import DurabilityError
from nosync_nb.files.filesystem import Buffer, File, Files, raise_durability_error
from nosync_nb.store.log.owner import HostIdentity, ProcessIdentity
from nosync_nb.store.store import Store

Phase = Literal["before", "inside", "after"]
SECTOR_BYTES = 512

Opened = TypeVar("Opened", bound=File)


class Crash(BaseException):
    """The process is dead."""


@dataclasses.dataclass
class _Inode:
    """A file; `synced` are the bytes that a power failure leaves at least."""

    path: str
    synced: bytes = b""
    content: bytes | None = None

    def now(self) -> bytes:
        if self.content is not None:
            return self.content
        if not os.path.exists(self.path):  # deleted by another process
            return self.synced
        with open(self.path, "rb") as file:
            return file.read()


@dataclasses.dataclass(frozen=True)
class Step:
    number: int
    action: str
    name: str


def survivor(now: bytes, synced: bytes, pick: random.Random) -> bytes:
    """Returns contents of a file that a power failure may leave."""
    if not now.startswith(synced):
        return pick.choice([now, synced])
    loose = bytearray(now[len(synced) :])
    way = pick.randrange(4)
    if way == 0 or not loose:
        return synced
    if way == 1:
        del loose[pick.randrange(len(loose)) :]
    if way == 2:
        at = pick.randrange(len(loose)) // SECTOR_BYTES * SECTOR_BYTES
        loose[at : at + SECTOR_BYTES] = bytes(len(loose[at : at + SECTOR_BYTES]))
    return synced + bytes(loose)


def become(kind: type[Opened], file: File, files: Files | None = None) -> Opened:
    """Turns an open file into one of another kind, which takes its steps through a faulty disk."""
    file.__class__ = kind
    assert isinstance(file, kind)
    vars(file)["_files"] = files
    return file


class OrderedFiles(Files):
    """A disk whose parallel steps run in order, so that a test is repeatable."""

    def at_once(self, steps: Sequence[Callable[[], None]]) -> None:
        for step in steps:
            step()


class HastyFile(File):
    def sync(self) -> None:
        pass


class HastyFiles(Files):
    """A disk without syncs, for tests of file contents."""

    def create(self, path: str) -> File:
        return become(HastyFile, super().create(path))

    def open(self, path: str, *, write: bool = False) -> File:
        return become(HastyFile, super().open(path, write=write))

    def sync_folder(self, path: str) -> None:
        pass


class FaultyFile(File):
    _files: FaultyFiles

    def append(self, data: Buffer) -> None:
        part = bytes(data)[: self._files.cut(len(data))]
        try:
            with self._files.step("append", self.path) as phase:
                if phase == "inside":
                    os.write(self._fd, part)
                else:
                    super().append(data)
        except DurabilityError:
            if self._files.halves:
                os.write(self._fd, part)
            raise

    def write_at(self, offset: int, data: Buffer) -> None:
        with self._files.step("write_at", self.path):
            super().write_at(offset, data)

    def sync(self) -> None:
        with self._files.step("sync", self.path):
            if not self._files.lies:
                self._files.note_synced(self.path)


class _Phase:
    """One step of the disk, with its fault."""

    def __init__(self, files: FaultyFiles, step: Step) -> None:
        self._files, self._step = files, step
        self._phase: Phase | None = None

    def __enter__(self) -> Phase | None:
        files, step = self._files, self._step
        if files.dead:
            raise Crash(step)
        error = files.error_at(step) if files.error_at else None
        if error is not None:
            raise_durability_error(OSError(error, os.strerror(error)), step.action, step.name)
        if step.number == files.crash_at:
            self._phase = files.crash_phase
            if self._phase == "before":
                files.dead = True
                raise Crash(step)
        return self._phase

    def __exit__(self, *_: object) -> None:
        if self._phase is not None:
            self._files.dead = True
            raise Crash(self._step)


class FaultyFiles(OrderedFiles):
    """A disk that counts its steps, and fails or crashes at those a test names.

    Args:
        crash_at: number of the step at which the process dies, from 1; 0: never.
        crash_phase: whether the step has not begun, is half done (a write), or is done.
        error_at: returns the errno a step fails with, or None.
        halves: a write that fails has written a part first.
        lies: a sync reports success and does nothing.
    """

    def __init__(
        self,
        *,
        crash_at: int = 0,
        crash_phase: Phase = "before",
        error_at: Callable[[Step], int | None] | None = None,
        halves: bool = False,
        lies: bool = False,
        seed: int = 0,
    ) -> None:
        self.crash_at, self.crash_phase, self.error_at = crash_at, crash_phase, error_at
        self.halves, self.lies = halves, lies
        self.dead = False
        self.steps: list[Step] = []
        self._random = random.Random(seed)
        self._inodes: dict[str, _Inode] = {}
        self._durable_names: dict[str, dict[str, _Inode]] = {}
        self._durable_folders: dict[str, set[str]] = {}
        self._renamed: dict[str, str] = {}  # folders, to a name that was synced

    def crash_in(self, steps: int, phase: Phase) -> None:
        """Lets the process die after some more steps."""
        self.crash_at, self.crash_phase = len(self.steps) + steps, phase

    def refuse(self, steps: int, count: int, code: int) -> None:
        first = len(self.steps) + steps
        self.error_at = lambda step: code if first <= step.number < first + count else None

    def lie(self) -> None:
        """Makes every later sync report success without doing anything."""
        self.lies = True

    def go_on(self) -> None:
        """Starts another process on the same disk, without faults."""
        self.crash_at, self.dead, self.error_at = 0, False, None

    def step(self, action: str, path: str) -> _Phase:
        step = Step(len(self.steps) + 1, action, os.path.basename(path))
        self.steps.append(step)
        return _Phase(self, step)

    def cut(self, length: int) -> int:
        return self._random.randrange(1, max(2, length))

    def note_synced(self, path: str) -> None:
        """Records that the content of a file is durable."""
        inode = self._inode(path)
        inode.synced = inode.now()

    def make_folder(self, path: str, *, sync: bool = True) -> bool:
        missing = path = os.path.abspath(path)
        while not os.path.lexists(missing):
            self._durable_names[missing], self._durable_folders[missing] = {}, set()
            missing = os.path.dirname(missing)
        self._adopt(missing)
        return super().make_folder(path, sync=sync)

    def create(self, path: str) -> FaultyFile:
        self._adopt(os.path.dirname(path))
        with self.step("create", path):
            file = super().create(path)
            self._inodes[path] = _Inode(path)
            return become(FaultyFile, file, self)

    def open(self, path: str, *, write: bool = False) -> FaultyFile:
        if self.dead:
            raise Crash
        return become(FaultyFile, super().open(path, write=write), self)

    def rename(self, source: str, target: str) -> None:
        self._adopt(os.path.dirname(source))
        with self.step("rename", target):
            if target in self._inodes:
                self._inodes[target].content = self._inodes[target].now()
            super().rename(source, target)
            if os.path.isdir(target):
                self._move(source, target)
                return
            inode = self._inodes[target] = self._inodes.pop(source)
            inode.path = target

    def _move(self, source: str, target: str) -> None:
        """Records that a folder was renamed with its contents."""
        parent, name = os.path.split(source)
        if name in self._durable_folders.get(parent, set()):
            self._renamed[target] = name
        for known in (self._inodes, self._durable_names, self._durable_folders):
            below = [path for path in known if path == source or path.startswith(f"{source}/")]
            for path in below:
                known[target + path[len(source) :]] = known.pop(path)
        for path, inode in self._inodes.items():
            if path.startswith(f"{target}/"):
                inode.path = path

    def remove_folder(self, path: str) -> None:
        with self.step("remove_folder", path):
            super().remove_folder(path)

    def link(self, source: str, target: str) -> None:
        self._adopt(os.path.dirname(source))
        self._adopt(os.path.dirname(target))
        with self.step("link", target):
            super().link(source, target)
            known = self._inodes[source]
            self._inodes[target] = _Inode(target, known.synced)

    def unlink(self, path: str) -> None:
        self._adopt(os.path.dirname(path))
        if not self.exists(path):
            return
        with self.step("unlink", path):
            inode = self._inodes.pop(path)
            inode.content = inode.now()
            super().unlink(path)

    def sync_folder(self, path: str) -> None:
        self._adopt(path)
        with self.step("sync_folder", path):
            if not self.lies:
                self._durable_names[path] = self._names_now(path)
                self._durable_folders[path] = _folders_in(path)

    def lose_power(self, root: str) -> None:
        """Brings a folder and its subfolders into a state that the synced bytes and names allow.

        Each unsynced name and file is independently as before, current, truncated, or has an
        unwritten sector. A folder with an unsynced name may be missing with its contents, or have
        its former name if that was synced.
        """
        folders: list[str] = []
        files: dict[str, bytes] = {}
        self._outlast(root, folders, files)
        shutil.rmtree(root)
        for folder in folders:
            os.mkdir(folder, 0o700)
        for path, content in files.items():
            with open(path, "wb") as file:
                file.write(content)
        self.dead = True

    def _outlast(
        self, folder: str, folders: list[str], files: dict[str, bytes], where: str = ""
    ) -> None:
        """Adds the remains of a folder, perhaps under its former name."""
        where = where or folder
        known = self._durable_folders.get(os.path.dirname(folder))
        synced = known is None or os.path.basename(folder) in known
        if not synced and self._random.choice([True, False]):
            if folder not in self._renamed:
                return
            where = os.path.join(os.path.dirname(where), self._renamed[folder])
        self._adopt(folder)
        folders.append(where)
        before, now = self._durable_names.get(folder, {}), self._names_now(folder)
        for name in sorted({*before, *now}):
            inode = self._random.choice([before.get(name), now.get(name)])
            if inode is not None:
                files[os.path.join(where, name)] = survivor(inode.now(), inode.synced, self._random)
        for name in sorted(_folders_in(folder)):
            self._outlast(os.path.join(folder, name), folders, files, os.path.join(where, name))

    def _inode(self, path: str) -> _Inode:
        self._adopt(os.path.dirname(path))
        return self._inodes[path]

    def _adopt(self, folder: str) -> None:
        """Treats the earlier contents of a folder as synced, names and subfolders included."""
        if folder in self._durable_names or not os.path.isdir(folder):
            return
        durable = self._durable_names[folder] = {}
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if os.path.isfile(path) and path not in self._inodes:
                inode = durable[name] = self._inodes[path] = _Inode(path)
                inode.synced = inode.now()
        self._durable_folders[folder] = _folders_in(folder)

    def _names_now(self, folder: str) -> dict[str, _Inode]:
        return {
            os.path.basename(path): inode
            for path, inode in self._inodes.items()
            if os.path.dirname(path) == folder
        }


def on_disk(open_: Callable[..., Any], disk: Files) -> Callable[..., Any]:
    """Wraps a function so that it opens files on the given disk."""

    def opened(*arguments: Any, **named: Any) -> Any:
        return open_(*arguments, **{**named, "files": disk})

    return opened


def opener(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *, left: bool = False
) -> Callable[..., Session]:
    """Returns a function that opens a log on a given disk.

    Args:
        left: take the log over, and leave both owners unclosed.
    """
    opened = Store.open

    def open_(disk: Files, **options: Any) -> Session:
        with monkeypatch.context() as patch:
            patch.setattr(Store, "open", on_disk(opened, disk))
            session = nosync_nb.open(folder, **({"takeover": True} if left else {}), **options)
        if left:
            atexit.unregister(session.close)
        return session

    return open_


def _folders_in(folder: str) -> set[str]:
    if not os.path.isdir(folder):
        return set()
    return {entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)}


class PickyFile(File):
    _files: PickyFiles

    def append(self, data: Buffer) -> None:
        self._files.step("append", self.path)
        super().append(data)

    def write_at(self, offset: int, data: Buffer) -> None:
        self._files.step("write_at", self.path)
        super().write_at(offset, data)

    def read_at(self, offset: int, size: int) -> bytes:
        self._files.step("read_at", self.path)
        return super().read_at(offset, size)

    def sync(self) -> None:
        self._files.step("sync", self.path)

    def close(self) -> None:
        open_ = self._fd >= 0
        super().close()
        if open_:
            self._files.step("close", self.path)


class PickyFiles(OrderedFiles):
    """A disk of which every step can fail, reads included; it syncs nothing.

    Attributes:
        fail_at: number of the step that fails, from 1; 0: none.
        code: its errno.
        steps: the steps since `fail_at` was set.
    """

    def __init__(self) -> None:
        self.fail_at, self.code = 0, 0
        self.steps: list[Step] = []

    def arm(self, fail_at: int, code: int) -> None:
        self.fail_at, self.code = fail_at, code
        self.steps.clear()

    def step(self, action: str, path: str) -> None:
        self.steps.append(Step(len(self.steps) + 1, action, os.path.basename(path)))
        if len(self.steps) == self.fail_at:
            raise_durability_error(OSError(self.code, os.strerror(self.code)), action, path)

    def make_folder(self, path: str, *, sync: bool = True) -> bool:
        self.step("make_folder", path)
        return super().make_folder(path, sync=sync)

    def create(self, path: str) -> PickyFile:
        self.step("create", path)
        return become(PickyFile, super().create(path), self)

    def open(self, path: str, *, write: bool = False) -> PickyFile:
        self.step("open", path)
        return become(PickyFile, super().open(path, write=write), self)

    def mapped(self, path: str, *, write: bool = False) -> Any:
        self.step("mapped", path)
        return super().mapped(path, write=write)

    def rename(self, source: str, target: str) -> None:
        self.step("rename", target)
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self.step("unlink", path)
        super().unlink(path)

    def sync_folder(self, path: str) -> None:
        self.step("sync_folder", path)

    def names(self, path: str) -> list[str]:
        self.step("names", path)
        return super().names(path)

    def exists(self, path: str) -> bool:
        self.step("exists", path)
        return super().exists(path)

    def status(self, path: str) -> os.stat_result:
        self.step("status", path)
        return super().status(path)

    def lock(self, path: str, *, wait_s: float = 0.0) -> Any:
        self.step("lock", path)
        return super().lock(path, wait_s=wait_s)


class FakeMachine(HostIdentity):
    """A machine whose processes, restarts and clock the test controls.

    Each instance is one process. The processes of another `host` are not visible.
    """

    _pids = iter(range(1000, 1_000_000))

    def __init__(self, *, host: str = "here", boot: str = "boot-1", namespace: str = "") -> None:
        self.me = ProcessIdentity(host, boot, namespace, next(self._pids), 1)
        self.dead = False
        self.clock_ms = 1_700_000_000_000
        self.others: list[FakeMachine] = []
        self.meanwhile: list[Callable[[], None]] = []  # what happens while it listens, once each
        self.listened_s = 0.0

    def identity(self) -> ProcessIdentity:
        return self.me

    def now_ms(self) -> int:
        return self.clock_ms

    def changes(self, word: Callable[[], int], seconds: float) -> bool:
        before = word()
        self.listened_s += seconds
        if self.meanwhile:
            self.meanwhile.pop()()
        return word() != before

    def alive(self, other: ProcessIdentity) -> bool | None:
        if other.host != self.me.host or other.namespace != self.me.namespace:
            return None
        if other.boot != self.me.boot:
            return False
        return any(one.me == other and not one.dead for one in (self, *self.others))

    def file_system(self, path: str) -> str:
        return "ext4"

    def die(self) -> None:
        self.dead = True

    def wait(self, ms: int) -> None:
        self.clock_ms += ms

    def after(self, *, boot: str | None = None) -> FakeMachine:
        """Returns the next process, which sees this one; with `boot`, after a restart."""
        following = FakeMachine(
            host=self.me.host, boot=boot or self.me.boot, namespace=self.me.namespace
        )
        following.clock_ms = self.clock_ms
        following.others = [self, *self.others]
        return following
