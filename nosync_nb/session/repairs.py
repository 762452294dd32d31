"""Repairs: a file of rows that is damaged or gone is had again from a replica at first touch.

A call that meets one fails with nothing changed, as without replicas. Before the error reaches
anybody the file is looked for elsewhere, and if one with the digest that the log knows is put in
its place the call is made again. Where none has it, what it held is made again out of the log, or
computed, as at an opening that does not find it.

IMPORTANT: replicas are asked by who holds no lock of the session, in a thread that may hang, and
for so long as something comes; another thread commits meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from nosync_nb.errors import CorruptLogError, NosyncError, StageError
from nosync_nb.session.listeners import Listeners
from nosync_nb.session.replication import Replication
from nosync_nb.store.log.machine import Machine
from nosync_nb.store.replicas import mending
from nosync_nb.store.replicas.mending import Mended
from nosync_nb.store.replicas.settings import Replicas
from nosync_nb.store.store import Store
from nosync_nb.store.verification.items import Item, items
from nosync_nb.store.verification.survey import survey
from nosync_nb.store.verification.verifying import completed

Result = TypeVar("Result")

_FILES_MAX = 256


class Repairs:
    """Has files of a log again that a session misses.

    Owns, under `_lock`, the right to mend: two threads that miss a file have it fetched once.

    Args:
        regain: has again what lay in a file that nobody has; whether nothing needs that now.
    """

    def __init__(
        self,
        store: Store,
        replication: Replication,
        listeners: Listeners,
        regain: Callable[[str], bool],
    ) -> None:
        self._store = store
        self._replication = replication
        self._say = listeners.say
        self._regain = regain
        self._lock = threading.Lock()

    def repairing(self, call: Callable[[], Result]) -> Result:
        """Makes a call that changes nothing if it fails; again, if what it met is repaired."""
        try:
            return call()
        except CorruptLogError as error:
            return self.again(error, call)

    def again(self, error: CorruptLogError, call: Callable[[], Result]) -> Result:
        """Repairs what a call has met and makes it again; else raises its error.

        Cost: the log's frames are read, to know which file it was.
        """
        tried: set[str] = set()
        while error.file is not None and error.file not in tried and len(tried) < _FILES_MAX:
            tried.add(error.file)
            if not (self._repaired(error.file) or self._regained(error.file)):
                break
            try:
                return call()
            except CorruptLogError as another:
                error = another
        raise error

    def _regained(self, name: str) -> bool:
        """Whether nothing needs a file any more that nobody has."""
        if self._store.log.mode == "r":
            return False
        try:
            done = self._regain(name)
        except StageError:  # in the middle of an epoch, which is to fail with the error it met
            return False
        if done:
            self._say(f"'{name}' is damaged or missing: what it held was made again")
        return done

    def _repaired(self, name: str) -> bool:
        """Whether a file is whole by now."""
        settings = self._replication.settings
        if not settings.replicas or self._store.log.mode == "r":
            return False
        with self._lock:
            try:
                done = mended(self._store, settings, [name])
            except NosyncError:
                return False
        for each in done.get(name, ()):
            self._say(str(each))
        return name in done


def mended(store: Store, settings: Replicas, names: Iterable[str]) -> dict[str, list[Mended]]:
    """Has files of rows again; returns those that are whole by now, with what was done for each.

    Raises:
        DurabilityError: the log or its disk cannot be read, or written.
        FencedError: the log is somebody else's.
    """
    whole: dict[str, list[Mended]] = {}
    left, before = [*names], -1
    while left and len(whole) > before:  # what is had may be a pack, which names others
        before = len(whole)
        known = _known(store)
        for name in left:
            if name in known:
                _mend(store, settings, known[name], whole)
        left = [name for name in left if name not in whole]
    return whole


def _mend(store: Store, settings: Replicas, item: Item, whole: dict[str, list[Mended]]) -> None:
    """Has one file again, if it is not whole, and notes it."""
    why = mending.flaw(store.files, store.path, item, _uncounted)
    if not why:
        whole[item.name] = []
        return
    one = mending.mend(
        store.files,
        store.path,
        item,
        why,
        settings.replicas,
        store.log.id,
        check=store.log.check,
    )
    if one is not None:
        whole[item.name] = [one]


def _known(store: Store) -> dict[str, Item]:
    """What the log says of its files, those that packs alone name included."""
    surveyed = survey(store.files, store.path, Machine(), _uncounted)
    return items(completed(store.files, store.path, surveyed, _uncounted))


def _uncounted(_count: int) -> None:
    pass
