"""The staging area: executors read the part files of a run there, and write their results.

The area is the session's folder if executors see it. Otherwise it is a location that driver and
executors reach (location.py). The files there are copies, for Spark alone: the log refers only to
files in its own folder, and does not depend on the location.

Failure: another user writes to the location. So every file from there is verified with its
checksums. These are compared with the digest in the log, or with the one that the writing task
reported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from nosync_nb.errors import CorruptLogError, DurabilityError
from nosync_nb.files.filesystem import Files
from nosync_nb.files.safe_names import PART, checked_path_within
from nosync_nb.spark.staging.location import StagingLocation, location_of
from nosync_nb.trace.batch import Batch, Layout, Updates
from nosync_nb.trace.parts import part_file
from nosync_nb.trace.parts.arrow_file import UNSOUND, open_arrow
from nosync_nb.trace.parts.part_file import PartRef

Some = TypeVar("Some")

VERIFIED_MAX = 4096
_verified: set[tuple[str, PartRef]] = set()
"""The staged files whose checksums this process has verified."""


class StagingArea(NamedTuple):
    """A staging area, as plans refer to it.

    Attributes:
        folder: the session's folder, on the driver's machine.
        url: the location that executors reach; empty: they see the folder.
    """

    folder: str
    url: str = ""

    def part(
        self, ref: PartRef, layout: Layout, *, checked: bool = False, thorough: bool = False
    ) -> Batch:
        """Maps a part; see `part_file.open_part`.

        Raises:
            DurabilityError: the location is not reachable, or the file is not the expected one.
        """

        def opens(folder: str) -> Batch:
            return part_file.open_part(folder, ref, layout, checked=checked, thorough=thorough)

        return self._open_staged(ref, opens)

    def updates(self, ref: PartRef, types: Sequence[str]) -> Updates:
        """Maps loose updates; see `part_file.open_updates`, and `part` for the errors."""
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
        """Returns True if this machine sees a file of this name."""
        if not self.url:
            return Files().exists(os.path.join(self.folder, name))
        return location_of(self.url).exists(name)

    def _open_staged(self, ref: PartRef, opens: Callable[[str], Some]) -> Some:
        """Opens a file, after fetching it to this machine.

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
        """The folder of this machine that has the file, which is fetched first if necessary."""
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
        DurabilityError: the file is not the expected one.
    """
    try:
        open_arrow(folder, ref.path, ref.size_bytes, ref.digest, checked=True)
    except (CorruptLogError, *UNSOUND) as error:
        Files().unlink(checked_path_within(folder, ref.path, PART))
        raise _staged_file_error(url, error) from error


def _staged_file_error(url: str, error: Exception) -> DurabilityError:
    """The error of a staged file that is damaged.

    Failure: reported as damage of the log, the error would start a check and a repair of the log.
    So it is a DurabilityError.
    """
    return DurabilityError(
        f"bulk location {url!r}: {error}",
        hint="commit again, which uploads it again; check for other writers to this location",
    )
