"""Joins of two definitions on a condition: the same definitions as a join in SQL.

The condition is resolved and planned as that of `SELECT ... FROM left JOIN right ON ...`.
"""

from __future__ import annotations

from collections.abc import Sequence

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.joins import JoinSides, On, check_columns, join_kind, match_sides
from nosync_nb.collections.session_protocol import SparkTypeResolver
from nosync_nb.collections.sql.query import query_definition
from nosync_nb.errors import SchemaError
from nosync_nb.rows import Schema
from nosync_nb.rows.ddl import quoted

_NAMES = ("left", "right")


def conditional_join_definition(
    left: Definition, right: Definition, on: On, how: str, where: str, types: SparkTypeResolver
) -> Definition:
    """Joins two definitions on keys and a condition; see `Collection.join`."""
    kind = join_kind(how)
    if not isinstance(where, str):
        raise SchemaError(
            f"join: where={where!r} is not a Spark SQL condition",
            hint="write it as text: where='at BETWEEN start AND stop'",
        )
    if kind == "cross":
        raise SchemaError(
            "join: a cross join has no condition", hint="leave out how=, or use how='left'"
        )
    widths = (len(left.schema), len(right.schema))
    sides = JoinSides(left, right, [], widths, list(range(widths[1])))
    if on is not None:
        sides = match_sides(left, right, on, kind, types)
    rest = [] if kind in ("semi", "anti") else sides.rest
    if kind not in ("semi", "anti"):
        check_columns(sides)
    tables = dict(zip(_NAMES, (sides.left, sides.right), strict=True))
    names = [
        [f"{quoted(name)}.{quoted(column)}" for column in tables[name].schema.names]
        for name in _NAMES
    ]
    keys = [f"{names[0][a]} = {names[1][b]}" for a, b in sides.pairs]
    outputs = _left_outputs(sides, names, kind)
    outputs += [_named(sides, names[1][i], 1, i) for i in rest]
    # The condition has a line of its own, because errors show the line.
    condition = f"{' AND '.join(keys)} AND (\n{where}\n)" if keys else f"\n{where}"
    join = f"FROM `left` {kind.upper()} JOIN `right` ON {condition}"
    return query_definition(f"SELECT {', '.join(outputs)} {join}", tables.get, types)


def _left_outputs(sides: JoinSides, names: Sequence[Sequence[str]], kind: str) -> list[str]:
    """Returns the left columns; in right and full joins, keys are those of the other side, too."""
    keys = dict(reversed(sides.pairs)) if kind in ("right", "full") else {}
    outputs = []
    for i in range(sides.widths[0]):
        text = names[0][i]
        if i in keys:
            text = f"coalesce({text}, {names[1][keys[i]]})"
        outputs.append(_named(sides, text, 0, i))
    return outputs


def _named(sides: JoinSides, text: str, side: int, place: int) -> str:
    schema: Schema = (sides.left, sides.right)[side].schema
    return f"{text} AS {quoted(schema.names[place])}"
