"""Cursors: immutable views of collections for pages, summaries, changes and downloads.

A cursor belongs to one snapshot: its rows stay the same, whatever is committed meanwhile, and each
order is sorted once. It costs nothing before its first use, and keeps the layers that it reads
alive. A commit does none of this work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from nosync_nb import rows
from nosync_nb.collections import row_expressions
from nosync_nb.collections.collection import Collection
from nosync_nb.collections.comparison import RowChanges
from nosync_nb.collections.definition import Definition
from nosync_nb.collections.readable import refuse_negative, result_title
from nosync_nb.collections.session_protocol import Stopped, definition_of
from nosync_nb.dataflow.snapshot import Snapshot, trace_at
from nosync_nb.operators.user_functions import named_tuples
from nosync_nb.rows import Schema
from nosync_nb.session.reads.compare import CompareService
from nosync_nb.session.reads.log_follower import LogFollower
from nosync_nb.session.reads.reader import SnapshotReader, same_columns_definition
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.spark.sql_settings import SparkTypes
from nosync_nb.store.catalog.epoch_index import EpochNumbering
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Batch, Layout
from nosync_nb.trace.history.incremental_seek import NearbyState
from nosync_nb.trace.paging import Order, OrderedRows, Profile


class PagingService:
    """Creates cursors; has no state of its own.

    Attributes:
        reader: reads the published snapshot.
    """

    def __init__(
        self,
        publisher: Publisher,
        reader: SnapshotReader,
        follower: LogFollower,
        types: SparkTypes,
        compare_service: CompareService,
    ) -> None:
        self._publisher = publisher
        self.reader = reader
        self._follower = follower
        self._definition_names = publisher.definition_names
        self._types = types
        self._compare_service = compare_service

    def cursor(
        self, collection: Collection, at: Any = None, previous: Cursor | None = None
    ) -> Cursor:
        """Returns a cursor over a collection, at the last epoch or another; see `Session.cursor`.

        Raises:
            TimeError: the epoch is not readable.
            StageError: the collection does not exist, or was edited.
        """
        definition_of("cursor", collection)
        return self._follower.following(lambda: self._build_cursor(collection, at, previous))

    def changes(self, collection: Collection, after: int | None, upto: int, n: int) -> RowChanges:
        """Returns the first `n` changes of a collection in `(after, upto]`."""
        return self._compare_service.changes(collection, after, upto, limit=n)

    def _build_cursor(self, collection: Collection, at: Any, previous: Cursor | None) -> Cursor:
        definition = definition_of("cursor", collection)
        since = self._publisher.ledger.incarnation  # before the snapshot, because too early is safe
        snapshot, name = self._publisher.snapshot, self._definition_names.name_of(definition)
        stopped = self.reader.why_stopped(snapshot, definition)
        number = None if at is None else self.reader.epoch(at, snapshot)
        if stopped is not None and at is None:
            number = stopped.epoch
        if stopped is not None and stopped.epoch is None:
            epoch, trace = snapshot.epoch, Trace(Layout(tuple(definition.schema.types)))
        elif name is None:
            epoch = snapshot.epoch if number is None else number
            trace = Trace.from_batch(self.reader.scratch(snapshot, definition, epoch), epoch)
        else:
            same_columns_definition(snapshot, name, definition.schema)
            log, numbering = snapshot.graph.named[name].log, self._publisher.ledger.numbering
            near = () if previous is None else previous.near(self, log, numbering)
            epoch, trace = trace_at(snapshot, name, number, near)
        cursor = Cursor(self, snapshot, collection, epoch, trace, name, since, stopped)
        if previous is not None and name is not None:
            cursor.take_over(previous)
        return cursor

    def filtered(self, cursor: Cursor, where: str) -> OrderedRows:
        """Returns the rows of a cursor that satisfy a predicate.

        Raises:
            ExpressionError: the predicate is invalid, or is not boolean.
        """
        definition = row_expressions.filter_definition(cursor.definition, where, self._types)
        if cursor.stopped is not None and cursor.stopped.epoch is None:
            return OrderedRows(cursor.trace, cursor.check)
        batch = self._follower.following(
            lambda: self.reader.scratch(cursor.seen, definition, cursor.epoch)
        )
        return OrderedRows(Trace.from_batch(batch, cursor.epoch), cursor.check)


class Cursor:
    """The rows of a collection at one epoch, for pages in any order; made by `Session.cursor`.

    Threads: any number may call it at once; see `OrderedRows`.

    Attributes:
        epoch: the epoch that it shows.
        schema: the columns.
        order: the order of the collection itself, such as that of a `top`; empty if it has none. An
            order is a sequence of pairs: the position of a column, and True if it descends.
        stopped: the reason why the collection is stale or reads a stale stage; None if neither.

    Examples:
        >>> cursor = session.cursor("flights")
        >>> cursor.count("delay > 15")
        2
        >>> cursor.page(((2, True),), 0, 1)  # the first row by the third column, descending
        [Row(carrier='AA', day=1, delay=75.0)]
    """

    def __init__(
        self,
        paging: PagingService,
        seen: Snapshot,
        collection: Collection,
        epoch: int,
        trace: Trace,
        name: str | None,
        since: int,
        stopped: Stopped | None,
    ) -> None:
        self.stopped = stopped
        definition = definition_of("cursor", collection)
        self.seen, self.definition, self.epoch = seen, definition, epoch
        self._collection = collection
        self.schema: Schema = definition.schema
        self.order = () if name is None else stage_order(seen.stage(name).definition)
        self.trace = trace
        self._name, self._incarnation = name, since
        self._paging = paging
        self._ordered: dict[str, OrderedRows] = {"": OrderedRows(trace, self.check)}
        self._profiles: dict[str, list[Profile]] = {}

    def take_over(self, previous: Cursor) -> None:
        """Reuses the sorted rows and profiles of an earlier cursor, if the rows are the same."""
        if self.has_rows_of(previous) and previous.schema == self.schema:
            self._ordered, self._profiles = previous._ordered, previous._profiles

    def has_rows_of(self, other: Cursor) -> bool:
        """Returns True if both certainly have the same rows, which may be of different epochs.

        Examples:
            >>> previous = session.cursor("late")
            >>> session.cursor("late").has_rows_of(previous)
            True
        """
        return other.trace is self.trace

    def near(
        self, paging: PagingService, log: int | None, numbering: EpochNumbering
    ) -> Sequence[NearbyState]:
        """Returns this cursor as a cached state of a log, for an incremental seek.

        Empty if the cursor shows another log, or if a rewind has undone its epoch.
        """
        node = self.seen.graph.named.get(self._name or "")
        same_log = self._paging is paging and node is not None and node.log == log
        undone = numbering.has_left(self.epoch, self._incarnation)
        return [NearbyState(self.epoch, self.trace)] if same_log and not undone else ()

    def check(self, batch: Batch) -> None:
        """Raises NegativeMultiplicityError if consolidated rows have a negative count."""
        refuse_negative(
            batch,
            result_title(self._name),
            lambda: self.epoch,
            lambda: self._paging.reader.repair_command(self.definition),
        )

    def count(self, where: str = "") -> int:
        """Returns the number of rows, copies counted: `cursor.count("dep_delay > 60")`.

        Examples:
            >>> session.cursor("flights").count("delay > 15")
            2
        """
        return self._rows(where).count()

    def page(self, order: Order, offset: int, limit: int, *, where: str = "") -> list[Any]:
        """Returns the rows `[offset, offset + limit)` of an order as named tuples.

        Args:
            where: a predicate in SQL; empty for all rows.

        Examples:
            >>> cursor = session.cursor("flights")
            >>> cursor.page(((2, True),), 0, 2)
            [Row(carrier='AA', day=1, delay=75.0), Row(carrier='UA', day=1, delay=20.0)]
        """
        columns = self._rows(where).page(order, offset, limit)
        n = len(columns[0]) if columns else 0
        return named_tuples(columns, self.schema, n)

    def table(self, order: Order, *, where: str = "") -> pa.Table:
        """Returns all rows in an order, as an Arrow table: `cursor.table(cursor.order)`.

        Examples:
            >>> session.cursor("late").table(((2, True),)).num_rows
            2
        """
        columns = self._rows(where).all(order)
        types = self.schema.types
        arrays = [rows.to_arrow(c, t) for c, t in zip(columns, types, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self.schema.arrow)

    def profiles(self, where: str = "") -> list[Profile]:
        """Returns a summary of each column: `cursor.profiles()[0].distinct`. Computed once.

        Examples:
            >>> [profile.distinct for profile in session.cursor("late").profiles()]
            [2, 1, 2]
        """
        profiles = self._profiles.get(where)
        if profiles is None:
            profiles = self._rows(where).profiles()
            self._profiles = {where: profiles}
        return profiles

    def changes(self, after: int | None, limit: int) -> RowChanges:
        """Returns the first changes of the collection from an epoch on, up to this one.

        A changed row of a collection with a key is a pair of its old and its new values.

        Args:
            after: the epoch before the changes; `None` means from the beginning.
            limit: the most changes to return.

        Raises:
            TimeError: an epoch is not readable.

        Cost: one vectorised pass over the changes.

        Examples:
            >>> session.cursor("flights").changes(after=0, limit=2).came
            3
        """
        return self._paging.changes(self._collection, after, self.epoch, limit)

    def _rows(self, where: str) -> OrderedRows:
        ordered = self._ordered.get(where)
        if ordered is None:
            ordered = self._paging.filtered(self, where)
            self._ordered = {"": self._ordered[""], where: ordered}
        return ordered


def stage_order(definition: Definition | None) -> Order:
    """Returns the inherent order of a stage: that of a `top` by group and rank; else empty."""
    if definition is None or definition.op != "top":
        return ()
    params = definition.params
    by = [(place, descending) for place, descending, _ in params["by"] if place < params["width"]]
    return (*((place, False) for place in params["keys"]), *by)
