"""Way: what this room asks of the session that it works for.

The session knows which Spark session is in use, starts one if it has to, and knows the stages. Who
asks it is handed a `SparkSessionProtocol`, and the log's files beside it; no module of this room
knows a session.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol

from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import Stage
from nosync_nb.store.catalog.epoch_index import EpochIndex
from nosync_nb.store.store import Store


class SparkOptions(NamedTuple):
    """What who opens a session says of Spark.

    Attributes:
        session: to use, or a function that gives one; None: whichever there is.
        rows: see `SparkLimits.spark_rows`.
        bulk: the URL of a place that executors reach which do not see the session's folder.
    """

    session: Any = None
    rows: int | None = None
    bulk: str = ""


class PublishedState(Protocol):
    """What a session shows; `described` are its stages with those that are being defined."""

    store: Store
    ledger: EpochIndex
    snapshot: Snapshot
    described: Mapping[str, Stage]


class SparkLimits(Protocol):
    """What the user of a session allows."""

    spark_rows: int | None
    spark_off: bool
    collect_rows: int


class SparkSessionProtocol(Protocol):
    """A session's way to Spark."""

    @property
    def conf(self) -> Mapping[str, str]:
        """Settings for a Spark session that has to be started."""

    @property
    def epoch(self) -> int:
        """The last epoch."""

    @property
    def spark_rows(self) -> int | None:
        """The most rows that run in this process; None: by estimated cost."""

    @property
    def off(self) -> bool:
        """Whether nothing is to run on Spark that this process can do."""

    def state(self, *, asked: bool) -> Literal["absent", "startable", "running"]:
        """Whether Spark runs, could be started, or could not when that was tried.

        Args:
            asked: by the user, who is to be told why it does not start.
        """

    def catalog(self) -> Mapping[str, Stage]:
        """The stages of the log, those that are being defined included."""

    def present(self) -> Any:
        """The Spark session that is there; None if there is none, or it was stopped."""

    def require(self, why: str, instead: str = "", *, announce: bool = False) -> Any:
        """The Spark session that is there, else one that is started.

        Args:
            why: what needs it, said before it is started.
            instead: an expression near it that needs none.
            announce: whether a notice says so too, before Spark starts.

        Raises:
            NosyncError: if there is none and none can be started.
        """

    def able(self, what: str) -> bool:
        """Whether there is a Spark session, or one can be started, for what need not run there."""

    def shares(self, why: str) -> bool:
        """Whether executors see the session's folder; starts Spark if need be."""
