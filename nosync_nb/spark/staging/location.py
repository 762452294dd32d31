"""Staging locations, which transfer files between the driver and the executors.

A location is a folder that every machine has mounted, or a bucket of any kind that pyarrow
supports. Files have plain names and are written once. Only the driver creates and clears locations.

A location may hang, as mounts and object stores do. So each call to a location has the limits of
`STAGING`; see store/replication/remote_call.py.

Executors read the part files of a run in a staging area, and write their results there. The area is
the session's folder if executors see it, otherwise a location. The files in a location are copies
for Spark only: the log refers to files in its own folder, and does not depend on the location.

Failure: another user writes to the location. So every file from there is verified with its
checksums. These are compared with the digest in the log, or with the one that the writing task
reported.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from nosync_nb.errors import CorruptLogError, DurabilityError, NosyncError, SchemaError
from nosync_nb.files.filesystem import File, Files
from nosync_nb.files.safe_names import PART, checked_path_within
from nosync_nb.store.replication.remote_call import Answer, Beat, Call, CallPolicy, call_remote
from nosync_nb.trace.batch import Batch, Layout, Updates
from nosync_nb.trace.parts import part_file
from nosync_nb.trace.parts.arrow_file import UNSOUND, open_mapped
from nosync_nb.trace.parts.part_file import PartRef

FETCHED_BYTES = 4 << 30
"""The size limit of a machine's cache of a bucket; the oldest files are removed first."""

PLACES_MAX = 16
"""The number of locations that a process caches; each session has one."""

STAGING = CallPolicy(silent_s=30.0)
"""The limits of a call to a location, which reports progress after each piece of a file."""

_CHUNK_BYTES = 1 << 20
_FORM = "use file:///absolute/folder, s3://bucket/prefix, or another URL that pyarrow.fs supports"


class StagingLocation(Protocol):
    """A location that driver and executors can reach, from the view of one machine.

    Attributes:
        folder: the folder on this machine in which files of the location are read and written.
    """

    folder: str

    def make(self) -> None:
        """Creates the location if necessary."""

    def ready(self) -> None:
        """Creates the folder on this machine if necessary."""

    def ensure_local(self, name: str, size_bytes: int) -> bool:
        """Downloads a file if the folder does not have it; returns True if it did so."""

    def exists(self, name: str) -> bool:
        """Returns True if the location has this file."""

    def upload(self, folder: str, name: str) -> None:
        """Uploads a file of a folder."""

    def download(self, name: str, folder: str) -> None:
        """Downloads a file into a folder."""

    def delete(self, name: str) -> None:
        """Deletes a file, if it exists."""

    def siblings(self) -> list[str]:
        """Returns the names of the other locations in the same parent folder."""

    def clear(self, name: str) -> None:
        """Deletes a location of the same parent folder, or this one, with all its files."""


def checked_url(url: Any) -> str:
    """Returns a valid URL of a staging area.

    Raises:
        SchemaError: if the URL is invalid; the hint has the form of a valid one.
    """
    try:
        split = urlsplit(url) if isinstance(url, str) else None
    except ValueError:
        split = None
    if split is None or not split.scheme or not (split.netloc or split.path.strip("/")):
        raise SchemaError(f"bulk={url!r:.200} is not a valid URL", hint=_FORM)
    if split.username is not None or split.password is not None:
        raise SchemaError(
            "bulk: the URL must not contain a user or password, because it is sent with every task",
            hint="set them in the environment of driver and executors",
        )
    beyond = split.netloc or split.query or split.fragment or not split.path.startswith("/")
    if split.scheme == "file" and beyond:
        raise SchemaError(f"bulk={url!r:.200} is not an absolute folder", hint=_FORM)
    return str(url)


def url_below(url: str, *names: str) -> str:
    """Returns the URL of a location below another one."""
    base, mark, query = url.partition("?")
    return "/".join([base.rstrip("/"), *names]) + mark + query


@lru_cache(maxsize=PLACES_MAX)
def location_of(url: str) -> StagingLocation:
    """Returns the location at a URL, which is cached in this process.

    Raises:
        SchemaError: if pyarrow does not support the location.
    """
    split = urlsplit(url)
    if split.scheme == "file":
        return SharedFolderLocation(unquote(split.path))
    try:
        system, path = fs.FileSystem.from_uri(url)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise SchemaError(f"bulk={url!r:.200}: {error}", hint=_FORM) from error
    return RemoteLocation(url, system, path)


class SharedFolderLocation:
    """A folder that every machine has mounted under the same path."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._files = Files()

    def make(self) -> None:
        self._ask(lambda _: self._files.make_folder(self.folder))

    def ready(self) -> None:
        """Does nothing, because the folder exists on all machines."""

    def ensure_local(self, name: str, size_bytes: int) -> bool:
        return False

    def exists(self, name: str) -> bool:
        return self._ask(lambda _: self._files.exists(os.path.join(self.folder, name)))

    def upload(self, folder: str, name: str) -> None:
        if folder != self.folder:
            self._copy(folder, self.folder, name)

    def download(self, name: str, folder: str) -> None:
        self._copy(self.folder, folder, name)

    def delete(self, name: str) -> None:
        self._ask(lambda _: self._files.unlink(checked_path_within(self.folder, name, PART)))

    def siblings(self) -> list[str]:
        above, own = os.path.split(self.folder)
        names = self._ask(lambda _: self._files.names(above) if self._files.exists(above) else [])
        return [name for name in names if name != own]

    def clear(self, name: str) -> None:
        path = os.path.join(os.path.dirname(self.folder), name)
        self._ask(lambda _: self._files.remove_folder(path))

    def _copy(self, source: str, target: str, name: str) -> None:
        paths = checked_path_within(source, name, PART), checked_path_within(target, name, PART)

        def copy(beat: Beat) -> None:
            with closing(self._files.open(paths[0])) as old:
                _write_synced(self._files, paths[1], _read_pieces(old), beat)

        self._ask(copy)

    def _ask(self, call: Call[Answer]) -> Answer:
        return call_remote(f"staging area '{self.folder}'", call, STAGING)


class RemoteLocation:
    """An object store, or another file system that pyarrow supports.

    Args:
        system: pyarrow's file system.
        path: the path of the location in that file system.
    """

    def __init__(self, url: str, system: Any, path: str) -> None:
        self._url, self._system, self._path = url, system, path
        self._files = Files()
        digest = hashlib.sha256(url.encode()).hexdigest()[:16]
        # Spark's own folder is preferred, because Spark deletes it when the executor ends.
        local = os.environ.get("SPARK_LOCAL_DIRS") or os.environ.get("TMPDIR") or "/tmp"
        self.folder = os.path.join(local.split(",")[0], f"nosync-{os.getuid()}-{digest}")

    def make(self) -> None:
        """Creates the folder, if the file system has folders."""
        self._ask(lambda _: self._system.create_dir(self._path, recursive=True))

    def ready(self) -> None:
        self._files.make_folder(self.folder, sync=False)

    def ensure_local(self, name: str, size_bytes: int) -> bool:
        if self._files.exists(checked_path_within(self.folder, name, PART)):
            return False
        self._make_room(size_bytes)
        self.download(name, self.folder)
        return True

    def exists(self, name: str) -> bool:
        info = self._ask(lambda _: self._system.get_file_info(f"{self._path}/{name}"))
        return bool(info.type == fs.FileType.File)

    def upload(self, folder: str, name: str) -> None:
        path = checked_path_within(folder, name, PART)

        def upload(beat: Beat) -> None:
            with (
                closing(self._files.open(path)) as file,
                self._system.open_output_stream(f"{self._path}/{name}") as out,
            ):
                for piece in _read_pieces(file):
                    out.write(piece)
                    beat()

        # The limit depends on the size, because closing the stream waits for buffered pieces.
        self._ask(upload, self._files.status(path).st_size)
        if folder == self.folder:
            self._make_room(0)

    def download(self, name: str, folder: str) -> None:
        temporary = checked_path_within(folder, f"fetched-{uuid.uuid4().hex}{PART}", PART)
        path = checked_path_within(folder, name, PART)

        def download(beat: Beat) -> None:
            try:
                with self._system.open_input_stream(f"{self._path}/{name}") as stream:
                    pieces = iter(lambda: stream.read(_CHUNK_BYTES), b"")
                    _write_synced(self._files, temporary, pieces, beat)
                beat()
                self._files.rename(temporary, path)
            except BaseException:
                with suppress(NosyncError):
                    self._files.unlink(temporary)
                raise

        self._ask(download)

    def delete(self, name: str) -> None:
        def delete(_beat: Beat) -> None:
            with suppress(FileNotFoundError):
                self._system.delete_file(f"{self._path}/{name}")

        self._ask(delete)

    def siblings(self) -> list[str]:
        above, _, own = self._path.rpartition("/")
        selector = fs.FileSelector(above, allow_not_found=True)
        infos = self._ask(lambda _: self._system.get_file_info(selector))
        return sorted({info.base_name for info in infos} - {own})

    def clear(self, name: str) -> None:
        def clear(_beat: Beat) -> None:
            with suppress(FileNotFoundError):
                self._system.delete_dir(f"{self._path.rpartition('/')[0]}/{name}")

        self._ask(clear)

    def _ask(self, call: Call[Answer], size_bytes: int = 0) -> Answer:
        """Calls the location, and translates its errors.

        Args:
            size_bytes: the bytes that the call may transfer without reporting progress.
        """

        def translated(beat: Beat) -> Answer:
            with self._translated_errors():
                return call(beat)

        policy = STAGING._replace(silent_s=STAGING.limit_s(size_bytes))
        return call_remote(f"staging area {self._url!r}", translated, policy)

    def _make_room(self, size_bytes: int) -> None:
        """Removes the oldest cached files until `size_bytes` fit; mapped files remain usable."""
        held = []
        for name in self._files.names(self.folder):
            path = os.path.join(self.folder, name)
            with suppress(DurabilityError):  # another worker may have removed the file
                status = self._files.status(path)
                held.append((status.st_mtime_ns, status.st_size, path))
        room = FETCHED_BYTES - size_bytes - sum(size for _, size, _ in held)
        for _, size, path in sorted(held):
            if room >= 0:
                return
            self._files.unlink(path)
            room += size

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """In a `with` block, translates errors of the location to DurabilityError."""
        try:
            yield
        except DurabilityError:
            raise
        except (OSError, pa.ArrowException) as error:
            raise DurabilityError(
                f"staging area {self._url!r}: {error}",
                hint="check that driver and executors can reach it and write to it",
            ) from error


def _read_pieces(file: File) -> Iterator[bytes]:
    for offset in range(0, file.size(), _CHUNK_BYTES):
        yield file.read_at(offset, _CHUNK_BYTES)


def _write_synced(files: Files, path: str, pieces: Iterable[bytes], beat: Beat) -> None:
    """Writes a new file and syncs it; calls `beat`, which may raise, after each piece."""
    with closing(files.create(path)) as file:
        for piece in pieces:
            file.append(piece)
            beat()
        file.sync()


Some = TypeVar("Some")

VERIFIED_MAX = 4096
_verified: set[tuple[str, PartRef]] = set()
"""The staged files whose checksums this process has verified."""


class StagingArea(NamedTuple):
    """A staging area, as plans refer to it.

    Attributes:
        folder: the session's folder on the driver's machine.
        url: the location that executors can reach; empty if they see the folder.
    """

    folder: str
    url: str = ""

    def part(
        self, ref: PartRef, layout: Layout, *, checked: bool = False, thorough: bool = False
    ) -> Batch:
        """Maps a part; see `part_file.open_part`.

        Raises:
            DurabilityError: if the location cannot be reached, or the file is not the expected one.
        """

        def opens(folder: str) -> Batch:
            return part_file.open_part(folder, ref, layout, checked=checked, thorough=thorough)

        return self._open_staged(ref, opens)

    def updates(self, ref: PartRef, types: Sequence[str]) -> Updates:
        """Maps a file of updates that are in no order; see `part_file.open_updates`.

        Raises the errors of `part`.
        """
        return self._open_staged(ref, lambda folder: part_file.open_updates(folder, ref, types))

    def write_parts(self, batches: Sequence[Batch], stem: str) -> list[PartRef]:
        """Writes batches; see `part_file.write_parts`."""
        if not self.url:
            return part_file.write_parts(self.folder, batches, stem)
        place = self._place()
        refs = part_file.write_parts(place.folder, batches, stem)
        for ref in refs:
            place.upload(place.folder, ref.path)
        return refs

    def write_updates(self, updates: Updates, types: Sequence[str], stem: str) -> PartRef:
        """Writes loose updates; see `part_file.write_updates`."""
        if not self.url:
            return part_file.write_updates(self.folder, updates, types, stem)
        place = self._place()
        ref = part_file.write_updates(place.folder, updates, types, stem)
        place.upload(place.folder, ref.path)
        return ref

    def has(self, name: str) -> bool:
        """Returns True if this machine can reach a file of this name in the area."""
        if not self.url:
            return Files().exists(os.path.join(self.folder, name))
        return location_of(self.url).exists(name)

    def _open_staged(self, ref: PartRef, opens: Callable[[str], Some]) -> Some:
        """Opens a file after downloading it to this machine if necessary.

        Failure: another worker makes room in the cache and deletes the file before it is mapped. So
        the file is fetched a second time.
        """
        if not self.url:
            return opens(self.folder)
        folder = self._fetch(ref)
        try:
            return opens(folder)
        except CorruptLogError as error:
            if Files().exists(checked_path_within(folder, ref.path, PART)):
                raise _staged_file_error(self.url, error) from error
        try:
            return opens(self._fetch(ref))
        except CorruptLogError as error:
            raise _staged_file_error(self.url, error) from error

    def _fetch(self, ref: PartRef) -> str:
        """Downloads and verifies a file if necessary; returns the folder that contains it."""
        place, key = self._place(), (self.url, ref)
        if place.ensure_local(ref.path, ref.size_bytes) or key not in _verified:
            verified_file(place.folder, ref, self.url)
            if len(_verified) >= VERIFIED_MAX:
                _verified.clear()
            _verified.add(key)
        return place.folder

    def _place(self) -> StagingLocation:
        place = location_of(self.url)
        place.ready()
        return place


def verified_file(folder: str, ref: PartRef, url: str) -> None:
    """Verifies a staged file with its checksums; deletes it if they do not match.

    Raises:
        DurabilityError: if the file is not the expected one.
    """
    try:
        open_mapped(folder, ref.path, ref.size_bytes, ref.digest, checked=True)
    except (CorruptLogError, *UNSOUND) as error:
        Files().unlink(checked_path_within(folder, ref.path, PART))
        raise _staged_file_error(url, error) from error


def _staged_file_error(url: str, error: Exception) -> DurabilityError:
    """Returns the error for a damaged file in a staging area.

    Failure: reported as damage of the log, the error would start a check and a repair of the log.
    So it is a DurabilityError.
    """
    return DurabilityError(
        f"staging area {url!r}: {error}",
        hint="commit again, which uploads it again; check for other writers to this location",
    )
