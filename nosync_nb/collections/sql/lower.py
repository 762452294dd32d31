"""Translates relational algebra to definitions: columns become positions, expressions text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.group_definitions import aggregate_definition, first_rows_definition
from nosync_nb.collections.loops import loop_definition
from nosync_nb.collections.row_expressions import compiled, filter_definition
from nosync_nb.collections.session_protocol import SparkTypeResolver
from nosync_nb.collections.sql.algebra import (
    Column,
    LogicalAggregate,
    LogicalDistinct,
    LogicalFilter,
    LogicalGenerate,
    LogicalJoin,
    LogicalProject,
    LogicalRecursion,
    LogicalScan,
    LogicalSetOperation,
    LogicalSingle,
    LogicalTop,
    LogicalValues,
    LogicalVariable,
    LogicalWindow,
    Named,
    Relation,
    Scalar,
    single_spaced,
    walk,
)
from nosync_nb.collections.sql.grammar import TextSpan, failure, sql_reason
from nosync_nb.collections.sql.joins.lowering import JoinLowering
from nosync_nb.collections.sql.lowered import Lowered
from nosync_nb.collections.window_functions import WindowRequest, window_definition
from nosync_nb.errors import ExpressionError, NosyncError, SchemaError, SqlError
from nosync_nb.expressions import (
    NUMBERS,
    TIMES,
    SettingsDependency,
    UntypedNullError,
    compile_expression,
    recorded_settings,
)
from nosync_nb.expressions import Generator as GeneratorCall
from nosync_nb.operators.windows.calls import WindowFrame
from nosync_nb.rows import Field, Schema
from nosync_nb.rows.ddl import quoted


class Lowering:
    """Translates relations.

    Args:
        text: the statement.
        scan: returns a table: a reference, or the rows at a point in time.
    """

    def __init__(
        self, text: str, scan: Callable[[LogicalScan], Definition], types: SparkTypeResolver
    ) -> None:
        self._text, self._reference, self._types = text, scan, types
        self._methods: dict[type[Relation], Callable[[Any], Lowered]] = {
            LogicalAggregate: self._lower_aggregate,
            LogicalDistinct: self._lower_distinct,
            LogicalFilter: self._lower_filter,
            LogicalGenerate: self._lower_generate,
            LogicalJoin: self._lower_join,
            LogicalProject: self._lower_project,
            LogicalRecursion: self._lower_recursion,
            LogicalScan: self._lower_scan,
            LogicalSetOperation: self._lower_setoperation,
            LogicalSingle: self._lower_single,
            LogicalTop: self._lower_top,
            LogicalValues: self._lower_values,
            LogicalVariable: self._lower_variable,
            LogicalWindow: self._lower_window,
        }
        self._made: dict[int, Lowered] = {}
        self._names: dict[Column, str] = {}
        self._void: set[Column] = set()

    def lower(self, relation: Relation, columns: Sequence[Named]) -> Definition:
        """Returns the definition of a relation with some of its columns under their names."""
        self._names = {each.column: each.name for each in reversed(columns)}
        for each in walk(relation):
            try:
                self._made[id(each)] = self._methods[type(each)](each)
            except (ExpressionError, SchemaError) as error:
                raise self._located(each, error) from None
        made = self._made[id(relation)]
        places = [made.places[each.column] for each in columns]
        schema = made.definition.schema
        fields = [Field(c.name, schema.types[p]) for c, p in zip(columns, places, strict=True)]
        if Schema(fields) == schema and places == list(range(len(schema))):
            return made.definition
        return made.definition.then("select", Schema(fields), {"outputs": places})

    def _located(self, relation: Relation, error: NosyncError) -> NosyncError:
        """Returns an error of an expression with its position in the statement."""
        if isinstance(error, SqlError):
            return error
        message = sql_reason(error)
        for scalar in relation.scalars:
            for each in (self._made[id(i)] for i in relation.inputs):
                if scalar.span.stop and scalar.columns <= each.places.keys():
                    text = each.text(scalar)
                    if text.strip() in message:
                        own = self._text[scalar.span.start : scalar.span.stop]
                        message = message.replace(text.strip(), own)
                        hint = error.hint or ""
                        names = _names_of_user(each, scalar, own)
                        message, hint = (_renamed(t, names) for t in (message, hint))
                        return failure(self._text, scalar.span, message, hint)
        spans = [each.span for each in relation.scalars if each.span.stop]
        span = spans[0] if spans else TextSpan(0, len(self._text))
        return failure(self._text, span, message, error.hint or "")

    def _of(self, relation: Relation) -> Lowered:
        return self._made[id(relation)]

    def _name(self, number: Column, taken: Schema | Sequence[Field]) -> str:
        names = {f.name.lower() for f in (taken.fields if isinstance(taken, Schema) else taken)}
        name = self._names.get(number) or f"_{number}"
        return (
            name
            if name.lower() not in names
            else Schema(list(taken.fields if isinstance(taken, Schema) else taken)).unused(name)
        )

    def _lower_scan(self, relation: LogicalScan) -> Lowered:
        definition = self._reference(relation)
        return Lowered(definition, {c.column: i for i, c in enumerate(relation.named)})

    def _lower_single(self, _: LogicalSingle) -> Lowered:
        return Lowered(Definition("unit", Schema([Field("unit", "boolean")])), {})

    def _lower_values(self, relation: LogicalValues) -> Lowered:
        """Lowers constant rows to an array of structs, each of which becomes a row."""
        unit = Definition("unit", Schema([Field("unit", "boolean")]))
        types: list[str | None] = [None] * len(relation.columns)
        given: list[list[str | None]] = []
        known: dict[str, str | None] = {}
        for row in relation.rows:
            given.append([])
            for i, each in enumerate(row):
                text = "".join(map(str, each.pieces))
                if text not in known:
                    known[text] = self._literal_type(unit, text, each.span)
                type_ = known[text]
                given[-1].append(type_)
                types[i] = self._wider(types[i], type_, each.span)
        types = [each or "string" for each in types]
        structs = []
        for row, own in zip(relation.rows, given, strict=True):
            fields = []
            for i, (each, type_) in enumerate(zip(row, own, strict=True)):
                text = "".join(map(str, each.pieces))
                if type_ != types[i]:
                    text = f"cast({text} as {types[i]})"
                fields.append(f"'{i}', {text}")
            structs.append(f"named_struct({', '.join(fields)})")
        array = f"array({', '.join(structs)})"
        argument = compiled(unit, array, self._types)
        names = [self._name(each, []) for each in relation.columns]
        schema = Schema([Field(n, str(t)) for n, t in zip(_distinct(names), types, strict=True)])
        held = Schema([Field("rows", argument.type)])
        params = {"outputs": [array], **recorded_settings([argument.settings])}
        how = {"place": 0, "positions": False, "outer": False, "apart": True}
        definition = unit.then("select", held, params).then("explode", schema, how)
        return Lowered(definition, {each: i for i, each in enumerate(relation.columns)})

    def _literal_type(self, unit: Definition, text: str, span: TextSpan) -> str | None:
        """Returns the type of a constant; None for NULL."""
        try:
            return compiled(unit, text, self._types).type
        except UntypedNullError:
            return None
        except ExpressionError as error:
            raise failure(self._text, span, sql_reason(error), error.hint or "") from None

    def _wider(self, a: str | None, b: str | None, span: TextSpan) -> str | None:
        """Returns the type of a column of VALUES with values of two types."""
        if a is None or b is None or a == b:
            return b if a is None else a
        is_converted = "string" in (a, b) and self._is_ansi()
        try:
            if not is_converted:
                return self._common(a, b)
        except ExpressionError:
            pass
        raise failure(
            self._text,
            span,
            f"[INVALID_INLINE_TABLE.INCOMPATIBLE_TYPES_IN_INLINE_TABLE] a column of VALUES has"
            f" values of the types {a} and {b}",
            "cast the values to one type",
        )

    def _lower_project(self, relation: LogicalProject) -> Lowered:
        source = self._of(relation.source)
        outputs: list[Any] = []
        fields: list[Field] = []
        places: dict[Column, int] = {}
        settings = []
        schema = source.definition.schema
        for each in relation.outputs:
            number = each.value.column
            if number is not None and number in source.places:
                place = source.places[number]
                if place in outputs:
                    places[each.column] = outputs.index(place)
                    continue
                outputs.append(place)
                name, type_ = schema.names[place], schema.types[place]
                if name.lower() in {f.name.lower() for f in fields}:
                    name = Schema(fields).unused(name)
                fields.append(Field(name, type_))
            else:
                text = source.text(each.value)
                try:
                    expression = compiled(source.definition, text, self._types)
                except UntypedNullError:
                    text = "cast(NULL as string)"
                    self._void.add(each.column)
                    expression = compiled(source.definition, text, self._types)
                if expression.is_column:
                    outputs.append(expression.columns[0])
                else:
                    outputs.append(text)
                    settings.append(expression.settings)
                fields.append(Field(self._name(each.column, fields), expression.type))
            places[each.column] = len(outputs) - 1
        if outputs == list(range(len(schema))) and Schema(fields) == schema:
            return Lowered(source.definition, places)
        params = {"outputs": outputs, **recorded_settings(settings)}
        return Lowered(source.definition.then("select", Schema(fields), params), places)

    def _lower_filter(self, relation: LogicalFilter) -> Lowered:
        source = self._of(relation.source)
        text = source.text(relation.condition)
        return source._replace(definition=filter_definition(source.definition, text, self._types))

    def _lower_generate(self, relation: LogicalGenerate) -> Lowered:
        source, made = self._of(relation.source), relation.generator
        before = source.definition.schema
        text = source.text(made.argument)
        argument = compiled(source.definition, text, self._types)
        names = []
        fields = list(before.fields)
        for each in made.columns:
            names.append(self._name(each, fields))
            fields.append(Field(names[-1], "int"))
        added = GeneratorCall(text, made.function, text, tuple(names)).fields(argument.type)
        held = Schema([*before.fields, Field(added[0].name, argument.type)])
        params = {"outputs": [*range(len(before)), text], **recorded_settings([argument.settings])}
        selected = source.definition.then("select", held, params)
        how = {
            "positions": made.function == "posexplode",
            "outer": made.is_outer,
            "apart": made.function == "inline",
        }
        schema = Schema([*before.fields, *added])
        definition = selected.then("explode", schema, {"place": len(before), **how})
        new = {each: len(before) + i for i, each in enumerate(made.columns)}
        return Lowered(definition, {**source.places, **new})

    def _lower_distinct(self, relation: LogicalDistinct) -> Lowered:
        source = self._of(relation.source)
        wanted = [source.places[each] for each in relation.columns]
        definition, places = source
        for place in wanted:
            if "map<" in definition.schema.types[place]:
                raise ExpressionError(
                    "[UNSUPPORTED_FEATURE.SET_OPERATION_ON_MAP_TYPE] a column of DISTINCT or of a"
                    f" set operation is a {definition.schema.types[place]}",
                    hint="select map_entries(column) instead, or write UNION ALL",
                )
        if sorted(set(wanted)) != list(range(len(definition.schema))):
            order = list(dict.fromkeys(wanted))
            definition = definition.columns(order)
            places = {c: order.index(source.places[c]) for c in relation.columns}
        return Lowered(definition.then("distinct"), places)

    def _lower_aggregate(self, relation: LogicalAggregate) -> Lowered:
        source = self._of(relation.source)
        keys = list(dict.fromkeys(source.places[each] for each in relation.keys))
        places = {each: keys.index(source.places[each]) for each in relation.keys}
        if not relation.calls:
            return Lowered(source.definition.columns(keys).then("distinct"), places)
        named: dict[str, str] = {}
        fields = [source.definition.schema.fields[i] for i in keys]
        for call in relation.calls:
            name = self._name(call.column, fields)
            named[name] = source.text(call.value)
            fields.append(Field(name, "int"))
            places[call.column] = len(fields) - 1
        made = aggregate_definition(source.definition, keys, named, self._types)
        return Lowered(made, places)

    def _lower_top(self, relation: LogicalTop) -> Lowered:
        source = self._of(relation.source)
        terms = [
            source.name(t.column)
            + (" desc" if t.descending else " asc")
            + (" nulls first" if t.nulls_first else " nulls last")
            for t in relation.order
        ]
        keys = list(dict.fromkeys(source.places[each] for each in relation.groups))
        by = ", ".join(terms) or None
        made = first_rows_definition(
            source.definition,
            keys,
            relation.limit,
            by,
            relation.offset,
            self._types,
            ties=relation.ties,
        )
        return source._replace(definition=made)

    def _lower_window(self, relation: LogicalWindow) -> Lowered:
        source = self._of(relation.source)
        schema = source.definition.schema
        places = dict(source.places)
        fields = list(schema.fields)
        requests = []
        for each in relation.functions:
            name = self._name(each.column, fields)
            fields.append(Field(name, "int"))
            places[each.column] = len(fields) - 1
            arguments = each.arguments if each.call is None else ()
            requests.append(
                WindowRequest(
                    name,
                    each.function,
                    tuple(source.places[a] for a in arguments),
                    each.n,
                    each.skips_nulls,
                    None if each.frame is None else WindowFrame(*each.frame),
                    "" if each.call is None else source.text(each.call),
                )
            )
        by = [[source.places[t.column], t.descending, t.nulls_first] for t in relation.order]
        keys = [source.places[each] for each in relation.groups]
        made = window_definition(source.definition, len(schema), keys, by, requests, self._types)
        return Lowered(made, places)

    def _lower_setoperation(self, relation: LogicalSetOperation) -> Lowered:
        left, right = self._of(relation.left), self._of(relation.right)
        a = _selected(left.definition, [left.places[c] for c in relation.left.columns])
        b = _selected(right.definition, [right.places[c] for c in relation.right.columns])
        types = []
        for i, (x, y) in enumerate(zip(a.schema.types, b.schema.types, strict=True)):
            ours, theirs = relation.left.columns[i], relation.right.columns[i]
            if ours in self._void and theirs in self._void:
                self._void.add(relation.columns[i])
            x = y if ours in self._void else x
            types.append(self._common_column(i, x, x if theirs in self._void else y))
        fields: list[Field] = []
        for number, type_, name in zip(relation.columns, types, a.schema.names, strict=True):
            own = self._names.get(number, name)
            taken = {f.name.lower() for f in fields}
            fields.append(
                Field(own if own.lower() not in taken else Schema(fields).unused(own), type_)
            )
        schema = Schema(fields)
        a, b = self._cast(a, schema), self._cast(b, schema)
        places = {each: i for i, each in enumerate(relation.columns)}
        if relation.kind == "union":
            return Lowered(Definition("concat", schema, (a, b)), places)
        rest = Definition("except_all", schema, (a, b))
        if relation.kind == "intersect":
            rest = Definition("except_all", schema, (a, rest))
        return Lowered(rest, places)

    def _common_column(self, place: int, a: str, b: str) -> str:
        """Returns the type of a column of a set operation.

        Raises:
            ExpressionError: if the types of its sides have no common type.
        """
        try:
            return self._common(a, b)
        except ExpressionError:
            raise ExpressionError(
                f"[INCOMPATIBLE_COLUMN_TYPE] column {place + 1} is a {a} on one side of a set"
                f" operation and a {b} on the other",
                hint="cast both to one type",
            ) from None

    def _common(self, a: str, b: str) -> str:
        if a == b:
            return a
        if "string" in (a, b) and not self._is_ansi():
            other = b if a == "string" else a
            if other in (*NUMBERS, *TIMES) or other.startswith("decimal"):
                return "string"
        pair = Schema([Field("a", a), Field("b", b)])
        return compile_expression("coalesce(a, b)", pair, settings=self._types.settings).type

    def _is_ansi(self) -> bool:
        """Returns True in ANSI mode, in which a text becomes a number and not the reverse."""
        depends = SettingsDependency(time_zone=False, ansi=True)
        return self._types.settings(depends, self._text).ansi is not False

    def _cast(self, side: Definition, schema: Schema) -> Definition:
        outputs: list[Any] = []
        settings = []
        for i, (name, own, type_) in enumerate(
            zip(side.schema.names, side.schema.types, schema.types, strict=True)
        ):
            text = f"cast({quoted(name)} as {type_})"
            outputs.append(i if own == type_ else text)
            if own != type_:
                settings.append(compiled(side, text, self._types).settings)
        if side.schema == schema:
            return side
        return side.then("select", schema, {"outputs": outputs, **recorded_settings(settings)})

    def _lower_variable(self, relation: LogicalVariable) -> Lowered:
        first = self._first(relation.source)
        variable = Definition("variable", first.schema, (), {"level": 0, "index": 0})
        return Lowered(variable, {each: i for i, each in enumerate(relation.columns)})

    def _first(self, relation: Relation) -> Definition:
        """Returns the first query of a recursive one, with its columns alone."""
        made = self._of(relation)
        return _selected(made.definition, [made.places[each] for each in relation.columns])

    def _lower_recursion(self, relation: LogicalRecursion) -> Lowered:
        first, step = self._first(relation.left), self._of(relation.right)
        places = [step.places[each] for each in relation.right.columns]
        following = self._cast(_selected(step.definition, places), first.schema)
        both = Definition("concat", first.schema, (first, following))
        source = first
        if relation.is_distinct:
            source, both = first.then("distinct"), both.then("distinct")
        loop = loop_definition(source, 0, both)
        return Lowered(loop, {each: i for i, each in enumerate(relation.columns)})

    # -- joins ---------------------------------------------------------------------------------

    def _lower_join(self, relation: LogicalJoin) -> Lowered:
        return JoinLowering(
            relation, self._of(relation.left), self._of(relation.right), self._types, self._name
        ).lowered()


def _names_of_user(source: Lowered, scalar: Scalar, text: str) -> dict[str, str]:
    """Returns what the user wrote for the columns of an expression that have made-up names.

    Args:
        text: the expression as it is in the statement.
    """
    columns = [each for each in scalar.pieces if isinstance(each, int)]
    pattern = "".join("(.+?)" if isinstance(p, int) else re.escape(p) for p in scalar.pieces)
    found = re.fullmatch(pattern, single_spaced(text))
    names = [source.name(each) for each in columns]
    written = found.groups() if found is not None else ("x",) * len(names)
    return {n: w for n, w in zip(names, written, strict=True) if _MADE_UP.fullmatch(n)}


def _renamed(text: str, names: Mapping[str, str]) -> str:
    return _MADE_UP.sub(lambda found: names.get(found[0], found[0]), text)


_MADE_UP = re.compile(r"(?<!\w)_\d+(?!\w)")
"""The names of columns without a name in the statement (`Lowering._name`)."""


def _selected(source: Definition, places: Sequence[int]) -> Definition:
    """Some of the columns, each under a name of its own."""
    if list(places) == list(range(len(source.schema))):
        return source
    fields: list[Field] = []
    for place in places:
        name, type_ = source.schema.fields[place]
        taken = {f.name.lower() for f in fields}
        fields.append(
            Field(name if name.lower() not in taken else Schema(fields).unused(name), type_)
        )
    return source.then("select", Schema(fields), {"outputs": list(places)})


def _distinct(names: Sequence[str]) -> list[str]:
    """Returns names that differ, also without regard to case."""
    fields: list[Field] = []
    for name in names:
        taken = {f.name.lower() for f in fields}
        fields.append(
            Field(name if name.lower() not in taken else Schema(fields).unused(name), "int")
        )
    return [each.name for each in fields]
