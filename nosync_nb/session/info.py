"""Three objects with which a front end reads the facts of a session, and controls it.

    session.info.watches              # facts for status lines and views
    session.replicas.status()         # the copies of the log
    session.spark_control.cancel()    # the Spark session in use

Each call is forwarded to the services of the session. The objects have no state of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.functions import signing
from nosync_nb.dataflow.runtime.activity import Activity
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import one_line
from nosync_nb.session.backfill.plan import first_unread_epoch
from nosync_nb.session.durability.replication import ReplicaStatus, demotion_text
from nosync_nb.session.feeds.folder_watch import WatchStatus
from nosync_nb.session.maintenance.disk_usage import (
    DiskUsage,
    measure_disk_usage,
    over_budget,
)
from nosync_nb.session.overview import Overview, OverviewMark, build_overview, overview_mark
from nosync_nb.spark.spark_session import RunningJobs, conf_of
from nosync_nb.store.catalog import signature
from nosync_nb.store.replication.agent.scrub import ScrubReport
from nosync_nb.store.replication.config import checked_config, read_quorum
from nosync_nb.store.replication.restore.lazy_fetch import MissingSummary
from nosync_nb.store.retention_policy import Retention
from nosync_nb.store.timetravel.branches import branch_origin

if TYPE_CHECKING:
    from nosync_nb.session.services import Services


class SessionInfo:
    """Read-only information about a session, for status lines, views and reports.

    Examples:
        >>> for stage in session.info.overview().collections:
        ...     print(stage.name, stage.rows)
        flights 3
        airlines 2
        links 4
        late 2
    """

    def __init__(self, services: Services) -> None:
        self._services = services

    # -- the log -----------------------------------------------------------------------------

    @property
    def log_id(self) -> str:
        """The id of the log, in hex: `session.info.log_id[:16]`. A copy of a log has another id.

        Examples:
            >>> len(session.info.log_id)
            32
        """
        return self._services.publisher.store.log.id.hex()

    def sql_tables(self) -> dict[str, tuple[str, ...]]:
        """Returns the columns of each table of SQL by name: inputs, stages and temporary views.

        Examples:
            >>> session.info.sql_tables()["late"]
            ('carrier', 'day', 'delay')
        """
        return self._services.sql_tables.columns()

    @property
    def forked_from(self) -> str | None:
        """The id of the log that this branch was forked from; None if the log is no branch.

        Examples:
            >>> idea = session.branch("idea")
            >>> idea.info.forked_from == session.info.log_id
            True
        """
        origin = branch_origin(self._services.publisher.store.meta)
        return None if origin is None else origin.of

    @property
    def fenced(self) -> bool:
        """True if another process has taken over the log: `if session.info.fenced: ...`.

        Examples:
            >>> session.info.fenced
            False
        """
        return self._services.publisher.fenced

    @property
    def rewinds(self) -> int:
        """The number of rewinds of the log. An epoch number may mean another epoch after each.

        Examples:
            >>> session.info.rewinds
            0
        """
        return self._services.publisher.ledger.incarnation

    @property
    def retention(self) -> Retention:
        """The retained history, the pins and the disk budget: `session.info.retention.budget`.

        Examples:
            >>> session.info.retention.user_value is None
            True
        """
        return self._services.retention_service.retention

    def disk_usage(self) -> DiskUsage:
        """Returns the bytes and files of the log by purpose: `session.info.disk_usage().total`.

        Cost: a few microseconds for each file.

        Examples:
            >>> usage = session.info.disk_usage()
            >>> usage.files > 0
            True
        """
        return measure_disk_usage(self._services.publisher)

    @property
    def over_budget(self) -> bool:
        """True if the log exceeds its disk budget: `session.info.over_budget`.

        Cost: that of `disk_usage`, if the log has a budget.

        Examples:
            >>> session.info.over_budget
            False
        """
        return bool(over_budget(self._services.publisher))

    @property
    def missing_files(self) -> MissingSummary:
        """The files that are still at replicas only: `session.info.missing_files.files`.

        Examples:
            >>> session.info.missing_files.files
            0
        """
        return self._services.lazy_fetcher.left

    def trust(self) -> TrustReport:
        """Returns a report of the keys that signed the log and its stages, for `print`.

        Examples:
            >>> session.info.trust().whose
            'signed with your key'
        """
        return trust_report(self._services)

    # -- work --------------------------------------------------------------------------------

    @property
    def activity(self) -> Activity | None:
        """The long operation that is running, for a progress display; None if there is none.

        Examples:
            >>> session.info.activity is None
            True
        """
        return self._services.metrics.activities.current

    @property
    def background_failures(self) -> list[str]:
        """The background tasks that failed and have not succeeded since, as lines of text.

        Examples:
            >>> session.info.background_failures
            []
        """
        return [str(each) for each in self._services.worker.failures.failed_tasks()]

    @property
    def watches(self) -> tuple[WatchStatus, ...]:
        """The watched folders: `[(each.pattern, each.loaded) for each in session.info.watches]`.

        Examples:
            >>> session.info.watches
            ()
        """
        return self._services.folder_watches.status()

    # -- stages ------------------------------------------------------------------------------

    @property
    def reads(self) -> dict[str, tuple[str, ...]]:
        """By stage and input, the names that it reads: `session.info.reads["late"]`.

        Examples:
            >>> session.info.reads["late"]
            ('flights',)
        """
        return dict(self._services.publisher.snapshot.reads)

    def layers(self, name: str) -> list[dict[str, Any]]:
        """Returns the layers of a stage, oldest first: `session.info.layers("late")[0]["rows"]`.

        Each layer is a dict with its epochs `[lower, upper)`, its rows, bytes, level and storage,
        and True if it is being merged.

        Examples:
            >>> [layer["rows"] for layer in session.info.layers("flights")]
            [3]
        """
        return self._services.maintenance.layers(name)

    def earlier_versions(self, stage: str) -> dict[int, int]:
        """Returns the replaced versions of a stage, each with its last epoch.

        Examples:
            >>> edited = session.stage("late", flights.filter("delay > 60"))
            >>> session.info.earlier_versions("late")
            {1: 1}
        """
        snapshot = self._services.publisher.snapshot
        return {
            each.version: snapshot.last(each)
            for name, each in snapshot.catalog.items()
            if each.frozen and name.rpartition("@")[0] == stage
        }

    def missing_past(self, stage: str) -> range:
        """Returns the epochs before its definition that `session.replay` would add to a stage.

        Examples:
            >>> session.info.missing_past("late")
            range(0, 0)
        """
        snapshot = self._services.publisher.snapshot
        first = first_unread_epoch(snapshot, stage) if stage in snapshot.catalog else None
        return range(0) if first is None else range(first, snapshot.stage(stage).begin)

    def repeated_inputs(self, before: int, now: int) -> list[str]:
        """Returns the inputs without a key to which two epochs have added the same rows.

        Cost: proportional to the rows of both epochs.

        Examples:
            >>> session.info.repeated_inputs(0, 1)
            []
        """
        return self._services.load_registry.alike(before, now)

    # -- all of it ---------------------------------------------------------------------------

    def overview(self) -> Overview:
        """Returns all facts of this moment as one immutable value, for a view.

        Cost: proportional to stages x (layers + replicas); each layer's rows are counted once.

        Examples:
            >>> overview = session.info.overview()
            >>> [each.name for each in overview.collections]
            ['flights', 'airlines', 'links', 'late']
        """
        return build_overview(self._services)

    def mark(self) -> OverviewMark:
        """Returns a token of this moment, which tells cheaply whether an overview has changed.

        Cost: a few microseconds.

        Examples:
            >>> mark = session.info.mark()
            >>> session.info.mark().is_like(mark)
            True
        """
        return overview_mark(self._services)


class Replicas:
    """The replicas of a session's log: their state, and their settings.

    Examples:
        >>> session.replicas.urls
        []
    """

    def __init__(self, services: Services) -> None:
        self._replication = services.replication
        self._publisher = services.publisher

    def __len__(self) -> int:
        return len(self._replication.settings.replicas)

    @property
    def urls(self) -> list[str]:
        """The URLs of the replicas: `session.replicas.urls`.

        Examples:
            >>> session.replicas.urls
            []
        """
        return [address.url for address in self._replication.settings.replicas]

    @property
    def quorum(self) -> int:
        """The number of replicas that must have an epoch before it is safe; 0 without replicas.

        Examples:
            >>> session.replicas.quorum
            0
        """
        return self._replication.settings.quorum

    @property
    def read_quorum(self) -> int:
        """The number of replicas that must answer after the loss of the disk.

        Examples:
            >>> session.replicas.read_quorum
            1
        """
        return read_quorum(len(self), self.quorum)

    @property
    def safe(self) -> int:
        """The last epoch that a quorum of replicas has: `session.replicas.safe`.

        Examples:
            >>> session.replicas.safe
            0
        """
        return self._replication.safe()

    @property
    def unconfirmed(self) -> int:
        """The number of replicas that must still learn of a lowered quorum before it counts.

        Examples:
            >>> session.replicas.unconfirmed
            0
        """
        return self._replication.unconfirmed_count

    @property
    def scrubbed(self) -> ScrubReport:
        """The last scrub by the keeper: `session.replicas.scrubbed.repaired`.

        Examples:
            >>> session.replicas.scrubbed.files
            0
        """
        return self._replication.scrubbed

    @property
    def demotions(self) -> list[str]:
        """A line on the stages that are replicated last because of the backlog; else empty.

        Examples:
            >>> session.replicas.demotions
            []
        """
        return demotion_text(self._publisher.snapshot.catalog)

    def status(self) -> list[ReplicaStatus]:
        """Returns the status of each replica: `session.replicas.status()[0].behind_bytes`.

        It comes from the last messages of the keeper; no replica is contacted.

        Examples:
            >>> session.replicas.status()
            []
        """
        return self._replication.status()

    def change(self, urls: Sequence[str], quorum: int | None = None) -> None:
        """Replaces the list of replicas, and the quorum.

        Args:
            urls: the URLs of all replicas; new replicas are filled in the background.
            quorum: the number of replicas that make an epoch safe; `None` means a majority.

        Raises:
            SchemaError: a URL or the quorum is invalid.

        Examples:
            >>> session.replicas.change([])
        """
        log = self._publisher.store.path
        self._replication.change(checked_config(urls, quorum, log=log))


class SparkControl:
    """Starts, follows and cancels the Spark session that a session uses.

    Examples:
        >>> session.spark_control.jobs is None
        True
    """

    def __init__(self, services: Services) -> None:
        self._spark_connection = services.spark_connection

    @property
    def recorded_conf(self) -> dict[str, str]:
        """The Spark settings that the definitions of the log depend on.

        Examples:
            >>> session.spark_control.recorded_conf
            {}
        """
        return conf_of(self._spark_connection.types.recorded())

    @property
    def jobs(self) -> RunningJobs | None:
        """The progress of the running jobs; None without any: `session.spark_control.jobs.done`.

        Examples:
            >>> session.spark_control.jobs is None
            True
        """
        return self._spark_connection.running()

    def start(self, purpose: str) -> Any:
        """Returns the user's Spark session, or starts one; stages become temporary views in it.

        Args:
            purpose: the reason why Spark is needed, for the error message.

        Raises:
            NosyncError: Spark cannot be started.

        Examples:
            >>> spark = session.spark_control.start("a report")
        """
        spark = self._spark_connection.require(purpose)
        self._spark_connection.follow()
        return spark

    def follow(self) -> None:
        """Uses a Spark session that the user has started meanwhile, if there is one.

        Examples:
            >>> session.spark_control.follow()
        """
        self._spark_connection.follow_new()

    def cancel(self) -> None:
        """Cancels the running jobs of the session: `session.spark_control.cancel()`.

        Examples:
            >>> session.spark_control.cancel()
        """
        self._spark_connection.cancel()

    def use_staging_area(self, url: str) -> None:
        """Sets where executors read and write if they cannot see the folder of the log.

        Raises:
            SchemaError: the URL is invalid.

        Examples:
            >>> session.spark_control.use_staging_area("s3://bucket/staging")
        """
        self._spark_connection.carrier.name(url)


_SHOWN_MAX = 400


# -- trust -------------------------------------------------------------------------------------


class StageTrust(NamedTuple):
    """A stage: its author, the reason why it is not run, and its operators, outermost first."""

    name: str
    whose: str
    held: str | None
    text: str


class TrustReport(NamedTuple):
    """The origin of a log, in words, and its stages; untrusted texts are shown as one line."""

    log: str
    whose: str
    yours: str
    stages: list[StageTrust]

    def __str__(self) -> str:
        lines = [f"log {self.log}: {self.whose}", f"your key: {self.yours}"]
        for name, whose, held, text in self.stages:
            lines.append(f"{name}: {whose}{f'; {held}' if held else ''}")
            lines.append(f"    {text}")
        return "\n".join(lines)


def trust_report(services: Services) -> TrustReport:
    """Returns the origin of a session's log and of its stages. Compiles, loads and runs nothing.

    No setting makes a log trusted. A stage becomes the user's own when the user runs its cell, and
    a log when the user has the key that signed it.
    """
    publisher, signer = services.publisher, services.signer
    key, unfit = signature.own_key()
    origin, written = signer.origin, signer.said
    log = publisher.store.log
    if log.mode == "r" and written is not None:
        origin = signature.judge_signature(
            key, log.id, written.epoch, written.catalog, written.signature
        )
    catalog = publisher.snapshot.catalog
    described_here = [s for s in catalog.values() if s.definition and not s.frozen]
    if log.mode == "w" and described_here and all(s.signer is None for s in described_here):
        origin = signature.OWN  # the user's cells have redefined every stage
    stages = [
        StageTrust(
            one_line(s.name), _author_text(s, origin), s.held and one_line(s.held), stage_summary(s)
        )
        for s in described_here
    ]
    yours = unfit or (f"{signing.key_id(key)}, at '{signing.key_path()}'" if key else "none")
    return TrustReport(log.id.hex(), _origin_text(origin), one_line(yours), stages)


def _origin_text(origin: signature.CatalogOrigin) -> str:
    if origin.is_by_this_user:
        return "signed with your key"
    if not origin.signer:
        return "unsigned"
    return f"claims to be signed with key {origin.signer}; not trusted"


def _author_text(stage: Stage, origin: signature.CatalogOrigin) -> str:
    signer = origin.signer if stage.signer is None else stage.signer
    return "yours" if signer is None else f"of key {signer}" if signer else "unsigned"


def stage_summary(stage: Stage) -> str:
    """Returns the definition of a stage as one line, truncated if it is long."""
    assert stage.definition is not None
    text = one_line(_definition_text(stage.definition))
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…"


def _definition_text(tree: Definition) -> str:
    """Returns an operator and its inputs as nested calls, truncated near `_SHOWN_MAX`."""
    pieces: list[str] = []
    waiting: list[str | Definition] = [tree]
    inner: list[str | Definition]
    length = 0
    while waiting and length <= _SHOWN_MAX:
        part = waiting.pop()
        if isinstance(part, Definition) and part.is_ref:
            part = part.name
        if isinstance(part, str):
            pieces.append(part)
            length += len(part)
            continue
        arguments: list[str | Definition] = [
            f"{key}={value!r}" for key, value in part.params.items()
        ]
        arguments += [f"function {each.identity[:12]}" for each in part.captured]
        inner = []
        for each in (*part.inputs, *arguments):
            inner += (", ", each)
        waiting += [")", *reversed(inner[1:]), f"{part.op}("]
    return "".join(pieces)
