"""The protocol between this package and the session that it works for.

The session knows which Spark session is in use, starts one if necessary, and knows the stages.
Modules that need this receive a `SparkSessionProtocol` and the files of the log. No module of this
package imports a session.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol

from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import Stage
from nosync_nb.store.catalog.epoch_index import EpochIndex
from nosync_nb.store.store import Store


class SparkOptions(NamedTuple):
    """The Spark options of a session, set when it is opened.

    Attributes:
        session: the Spark session to use, or a function that returns it; None: the one that exists.
        rows: see `SparkLimits.spark_rows`.
        bulk: the URL of a staging area for executors that do not see the session's folder.
    """

    session: Any = None
    rows: int | None = None
    bulk: str = ""


class PublishedState(Protocol):
    """The published state of a session; `described` also has the stages that are being defined."""

    store: Store
    ledger: EpochIndex
    snapshot: Snapshot
    described: Mapping[str, Stage]


class SparkLimits(Protocol):
    """The limits that the user of a session has set."""

    spark_rows: int | None
    spark_off: bool
    collect_rows: int


class SparkSessionProtocol(Protocol):
    """The protocol through which this package asks its session about Spark."""

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
        """True if this process must do all work that it can do without Spark."""

    def state(self, *, asked: bool) -> Literal["absent", "startable", "running"]:
        """Returns the state of Spark: running, not yet started, or not available.

        Args:
            asked: True if the user asked for Spark and must see why it does not start.
        """

    def catalog(self) -> Mapping[str, Stage]:
        """The stages of the log, including those that are being defined."""

    def present(self) -> Any:
        """The running Spark session; None if it was stopped, or none was started."""

    def require(self, why: str, instead: str = "", *, announce: bool = False) -> Any:
        """Returns the running Spark session, or starts one.

        Args:
            why: the operation that needs Spark, for notices and errors.
            instead: a similar expression that needs no Spark.
            announce: True to print a notice before Spark starts.

        Raises:
            NosyncError: there is no Spark session and none can be started.
        """

    def able(self, what: str) -> bool:
        """Returns True if Spark runs or can be started, for an operation that may do without."""

    def shares(self, why: str) -> bool:
        """Returns True if executors see the session's folder; starts Spark if necessary."""
