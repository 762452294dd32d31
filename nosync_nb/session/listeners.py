"""Inspection: a function is called with the changes of a collection after each epoch.

It is told, it takes no part: what it does changes no rows, and its exception is a warning, once for
each kind: one that fails every epoch would be heard of for ever. It hears
of live epochs only, not of those that a new version or a recovery goes through again, and is
forgotten with the kernel, as nobody else could hear it.

A collection without a name is no place where anything happens. Its function waits until it is
named; if it is used in another stage without a name, that stage is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import pyarrow as pa

from nosync_nb.collections import results
from nosync_nb.collections.definition import Definition
from nosync_nb.collections.grouped import check_callable
from nosync_nb.collections.loops import refuse_inside
from nosync_nb.dataflow.runner import Draft
from nosync_nb.errors import StageError, warn

if TYPE_CHECKING:
    from nosync_nb.collections.collection import Collection
    from nosync_nb.session.session import Session

Inspector = Callable[[int, pa.Table], Any]


class Inspectors:
    """The functions of a session: by name, and those of collections that have none yet."""

    def __init__(self) -> None:
        self.named: dict[str, Inspector] = {}
        self.failed: set[tuple[str, type]] = set()
        self.waiting: WeakKeyDictionary[Definition, Inspector] = WeakKeyDictionary()

    def put(self, name: str, function: Inspector | None) -> None:
        """Sets or (None) removes the function of a named collection."""
        self.named.pop(name, None)
        self.failed = {each for each in self.failed if each[0] != name}
        if function is not None:
            self.named[name] = function


class Subscribers:
    """Functions that hear of each epoch. One that fails is told of once for each kind of error."""

    def __init__(self) -> None:
        self._callbacks: list[tuple[Callable[[int], None], set[type]]] = []

    def __len__(self) -> int:
        return len(self._callbacks)

    def add(self, callback: Callable[[int], None]) -> Callable[[], None]:
        """Adds one; returns the way to remove it."""
        entry = (callback, set[type]())
        self._callbacks.append(entry)
        return lambda: self._callbacks.remove(entry)

    def tell(self, epoch: int) -> None:
        """Calls all of them; what one raises is a warning."""
        for callback, failed in tuple(self._callbacks):
            try:
                callback(epoch)
            except Exception as error:  # whatever the user's function raises
                if type(error) not in failed:
                    failed.add(type(error))
                    warn(f"a subscriber raised {error!r}", stacklevel=3)


def inspect(
    session: Session, definition: Definition, name: str | None, function: Inspector | None
) -> None:
    """Has a function called; see `Collection.inspect`."""
    refuse_inside("inspect")
    if function is not None:
        check_callable("inspect", function, "inspect(lambda epoch, changes: print(changes))")
    inspectors = session._inspectors
    if name is not None:
        inspectors.put(name, function)
        return
    inspectors.waiting.pop(definition, None)
    if function is not None:
        inspectors.waiting[definition] = function


def refuse_unnamed(session: Session, collections: Mapping[str, Collection]) -> None:
    """Raises if a stage uses an inspected collection that has no name."""
    waiting = session._inspectors.waiting
    if not waiting:
        return
    own = {id(collection._definition) for collection in collections.values()}
    for name, collection in collections.items():
        for part in _below(collection._definition):
            if part in waiting and id(part) not in own:
                raise StageError(
                    f"stage '{name}': what is inspected in it has no name",
                    hint="name it as a stage of its own, and use that one here",
                    stage=name,
                )


def named(session: Session, collections: Mapping[str, Collection]) -> None:
    """Collections that waited for a name have it now."""
    inspectors = session._inspectors
    for name, collection in collections.items():
        found = inspectors.waiting.pop(collection._definition, None)
        if found is not None:
            inspectors.put(name, found)


def tell(session: Session, draft: Draft) -> None:
    """Calls the functions of the collections that an epoch has changed."""
    seen = session._snapshot
    for name, function in list(session._inspectors.named.items()):
        node = seen.graph.named.get(name)
        if node is None:  # dropped, and not to be heard under a name that is given again
            session._inspectors.put(name, None)
            continue
        delta = draft.deltas.get(node.id)
        if not delta:
            continue
        changes = results.changes_table(delta.batch(node.log_layout), seen.stage(name).schema)
        try:
            function(draft.epoch, changes)
        except Exception as error:  # whatever the user's function raises
            failed = session._inspectors.failed
            if (name, type(error)) not in failed:
                failed.add((name, type(error)))
                warn(f"the inspector of '{name}' raised {error!r}", stacklevel=2)


def _below(tree: Definition) -> Iterable[Definition]:
    """All parts of a description, each once."""
    seen: set[int] = set()
    waiting = [tree]
    while waiting:
        part = waiting.pop()
        if id(part) not in seen:
            seen.add(id(part))
            waiting += part.inputs
            yield part
