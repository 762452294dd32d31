"""Notifies subscribers, inspectors and the notice handler of epochs and events.

A subscriber is called after each epoch. An inspector is called with the changes of a collection
after each epoch. A notice is a line of text for the user of the session. These functions cannot
change rows. Each kind of exception is reported once, because one that is raised at every epoch
would be reported forever. A notebook shows it as a notice, elsewhere it is a warning. The functions
are called for live epochs only, not for those that a new version or a recovery runs again. The
subscriptions end with the process, because they are not stored.

A collection without a name has no changes. Its inspector waits until it is named. A stage that uses
it before that is refused.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import pyarrow as pa

from nosync_nb.collections import readable
from nosync_nb.collections.definition import Definition
from nosync_nb.collections.loops import refuse_inside
from nosync_nb.dataflow.runtime.epoch_result import EpochResult
from nosync_nb.dataflow.snapshot import Snapshot, collection_state
from nosync_nb.errors import StageError, visible, warn
from nosync_nb.operators.user_functions import check_callable
from nosync_nb.trace import empty_batch
from nosync_nb.trace.batch import Batch, arrange, concat_updates

logger = logging.getLogger("nosync")

Inspector = Callable[[int, pa.Table], Any]

NOTICES_MAX = 100


class InspectSubscription(NamedTuple):
    """A named collection with its inspector, and the kinds of errors already reported."""

    name: str
    function: Inspector
    failed: set[type]


class EpochSubscription(NamedTuple):
    """A function to call after each epoch, and the kinds of errors already reported."""

    callback: Callable[[int], None]
    failed: set[type]


class Subscriptions:
    """The functions that a session notifies.

    Threads: any thread may add, remove and notify. The tuples are replaced under the lock and never
    changed, so a notification continues with the functions that existed when it began. No function
    is called under the lock.

    Args:
        tell: calls a function of a user, which must not change the session meanwhile.

    Attributes:
        notices: the last notices.
        on_notice: called with each notice; without it the program's log gets them. It is called
            where the event happens, and must not wait for another thread that changes the session.
    """

    def __init__(self, tell: Callable[..., None]) -> None:
        # Reentrant, because a finalizer may run while this thread holds the lock.
        self._mutex = threading.RLock()
        self._tell = tell
        self._handler_errors: set[type] = (
            set()
        )  # the kinds of errors of `on_notice` already reported
        self._inspected: tuple[InspectSubscription, ...] = ()
        self._subscribed: tuple[EpochSubscription, ...] = ()
        self._waiting: WeakKeyDictionary[Definition, Inspector] = WeakKeyDictionary()
        self.notices: deque[str] = deque(maxlen=NOTICES_MAX)
        self.on_notice: Callable[[str], None] | None = None

    # -- subscribers and notices -------------------------------------------------------------

    @property
    def subscribers(self) -> int:
        """The number of subscribers."""
        return len(self._subscribed)

    @property
    def has_listeners(self) -> bool:
        """True if there are subscribers or inspectors."""
        return bool(self._inspected or self._subscribed)

    def subscribe(self, callback: Callable[[int], None]) -> Callable[[], None]:
        """Adds a subscriber; returns a function that removes it, and may be called again."""
        entry = EpochSubscription(callback, set())

        def stop() -> None:
            with self._mutex:
                self._subscribed = tuple(e for e in self._subscribed if e is not entry)

        with self._mutex:
            self._subscribed = (*self._subscribed, entry)
        return stop

    def set_notice_handler(self, handler: Callable[[str], None] | None) -> None:
        """Sets the function that gets each notice; with None, the program's log gets them."""
        self.on_notice = handler

    @property
    def has_notice_handler(self) -> bool:
        """True if a function gets the notices, as in a notebook."""
        return self.on_notice is not None

    def alert(self, text: str) -> None:
        """Adds a notice that the user must see: without a notice handler it is a warning."""
        if self.has_notice_handler:
            self.add_notice(text)
        else:
            warn(text, stacklevel=None)

    def add_notice(self, text: str) -> None:
        """Adds a notice, and calls its handler, which cannot change the session."""
        text = visible(text)
        self.notices.append(text)
        handler = self.on_notice
        if handler is None:
            logger.info(text)
            return
        try:
            self._tell(handler, text)
        except Exception as error:  # whatever the user's function raises
            if type(error) not in self._handler_errors:
                self._handler_errors.add(type(error))
                warn(f"the handler of notices raised {error!r}", stacklevel=2)

    # -- inspectors --------------------------------------------------------------------------

    @property
    def unnamed_inspectors(self) -> int:
        """The number of inspectors that wait for a name."""
        return len(self._waiting)

    def inspect(self, definition: Definition, name: str | None, function: Inspector | None) -> None:
        """Sets or (None) removes the inspector of a collection; see `Collection.inspect`."""
        refuse_inside("inspect")
        if function is not None:
            check_callable("inspect", function, "inspect(lambda epoch, changes: print(changes))")
        if name is not None:
            self._set_inspector(name, function)
            return
        with self._mutex:
            waiting = WeakKeyDictionary(self._waiting)
            waiting.pop(definition, None)  # so that the new object becomes the key
            if function is not None:
                waiting[definition] = function
            self._waiting = waiting

    def refuse_unnamed(self, described: Mapping[str, Definition]) -> None:
        """Raises StageError if a stage uses an inspected collection that has no name."""
        with self._mutex:
            waiting = set(self._waiting)
        if not waiting:
            return
        own = {id(tree) for tree in described.values()}
        for name, tree in described.items():
            for part in _all_parts(tree):
                if part in waiting and id(part) not in own:
                    raise StageError(
                        f"stage '{name}': inspect() needs a name",
                        hint="name the inspected collection as its own stage, and use that stage"
                        " here",
                        stage=name,
                    )

    def named(self, definition: Definition, name: str) -> None:
        """Activates the inspector that waited for a definition's name; may be repeated."""
        with self._mutex:
            function = self._waiting.get(definition)
            if function is not None:
                self._set_inspector(name, function)
                self._waiting.pop(definition, None)

    def _set_inspector(self, name: str, function: Inspector | None) -> None:
        """Sets or (None) removes the inspector of a named collection."""
        with self._mutex:
            others = tuple(each for each in self._inspected if each.name != name)
            added = () if function is None else (InspectSubscription(name, function, set()),)
            self._inspected = (*others, *added)

    # -- notifying ---------------------------------------------------------------------------

    def notify(self, draft: EpochResult, snapshot: Snapshot) -> None:
        """Calls the inspectors of the collections that an epoch has changed, and subscribers."""
        for subscription in self._inspected:
            node = snapshot.graph.named.get(subscription.name)
            if node is None:  # dropped: a later stage of that name is another one
                self._remove_inspector(subscription)
                continue
            delta = draft.deltas.get(node.id)
            if not delta:
                continue
            self._call_inspector(subscription, draft.epoch, delta.batch(node.log_layout), snapshot)
        self._call_subscribers(draft.epoch)

    def notify_rewind(self, previous: Snapshot, snapshot: Snapshot) -> None:
        """Calls inspectors and subscribers after a rewind, with the changes back to that epoch.

        Args:
            previous: the snapshot before the rewind.
            snapshot: the snapshot after it.
        """
        for subscription in self._inspected:
            if (
                subscription.name in previous.graph.named
                and subscription.name in snapshot.graph.named
            ):
                changes = _rewind_changes(previous, snapshot, subscription.name)
                if len(changes):
                    self._call_inspector(subscription, snapshot.epoch, changes, snapshot)
        self._call_subscribers(snapshot.epoch)

    def _call_inspector(
        self, subscription: InspectSubscription, epoch: int, batch: Batch, snapshot: Snapshot
    ) -> None:
        """Calls an inspector with changes."""
        changes = readable.changes_table(batch, snapshot.stage(subscription.name).schema)
        try:
            subscription.function(epoch, changes)
        except Exception as error:  # whatever the user's function raises
            if type(error) not in subscription.failed:
                subscription.failed.add(type(error))
                self.alert(f"the inspector of '{subscription.name}' raised {error!r}")

    def _call_subscribers(self, epoch: int) -> None:
        for callback, failed in self._subscribed:
            try:
                callback(epoch)
            except Exception as error:  # whatever the user's function raises
                if type(error) not in failed:
                    failed.add(type(error))
                    self.alert(f"a subscriber raised {error!r}")

    def _remove_inspector(self, entry: InspectSubscription) -> None:
        with self._mutex:
            self._inspected = tuple(each for each in self._inspected if each is not entry)


def _all_parts(tree: Definition) -> Iterable[Definition]:
    """Yields all parts of a definition, each once."""
    visited: set[int] = set()
    waiting = [tree]
    while waiting:
        part = waiting.pop()
        if id(part) not in visited:
            visited.add(id(part))
            waiting += part.inputs
            yield part


def _rewind_changes(was: Snapshot, now: Snapshot, name: str) -> Batch:
    """Returns the change of a collection by a rewind.

    Cost: proportional to the undone changes, or to all rows if the collection was recomputed.
    """
    before, after = was.graph.named[name], now.graph.named[name]
    layout, last = after.log_layout, was.last(was.stage(name))
    if after.log == before.log and after.log is not None and now.epoch < last:
        undone = was.history.changes(after.log, now.epoch, last)
        parts = [each.updates.negated() for each in undone]
    else:
        parts = [
            collection_state(was, name, last).updates.negated(),
            collection_state(now, name, now.epoch).updates,
        ]
    return arrange(layout, concat_updates(parts, layout.types)) if parts else empty_batch(layout)
