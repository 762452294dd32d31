"""Depots: where executors find the part files of a run, and leave those that they write.

That is the session's folder if they see it. Else it is a place that driver and executors reach
(places.py). What lies there are copies, for Spark alone: the log names no file that is not in its
own folder, whatever becomes of the place.

Failure: somebody else writes to the place. A file that comes from there is compared with its
checksums, and those with the digest that the log, or the task that wrote it, has told.
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
from nosync_nb.trace.parts.arrow_file import open_arrow
from nosync_nb.trace.parts.bounds_check import UNSOUND
from nosync_nb.trace.parts.part_file import PartRef

Some = TypeVar("Some")

PROVEN_MAX = 4096
_proven: set[tuple[str, PartRef]] = set()
"""The files of depots that this process has compared with their checksums."""


class StagingArea(NamedTuple):
    """A depot, as plans hold it.

    Attributes:
        folder: the session's, on the driver's machine.
        url: of the place that executors reach; empty: they see the folder.
    """

    folder: str
    url: str = ""

    def part(
        self, ref: PartRef, layout: Layout, *, checked: bool = False, thorough: bool = False
    ) -> Batch:
        """Maps a part; see `parts.open_part`.

        Raises:
            DurabilityError: the place is not reached, or the file is not what it should be.
        """

        def opens(folder: str) -> Batch:
            return part_file.open_part(folder, ref, layout, checked=checked, thorough=thorough)

        return self._opened(ref, opens)

    def updates(self, ref: PartRef, types: Sequence[str]) -> Updates:
        """Maps loose updates; see `parts.open_updates`, and `part` for what else is raised."""
        return self._opened(ref, lambda folder: part_file.open_updates(folder, ref, types))

    def write_parts(self, batches: Sequence[Batch], stem: str) -> list[PartRef]:
        """Leaves batches there; see `parts.write_parts`."""
        if not self.url:
            return part_file.write_parts(self.folder, batches, stem)
        place = self._place()
        refs = part_file.write_parts(place.folder, batches, stem)
        for ref in refs:
            place.put(place.folder, ref.path)
        return refs

    def write_updates(self, updates: Updates, types: Sequence[str], stem: str) -> PartRef:
        """Leaves loose updates there; see `parts.write_updates`."""
        if not self.url:
            return part_file.write_updates(self.folder, updates, types, stem)
        place = self._place()
        ref = part_file.write_updates(place.folder, updates, types, stem)
        place.put(place.folder, ref.path)
        return ref

    def has(self, name: str) -> bool:
        """Whether a file is there, as this machine sees it."""
        if not self.url:
            return Files().exists(os.path.join(self.folder, name))
        return location_of(self.url).exists(name)

    def _opened(self, ref: PartRef, opens: Callable[[str], Some]) -> Some:
        """A file, once it is on this machine.

        Failure: another worker makes room, and takes it away before it is mapped.
        """
        if not self.url:
            return opens(self.folder)
        folder = self._fetched(ref)
        try:
            return opens(folder)
        except CorruptLogError as error:
            if Files().exists(checked_path_within(folder, ref.path, PART)):
                raise _wrong(self.url, error) from error
        try:
            return opens(self._fetched(ref))
        except CorruptLogError as error:
            raise _wrong(self.url, error) from error

    def _fetched(self, ref: PartRef) -> str:
        """The folder of this machine in which a file is, fetched first if it is far off."""
        place, key = self._place(), (self.url, ref)
        if place.have(ref.path, ref.size_bytes) or key not in _proven:
            verified_file(place.folder, ref, self.url)
            if len(_proven) >= PROVEN_MAX:
                _proven.clear()
            _proven.add(key)
        return place.folder

    def _place(self) -> StagingLocation:
        place = location_of(self.url)
        place.ready()
        return place


def verified_file(folder: str, ref: PartRef, url: str) -> None:
    """Compares a file of a depot with its checksums; one that is wrong is deleted.

    Raises:
        DurabilityError: it is not the one that is meant.
    """
    try:
        open_arrow(folder, ref.path, ref.size_bytes, ref.digest, checked=True)
    except (CorruptLogError, *UNSOUND) as error:
        Files().unlink(checked_path_within(folder, ref.path, PART))
        raise _wrong(url, error) from error


def _wrong(url: str, error: Exception) -> DurabilityError:
    """What is raised of a file that is wrong.

    Failure: were that told as damage of the log, the log would be looked through, and mended.
    """
    return DurabilityError(
        f"bulk place {url!r}: {error}",
        hint="commit again, and it is sent again; see who else writes there",
    )
