"""Host: what a collection asks of who made it.

A collection describes and has no rows. Names, what expressions mean, rows and changes are those of
its host, which every collection made of it has too. Collections of two hosts do not go together.
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
    """An epoch that stays itself: its number, and how often the log had gone back by then."""

    epoch: int
    incarnation: int


class Stopped(NamedTuple):
    """That a collection is stale, or reads one that is.

    Attributes:
        reason: why.
        epoch: the last one at which it can be read; None: there is none.
    """

    reason: str
    epoch: int | None

    def __str__(self) -> str:
        return f"stale: {self.reason}"


class SparkTypeResolver(Protocol):
    """What Spark knows of expressions before it evaluates them."""

    def __call__(self, sqls: Sequence[str], schema: Schema, /) -> list[str]:
        """The types of expressions over columns."""

    def settings(self, depends: SettingsDependency, text: str, /) -> SqlSettings:
        """What an expression is described under, as far as it depends on that.

        Raises:
            ExpressionError: if a Spark session is there and has others than the log.
        """

    def registered(self, sql: str, schema: Schema, /) -> tuple[Registered, ...]:
        """The functions that users registered with Spark and that an expression calls.

        Raises:
            ExpressionError: if Spark does not reveal one of them.
        """

    def in_utc(self) -> bool:
        """Whether what depends on the time zone is described in UTC, as far as that is known."""


class SessionProtocol(Protocol):
    """Who made a collection, and answers for it. `at` is as in `Readable`, None the last epoch."""

    @property
    def types(self) -> SparkTypeResolver:
        """What expressions mean."""

    @property
    def collect_rows(self) -> int:
        """The most rows that a read gives at once."""

    def name_of(self, definition: Definition) -> str | None:
        """The name of a stage or input; None if the definition has none."""

    def epoch(self, at: Any) -> int:
        """The number of an epoch."""

    def pinpoint(self, at: Any) -> ResolvedEpoch:
        """An epoch that is told from any that has its number after a rewind."""

    def stopped(self, definition: Definition) -> Stopped | None:
        """Why a collection is stale; None if it is not, or is not there."""

    def still(self, point: ResolvedEpoch, title: str) -> int:
        """The number of an epoch of before.

        Raises:
            TimeError: the log has gone back behind it since; `title` is of what was to be read.
        """

    def read(self, definition: Definition, at: Any) -> Batch:
        """The consolidated rows at an epoch; counts below 0 are among them."""

    def repair(self, definition: Definition) -> str:
        """The command that brings the rows that inputs of a collection lack."""

    def glance(
        self, definition: Definition, look: Callable[[Trace], Seen | None], at: Any = None
    ) -> Seen | None:
        """What a look at the layers whose sum is there gives; None if there are none."""

    def changes(self, definition: Definition, after: Any, upto: Any) -> Batch:
        """Net changes of the epochs in `(after, upto]`, consolidated."""

    def history(self, definition: Definition) -> list[range]:
        """The readable epochs, as ranges."""

    def explain(self, definition: Definition) -> ExplainOutput:
        """How a collection is computed, as of now."""

    def frame(self, definition: Definition, at: Any) -> Any:
        """The rows as a DataFrame of Spark, copies expanded."""

    def inspect(self, definition: Definition, function: Callable[[int, Any], Any] | None) -> None:
        """Has a function called with the changes of each epoch, or (None) no longer."""


class SessionBound:
    """A definition with who answers for it: what each collection is."""

    def __init__(self, host: SessionProtocol, definition: Definition) -> None:
        self._host = host
        self._definition = definition


def session_of(collection: SessionBound) -> SessionProtocol:
    """Who answers for a collection."""
    return collection._host


def stopped(collection: SessionBound) -> Stopped | None:
    """Why a collection is stale, or reads one that is; None if neither."""
    return collection._host.stopped(collection._definition)


def definition_of(
    what: str,
    given: Any,
    host: SessionProtocol | None = None,
    argument: str = "the other collection",
    *,
    stage: str | None = None,
) -> Definition:
    """What a collection that was given somewhere describes.

    Args:
        what: where, for messages: the operator, function or stage.
        host: whose it has to be; None: anybody's.
        argument: what it is there: the name of an argument, or words for it.
        stage: the one that it is to become, for the error.

    Raises:
        StageError: if it is no collection, or that of another host.
    """
    if not isinstance(given, SessionBound):
        label = f"{argument}=" if argument.isidentifier() else ""
        raise StageError(
            f"{what}: {label}{given!r} is not a collection",
            hint="give an input, a stage or what an operator returns, as in flights.filter(...)",
            stage=stage,
        )
    if host is not None and given._host is not host:
        raise StageError(
            f"{what}: {argument} belongs to another session",
            hint="insert its rows into an input of this session",
            stage=stage,
        )
    return given._definition
