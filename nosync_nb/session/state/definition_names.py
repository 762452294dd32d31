"""The names of definitions, as long as a collection refers to them.

A definition gets a name when it becomes a stage. From then on a collection of that definition reads
the stage, and a new definition that uses it is compiled over the stage.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from weakref import WeakKeyDictionary

from nosync_nb.collections.definition import Definition
from nosync_nb.session.state.subscriptions import Subscriptions


class DefinitionNames:
    """The names of a session's definitions.

    Threads: a definition of stages changes the names, with the writer lock. Any thread may look one
    up.

    Args:
        subscriptions: the subscriptions; those that wait for a name are notified.
    """

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions
        self._mutex = threading.RLock()  # reentrant: a signal handler may interrupt a holder
        self._names: WeakKeyDictionary[Definition, str] = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._names)

    def name_of(self, definition: Definition) -> str | None:
        """Returns the name of a stage or input; None if the definition has none."""
        return definition.name if definition.is_ref else self._names.get(definition)

    def read_by(self, definition: Definition) -> tuple[str, ...]:
        """Returns the name of a collection; if it has none, the names that it reads."""
        name = self.name_of(definition)
        return definition.references if name is None else (name,)

    def assigned_name(self, definition: Definition) -> str | None:
        """Returns the name that a definition of stages gave to a definition; None if it has none.

        A reference may have been given another name than its own.
        """
        return self._names.get(definition)

    def called(self, names: Collection[str]) -> list[Definition]:
        """Returns the definitions that have one of some names."""
        with self._mutex:
            return [each for each, name in self._names.items() if name in names]

    def call(self, definition: Definition, name: str | None) -> None:
        """Records a name (None: removes it), and notifies the subscriptions; may be repeated."""
        with self._mutex:
            if name is None:
                self._names.pop(definition, None)
            else:
                self._names[definition] = name
        if name is not None:
            self._subscriptions.named(definition, name)
