"""Owners: who does the work of a session, each made of those before it.

What is written here is which of them knows which; what each owns, and under which lock, is written
beside it. It is whole when it is made: nobody is given anything later.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from nosync_nb.errors import NosyncError
from nosync_nb.session.backfill.apply_catalog import Installation
from nosync_nb.session.backfill.background import Rebuilding
from nosync_nb.session.backfill.execute import Healing
from nosync_nb.session.definitions.define import Definitions
from nosync_nb.session.definitions.define__declarations import Declarations
from nosync_nb.session.definitions.retention import Retaining
from nosync_nb.session.durability.backlog_policy import Scaling
from nosync_nb.session.durability.frontiers import Frontiers
from nosync_nb.session.durability.lazy_files import Fetching
from nosync_nb.session.durability.replication import Replication
from nosync_nb.session.durability.verification import Verification
from nosync_nb.session.feeds.folder_watch import Watches
from nosync_nb.session.feeds.stream import Streams
from nosync_nb.session.limits import Limits
from nosync_nb.session.maintenance.maintenance import Upkeep
from nosync_nb.session.reads.collection_host import SessionHost
from nosync_nb.session.reads.collection_host__frames import Frames
from nosync_nb.session.reads.compare import Comparing
from nosync_nb.session.reads.log_follower import Follower
from nosync_nb.session.reads.paging import Paging
from nosync_nb.session.reads.reader import SnapshotReader
from nosync_nb.session.recovery import recover
from nosync_nb.session.recovery.recover import Opening
from nosync_nb.session.recovery.repair_and_retry import Repairs
from nosync_nb.session.state.definition_names import Names
from nosync_nb.session.state.file_gc import Garbage
from nosync_nb.session.state.metrics import Works
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.session.state.signer import Signer
from nosync_nb.session.state.subscriptions import Listeners
from nosync_nb.session.state.transactions import Transactions
from nosync_nb.session.state.worker import Worker
from nosync_nb.session.state.writer_lock import Gate
from nosync_nb.session.timetravel.branch import Branching, Opens
from nosync_nb.session.timetravel.follow_parent import Pursuit
from nosync_nb.session.timetravel.rewind import Rewinding
from nosync_nb.session.writes.commit import Commits
from nosync_nb.session.writes.determinism_check import Audits
from nosync_nb.session.writes.epoch_block import Blocks
from nosync_nb.session.writes.idempotency import Loads, Repeats
from nosync_nb.session.writes.ingest import Inputs
from nosync_nb.spark.connection import Link
from nosync_nb.spark.session_protocol import SparkWish
from nosync_nb.spark.staging.staging import Carrier
from nosync_nb.store.replication.config import Replicas
from nosync_nb.store.store import Store


class Owners:
    """Those of one session over a folder that was opened.

    Attributes:
        report: what opening it found.
        behind: whether stages have stopped that can have what they missed, or lack files.
    """

    def __init__(self, store: Store, settings: Replicas, opens: Opens, spark: SparkWish) -> None:
        self.limits = limits = Limits(spark.rows)
        self.works, self.worker, self.repeats = Works(), Worker(), Repeats()
        self.gate = gate = Gate(store.log.mode, store.log.check)
        self.listeners = listeners = Listeners(gate.tell)
        self.names = names = Names(listeners)
        self.transactions = transactions = Transactions()
        self.publisher = publisher = Publisher(store, gate, self.works, Garbage(), names)
        tell = listeners.say, self._look, self._propose
        self.replication = replication = Replication(publisher, settings, *tell)
        self.fetching = Fetching(store, lambda: replication.settings.replicas)
        self.frontiers = frontiers = Frontiers(publisher, replication, self.fetching)
        self.repairs = repairs = Repairs(
            store, replication, listeners, lambda name, stop: self.healing.meet(name, stop=stop)
        )
        self.verification = Verification(publisher, replication)
        self.signer = signer = Signer(store.log.id)
        self.branching = Branching(gate, publisher, signer, replication, opens)
        ended = partial(_ended, gate, publisher)
        self.carrier = _carrier(store, spark)
        asks = limits, ended, listeners.say, self.works.doing, spark.session
        self.link = link = Link(publisher, *asks, self.carrier)
        types = link.types
        opening = recover.recover(store, types, self.fetching)
        recovered, report = opening.recovered, opening.report
        publisher.show(recovered)
        signer.believe(recovered)
        self.report, self.behind = report, opening.behind or opening.lacking
        self.upkeep = Upkeep(gate, publisher, signer, self.worker, limits, replication.merges)
        followed = recovered if store.log.mode == "r" else None
        self.follower = follower = Follower(gate, publisher, signer, repairs, followed)
        reader = SnapshotReader(publisher, transactions, names, types, link.evaluate)
        frames = Frames(publisher, reader, names, link)
        seen = publisher, reader, follower, frames
        self.host = SessionHost(gate, *seen, names, listeners, types, limits)
        self.comparing = Comparing(publisher, self.host, link.evaluate)
        self.paging = Paging(publisher, reader, follower, names, types)
        installation = Installation(gate, publisher, link, types, signer, self.upkeep, limits)
        self.retaining = Retaining(gate, publisher, installation, self.upkeep)
        self.scaling = Scaling(
            gate, publisher, installation, replication, frontiers, self.upkeep, self.worker, limits
        )
        self.healing = Healing(gate, publisher, installation, self.upkeep, report)
        self.declarations = Declarations(gate, publisher, installation, link)
        self.definitions = Definitions(
            gate, publisher, installation, names, transactions, listeners, link, types,
            self.host, report, repairs, replication,
        )  # fmt: skip
        self.audits = Audits(publisher, self.definitions, link)
        self.commits = Commits(
            gate, publisher, transactions, link, listeners, self.upkeep, self.audits, replication,
            repairs, self.worker,
        )  # fmt: skip
        self.inputs = inputs = Inputs(gate, publisher, transactions, link, repairs)
        self.following = Pursuit(gate, publisher, transactions, inputs, self.commits)
        self.loads = Loads(self.repeats, publisher, transactions, listeners, link.is_frame)
        self.blocks = Blocks(transactions, self.commits, self.loads)
        feeds = gate, publisher, listeners, self.blocks, inputs, self.loads
        self.watches, self.streams = Watches(*feeds), Streams(*feeds, commits=self.commits)
        self._begin(opening, transactions, installation)

    def _look(self) -> None:
        """Has decided what is owed to replicas, of which something was heard."""
        self.scaling.look()

    def _propose(self) -> None:
        """Has looked at what the keeper has merged."""
        self.worker.submit(
            "proposals", self.upkeep.take_proposals, name="taking what the keeper has merged"
        )

    def _begin(
        self, opening: Opening, transactions: Transactions, installation: Installation
    ) -> None:
        """Makes who goes back; has done before the first write what an opening has left to do."""
        report, publisher, repeats = opening.report, self.publisher, self.repeats
        self.rebuilding = Rebuilding(
            self.gate, publisher, installation, self.upkeep, self.worker, self.link.types, report
        )
        self.rewinding = Rewinding(
            self.gate, publisher, transactions, self.link, self.signer, self.upkeep,
            self.listeners, repeats, self.branching, self.rebuilding,
        )  # fmt: skip
        if publisher.store.log.mode == "r":
            return
        if report.resumed_at:
            repeats.begin(report.resumed_at)
        if not publisher.store.foreign:  # by what somebody else wrote nothing is deleted
            with suppress(NosyncError):  # a disk that refuses keeps nobody from his log
                self.branching.settle()
            publisher.garbage.expire(publisher.store.retired)
        if opening.recovered.said is not None:
            heal, resume, lack = self.healing.heal, self.definitions.resume, self.rebuilding.plan
            completion = recover.Completion(
                self.gate, publisher, self.upkeep, self.link, heal, report, resume, lack
            )
            completion.begin(opening)


def _carrier(store: Store, spark: SparkWish) -> Carrier:
    """What takes the files of a log to executors."""
    own = store.log.id.hex(), str(store.log.generation)  # of this owner of it, and of no other
    return Carrier(store.parts, own, spark.bulk)


def _ended(gate: Gate, publisher: Publisher) -> bool:
    """Whether a session closes, or its log is another owner's now."""
    return gate.closing or publisher.fenced
