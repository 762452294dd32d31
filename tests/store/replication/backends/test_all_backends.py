"""Replica backends: what each kind accepts, refuses and returns."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
from machines.object_server import with_bucket
from machines.replica_servers import ReplicaServer
from obstore.store import S3Store

from nosync_nb.errors import CorruptLogError, DurabilityError, FencedError
from nosync_nb.files.filesystem import File, Files
from nosync_nb.store.log import segments
from nosync_nb.store.replication import protocol
from nosync_nb.store.replication.address import parse_address
from nosync_nb.store.replication.backends.flight_server import ServerCopies
from nosync_nb.store.replication.backends.folder import FolderReplica
from nosync_nb.store.replication.endpoints import ReplicaSite, connect_site
from nosync_nb.store.replication.protocol import FencingGrant, LogName, OwnerTerm, Replica

NAME = LogName("/logs/x.nosync", "me", 3, 2)
TERM = OwnerTerm(1, "me")
PLAIN: Any = {"client_options": {"allow_http": True}}
PART, PACK = "log1-1-g3-ab.arrow", "log1-1-g3-cd.pack"
SEGMENT = segments.file_name(1, 1)


class Copy:
    """A copy of a log that can be opened several times.

    Attributes:
        folder: the folder of its files.
    """

    def __init__(self, site: ReplicaSite, folder: Path, log_id: bytes, closed: ExitStack) -> None:
        self.site, self.log_id = site, log_id
        self.folder = folder / log_id.hex()
        self._closed = closed

    def stray(self) -> None:
        """Adds a file that does not belong to a log."""
        (self.folder / "layers" / "stray.txt").write_text("")

    def delete(self) -> None:
        for path in sorted(self.folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        self.folder.rmdir()

    def saved(self) -> dict[str, bytes]:
        """A backup of its files."""
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in found}

    def put_back(self, saved: dict[str, bytes], how: str) -> None:
        """Restores a backup as a whole, file by file, or in place."""
        if how == "as a whole":
            self.folder.rename(self.folder.with_name("away-" + self.log_id.hex()))
            (self.folder / "history").mkdir(parents=True)
            (self.folder / "layers").mkdir()
        for path in [path for path in self.folder.rglob("*") if path.is_file()]:
            if str(path.relative_to(self.folder)) not in saved:
                path.unlink()
        for name, content in saved.items():
            path = self.folder / name
            if how == "in place":
                path.write_bytes(content)
            else:
                path.with_suffix(".restored").write_bytes(content)
                path.with_suffix(".restored").rename(path)

    def __call__(self) -> Replica:
        replica = self.site.replica(self.log_id)
        self._closed.callback(replica.close)
        return replica


class StoredCopy(Copy):
    """A log's copy in an object store."""

    @property
    def _store(self) -> S3Store:
        return S3Store("bucket", prefix=f"copies/{self.log_id.hex()}", **PLAIN)

    def saved(self) -> dict[str, bytes]:
        store = self._store
        return {
            path: bytes(store.get(path).bytes())
            for path in (each["path"] for each in store.list().collect())
        }

    def put_back(self, saved: dict[str, bytes], how: str) -> None:
        store = self._store
        paths = [each["path"] for each in store.list().collect()]
        if how != "as a whole":
            paths = [path for path in paths if path not in saved]
        store.delete(paths)
        for path, content in saved.items():
            if how != "file by file":
                store.put(path, content)

    def stray(self) -> None:
        S3Store("bucket", **PLAIN).put(f"copies/{self.log_id.hex()}/data/stray.txt", b"")

    def delete(self) -> None:
        store = S3Store("bucket", prefix=f"copies/{self.log_id.hex()}", **PLAIN)
        store.delete([each["path"] for each in store.list().collect()])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NOSYNC_KEY_FILE", str(tmp_path_factory.mktemp("keys") / "key"))
        with ReplicaServer(tmp_path_factory.mktemp("served") / "copies") as running:
            yield running


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """The URL of a folder of an object store."""
    with with_bucket():
        yield "s3://bucket/copies"


@pytest.fixture(params=["folder", "served", "stored"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Copy]:
    folder, copy = tmp_path / "copies", Copy
    if request.param == "folder":
        url = f"file://{folder}"
    elif request.param == "served":
        server: ReplicaServer = request.getfixturevalue("server")
        folder, url = server.folder, server.url
    else:
        copy, url = StoredCopy, request.getfixturevalue("store")
    site = connect_site(parse_address(url), Files())
    site.prepare()
    with ExitStack() as closed:
        yield copy(site, folder, os.urandom(16), closed)


def append_and_sync(replica: Replica, offset: int, data: bytes) -> None:
    """Appends to a segment, down to the disk."""
    replica.append(TERM, SEGMENT, offset, data)
    replica.sync(TERM, None)


@pytest.mark.fault(24)
def test_copy_refuses_earlier_owner(opened: Copy) -> None:
    first = OwnerTerm(3, "first")
    old, new = opened(), opened()
    assert new.promised() is None
    old.promise(first, NAME)
    assert new.promised() == first
    old.store(first, PART, 0, b"abc", last=False)
    with pytest.raises(FencedError, match="generation 3"):
        new.promise(OwnerTerm(3, "second"), NAME)
    new.promise(OwnerTerm(4, "second"), NAME)
    with pytest.raises((FencedError, DurabilityError)):
        old.store(first, PART, 3, b"def", last=True)
    for step in (
        lambda: old.sync(first, 1),
        lambda: old.store(first, PART, 0, b"abc", last=True),
        lambda: old.discard(first, [PART]),
        lambda: old.promise(first, NAME),
    ):
        with pytest.raises(FencedError, match="generation 4"):
            step()
    assert dict(new.held().files) == {}
    assert new.promised() == OwnerTerm(4, "second")


@pytest.mark.fault(44)
def test_copy_accepts_only_log_files(opened: Copy) -> None:
    replica = opened()
    replica.promise(TERM, NAME)
    for name in ("../key", "promise", "lock", "x.txt", "a/b.arrow", ".arrow", "segment-1.log"):
        with pytest.raises(CorruptLogError):
            replica.store(TERM, name, 0, b"", last=True)
        with pytest.raises(CorruptLogError):
            replica.read(name, 0, 10)
    with pytest.raises(DurabilityError, match="does not follow the file"):
        replica.store(TERM, PART, 5, b"x", last=True)
    replica.store(TERM, PART, 0, b"x", last=True)
    opened.stray()
    assert dict(replica.held().files) == {PART: 1}


def test_stored_and_appended_data_is_read_back(opened: Copy) -> None:
    replica = opened()
    piece = Random(7).randbytes(1 << 20)
    begun = replica.promise(TERM, NAME)
    replica.store(TERM, PART, 0, piece, last=False)
    replica.store(TERM, PART, len(piece), b"end", last=True)
    replica.store(TERM, SEGMENT, 0, b"begin", last=True)
    for i in range(4):
        replica.append(TERM, SEGMENT, 5 + 2 * i, b"%02d" % i)
    assert replica.read(SEGMENT, 0, 100) == b"begin00010203"
    replica.append(TERM, SEGMENT, 13, b"!")
    replica.sync(TERM, 12)
    assert replica.acknowledged() == 12
    whole = piece + b"end"
    assert replica.read(PART, 3, 2 << 20) == whole[3:]
    assert replica.read(PART, len(whole), 1) == b""
    assert replica.digest(PART, len(whole)) == replica.digest(PART, 1 << 40)
    assert replica.digest(PART, len(whole)) != replica.digest(PART, len(piece))
    held = opened().held()
    assert held.incarnation == begun.incarnation
    assert dict(held.files) == {PART: len(whole), SEGMENT: 14}
    replica.discard(TERM, [PART])
    assert dict(replica.held().files) == {SEGMENT: 14}


@pytest.mark.fault(30)
def test_repeated_or_misplaced_piece_is_refused(opened: Copy) -> None:
    replica = opened()
    replica.promise(TERM, NAME)
    replica.store(TERM, SEGMENT, 0, b"begin", last=True)
    append_and_sync(replica, 5, b"abc")
    for offset in (5, 9, 0):
        with pytest.raises(DurabilityError, match="8 bytes"):
            append_and_sync(replica, offset, b"xyz")
    replica.store(TERM, PART, 0, b"abc", last=False)
    with pytest.raises(DurabilityError, match="does not follow the file"):
        replica.store(TERM, PART, 4, b"e", last=True)
    again = opened()
    again.promise(TERM, NAME)
    assert again.read(SEGMENT, 0, 100) == b"beginabc"
    assert dict(again.held().files) == {SEGMENT: 8}


@pytest.mark.fault(31)
def test_deleted_copy_starts_from_scratch(opened: Copy) -> None:
    replica = opened()
    first = replica.promise(TERM, NAME)
    replica.store(TERM, SEGMENT, 0, b"begin", last=True)
    replica.sync(TERM, 7)
    opened.delete()
    with pytest.raises(DurabilityError, match="was replaced by another copy"):
        append_and_sync(replica, 5, b"abc")
    assert replica.promised() is None
    again = replica.promise(TERM, NAME)
    assert again.incarnation != first.incarnation
    assert dict(again.files) == {}
    assert replica.acknowledged() == 0


def test_site_lists_logs_with_stored_data(opened: Copy) -> None:
    replica = opened()
    assert opened.log_id not in opened.site.logs()
    replica.promise(TERM, NAME)
    assert opened.log_id not in opened.site.logs()
    replica.store(TERM, SEGMENT, 0, b"begin", last=True)
    listed = opened.site.logs()[opened.log_id]
    assert (listed.term, listed.name) == (TERM, NAME)


@pytest.mark.parametrize("opened", ["folder", "served"], indirect=True)
def test_damaged_fencing_record_is_reported_by_each_call(opened: Copy) -> None:
    replica = opened()
    replica.promise(TERM, NAME)
    (opened.folder / "promise").write_bytes(b"{}")
    for step in (replica.held, replica.promised, lambda: replica.sync(TERM, 1)):
        with pytest.raises(CorruptLogError, match="the fencing record is damaged") as caught:
            step()
        assert caught.value.hint
    (opened.folder / "promise").unlink()  # other tests list the copies of the server


class FailingFile(File):
    """A file whose next sync fails."""

    def __init__(self, path: str, flags: int, failing: set[str]) -> None:
        super().__init__(path, flags)
        self._failing = failing

    def sync(self) -> None:
        name = os.path.basename(self.path)
        if name in self._failing:
            self._failing.discard(name)
            raise DurabilityError("EIO")
        super().sync()


class FailingFiles(Files):
    """A disk on which the next sync of some files fails."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: set[str] = set()

    def open(self, path: str, *, write: bool = False) -> File:
        return FailingFile(path, os.O_RDWR if write else os.O_RDONLY, self.failing)


def granted_files(copies: ServerCopies, log_id: bytes) -> dict[str, int]:
    """The files of a server's copy after a grant."""
    grant = protocol.encode_grant(FencingGrant(TERM, "", NAME))
    header = {"do": "promise", "log": log_id.hex()}
    files: dict[str, int] = json.loads(copies.call(b"a session", header, grant))[1]
    return files


@pytest.mark.fault(16)
def test_unsynced_segment_is_doubtful_until_stored_again(
    tmp_path: Path,
) -> None:
    disk, log_id = FailingFiles(), os.urandom(16)

    def again() -> FolderReplica:
        return FolderReplica(str(tmp_path), log_id, files=disk)

    replica = again()
    replica.promise(TERM, NAME)
    replica.store(TERM, SEGMENT, 0, b"begin", last=True)
    replica.append(TERM, SEGMENT, 5, b"more")
    disk.failing.add(SEGMENT)
    with pytest.raises(DurabilityError, match="EIO"):
        replica.sync(TERM, 5)
    assert not disk.failing
    assert dict(replica.promise(TERM, NAME).files) == {}
    assert dict(again().promise(TERM, NAME).files) == {}
    assert granted_files(ServerCopies(str(tmp_path), disk), log_id) == {}
    assert dict(again().held().files) == {SEGMENT: 9}, "acknowledged frames are readable"
    replica = again()
    replica.promise(TERM, NAME)
    replica.store(TERM, SEGMENT, 0, b"begin again", last=True)
    assert dict(again().promise(TERM, NAME).files) == {SEGMENT: 11}
    disk.failing.add(SEGMENT)
    with pytest.raises(DurabilityError, match="EIO"):  # left by another process
        again().promise(TERM, NAME)
    assert dict(again().promise(TERM, NAME).files) == {}
    note = tmp_path / log_id.hex() / "doubtful"
    note.write_bytes(b"\xff" + note.read_bytes())
    assert dict(again().promise(TERM, NAME).files) == {}
    note.unlink()
    note.mkdir()  # the doubt cannot be recorded, so the segment must not count
    disk.failing.add(SEGMENT)
    with pytest.raises(DurabilityError, match="EIO"):
        again().promise(TERM, NAME)
    note.rmdir()
    assert dict(again().promise(TERM, NAME).files) == {}


def grow(replica: Replica, size: int) -> None:
    """Appends to the segment, which has `size` bytes."""
    replica.append(TERM, SEGMENT, size, b" and more")


def add_part(replica: Replica, _size: int) -> None:
    replica.store(TERM, "log1-2-g3-ef.arrow", 0, b"another part", last=True)


def add_pack(replica: Replica, _size: int) -> None:
    replica.store(TERM, PACK, 0, b"a pack", last=True)


def add_segment(replica: Replica, _size: int) -> None:
    replica.store(TERM, segments.file_name(1, 2), 0, b"another segment", last=True)


def do_nothing(_replica: Replica, _size: int) -> None:
    """Only checks that the copy is the same."""


@pytest.mark.fault(31)
@pytest.mark.parametrize("then", [do_nothing, grow, add_pack])
@pytest.mark.parametrize("since", [grow, add_part, add_segment])
@pytest.mark.parametrize("how", ["as a whole", "file by file", "in place"])
def test_replica_acknowledges_no_frame_missing_in_restored_copy(
    opened: Copy, how: str, since: Any, then: Any
) -> None:
    replica = opened()
    replica.promise(TERM, NAME)
    replica.store(TERM, SEGMENT, 0, b"begin", last=True)
    replica.store(TERM, PART, 0, b"a part", last=True)
    replica.sync(TERM, 1)
    old, sizes = opened.saved(), opened().held().files
    since(replica, 5)
    replica.sync(TERM, 2)
    size = opened().held().files[SEGMENT]
    opened.put_back(old, how)
    with pytest.raises(DurabilityError):  # noqa: PT012 - either call may find it first
        then(replica, size)
        replica.sync(TERM, 3)
    assert opened().acknowledged() == 1
    held = replica.promise(TERM, NAME).files
    assert all(held[name] >= size for name, size in sizes.items())
    grow(replica, held[SEGMENT])
    replica.sync(TERM, 2)
    assert opened().acknowledged() == 2


@pytest.mark.fault(31)
def test_foreign_files_beside_copy_do_not_stop_acknowledgements(opened: Copy) -> None:
    replica = opened()
    replica.promise(TERM, NAME)
    replica.store(TERM, SEGMENT, 0, b"begin", last=True)
    for number in range(1, 4):
        opened.stray()
        append_and_sync(replica, 5 + number - 1, b"!")
        replica.sync(TERM, number)
        assert opened().acknowledged() == number
