"""SessionHost: what the collections of a session ask of it (nosync_nb/collections/host.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nosync_nb.collections import loops
from nosync_nb.collections.definition import Definition
from nosync_nb.session import reader
from nosync_nb.spark.meaning import SparkTypes
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Batch

if TYPE_CHECKING:
    from nosync_nb.session.session import Session


class SessionHost:
    """The host of a session's collections."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def types(self) -> SparkTypes:
        """What expressions mean."""
        return self._session._types

    @property
    def collect_rows(self) -> int:
        """The most rows that a read gives at once."""
        return self._session.collect_rows

    def name_of(self, definition: Definition) -> str | None:
        """The name of a stage or input; None if the definition has none."""
        return reader.name_of(self._session, definition)

    def epoch(self, at: Any) -> int:
        """The number of an epoch."""
        return reader.epoch(self._session, at, self._session._snapshot)

    def read(self, definition: Definition, at: Any) -> Batch:
        """The consolidated rows at an epoch; counts below 0 are among them."""
        loops.refuse_reading(definition)
        return self._session._following(lambda: reader.read(self._session, definition, at))

    def trace(self, definition: Definition) -> Trace | None:
        """The layers whose sum is there now; None if the rows have to be computed."""
        loops.refuse_reading(definition)
        return self._session._following(lambda: reader.now(self._session, definition))

    def changes(self, definition: Definition, after: Any, upto: Any) -> Batch:
        """Net changes of the epochs in `(after, upto]`, consolidated."""
        session = self._session
        return session._following(lambda: reader.changes(session, definition, after, upto))

    def history(self, definition: Definition) -> list[range]:
        """The readable epochs, as ranges."""
        return reader.history_of(self._session, definition)

    def explain(self, definition: Definition) -> str:
        """The operators with where each ran last, as text."""
        return reader.explain(self._session, definition)

    def frame(self, definition: Definition, at: Any) -> Any:
        """The rows as a DataFrame of Spark, copies expanded."""
        loops.refuse_reading(definition)
        return self._session._spark.frame(definition, at)

    def inspect(self, definition: Definition, function: Callable[[int, Any], Any] | None) -> None:
        """Has a function called with the changes of each epoch, or (None) no longer."""
        self._session._listeners.inspect(definition, self.name_of(definition), function)
