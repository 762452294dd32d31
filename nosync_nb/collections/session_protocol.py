"""The protocol between a collection and the session that it belongs to.

A collection is a description without rows. Its session provides names, the meaning of expressions,
rows and changes. A collection that is derived from another one belongs to the same session.
Collections of two sessions cannot be combined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.explain_output import ExplainOutput
from nosync_nb.collections.position import Position
from nosync_nb.errors import StageError
from nosync_nb.expressions import Registered, SettingsDependency, SqlSettings
from nosync_nb.rows import Schema
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Batch

Seen = TypeVar("Seen")


class ResolvedEpoch(NamedTuple):
    """Identifies an epoch by its number and by the number of rewinds before it.

    After a rewind another epoch may have the same number, but not the same number of rewinds.
    """

    epoch: int
    incarnation: int


class Stopped(NamedTuple):
    """The state of a collection that is stale, or that reads a stale one.

    Attributes:
        reason: the reason why it is stale.
        epoch: the last epoch at which it can be read; None if there is no such epoch.
    """

    reason: str
    epoch: int | None

    def __str__(self) -> str:
        return f"stale: {self.reason}"


class SparkTypeResolver(Protocol):
    """Resolves types and settings of expressions before Spark evaluates them."""

    def __call__(self, sqls: Sequence[str], schema: Schema, /) -> list[str]:
        """Returns the types of some expressions over the columns of a schema."""

    def settings(self, depends: SettingsDependency, text: str, /) -> SqlSettings:
        """Returns those of the session's settings that an expression depends on.

        Raises:
            ExpressionError: if the running Spark session has other settings than the log.
        """

    def registered(self, sql: str, schema: Schema, /) -> tuple[Registered, ...]:
        """Returns the registered functions of the user that an expression calls.

        Raises:
            ExpressionError: if Spark does not give access to the code of one of them.
        """

    def in_utc(self) -> bool:
        """Returns True if the session's time zone for expressions is UTC."""


class SessionProtocol(Protocol):
    """The session of a collection. `at` is an epoch as in `Readable`; `None` means the last one."""

    @property
    def types(self) -> SparkTypeResolver:
        """Resolves types and settings of expressions."""

    @property
    def collect_rows(self) -> int:
        """The maximum number of rows that a read may return."""

    def name_of(self, definition: Definition) -> str | None:
        """Returns the name of a stage or input; None if the definition has no name."""

    def epoch(self, at: Any) -> int:
        """Returns the number of an epoch."""

    def pinpoint(self, at: Any) -> ResolvedEpoch:
        """Resolves an epoch; after a rewind, a new epoch with the same number differs from it."""

    def why_stopped(self, definition: Definition) -> Stopped | None:
        """Returns the reason why a collection is stale; None if it is live or does not exist."""

    def epoch_unless_undone(self, point: ResolvedEpoch, title: str) -> int:
        """Returns the number of a resolved epoch.

        Args:
            title: the phrase for the collection in the error.

        Raises:
            TimeError: if the log has been rewound to before the epoch.
        """

    def read(self, definition: Definition, at: Any) -> Batch:
        """Returns the consolidated rows at an epoch, including those with negative counts."""

    def repair(self, definition: Definition) -> str:
        """Returns the command that repairs negative counts in the inputs of a collection."""

    def apply_to_trace(
        self, definition: Definition, look: Callable[[Trace], Seen | None], at: Any = None
    ) -> Seen | None:
        """Applies a function to a collection's trace, whose layers need not be merged.

        Returns None if the trace is not available, or if the function returns None.
        """

    def changes(self, definition: Definition, after: Any, upto: Any) -> Batch:
        """Returns the net changes of the epochs in `(after, upto]`, consolidated."""

    def key(self, definition: Definition) -> Sequence[int] | None:
        """Returns the positions of the columns that identify a row; None if no key is known."""

    def position(self, definition: Definition) -> Position:
        """Returns the position of a named collection at its last epoch."""

    def history(self, definition: Definition) -> list[range]:
        """Returns the readable epochs as ranges."""

    def explain(self, definition: Definition, title: str = "collection") -> ExplainOutput:
        """Explains the current computation of a collection.

        Args:
            title: the title of a collection that has no name.
        """

    def frame(self, definition: Definition, at: Any) -> Any:
        """Returns the rows as a Spark DataFrame, with duplicates repeated."""

    def inspect(self, definition: Definition, function: Callable[[int, Any], Any] | None) -> None:
        """Registers a function that is called with the changes of each epoch; None removes it."""


class SessionBound:
    """The base class of collections: a definition and the session that it belongs to."""

    def __init__(self, host: SessionProtocol, definition: Definition) -> None:
        self._host = host
        self._definition = definition


def session_of(collection: SessionBound) -> SessionProtocol:
    """Returns the session of a collection."""
    return collection._host


def why_stopped(collection: SessionBound) -> Stopped | None:
    """Returns the reason why a collection, or one that it reads, is stale; None if neither is."""
    return collection._host.why_stopped(collection._definition)


def definition_of(
    what: str,
    given: Any,
    host: SessionProtocol | None = None,
    argument: str = "the other collection",
    *,
    stage: str | None = None,
) -> Definition:
    """Returns the definition of a collection that was passed as an argument.

    Args:
        what: the operator, function or stage, for messages.
        given: the value of the argument.
        host: the session that the collection must belong to; `None` means any session.
        argument: the name or a description of the argument.
        stage: the stage that is being defined, for the error.

    Raises:
        StageError: if the value is not a collection, or belongs to another session.
    """
    if not isinstance(given, SessionBound):
        label = f"{argument}=" if argument.isidentifier() else ""
        raise StageError(
            f"{what}: {label}{given!r} is not a collection",
            hint="pass an input, a stage or the result of an operator, as in flights.filter(...)",
            stage=stage,
        )
    if host is not None and given._host is not host:
        raise StageError(
            f"{what}: {argument} belongs to another session",
            hint="insert its rows into an input of this session",
            stage=stage,
        )
    return given._definition
