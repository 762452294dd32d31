"""Calls that change the number of rows: generators and time windows.

A generator expands one row to several. A select has at most one generator, such as
`explode(a) AS x`, and never inside another expression. Its argument is an ordinary expression; the
operator `explode` expands the resulting array or map to rows.

`window(time, length)` in a row expression drops the rows with a null time, because Spark adds a
filter to the query of such a call. So a batch with a null time would come back with fewer rows.
This module determines the times that must not be null, and the select or filter with the call
applies such a filter first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlglot import exp

from nosync_nb.errors import ExpressionError, SchemaError
from nosync_nb.expressions.syntax.analyzer import EXPLODING
from nosync_nb.expressions.syntax.parser import Parsed, Word, parse
from nosync_nb.rows import Field
from nosync_nb.rows.types import nested_parts


class Generator(NamedTuple):
    """One call of a generator.

    Attributes:
        sql: the text of the whole expression.
        called: the name of the function, in lower case.
        argument: the text of its argument.
        names: the names of the generated columns; empty for Spark's names.
    """

    sql: str
    called: str
    argument: str
    names: tuple[str, ...]

    @property
    def positions(self) -> bool:
        """True if the first column is the position of each element, counted from 0."""
        return self.called.startswith("pos")

    @property
    def outer(self) -> bool:
        """True if a row without elements generates one row of nulls."""
        return self.called.endswith("_outer")

    @property
    def fields_apart(self) -> bool:
        """True if each field of a struct becomes a column."""
        return self.called.startswith("inline")

    def fields(self, type_: str) -> list[Field]:
        """Returns the columns that the call generates from an argument of a type.

        Raises:
            ExpressionError: if the function does not accept the type, or if the number of columns
                differs from the number of names.
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
        """Returns the generated columns under Spark's names.

        Raises:
            ExpressionError: if the function does not accept values of the type.
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
            f"expression {self.sql!r}: [DATATYPE_MISMATCH.UNEXPECTED_INPUT_TYPE] {self.called}"
            f" takes {wanted}, not a {type_}",
            hint="split(text, ',') converts text to an array",
        )


def generator(sql: str) -> Generator | None:
    """Parses the call of a generator; returns None for any other expression.

    Raises:
        ExpressionError: if the text cannot be parsed, or the call does not have one argument.
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
    """Returns the text between the parentheses of the call with which the expression begins."""
    depth = 0
    for word in parsed.words[1:]:
        depth += {"(": 1, ")": -1}.get(word.text if word.kind == "sign" else "", 0)
        if not depth:
            return sql[parsed.words[1].end : word.start].strip()
    raise AssertionError("a call has a parenthesis at its end")


def only_one(generators: Sequence[Generator]) -> Generator | None:
    """Returns the generator of a select; None without one.

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
    """Returns the column that contains the array or map until the operator `explode` runs.

    Raises:
        ExpressionError: as `Generator.fields` does.
        SchemaError: if the structs have no fields, so that no column would be generated.
    """
    fields = made.fields(type_)
    if not fields:
        raise SchemaError(f"{made.called} of structs without fields has no columns")
    return Field(fields[0].name, type_)


_CALLED = {"window": "tumbling(c, on='ts', every='1 hour')", "session_window": "sessions(c, ...)"}
_SLIDING = "use nosync.windows.sliding(c, on='ts', size='1 hour', every='10 minutes')"


def windowed_times(sql: str) -> list[str]:
    """Returns the distinct time arguments of the windows in an expression, as text.

    Raises:
        ExpressionError: if a window call generates several rows from one, if the number of windows
            per row depends on its arguments, or if the text cannot be parsed.
    """
    if "window" not in sql.lower():
        return []
    parsed = parse(sql)
    calls = [node for node in parsed.tree.find_all(exp.Anonymous) if _name(node) in _CALLED]
    for node in calls:
        _refuse(sql, node)
    starts = [
        i
        for i, (word, after) in enumerate(zip(parsed.words, parsed.words[1:], strict=False))
        if word.text.lower() in _CALLED and (after.kind, after.text) == ("sign", "(")
    ]
    return list(dict.fromkeys(_first_argument(sql, parsed.words, i + 2) for i in starts))


def refuse_windows(sql: str, what: str) -> None:
    """Refuses windows in an expression that must not drop rows.

    Raises:
        ExpressionError: if the expression contains a window.
    """
    if windowed_times(sql):
        raise ExpressionError(
            f"{what}: {sql!r} drops rows whose time is null, which is not possible here",
            hint="compute it as a column first: select('*', \"window(ts, '1 hour') AS w\")",
        )


def _name(node: Any) -> str:
    return str(node.name).lower()


def _refuse(sql: str, node: Any) -> None:
    """Raises ExpressionError for a call that may not have exactly one window per row."""
    name, lengths = _name(node), node.expressions[1:]
    texts = [part.name.lower().split() if _is_text(part) else None for part in lengths]
    if name == "window" and len(texts) > 1 and (texts[0] is None or texts[0] != texts[1]):
        raise ExpressionError(
            f"expression {sql!r}: overlapping windows generate several rows for one", hint=_SLIDING
        )
    if not texts or (name == "session_window" and texts[0] is None):
        raise ExpressionError(
            f"expression {sql!r}: {name} needs a time, and a length that is a string",
            hint=f"write {name}(ts, '1 hour'), or use nosync.windows.{_CALLED[name]}",
        )


def _is_text(node: Any) -> bool:
    return isinstance(node, exp.Literal) and bool(node.is_string)


def _first_argument(sql: str, words: Sequence[Word], at: int) -> str:
    """Returns the text of a call's first argument, which begins at word `at`."""
    depth = 0
    for word in words[at:]:
        sign = word.text if word.kind == "sign" else ""
        if not depth and sign in (",", ")"):
            return sql[words[at].start : word.start].strip()
        depth += (sign in ("(", "[")) - (sign in (")", "]"))
    raise AssertionError("a call has a parenthesis at its end")
