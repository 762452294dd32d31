"""Collections: multisets of rows that change over epochs, with a fluent API of lazy operators.

Operators run when a collection is named as a stage or read. Row expressions are Spark SQL strings
or Python functions of a row. Every operator returns a new Collection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from nosync_nb.collections import (
    conditional_joins,
    hints,
    joins,
    loops,
    row_expressions,
    windowed,
)
from nosync_nb.collections.definition import Definition
from nosync_nb.collections.group_definitions import (
    aggregate_definition,
    first_rows_definition,
    reduce_definition,
)
from nosync_nb.collections.readable import CollectionAtEpoch, Readable
from nosync_nb.collections.row_expressions import as_entries
from nosync_nb.collections.session_protocol import (
    SessionProtocol,
    definition_of,
    session_of,
)
from nosync_nb.errors import MisuseError, SchemaError
from nosync_nb.operators.user_functions import check_callable, result_schema
from nosync_nb.rows import Field, Schema


class Collection(Readable):
    """A multiset of rows, described by operators over inputs and stages.

    Get one from `session.input`, `session.stage` or `session["name"]`, and chain operators.

    Examples:
        >>> slow = session.stage("slow", flights.filter("delay > 60"))
        >>> slow.rows()
        [Row(carrier='AA', day=1, delay=75.0)]
    """

    def at(self, epoch: Any) -> CollectionAtEpoch:
        """The collection at an epoch, which later commits do not change.

        It can be an argument of an operator or of `session.stage`, which copies its rows: at most
        16 MiB compressed in the definition of a stage.

        Examples:
            >>> monday = flights.at("monday")
            >>> flights.clear(), session.commit()
            (3, 2)
            >>> len(flights), len(monday)
            (0, 3)
            >>> monday_and_now = session.stage("both", flights.concat(monday))
            >>> len(monday_and_now)
            3
        """
        return CollectionAtEpoch(self, self._host.pinpoint(epoch))

    # -- row-wise ------------------------------------------------------------------------------

    def filter(self, predicate: str | Callable[[Any], Any]) -> Collection:
        """Keeps the rows that satisfy a SQL predicate or a function of the row.

        A function is captured in its current state, together with the values that it uses. Later
        changes of these values have no effect on it. All operators capture functions in this way.

        Raises:
            ExpressionError: if the SQL predicate is invalid or is not boolean.

        Examples:
            >>> flights.filter("delay > 60").rows()
            [Row(carrier='AA', day=1, delay=75.0)]
            >>> flights.filter(lambda row: row.delay > 60).count()
            1
        """
        if callable(predicate):
            return self._apply("filter", functions=(predicate,))
        return self._collection(
            row_expressions.filter_definition(self._definition, predicate, self._host.types)
        )

    where = filter

    def select(self, *expressions: str) -> Collection:
        """Computes the output columns; `*` stands for all, `e AS name` names an expression.

        One of the expressions may generate a row for each element of an array or a map:
        `explode(a) AS x`, `posexplode(m) AS (pos, k, v)`, `inline(structs)`. The `_outer` variants
        also generate one row, with nulls, if there are no elements.

        Examples:
            >>> flights.select("carrier", "delay / 60 AS hours").head(1)
            [Row(carrier='AA', hours=0.08333333333333333)]
        """
        return self._collection(
            row_expressions.select_definition(self._definition, expressions, self._host.types)
        )

    def with_columns(self, columns: Mapping[str, str] | None = None, /, **named: str) -> Collection:
        """Adds or replaces columns: `with_columns(gain="dep_delay - arr_delay")`, or a dict.

        Examples:
            >>> flights.with_columns(hours="delay / 60").head(1)
            [Row(carrier='AA', day=1, delay=75.0, hours=1.25)]
        """
        if isinstance(columns, str):
            hints.unnamed_column_error("with_columns", columns)
        columns = {**(columns or {}), **named}
        return self._collection(
            row_expressions.with_columns_definition(self._definition, columns, self._host.types)
        )

    def drop(self, *columns: str) -> Collection:
        """Removes columns.

        Examples:
            >>> flights.drop("day", "delay").rows()
            [Row(carrier='AA'), Row(carrier='AA'), Row(carrier='UA')]
        """
        return self._collection(row_expressions.drop_columns_definition(self._definition, columns))

    def rename(self, columns: Mapping[str, str] | None = None, /, **named: str) -> Collection:
        """Renames columns: `rename({"old": "new"})`.

        Examples:
            >>> flights.rename({"delay": "minutes"}).schema.names
            ('carrier', 'day', 'minutes')
        """
        return self._collection(
            row_expressions.rename_columns_definition(
                self._definition, {**(columns or {}), **named}
            )
        )

    def map(self, function: Callable[[Any], Any], schema: str | Schema | None = None) -> Collection:
        """Calls a deterministic function on each row, a named tuple; it returns a tuple.

        Args:
            schema: the columns of the result as Spark DDL. By default they are inferred from the
                results for some existing rows.

        Examples:
            >>> flights.map(lambda row: (row.carrier, row.delay / 60), "c string, h double").head(1)
            [Row(c='AA', h=0.08333333333333333)]
        """
        output = result_schema(function, schema, self._sample, many=False)
        return self._apply("map", output, functions=(function,))

    def flat_map(
        self, function: str | Callable[[Any], Any], schema: str | Schema | None = None
    ) -> Collection:
        """Calls a deterministic function on each row; it yields any number of tuples.

        A Spark SQL expression that generates rows is also accepted: `"explode(a) AS x"`. The result
        then has all columns of the row, and the new ones, like `LATERAL VIEW`; see `select`.

        Examples:
            >>> flights.flat_map(lambda row: [(row.carrier,)] * row.day, "c string").count()
            4
            >>> flights.flat_map("explode(sequence(1, day)) AS n").count()
            4
        """
        if isinstance(function, str):
            return self._collection(
                row_expressions.repeat_definition(self._definition, function, self._host.types)
            )
        output = result_schema(function, schema, self._sample, many=True)
        return self._apply("flat_map", output, functions=(function,))

    # -- multisets -----------------------------------------------------------------------------

    def concat(self, *others: Collection) -> Collection:
        """The sum of collections: the count of a row is the sum of its counts in all of them.

        Examples:
            >>> flights.concat(late).count()
            5
        """
        return self._combine("concat", *others)

    union_all = concat
    union = concat

    def negate(self) -> Collection:
        """Negates every count; the result can be read only after it is added to a collection.

        Examples:
            >>> flights.concat(late.negate()).rows()
            [Row(carrier='AA', day=2, delay=5.0)]
        """
        return self._apply("negate")

    def distinct(self) -> Collection:
        """Each row once.

        Examples:
            >>> flights.select("carrier").distinct().rows()
            [Row(carrier='AA'), Row(carrier='UA')]
        """
        return self._apply("distinct")

    def except_all(self, other: Collection) -> Collection:
        """Counts minus the other's counts, never below 0 (Spark's EXCEPT ALL).

        Examples:
            >>> flights.select("carrier").except_all(late.select("carrier")).rows()
            [Row(carrier='AA')]
        """
        return self._combine("except_all", other)

    def subtract(self, other: Collection) -> Collection:
        """The distinct rows that are not in the other (Spark's EXCEPT).

        Examples:
            >>> flights.subtract(late).rows()
            [Row(carrier='AA', day=2, delay=5.0)]
        """
        return self._combine("subtract", other)

    def threshold(self, function: Callable[[int], int]) -> Collection:
        """Each row `function(count)` times: `threshold(lambda n: n // 2)`, `threshold(bool)`.

        Args:
            function: a deterministic function. It receives the count of a row, which is always
                above 0. It returns an integer of 0 or more; True and False mean 1 and 0.

        Examples:
            >>> flights.select("carrier").threshold(lambda count: count // 2).rows()
            [Row(carrier='AA')]
        """
        check_callable("threshold", function, "threshold(lambda count: min(count, 3))")
        return self._apply("threshold", functions=(function,))

    def consolidate(self) -> Collection:
        """The same collection, stored as state, so that it passes on no changes that cancel.

        Examples:
            >>> flights.select("carrier").consolidate().count()
            3
        """
        return self._apply("consolidate")

    def multiplicity(self) -> Collection:
        """Each row once, with its count as a last column `count`.

        Examples:
            >>> flights.select("carrier").multiplicity().rows()
            [Row(carrier='AA', count=2), Row(carrier='UA', count=1)]
        """
        schema = row_expressions.checked_unambiguous(
            [*self.schema.fields, Field("count", "bigint")], "multiplicity"
        )
        return self._apply("multiplicity", schema)

    def inspect(self, function: Callable[[int, Any], Any] | None) -> Collection:
        """Calls a function after each epoch that changes this collection.

        `function(epoch, changes)` receives the consolidated changes as an Arrow table, in the
        format of `changes`. It is called when the epoch is visible, and only for epochs of this
        kernel. An error in the function becomes a warning. A second call of `inspect` replaces the
        function, and None removes it. For a collection without a name, the calls begin when it is
        named as a stage.

        Raises:
            StageError: if `inspect` is called inside the body of a loop; or later, if a stage uses
                an inspected collection that has no name.

        Examples:
            >>> late.inspect(lambda epoch, changes: print(epoch, changes["delay"].to_pylist()))
            <late: carrier string, day int, delay double>
            >>> flights.insert([("UA", 2, 30.0)])
            1
            >>> session.commit()
            2 [30.0]
            2
        """
        self._host.inspect(self._definition, function)
        return self

    # -- loops ---------------------------------------------------------------------------------

    def iterate(
        self, body: Callable[[Collection], Collection], rounds: int | None = None
    ) -> Collection:
        """Starts from this collection and applies `body` until the result does not change.

        Args:
            body: a function that receives the loop's variable and returns its next value, with the
                same schema. It is called once, and describes every round. It may use other
                collections, and contain further loops.
            rounds: the number of times to apply the body; by default until nothing changes.

        Raises:
            StageError: if the body does not use its variable, or `rounds` is below 1.
            SchemaError: if the body returns other columns.
            DivergenceError: at a commit, if the loop does not converge.

        Cost: an epoch costs the changes of each round, not the size of the collection.

        Examples:
            >>> days = flights.select("day")
            >>> upto3 = days.iterate(
            ...     lambda d: d.concat(d.filter("day < 3").select("day + 1 AS day")).distinct()
            ... )
            >>> [row.day for row in upto3.rows()]
            [1, 2, 3]
        """
        wrap = partial(Collection, self._host)
        return wrap(loops.iterate_definition(self._host, wrap, self._definition, body, rounds))

    # -- keyed ---------------------------------------------------------------------------------

    def group_by(self, *keys: str) -> Grouped:
        """Groups by columns, for `.agg`, `.count`, `.reduce`, `.top` or `.rank` to follow.

        Args:
            keys: columns, as in `group_by("a", "b")` or `group_by("a, b")`. Or Spark SQL
                expressions with a name, as in `group_by("cast(x as int) * 5 AS bucket")`; each
                becomes a column.

        Raises:
            SchemaError: if a column is unknown, a name occurs twice, or a key holds a map.
            ExpressionError: if an expression has no name or is invalid.

        Examples:
            >>> flights.group_by("carrier").agg(n="count(*)", worst="max(delay)").rows()
            [Row(carrier='AA', n=2, worst=75.0), Row(carrier='UA', n=1, worst=20.0)]
        """
        definition, places = row_expressions.keyed(self._definition, keys, self._host.types)
        return Grouped(self._collection(definition), places)

    groupBy = group_by  # noqa: N815 - the spelling Spark users bring

    def agg(self, **named: str) -> Collection:
        """Aggregates over all rows; the result has one row.

        Examples:
            >>> flights.agg(n="count(*)", average="avg(delay)").rows()
            [Row(n=3, average=33.333333333333336)]
        """
        return self.group_by().agg(**named)

    def join(
        self,
        other: Collection,
        on: joins.On = None,
        how: str = "inner",
        *,
        where: str | None = None,
    ) -> Collection:
        """Joins on equal keys, on a condition, or on both.

        Null keys match nothing, NaN matches NaN.

        Args:
            on: a column, a list of columns, or a dict left -> right whose sides are columns or
                Spark SQL expressions: `on={"lower(name)": "name"}`. Keys of two types match if one
                of the types can represent all values of the other, such as int and bigint.
            how: inner, left, right, full, semi, anti or cross. A cross join has no `on` and pairs
                all rows; it fails if an epoch has more than 5 million pairs.
            where: a Spark SQL condition on the columns of both sides, which each pair also
                satisfies: `where="at BETWEEN start AND stop"`. A column that both sides have is
                written `left.at` or `right.at`.

        Returns:
            the left columns, then the right columns without keys; for semi and anti joins only the
                left columns. A key column has its left name. In right and full joins, a row without
                a left partner has the right key there. Computed keys are not in the result. A right
                key column that matches a left expression is in the result of right and full joins
                only.

        Raises:
            SchemaError: if keys differ in type or column names clash.
            SqlError: if the condition is invalid; shows the join as SQL, with a caret.

        Cost: in proportion to the pairs that change. A comparison with a value of the other side
        (`<`, `<=`, `>`, `>=`, `BETWEEN`, `abs(x - y) < 5`) is found through an ordered
        arrangement. With neither a key nor such a comparison, an epoch compares each changed row
        with all rows of the other side, at most 5 million pairs.

        Examples:
            >>> late.join(airlines, on="carrier").select("name", "delay").rows()
            [Row(name='American', delay=75.0), Row(name='United', delay=20.0)]
            >>> shorter = flights.select("carrier AS other", "delay AS least")
            >>> flights.join(shorter, where="delay > least AND carrier <> other").count()
            2
        """
        right = definition_of("join", other, self._host)
        if where is not None:
            made = conditional_joins.conditional_join_definition(
                self._definition, right, on, how, where, self._host.types
            )
            return self._collection(made)
        return self._collection(
            joins.join_definition(self._definition, right, on, how, self._host.types)
        )

    def window(
        self,
        partition_by: str | Sequence[str] | None = None,
        order_by: str | Sequence[str] | None = None,
        *,
        rows_between: tuple[Any, Any] | None = None,
        range_between: tuple[Any, Any] | None = None,
        groups_between: tuple[Any, Any] | None = None,
    ) -> windowed.Windowed[Collection]:
        """Defines a window over the rows around each row, for `.with_columns` to follow.

        Args:
            partition_by: columns or named expressions, as in `group_by`; by default all rows are
                one partition.
            order_by: columns or Spark SQL expressions, as in `"x desc, y nulls last"`. Ties are
                broken by the whole row in canonical order.
            rows_between: the frame in rows relative to the row: `(-10, 0)` is ten rows before it up
                to it, and None unbounded, as in `(None, 0)`.
            range_between: the frame in values of `order_by`: `(-10, 10)`, or times as
                `(timedelta(days=-7), 0)` or `("-interval 1 month", 0)`. 0 is the first or the last
                row with an equal order.
            groups_between: the frame in groups of rows that are equal by `order_by`.

        Without a frame, aggregates and values read the rows from the first of the partition to the
        last one that is equal by the order; without an order the whole partition.

        Raises:
            SchemaError: if a column is unknown, or a partition is by a map.
            ExpressionError: if an expression, an order or a frame is invalid.

        Examples:
            >>> flights.window(partition_by="carrier", order_by="day").with_columns(
            ...     total="sum(delay)"
            ... ).select("carrier", "day", "total").rows()
            [Row(carrier='AA', day=1, total=75.0), Row(carrier='AA', day=2, total=80.0), \
Row(carrier='UA', day=1, total=20.0)]
        """
        frames = {
            "rows_between": rows_between,
            "range_between": range_between,
            "groups_between": groups_between,
        }
        return windowed.windowed(
            self._definition, partition_by, order_by, frames, self._host.types, self._collection
        )

    # -- helpers -------------------------------------------------------------------------------

    def _collection(self, definition: Definition) -> Collection:
        return Collection(self._host, definition)

    def _apply(
        self,
        op: str,
        schema: Schema | None = None,
        functions: tuple[Callable[..., Any], ...] = (),
    ) -> Collection:
        return self._collection(self._definition.then(op, schema, None, functions))

    def _combine(self, op: str, *others: Any) -> Collection:
        """Returns an operator over this and other collections, converted to this one's types."""
        mine = self._definition
        theirs = [definition_of(op, each, self._host) for each in others]
        parts = [row_expressions.aligned_schemas(mine, each, op) for each in theirs]
        return self._collection(Definition(op, self.schema, (mine, *parts)))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        hints.missing_attribute_error(name, self.schema.names, dir(type(self)))

    def __getitem__(self, name: Any) -> Any:
        raise MisuseError(
            "a collection is not indexed", hint=f"name columns in SQL strings: select({name!r})"
        )

    def __iter__(self) -> Iterator[Any]:
        raise MisuseError("a collection is not a list", hint="iterate over its .rows()")


class Grouped:
    """A collection grouped by columns; ends in `.agg`, `.count`, `.reduce`, `.top` or `.rank`.

    Examples:
        >>> flights.group_by("carrier").agg(total="sum(delay)").rows()
        [Row(carrier='AA', total=80.0), Row(carrier='UA', total=20.0)]
    """

    def __init__(self, collection: Collection, keys: list[int]) -> None:
        self._host = session_of(collection)
        self._source = definition_of("group_by", collection)
        self._keys = check_keys(collection.schema, keys)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        hints.missing_grouped_attribute_error(name, dir(type(self)))

    def agg(self, *unnamed: Any, **named: str) -> Collection:
        """SQL aggregates: `agg(n="count(*)", late="avg(dep_delay)")`.

        Supported are count, count_if, sum, avg, try_sum, try_avg, min, max, stddev, variance
        (`_samp`, `_pop`), skewness, kurtosis, corr, covar_pop, covar_samp, the regr_ functions,
        min_by, max_by, bool_and, bool_or, bit_and, bit_or, bit_xor, approx_count_distinct (exact),
        median, mode, percentile, approx_percentile (exact), percentile_cont, percentile_disc,
        listagg, product (of doubles), collect_list and collect_set, and Spark's synonyms for them.
        They may be combined with `distinct` and `filter (where ...)`. Results that Spark leaves
        undefined are deterministic: lists are sorted; if several rows have the extreme order,
        min_by returns the least value of these rows, and max_by the greatest.

        Returns:
            the keys, then one column for each name. Values may be expressions over aggregates.

        Raises:
            ExpressionError: for an unknown aggregate, or an argument of an unsupported type; at a
                commit if a sum or average exceeds the range of its type.

        Cost: O(log rows) for each change, even in a group of a million rows. Lists, medians, modes,
        percentiles and products read the whole group. So do min, max, min_by and max_by if the
        extreme value itself is removed, and others begin alike (texts with the same first 8 bytes,
        equal orders).

        Examples:
            >>> by_day = flights.group_by("day")
            >>> by_day.agg(late="count_if(delay > 15)", average="avg(delay)").rows()
            [Row(day=1, late=2, average=47.5), Row(day=2, late=0, average=5.0)]
        """
        if unnamed:
            hints.unnamed_column_error("agg", unnamed[0])
        types = self._host.types
        return self._collection(aggregate_definition(self._source, self._keys, named, types))

    def count(self) -> Collection:
        """The number of rows of each group, as column `count`.

        Examples:
            >>> flights.group_by("carrier").count().rows()
            [Row(carrier='AA', count=2), Row(carrier='UA', count=1)]
        """
        return self.agg(count="count(*)")

    def reduce(self, function: Callable[[Any, list[Any]], Any], schema: str | Schema) -> Collection:
        """Calls `function(key, rows)` for each group; it yields tuples of `schema`.

        Args:
            function: a deterministic function. It receives the key (a value, or a named tuple of
                several values), and the group's rows as named tuples in canonical order, with
                duplicates repeated. A row with a negative count (removed before it was inserted) is
                omitted until its count is above 0. The function is not called for an empty group.
            schema: the columns of the tuples as Spark DDL; the output has the keys before them.

        Examples:
            >>> def span(carrier, rows):
            ...     delays = [row.delay for row in rows]
            ...     yield (max(delays) - min(delays),)
            >>> flights.group_by("carrier").reduce(span, "span double").rows()
            [Row(carrier='AA', span=70.0), Row(carrier='UA', span=0.0)]
        """
        return self._collection(reduce_definition(self._source, self._keys, function, schema))

    def top(self, k: int, by: str | None = None, offset: int = 0) -> Collection:
        """The first `k` rows of each group, duplicates included, after skipping `offset` rows.

        Args:
            by: columns or Spark SQL expressions, as in `"x desc, y nulls last"`. By default nulls
                come first in ascending order, and last in descending order. Ties are broken by the
                whole row in canonical order, which is also the order for `by=None`.

        Returns:
            the same columns. After `group_by()` without keys, all rows are one group.

        Cost: O(k + offset) rows for each group that changes, whatever its size. In addition, the
        rows whose order begins with the same 64 bits as that of the last result row (a bigint, a
        timestamp, or the first 8 bytes of a text).

        Examples:
            >>> flights.group_by("carrier").top(1, by="delay desc").rows()
            [Row(carrier='AA', day=1, delay=75.0), Row(carrier='UA', day=1, delay=20.0)]
        """
        return self._first(k, by, offset)

    def rank(self, by: str, k: int, name: str = "rank", offset: int = 0) -> Collection:
        """The rows of `top(k, by, offset)` with their rank, as Spark's `rank()`: ties share it.

        Returns:
            the columns, and the rank as column `name`; ranks begin at 1.

        Examples:
            >>> flights.group_by("day").rank("delay desc", 1).select("day", "delay", "rank").rows()
            [Row(day=1, delay=75.0, rank=1), Row(day=2, delay=5.0, rank=1)]
        """
        return self._first(k, by, offset, rank=name)

    def _first(self, k: int, by: str | None, offset: int, rank: str | None = None) -> Collection:
        types = self._host.types
        rows = first_rows_definition(self._source, self._keys, k, by, offset, types, rank=rank)
        return self._collection(rows)

    def _collection(self, definition: Definition) -> Collection:
        return Collection(self._host, definition)


def iterate_together(
    host: SessionProtocol, body: Callable[..., Any], rounds: int | None, sources: Mapping[str, Any]
) -> dict[str, Collection]:
    """Builds a loop over several variables; see `Session.iterate`."""
    wrap = partial(Collection, host)
    values = loops.mutual_iterate_definitions(host, wrap, sources, body, rounds)
    return {name: wrap(each) for name, each in zip(sources, values, strict=True)}


def check_keys(schema: Schema, keys: list[int]) -> list[int]:
    """Returns the keys; raises SchemaError if one of the columns contains a map."""
    for name, type_ in (schema.fields[i] for i in keys):
        if "map<" in type_:
            raise SchemaError(
                f"group_by: '{name}' is a map, and maps cannot be keys",
                hint=f"group by its entries: group_by({as_entries(name, type_) + ' AS entries'!r})",
            )
    return keys
