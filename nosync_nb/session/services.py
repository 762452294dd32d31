"""The composition root: creates the services of a session, each from those before it.

Only this module decides which services a service uses. The module of each service documents its
state, and the lock that guards it. A service is complete when it is created: no dependency is set
later. A service that needs the events of another one registers with it. So every dependency points
to a service that is created earlier.
"""

from __future__ import annotations

from contextlib import suppress

from nosync_nb.errors import NosyncError
from nosync_nb.files.filesystem import Files
from nosync_nb.session.backfill.background import BackgroundRebuild
from nosync_nb.session.backfill.execute import BackfillExecutor
from nosync_nb.session.definitions.define import DefinitionService, InputDeclarations
from nosync_nb.session.definitions.retention import RetentionService
from nosync_nb.session.durability.backlog_policy import BacklogPolicy
from nosync_nb.session.durability.frontiers import FrontierService
from nosync_nb.session.durability.replication import ReplicationService
from nosync_nb.session.feeds.folder_watch import FolderWatches
from nosync_nb.session.feeds.stream import StreamFeeds
from nosync_nb.session.maintenance.maintenance import Maintenance
from nosync_nb.session.maintenance.offloaded_merges import OffloadedMerges
from nosync_nb.session.reads.collection_host import DataFrameExports, SessionHost
from nosync_nb.session.reads.compare import CompareService
from nosync_nb.session.reads.log_follower import LogFollower
from nosync_nb.session.reads.paging import PagingService
from nosync_nb.session.reads.reader import SnapshotReader
from nosync_nb.session.recovery import recover
from nosync_nb.session.recovery.recover import RecoveryState
from nosync_nb.session.recovery.repair import RepairService, StageRecovery
from nosync_nb.session.sql.changes import InputStatements
from nosync_nb.session.sql.evaluate import StatementReader
from nosync_nb.session.sql.execute import SqlService
from nosync_nb.session.sql.spark_tables import SparkTables
from nosync_nb.session.sql.tables import SqlTables
from nosync_nb.session.sql.time_travel import TimeTravel
from nosync_nb.session.state.limits import UserLimits
from nosync_nb.session.state.metrics import WorkMetrics
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.session.state.signer import CatalogSigner
from nosync_nb.session.state.subscriptions import Subscriptions
from nosync_nb.session.state.transactions import Transactions
from nosync_nb.session.state.worker import BackgroundWorker
from nosync_nb.session.state.writer_lock import WriterLock
from nosync_nb.session.timetravel.branch import BranchService
from nosync_nb.session.timetravel.follow_parent import ParentFollower
from nosync_nb.session.timetravel.rewind import RewindService
from nosync_nb.session.writes.commit import CommitService
from nosync_nb.session.writes.determinism_check import DeterminismChecks
from nosync_nb.session.writes.idempotency import LoadRegistry, RepeatedLoads
from nosync_nb.session.writes.ingest import IngestService
from nosync_nb.spark.connection import SparkConnection
from nosync_nb.spark.session_protocol import SparkOptions
from nosync_nb.spark.staging.staging import StagingService
from nosync_nb.store.replication.config import ReplicaConfig
from nosync_nb.store.replication.restore.lazy_fetch import (
    FetchingFiles,
    LazyFetcher,
    incomplete_restore,
)
from nosync_nb.store.store import Store


class Services:
    """The services of one session.

    Attributes:
        report: the report of the opening.
        behind: True if some stages must catch up or be repaired.
    """

    def __init__(self, store: Store, settings: ReplicaConfig, spark: SparkOptions) -> None:
        # -- state -------------------------------------------------------------------------------
        self.limits = limits = UserLimits(spark.rows)
        self.metrics = metrics = WorkMetrics()
        self.worker = worker = BackgroundWorker()
        self.repeated_loads = repeated_loads = RepeatedLoads()
        self.writer_lock = writer_lock = WriterLock(store.log.mode, store.log.check)
        self.subscriptions = subscriptions = Subscriptions(writer_lock.call_user_functions)
        self.transactions = transactions = Transactions()
        self.signer = signer = CatalogSigner(store.log.id)
        self.publisher = publisher = Publisher(store, writer_lock, metrics, subscriptions)

        # -- replicas and Spark ------------------------------------------------------------------
        self.replication = replication = ReplicationService(publisher, subscriptions, settings)
        self.lazy_fetcher = lazy_fetcher = _lazy_fetcher(store, replication)
        self.frontiers = frontiers = FrontierService(publisher, replication, lazy_fetcher)
        self.staging = staging = _staging_service(store, spark)
        self.spark_connection = spark_connection = SparkConnection(
            publisher, limits, publisher.is_ended, subscriptions.add_notice, metrics.activities,
            spark.session, staging,
        )  # fmt: skip
        types, evaluate = spark_connection.types, spark_connection.evaluate

        # -- recovery and maintenance ------------------------------------------------------------
        opening = recover.recover(store, types, lazy_fetcher)
        self.report, self.behind = opening.report, opening.behind or opening.lacking
        publisher.publish_recovered(opening.recovered)
        signer.believe(opening.recovered)
        merges = OffloadedMerges(store, replication)
        self.maintenance = maintenance = Maintenance(
            writer_lock, publisher, signer, worker, limits, merges
        )
        executor = BackfillExecutor(
            writer_lock, publisher, spark_connection, signer, maintenance, limits
        )
        self.background_rebuild = background_rebuild = BackgroundRebuild(
            writer_lock, publisher, executor, maintenance, worker
        )
        self.stage_recovery = stage_recovery = StageRecovery(
            writer_lock, publisher, executor, maintenance, opening.report
        )
        self.repairs = repairs = RepairService(
            publisher, replication, subscriptions, stage_recovery
        )
        self.backlog_policy = BacklogPolicy(
            writer_lock, publisher, executor, replication, frontiers, maintenance, worker, limits
        )
        self.retention_service = RetentionService(writer_lock, publisher, executor, maintenance)

        # -- reads -------------------------------------------------------------------------------
        followed = opening.recovered if store.log.mode == "r" else None
        self.follower = follower = LogFollower(writer_lock, publisher, signer, repairs, followed)
        reader = SnapshotReader(publisher, transactions, types, evaluate)
        exports = DataFrameExports(publisher, reader, spark_connection)
        self.host = host = SessionHost(
            writer_lock, publisher, reader, follower, exports, subscriptions, types, limits
        )
        self.compare_service = compare_service = CompareService(publisher, host)
        self.paging = PagingService(publisher, reader, follower, types, compare_service)

        # -- definitions -------------------------------------------------------------------------
        self.input_declarations = InputDeclarations(
            writer_lock, publisher, executor, spark_connection
        )
        self.definitions = definitions = DefinitionService(
            writer_lock, publisher, executor, transactions, subscriptions, spark_connection,
            host, opening.report, repairs, replication,
        )  # fmt: skip
        self.determinism_checks = determinism_checks = DeterminismChecks(
            publisher, definitions, spark_connection
        )

        # -- writes ------------------------------------------------------------------------------
        self.load_registry = load_registry = LoadRegistry(
            repeated_loads, publisher, transactions, subscriptions, spark_connection.is_frame
        )
        self.commits = commits = CommitService(
            writer_lock, publisher, transactions, spark_connection, subscriptions, maintenance,
            determinism_checks, replication, repairs, load_registry, worker,
        )  # fmt: skip
        self.ingest = ingest = IngestService(
            writer_lock, publisher, transactions, spark_connection, repairs
        )
        statement_reader = StatementReader(
            writer_lock, publisher, transactions, spark_connection, reader, follower
        )
        time_travel = TimeTravel(publisher, statement_reader, types)
        spark_tables = SparkTables(
            publisher, transactions, spark_connection, self.input_declarations, ingest
        )
        self.sql_tables = sql_tables = SqlTables(publisher, follower, time_travel, spark_tables)
        changes = InputStatements(
            publisher, transactions, ingest, statement_reader, sql_tables, types
        )
        self.sql = SqlService(
            writer_lock, publisher, transactions, host, definitions, commits, sql_tables, changes,
            statement_reader, subscriptions,
        )  # fmt: skip
        feeds = writer_lock, publisher, subscriptions, commits, ingest, load_registry
        self.folder_watches = FolderWatches(*feeds)
        self.stream_feeds = StreamFeeds(*feeds)

        # -- time travel -------------------------------------------------------------------------
        self.branch_service = branch_service = BranchService(
            writer_lock, publisher, signer, replication
        )
        self.parent_follower = ParentFollower(writer_lock, publisher, transactions, ingest, commits)
        self.rewind_service = RewindService(
            writer_lock, publisher, executor, transactions, spark_connection, signer, maintenance,
            subscriptions, repeated_loads, branch_service, background_rebuild,
        )  # fmt: skip

        if store.log.mode == "w":
            self._schedule_completion(opening, executor)

    def _schedule_completion(self, opening: RecoveryState, executor: BackfillExecutor) -> None:
        """Cleans up after the previous owner, and schedules the tasks before the first write."""
        report, publisher = opening.report, self.publisher
        if report.resumed_at:
            self.repeated_loads.start_comparing(report.resumed_at)
        if not publisher.store.foreign:  # an untrusted log must not make us delete files
            with suppress(NosyncError):  # opening must succeed even if the clean-up fails
                self.branch_service.finish_backups()
            publisher.garbage.expire(publisher.store.retired)
        if opening.recovered.said is not None:
            completion = recover.RecoveryCompletion(
                self.writer_lock, publisher, self.maintenance, executor, report,
                self.stage_recovery, self.background_rebuild,
            )  # fmt: skip
            completion.schedule(opening)


def _lazy_fetcher(store: Store, replication: ReplicationService) -> LazyFetcher:
    """Creates the fetcher of files that only replicas have; a writer's store then asks it."""
    fetcher = LazyFetcher(Files(), store.path, store.log.id, replication.addresses)
    if isinstance(store.files, FetchingFiles):
        store.files.ask(fetcher)
        for path in incomplete_restore(store.files, store.path):
            store.files.unlink(path)
    return fetcher


def _staging_service(store: Store, spark: SparkOptions) -> StagingService:
    """Creates the service that stages the files of a log for executors."""
    own = store.log.id.hex(), str(store.log.generation)  # unique to this owner of the log
    return StagingService(store.parts, own, spark.bulk)
