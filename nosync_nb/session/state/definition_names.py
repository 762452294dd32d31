"""Names: what descriptions are called, as long as somebody holds them.

A description is named when it becomes a stage. Whoever holds it still then reads the stage, and
what uses it is compiled over the stage.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from weakref import WeakKeyDictionary

from nosync_nb.collections.definition import Definition
from nosync_nb.session.state.subscriptions import Subscriptions


class DefinitionNames:
    """The names of a session's descriptions.

    Threads: who defines changes them, with the gate; any may ask.

    Args:
        listeners: who wait for a name.
    """

    def __init__(self, listeners: Subscriptions) -> None:
        self._listeners = listeners
        self._mutex = threading.RLock()  # a signal's handler in the middle must not wait for itself
        self._names: WeakKeyDictionary[Definition, str] = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._names)

    def of(self, definition: Definition) -> str | None:
        """The name of a stage or input; None if the definition has none."""
        return definition.name if definition.is_ref else self._names.get(definition)

    def read_by(self, definition: Definition) -> tuple[str, ...]:
        """The name of a collection, or the names that one without a name reads."""
        name = self.of(definition)
        return definition.references if name is None else (name,)

    def given(self, definition: Definition) -> str | None:
        """What a description was called by a definition of stages; also a reference may be."""
        return self._names.get(definition)

    def called(self, names: Collection[str]) -> list[Definition]:
        """The descriptions that have one of some names."""
        with self._mutex:
            return [each for each, name in self._names.items() if name in names]

    def call(self, definition: Definition, name: str | None) -> None:
        """Notes a name, None: it has none any more; may be done again."""
        with self._mutex:
            if name is None:
                self._names.pop(definition, None)
            else:
                self._names[definition] = name
        if name is not None:
            self._listeners.named(definition, name)
