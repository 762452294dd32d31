"""Generators whose rows are written in the call: `stack(2, a, b, c, d)` and `json_tuple(j, 'k')`.

The rows become an array of structs, which the generator `inline` makes rows of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlglot import exp

from nosync_nb.collections.sql.algebra import Column, Scalar
from nosync_nb.collections.sql.grammar import span_of
from nosync_nb.collections.sql.resolver.context import Context
from nosync_nb.collections.sql.resolver.rows import Rows
from nosync_nb.collections.sql.resolver.trees import signed_integer, text_literal
from nosync_nb.errors import SqlError
from nosync_nb.expressions.syntax.parser import value_of

_Pieces = tuple[str | Column, ...]


class WrittenRows(NamedTuple):
    """The rows of a call.

    Attributes:
        array: an array of structs.
        width: the number of columns.
        prefix: of Spark's names for the columns, before their number.
    """

    array: Scalar
    width: int
    prefix: str


def _stack(context: Context, tree: Any, rows: Rows) -> WrittenRows:
    """Resolves `stack(n, ...)`: n rows; the last one is filled with nulls."""
    count = signed_integer(tree.expressions[0]) if tree.expressions else None
    if count is None or count < 1 or len(tree.expressions) < 2:
        name = "UNEXPECTED_INPUT_TYPE" if count is None else "VALUE_OUT_OF_RANGE"
        name = "WRONG_NUM_ARGS" if len(tree.expressions) < 2 else f"DATATYPE_MISMATCH.{name}"
        raise context.failed(
            tree,
            f"[{name}] stack() takes a positive number of rows and their values",
            "write stack(2, 'a', 1, 'b', 2)",
        )
    values = tree.expressions[1:]
    width = -(-len(values) // count)
    cells = [*map(_value_or_null(context, rows), values), *[None] * (width * count - len(values))]
    for i in range(width):
        _type_nulls(context, tree, cells, range(i, len(cells), width), rows)
    lines = [cells[at : at + width] for at in range(0, len(cells), width)]
    return WrittenRows(_array(lines, tree), width, "col")


def _value_or_null(context: Context, rows: Rows) -> Callable[[Any], Scalar | None]:
    def resolved(tree: Any) -> Scalar | None:
        return None if isinstance(tree, exp.Null) else context.scalar(tree, rows)

    return resolved


def _type_nulls(
    context: Context, tree: Any, cells: list[Scalar | None], positions: Sequence[int], rows: Rows
) -> None:
    """Gives the nulls of a column the type of its values.

    Raises:
        SqlError: if the values have different types, which `stack` does not convert.
    """
    types: dict[str, Scalar] = {}
    first = next((cell for at in positions if (cell := cells[at]) is not None), None)
    for at in positions:
        cell = cells[at]
        try:
            if cell is not None:
                types.setdefault(context.type_of(cell, rows), cell)
        except SqlError:  # a column of an enclosing query, whose type is not known
            continue
    if len(types) > 1:
        names = " and ".join(types)
        raise context.failed(
            tree,
            "[DATATYPE_MISMATCH.STACK_COLUMN_DIFF_TYPES] a column of stack() has values of the"
            f" types {names}",
            "cast the values to one type",
        )
    null = ("CAST(NULL AS string)",) if first is None else typed_null(first.pieces)
    for at in positions:
        cells[at] = cells[at] or Scalar(null)


def typed_null(pieces: _Pieces) -> _Pieces:
    """Returns null with the type of an expression."""
    return ("get(array(", *pieces, "), 1)")


def _array(lines: Sequence[Sequence[Scalar | None]], tree: Any) -> Scalar:
    pieces: list[str | Column] = ["array("]
    for i, line in enumerate(lines):
        pieces.append(", named_struct(" if i else "named_struct(")
        for j, cell in enumerate(line):
            assert cell is not None
            pieces += [f"{', ' * (j > 0)}'{j}', ", *cell.pieces]
        pieces.append(")")
    return Scalar((*pieces, ")"), span_of(tree))


def _json_tuple(context: Context, tree: Any, rows: Rows) -> WrittenRows:
    """Resolves `json_tuple(json, 'a', ...)`: one row with the values of fields of an object."""
    json, *fields = tree.expressions or [None]
    if not fields:
        raise context.failed(
            tree,
            "[WRONG_NUM_ARGS.WITHOUT_SUGGESTION] json_tuple() takes a text and names of fields",
            "write json_tuple(json, 'a', 'b')",
        )
    text = context.scalar(json, rows).pieces
    if isinstance(json, exp.Null):
        raise context.failed(
            json,
            "[DATATYPE_MISMATCH.NON_STRING_TYPE] json_tuple() of a null without a type",
            "write cast(NULL AS string)",
        )
    cells = []
    for each in fields:
        source = context.cut(each)
        if not isinstance(each, exp.Literal | exp.RawString) or not source.endswith(("'", '"')):
            raise context.failed(
                each,
                "[UNSUPPORTED_FEATURE] json_tuple() with a name that is no string",
                "write the name of the field as a string, or get_json_object(json, '$.a')",
            )
        name = value_of(source)
        if "'" in name or "]" in name:
            raise context.failed(
                each,
                "[UNSUPPORTED_FEATURE] json_tuple() with a quote or a bracket in a name",
                "convert the text: from_json(json, 'map<string,string>')",
            )
        path = text_literal(f"$['{name}']")
        cells.append(Scalar(("get_json_object(", *text, f", {path})")))
    return WrittenRows(_array([cells], tree), len(cells), "c")


WRITTEN_ROWS: Mapping[str, Callable[[Context, Any, Rows], WrittenRows]] = {
    "stack": _stack,
    "json_tuple": _json_tuple,
}
"""The generators by name."""
