"""Faults: a disk that fails on command, loses power, and a machine that can be restarted.

`FaultyFiles` works on a real folder, but nothing is durable unless it says so: it keeps its
own account of what was synced, file by file and name by name, and `lose_power` brings the
folder into a state the account allows. Every step that changes the disk is counted, so that a
test can crash before, inside or after each of them.
"""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
from collections.abc import Callable
from typing import Literal

from nosync_nb.errors import DurabilityError
from nosync_nb.files import Buffer, File, Files, fail
from nosync_nb.log.machine import Identity, Machine

Phase = Literal["before", "inside", "after"]
SECTOR_BYTES = 512


class Crash(BaseException):
    """The process is dead: nothing after this point happened."""


@dataclasses.dataclass
class _Inode:
    """A file as the disk knows it: `synced` is what a power failure leaves at least."""

    path: str
    synced: bytes = b""
    content: bytes | None = None

    def now(self) -> bytes:
        """Returns what the page cache holds."""
        if self.content is not None:
            return self.content
        if not os.path.exists(self.path):  # somebody deleted it behind our back
            return self.synced
        with open(self.path, "rb") as file:
            return file.read()


@dataclasses.dataclass(frozen=True)
class Step:
    """One change of the disk: its number, what it does and to which file."""

    number: int
    action: str
    name: str


class HastyFile(File):
    """A file whose sync costs nothing."""

    def sync(self) -> None:
        pass


class HastyFiles(Files):
    """A disk without syncs, for tests of what the bytes are."""

    def create(self, path: str) -> File:
        return HastyFile(super().create(path)._fd, path)

    def open(self, path: str, *, write: bool = False) -> File:
        return HastyFile(super().open(path, write=write)._fd, path)

    def sync_folder(self, path: str) -> None:
        pass


class FaultyFile(File):
    """A file of a faulty disk."""

    __slots__ = ("_files",)

    def __init__(self, fd: int, path: str, files: FaultyFiles) -> None:
        super().__init__(fd, path)
        self._files = files

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
    """Runs one step and lets the fault happen at its place."""

    def __init__(self, files: FaultyFiles, step: Step) -> None:
        self._files, self._step = files, step
        self._phase: Phase | None = None

    def __enter__(self) -> Phase | None:
        files, step = self._files, self._step
        if files.dead:
            raise Crash(step)
        error = files.error_at(step) if files.error_at else None
        if error is not None:
            fail(OSError(error, os.strerror(error)), step.action, step.name)
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


class FaultyFiles(Files):
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

    def step(self, action: str, path: str) -> _Phase:
        """Counts a step."""
        step = Step(len(self.steps) + 1, action, os.path.basename(path))
        self.steps.append(step)
        return _Phase(self, step)

    def cut(self, length: int) -> int:
        """Returns how much of a write happens before the crash inside it."""
        return self._random.randrange(1, max(2, length))

    def note_synced(self, path: str) -> None:
        """Remembers that the content of a file is on the disk."""
        inode = self._inode(path)
        inode.synced = inode.now()

    def create(self, path: str) -> FaultyFile:
        with self.step("create", path):
            file = super().create(path)
            self._inodes[path] = _Inode(path)
            return FaultyFile(file._fd, path, self)

    def open(self, path: str, *, write: bool = False) -> FaultyFile:
        if self.dead:
            raise Crash
        return FaultyFile(super().open(path, write=write)._fd, path, self)

    def rename(self, source: str, target: str) -> None:
        self._adopt(os.path.dirname(source))
        with self.step("rename", target):
            if target in self._inodes:
                self._inodes[target].content = self._inodes[target].now()
            super().rename(source, target)
            inode = self._inodes[target] = self._inodes.pop(source)
            inode.path = target

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

    def lose_power(self, folder: str) -> None:
        """Brings the folder into a state that what was synced, and no more, allows.

        Each name and each file that was not synced is independently as before, as now, cut
        off somewhere, or with a sector of it unwritten.
        """
        self._adopt(folder)
        before, now = self._durable_names.get(folder, {}), self._names_now(folder)
        after: dict[str, bytes] = {}
        for name in {*before, *now}:
            choices = [before.get(name), now.get(name)]
            inode = self._random.choice(choices)
            if inode is not None:
                after[name] = self._survives(inode)
        shutil.rmtree(folder)
        os.mkdir(folder, 0o700)
        for name, content in after.items():
            with open(os.path.join(folder, name), "wb") as file:
                file.write(content)
        self.dead = True

    def _survives(self, inode: _Inode) -> bytes:
        now, synced = inode.now(), inode.synced
        if not now.startswith(synced):
            return self._random.choice([now, synced])
        loose = bytearray(now[len(synced) :])
        way = self._random.randrange(4)
        if way == 0 or not loose:
            return synced
        if way == 1:
            del loose[self._random.randrange(len(loose)) :]
        if way == 2:
            at = self._random.randrange(len(loose)) // SECTOR_BYTES * SECTOR_BYTES
            loose[at : at + SECTOR_BYTES] = bytes(len(loose[at : at + SECTOR_BYTES]))
        return synced + bytes(loose)

    def _inode(self, path: str) -> _Inode:
        self._adopt(os.path.dirname(path))
        return self._inodes[path]

    def _adopt(self, folder: str) -> None:
        """Takes what a former process left in the folder for synced, names included."""
        if folder in self._durable_names or not os.path.isdir(folder):
            return
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if os.path.isfile(path) and path not in self._inodes:
                self._inodes[path] = _Inode(path)
                self._inodes[path].synced = self._inodes[path].now()
        self._durable_names[folder] = self._names_now(folder)

    def _names_now(self, folder: str) -> dict[str, _Inode]:
        return {
            os.path.basename(path): inode
            for path, inode in self._inodes.items()
            if os.path.dirname(path) == folder
        }


class FakeMachine(Machine):
    """A machine whose processes, restarts and clock are in a test's hands.

    Each instance is one process; those in `dead` do not live any more. Another `host` cannot
    be seen into.
    """

    _pids = iter(range(1000, 1_000_000))

    def __init__(self, *, host: str = "here", boot: str = "boot-1", namespace: str = "") -> None:
        self.me = Identity(host, boot, namespace, next(self._pids), 1)
        self.dead = False
        self.clock_ms = 1_700_000_000_000
        self.others: list[FakeMachine] = []

    def identity(self) -> Identity:
        return self.me

    def now_ms(self) -> int:
        return self.clock_ms

    def alive(self, other: Identity) -> bool | None:
        if other.host != self.me.host or other.namespace != self.me.namespace:
            return None
        if other.boot != self.me.boot:
            return False
        return any(one.me == other and not one.dead for one in (self, *self.others))

    def file_system(self, path: str) -> str:
        return "ext4"

    def after(self, *, boot: str | None = None) -> FakeMachine:
        """Returns the next process, which sees this one; after a restart with `boot`."""
        following = FakeMachine(
            host=self.me.host, boot=boot or self.me.boot, namespace=self.me.namespace
        )
        following.clock_ms = self.clock_ms
        following.others = [self, *self.others]
        return following
