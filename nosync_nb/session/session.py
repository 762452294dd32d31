"""The session: inputs, stages and epochs over one folder.

    import nosync_nb
    session = nosync_nb.open("flights.nosync")
    flights = session.input("flights", "carrier string, dep_delay double")
    slow = session.stage("slow", flights.filter("dep_delay > 60"))
    flights.insert([("UA", 75.0)])
    session.commit()
    slow.rows()

The session is a facade: each call goes to a service, and no service knows the session. One writer
lock serialises changes. Readers take the current `Snapshot`, which never changes, and do not wait.
An epoch is computed, written, then published by one assignment. If it fails, nothing changes.
"""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal

from nosync_nb.collections.collection import Collection, iterate_together
from nosync_nb.collections.comparison import Comparison
from nosync_nb.collections.definition import check_name, reference_to
from nosync_nb.collections.explain_output import ExplainOutput
from nosync_nb.collections.session_protocol import definition_of, session_of
from nosync_nb.errors import FencedError, StageError, one_line
from nosync_nb.session.backfill.plan import earliest_replay_epoch
from nosync_nb.session.feeds.stream import StreamFeed
from nosync_nb.session.info import Replicas, SessionInfo, SparkControl
from nosync_nb.session.reads.paging import Cursor
from nosync_nb.session.services import Services
from nosync_nb.session.sql.results import StatementResult
from nosync_nb.session.state.report import StageReport
from nosync_nb.session.state.transactions import PendingInputChanges, Transaction
from nosync_nb.session.timetravel.rewind import RewindReport
from nosync_nb.session.writes.commit import EpochBlock
from nosync_nb.session.writes.input import Input
from nosync_nb.spark.session_protocol import SparkOptions
from nosync_nb.store.catalog.epoch_index import EpochSequence
from nosync_nb.store.durability import FailureName, Frontier
from nosync_nb.store.replication.config import ReplicaConfig
from nosync_nb.store.store import Store
from nosync_nb.store.timetravel.branches import BranchInfo
from nosync_nb.store.verification.report import VerificationReport


class Session:
    """One folder of collections, open for writing or for reading; made by `open`.

    Attributes:
        recovery: the report of the opening.

    Examples:
        >>> session
        <nosync session flights.nosync at epoch 1: flights, airlines, links, late>
    """

    def __init__(
        self,
        store: Store,
        replicas: ReplicaConfig,
        open_folder: Callable[[str], Session],
        *,
        spark: SparkOptions,
    ) -> None:
        self._services = Services(store, replicas, spark)
        self._open_folder = open_folder
        self.recovery = self._services.report

    def input(
        self, name: str, schema: Any = None, *, key: str | Sequence[str] | None = None
    ) -> Input:
        """Returns an input: creates it unless one with an equal schema exists.

        Args:
            schema: Spark DDL, an Arrow schema, or data to take the columns from (not its rows).
            key: a key column or several; makes the input keyed (upsert, delete).

        Raises:
            SchemaError: if it exists with another schema or key; quotes both.

        Examples:
            >>> planes = session.input("planes", "tail string, seats int", key="tail")
            >>> planes.upsert([("N1", 150), ("N1", 160)])
            1
        """
        self._services.input_declarations.declare(check_name(name, "input"), schema, key)
        return self._input(name)

    def commit(
        self,
        wait: Literal["disk", "replicas"] | None = None,
        label: str | None = None,
        timeout: float | None = None,
    ) -> int:
        """Commits the pending changes as one epoch, which updates every stage; returns its number.

        After it returns, the epoch survives the death of this process; with `wait="disk"` also the
        loss of power, with `"replicas"` the loss of the disk.

        Args:
            wait: the durability level to wait for; `None` does not wait.
            label: a name for the epoch.
            timeout: the longest wait for replicas, in seconds; `None` means no limit.

        Raises:
            OutcomeUnknownError: the epoch is committed, but the wait failed; `epoch` is its number.
            NosyncError: the epoch is not committed; nothing has changed, pending changes included.

        Examples:
            >>> flights.insert([("UA", 2, 7.0)])
            1
            >>> session.commit(wait="disk", label="tuesday")
            2
        """
        transaction = self._services.transactions.current
        return self._services.commits.commit(transaction, wait, label, timeout)

    def epoch(
        self, *, once: Any = None, label: str | None = None
    ) -> AbstractContextManager[EpochBlock]:
        """A transaction of its own: commits at the end of the block, discards if it raises.

        Args:
            once: an idempotency key. If this history has recorded it, nothing in the block takes
                effect (`e.skipped`). The same holds for a block that has only loads with recorded
                keys.
            label: a name for the epoch.

        Examples:
            >>> with session.epoch(once="day 2", label="tuesday") as epoch:
            ...     flights.insert([("UA", 2, 7.0)])
            1
            >>> session.now
            2
        """
        return self._services.commits.epoch_block(once, label)

    @property
    def pending(self) -> Mapping[str, PendingInputChanges]:
        """The inputs with changes that wait for the next epoch.

        Examples:
            >>> flights.insert([("UA", 2, 7.0)])
            1
            >>> list(session.pending)
            ['flights']
        """
        return self._services.transactions.current.pending

    def discard(self) -> int:
        """Drops the pending changes; returns the number of updates dropped.

        Examples:
            >>> flights.insert([("UA", 2, 7.0)])
            1
            >>> session.discard()
            1
        """
        return self._services.commits.discard(self._services.transactions.current)

    def begin(self, label: str | None = None) -> Transaction:
        """Begins a transaction for calls of all threads until its `commit` or `discard`.

        A notebook begins one for each cell. Code in an `epoch` block is not part of it.

        Args:
            label: a name for the epoch.

        Examples:
            >>> transaction = session.begin()
            >>> flights.insert([("UA", 2, 75.0)])
            1
            >>> transaction.commit()
            2
        """
        return self._services.commits.begin_transaction(label)

    def declared_from_data(self) -> list[str]:
        """Returns the inputs declared from data since the last call: they took none of its rows.

        Examples:
            >>> planes = session.input("planes", [{"tail": "N1", "seats": 12}])
            >>> session.declared_from_data()
            ['planes']
        """
        return self._services.input_declarations.from_data()

    def stream(self, frame: Any, into: Input, **options: Any) -> StreamFeed:
        r"""Commits each micro-batch of a streaming DataFrame as one epoch, exactly once.

        The feed continues where the last one stopped, even after a restart. Rows are inserted; into
        a keyed input they are upserted. If a batch has several rows with one key, any of them may
        win. An earlier feed of the input from the same checkpoint is stopped. Batches undone by a
        rewind are not delivered again.

        Args:
            frame: a DataFrame of classic Spark, made with `spark.readStream`; columns match by
                name.
            checkpoint: a folder or URL where Spark stores its progress; `None` means a folder below
                the log's. Two streams into one input need different ones.
            anew: True to start again with all rows of the source, even if the log has batches of
                it.
            trigger: an argument of Spark's `DataStreamWriter.trigger`: `processingTime="5 seconds"`
                or `availableNow=True`. Without one, each batch immediately follows the previous
                one.

        Raises:
            StageError: `into` is not an input, `checkpoint` is not a folder or URL, or the
                checkpoint is lost.
            SchemaError: `frame` is not a streaming DataFrame or has other columns, or the trigger
                is unknown.
            NosyncError: `frame` is a DataFrame of Spark Connect.

        Examples:
            >>> from pathlib import Path
            >>> folder = Path("arrived").absolute()
            >>> folder.mkdir()
            >>> size = (folder / "tuesday.csv").write_text("UA,2,7.0\n")
            >>> schema = "carrier string, day int, delay double"
            >>> frame = spark.readStream.schema(schema).csv(str(folder))
            >>> feed = session.stream(frame, into=flights)
            >>> feed.catch_up(), flights.count()
            (2, 4)
            >>> feed.stop()
        """
        return self._services.stream_feeds.start(frame, into, **options)

    def sync(self, level: str = "disk", timeout: float | None = None) -> None:
        """Waits until all epochs have reached a durability level.

        Args:
            level: "disk", or "replicas" for a quorum of them.
            timeout: the longest wait for replicas, in seconds; `None` means no limit.

        Examples:
            >>> session.sync("disk")
        """
        self._services.commits.sync(level, timeout)

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
            rounds: the number of rounds; `None` means until nothing changes.
            sources: the first value of each variable, by name.

        Examples:
            >>> def step(even, odd):
            ...     more = even.filter("n < 5").select("n + 1 AS n")
            ...     return odd.select("n + 1 AS n").concat(zero), more
            >>> zero = flights.select("0 AS n").distinct()
            >>> both = session.iterate(step, even=zero, odd=zero.filter("n > 0"))
            >>> [row.n for row in both["odd"].rows()]
            [1, 3, 5]
        """
        return iterate_together(self._services.host, body, rounds, sources)

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
            persist: its durability level: memory, disk or replicas (see `levels`). `None` leaves it
                unchanged, and means the safest possible level for a new stage.

        Examples:
            >>> per_day = session.stage("per_day", flights.group_by("day").count())
            >>> per_day.rows()
            [Row(day=1, count=2), Row(day=2, count=1)]
        """
        self.define({name: collection}, nondeterministic=nondeterministic, persist=persist)
        return self[name]

    def define(self, collections: Mapping[str, Collection], **options: Any) -> list[StageReport]:
        """Names several collections, all or none; they refer to each other by name.

        Args:
            options: those of `stage`, for all collections; `on`: where they run (auto, local or
                spark); `replay`: the epoch from which a new version is computed for the past as
                well; `again`: True to recompute them from scratch even if nothing changed.

        Examples:
            >>> per_carrier = {c: flights.filter(f"carrier = '{c}'") for c in ("AA", "UA")}
            >>> reports = session.define(per_carrier, persist="memory")
            >>> [(report.name, report.status, report.rows) for report in reports]
            [('AA', 'new', 2), ('UA', 'new', 1)]
        """
        return self._services.definitions.define(collections, **options)

    def replay(self, stage: str) -> int:
        """Computes a stage for the past, as far back as its inputs can be read.

        Returns:
            the first epoch at which the stage can be read now.

        Examples:
            >>> session.replay("late")  # the first epoch that it has now
            0
        """
        services, snapshot = self._services, self._services.publisher.snapshot
        current = snapshot.stage(stage)
        if current.definition is None:
            raise StageError(
                f"'{stage}' is an input, and cannot be replayed",
                stage=stage,
                hint="replay a stage that reads it",
            )
        same = {stage: Collection(services.host, current.definition)}
        services.definitions.define_checked(
            same, current.options, replay=earliest_replay_epoch(snapshot, [stage])
        )
        return services.publisher.snapshot.stage(stage).begin

    def drop(self, *names: str, cascade: bool = False) -> None:
        """Drops stages or inputs; with `cascade`, also the stages that read them.

        Examples:
            >>> session.drop("flights", cascade=True)
            >>> list(session.stages), list(session.inputs)
            ([], ['airlines', 'links'])
        """
        self._services.definitions.drop(names, cascade=cascade)

    def rename(self, old: str, new: str) -> None:
        """Renames a stage or input; stages that read it follow.

        Examples:
            >>> session.rename("late", "delayed")
            >>> session["delayed"].count()
            2
        """
        self._services.definitions.rename(old, check_name(new, "stage"))

    def __getitem__(self, name: str) -> Collection:
        if name not in self:
            self._services.follower.refresh()
        stage = self._services.publisher.snapshot.stage(name)
        if stage.is_input:
            return self._input(name)
        return Collection(self._services.host, reference_to(name, stage.schema))

    def sql(self, query: str, args: Mapping[str, Any] | Sequence[Any] | None = None) -> Collection:
        """A SELECT over inputs and stages, as a collection that is maintained like any other.

        Args:
            query: Spark SQL. Tables are inputs and stages by name, in any case; also at an epoch,
                `t VERSION AS OF 3`. A table of the running Spark session is loaded into an input of
                its name, as an epoch of its own, and a notice says so. The second column `a` of a
                query gets the name `a_1`.
            args: the values of parameters: by name for `:name`, or in order for `?`.

        Raises:
            SqlError: if the text is not one query, a name is unknown or ambiguous, a parameter has
                no value, or a clause is not supported; shows the line with a caret.

        Cost: in proportion to the text; nothing is defined. Reads only the rows at an epoch of
        VERSION AS OF and TIMESTAMP AS OF, and tables of Spark when they are loaded.

        Examples:
            >>> session.sql("SELECT carrier, count(*) AS n FROM flights GROUP BY carrier").rows()
            [Row(carrier='AA', n=2), Row(carrier='UA', n=1)]
            >>> session.sql("SELECT day FROM flights WHERE carrier = :c", {"c": "UA"}).rows()
            [Row(day=1)]
        """
        return self._services.sql.collection(query, args)

    def explain(
        self,
        query: str | Collection,
        args: Mapping[str, Any] | Sequence[Any] | None = None,
    ) -> ExplainOutput:
        """Explains a query, a collection or a stage; nothing is defined and nothing is computed.

        Args:
            query: a SELECT, the name of a stage or an input, or a collection.
            args: the values of a query's parameters, as for `sql`.

        Returns:
            the text of `Collection.explain`. For a query it has the state that a stage of this
            query would store, with estimates of the rows and bytes.

        Raises:
            SqlError: if the text is not one query; see `sql`.
            StageError: if a single word is not the name of a stage or an input, or if a collection
                belongs to another session.

        Cost: that of `Collection.explain`.

        Examples:
            >>> print(session.explain("SELECT carrier, count(*) n FROM flights GROUP BY 1"))
            query
              aggregate by carrier: n = count(*)
              flights ...
            ...
        """
        host = self._services.host
        if not isinstance(query, str):
            return host.explain(definition_of("explain", query, host, "the argument"))
        self._services.follower.refresh()
        name = query.strip()
        if name in self or not re.search(r"\s", name):
            stage = self._services.publisher.snapshot.stage(name)
            return host.explain(reference_to(name, stage.schema))
        collection = self._services.sql.collection(query, args, loads=False)
        return host.explain(definition_of("explain", collection, host, "the query"), "query")

    def execute(
        self,
        statements: str,
        args: Mapping[str, Any] | Sequence[Any] | None = None,
        *,
        commit: bool = False,
        **options: Any,
    ) -> list[StatementResult]:
        """Runs SQL statements that are separated by semicolons: all of them, or none.

        CREATE [OR REPLACE] [TEMPORARY] VIEW, DROP VIEW, INSERT INTO, DELETE FROM, UPDATE, MERGE
        INTO, REFRESH TABLE; at the end also SELECT, SHOW TABLES, SHOW VIEWS, DESCRIBE and EXPLAIN.
        A view is a stage. A temporary view is a name for a query in this session object; it is not
        logged. Each statement sees the changes of those before it. Values are converted to the
        types of columns by Spark's store assignment (ANSI).

        The changes are one epoch. In an `epoch` block or in a notebook's cell they are part of its
        transaction; a view is defined at once, as by `define`.

        Args:
            args: the values of parameters, as for `sql`.
            commit: True to commit them as an epoch of their own in a block or cell, too.
            options: those of `define`, for the stages of CREATE VIEW.

        Raises:
            SqlError: a statement is not SQL, does not fit the tables or their types, or writes to a
                stage; shows the line with a caret. Nothing has changed.
            NosyncError: an error of a definition, a value or the commit. Nothing has changed.

        Cost: that of the queries: DELETE, UPDATE and MERGE read the tables that they name.

        Examples:
            >>> results = session.execute('''
            ...     INSERT INTO flights VALUES ('UA', 2, 7.0);
            ...     UPDATE flights SET delay = delay + 1 WHERE carrier = 'AA';
            ...     CREATE VIEW per_day AS SELECT day, count(*) AS n FROM flights GROUP BY day
            ... ''')
            >>> [(each.statement, each.inserted, each.updated) for each in results]
            [('INSERT', 1, 0), ('UPDATE', 0, 2), ('CREATE VIEW', 0, 0)]
            >>> session["per_day"].rows()
            [Row(day=1, n=2), Row(day=2, n=2)]
        """
        return self._services.sql.execute(statements, args, commit=commit, **options)

    def _input(self, name: str) -> Input:
        services, stage = self._services, self._services.publisher.snapshot.stage(name)
        return Input(
            services.host,
            services.ingest,
            services.load_registry,
            services.folder_watches,
            reference_to(name, stage.schema),
        )

    def __contains__(self, name: object) -> bool:
        return name in self._services.publisher.snapshot.catalog

    @property
    def stages(self) -> dict[str, Collection]:
        """The stages by name, without frozen versions.

        Examples:
            >>> list(session.stages)
            ['late']
        """
        self._services.follower.refresh()
        stages = self._services.publisher.snapshot.catalog.values()
        derived = [s for s in stages if not s.is_input and not s.frozen]
        return {
            s.name: Collection(self._services.host, reference_to(s.name, s.schema)) for s in derived
        }

    @property
    def inputs(self) -> dict[str, Input]:
        """The inputs by name.

        Examples:
            >>> list(session.inputs)
            ['flights', 'airlines', 'links']
        """
        self._services.follower.refresh()
        catalog = self._services.publisher.snapshot.catalog
        return {name: self._input(name) for name, stage in catalog.items() if stage.is_input}

    def owns(self, collection: Collection) -> bool:
        """Returns True if a collection belongs to this session.

        Examples:
            >>> session.owns(late)
            True
        """
        return session_of(collection) is self._services.host

    def cursor(
        self, collection: str | Collection, at: Any = None, previous: Cursor | None = None
    ) -> Cursor:
        """Returns a cursor over the rows at an epoch: for pages, summaries, changes and downloads.

        A stale stage is shown at its last epoch, and without rows if none is retained.

        Args:
            at: the epoch; `None` means the last one.
            previous: an earlier cursor over the collection, at any epoch. Unchanged data is taken
                from it, and only changes are read.

        Raises:
            TimeError: the epoch is not readable.
            StageError: the collection does not exist, or was edited.

        Examples:
            >>> cursor = session.cursor("flights")
            >>> cursor.page(((2, True),), 0, 1)[0]  # by the third column, descending
            Row(carrier='AA', day=1, delay=75.0)
        """
        read = self[collection] if isinstance(collection, str) else collection
        return self._services.paging.cursor(read, at, previous)

    def compare(
        self,
        a: str | Collection,
        b: str | Collection | None = None,
        *,
        at: Any = None,
        by: str | Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
    ) -> Comparison:
        r"""Compares two collections: counts their common rows and pairs the rows that differ.

        Args:
            a, b: stages, versions (`"delays@1"`), unnamed collections, or a collection of another
                open session; without `b`, `a` is compared at two epochs.
            at: the epoch of both, or a pair of epochs; `None` means the last one.
            by: the columns that match a row with its changed version; `None` means the declared
                key, or that of the group or join. Without a key, rows are only equal or different.
            columns: the columns to compare; `None` means all, which must then be the same on both
                sides.

        Raises:
            SchemaError: the columns differ; quotes both.

        Cost: proportional to the changes for two epochs of one collection, otherwise O(rows).

        Examples:
            >>> worse = flights.with_columns(delay="delay + day % 2")
            >>> found = session.compare(flights, worse, by=["carrier", "day"])
            >>> found.changed, found.same
            (2, 1)
            >>> print(*found.rows(limit=1)[0], sep="\n")
            Row(carrier='AA', day=1, delay=75.0)
            Row(carrier='AA', day=1, delay=76.0)
        """
        one = self[a] if isinstance(a, str) else a
        other = self[b] if isinstance(b, str) else b
        return self._services.compare_service.compare(one, other, at, by, columns)

    # -- time --------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        """The last epoch; epoch 0 is empty, before any change.

        Examples:
            >>> session.now
            1
        """
        return self._services.publisher.numbered_epoch

    def refresh(self) -> int:
        """Reads what the owner of the log has committed meanwhile; returns the last epoch.

        Without `mode="r"` it only returns the last epoch.

        Examples:
            >>> reader = nosync.open("flights.nosync", mode="r")
            >>> reader.refresh()
            1
        """
        return self._services.follower.refresh()

    def resolve(self, at: Any) -> int:
        """Returns the number of an epoch, label, datetime, or negative offset from the last epoch.

        Raises:
            TimeError: no epoch matches; the hint lists existing ones.

        Examples:
            >>> session.resolve("monday")
            1
        """
        return self._services.publisher.ledger.resolve(at, self.now)

    def epochs(self) -> EpochSequence:
        """Returns the epochs readable for all live stages, with time and label.

        Examples:
            >>> [(epoch.number, epoch.label) for epoch in session.epochs()]
            [(0, None), (1, 'monday')]
        """
        return self._services.retention_service.epochs()

    @property
    def retain(self) -> Any:
        """How long single epochs are retained, as `"30 days"`; None: all.

        Examples:
            >>> session.retain = "30 days"
        """
        return self._services.retention_service.retention.user_value

    @retain.setter
    def retain(self, period: Any) -> None:
        self._services.retention_service.set(period)

    @property
    def budget(self) -> Any:
        """The disk budget of the log in bytes, set as `"2 GB"`; None: no limit.

        Examples:
            >>> session.budget = "2 GB"
            >>> session.budget
            2000000000
        """
        return self._services.retention_service.retention.budget

    @budget.setter
    def budget(self, size: Any) -> None:
        self._services.retention_service.bound(size)

    def pin(self, at: Any, name: str) -> int:
        """Pins an epoch under a name, so that it stays readable; returns its number.

        Raises:
            TimeError: the epoch is no longer retained separately; names its neighbours.

        Examples:
            >>> session.pin("monday", "before the audit")
            1
            >>> session.pins
            {'before the audit': 1}
        """
        return self._services.retention_service.pin(at, name)

    def unpin(self, name: str) -> None:
        """Removes a pin.

        Examples:
            >>> session.pin(1, "audit")
            1
            >>> session.unpin("audit")
            >>> session.pins
            {}
        """
        self._services.retention_service.unpin(name)

    @property
    def pins(self) -> dict[str, int]:
        """The pinned epochs, by name.

        Examples:
            >>> session.pin(1, "audit")
            1
            >>> session.pins
            {'audit': 1}
        """
        return dict(self._services.retention_service.retention.pins)

    @property
    def frontiers(self) -> dict[str, Frontier]:
        """By stage and input, the last epoch at each durability level, inclusive.

        Examples:
            >>> session.sync("disk")
            >>> session.frontiers["late"]
            Frontier(memory=1, disk=1, replicas=None)
        """
        return self._services.frontiers.of_stages()

    def recovery_frontier(
        self, failure: FailureName = "kernel", lost: int | None = None, stage: str | None = None
    ) -> int:
        """Returns the epoch that the session, or a stage, would recover to after a failure now.

        Examples:
            >>> session.recovery_frontier("kernel"), session.recovery_frontier("disk")
            (1, 0)
        """
        return self._services.frontiers.after(failure, lost, stage)

    def branch(self, name: str, at: Any = None, *, definitions: str = "now") -> Session:
        """Creates a branch and opens it: a session that continues from an epoch of this one.

        Its log is in the subfolder `branches/NAME`. It has the rows at the epoch and the current
        stages, and shares the files of both. It is changed independently of this session, here or
        in another process. A stage that was defined later is computed from its inputs; an input
        that was declared later is empty. With replicas the branch is replicated to each of them,
        below `branches/NAME`, from its first opening on. A backup branch of a rewind, or a branch
        that was never opened, is on this disk only until then.

        Args:
            name: an identifier that no other branch has.
            at: an epoch, as in `rows(at=)`; `None` means the current one. Pending rows stay in this
                session.
            definitions: `"now"` for the current stages; `"then"` for those that computed the epoch,
                without later edits, renames and drops. The latter are known as far back as frames
                are retained.

        Raises:
            SchemaError: the name is taken, or is not an identifier.
            TimeError: there is no such epoch, or it is no longer retained separately; or its
                definitions are no longer known, or read an input that was dropped since.
            TrustError: the catalog of this log is unsigned, or signed with another key.
            DurabilityError: the disk refuses, or has no hard links.

        Cost: a hard link for each file; rows that are only in memory are written to files. For an
        old epoch, operator state is rebuilt in the background, and the first epoch of the branch
        waits for it.

        Examples:
            >>> idea = session.branch("idea", at="monday")
            >>> idea.stage("late", idea["flights"].filter("delay > 60")).count()
            1
            >>> late.count()
            2
        """
        return self._open_folder(self.fork(name, at, definitions=definitions))

    def fork(self, name: str, at: Any = None, *, definitions: str = "now") -> str:
        """Creates a branch as `branch` does, without opening it; returns its folder.

        Examples:
            >>> path = session.fork("idea", at=1)
            >>> list(session.branches)
            ['idea']
        """
        return self._services.branch_service.make(name, at, definitions=definitions)

    def follow(self, parent: Session, upto: Any = None) -> int:
        """Applies the epochs that the parent has committed since the fork, up to `upto`.

        Examples:
            >>> idea = session.branch("idea")
            >>> flights.insert([("UA", 2, 30.0)])
            1
            >>> session.commit()
            2
            >>> idea.follow(session)
            2
            >>> idea["late"].count()
            3
        """
        follow = partial(self._services.parent_follower.follow, parent._services.publisher, upto)
        return parent._services.follower.following(follow) if parent.mode == "r" else follow()

    @property
    def branches(self) -> Mapping[str, BranchInfo]:
        """The branches by name: where each forked, its last epoch, the process that has it open.

        Examples:
            >>> idea = session.branch("idea")
            >>> session.branches["idea"].at, session.branches["idea"].now
            (1, 1)
        """
        return self._services.branch_service.by_name

    def drop_branch(self, name: str) -> None:
        """Deletes a branch that is not open and has no branches itself.

        Examples:
            >>> idea = session.branch("idea")
            >>> idea.close()
            >>> session.drop_branch("idea")
            >>> dict(session.branches)
            {}
        """
        self._services.branch_service.drop(name)

    def rewind(self, to: Any) -> RewindReport:
        """Rewinds to an earlier epoch: data are rewound, definitions stay the current ones.

        A stage that can be read at that epoch is cut there. One that was defined later is computed
        from its inputs at that epoch; an input that was declared later is empty. The next commit
        has the number after that epoch. Keys of loads (`once=`) of the undone epochs are forgotten,
        so that running all cells again replays these loads. The undone epochs are in a branch,
        which can be opened.

        Args:
            to: an epoch's number, a label or a time.

        Raises:
            TimeError: the epoch is not readable, or in the future.
            StageError: rows are pending, in a transaction or a stage's function.
            TrustError: the catalog of this log is unsigned, or signed with another key.
            DurabilityError: the disk refuses, or has no hard links.
            NosyncError: the rewind failed; nothing has changed.

        Cost: a few ms, whatever the size of the stages: for a stage that is cut, nothing is read,
        copied or written. For one of the newest epochs, later changes are subtracted from operator
        state, at a few us for each epoch. For an older epoch, the state is rebuilt in the
        background, and the next epoch waits for it. The branch needs a hard link for each file, and
        rows that are only in memory are written to it. It is published when the frame is on disk;
        the call waits for this.

        Examples:
            >>> flights.clear(), session.commit()
            (3, 2)
            >>> report = session.rewind(to="monday")
            >>> report.epoch, report.branch, late.count()
            (1, 'before-rewind-1', 2)
        """
        return self._services.rewind_service.rewind(to)

    def verify(self) -> VerificationReport:
        """Reads every byte of the log; reports damaged files. Commits continue meanwhile.

        Examples:
            >>> report = session.verify()
            >>> report.whole, report.damage
            (True, ())
        """
        return self._services.repairs.verify()

    # -- for front ends ----------------------------------------------------------------------

    @property
    def info(self) -> SessionInfo:
        """The facts that status lines and views show.

        Examples:
            >>> [(each.name, each.rows) for each in session.info.overview().collections]
            [('flights', 3), ('airlines', 2), ('links', 4), ('late', 2)]
        """
        return SessionInfo(self._services)

    @property
    def replicas(self) -> Replicas:
        """The replicas of the log, and their state.

        Examples:
            >>> session.replicas.status()
            []
        """
        return Replicas(self._services)

    @property
    def spark_control(self) -> SparkControl:
        """Starts, follows and cancels the Spark session.

        Examples:
            >>> session.spark_control.cancel()
        """
        return SparkControl(self._services)

    def subscribe(self, callback: Callable[[int], None]) -> Callable[[], None]:
        """Calls a function with the number of each new epoch; returns a function that ends it.

        It is called by the committing thread, and must not change the session.

        Examples:
            >>> unsubscribe = session.subscribe(lambda epoch: print(f"epoch {epoch}"))
        """
        return self._services.subscriptions.subscribe(callback)

    def on_notice(self, handler: Callable[[str], None] | None) -> None:
        """Sets the function that gets each notice for the user; None: the program's log gets them.

        Examples:
            >>> session.on_notice(print)
        """
        self._services.subscriptions.set_notice_handler(handler)

    @property
    def path(self) -> str:
        """The folder of the session.

        Examples:
            >>> session.path.endswith("flights.nosync")
            True
        """
        return self._services.publisher.store.path

    @property
    def mode(self) -> str:
        """The mode of the session: `w` or `r`.

        Examples:
            >>> session.mode
            'w'
        """
        return self._services.publisher.store.log.mode

    @property
    def closed(self) -> bool:
        """True after `close` was called.

        Examples:
            >>> session.close()
            >>> session.closed
            True
        """
        return self._services.writer_lock.closing

    @property
    def spark(self) -> Any:
        """The Spark session in use, or None.

        Examples:
            >>> session.spark is None
            True
        """
        return self._services.spark_connection.current

    @property
    def spark_conf(self) -> dict[str, str]:
        """Settings for the Spark session that this one starts if it needs to.

        Examples:
            >>> session.spark_conf["spark.master"] = "local[2]"
        """
        return self._services.spark_connection.conf

    @property
    def stale(self) -> dict[str, str]:
        """The stages that have stopped, with the reason.

        A stage stops if a column that it reads was removed, if a function of it was not restored,
        or if a stage that it reads has stopped. Cells and views show its last rows. A program that
        reads the rows of a later epoch gets a TimeError; `rows(at=E)` reads the last ones.

        Examples:
            >>> session.stale
            {}
        """
        stages = self._services.publisher.snapshot.catalog.values()
        return {s.name: s.reason for s in stages if s.reason is not None}

    @property
    def spark_rows(self) -> int | None:
        """The most rows that run in this process; None: by estimate.

        Examples:
            >>> session.spark_rows = 1_000_000
        """
        return self._services.limits.spark_rows

    @spark_rows.setter
    def spark_rows(self, rows: int | None) -> None:
        self._services.limits.spark_rows = rows

    @property
    def spark_off(self) -> bool:
        """True if no Spark session may be started.

        Examples:
            >>> session.spark_off = True
        """
        return self._services.limits.spark_off

    @spark_off.setter
    def spark_off(self, off: bool) -> None:
        self._services.limits.spark_off = off

    @property
    def collect_rows(self) -> int:
        """The most rows that `to_arrow` and `to_pandas` return.

        Examples:
            >>> session.collect_rows = 1_000_000
        """
        return self._services.limits.collect_rows

    @collect_rows.setter
    def collect_rows(self, rows: int) -> None:
        self._services.limits.collect_rows = rows

    @property
    def replay_rows(self) -> int:
        """The most rows that an edited stage is replayed over.

        Examples:
            >>> session.replay_rows = 10_000_000
        """
        return self._services.limits.replay_rows

    @replay_rows.setter
    def replay_rows(self, rows: int) -> None:
        self._services.limits.replay_rows = rows

    @property
    def backlog_bytes(self) -> int | None:
        """The largest replication backlog; None: no limit.

        Above it, stages that can be recomputed are replicated last, until the backlog has halved.

        Examples:
            >>> session.backlog_bytes = 1 << 30
        """
        return self._services.limits.backlog_bytes

    @backlog_bytes.setter
    def backlog_bytes(self, size: int | None) -> None:
        self._services.limits.backlog_bytes = size

    @property
    def stats(self) -> dict[str, Any]:
        """Counters: epochs, touched, merged, merges, proposals, checkpoints, stalls, executed.

        Examples:
            >>> session.stats["epochs"]
            1
        """
        return self._services.metrics.counters

    def close(self) -> None:
        """Closes the session: everything is on disk, and the log is free for other owners.

        Examples:
            >>> session.close()
            >>> session = nosync.open("flights.nosync")
            >>> session["late"].count()
            2
        """
        if self._services.writer_lock.close():
            with self._services.writer_lock.ending:
                self._services.follower.run_between_refreshes(self._release)

    def _release(self) -> None:
        """Releases all resources. Each step may be repeated; the last one marks this as closed."""
        if self._services.writer_lock.closed:  # another thread has closed it
            return
        services, store, replaced = self._services, self._services.publisher.store, False
        for owner in (
            services.stream_feeds,
            services.folder_watches,
            services.spark_connection,
            services.staging,
            services.lazy_fetcher,
            services.worker,
        ):
            owner.close()
        try:
            store.close()
        except FencedError:  # the new owner has the epochs, and may have removed our files
            replaced = True
        finally:
            if store.log.closed:
                self._services.replication.close()
                self._services.writer_lock.mark_closed()
                atexit.unregister(self.close)
            if not replaced:
                services.worker.failures.report()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        names = ", ".join(self._services.publisher.snapshot.catalog) or "no inputs yet"
        folder = os.path.basename(self.path)
        return one_line(f"<nosync session {folder} at epoch {self.now}: {names}>")


def services_of(session: Session) -> Services:
    """Returns the services of a session, for modules that open, show or measure it."""
    return session._services
