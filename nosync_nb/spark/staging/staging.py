"""Transfers part files to the executors of a session, and their results back.

Nothing is transferred if executors see the session's folder. Otherwise files are staged in a
location below the URL that the user has set; each owner of each log has its own location. If an
owner is killed, the next owner clears that location. Files that the log has released are deleted
there after the next run. Each new location has a new name, so that no process waits for a location
that hangs.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa

from nosync_nb.errors import DurabilityError, NosyncError, warn
from nosync_nb.files.filesystem import Files
from nosync_nb.files.safe_names import PART, checked_path_within
from nosync_nb.spark.launch import Spark
from nosync_nb.spark.spark_session import is_local
from nosync_nb.spark.staging import location
from nosync_nb.spark.staging.location import StagingArea, verified_file
from nosync_nb.spark.workers import PROBES, check_workers, probe_error
from nosync_nb.store.replication.remote_call import CallPolicy, call_remote
from nosync_nb.trace.parts.part_file import PartRef

END = CallPolicy(silent_s=10.0)
"""The limits of the call that clears the staging area when a session is closed."""


class StagingService:
    """Transfers the files of one session.

    Without a URL it only checks if executors see the session's folder.

    Threads: runs transfer their files one after the other, but DataFrames are created at the same
    time. A lock guards the names that are known to be in the location.

    Args:
        folder: the session's folder of part files.
        own: path components that no other owner of a log uses.
        url: the URL that the user has set; empty if there is none.
    """

    def __init__(self, folder: str, own: Sequence[str] = (), url: str = "") -> None:
        self.folder = folder
        self._own = tuple(own)
        self._url = url
        self._files = Files()
        self._lock = threading.Lock()
        self._staged: set[str] = set()
        self._current_url, self._parent_url, self._locations_made = "", "", 0

    def name(self, url: str) -> None:
        """Replaces the URL of the staging area."""
        self._url = location.checked_url(url)

    def depot(self, spark: Spark) -> StagingArea | None:
        """Returns the staging area for the executors of a Spark session; None if there is none.

        Raises:
            NosyncError: if a URL is set, but its location cannot be used.

        Cost: that of `workers_share_folder`.
        """
        if workers_share_folder(spark, self.folder):
            return StagingArea(self.folder)
        if not self._url:
            return None
        if self._parent_url != self._url:
            self.close()
        with self._lock:
            if not self._current_url:
                self._start_location()
            depot = StagingArea(self.folder, self._current_url)
        ensure_reachable(spark, depot, self._url)
        return depot

    def required(self, spark: Spark, what: str) -> StagingArea:
        """Returns the staging area for an operation that needs one.

        Raises:
            NosyncError: if no area is available; names the operation `what`.
        """
        depot = self.depot(spark)
        if depot is None:
            raise unshared_folder_error(what, self.folder)
        return depot

    def serves(self, spark: Spark) -> bool:
        """Returns True if there is a staging area; warns if the location cannot be used."""
        try:
            return self.depot(spark) is not None
        except NosyncError as error:
            warn(f"{error}: operators run in this process instead of on Spark", stacklevel=None)
            return False

    def send(self, depot: StagingArea, refs: Iterable[PartRef]) -> None:
        """Uploads files of the session's folder that are not in the staging area yet.

        Raises:
            DurabilityError: if the location reports an error.

        Cost: in proportion to the bytes of the missing files.
        """
        if not depot.url:
            return
        place = location.location_of(depot.url)
        wanted = {ref.path for ref in refs}
        missing = sorted(wanted - self._staged_names(depot))
        try:
            self._files.at_once([partial(place.upload, self.folder, name) for name in missing])
        except NosyncError as error:
            self.doubt(depot, error)
            raise
        self._staged_names(depot, wanted)

    def bring(self, depot: StagingArea, refs: Iterable[PartRef]) -> None:
        """Downloads files that executors wrote, all or none, into the session's folder.

        Raises:
            DurabilityError: if the location or the disk reports an error, or if a file is not the
                one that its writer reported.
        """
        if not depot.url:
            return
        place = location.location_of(depot.url)
        wanted = list(refs)

        def fetch(ref: PartRef) -> None:
            place.download(ref.path, self.folder)
            verified_file(self.folder, ref, depot.url)

        there = self._staged_names(depot, {ref.path for ref in wanted})
        try:
            self._files.at_once([partial(fetch, ref) for ref in wanted])
            if wanted:
                self._files.sync_folder(self.folder)
        except BaseException:
            self.drop(depot, wanted)
            raise
        here = partial(checked_path_within, self.folder)
        self._delete(depot, [n for n in there if not self._files.exists(here(n))])

    def drop(self, depot: StagingArea, refs: Iterable[PartRef]) -> None:
        """Deletes unreferenced files in the session's folder and in the staging area."""
        names = [ref.path for ref in refs]
        for name in names:
            self._files.unlink(checked_path_within(self.folder, name, PART))
        if depot.url:
            self._delete(depot, names)

    def doubt(self, depot: StagingArea, error: NosyncError) -> None:
        """Gives up the location if it caused an error; the next run creates a new one."""
        if depot.url and depot.url == self._current_url and isinstance(error, DurabilityError):
            self.close()

    def close(self) -> None:
        """Clears the location; the next owner clears any files that are left.

        Failure: the location hangs, as mounts and object stores do. So no caller waits longer than
        `END` allows.
        """
        if url := self._current_url:
            with suppress(NosyncError):
                call_remote(f"the end of {url}", lambda _: self._clear_location(), END)

    def _staged_names(self, depot: StagingArea, more: Iterable[str] = ()) -> set[str]:
        """Returns the names of files known to be in an area, and then adds `more` to them.

        Returns an empty set, and adds nothing, if the area was given up.
        """
        with self._lock:
            if depot.url != self._current_url:
                return set()
            known, self._staged = self._staged, self._staged.union(more)
            return known

    def _clear_location(self) -> None:
        """Gives up the location, and clears it if it can be reached."""
        with self._lock:
            url, self._current_url, self._staged = self._current_url, "", set()
            self._locations_made += bool(url)
        if url:
            with suppress(NosyncError):
                location.location_of(url).clear(url.partition("?")[0].rpartition("/")[2])

    def _start_location(self) -> None:
        """Creates a location, and clears those of former owners. The caller holds the lock."""
        *above, own = self._own
        url = location.url_below(self._url, *above, f"{own}-{self._locations_made}")
        place = location.location_of(url)
        place.make()
        for name in place.siblings():
            if not name.startswith(f"{own}-"):
                place.clear(name)
        self._current_url, self._parent_url = url, self._url

    def _delete(self, depot: StagingArea, names: Iterable[str]) -> None:
        """Deletes files in the location; after an error, the others stay until it is cleared."""
        place = location.location_of(depot.url)
        for name in names:
            try:
                place.delete(name)
            except NosyncError as error:
                warn(
                    f"{error}: files that are no longer needed will be deleted later",
                    stacklevel=None,
                )
                return
            with self._lock:
                self._staged.discard(name)


# -- what executors see ----------------------------------------------------------------------

_shared: WeakKeyDictionary[Any, dict[str, bool]] = WeakKeyDictionary()
"""For each Spark session, True for each folder or location that its executors see, if probed."""


def workers_share_folder(spark: Spark, folder: str) -> bool:
    """Returns True if the workers see the files of a folder of this machine; probes them once.

    Cost: nothing for executors on this machine; otherwise one small job for each folder.
    """
    folders = _shared.setdefault(spark, {})
    if folder not in folders:
        folders[folder] = is_local(spark) or _workers_see_files(spark, StagingArea(folder))
    return folders[folder]


def ensure_reachable(spark: Spark, depot: StagingArea, named: str) -> None:
    """Checks that the workers see files in a staging area; probes them once.

    Args:
        named: the URL that the user has set.

    Raises:
        NosyncError: if the workers do not see the files.
        DurabilityError: if this process cannot write to the location.

    Cost: one small job for each location.
    """
    places = _shared.setdefault(spark, {})
    if not places.get(depot.url):
        places[depot.url] = _workers_see_files(spark, depot)
    if not places[depot.url]:
        raise NosyncError(
            f"bulk={named!r}: Spark's executors cannot read the files that this process writes"
            " there",
            hint="use a folder that all machines mount under the same path, or a bucket",
        )


def assume_shared(spark: Spark, folder: str, *, shared: bool) -> None:
    """Records, without a probe, whether the workers see a folder."""
    _shared.setdefault(spark, {})[folder] = shared


def unshared_folder_error(what: str, folder: str) -> NosyncError:
    """Returns the error for an operation whose executors do not see the session's folder."""
    return NosyncError(
        f"{what}: Spark's executors cannot read the session's folder '{folder}'",
        hint="open it with bulk=URL, a location that driver and executors can reach"
        " (file:///mnt/shared, s3://bucket/prefix), or in a folder that they share; or raise"
        " spark_rows",
    )


def _workers_see_files(spark: Spark, depot: StagingArea) -> bool:
    """Writes a probe file into a staging area, and asks the workers whether they see it."""
    check_workers(spark)
    files = Files()
    name = f"probe-{uuid.uuid4().hex}.arrow"  # swept after a crash
    path = os.path.join(depot.folder, name)
    files.create(path).close()
    try:
        if depot.url:
            location.location_of(depot.url).upload(depot.folder, name)
        answers = spark.range(PROBES).mapInArrow(_file_check(depot, name), "seen boolean").collect()
    except NosyncError:
        raise
    except Exception as error:
        raise probe_error(error) from error
    finally:
        files.unlink(path)
        if depot.url:
            with suppress(NosyncError):
                location.location_of(depot.url).delete(name)
    return all(answer["seen"] for answer in answers)


def _file_check(depot: StagingArea, name: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def check(records: Iterator[Any]) -> Iterator[Any]:
        for _ in records:
            pass
        yield pa.RecordBatch.from_pydict({"seen": [depot.has(name)]})

    return check
