"""A disk in memory: files, folders and names, their durable state, and every fault of a disk.

`Tree` is the disk; `MemoryFiles` is the disk as one process sees it, with its faults. A life of
hundreds of steps takes milliseconds here, because no call reaches the system. As on a real disk, a
name refers to a file: a replaced file exists until its folder is synced, and writes through a map
are visible to all at once.
"""

from __future__ import annotations

import errno
import os
import random
import stat
import zlib
from collections import Counter
from typing import Any, NamedTuple, NoReturn

from faults.faults import Crash, OrderedFiles, Phase, survivor
from nosync_nb.errors import CorruptLogError
from nosync_nb.files.filesystem import Buffer, File, Lock, raise_durability_error

_MINE = os.getuid(), os.getgid()
_FILE = stat.S_IFREG | 0o600
_made = tuple.__new__  # of named tuples, which take three times as long to make by their names


class Inode:
    """The content of a file, and its durable bytes."""

    def __init__(self, number: int, content: bytes = b"") -> None:
        self.number, self.changed, self.links = number, number, 1
        self.content = bytearray(content)
        self.synced = content
        self.locked = False

    def flip(self, bit: int) -> None:
        self.content[bit // 8] ^= 1 << bit % 8
        self.synced = bytes(self.content)

    def grow(self, data: Buffer, moment: int) -> None:
        self.content += data
        self.changed = moment

    def write(self, offset: int, data: Buffer, moment: int) -> None:
        if data:
            self.content.extend(bytes(max(0, offset - len(self.content))))
        self.content[offset : offset + len(data)] = data
        self.changed = moment

    def sync(self) -> None:
        self.synced = bytes(self.content)

    def lock(self, *, taken: bool) -> None:
        self.locked = taken

    def name_again(self) -> None:
        self.links += 1

    def unname(self) -> None:
        self.links -= 1


class Directory:
    """The names in a folder: current ones and durable ones."""

    def __init__(self) -> None:
        self.now: dict[str, Inode | Directory] = {}
        self.durable: dict[str, Inode | Directory] = {}

    def sync(self) -> None:
        self.durable = dict(self.now)


class Tree:
    """A disk.

    Attributes:
        places: by path, the names of its folder and its own name, until a folder moves or is
        deleted.
    """

    def __init__(self) -> None:
        self.root = Directory()
        self.numbers = 0
        self._folders: dict[str, Directory] = {}  # where paths lead, until a folder moves or goes
        self.places: dict[str, tuple[dict[str, Inode | Directory], str]] = {}

    def number(self) -> int:
        """Returns a new number for a file or a moment."""
        self.numbers += 1
        return self.numbers

    def find(self, path: str) -> Inode | Directory | None:
        """The node at a path; OSError if the path leads through a file."""
        place = self.places.get(path)
        if place is not None:
            return place[0].get(place[1])
        above, _, name = path.rpartition("/")
        if not name:
            return self.root
        found = self._folders.get(above) or self.find(above)
        if found is None:
            return None
        if isinstance(found, Inode):
            raise NotADirectoryError(errno.ENOTDIR, "")
        self._folders[above] = found
        self.places[path] = found.now, name
        return found.now.get(name)

    def moved(self) -> None:
        self._folders.clear()
        self.places.clear()

    def folder(self, path: str) -> Directory:
        known = self._folders.get(path)
        if known is not None:
            return known
        found = self.find(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "")
        if isinstance(found, Inode):
            raise NotADirectoryError(errno.ENOTDIR, "")
        return found

    def files(self, path: str) -> dict[str, bytes]:
        """The files in a folder and its subfolders, by relative path."""
        found: dict[str, bytes] = {}
        for name, node in self.folder(path).now.items():
            if isinstance(node, Inode):
                found[name] = bytes(node.content)
            else:
                inner = self.files(f"{path}/{name}")
                found.update((f"{name}/{each}", data) for each, data in inner.items())
        return found

    def put(self, path: str, node: Inode | Directory | None) -> None:
        """Puts a node at a path durably; None deletes the entry."""
        folder, name = self.folder(os.path.dirname(path)), os.path.basename(path)
        self.moved()
        for names in (folder.now, folder.durable):
            names.pop(name, None)
            if node is not None:
                names[name] = node

    def copy(self, path: str) -> Directory:
        made = Directory()
        for name, node in self.folder(path).now.items():
            one = (
                Inode(self.number(), bytes(node.content))
                if isinstance(node, Inode)
                else self.copy(f"{path}/{name}")
            )
            made.now[name] = made.durable[name] = one
        return made

    def lose_power(self, path: str, pick: random.Random) -> None:
        """Brings a folder into a state that the synced bytes and names allow.

        Each unsynced name and file is independently as before, current, truncated, or has an
        unwritten sector.
        """
        above, name = self.folder(os.path.dirname(path)), os.path.basename(path)
        node = above.now[name]
        assert isinstance(node, Directory)
        durable = name in above.durable or pick.random() < 0.5
        self.put(path, self._outlasts(node, pick) if durable else None)

    def _outlasts(self, folder: Directory, pick: random.Random) -> Directory:
        left = Directory()
        for name in sorted({*folder.durable, *folder.now}):
            node = pick.choice([folder.durable.get(name), folder.now.get(name)])
            if isinstance(node, Inode):
                left.now[name] = Inode(
                    self.number(), survivor(bytes(node.content), node.synced, pick)
                )
            elif node is not None:
                left.now[name] = self._outlasts(node, pick)
        left.sync()
        return left


def _refusal(moved: Inode | Directory, replaced: Inode | Directory) -> int:
    """The errno that prevents one node from replacing the other; 0 if none does."""
    if isinstance(moved, Inode):
        return errno.EISDIR if isinstance(replaced, Directory) else 0
    if isinstance(replaced, Inode):
        return errno.ENOTDIR
    return errno.ENOTEMPTY if replaced.now else 0


class Status(NamedTuple):
    """The status of a file or folder; cheaper to create than `os.stat_result`."""

    st_mode: int
    st_ino: int
    st_size: int
    st_dev: int = 0
    st_nlink: int = 1
    st_uid: int = _MINE[0]
    st_gid: int = _MINE[1]
    st_ctime_ns: int = 0


class MemoryMap:
    def __init__(self, inode: Inode, path: str, *, write: bool) -> None:
        view = memoryview(inode.content)
        self.path = path
        self.words = (view if write else view.toreadonly()).cast("Q")

    def close(self) -> None:
        self.words.release()


class MemoryFile(File):
    def __init__(self, files: MemoryFiles, path: str, inode: Inode) -> None:
        self.path = path
        self._files, self._inode = files, inode

    @property
    def inode(self) -> Inode:
        return self._inode

    def append(self, data: Buffer) -> None:
        crash = self._files.step("append", self.path, data=(self._inode, data))
        self._inode.grow(data, self._files.tree.number())
        if crash:
            self._files.die()

    def write_at(self, offset: int, data: Buffer) -> None:
        crash = self._files.step("write_at", self.path)
        self._inode.write(offset, data, self._files.tree.number())
        if crash:
            self._files.die()

    def read_at(self, offset: int, size: int) -> bytes:
        return bytes(self._inode.content[offset : offset + size])

    def read_all(self) -> bytes:
        return bytes(self._inode.content)

    def sync(self) -> None:
        crash = self._files.step("sync", self.path)
        if not self._files.lies:
            self._inode.sync()
        if crash:
            self._files.die()

    def size(self) -> int:
        return len(self._inode.content)

    def stamp(self) -> tuple[int, int, int]:
        return self._inode.number, len(self._inode.content), self._inode.changed

    def mapped(self, *, write: bool) -> Any:
        return MemoryMap(self._inode, self.path, write=write)

    def deleted(self) -> bool:
        return self._inode.links == 0

    def close(self) -> None:
        pass


class MemoryLock(Lock):
    def __init__(self, inode: Inode) -> None:
        self._inode: Inode | None = inode
        inode.lock(taken=True)

    def release(self) -> None:
        inode, self._inode = vars(self).get("_inode"), None
        if inode is not None:
            inode.lock(taken=False)


class MemoryFiles(OrderedFiles):
    """A disk in memory as one process sees it.

    Attributes:
        crash_at: number of the step at which the process dies, from 1; 0: never.
        crash_phase: whether the step has not begun, is half done (a write), or is done.
        refused: first and last number of the steps that fail, and their errno.
        lies: a sync reports success and does nothing.
        dead: the process has died.
        count: how many steps were taken, each of which changes the disk.
        did: how many steps of each kind.
    """

    def __init__(self, tree: Tree, seed: int = 0) -> None:
        self.tree = tree
        self.crash_at, self.crash_phase = 0, "before"
        self.refused: tuple[int, int, int] | None = None
        self.lies = self.dead = False
        self.count = 0
        self.did: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._opened: dict[str, MemoryFile] = {}  # one is as good as another: they hold nothing

    def crash_in(self, steps: int, phase: Phase) -> None:
        """Lets the process die after some more steps."""
        self.crash_at, self.crash_phase = self.count + steps, phase

    def refuse(self, steps: int, count: int, code: int) -> None:
        """Lets some later steps fail with an errno."""
        self.refused = self.count + steps, self.count + steps + count - 1, code

    def go_on(self) -> None:
        """Starts another process on the same disk, without faults."""
        self.crash_at, self.dead, self.refused = 0, False, None

    def lose_power(self, path: str) -> None:
        """Kills the machine, and loses what was not synced."""
        self.dead = True
        self.tree.lose_power(path, self._random)

    def step(self, action: str, path: str, data: tuple[Inode, Buffer] | None = None) -> bool:
        """Counts a step, which may fail; returns whether the process dies after it."""
        if self.dead:
            raise Crash(action)
        self.count += 1
        self.did[action] += 1
        if self.refused and self.refused[0] <= self.count <= self.refused[1]:
            code = self.refused[2]
            raise_durability_error(OSError(code, os.strerror(code)), action, path)
        if self.count != self.crash_at:
            return False
        if self.crash_phase == "before":
            self.die()
        if self.crash_phase == "inside" and data is not None:
            inode, whole = data
            part = bytes(whole)[: self._random.randrange(1, max(2, len(whole)))]
            inode.grow(part, self.tree.number())
            self.die()
        return True

    def changes(self) -> int:
        """The number of steps that changed contents or names."""
        return self.count - self.did["sync"] - self.did["sync_folder"]

    def die(self) -> NoReturn:
        self.dead = True
        raise Crash(self.count)

    def make_folder(self, path: str, *, sync: bool = True) -> bool:
        path = os.path.abspath(path) if path[-1:] == "/" or "/." in path else path
        try:
            found = self.tree.find(path)
        except OSError as error:
            raise_durability_error(error, "create the folder", path)
        if isinstance(found, Directory):
            return False
        if found is not None:
            raise_durability_error(NotADirectoryError(errno.ENOTDIR, ""), "create the folder", path)
        parent = os.path.dirname(path)
        self.make_folder(parent)
        self.tree.folder(parent).now[os.path.basename(path)] = Directory()
        if sync:
            self.sync_folder(parent)
        return True

    def remove_folder(self, path: str) -> None:
        if isinstance(self.tree.find(path), Directory):
            self.tree.put(path, None)

    def create(self, path: str) -> MemoryFile:
        crash = self.step("create", path)
        folder = self._above(path, "create")
        name = path.rpartition("/")[2]
        if name in folder.now:
            raise_durability_error(
                FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)), "create", path
            )
        inode = folder.now[name] = Inode(self.tree.number())
        if crash:
            self.die()
        return MemoryFile(self, path, inode)

    def open(self, path: str, *, write: bool = False) -> MemoryFile:
        if self.dead:
            raise Crash(path)
        node = self._node(path, "open")
        if isinstance(node, Directory):
            raise_durability_error(IsADirectoryError(errno.EISDIR, ""), "open", path)
        file = self._opened.get(path)
        if file is None or file.inode is not node:
            file = self._opened[path] = MemoryFile(self, path, node)
        return file

    def mapped(self, path: str, *, write: bool = False) -> Any:
        file = self.open(path, write=write)
        if not file.size():
            raise_durability_error(OSError("it is empty"), "map", path)
        if file.size() % 8:
            raise CorruptLogError(f"'{path}' is damaged: its size is not a multiple of 8")
        return file.mapped(write=write)

    def read(self, path: str, *, most: int | None = None) -> bytes:
        if self.dead:
            raise Crash(path)
        node = self._node(path, "open")
        if isinstance(node, Directory):
            raise_durability_error(IsADirectoryError(errno.EISDIR, ""), "open", path)
        if most is not None and len(node.content) > most:
            raise_durability_error(OSError(errno.EFBIG, ""), "read", path)
        return bytes(node.content)

    def rename(self, source: str, target: str) -> None:
        (above, _, old), (beside, _, new) = source.rpartition("/"), target.rpartition("/")
        assert above == beside
        crash = self.step("rename", target)
        folder = self._above(source, "rename")
        if old not in folder.now:
            raise_durability_error(FileNotFoundError(errno.ENOENT, ""), "rename", source)
        moved, replaced = folder.now[old], folder.now.get(new)
        if replaced is not None and replaced is not moved:
            code = _refusal(moved, replaced)
            if code:
                raise_durability_error(OSError(code, ""), "rename", source)
        if isinstance(replaced, Inode) and replaced is not moved:
            replaced.unname()
        folder.now[new] = folder.now.pop(old)
        if isinstance(moved, Directory):
            self.tree.moved()
        if crash:
            self.die()

    def link(self, source: str, target: str) -> None:
        crash = self.step("link", target)
        node = self._node(source, "link")
        folder, name = self._above(target, "link"), os.path.basename(target)
        if name in folder.now or isinstance(node, Directory):
            raise_durability_error(
                FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)), "link", source
            )
        folder.now[name] = node
        node.name_again()
        if crash:
            self.die()

    def unlink(self, path: str) -> None:
        above, _, name = path.rpartition("/")
        try:
            folder = self.tree.folder(above)
        except FileNotFoundError:
            return
        except OSError as error:
            raise_durability_error(error, "delete", path)
        node = folder.now.get(name)
        if node is None:
            return
        crash = self.step("unlink", path)
        if isinstance(node, Directory):
            raise_durability_error(IsADirectoryError(errno.EISDIR, ""), "delete", path)
        del folder.now[name]
        node.unname()
        if crash:
            self.die()

    def sync_folder(self, path: str) -> None:
        crash = self.step("sync_folder", path)
        try:
            folder = self.tree.folder(path)
        except OSError as error:
            raise_durability_error(error, "sync the folder", path)
        if not self.lies:
            folder.sync()
        if crash:
            self.die()

    def names(self, path: str) -> list[str]:
        try:
            return sorted(self.tree.folder(path).now)
        except OSError as error:
            raise_durability_error(error, "list", path)

    def exists(self, path: str) -> bool:
        try:
            return self.tree.find(path) is not None
        except NotADirectoryError:
            return False

    def status(self, path: str) -> Any:
        node = self._node(path, "look at")
        if isinstance(node, Directory):
            names = sorted((name, getattr(one, "number", 0)) for name, one in node.now.items())
            changed = zlib.crc32(repr(names).encode())
            return Status(stat.S_IFDIR | 0o700, id(node), 0, st_ctime_ns=changed)
        return _made(Status, (_FILE, node.number, len(node.content), 0, 1, *_MINE))

    def restrict(self, path: str) -> None:
        self._node(path, "change the permissions of")

    def lock(self, path: str, *, wait_s: float = 0.0) -> Lock | None:
        folder = self._above(path, "create")
        node = folder.now.setdefault(os.path.basename(path), Inode(self.tree.number()))
        assert isinstance(node, Inode)
        return None if node.locked else MemoryLock(node)

    def _node(self, path: str, action: str) -> Inode | Directory:
        place = self.tree.places.get(path)  # the start of `find`, inlined for speed
        if place is not None and (known := place[0].get(place[1])) is not None:
            return known
        try:
            found = self.tree.find(path)
        except OSError as error:
            raise_durability_error(error, action, path)
        if found is None:
            raise_durability_error(FileNotFoundError(errno.ENOENT, ""), action, path)
        return found

    def _above(self, path: str, action: str) -> Directory:
        try:
            return self.tree.folder(path.rpartition("/")[0])
        except OSError as error:
            raise_durability_error(error, action, path)
