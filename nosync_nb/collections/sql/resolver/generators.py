"""Resolves functions that make several rows of one: `explode(...)` and others, and `range(...)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlglot import exp

from nosync_nb.collections.sql.algebra import (
    LogicalGenerate,
    LogicalSingle,
    Named,
    Relation,
    RowGenerator,
    Scalar,
)
from nosync_nb.collections.sql.resolver.context import Context
from nosync_nb.collections.sql.resolver.rows import Rows
from nosync_nb.collections.sql.resolver.scope import NamedRelation, Query, Scope
from nosync_nb.collections.sql.resolver.trees import alias_columns, signed_integer
from nosync_nb.collections.sql.resolver.tuples import WRITTEN_ROWS
from nosync_nb.errors import SqlError
from nosync_nb.expressions import Generator as GeneratorCall

_GENERATORS = ("explode", "posexplode", "inline")
_OUTER = "_outer"


class Generated(NamedTuple):
    """The columns that the call of a generator adds."""

    columns: tuple[Named, ...]
    generator: RowGenerator

    def over(self, relation: Relation) -> Relation:
        """Returns each row of a relation once for every row that the generator makes of it."""
        columns = (*relation.columns, *(each.column for each in self.columns))
        return LogicalGenerate(columns, relation, self.generator)


def is_generator(tree: Any) -> bool:
    """Returns True for the call of a function that makes several rows of one."""
    name = str(tree.this).lower() if isinstance(tree, exp.Anonymous) else ""
    return name.removesuffix(_OUTER) in _GENERATORS


def generated(
    context: Context, tree: Any, rows: Rows, names: list[str], *, is_outer: bool = False
) -> Generated | None:
    """Resolves the call of a generator; returns None for any other expression.

    Args:
        names: of the columns that it adds; empty for Spark's names, of an array's elements.
        is_outer: True if a row without elements results in a row with nulls.
    """
    name = str(tree.this).lower() if isinstance(tree, exp.Anonymous) else ""
    plain = name.removesuffix(_OUTER)
    if plain not in _GENERATORS:
        if plain in WRITTEN_ROWS:
            rows_of = WRITTEN_ROWS[plain](context, tree, rows)
            own = [f"{rows_of.prefix}{i}" for i in range(rows_of.width)]
            return _made(context, "inline", rows_of.array, names or own, is_outer=False)
        return None
    if len(tree.expressions) != 1:
        raise context.failed(
            tree,
            f"[WRONG_NUM_ARGS.WITHOUT_SUGGESTION] {name} takes one argument",
            f"write {name}(values)",
        )
    argument = context.scalar(tree.expressions[0], rows)
    shown = names or _spark_names(context, plain, argument, rows)
    outer = is_outer or name.endswith(_OUTER)
    return _made(context, plain, argument, shown, is_outer=outer)


def _made(
    context: Context, function: str, argument: Scalar, names: Sequence[str], *, is_outer: bool
) -> Generated:
    columns = tuple(Named(context.numbers.new(), each) for each in names)
    made = RowGenerator(function, argument, tuple(each.column for each in columns), is_outer)
    return Generated(columns, made)


def _spark_names(context: Context, function: str, argument: Scalar, rows: Rows) -> list[str]:
    """Returns the names that Spark gives to the columns of a generator."""
    call = GeneratorCall(function, function, "x", ())
    try:
        return [each.name for each in call.as_in_spark(context.type_of(argument, rows))]
    except SqlError:
        if function == "inline":
            raise
        return [*(["pos"] if function == "posexplode" else []), "col"]


def table_function(context: Context, tree: Any, scope: Scope, names: list[str]) -> Query:
    """Resolves a function in FROM: `range(...)` or a generator.

    Args:
        scope: of a query around the function, whose tables its arguments may refer to.
    """
    name = str(tree.this).lower() if isinstance(tree, exp.Anonymous) else ""
    rows = context.rows(LogicalSingle(()), scope)
    if name == "range":
        return _range(context, tree)
    made = generated(context, tree, rows, names)
    if made is None:
        raise context.failed(
            tree,
            f"[UNRESOLVABLE_TABLE_VALUED_FUNCTION] {name or context.cut(tree)!r} is no function for"
            " FROM",
            "write range(...), explode(...), inline(...) or stack(...)",
        )
    return Query(made.over(rows.relation), made.columns)


def _range(context: Context, tree: Any) -> Query:
    """`range([start,] end [, step])`: whole numbers from start up to before end."""
    given = [signed_integer(each) for each in tree.expressions[:3]]
    numbers = [each for each in given if each is not None]
    if not given:
        raise context.failed(
            tree, "[WRONG_NUM_ARGS] range() has no end", "write range(10) or range(1, 10)"
        )
    if len(numbers) < len(given):
        raise context.failed(
            tree,
            "[CAST_INVALID_INPUT] the arguments of range() are no whole numbers",
            "write range(10) or range(1, 10)",
        )
    start, end = (0, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1])
    step = numbers[2] if len(numbers) > 2 else 1
    if step == 0:
        raise context.failed(
            tree, "[FAILED_FUNCTION_CALL] the step of range() is 0", "write another step"
        )
    count = len(range(start, end, step))
    values = f"sequence({start}L, {start + (count - 1) * step}L, {step}L)"
    values = values if count else "slice(array(0L), 1, 0)"
    number = context.numbers.new()
    made = RowGenerator("explode", Scalar((values,)), (number,), is_outer=False)
    return Query(LogicalGenerate((number,), LogicalSingle(()), made), (Named(number, "id"),))


def lateral_view(
    context: Context, relation: Relation, tables: list[NamedRelation], tree: Any, scope: Scope
) -> tuple[Relation, list[NamedRelation]]:
    """Resolves LATERAL VIEW [OUTER] generator(...) table [AS columns]."""
    if not tree.alias:
        raise context.failed(
            tree,
            "[PARSE_SYNTAX_ERROR] LATERAL VIEW has no name",
            f"write LATERAL VIEW {context.cut(tree.this)} t AS x",
        )
    rows = context.rows(relation, scope.with_tables(tables))
    is_outer = bool(tree.args.get("outer"))
    made = generated(context, tree.this, rows, alias_columns(tree), is_outer=is_outer)
    if made is None:
        raise context.failed(
            tree, "LATERAL VIEW needs a generator", "write LATERAL VIEW explode(...) t AS x"
        )
    return made.over(rows.relation), [*tables, NamedRelation(tree.alias, made.columns)]
