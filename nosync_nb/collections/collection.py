"""Collection: the lazy, fluent description of a multiset of rows that changes over epochs.

Operators describe; nothing runs until a collection is named as a stage or read. Row expressions
are Spark SQL strings or Python functions of a row. Every method returns a new Collection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.grouped import check_callable, result_schema
from nosync_nb.collections.host import Host
from nosync_nb.collections.results import Readable
from nosync_nb.errors import ExpressionError, SchemaError, StageError
from nosync_nb.expressions import compile_expression, expand_select, noted
from nosync_nb.rows import Field, Schema, widens

if TYPE_CHECKING:
    from nosync_nb.collections.grouped import Grouped

Names = str | Sequence[str]
_NAMES = {
    "groupBy": "group_by",
    "groupby": "group_by",
    "withColumn": "with_columns(name='...')",
    "withColumns": "with_columns(name='...')",
    "unionAll": "union_all",
    "exceptAll": "except_all",
    "dropDuplicates": "distinct",
    "crossJoin": "join(other, how='cross')",
    "limit": "group_by().top(n, by='...')",
    "orderBy": "head(n, by='...')",
    "sort": "head(n, by='...')",
    "toPandas": "to_pandas",
    "collect": "rows",
    "show": "head",
    "withColumnRenamed": "rename({'old': 'new'})",
}


class Collection(Readable):
    """A multiset of rows, described by operators over inputs and stages.

    Get one from `session.input`, `session.stage` or `session["name"]`, and chain operators.
    """

    def __init__(self, host: Host, definition: Definition) -> None:
        self._host = host
        self._definition = definition

    @property
    def schema(self) -> Schema:
        """The columns and their Spark types."""
        return self._definition.schema

    @property
    def name(self) -> str | None:
        """The stage's or input's name, None for an unnamed collection."""
        return self._host.name_of(self._definition)

    # -- row-wise ------------------------------------------------------------------------------

    def filter(self, predicate: str | Callable[[Any], Any]) -> Collection:
        """Keeps the rows for which a SQL predicate, or a function of the row, is true.

        A function, here as everywhere, is taken as it is now, with the values it captures: what
        becomes of them later does not reach it.

        Raises:
            ExpressionError: if the SQL cannot be understood or is not boolean.
        """
        if callable(predicate):
            return self._then("filter", self.schema, {}, (predicate,))
        compiled = self._compiled(predicate)
        if compiled.type != "boolean":
            raise ExpressionError(
                f"filter {predicate!r} is of type {compiled.type}, not boolean",
                hint="compare with something, as in filter('delay > 60')",
            )
        params = {"predicate": predicate, **noted([compiled.settings])}
        return self._then("filter", self.schema, params)

    where = filter

    def select(self, *expressions: str) -> Collection:
        """Computes the output columns; `*` stands for all, `e AS name` names an expression."""
        outputs: list[Any] = []
        fields: list[Field] = []
        settings = []
        listed = expand_select(_texts(expressions, "select"), self.schema)
        if not listed:
            raise SchemaError("select: no column is named", hint="name one, as in select('*')")
        for sql in listed:
            compiled = self._compiled(sql)
            if compiled.name is None:
                raise ExpressionError(
                    f"select: {sql!r} has no name", hint=f"write {sql + ' AS name'!r}"
                )
            plain = compiled.is_column
            outputs.append(compiled.columns[0] if plain else sql)
            settings.append(compiled.settings)
            fields.append(Field(compiled.name, compiled.type))
        params = {"outputs": outputs, **noted(settings)}
        return self._then("select", _distinct_names(fields, "select"), params)

    def with_columns(self, columns: Mapping[str, str] | None = None, /, **named: str) -> Collection:
        """Adds or replaces columns: `with_columns(gain="dep_delay - arr_delay")`, or a dict."""
        named = {**(columns or {}), **named}
        outputs: list[Any] = list(range(len(self.schema)))
        fields = list(self.schema.fields)
        settings = []
        for name, sql in named.items():
            compiled = self._compiled(_texts([sql], "with_columns")[0])
            settings.append(compiled.settings)
            field = Field(name, compiled.type)
            place = _place(self.schema, name)
            if place is None:
                outputs.append(sql)
                fields.append(field)
            else:
                outputs[place] = sql
                fields[place] = field
        return self._then("select", Schema(fields), {"outputs": outputs, **noted(settings)})

    def drop(self, *columns: str) -> Collection:
        """The other columns."""
        gone = {self.schema.index(c) for c in columns}
        kept = [i for i in range(len(self.schema)) if i not in gone]
        if not kept:
            raise SchemaError("drop: no column would be left", hint="keep at least one column")
        return self._columns(kept)

    def rename(self, columns: Mapping[str, str] | None = None, /, **named: str) -> Collection:
        """Renames columns: `rename({"old": "new"})`."""
        fields = list(self.schema.fields)
        for old, new in {**(columns or {}), **named}.items():
            place = self.schema.index(old)
            fields[place] = Field(new, fields[place].type)
        schema = _distinct_names(fields, "rename")
        return self._then("select", schema, {"outputs": list(range(len(fields)))})

    def map(self, function: Callable[[Any], Any], schema: str | Schema | None = None) -> Collection:
        """Calls a deterministic function on each row, a named tuple; it returns a tuple.

        Args:
            schema: Spark DDL of the result; if left out, taken from what existing rows give.
        """
        output = result_schema(self, function, schema, many=False)
        return self._then("map", output, {}, (function,))

    def flat_map(
        self, function: Callable[[Any], Any], schema: str | Schema | None = None
    ) -> Collection:
        """Calls a deterministic function on each row; it yields any number of tuples."""
        output = result_schema(self, function, schema, many=True)
        return self._then("flat_map", output, {}, (function,))

    # -- multisets -----------------------------------------------------------------------------

    def concat(self, *others: Collection) -> Collection:
        """The sum of collections: a row is there as often as in all of them together."""
        parts = [self._aligned(o, "concat") for o in others]
        return self._make("concat", self.schema, (self, *parts))

    union_all = concat
    union = concat

    def negate(self) -> Collection:
        """Every count with the opposite sign; can be read only after it is added to something."""
        return self._then("negate", self.schema)

    def distinct(self) -> Collection:
        """Each row once."""
        return self._then("distinct", self.schema)

    def except_all(self, other: Collection) -> Collection:
        """Counts minus the other's counts, never below 0 (Spark's EXCEPT ALL)."""
        return self._make("except_all", self.schema, (self, self._aligned(other, "except_all")))

    def subtract(self, other: Collection) -> Collection:
        """The distinct rows that are not in the other (Spark's EXCEPT)."""
        return self._make("subtract", self.schema, (self, self._aligned(other, "subtract")))

    def threshold(self, function: Callable[[int], int]) -> Collection:
        """Each row `function(count)` times: `threshold(lambda n: n // 2)`, `threshold(bool)`.

        Args:
            function: gets the count of a row, always above 0, and returns an integer, 0 or more
                (or a truth value: once or not at all). Deterministic.
        """
        check_callable("threshold", function, "threshold(lambda count: min(count, 3))")
        return self._then("threshold", self.schema, {}, (function,))

    def consolidate(self) -> Collection:
        """The same collection, kept as state, so that cancelled changes stop here."""
        return self._then("consolidate", self.schema)

    def multiplicity(self) -> Collection:
        """Each row once, with its count as a last column `count`."""
        schema = _distinct_names([*self.schema.fields, Field("count", "bigint")], "multiplicity")
        return self._then("multiplicity", schema)

    def inspect(self, function: Callable[[int, Any], Any] | None) -> Collection:
        """Has a function called with the changes of this collection, after each epoch with some.

        `function(epoch, changes)` gets an Arrow table as `changes` gives it, consolidated. It is
        called after the epoch is visible, with the epochs of this kernel alone; what it raises is
        a warning. Another call replaces it, None removes it. A collection without a name is
        inspected from when it is named as a stage.

        Raises:
            StageError: inside the body of a loop; or later, if a stage uses an inspected
                collection that has no name.
        """
        self._host.inspect(self._definition, function)
        return self

    # -- loops ---------------------------------------------------------------------------------

    def iterate(
        self, body: Callable[[Collection], Collection], rounds: int | None = None
    ) -> Collection:
        """Starts from this collection and applies `body` until nothing changes any more.

        Args:
            body: gets the loop's variable and returns its next value, of the same schema. It is
                called once; other collections may be used inside, and loops nest.
            rounds: apply it so often instead.

        Raises:
            StageError: if the body does not use its variable, or `rounds` is below 1.
            SchemaError: if it returns other columns.
            DivergenceError: at a commit, if the loop does not settle.

        Cost: an epoch costs what changes in each round, not what is there.
        """
        from nosync_nb.collections.loops import iterate

        return iterate(self, body, rounds)

    # -- keyed ---------------------------------------------------------------------------------

    def group_by(self, *keys: str) -> Grouped:
        """Groups by columns, for `.agg`, `.count`, `.reduce`, `.top` or `.rank` to follow."""
        from nosync_nb.collections.grouped import Grouped

        return Grouped(self, [self.schema.index(k) for k in _texts(keys, "group_by")])

    groupBy = group_by  # noqa: N815 - the spelling Spark users bring

    def agg(self, **named: str) -> Collection:
        """Aggregates over all rows: one row."""
        return self.group_by().agg(**named)

    def join(
        self, other: Collection, on: Names | Mapping[str, str] | None = None, how: str = "inner"
    ) -> Collection:
        """Joins on equal keys; null keys match nothing, NaN matches NaN.

        Args:
            on: a column, a list of columns, or a dict left -> right whose sides are columns or
                Spark SQL expressions: `on={"lower(name)": "name"}`. Integers of different width
                match, as do other types of which one holds all values of the other.
            how: inner, left, right, full, semi, anti; or cross, without `on`, which pairs all rows
                and is refused above 5 million of them in an epoch.

        Returns:
            the left columns (keys under the left name, in right and full with the right key where
            there is no left row), then the right ones without keys; semi and anti: the left
            columns. Computed keys do not appear, so the columns they read stay as they are; a
            right key column matched by a left expression appears in right and full only.

        Raises:
            SchemaError: if keys differ in type or column names clash.
        """
        from nosync_nb.collections.joins import join

        return join(self, other, on, how)

    # -- helpers -------------------------------------------------------------------------------

    def _then(
        self,
        op: str,
        schema: Schema,
        params: Mapping[str, Any] | None = None,
        functions: tuple[Callable[..., Any], ...] = (),
    ) -> Collection:
        definition = Definition(op, schema, (self._definition,), params, functions)
        return Collection(self._host, definition)

    def _make(
        self,
        op: str,
        schema: Schema,
        inputs: Sequence[Collection],
        params: Mapping[str, Any] | None = None,
    ) -> Collection:
        definition = Definition(op, schema, tuple(i._definition for i in inputs), params)
        return Collection(self._host, definition)

    def _columns(self, places: Sequence[int]) -> Collection:
        schema = Schema([self.schema.fields[i] for i in places])
        return self._then("select", schema, {"outputs": list(places)})

    def _compiled(self, sql: Any) -> Any:
        if not isinstance(sql, str):
            raise ExpressionError(
                f"{sql!r} is not a Spark SQL string",
                hint="write the expression as text, as in 'dep_delay > 60'",
            )
        types = self._host.types
        return compile_expression(sql, self.schema, types=types, settings=types.settings)

    def _aligned(self, other: Any, op: str) -> Collection:
        """The other collection with this one's types, or an error that quotes both schemas."""
        if not isinstance(other, Collection):
            raise StageError(f"{op}: {other!r} is not a collection")
        if other._host is not self._host:
            raise StageError(
                f"{op}: the other collection belongs to another session",
                hint="insert its rows into an input of this session",
            )
        mine, theirs = self.schema, other.schema
        if mine.types == theirs.types:
            return other
        if len(mine) != len(theirs) or not all(
            widens(a, b) for a, b in zip(theirs.types, mine.types, strict=True)
        ):
            raise SchemaError(
                f"{op}: the schemas differ: ({mine.ddl}) and ({theirs.ddl})",
                hint="bring both to the same columns with select('...', 'cast(x as ...) AS x')",
            )
        return other._then("widen", mine)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        known = _NAMES.get(name)
        if known is None and name in self.schema.names:
            known = f"an SQL string, as in filter('{name} = ...')"
        hint = f"; use {known}" if known else ""
        raise AttributeError(f"a collection has no '{name}'{hint}")

    def __getitem__(self, name: Any) -> Any:
        raise TypeError(f"columns are named in SQL strings, as in select({name!r})")

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("a collection is not a list; iterate over its .rows()")


def _texts(expressions: Sequence[Any], op: str) -> list[str]:
    flat = [e for x in expressions for e in (x if isinstance(x, list | tuple) else [x])]
    for e in flat:
        if not isinstance(e, str):
            raise ExpressionError(
                f"{op}: {e!r} is not a Spark SQL string",
                hint="write the expression as text, as in 'dep_delay > 60'",
            )
    return flat


def _place(schema: Schema, name: str) -> int | None:
    """The place of a column by Spark's rules, or None."""
    try:
        return schema.index(name)
    except SchemaError:
        return None


def _distinct_names(fields: Sequence[Field], op: str) -> Schema:
    """A schema, if no column name occurs twice."""
    seen: set[str] = set()
    for field in fields:
        if field.name.lower() in seen:
            raise SchemaError(
                f"{op}: two columns would be named '{field.name}'",
                hint="rename one of them: rename({'old': 'new'})",
            )
        seen.add(field.name.lower())
    return Schema(fields)
