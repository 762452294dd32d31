"""The protocol between a collection and the session that it belongs to.

A collection describes and has no rows. Its session provides names, the meaning of expressions, rows
and changes. Every collection derived from it belongs to the same session. Collections of two
sessions cannot be combined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.explain_output import ExplainOutput
from nosync_nb.errors import StageError
from nosync_nb.expressions import Registered, SettingsDependency, SqlSettings
from nosync_nb.rows import Schema
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Batch

Seen = TypeVar("Seen")


class ResolvedEpoch(NamedTuple):
    """Identifies an epoch also after a rewind: its number, and the number of rewinds before it."""

    epoch: int
    incarnation: int


class Stopped(NamedTuple):
    """Marks a collection that is stale, or reads one that is.

    Attributes:
        reason: the reason.
        epoch: the last epoch at which it can be read; None if it cannot be read.
    """

    reason: str
    epoch: int | None

    def __str__(self) -> str:
        return f"stale: {self.reason}"


class SparkTypeResolver(Protocol):
    """Resolves types and settings of expressions before Spark evaluates them."""

    def __call__(self, sqls: Sequence[str], schema: Schema, /) -> list[str]:
        """The types of expressions over columns."""

    def settings(self, depends: SettingsDependency, text: str, /) -> SqlSettings:
        """Returns the settings of an expression, as far as it depends on them.

        Raises:
            ExpressionError: if a Spark session runs with other settings than the log's.
        """

    def registered(self, sql: str, schema: Schema, /) -> tuple[Registered, ...]:
        """The registered functions of the user that an expression calls.

        Raises:
            ExpressionError: if Spark does not reveal one of them.
        """

    def in_utc(self) -> bool:
        """Returns True if expressions that depend on the time zone are described in UTC."""


class SessionProtocol(Protocol):
    """The session of a collection. `at` is as in `Readable`, None the last epoch."""

    @property
    def types(self) -> SparkTypeResolver:
        """Resolves types and settings of expressions."""

    @property
    def collect_rows(self) -> int:
        """The most rows that a read gives at once."""

    def name_of(self, definition: Definition) -> str | None:
        """The name of a stage or input; None if the definition has none."""

    def epoch(self, at: Any) -> int:
        """The number of an epoch."""

    def pinpoint(self, at: Any) -> ResolvedEpoch:
        """Resolves an epoch so that another epoch of its number, after a rewind, differs."""

    def why_stopped(self, definition: Definition) -> Stopped | None:
        """The reason why a collection is stale; None if it is not stale, or does not exist."""

    def epoch_unless_undone(self, point: ResolvedEpoch, title: str) -> int:
        """The number of an epoch that was resolved before.

        Raises:
            TimeError: the log has been rewound to before it; `title` names the collection.
        """

    def read(self, definition: Definition, at: Any) -> Batch:
        """The consolidated rows at an epoch, including those with negative counts."""

    def repair(self, definition: Definition) -> str:
        """The command that repairs negative counts in a collection's inputs."""

    def apply_to_trace(
        self, definition: Definition, look: Callable[[Trace], Seen | None], at: Any = None
    ) -> Seen | None:
        """Applies a function to the layers of a trace, unmerged; None if they are not available."""

    def changes(self, definition: Definition, after: Any, upto: Any) -> Batch:
        """Net changes of the epochs in `(after, upto]`, consolidated."""

    def history(self, definition: Definition) -> list[range]:
        """The readable epochs, as ranges."""

    def explain(self, definition: Definition) -> ExplainOutput:
        """Explains the current computation of a collection."""

    def frame(self, definition: Definition, at: Any) -> Any:
        """The rows as a DataFrame of Spark, copies expanded."""

    def inspect(self, definition: Definition, function: Callable[[int, Any], Any] | None) -> None:
        """Calls a function with the changes of each epoch, or (None) stops doing so."""


class SessionBound:
    """A definition with the session that it belongs to: the base of all collections."""

    def __init__(self, host: SessionProtocol, definition: Definition) -> None:
        self._host = host
        self._definition = definition


def session_of(collection: SessionBound) -> SessionProtocol:
    """The session of a collection."""
    return collection._host


def why_stopped(collection: SessionBound) -> Stopped | None:
    """The reason why a collection is stale, or reads one that is; None if neither."""
    return collection._host.why_stopped(collection._definition)


def definition_of(
    what: str,
    given: Any,
    host: SessionProtocol | None = None,
    argument: str = "the other collection",
    *,
    stage: str | None = None,
) -> Definition:
    """The definition of a collection that was passed as an argument.

    Args:
        what: the operator, function or stage, for messages.
        host: the session that it must belong to; None: any.
        argument: the name or a description of the argument.
        stage: the stage being defined, for the error.

    Raises:
        StageError: if it is not a collection, or belongs to another session.
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
