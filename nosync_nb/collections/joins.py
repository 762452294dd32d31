"""Builds all kinds of joins from the inner join and `distinct`.

Let D be the distinct keys of the right side. Then semi = left joined with D; anti = left - semi; a
left join = inner + (anti padded with nulls). A right join adds the right rows without a left
partner, padded on the left. A full join adds both. Therefore a row with a partner is never padded,
rows with null keys are padded, and duplicates on the right side do not multiply the result of a
semi or anti join.

A key may be a Spark SQL expression over one side. It becomes an additional column for the match,
which is not in the result.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.row_expressions import as_entries, stable
from nosync_nb.collections.session_protocol import SparkTypeResolver
from nosync_nb.errors import ExpressionError, SchemaError, warn
from nosync_nb.expressions import recorded_settings
from nosync_nb.operators import CROSS_ROWS_MAX
from nosync_nb.rows import Field, Schema, widens

_CONDITION = re.compile(r"[<>=]|\b(and|or|between)\b", re.IGNORECASE)
"""A part of the text of a condition."""
_KINDS = ("inner", "left", "right", "full", "semi", "anti", "cross")
_SPELLINGS = {"outer": "full", "leftsemi": "semi", "leftanti": "anti"}
On = str | Sequence[str] | Mapping[str, str] | None
"""The keys of a join: a column, a list of columns, or a dict of left and right expressions."""


class JoinSides(NamedTuple):
    """The two sides of a join, prepared for the match.

    Attributes:
        left, right: the definitions, with computed keys as last columns. Matching keys have the
            same type.
        pairs: the positions of the left and right column of each key.
        widths: the number of columns of each side without computed keys.
        rest: the positions of the right columns that are in the result.
    """

    left: Definition
    right: Definition
    pairs: list[tuple[int, int]]
    widths: tuple[int, int]
    rest: list[int]

    def schema(self) -> Schema:
        """Returns the columns of the result."""
        own = self.left.schema.fields[: self.widths[0]]
        return Schema([*own, *(self.right.schema.fields[i] for i in self.rest)])


def join_definition(
    left: Definition, right: Definition, on: On, how: str, types: SparkTypeResolver
) -> Definition:
    """Joins two definitions; see `Collection.join`."""
    kind = join_kind(how)
    if kind == "cross":
        return _cross(left, right, on)
    sides = match_sides(left, right, on, kind, types)
    if kind == "semi":
        return _without_computed_keys(_semi(sides), sides.widths[0])
    if kind == "anti":
        return _without_computed_keys(_anti(sides), sides.widths[0])
    check_columns(sides)
    parts = [_inner(sides)]
    if kind in ("left", "full"):
        lonely = _without_computed_keys(_anti(sides), sides.widths[0])
        parts.append(lonely.then("pad", sides.schema()) if sides.rest else lonely)
    if kind in ("right", "full"):
        parts.append(_padded_left(sides))
    return Definition("concat", parts[0].schema, tuple(parts)) if len(parts) > 1 else parts[0]


def join_kind(how: str) -> str:
    """Returns the kind of a join that is written in any of Spark's spellings."""
    plain = how.lower().replace("_", "") if isinstance(how, str) else ""
    kind = _SPELLINGS.get(plain) or plain.removesuffix("outer")
    if kind not in _KINDS:
        raise SchemaError(f"join: unknown kind {how!r}", hint=f"use one of {', '.join(_KINDS)}")
    return kind


def match_sides(
    left: Definition, right: Definition, on: On, kind: str, types: SparkTypeResolver
) -> JoinSides:
    """Returns the two sides with resolved keys; matching keys have the same type."""
    named = _key_pairs(on)
    widths = (len(left.schema), len(right.schema))
    _check_keys(left, right, named)
    if kind not in ("semi", "anti"):
        _check_columns_early(left, right, named, kind)
    left, left_places = _with_computed_keys(left, [a for a, _ in named], types)
    right, right_places = _with_computed_keys(right, [b for _, b in named], types)
    pairs = list(zip(left_places, right_places, strict=True))
    if kind in ("semi", "anti"):  # because widened keys would change the left columns
        left, pairs = _with_copied_keys(left, right, pairs)
    left, right = _same_types(left, right, pairs, [a for a, _ in named], widths)
    # A right key equals the left one, so it is omitted. In right and full joins there are rows
    # without a left side, so there it is omitted only if the left key is a plain column.
    outer = kind in ("right", "full")
    gone = {b for a, b in pairs if not outer or a < widths[0]}
    rest = [i for i in range(widths[1]) if i not in gone]
    return JoinSides(left, right, pairs, widths, rest)


def _key_pairs(on: On) -> list[tuple[str, str]]:
    """Returns the keys as pairs of a left and a right name or expression."""
    if on is None:
        raise SchemaError(
            "join: no key columns",
            hint="name the key columns: on='id' or on={'a': 'b'}; or write a condition:"
            " where='at BETWEEN start AND stop'; or how='cross'",
        )
    if isinstance(on, str):
        on = [on]
    keys: Any = on if isinstance(on, Iterable) else [on]
    named: list[Any] = [*keys.items()] if isinstance(keys, Mapping) else [(c, c) for c in keys]
    for key in (each for pair in named for each in pair):
        if not isinstance(key, str):
            raise SchemaError(
                f"join: {key!r} is neither a column nor an expression",
                hint="write on='id', on=['a', 'b'] or on={'lower(a)': 'b'}; or where='x < y' for"
                " a condition on columns of both sides",
            )
    if not named:
        raise SchemaError(
            "join: no key columns", hint="name the key columns: on='id' or on={'a': 'b'}"
        )
    return named


def _check_keys(left: Definition, right: Definition, named: Sequence[tuple[str, str]]) -> None:
    """Raises SchemaError if a key column does not exist; the message names the side."""
    for a, b in named:
        for key, of, which, other in ((a, left, "left", right), (b, right, "right", left)):
            if not re.fullmatch(r"\w+", key) or key.lower() in map(str.lower, of.schema.names):
                continue
            hint = f"the columns are {', '.join(of.schema.names)}"
            near = difflib.get_close_matches(key, of.schema.names, n=1)
            if near:
                hint = f"did you mean {near[0]!r}? {hint}"
            elif a == b and key in other.schema:
                pair = f"{{{key!r}: '...'}}" if which == "right" else f"{{'...': {key!r}}}"
                hint = f"write on={pair} if the column has another name on that side; {hint}"
            raise SchemaError(f"join: the {which} side has no column {key!r}", hint=hint)


def _check_columns_early(
    left: Definition, right: Definition, named: Sequence[tuple[str, str]], kind: str
) -> None:
    """Raises SchemaError if both sides have a column of the same name.

    This check needs no types of keys, so Spark need not be started for it.
    """
    plain = [(a.lower(), b.lower()) for a, b in named]
    taken = {name.lower() for name in left.schema.names}
    outer = kind in ("right", "full")
    keys = {b for a, b in plain if not outer or a in taken}
    for name in right.schema.names:
        if name.lower() in taken - keys:
            raise _clash_error(name)


def _clash_error(name: str) -> SchemaError:
    return SchemaError(
        f"join: both sides have a column '{name}'",
        hint=f"rename one of them first: other.rename({{'{name}': 'other_{name}'}})",
    )


def _with_computed_keys(
    side: Definition, keys: Sequence[str], types: SparkTypeResolver
) -> tuple[Definition, list[int]]:
    """Adds computed keys as additional columns, and returns the positions of all keys."""
    schema = side.schema
    outputs: list[Any] = list(range(len(schema)))
    fields = list(schema.fields)
    places = []
    settings = []
    for key in keys:
        if re.fullmatch(r"\w+", key) or key in schema:
            places.append(schema.index(key))
            continue
        try:
            compiled = stable(side, key, "join", types)
        except ExpressionError as error:
            if not _CONDITION.search(key):
                raise
            raise ExpressionError(
                f"join: the key {key!r} is not an expression of one side: {error}",
                hint=f"write a condition on both sides with where={key!r}",
            ) from error
        if compiled.is_column:
            places.append(compiled.columns[0])
            continue
        places.append(len(outputs))
        outputs.append(key)
        settings.append(compiled.settings)
        fields.append(Field(Schema(fields).unused("key"), compiled.type))
    if len(outputs) == len(schema):
        return side, places
    params = {"outputs": outputs, **recorded_settings(settings)}
    return side.then("select", Schema(fields), params), places


def _with_copied_keys(
    left: Definition, right: Definition, pairs: Sequence[tuple[int, int]]
) -> tuple[Definition, list[tuple[int, int]]]:
    """Duplicates left key columns of a narrower type, so that the duplicates can be widened."""
    outputs = list(range(len(left.schema)))
    fields = list(left.schema.fields)
    copied = []
    for a, b in pairs:
        place, narrow, wide = a, left.schema.types[a], right.schema.types[b]
        if narrow != wide and widens(narrow, wide):
            place = len(outputs)
            outputs.append(a)
            fields.append(Field(Schema(fields).unused("key"), narrow))
        copied.append((place, b))
    if len(outputs) > len(left.schema):
        left = left.then("select", Schema(fields), {"outputs": outputs})
    return left, copied


def _same_types(
    left: Definition,
    right: Definition,
    pairs: Sequence[tuple[int, int]],
    named: Sequence[str],
    widths: tuple[int, int],
) -> tuple[Definition, Definition]:
    """Widens each key column to the type of the other side, if that type is wider."""
    wide_left = list(left.schema.fields)
    wide_right = list(right.schema.fields)
    for (place, other), text in zip(pairs, named, strict=True):
        a, b = wide_left[place], wide_right[other]
        if "map<" in a.type or "map<" in b.type:
            entries = [as_entries(field.name, field.type) for field in (a, b)]
            raise SchemaError(
                f"join: '{text}' is a map, and maps cannot be keys",
                hint=f"join on their entries: on={{{entries[0]!r}: {entries[1]!r}}}",
            )
        if a.type == b.type:
            continue
        if widens(a.type, b.type):
            wide_left[place] = Field(a.name, b.type)
        elif widens(b.type, a.type):
            wide_right[other] = Field(b.name, a.type)
        else:
            of = f"'{b.name}'" if other < widths[1] else "its expression"
            raise SchemaError(
                f"join: key '{text}' is {a.type} on the left and {of} is {b.type} on the right",
                hint=f"cast one: on={{'cast({text} as {b.type})': ...}}",
            )
    return _widened(left, wide_left), _widened(right, wide_right)


def _widened(side: Definition, fields: list[Field]) -> Definition:
    schema = Schema(fields)
    return side if schema.types == side.schema.types else side.then("widen", schema)


def check_columns(sides: JoinSides) -> None:
    """Raises SchemaError if both sides have a column of the same name in the result."""
    taken = {f.name.lower() for f in sides.left.schema.fields[: sides.widths[0]]}
    for i in sides.rest:
        name = sides.right.schema.names[i]
        if name.lower() in taken:
            raise _clash_error(name)


def _without_computed_keys(side: Definition, width: int) -> Definition:
    """Returns the first `width` columns, which excludes computed keys."""
    return side if len(side.schema) == width else side.columns(range(width))


def _inner(sides: JoinSides) -> Definition:
    """Builds the inner join."""
    outputs = [[0, i] for i in range(sides.widths[0])] + [[1, i] for i in sides.rest]
    return _pairs(sides.left, sides.right, sides.pairs, sides.schema(), outputs)


def _semi(sides: JoinSides) -> Definition:
    """Builds the left rows that have a partner, with their own counts."""
    keys = sides.right.columns(_distinct([b for _, b in sides.pairs])).then("distinct")
    places = {b: i for i, b in enumerate(_distinct([b for _, b in sides.pairs]))}
    outputs = [[0, i] for i in range(len(sides.left.schema))]
    pairs = [(a, places[b]) for a, b in sides.pairs]
    return _pairs(sides.left, keys, pairs, sides.left.schema, outputs)


def _distinct(places: Sequence[int]) -> list[int]:
    return list(dict.fromkeys(places))


def _anti(sides: JoinSides) -> Definition:
    """Builds the left rows without a partner."""
    partners = _semi(sides).then("negate")
    return Definition("concat", sides.left.schema, (sides.left, partners))


def _padded_left(sides: JoinSides) -> Definition:
    """Builds the right rows without a partner, with their keys in the left columns."""
    back = [(b, a) for a, b in sides.pairs]
    lonely = _anti(sides._replace(left=sides.right, right=sides.left, pairs=back))
    schema, width = sides.schema(), len(lonely.schema)
    keys = dict(reversed(sides.pairs))
    missing = [i for i in range(sides.widths[0]) if i not in keys]
    types = [*lonely.schema.types, *(schema.types[i] for i in missing)]
    if missing:
        padded = Schema([Field(f"c{i}", t) for i, t in enumerate(types)])
        lonely = lonely.then("pad", padded)
    nulls = {i: width + at for at, i in enumerate(missing)}
    outputs = [keys.get(i, nulls.get(i)) for i in range(sides.widths[0])] + sides.rest
    return lonely.then("select", schema, {"outputs": outputs})


def _cross(left: Definition, right: Definition, on: On) -> Definition:
    """Builds a cross join: a join by a key without columns."""
    if on is not None:
        raise SchemaError(
            "join: a cross join has no key columns", hint="leave out on=, or use how='inner'"
        )
    width = len(left.schema)
    sides = JoinSides(left, right, [], (width, len(right.schema)), list(range(len(right.schema))))
    check_columns(sides)
    warn(
        "join: how='cross' pairs every row with every row; whenever a row changes, all its"
        f" pairs change. An epoch may return {CROSS_ROWS_MAX:,} rows at most; join on a key if"
        " there is one",
        stacklevel=4,
    )
    return _inner(sides)


def _pairs(
    left: Definition,
    right: Definition,
    pairs: Sequence[tuple[int, int]],
    schema: Schema,
    outputs: list[list[int]],
) -> Definition:
    params = {"left": [a for a, _ in pairs], "right": [b for _, b in pairs], "outputs": outputs}
    return Definition("join", schema, (left, right), params)
