"""Session: inputs, stages and epochs over one folder.

    import nosync_nb
    session = nosync_nb.open("flights.nosync")
    flights = session.input("flights", "carrier string, dep_delay double")
    slow = session.stage("slow", flights.filter("dep_delay > 60"))
    flights.insert([("UA", 75.0)])
    session.commit()
    slow.rows()

It hands each call to who does it, who does not know the session. Changes pass one gate; readers
take the current `Snapshot`, which never changes, and do not wait. An epoch is computed, written,
then published by one assignment; if it fails, everything is as it was.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal, cast

from nosync_nb.collections.collection import Collection, iterate_together
from nosync_nb.collections.comparison import Comparison
from nosync_nb.collections.definition import check_name, reference_to
from nosync_nb.errors import FencedError, one_line
from nosync_nb.session.feeds.stream import StreamFeed
from nosync_nb.session.report import StageReport
from nosync_nb.session.services import Services
from nosync_nb.session.state.pending_changes import PendingInputChanges
from nosync_nb.session.timetravel.branch import Opens
from nosync_nb.session.timetravel.rewind import RewindReport
from nosync_nb.session.writes.epoch_block import EpochBlock
from nosync_nb.session.writes.input import Input
from nosync_nb.spark.session_protocol import SparkOptions
from nosync_nb.store.catalog.epoch_index import EpochSequence
from nosync_nb.store.durability.recovery_frontier import FailureName, Frontier
from nosync_nb.store.replication.config import ReplicaConfig
from nosync_nb.store.store import Store
from nosync_nb.store.timetravel.branches import BranchInfo
from nosync_nb.store.verification.report import VerificationReport


def _limit(name: str, doc: str) -> property:
    """An attribute that the session's `UserLimits` own."""
    return property(
        lambda session: getattr(owners_of(session).limits, name),
        lambda session, value: owners_of(session).limits.set(name, value),
        doc=doc,
    )


class Session:
    """One folder of collections, open for writing or for reading; made by `open`.

    Attributes:
        recovery: what opening it found.
    """

    def __init__(
        self, store: Store, replicas: ReplicaConfig, opens: Opens, *, spark: SparkOptions
    ) -> None:
        self._owners = Services(store, replicas, opens, spark)
        self.recovery = self._owners.report

    def input(
        self, name: str, schema: Any = None, *, key: str | Sequence[str] | None = None
    ) -> Input:
        """An input: made, or returned if one with an equal schema is there.

        Args:
            schema: Spark DDL, an Arrow schema, or data to take the columns from (not its rows).
            key: a key column or several; makes the input keyed (upsert, delete).

        Raises:
            SchemaError: if it is there with another schema or key; quotes both.
        """
        self._owners.declarations.declare(check_name(name, "input"), schema, key)
        return self._input(name)

    def commit(
        self,
        wait: Literal["disk", "replicas"] | None = None,
        label: str | None = None,
        timeout: float | None = None,
    ) -> int:
        """Closes the epoch: runs every stage on what is pending, and returns its number.

        After it returned, the epoch survives the death of this process; with `wait="disk"` also
        the loss of power, with `"replicas"` that of the disk.

        Raises:
            OutcomeUnknownError: what was waited for (`timeout` seconds) failed; `epoch` stands.
            NosyncError: and nothing has changed; what was pending still is.
        """
        transaction = self._owners.transactions.current
        return self._owners.commits.commit(transaction, wait, label, timeout)

    def epoch(
        self, *, once: Any = None, label: str | None = None
    ) -> AbstractContextManager[EpochBlock]:
        """A transaction of its own: commits at the end of the block, discards if it raises.

        Args:
            once: a key; if this history has recorded it, nothing in the block takes effect
                (`e.skipped`), nor if it has only loads with keys, all of which are there.
        """
        return self._owners.blocks.epoch(once, label)

    @property
    def pending(self) -> Mapping[str, PendingInputChanges]:
        """The inputs with changes that wait for the next epoch."""
        return self._owners.transactions.current.pending

    def discard(self) -> int:
        """Drops what is pending; returns the updates dropped."""
        return self._owners.commits.discard(self._owners.transactions.current)

    def stream(self, frame: Any, into: Input, **options: Any) -> StreamFeed:
        """Has micro-batches of a streaming DataFrame become epochs; see `StreamFeeds.start`."""
        return self._owners.streams.start(frame, into, **options)

    def sync(self, level: str = "disk", timeout: float | None = None) -> None:
        """Waits until all epochs are on disk, or for `timeout` seconds on a quorum of replicas."""
        self._owners.commits.sync(level, timeout)

    # -- stages ------------------------------------------------------------------------------

    def iterate(
        self, body: Callable[..., Any], /, rounds: int | None = None, **sources: Collection
    ) -> dict[str, Collection]:
        """Several loop variables together: each may use the others (mutual recursion).

        `session.iterate(lambda even, odd: (..., ...), even=start, odd=none)` gives the last value
        of each, by name; all of them take a round at once. See `Collection.iterate`.

        Args:
            body: gets them by their names; returns their next values in that order, or by name.
        """
        return iterate_together(self._owners.host, body, rounds, sources)

    def stage(
        self,
        name: str,
        collection: Collection,
        *,
        nondeterministic: bool = False,
        persist: str | None = None,
    ) -> Collection:
        """Names a collection, so that it is kept, maintained, logged and readable at any epoch.

        An equal definition changes nothing; another one makes a new version, and stages that
        read it follow by name.

        Args:
            nondeterministic: its functions, or expressions as `uuid()`, may give something else
                for the same row next time; what they gave is kept, and exactly that taken back.
            persist: where it is kept: memory, disk or replicas (see `levels`); None: as it is, a
                new one as safe as can be.
        """
        self.define({name: collection}, nondeterministic=nondeterministic, persist=persist)
        return self[name]

    def define(self, collections: Mapping[str, Collection], **options: Any) -> list[StageReport]:
        """Names several collections, all or none; they refer to each other by name.

        Args:
            options: those of `stage`, for all of them; `on`: where they run: auto, local or spark;
                `replay`: the epoch from which a new version is computed for the past as well;
                `again`: computes them anew even if nothing changed.
        """
        return self._owners.definitions.define(collections, **options)

    def drop(self, *names: str, cascade: bool = False) -> None:
        """Forgets stages or inputs; with `cascade`, what reads them too."""
        self._owners.definitions.drop(names, cascade=cascade)

    def rename(self, old: str, new: str) -> None:
        """Gives a stage or input another name; stages that read it follow."""
        self._owners.definitions.rename(old, check_name(new, "stage"))

    def __getitem__(self, name: str) -> Collection:
        if name not in self:
            self._owners.follower.refresh()
        stage = self._owners.publisher.snapshot.stage(name)
        if stage.is_input:
            return self._input(name)
        return Collection(self._owners.host, reference_to(name, stage.schema))

    def _input(self, name: str) -> Input:
        own, stage = self._owners, self._owners.publisher.snapshot.stage(name)
        return Input(own.host, own.inputs, own.loads, own.watches, reference_to(name, stage.schema))

    def __contains__(self, name: object) -> bool:
        return name in self._owners.publisher.snapshot.catalog

    @property
    def stages(self) -> dict[str, Collection]:
        """The stages by name, without frozen versions."""
        self._owners.follower.refresh()
        stages = self._owners.publisher.snapshot.catalog.values()
        derived = [s for s in stages if not s.is_input and not s.frozen]
        return {
            s.name: Collection(self._owners.host, reference_to(s.name, s.schema)) for s in derived
        }

    @property
    def inputs(self) -> dict[str, Input]:
        """The inputs by name."""
        self._owners.follower.refresh()
        catalog = self._owners.publisher.snapshot.catalog
        return {name: self._input(name) for name, stage in catalog.items() if stage.is_input}

    def compare(
        self,
        a: str | Collection,
        b: str | Collection | None = None,
        *,
        at: Any = None,
        by: str | Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
    ) -> Comparison:
        """What two collections have in common, and what differs, row beside row.

        Args:
            a, b: stages, versions (`"delays@1"`), unnamed collections, or one of another open
                session; without `b`, `a` at two epochs.
            at: the epoch of both, or a pair of them; None: the last one.
            by: the columns that say which row became which; None: the declared key, that of the
                group or join; else rows are equal or not.
            columns: those that are compared; None: all, which have to be the same.

        Raises:
            SchemaError: the columns differ; quotes both.

        Cost: of one collection at two epochs in proportion to what changed, else O(rows).
        """
        one = self[a] if isinstance(a, str) else a
        other = self[b] if isinstance(b, str) else b
        return self._owners.comparing.compare(one, other, at, by, columns)

    # -- time --------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        """The last epoch; 0 is "empty, before everything"."""
        return self._owners.publisher.now

    def epochs(self) -> EpochSequence:
        """The epochs readable for all live stages, with time and label."""
        return self._owners.retaining.epochs()

    retain = property(
        lambda session: owners_of(session).retaining.retention.asked,
        lambda session, asked: owners_of(session).retaining.set(asked),
        doc='For how long single epochs are kept, as `"30 days"`; None: all.',
    )
    budget = property(
        lambda session: owners_of(session).retaining.retention.bounds,
        lambda session, asked: owners_of(session).retaining.bound(asked),
        doc='What the log may take, as `"2 GB, 500 files"`; None: all.',
    )

    def pin(self, at: Any, name: str) -> int:
        """Keeps an epoch exactly, whatever is retained, under a name; gives its number.

        Raises:
            TimeError: it cannot be told apart any more; names its neighbours.
        """
        return self._owners.retaining.pin(at, name)

    def unpin(self, name: str) -> None:
        """Lets an epoch go that was pinned."""
        self._owners.retaining.unpin(name)

    @property
    def pins(self) -> dict[str, int]:
        """The epochs that are pinned, by name."""
        return dict(self._owners.retaining.retention.pins)

    @property
    def frontiers(self) -> dict[str, Frontier]:
        """For each stage and input the last epoch at each level, inclusive."""
        return self._owners.frontiers.of_stages()

    def recovery_frontier(
        self, failure: FailureName = "kernel", lost: int | None = None, stage: str | None = None
    ) -> int:
        """The epoch a failure now would bring all back to, or a stage."""
        return self._owners.frontiers.after(failure, lost, stage)

    def branch(self, name: str, at: Any = None, *, definitions: str = "now") -> Session:
        """Another session that goes on from an epoch (None: now); see `BranchService.branch`."""
        return cast(Session, self._owners.branching.branch(name, at, definitions=definitions))

    def follow(self, parent: Session, upto: Any = None) -> int:
        """Takes the epochs that its parent had since, as far as `upto`."""
        follow = partial(self._owners.following.follow, parent._owners.publisher, upto)
        return parent._owners.follower.following(follow) if parent.mode == "r" else follow()

    @property
    def branches(self) -> Mapping[str, BranchInfo]:
        """The branches by name: where each forked, its last epoch, who has it open."""
        return self._owners.branching.listed

    def drop_branch(self, name: str) -> None:
        """Deletes a branch that nobody has open and that has no branches itself."""
        self._owners.branching.drop(name)

    def rewind(self, to: Any) -> RewindReport:
        """Goes on from an earlier epoch; see `RewindService.rewind`."""
        return self._owners.rewinding.rewind(to)

    def verify(self) -> VerificationReport:
        """Reads every byte of the log; tells which files are damaged. Commits go on meanwhile."""
        return self._owners.verification.verify()

    @property
    def path(self) -> str:
        """The session's folder."""
        return self._owners.publisher.store.path

    @property
    def mode(self) -> str:
        """How it was opened: `w` or `r`."""
        return self._owners.publisher.store.log.mode

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._owners.gate.closing

    @property
    def spark(self) -> Any:
        """The Spark session in use, or None."""
        return self._owners.link.current

    @property
    def spark_conf(self) -> dict[str, str]:
        """Settings of a Spark session that this one has to start itself."""
        return self._owners.link.conf

    @property
    def stale(self) -> dict[str, str]:
        """The stages that have stopped, with the reason."""
        stages = self._owners.publisher.snapshot.catalog.values()
        return {s.name: s.reason for s in stages if s.reason is not None}

    spark_rows = _limit("spark_rows", "The most rows that run here; None: by estimated cost.")
    spark_off = _limit("spark_off", "Whether no Spark session is started.")
    collect_rows = _limit("collect_rows", "The most rows that `to_arrow` and `to_pandas` give.")
    replay_rows = _limit("replay_rows", "The most rows that an edited stage is replayed over.")
    backlog_bytes = _limit("backlog_bytes", "The most that replicas may lack; see `UserLimits`.")

    @property
    def stats(self) -> dict[str, Any]:
        """Counters: epochs, touched, merged, merges, proposals, checkpoints, stalls, executed."""
        return self._owners.works.counters

    def close(self) -> None:
        """Ends the session properly: everything is on disk, the log free for others."""
        if self._owners.gate.close():
            with self._owners.gate.ending:
                try:
                    self._owners.commits.tell_absent()
                finally:
                    self._owners.follower.between(self._end)

    def _end(self) -> None:
        """Gives back what it holds; it is closed after the last step, and each may be repeated."""
        if self._owners.gate.closed:  # by another thread meanwhile
            return
        own, store, replaced = self._owners, self._owners.publisher.store, False
        for owner in (own.streams, own.watches, own.link, own.carrier, own.fetching, own.worker):
            owner.close()
        try:
            store.close()
        except FencedError:  # the new owner reads what was committed, and may remove files
            replaced = True
        finally:
            if store.log.closed:
                self._owners.replication.close()
                self._owners.gate.end()
                atexit.unregister(self.close)
            if not replaced:
                own.worker.failures.report()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        names = ", ".join(self._owners.publisher.snapshot.catalog) or "no inputs yet"
        folder = os.path.basename(self.path)
        return one_line(f"<nosync session {folder} at epoch {self.now}: {names}>")


def owners_of(session: Session) -> Services:
    """Who does the work of a session, for who opens it, shows it or measures it."""
    return session._owners
