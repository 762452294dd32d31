"""Carrier: brings part files to where a session's executors find them, and back what they wrote.

Where executors see the session's folder there is nothing to carry. Else files lie in a place of
this log and this owner, below the one that the user has named: what an owner left that was killed,
the next one clears away. A file that the log has let go of is deleted there after the next run.
Each time that a place is begun it has a name of its own, so that nobody waits for one that hangs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial

from nosync_nb.errors import DurabilityError, NosyncError, warn
from nosync_nb.files.filesystem import Files
from nosync_nb.files.safe_names import PART, checked_path_within
from nosync_nb.spark import workers
from nosync_nb.spark.launch import Spark
from nosync_nb.spark.staging import location
from nosync_nb.spark.staging.area import StagingArea, verified_file
from nosync_nb.store import interruptible_wait
from nosync_nb.trace.parts.part_file import PartRef

END_S = 10.0
"""So long a session that is closed waits for its place to be cleared."""


class StagingService:
    """Carries the files of one session; without a place it only tells who sees the folder.

    Threads: runs carry one after the other, and DataFrames are made beside them: the names that are
    known to be at the place have a lock.

    Args:
        folder: where the session has its part files.
        own: names that no other owner of a log has, one below the other.
        url: of the place that the user has named; empty: none.
    """

    def __init__(self, folder: str, own: Sequence[str] = (), url: str = "") -> None:
        self.folder = folder
        self._own = tuple(own)
        self._url = url
        self._files = Files()
        self._lock = threading.Lock()
        self._there: set[str] = set()
        self._begun, self._within, self._turns = "", "", 0

    def name(self, url: str) -> None:
        """Another place from now on."""
        self._url = location.checked_url(url)

    def depot(self, spark: Spark) -> StagingArea | None:
        """Where the executors of a Spark session read and write; None: no place is known.

        Raises:
            NosyncError: there is a place, and it cannot be used.

        Cost: what `workers.share` costs.
        """
        if workers.workers_share_folder(spark, self.folder):
            return StagingArea(self.folder)
        if not self._url:
            return None
        if self._within != self._url:
            self.close()
        with self._lock:
            if not self._begun:
                self._begin()
            depot = StagingArea(self.folder, self._begun)
        workers.ensure_reachable(spark, depot, self._url)
        return depot

    def required(self, spark: Spark, what: str) -> StagingArea:
        """The same for what cannot be done without one.

        Raises:
            NosyncError: there is none; names `what` needs it.
        """
        depot = self.depot(spark)
        if depot is None:
            raise workers.unshared_folder_error(what, self.folder)
        return depot

    def serves(self, spark: Spark) -> bool:
        """Whether there is one, for what need not run on executors; tells why a place is not."""
        try:
            return self.depot(spark) is not None
        except NosyncError as error:
            warn(f"{error}: what Spark would run for it runs in this process", stacklevel=None)
            return False

    def send(self, depot: StagingArea, refs: Iterable[PartRef]) -> None:
        """Sees to it that files of the session's folder are at a depot.

        Raises:
            DurabilityError: the place refuses.

        Cost: the bytes of those that are not there yet.
        """
        if not depot.url:
            return
        place = location.location_of(depot.url)
        wanted = {ref.path for ref in refs}
        missing = sorted(wanted - self._known(depot))
        try:
            self._files.at_once([partial(place.put, self.folder, name) for name in missing])
        except NosyncError as error:
            self.doubt(depot, error)
            raise
        self._known(depot, wanted)

    def bring(self, depot: StagingArea, refs: Iterable[PartRef]) -> None:
        """Brings what executors wrote into the session's folder; all of it or nothing.

        Raises:
            DurabilityError: the place or the disk refuses; a file is not what its writer told.
        """
        if not depot.url:
            return
        place = location.location_of(depot.url)
        wanted = list(refs)

        def fetch(ref: PartRef) -> None:
            place.get(ref.path, self.folder)
            verified_file(self.folder, ref, depot.url)

        there = self._known(depot, {ref.path for ref in wanted})
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
        """Deletes files that nobody names any more, here and there."""
        names = [ref.path for ref in refs]
        for name in names:
            self._files.unlink(checked_path_within(self.folder, name, PART))
        if depot.url:
            self._delete(depot, names)

    def doubt(self, depot: StagingArea, error: NosyncError) -> None:
        """Is told why a run has failed: if it is the place, it is begun anew, or done without."""
        if depot.url and depot.url == self._begun and isinstance(error, DurabilityError):
            self.close()

    def close(self) -> None:
        """Clears the place away; what then is left there the next owner clears.

        Failure: it hangs, as what is mounted does and stores do. Nobody waits longer than `END_S`.
        """
        if self._begun:
            ending = threading.Thread(target=self._cleared, name="nosync place", daemon=True)
            ending.start()
            interruptible_wait.join_thread(ending, END_S)

    def _known(self, depot: StagingArea, more: Iterable[str] = ()) -> set[str]:
        """The files known to be there before, and from now on `more`; none, of a place given up."""
        with self._lock:
            if depot.url != self._begun:
                return set()
            known, self._there = self._there, self._there.union(more)
            return known

    def _cleared(self) -> None:
        """Gives the place up, and clears it away if it can be reached."""
        with self._lock:
            url, self._begun, self._there = self._begun, "", set()
            self._turns += bool(url)
        if url:
            with suppress(NosyncError):
                location.location_of(url).clear(url.partition("?")[0].rpartition("/")[2])

    def _begin(self) -> None:
        """Makes a place, and clears away what owners before have left; with the lock."""
        *above, own = self._own
        url = location.url_below(self._url, *above, f"{own}-{self._turns}")
        place = location.location_of(url)
        place.make()
        for name in place.beside():
            if not name.startswith(f"{own}-"):
                place.clear(name)
        self._begun, self._within = url, self._url

    def _delete(self, depot: StagingArea, names: Iterable[str]) -> None:
        """Deletes files at the place; what cannot be deleted stays until it is cleared."""
        place = location.location_of(depot.url)
        for name in names:
            try:
                place.delete(name)
            except NosyncError as error:
                warn(f"{error}: what is not needed any more stays there for now", stacklevel=None)
                return
            with self._lock:
                self._there.discard(name)
