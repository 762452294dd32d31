"""The session: inputs, stages and epochs over one folder.

    import nosync_nb
    session = nosync_nb.open("flights.nosync")
    flights = session.input("flights", "carrier string, dep_delay double")
    slow = session.stage("slow", flights.filter("dep_delay > 60"))
    flights.insert([("UA", 75.0)])
    session.commit()
    slow.rows()

It is a facade: each call goes to a service, and no service knows the session. Changes are
serialised by one writer lock. Readers take the current `Snapshot`, which never changes, and do not
wait. An epoch is computed, written, then published by one assignment; if it fails, nothing changes.
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
from nosync_nb.collections.session_protocol import session_of
from nosync_nb.errors import FencedError, StageError, one_line
from nosync_nb.session.feeds.stream import StreamFeed
from nosync_nb.session.info import Replicas, SessionInfo, SparkControl
from nosync_nb.session.planning.replay import earliest_replay_epoch
from nosync_nb.session.reads.paging import Cursor
from nosync_nb.session.report import StageReport
from nosync_nb.session.services import Services
from nosync_nb.session.state.pending_changes import PendingInputChanges
from nosync_nb.session.state.transactions import Transaction
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
    """Returns an attribute of the session that is stored in its `UserLimits`."""
    return property(
        lambda session: getattr(owners_of(session).limits, name),
        lambda session, value: owners_of(session).limits.set(name, value),
        doc=doc,
    )


class Session:
    """One folder of collections, open for writing or for reading; made by `open`.

    Attributes:
        recovery: the report of the opening.
    """

    def __init__(
        self, store: Store, replicas: ReplicaConfig, opens: Opens, *, spark: SparkOptions
    ) -> None:
        self._owners = Services(store, replicas, opens, spark)
        self.recovery = self._owners.report

    def input(
        self, name: str, schema: Any = None, *, key: str | Sequence[str] | None = None
    ) -> Input:
        """Returns an input: creates it unless one with an equal schema exists.

        Args:
            schema: Spark DDL, an Arrow schema, or data to take the columns from (not its rows).
            key: a key column or several; makes the input keyed (upsert, delete).

        Raises:
            SchemaError: if it exists with another schema or key; quotes both.
        """
        self._owners.declarations.declare(check_name(name, "input"), schema, key)
        return self._input(name)

    def commit(
        self,
        wait: Literal["disk", "replicas"] | None = None,
        label: str | None = None,
        timeout: float | None = None,
    ) -> int:
        """Closes the epoch: runs every stage on the pending changes; returns the epoch's number.

        After it returns, the epoch survives the death of this process; with `wait="disk"` also the
        loss of power, with `"replicas"` the loss of the disk.

        Args:
            wait: the durability level to wait for; None: none.
            label: a name for the epoch.
            timeout: the longest wait for replicas, in seconds; None: no limit.

        Raises:
            OutcomeUnknownError: the epoch is committed, but the wait failed; `epoch` is its number.
            NosyncError: the epoch is not committed; nothing has changed, pending changes included.
        """
        transaction = self._owners.transactions.current
        return self._owners.commits.commit(transaction, wait, label, timeout)

    def epoch(
        self, *, once: Any = None, label: str | None = None
    ) -> AbstractContextManager[EpochBlock]:
        """A transaction of its own: commits at the end of the block, discards if it raises.

        Args:
            once: an idempotency key. If this history has recorded it, nothing in the block takes
                effect (`e.skipped`). The same holds for a block that has only loads with recorded
                keys.
            label: a name for the epoch.
        """
        return self._owners.blocks.epoch(once, label)

    @property
    def pending(self) -> Mapping[str, PendingInputChanges]:
        """The inputs with changes that wait for the next epoch."""
        return self._owners.transactions.current.pending

    def discard(self) -> int:
        """Drops the pending changes; returns the number of updates dropped."""
        return self._owners.commits.discard(self._owners.transactions.current)

    def begin(self) -> Transaction:
        """Begins a transaction for calls of all threads until its `commit` or `discard`.

        A notebook begins one for each cell. Code in an `epoch` block is not part of it.

        Example:
            >>> transaction = session.begin()
            >>> flights.insert([("UA", 75.0)])
            >>> transaction.commit()
        """
        return self._owners.commits.begin()

    def declared_from_data(self) -> list[str]:
        """Returns the inputs declared from data since the last call: they took none of its rows.

        Example:
            >>> session.declared_from_data()  # ['flights'] after session.input("flights", frame)
        """
        return self._owners.declarations.from_data()

    def stream(self, frame: Any, into: Input, **options: Any) -> StreamFeed:
        """Commits the micro-batches of a streaming DataFrame as epochs; see `StreamFeeds.start`."""
        return self._owners.streams.start(frame, into, **options)

    def sync(self, level: str = "disk", timeout: float | None = None) -> None:
        """Waits until all epochs have reached a durability level.

        Args:
            level: "disk", or "replicas" for a quorum of them.
            timeout: the longest wait for replicas, in seconds; None: no limit.
        """
        self._owners.commits.sync(level, timeout)

    # -- stages ------------------------------------------------------------------------------

    def iterate(
        self, body: Callable[..., Any], /, rounds: int | None = None, **sources: Collection
    ) -> dict[str, Collection]:
        """Iterates several loop variables together: each may use the others (mutual recursion).

        `session.iterate(lambda even, odd: (..., ...), even=start, odd=none)` returns the last value
        of each, by name; all of them advance a round at once. See `Collection.iterate`.

        Args:
            body: called with the variables by name; returns their next values in that order, or by
                name.
            rounds: the number of rounds; None: until nothing changes.
            sources: the first value of each variable, by name.
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
        """Names a collection: it is then maintained, logged and readable at past epochs.

        An equal definition changes nothing. A different one makes a new version, and stages that
        read it by name use the new version.

        Args:
            nondeterministic: True if its functions, or expressions such as `uuid()`, may return
                different results for the same row. Results are memoised per row, so a retraction
                removes exactly what was emitted.
            persist: its durability level: memory, disk or replicas (see `levels`); None: unchanged,
                for a new stage the safest that is possible.
        """
        self.define({name: collection}, nondeterministic=nondeterministic, persist=persist)
        return self[name]

    def define(self, collections: Mapping[str, Collection], **options: Any) -> list[StageReport]:
        """Names several collections, all or none; they refer to each other by name.

        Args:
            options: those of `stage`, for all of them; `on`: where they run: auto, local or spark;
                `replay`: the epoch from which a new version is computed for the past as well;
                `again`: recomputes them from scratch even if nothing changed.
        """
        return self._owners.definitions.define(collections, **options)

    def replay(self, stage: str) -> int:
        """Computes a stage for the past, as far back as its inputs can be read.

        Returns:
            the first epoch at which the stage can be read now.

        Example:
            >>> session.replay("late")  # 1: late was defined at epoch 40
        """
        own, snapshot = self._owners, self._owners.publisher.snapshot
        current = snapshot.stage(stage)
        if current.definition is None:
            raise StageError(f"'{stage}' is an input, and cannot be replayed", stage=stage)
        same = {stage: Collection(own.host, current.definition)}
        own.definitions.put(same, current.options, replay=earliest_replay_epoch(snapshot, [stage]))
        return own.publisher.snapshot.stage(stage).begin

    def drop(self, *names: str, cascade: bool = False) -> None:
        """Drops stages or inputs; with `cascade`, also the stages that read them."""
        self._owners.definitions.drop(names, cascade=cascade)

    def rename(self, old: str, new: str) -> None:
        """Renames a stage or input; stages that read it follow."""
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

    def owns(self, collection: Collection) -> bool:
        """Returns True if a collection belongs to this session: `session.owns(late)`."""
        return session_of(collection) is self._owners.host

    def cursor(
        self, collection: str | Collection, at: Any = None, previous: Cursor | None = None
    ) -> Cursor:
        """Returns a cursor over the rows at an epoch: for pages, summaries, changes and downloads.

        A stale stage is shown at its last epoch, and without rows if none is retained.

        Args:
            at: the epoch; None: the last one.
            previous: an earlier cursor over the collection, at any epoch. Unchanged data is taken
                from it, and only changes are read.

        Raises:
            TimeError: the epoch is not readable.
            StageError: the collection does not exist, or was edited.

        Example:
            >>> cursor = session.cursor("flights")
            >>> cursor.page([(1, True)], 0, 20)  # by the second column, descending
        """
        read = self[collection] if isinstance(collection, str) else collection
        return self._owners.paging.cursor(read, at, previous)

    def compare(
        self,
        a: str | Collection,
        b: str | Collection | None = None,
        *,
        at: Any = None,
        by: str | Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
    ) -> Comparison:
        """Compares two collections: counts their common rows and pairs the rows that differ.

        Args:
            a, b: stages, versions (`"delays@1"`), unnamed collections, or a collection of another
                open session; without `b`, `a` is compared at two epochs.
            at: the epoch of both, or a pair of epochs; None: the last one.
            by: the columns that match a row with its changed version; None: the declared key, or
                that of the group or join; without any, rows are equal or different.
            columns: the columns to compare; None: all, which must then be the same on both sides.

        Raises:
            SchemaError: the columns differ; quotes both.

        Cost: for one collection at two epochs proportional to the changes, else O(rows).
        """
        one = self[a] if isinstance(a, str) else a
        other = self[b] if isinstance(b, str) else b
        return self._owners.comparing.compare(one, other, at, by, columns)

    # -- time --------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        """The last epoch; epoch 0 is empty, before any change."""
        return self._owners.publisher.now

    def refresh(self) -> int:
        """Reads what the owner of the log has committed meanwhile; returns the last epoch.

        Without `mode="r"` it only returns the last epoch.

        Example:
            >>> reader = nosync.open("flights.nosync", mode="r")
            >>> reader.refresh()
        """
        return self._owners.follower.refresh()

    def resolve(self, at: Any) -> int:
        """Returns the number of an epoch, label, datetime, or negative offset from the last epoch.

        Raises:
            TimeError: no epoch matches; the hint lists existing ones.

        Example:
            >>> session.resolve("January")  # 31
        """
        return self._owners.publisher.ledger.resolve(at, self.now)

    def epochs(self) -> EpochSequence:
        """Returns the epochs readable for all live stages, with time and label."""
        return self._owners.retaining.epochs()

    retain = property(
        lambda session: owners_of(session).retaining.retention.asked,
        lambda session, asked: owners_of(session).retaining.set(asked),
        doc='How long single epochs are retained, as `"30 days"`; None: all.',
    )
    budget = property(
        lambda session: owners_of(session).retaining.retention.budget,
        lambda session, asked: owners_of(session).retaining.bound(asked),
        doc='The disk budget of the log in bytes, set as `"2 GB"`; None: no bound.',
    )

    def pin(self, at: Any, name: str) -> int:
        """Pins an epoch under a name, so that it stays readable; returns its number.

        Raises:
            TimeError: the epoch is no longer retained separately; names its neighbours.
        """
        return self._owners.retaining.pin(at, name)

    def unpin(self, name: str) -> None:
        """Removes a pin."""
        self._owners.retaining.unpin(name)

    @property
    def pins(self) -> dict[str, int]:
        """The pinned epochs, by name."""
        return dict(self._owners.retaining.retention.pins)

    @property
    def frontiers(self) -> dict[str, Frontier]:
        """By stage and input, the last epoch at each durability level, inclusive."""
        return self._owners.frontiers.of_stages()

    def recovery_frontier(
        self, failure: FailureName = "kernel", lost: int | None = None, stage: str | None = None
    ) -> int:
        """Returns the epoch that the session, or a stage, would recover to after a failure now."""
        return self._owners.frontiers.after(failure, lost, stage)

    def branch(self, name: str, at: Any = None, *, definitions: str = "now") -> Session:
        """Returns a new session that continues from an epoch (None: the last).

        See `BranchService.branch`.
        """
        return cast(Session, self._owners.branching.branch(name, at, definitions=definitions))

    def fork(self, name: str, at: Any = None, *, definitions: str = "now") -> str:
        """Creates a branch as `branch` does, without opening it; returns its folder.

        Example:
            >>> session.fork("idea", at=7)
        """
        name = check_name(name, "branch")
        return self._owners.branching.make(name, at, definitions=definitions)

    def follow(self, parent: Session, upto: Any = None) -> int:
        """Takes over the epochs that the parent has committed since, up to `upto`."""
        follow = partial(self._owners.following.follow, parent._owners.publisher, upto)
        return parent._owners.follower.following(follow) if parent.mode == "r" else follow()

    @property
    def branches(self) -> Mapping[str, BranchInfo]:
        """The branches by name: where each forked, its last epoch, the process that has it open."""
        return self._owners.branching.listed

    def drop_branch(self, name: str) -> None:
        """Deletes a branch that is not open and has no branches itself."""
        self._owners.branching.drop(name)

    def rewind(self, to: Any) -> RewindReport:
        """Continues from an earlier epoch; see `RewindService.rewind`."""
        return self._owners.rewinding.rewind(to)

    def verify(self) -> VerificationReport:
        """Reads every byte of the log; reports damaged files. Commits continue meanwhile."""
        return self._owners.verification.verify()

    # -- for front ends ----------------------------------------------------------------------

    @property
    def info(self) -> SessionInfo:
        """The facts that status lines and views show: `session.info.overview()`."""
        return SessionInfo(self._owners)

    @property
    def replicas(self) -> Replicas:
        """The replicas of the log, and their state: `session.replicas.status()`."""
        return Replicas(self._owners)

    @property
    def spark_control(self) -> SparkControl:
        """Starts, follows and cancels the Spark session: `session.spark_control.cancel()`."""
        return SparkControl(self._owners)

    def subscribe(self, callback: Callable[[int], None]) -> Callable[[], None]:
        """Calls a function with the number of each new epoch; returns a function that ends it.

        It is called by the committing thread, and must not change the session.

        Example:
            >>> unsubscribe = session.subscribe(lambda epoch: print(f"epoch {epoch}"))
        """
        return self._owners.listeners.subscribe(callback)

    def on_notice(self, handler: Callable[[str], None] | None) -> None:
        """Sets the function that gets each notice for the user; None: the program's log gets them.

        Example:
            >>> session.on_notice(print)
        """
        self._owners.listeners.hear(handler)

    @property
    def path(self) -> str:
        """The folder of the session."""
        return self._owners.publisher.store.path

    @property
    def mode(self) -> str:
        """The mode of the session: `w` or `r`."""
        return self._owners.publisher.store.log.mode

    @property
    def closed(self) -> bool:
        """True after `close` was called."""
        return self._owners.gate.closing

    @property
    def spark(self) -> Any:
        """The Spark session in use, or None."""
        return self._owners.link.current

    @property
    def spark_conf(self) -> dict[str, str]:
        """Settings for the Spark session that this one starts if it needs to."""
        return self._owners.link.conf

    @property
    def stale(self) -> dict[str, str]:
        """The stages that have stopped, with the reason."""
        stages = self._owners.publisher.snapshot.catalog.values()
        return {s.name: s.reason for s in stages if s.reason is not None}

    spark_rows = _limit("spark_rows", "The most rows that run in this process; None: by estimate.")
    spark_off = _limit("spark_off", "True if no Spark session may be started.")
    collect_rows = _limit("collect_rows", "The most rows that `to_arrow` and `to_pandas` return.")
    replay_rows = _limit("replay_rows", "The most rows that an edited stage is replayed over.")
    backlog_bytes = _limit("backlog_bytes", "The largest replication backlog; see `UserLimits`.")

    @property
    def stats(self) -> dict[str, Any]:
        """Counters: epochs, touched, merged, merges, proposals, checkpoints, stalls, executed."""
        return self._owners.works.counters

    def close(self) -> None:
        """Closes the session: everything is on disk, and the log is free for other owners."""
        if self._owners.gate.close():
            with self._owners.gate.ending:
                self._owners.follower.between(self._release)

    def _release(self) -> None:
        """Releases all resources. Each step may be repeated; the last one marks it as closed."""
        if self._owners.gate.closed:  # another thread has closed it
            return
        own, store, replaced = self._owners, self._owners.publisher.store, False
        for owner in (own.streams, own.watches, own.link, own.carrier, own.fetching, own.worker):
            owner.close()
        try:
            store.close()
        except FencedError:  # the new owner has the epochs, and may have removed our files
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
    """Returns the services of a session, for modules that open, show or measure it."""
    return session._owners
