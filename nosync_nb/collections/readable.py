"""Reads a collection: rows, Arrow, pandas, Spark, changes and history.

Libraries that do not know NoSync read the rows of a collection, too:

    polars.DataFrame(late); pyarrow.table(late); duckdb.sql("from late"); altair.Chart(late)
    late.hvplot.bar(x="carrier", y="delay")

Each library calls a method of its protocol when it reads, and gets the rows at that time. The
library cannot change the rows of the collection.

A `CollectionAtEpoch` is a collection at one epoch, with the same read methods as the collection. It
stores no rows: each call reads that epoch. Epochs do not change, so all calls return the same rows.
A read raises an error if the session was rewound to before the epoch, or if the epoch is no longer
retained.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from nosync_nb import rows
from nosync_nb.collections.change_images import image_columns, images_table
from nosync_nb.collections.definition import Definition, constant_definition
from nosync_nb.collections.explain_output import ExplainOutput
from nosync_nb.collections.position import Position
from nosync_nb.collections.row_expressions import ordered_by
from nosync_nb.collections.session_protocol import (
    ResolvedEpoch,
    SessionBound,
    Stopped,
    definition_of,
    session_of,
)
from nosync_nb.errors import (
    MisuseError,
    NegativeMultiplicityError,
    StageError,
    enough_memory,
    one_line,
)
from nosync_nb.files.memory import free_bytes
from nosync_nb.operators.user_functions import named_tuples
from nosync_nb.rows import Schema
from nosync_nb.rows.columns import copied_bytes
from nosync_nb.rows.order import Ordering, ordered
from nosync_nb.rows.pandas_frames import to_frame
from nosync_nb.trace import stats
from nosync_nb.trace.batch import Batch, row_text
from nosync_nb.trace.paging import first_rows


class ArrowStream(ABC):
    """The base of objects that provide their rows to other libraries by Arrow's protocols."""

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """The columns and their types."""

    @abstractmethod
    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table."""

    def __arrow_c_schema__(self) -> Any:
        """The columns in Arrow's C interface, as for `pyarrow.schema(late)`; reads no rows."""
        return self.schema.arrow.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """The current rows as an Arrow stream.

        Cost: that of `to_arrow`, in every call.
        """
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __dataframe__(self, nan_as_null: bool = False, allow_copy: bool = True) -> Any:
        """The current rows in the interchange protocol of DataFrames."""
        return self.to_arrow().__dataframe__(nan_as_null, allow_copy)

    def __narwhals_dataframe__(self) -> Any:
        """The current rows for Altair, Plotly and Bokeh, which read them with Narwhals.

        Narwhals does not accept Arrow streams.
        """
        import narwhals

        # private, because no public method returns this object; a test with Altair checks it
        return vars(narwhals.from_native(self.to_arrow(), eager_only=True))["_compliant_frame"]

    @property
    def hvplot(self) -> Any:
        """Charts of the current rows, drawn by hvPlot: `late.hvplot.bar(x="carrier", y="delay")`.

        The rows are read when the property is accessed. A notebook shows the charts after
        `hvplot.extension("bokeh")`, as for other libraries.

        Raises:
            MisuseError: if hvPlot is not installed. `hasattr` then returns False.

        Examples:
            >>> late.hvplot.bar("carrier", "delay")
            :Bars   [carrier]   (delay)
        """
        try:
            from hvplot import hvPlotTabular
        except ImportError as error:
            raise MisuseError("hvPlot is not installed", hint="pip install hvplot") from error
        return hvPlotTabular(self.to_arrow().to_pandas())


_SMALL_BYTES = 64 << 20
_FEWER = "read fewer rows: .head(n), .rows(limit=n), an aggregate, or use .to_spark()"


def _failed_read_text(collection: Readable, *_: Any, **__: Any) -> str:
    """Returns the message for a read that ran out of memory."""
    return f"{collection._title()} could not be read; nothing has changed"


class Readable(SessionBound, ArrowStream):
    """The read methods of a collection, for the last epoch and for all other readable epochs.

    `at` is an epoch, a label, a datetime, or a negative offset from the last epoch.
    """

    @property
    def schema(self) -> Schema:
        """The columns and their types.

        Examples:
            >>> late.schema.names, late.schema.types
            (('carrier', 'day', 'delay'), ('string', 'int', 'double'))
        """
        return self._definition.schema

    @property
    def name(self) -> str | None:
        """The name of the input or stage; None for an unnamed collection.

        Examples:
            >>> late.name, flights.distinct().name
            ('late', None)
        """
        return self._host.name_of(self._definition)

    @property
    def stale(self) -> Stopped | None:
        """The reason and the last epoch if the collection or a stage that it reads is stale.

        None if neither is stale.

        Examples:
            >>> if late.stale is not None:
            ...     print(late.stale.reason, late.stale.epoch)
        """
        return self._host.why_stopped(self._definition)

    @enough_memory(_failed_read_text, _FEWER)
    def rows(self, at: Any = None, limit: int | None = None) -> list[Any]:
        """The rows as named tuples in canonical order; a row with count n is repeated n times.

        Raises:
            TimeError: if `at` is not readable.
            NegativeMultiplicityError: if the count of any row is below 0, even if that row is not
                among the first `limit`.

        Cost: O(n log n). With `limit`: one vectorised pass, 2 to 15 ns per row. A later call at the
        last epoch costs only the changes since the previous call. A call at a past epoch costs the
        changes from that epoch to the last one.

        Examples:
            >>> late.rows()
            [Row(carrier='AA', day=1, delay=75.0), Row(carrier='UA', day=1, delay=20.0)]
            >>> late.rows(at=0)
            []
        """
        if limit is not None:
            first = self._first(max(limit, 0), (), at)
            if first is not None:
                return first
        batch = self._read(at)
        order = rows.sort_indices(batch.columns, self.schema.types)
        order = self._repeat_rows(order, batch.diff[order], limit)
        return named_tuples([rows.take(c, order) for c in batch.columns], self.schema, len(order))

    @enough_memory(_failed_read_text, _FEWER)
    def count(self, at: Any = None) -> int:
        """The number of rows, duplicates included.

        Raises:
            NegativeMultiplicityError: if the count of a row is below 0.

        Cost: a lookup of the rows that were removed since the previous call. At a past epoch, also
        a lookup of the rows that have changed since that epoch.

        Examples:
            >>> flights.count(), flights.count(at=0)
            (3, 0)
        """
        total = self._host.apply_to_trace(self._definition, stats.row_count, at)
        return _total(self._read(at).diff) if total is None else total

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        return True

    @enough_memory(_failed_read_text, _FEWER)
    def head(self, n: int = 10, by: str | None = None) -> list[Any]:
        """The first `n` rows in canonical order, or in another: `by="x desc, y nulls last"`.

        Args:
            by: columns or Spark SQL expressions, as in `Grouped.top`. By default nulls come first
                in ascending order, and last in descending order.

        Raises:
            NegativeMultiplicityError: if the count of any row is below 0, even if that row is not
                among the first `n`.

        Cost: that of `rows(limit=n)` if `by` has only columns. With expressions, `nulls first` or
        `nulls last` in `by`, all rows are sorted: O(m log m) for m rows.

        Examples:
            >>> flights.head(1, by="delay desc")
            [Row(carrier='AA', day=1, delay=75.0)]
        """
        definition, ordering, flags = self._ordered(by)
        if definition is self._definition and not flags:
            first = self._first(max(n, 0), ordering)
            if first is not None:
                return first
        host = self._host
        batch = host.read(definition, None)
        refuse_negative(
            batch, self._title(), lambda: host.epoch(None), lambda: host.repair(definition)
        )
        masks = [rows.null_mask(batch.columns[place]) for place in flags]
        absent = np.zeros(len(batch), np.bool_)
        columns = [*batch.columns, *(absent if mask is None else mask for mask in masks)]
        types = [*definition.schema.types, *("boolean" for _ in masks)]
        order = ordered(columns, types, ordering)
        order = self._repeat_rows(order, batch.diff[order], n)
        own = batch.columns[: len(self.schema)]
        return named_tuples([rows.take(c, order) for c in own], self.schema, len(order))

    def _ordered(self, by: str | None) -> tuple[Definition, list[tuple[int, bool]], list[int]]:
        """Returns a definition with all values that an order needs, the order, and null flags.

        A null flag is an additional column that is True where another column is null. It precedes
        that column in the order if nulls come first in descending order, or last in ascending
        order. The third result has the positions of the columns that need a flag.
        """
        own, text = self._definition, by or ""
        plain = _plain_order(text, self.schema)
        if plain is not None:
            return own, plain, []
        definition, order = ordered_by(own, text, "head", self._host.types)
        ordering: list[tuple[int, bool]] = []
        flags: list[int] = []
        for place, descending, nulls_first in order:
            if nulls_first is descending:
                ordering.append((len(definition.schema) + len(flags), nulls_first))
                flags.append(place)
            ordering.append((place, descending))
        return definition, ordering, flags

    def _first(self, n: int, ordering: Ordering, at: Any = None) -> list[Any] | None:
        """Returns the first `n` rows in an order; None if that requires merging all layers."""
        host, definition = self._host, self._definition
        batch = host.apply_to_trace(definition, lambda trace: first_rows(trace, n, ordering), at)
        if batch is None:
            return None
        order = self._repeat_rows(np.arange(len(batch.diff)), batch.diff, n)
        return named_tuples([rows.take(c, order) for c in batch.columns], self.schema, len(order))

    @enough_memory(_failed_read_text, _FEWER)
    def to_arrow(self, at: Any = None) -> pa.Table:
        """The rows as an Arrow table, with duplicates repeated, in no particular order.

        Examples:
            >>> late.to_arrow().column_names
            ['carrier', 'day', 'delay']
        """
        batch = self._read(at)
        self._check_size(_total(batch.diff))
        columns = batch.columns
        if not bool((batch.diff == 1).all()):
            self._check_memory(batch)
            index = np.arange(len(batch)).repeat(batch.diff)
            columns = [rows.take(c, index) for c in columns]
        arrays = [rows.to_arrow(c, t) for c, t in zip(columns, self.schema.types, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self.schema.arrow)

    @enough_memory(_failed_read_text, _FEWER)
    def to_pandas(self, at: Any = None, types: str = "numpy") -> Any:
        """The rows as a pandas DataFrame, with duplicates repeated, in no particular order.

        Args:
            types: `"numpy"`, or `"arrow"` for Arrow-backed columns, which represent every value
                exactly. numpy has no null: an integer column with nulls becomes a float column, and
                null becomes NaN. An input rejects such a frame if the original values cannot be
                restored from it.

        Raises:
            SchemaError: if numpy cannot hold a value, such as a date after the year 9999.

        Examples:
            >>> late.to_pandas()["delay"].mean()
            np.float64(47.5)
        """
        return to_frame(self.to_arrow(at), types)

    def to_spark(self, at: Any = None) -> Any:
        """The rows as a DataFrame of the session's Spark session, with duplicates repeated.

        Examples:
            >>> late.to_spark().groupBy("carrier").count().collect()
            [Row(carrier='UA', count=1), Row(carrier='AA', count=1)]
        """
        return self._host.frame(self._definition, at)

    @enough_memory(_failed_read_text, _FEWER)
    def changes(
        self, after: Any = None, upto: Any = None, *, images: bool | str | Sequence[str] = False
    ) -> pa.Table:
        """Net changes of the epochs in `(after, upto]`: the columns, and last `diff`.

        If the collection already has a column `diff`, the last column is named `diff_`. With
        `images` the last column is `change`: insert, delete, or update_preimage and
        update_postimage for the rows of a key that was updated.

        Args:
            after: the epoch before the first change, or a `position`; `None` means from the
                beginning. A position, or an epoch that `session.now` or `commit()` returned before
                a rewind or a redefinition, still denotes the rows of that time. Any other integer
                is an epoch of the current history and definition.
            upto: the epoch of the last change; `None` means the last epoch.
            images: True pairs rows by the known key, such as that of an input or of `group_by`;
                names of columns pair them by these.

        Raises:
            TimeError: an epoch is not readable, or the rows at the position are not. The hint has a
                position from which to continue.
            SchemaError: columns were removed or changed since the position.

        Cost: in proportion to the changes; after a redefinition, to the rows of both definitions.

        Examples:
            >>> flights.remove([("UA", 1, 20.0)])
            1
            >>> session.commit()
            2
            >>> late.changes(after="monday").to_pylist()
            [{'carrier': 'UA', 'day': 1, 'delay': 20.0, 'diff': -1}]
            >>> late.changes(after="monday", images="carrier")["change"].to_pylist()
            ['delete']
        """
        if images is False:
            return changes_table(self._host.changes(self._definition, after, upto), self.schema)
        key = self._host.key(self._definition)
        by = image_columns(self._title(), self.schema, images, key)
        return images_table(self._host.changes(self._definition, after, upto), self.schema, by)

    @property
    def position(self) -> Position:
        """The position of the stage or input at its last epoch, for `changes(after=)`.

        It remains unambiguous after rewinds and redefinitions. `str()` and `Position.parse` convert
        it to text and back.

        Raises:
            StageError: the collection is not a stage or input.

        Examples:
            >>> position = late.position
            >>> late.changes(after=position).num_rows
            0
        """
        return self._host.position(self._definition)

    def history(self) -> list[range]:
        """The readable epochs, as ranges.

        Examples:
            >>> late.history()
            [range(0, 2)]
        """
        return self._host.history(self._definition)

    def explain(self) -> ExplainOutput:
        """Explains the computation: the plan from the result down to its inputs, with the reasons.

        The result is a text; a notebook shows it with sections that open and close. It lists the
        columns that each operator reads or drops, and the filters that were moved. It lists the
        rows to which the work of an update is proportional, and the expressions that wait for
        Spark. It lists each arrangement that is maintained for lookups, with its stages, rows and
        bytes. For each input, it lists the lookups that a change of the input causes, and the
        operators that the change reaches.

        A collection that is not a stage is explained as if it became one, and nothing is defined.
        The sizes of the arrangements that do not exist yet are estimates.

        Cost: O(operators of the collection + nodes of the session). For a collection that is not a
        stage, also its compilation and 1,024 rows of each input.

        Examples:
            >>> print(late.explain())
            late ...
              filter delay > 15
              flights
            ...
        """
        return self._host.explain(self._definition)

    def _sample(self, limit: int) -> list[Any]:
        """Returns up to `limit` current rows, to infer a schema from a function's results."""
        batch = self._host.read(self._definition, None)
        index = np.arange(min(limit, len(batch)))
        return named_tuples([rows.take(c, index) for c in batch.columns], self.schema, len(index))

    def _read(self, at: Any) -> Batch:
        """Returns the consolidated rows at an epoch; raises if a count is negative."""
        batch = self._host.read(self._definition, at)
        host, definition = self._host, self._definition
        refuse_negative(
            batch, self._title(), lambda: host.epoch(at), lambda: host.repair(definition)
        )
        return batch

    def _repeat_rows(self, order: Any, counts: Any, limit: int | None) -> Any:
        """Repeats each position of `order` by its count; returns at most `limit` positions."""
        if limit is not None:
            return order.repeat(np.minimum(counts, max(limit, 0)))[:limit]
        if len(counts) and int(counts.max()) > self._host.collect_rows:
            self._check_size(_total(counts))
        return order.repeat(counts)

    def _check_size(self, count: int) -> None:
        """Raises StageError if there are more rows than a read may return."""
        most = self._host.collect_rows
        if count > most:
            raise StageError(
                f"'{self.name or 'collection'}' has {count} rows, more than"
                f" session.collect_rows = {most}",
                hint="use .to_spark(), or raise session.collect_rows",
            )

    def _check_memory(self, batch: Batch) -> None:
        """Raises MemoryError if the rows with their duplicates do not fit into free memory.

        Failure: a row of a log has a count of some millions, which takes a few bytes in the log.
        The operating system grants more memory than it has, and kills the process when it writes
        the copies. So the size is checked first.
        """
        needed = copied_bytes(batch.columns, self.schema.types, batch.diff)
        if needed > _SMALL_BYTES and needed > free_bytes():
            raise MemoryError(f"{needed} bytes of rows")

    def _title(self) -> str:
        return result_title(self.name)

    def __repr__(self) -> str:
        title, stopped = self.name or "collection", self._host.why_stopped(self._definition)
        mark = "" if stopped is None else f"; {stopped}"
        return one_line(f"<{title}: {self.schema.ddl}{mark}>")


def result_title(name: str | None) -> str:
    """Returns the phrase for a collection in an error message."""
    return f"collection '{name}'" if name else "an unnamed collection"


def refuse_negative(
    batch: Batch, title: str, epoch: Callable[[], int], repair: Callable[[], str]
) -> None:
    """Raises NegativeMultiplicityError if the count of a row is below 0.

    Args:
        batch: the consolidated rows at an epoch.
        title: the phrase for the collection.
        epoch: returns the epoch that was read.
        repair: returns the command that repairs the count.
    """
    if len(batch) and int(batch.diff.min()) < 0:
        worst = int(batch.diff.argmin())
        columns = [rows.slice_(c, worst, worst + 1) for c in batch.columns]
        raise NegativeMultiplicityError(
            f"{title}: row {row_text(columns, batch.layout.types)} has a count of"
            f" {int(batch.diff[worst])} at epoch {epoch()}: it was removed more often than"
            " inserted",
            hint=repair(),
        )


def changes_table(batch: Batch, schema: Schema) -> pa.Table:
    """Returns changes as an Arrow table with a last column `diff`, or `diff_` if that exists."""
    arrays = [rows.to_arrow(c, t) for c, t in zip(batch.columns, schema.types, strict=True)]
    diffs = rows.to_arrow(batch.diff, "bigint")
    last = pa.field(schema.unused("diff"), pa.int64())
    return pa.Table.from_arrays([*arrays, diffs], schema=schema.arrow.append(last))


def _total(counts: Any) -> int:
    """Returns the sum of counts, without overflow beyond 64 bits."""
    if len(counts) and int(counts.max()) > 2**62 // len(counts):
        return sum(counts.tolist())
    return int(counts.sum())


def _plain_order(by: str, schema: Schema) -> list[tuple[int, bool]] | None:
    """Parses an order such as `"x desc, y"` to pairs of column position and descending flag.

    Returns None if a term is not a plain column. An exact column name always means the column, even
    if it also reads like an expression.
    """
    result = []
    for part in filter(None, map(str.split, by.split(","))):
        name, *direction = part
        if len(direction) > 1 or (direction and direction[0].lower() not in ("asc", "desc")):
            return None
        if name not in schema.names and not name.isidentifier():
            return None
        result.append((name, bool(direction) and direction[0].lower() == "desc"))
    return [(schema.index(name), descending) for name, descending in result]


class CollectionAtEpoch(SessionBound, ArrowStream):
    """The result of `collection.at(epoch)`: an Arrow stream, with the reads of a collection.

    Every read raises TimeError if the epoch is no longer readable. Each read costs as much as that
    of the collection with `at`. An operator that gets it as an argument copies its rows into the
    definition, which does not need the epoch any more.
    """

    def __init__(self, collection: Readable, point: ResolvedEpoch) -> None:
        self._collection = collection
        self._point = point
        self._host = session_of(collection)
        self._copied: Definition | None = None

    @property
    def _definition(self) -> Definition:  # type: ignore[override]
        """A constant definition of the rows; reads and copies them once."""
        if self._copied is None:
            host, read, epoch = self._host, definition_of("at", self._collection), self.epoch
            batch = host.read(read, epoch)
            title = result_title(self.name)
            refuse_negative(batch, title, lambda: epoch, lambda: host.repair(read))
            name = self.name or "a collection"
            self._copied = constant_definition(self.schema, batch.updates, name, epoch)
        return self._copied

    @property
    def epoch(self) -> int:
        """The epoch that is read.

        Raises:
            TimeError: if the session was rewound to before this epoch. After that, a different
                epoch may have the same number.
        """
        title = result_title(self._collection.name)
        return session_of(self._collection).epoch_unless_undone(self._point, title)

    @property
    def name(self) -> str | None:
        """The name of the collection, if it has one."""
        return self._collection.name

    @property
    def schema(self) -> Schema:
        """The columns and their types."""
        return self._collection.schema

    def rows(self, limit: int | None = None) -> list[Any]:
        """The rows as named tuples in canonical order; see `Collection.rows`."""
        return self._collection.rows(self.epoch, limit)

    def count(self) -> int:
        """The number of rows, duplicates included."""
        return self._collection.count(self.epoch)

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        return True

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table; see `Collection.to_arrow`."""
        return self._collection.to_arrow(self.epoch)

    def to_pandas(self, types: str = "numpy") -> Any:
        """The rows as a pandas DataFrame."""
        return self._collection.to_pandas(self.epoch, types)

    def to_spark(self) -> Any:
        """The rows as a DataFrame of the session's Spark session."""
        return self._collection.to_spark(self.epoch)

    def __repr__(self) -> str:
        title = self.name or "collection"
        return one_line(f"<{title} at epoch {self._point.epoch}: {self.schema.ddl}>")
