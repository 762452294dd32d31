"""The composition root: creates the services of a session, each from those before it.

This module alone decides which service has which others. What each service owns, and under which
lock, is documented in its module. A service is complete when it is created: no dependency is set
later.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from nosync_nb.errors import NosyncError
from nosync_nb.session.backfill.background import BackgroundRebuild
from nosync_nb.session.backfill.execute import BackfillExecutor
from nosync_nb.session.definitions.define import DefinitionService, InputDeclarations
from nosync_nb.session.definitions.retention import RetentionService
from nosync_nb.session.durability.backlog_policy import BacklogPolicy
from nosync_nb.session.durability.frontiers import FrontierService
from nosync_nb.session.durability.lazy_files import LazyFiles
from nosync_nb.session.durability.replication import ReplicationService
from nosync_nb.session.durability.verification import VerificationService
from nosync_nb.session.feeds.folder_watch import FolderWatches
from nosync_nb.session.feeds.stream import StreamFeeds
from nosync_nb.session.limits import UserLimits
from nosync_nb.session.maintenance.maintenance import Maintenance
from nosync_nb.session.reads.collection_host import DataFrameExports, SessionHost
from nosync_nb.session.reads.compare import CompareService
from nosync_nb.session.reads.log_follower import LogFollower
from nosync_nb.session.reads.paging import PagingService
from nosync_nb.session.reads.reader import SnapshotReader
from nosync_nb.session.recovery import recover
from nosync_nb.session.recovery.recover import RecoveryState
from nosync_nb.session.recovery.repair_and_retry import RepairService
from nosync_nb.session.recovery.stage_recovery import StageRecovery
from nosync_nb.session.state.definition_names import DefinitionNames
from nosync_nb.session.state.file_gc import FileCollector
from nosync_nb.session.state.metrics import WorkMetrics
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.session.state.signer import CatalogSigner
from nosync_nb.session.state.subscriptions import Subscriptions
from nosync_nb.session.state.transactions import Transactions
from nosync_nb.session.state.worker import BackgroundWorker
from nosync_nb.session.state.writer_lock import WriterLock
from nosync_nb.session.timetravel.branch import BranchService, Opens
from nosync_nb.session.timetravel.follow_parent import ParentFollower
from nosync_nb.session.timetravel.rewind import RewindService
from nosync_nb.session.writes.commit import CommitService
from nosync_nb.session.writes.determinism_check import DeterminismChecks
from nosync_nb.session.writes.epoch_block import EpochBlocks
from nosync_nb.session.writes.idempotency import LoadRegistry, RepeatedLoads
from nosync_nb.session.writes.ingest import IngestService
from nosync_nb.spark.connection import SparkConnection
from nosync_nb.spark.session_protocol import SparkOptions
from nosync_nb.spark.staging.staging import StagingService
from nosync_nb.store.replication.config import ReplicaConfig
from nosync_nb.store.store import Store


class Services:
    """The services of one session.

    Attributes:
        report: the report of the opening.
        behind: True if some stages must catch up or be repaired.
    """

    def __init__(
        self, store: Store, settings: ReplicaConfig, opens: Opens, spark: SparkOptions
    ) -> None:
        self.limits = limits = UserLimits(spark.rows)
        self.works, self.worker, self.repeats = WorkMetrics(), BackgroundWorker(), RepeatedLoads()
        self.gate = gate = WriterLock(store.log.mode, store.log.check)
        self.listeners = listeners = Subscriptions(gate.call_user_functions)
        self.names = names = DefinitionNames(listeners)
        self.transactions = transactions = Transactions()
        self.publisher = publisher = Publisher(store, gate, self.works, FileCollector(), names)
        tell = listeners.add_notice, self._evaluate_backlog, self._queue_proposals
        self.replication = replication = ReplicationService(publisher, settings, *tell)
        self.fetching = LazyFiles(store, lambda: replication.settings.replicas)
        self.frontiers = frontiers = FrontierService(publisher, replication, self.fetching)
        self.verification = VerificationService(publisher, replication)
        self.signer = signer = CatalogSigner(store.log.id)
        self.branching = BranchService(gate, publisher, signer, replication, opens)
        ended = partial(_is_ended, gate, publisher)
        self.carrier = _staging_service(store, spark)
        asks = limits, ended, listeners.add_notice, self.works.doing, spark.session
        self.link = link = SparkConnection(publisher, *asks, self.carrier)
        types = link.types
        opening = recover.recover(store, types, self.fetching)
        recovered, report = opening.recovered, opening.report
        publisher.publish_recovered(recovered)
        signer.believe(recovered)
        self.report, self.behind = report, opening.behind or opening.lacking
        self.upkeep = Maintenance(gate, publisher, signer, self.worker, limits, replication.merges)
        executor = BackfillExecutor(gate, publisher, link, types, signer, self.upkeep, limits)
        self.stages = StageRecovery(gate, publisher, executor, self.upkeep, types, report)
        self.repairs = repairs = RepairService(store, replication, listeners, self.stages)
        followed = recovered if store.log.mode == "r" else None
        self.follower = follower = LogFollower(gate, publisher, signer, repairs, followed)
        reader = SnapshotReader(publisher, transactions, names, types, link.evaluate)
        frames = DataFrameExports(publisher, reader, names, link)
        readers = publisher, reader, follower, frames
        self.host = SessionHost(gate, *readers, names, listeners, types, limits)
        self.comparing = CompareService(publisher, self.host)
        self.paging = PagingService(publisher, reader, follower, names, types, self.comparing)
        self.retaining = RetentionService(gate, publisher, executor, self.upkeep)
        self.scaling = BacklogPolicy(
            gate, publisher, executor, replication, frontiers, self.upkeep, self.worker, limits
        )
        self.declarations = InputDeclarations(gate, publisher, executor, link)
        self.definitions = DefinitionService(
            gate, publisher, executor, names, transactions, listeners, link, types,
            self.host, report, repairs, replication,
        )  # fmt: skip
        self.audits = DeterminismChecks(publisher, self.definitions, link)
        self.commits = CommitService(
            gate, publisher, transactions, link, listeners, self.upkeep, self.audits, replication,
            repairs, self.worker,
        )  # fmt: skip
        self.inputs = inputs = IngestService(gate, publisher, transactions, link, repairs)
        self.following = ParentFollower(gate, publisher, transactions, inputs, self.commits)
        self.loads = LoadRegistry(self.repeats, publisher, transactions, listeners, link.is_frame)
        self.blocks = EpochBlocks(transactions, self.commits, self.loads)
        feeds = gate, publisher, listeners, self.blocks, inputs, self.loads
        self.watches, self.streams = (
            FolderWatches(*feeds),
            StreamFeeds(*feeds, commits=self.commits),
        )
        self._complete_opening(opening, transactions, executor)

    def _evaluate_backlog(self) -> None:
        """Re-evaluates the replication requirement after a message from the keeper."""
        self.scaling.submit_if_due()

    def _queue_proposals(self) -> None:
        """Queues the adoption of merges that the keeper has made."""
        self.worker.submit(
            "proposals", self.upkeep.take_proposals, name="adopting merges of the keeper"
        )

    def _complete_opening(
        self, opening: RecoveryState, transactions: Transactions, executor: BackfillExecutor
    ) -> None:
        """Builds the rebuild and rewind services, and completes the opening.

        Registers what recovery must finish before the first write.
        """
        report, publisher, repeats = opening.report, self.publisher, self.repeats
        self.rebuilding = BackgroundRebuild(
            self.gate, publisher, executor, self.upkeep, self.worker
        )
        self.rewinding = RewindService(
            self.gate, publisher, transactions, self.link, self.signer, self.upkeep,
            self.listeners, repeats, self.branching, self.rebuilding,
        )  # fmt: skip
        if publisher.store.log.mode == "r":
            return
        if report.resumed_at:
            repeats.start_comparing(report.resumed_at)
        if not publisher.store.foreign:  # an untrusted log must not make us delete files
            with suppress(NosyncError):  # opening must succeed even if the clean-up fails
                self.branching.finish_backups()
            publisher.garbage.expire(publisher.store.retired)
        if opening.recovered.said is not None:
            completion = recover.RecoveryCompletion(
                self.gate, publisher, self.upkeep, self.link, report, self.stages,
                self.rebuilding,
            )  # fmt: skip
            completion.schedule(opening)


def _staging_service(store: Store, spark: SparkOptions) -> StagingService:
    """Creates the service that stages the files of a log for executors."""
    own = store.log.id.hex(), str(store.log.generation)  # unique to this owner of the log
    return StagingService(store.parts, own, spark.bulk)


def _is_ended(gate: WriterLock, publisher: Publisher) -> bool:
    """Returns True if the session is closing, or another owner has the log."""
    return gate.closing or publisher.fenced
