"""Builds definitions from row expressions, and aligns the schemas of two definitions.

The module also compiles single expressions and orders over the columns of a definition.
`Collection` documents the behaviour for users.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.session_protocol import SparkTypeResolver
from nosync_nb.errors import ExpressionError, SchemaError
from nosync_nb.expressions import (
    Expression,
    Generator,
    SqlSettings,
    compile_expression,
    expand_select,
    generator,
    only_one,
    parse_list,
    parse_order,
    placed,
    recorded_settings,
    refuse_windows,
    windowed_times,
)
from nosync_nb.rows import Field, Schema, widens
from nosync_nb.rows.ddl import quoted


def compiled(source: Definition, sql: Any, types: SparkTypeResolver) -> Expression:
    """Compiles an expression over the columns of a definition."""
    if not isinstance(sql, str):
        raise ExpressionError(
            f"{sql!r} is not a Spark SQL string",
            hint="write the expression as text, as in 'dep_delay > 60'",
        )
    return compile_expression(
        sql,
        source.schema,
        types=types,
        settings=types.settings,
        functions=types.registered,
    )


def refuse_unknown(source: Definition, sqls: Iterable[str]) -> None:
    """Checks the column names in expressions, before Spark is asked for the type of any of them.

    Raises:
        ExpressionError: for the first unknown name.
    """
    for sql in sqls:
        made = generator(sql)
        text = sql if made is None else made.argument
        compile_expression(text, source.schema, types=lambda *_: ["string"])


def stable(source: Definition, sql: str, what: str, types: SparkTypeResolver) -> Expression:
    """Compiles a join key or a term of an order, which must be deterministic.

    Raises:
        ExpressionError: if the expression may be nondeterministic.
    """
    if isinstance(sql, str):
        refuse_windows(sql, what)
    expression = compiled(source, sql, types)
    if not expression.deterministic:
        raise ExpressionError(
            f"{what}: {sql!r} is not deterministic", hint="insert its value as a column of an input"
        )
    return expression


def ordered_by(
    source: Definition, by: str | None, what: str, types: SparkTypeResolver
) -> tuple[Definition, list[list[Any]]]:
    """Adds the computed values of an order as columns, and returns the order by positions.

    Returns:
        the definition, and a list for each term of the order: the position of its column, True if
        it is descending, True if nulls come first.
    """
    outputs: list[Any] = list(range(len(source.schema)))
    fields = list(source.schema.fields)
    order: list[list[Any]] = []
    settings = []
    for term in parse_order(by) if by is not None else ():
        compiled = stable(source, term.sql, what, types)
        if "map<" in compiled.type:
            raise SchemaError(
                f"[DATATYPE_MISMATCH.INVALID_ORDERING_TYPE] {what}: cannot order by a map"
                f" ({term.sql!r})",
                hint=f"order by one of its values, as in {what}(by=\"m['key']\")",
            )
        place = compiled.columns[0] if compiled.is_column else len(outputs)
        if not compiled.is_column:
            outputs.append(term.sql)
            settings.append(compiled.settings)
            fields.append(Field(Schema(fields).unused("by"), compiled.type))
        order.append([place, term.descending, term.nulls_first])
    if len(outputs) > len(source.schema):
        computed = {"outputs": outputs, "passes": len(source.schema), **recorded_settings(settings)}
        source = source.then("select", Schema(fields), computed)
    return source, order


def filter_definition(source: Definition, predicate: Any, types: SparkTypeResolver) -> Definition:
    """Builds a filter; see `Collection.filter`."""
    source = _without_null_times(source, [predicate], types)
    condition = compiled(source, predicate, types)
    if condition.type != "boolean":
        raise ExpressionError(
            f"[DATATYPE_MISMATCH.FILTER_NOT_BOOLEAN] filter {predicate!r} is of type"
            f" {condition.type}, not boolean",
            hint="write a comparison, as in filter('delay > 60')",
        )
    params = {"predicate": predicate, **recorded_settings([condition.settings])}
    return source.then("filter", params=params)


def _without_null_times(
    source: Definition, sqls: Sequence[Any], types: SparkTypeResolver
) -> Definition:
    """Drops the rows with a null time if an expression computes the window of that time.

    Spark also drops these rows from a select or filter with such an expression.
    """
    found = [windowed_times(sql) for sql in sqls if isinstance(sql, str)]
    for time in dict.fromkeys(time for times in found for time in times):
        source = filter_definition(source, f"({time}) is not null", types)
    return source


class _Outputs:
    """The output columns of a select, and the generator that expands one of them.

    Attributes:
        outputs: the position or the expression of each output column.
        settings: the settings that each expression depends on.
        apart: the generators, each with the position of the column that it expands.
    """

    def __init__(self, source: Definition, types: SparkTypeResolver) -> None:
        self.source = source
        self.types = types
        self.outputs: list[Any] = []
        self.fields: list[Field] = []
        self.settings: list[SqlSettings] = []
        self.apart: list[tuple[int, Generator]] = []

    def keep(self) -> None:
        """Adds all columns of the source, unchanged."""
        self.outputs += range(len(self.source.schema))
        self.fields += self.source.schema.fields

    def add(self, sql: str) -> None:
        """Adds the column of a named expression, or the column that a generator expands."""
        made = generator(sql)
        column = compiled(self.source, sql if made is None else made.argument, self.types)
        if made is None and column.name is None:
            raise ExpressionError(
                f"select: {sql!r} has no name", hint=f"write {sql + ' AS name'!r}"
            )
        name = column.name or ""
        self.place_expression(
            len(self.outputs), name, sql if made is None else made.argument, column, made
        )

    def place_expression(
        self, place: int, name: str, sql: str, column: Expression, made: Generator | None
    ) -> None:
        """Replaces the column at a position by an expression, or appends a column at the end."""
        output = column.columns[0] if column.is_column else sql
        field = Field(name, column.type)
        if made is not None:
            self.apart.append((place, made))
            field = placed(made, column.type)
        self.outputs[place : place + 1] = [output]
        self.fields[place : place + 1] = [field]
        self.settings.append(column.settings)

    def definition(self, op: str) -> Definition:
        """Builds the select, followed by the operator of the generator, if there is one."""
        made = only_one([each for _, each in self.apart])
        params = {"outputs": self.outputs, **recorded_settings(self.settings)}
        if made is None:
            return self.source.then("select", checked_unambiguous(self.fields, op), params)
        ((place, _),) = self.apart
        before = self.fields[:place]
        fields = [*before, *made.fields(self.fields[place].type), *self.fields[place + 1 :]]
        schema = checked_unambiguous(fields, op)
        how = {"positions": made.positions, "outer": made.outer, "apart": made.fields_apart}
        selected = self.source.then("select", Schema(self.fields), params)
        return selected.then("explode", schema, {"place": place, **how})


def select_definition(
    source: Definition, expressions: Sequence[Any], types: SparkTypeResolver
) -> Definition:
    """Builds a select; see `Collection.select`."""
    sqls = expand_select(expression_texts(expressions, "select"), source.schema)
    refuse_unknown(source, sqls)
    outputs = _Outputs(_without_null_times(source, sqls, types), types)
    for sql in sqls:
        outputs.add(sql)
    if not outputs.outputs:
        raise SchemaError(
            "select: there are no columns", hint="give at least one, as in select('*')"
        )
    return outputs.definition("select")


def with_columns_definition(
    source: Definition, named: Mapping[str, str], types: SparkTypeResolver
) -> Definition:
    """Builds a select that adds or replaces columns; see `Collection.with_columns`."""
    sqls = expression_texts(list(named.values()), "with_columns")
    refuse_unknown(source, sqls)
    source = _without_null_times(source, sqls, types)
    outputs = _Outputs(source, types)
    outputs.keep()
    for name, sql in zip(named, sqls, strict=True):
        made = generator(sql)
        if made is not None:
            sql, made = made.argument, made._replace(names=(name,))
        place = _place(source.schema, name)
        column = compiled(source, sql, types)
        outputs.place_expression(
            len(outputs.outputs) if place is None else place, name, sql, column, made
        )
    return outputs.definition("with_columns")


def repeat_definition(source: Definition, sql: str, types: SparkTypeResolver) -> Definition:
    """Builds a select of all columns and those of a generator; see `Collection.flat_map`."""
    if generator(sql) is None:
        raise ExpressionError(
            f"flat_map: {sql!r} does not generate rows",
            hint="pass a function of a row, or SQL as in flat_map('explode(a) AS x')",
        )
    return select_definition(source, ["*", sql], types)


def keyed(
    source: Definition, keys: Sequence[Any], types: SparkTypeResolver
) -> tuple[Definition, list[int]]:
    """Adds computed keys as columns, and returns the positions of all keys.

    See `Collection.group_by`. An exact column name always means the column, even if it also reads
    like a list or an expression.
    """
    listed = expression_texts(keys, "group_by")
    sqls = [
        each
        for text in listed
        for each in ([text] if text in source.schema.names else parse_list(text))
    ]
    timed = _without_null_times(source, sqls, types)
    outputs = _Outputs(timed, types)
    outputs.keep()
    places = [_key(outputs, sql) for sql in sqls]
    if len(outputs.outputs) == len(source.schema):
        return source, places
    return outputs.definition("group_by"), places


def _key(outputs: _Outputs, sql: str) -> int:
    """Returns the position of a key's column; adds the column if the key is an expression."""
    schema = outputs.source.schema
    place = _place(schema, sql)
    if place is not None:
        return place
    if not sql or sql.isidentifier():
        schema.index(sql)  # raises the error for an unknown column
    column = compiled(outputs.source, sql, outputs.types)
    if column.is_column and column.name == schema.names[column.columns[0]]:
        return column.columns[0]
    if column.name is None:
        raise ExpressionError(
            f"group_by: {sql!r} has no name", hint=f"write group_by({sql + ' AS name'!r})"
        )
    if any(field.name.lower() == column.name.lower() for field in outputs.fields):
        raise SchemaError(
            f"group_by: the column '{column.name}' exists already",
            hint=f"choose another name: group_by({column.sql + ' AS ' + column.name + '_key'!r})",
        )
    outputs.place_expression(len(outputs.outputs), column.name, sql, column, None)
    return len(outputs.outputs) - 1


def drop_columns_definition(source: Definition, columns: Sequence[str]) -> Definition:
    """Builds a projection to all columns except these; see `Collection.drop`."""
    gone = {source.schema.index(c) for c in columns}
    rest = [i for i in range(len(source.schema)) if i not in gone]
    if not rest:
        raise SchemaError("drop: no column would be left", hint="keep at least one column")
    return source.columns(rest)


def rename_columns_definition(source: Definition, names: Mapping[str, str]) -> Definition:
    """Builds a select that renames columns; see `Collection.rename`."""
    fields = list(source.schema.fields)
    for old, new in names.items():
        place = source.schema.index(old)
        fields[place] = Field(new, fields[place].type)
    schema = checked_unambiguous(fields, "rename")
    return source.then("select", schema, {"outputs": list(range(len(fields)))})


def aligned_schemas(source: Definition, other: Definition, op: str) -> Definition:
    """Converts another definition to the types of `source`.

    Raises:
        SchemaError: if the conversion could lose values; the message quotes both schemas.
    """
    mine, theirs = source.schema, other.schema
    if mine.types == theirs.types:
        return other
    if len(mine) != len(theirs) or not all(
        widens(a, b) for a, b in zip(theirs.types, mine.types, strict=True)
    ):
        raise SchemaError(
            f"{op}: the schemas differ: ({mine.ddl}) and ({theirs.ddl})",
            hint="give both the same columns with select('...', 'cast(x as ...) AS x')",
        )
    return other.then("widen", mine)


def expression_texts(expressions: Sequence[Any], op: str) -> list[str]:
    """Returns the expressions as a flat list; an element may be a list of expressions."""
    flat = [e for x in expressions for e in (x if isinstance(x, list | tuple) else [x])]
    for e in flat:
        if not isinstance(e, str):
            raise ExpressionError(
                f"{op}: {e!r} is not a Spark SQL string",
                hint="write the expression as text, as in 'dep_delay > 60'",
            )
    return flat


def _place(schema: Schema, name: str) -> int | None:
    """Returns the position of a column by Spark's rules for names; None if it does not exist."""
    try:
        return schema.index(name)
    except SchemaError:
        return None


def as_entries(name: str, type_: str) -> str:
    """Returns an expression to use as a key instead of a column that contains a map."""
    column = name if name.isidentifier() else quoted(name)
    if type_.startswith("map<") and type_.count("map<") == 1:
        return f"array_sort(map_entries({column}))"
    return f"cast({column} as string)"


def checked_unambiguous(fields: Sequence[Field], op: str) -> Schema:
    """Returns the schema of some fields; raises SchemaError if a name occurs twice."""
    seen: set[str] = set()
    for field in fields:
        if field.name.lower() in seen:
            raise SchemaError(
                f"{op}: two columns would be named '{field.name}'",
                hint="rename one of them: rename({'old': 'new'})",
            )
        seen.add(field.name.lower())
    return Schema(fields)
