"""The protocols between this package and the session that uses it.

The session knows its stages and the Spark session in use, and starts Spark if necessary. Modules
that need these receive a `SparkSessionProtocol`. No module of this package imports `session`.
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
        session: the Spark session to use, or a function that returns it. `None` means an existing
            session, if there is one.
        rows: the value of `SparkLimits.spark_rows`.
        bulk: the URL of a staging area for executors that do not see the session's folder; empty if
            there is none.
    """

    session: Any = None
    rows: int | None = None
    bulk: str = ""


class PublishedState(Protocol):
    """The published state of a session.

    Attributes:
        described: the stages, including those that are being defined.
    """

    store: Store
    ledger: EpochIndex
    snapshot: Snapshot
    described: Mapping[str, Stage]


class SparkLimits(Protocol):
    """The limits that the user of a session has set.

    Attributes:
        spark_rows: the maximum number of rows that run in this process; `None` means that the
            estimated cost decides.
        spark_off: True if Spark is switched off.
        collect_rows: the maximum number of rows that a read may return.
    """

    spark_rows: int | None
    spark_off: bool
    collect_rows: int


class SparkSessionProtocol(Protocol):
    """The session's knowledge of Spark and of the log, as this package needs it."""

    @property
    def conf(self) -> Mapping[str, str]:
        """The settings for a Spark session that is started."""

    @property
    def epoch(self) -> int:
        """The last epoch."""

    @property
    def spark_rows(self) -> int | None:
        """The maximum number of rows that run in this process; None if the cost decides."""

    @property
    def off(self) -> bool:
        """True if this process must do all work that it can do without Spark."""

    def state(self, *, asked: bool) -> Literal["absent", "startable", "running"]:
        """Returns the state of Spark: running, not yet started, or not available.

        Args:
            asked: True if the user asked for Spark, and must see the error if it does not start.
        """

    def catalog(self) -> Mapping[str, Stage]:
        """Returns the stages of the log, including those that are being defined."""

    def present(self) -> Any:
        """Returns the running Spark session; None if there is none."""

    def require(self, why: str, instead: str = "", *, announce: bool = False) -> Any:
        """Returns the running Spark session, or starts one.

        Args:
            why: the operation that needs Spark, for notices and errors.
            instead: a similar expression that needs no Spark.
            announce: True to print a notice before Spark starts.

        Raises:
            NosyncError: if no Spark session runs, and none can be started.
        """

    def able(self, what: str) -> bool:
        """Returns True if Spark runs or can be started, for an operation that does not need it."""

    def shares(self, why: str) -> bool:
        """Returns True if executors see the session's folder; starts Spark if necessary."""
