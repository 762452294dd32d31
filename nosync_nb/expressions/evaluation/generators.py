"""Generators: `explode(a) AS x` and similar calls, which make several rows of one row.

A select has at most one, and never inside another expression. Its argument is an ordinary
expression; the operator `explode` makes rows of the resulting array or map.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlglot import exp

from nosync_nb.errors import ExpressionError, SchemaError
from nosync_nb.expressions.syntax.analyzer import EXPLODING
from nosync_nb.expressions.syntax.parser import Parsed, parse
from nosync_nb.rows import Field
from nosync_nb.rows.types import nested_parts


class Generator(NamedTuple):
    """One call.

    Attributes:
        sql: as it was written.
        called: the function, in lower case.
        argument: the text of its argument.
        names: of the columns that it makes; none: Spark's names.
    """

    sql: str
    called: str
    argument: str
    names: tuple[str, ...]

    @property
    def positions(self) -> bool:
        """True if the position of each element, from 0, is the first column."""
        return self.called.startswith("pos")

    @property
    def outer(self) -> bool:
        """True if a row without elements gives one of nulls."""
        return self.called.endswith("_outer")

    @property
    def fields_apart(self) -> bool:
        """True if each field of a struct is a column."""
        return self.called.startswith("inline")

    def fields(self, type_: str) -> list[Field]:
        """Returns the columns that it makes of values of a type.

        Raises:
            ExpressionError: if it does not accept such values, or makes another number of columns.
        """
        made = self.as_in_spark(type_)
        if not self.names:
            return made
        if len(self.names) != len(made):
            names = ", ".join(field.name for field in made)
            raise ExpressionError(
                f"expression {self.sql!r}: {self.called} generates {len(made)} columns"
                f" ({names}), not {len(self.names)}",
                hint=f"write '{self.called}({self.argument}) AS ({names})'",
            )
        return [Field(name, field.type) for name, field in zip(self.names, made, strict=True)]

    def as_in_spark(self, type_: str) -> list[Field]:
        """Returns the columns under Spark's names.

        Raises:
            ExpressionError: if it does not accept values of the type.
        """
        place = [Field("pos", "int")] if self.positions else []
        if self.fields_apart and type_.startswith("array<struct<"):
            ((_, struct),) = nested_parts(type_)
            return [Field(name, inner) for name, inner in nested_parts(struct)]
        if not self.fields_apart and type_.startswith("array<"):
            ((_, element),) = nested_parts(type_)
            return [*place, Field("col", element)]
        if not self.fields_apart and type_.startswith("map<"):
            return [*place, *(Field(name, inner) for name, inner in nested_parts(type_))]
        wanted = "an array of structs" if self.fields_apart else "an array or a map"
        raise ExpressionError(
            f"expression {self.sql!r}: {self.called} takes {wanted}, not a {type_}",
            hint="split(text, ',') converts text to an array",
        )


def generator(sql: str) -> Generator | None:
    """Parses a call that makes several rows; None for any other expression.

    Raises:
        ExpressionError: if it cannot be parsed, or does not have one argument.
    """
    parsed = parse(sql)
    tree, names = parsed.tree, () if parsed.name is None else (parsed.name,)
    if isinstance(tree, exp.Aliases):
        tree, names = tree.this, tuple(each.name for each in tree.expressions)
    called = tree.name.lower() if isinstance(tree, exp.Anonymous) else ""
    if called not in EXPLODING:
        return None
    if len(tree.expressions) != 1:
        raise ExpressionError(
            f"expression {sql!r}: {called} takes one argument, not {len(tree.expressions)}",
            hint=f"write '{called}(a) AS x'",
        )
    return Generator(sql, called, _argument(sql, parsed), names)


def _argument(sql: str, parsed: Parsed) -> str:
    """The text between the parentheses of the call at the start of the text."""
    depth = 0
    for word in parsed.words[1:]:
        depth += {"(": 1, ")": -1}.get(word.text if word.kind == "sign" else "", 0)
        if not depth:
            return sql[parsed.words[1].end : word.start].strip()
    raise AssertionError("a call has a parenthesis at its end")


def only_one(generators: Sequence[Generator]) -> Generator | None:
    """Returns the generator of a select.

    Raises:
        ExpressionError: if there are several.
    """
    if len(generators) > 1:
        raise ExpressionError(
            f"select: {generators[0].sql!r} and {generators[1].sql!r} both generate rows",
            hint="use one select for each: c.select('*', ...).select('*', ...)",
        )
    return generators[0] if generators else None


def placed(made: Generator, type_: str) -> Field:
    """Returns the column of the array or map until `explode` runs.

    Raises:
        ExpressionError: as `Generator.fields` does.
        SchemaError: if a struct without fields would make no column.
    """
    fields = made.fields(type_)
    if not fields:
        raise SchemaError(f"{made.called} of structs without fields has no columns")
    return Field(fields[0].name, type_)
