"""Joins as compositions: semi, anti and left joins are made of the inner join and `distinct`.

With D the distinct keys of the right side: semi = left joined with D; anti = left - semi;
left = inner + (anti padded with nulls). So a second match never produces a padded row, null keys
appear padded, and multiplicities on the right do not multiply existence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nosync_nb.collection import Collection, Names
from nosync_nb.errors import SchemaError, StageError
from nosync_nb.rows import Field, Schema, widens

_KINDS = ("inner", "left", "semi", "anti")


def join(
    left: Collection, right: Collection, on: Names | Mapping[str, str], how: str
) -> Collection:
    """Joins two collections; see `Collection.join`."""
    if not isinstance(right, Collection):
        raise StageError(f"join: {right!r} is not a collection")
    if right._session is not left._session:
        raise StageError(
            "join: the other collection belongs to another session",
            hint="insert its rows into an input of this session",
        )
    kind = {"left_semi": "semi", "leftsemi": "semi", "left_anti": "anti", "leftanti": "anti"}.get(
        how, how.removesuffix("_outer").removesuffix("outer")
    )
    if kind not in _KINDS:
        raise SchemaError(f"join: unknown kind {how!r}", hint=f"use one of {', '.join(_KINDS)}")
    pairs = _pairs(left.schema, right.schema, on)
    left, right = _same_types(left, right, pairs)
    if kind == "inner":
        return _inner(left, right, pairs)
    keys = right._columns([r for _, r in pairs]).distinct()
    semi = _pick_left(left, keys, [(a, i) for i, (a, _) in enumerate(pairs)])
    if kind == "semi":
        return semi
    anti = left.concat(semi.negate())
    if kind == "anti":
        return anti
    inner = _inner(left, right, pairs)
    return inner.concat(anti._then("pad", inner.schema))


def _pairs(left: Schema, right: Schema, on: Names | Mapping[str, str]) -> list[tuple[int, int]]:
    """Positions of the key columns on both sides."""
    if isinstance(on, str):
        on = [on]
    named: Any = on.items() if isinstance(on, Mapping) else [(c, c) for c in on]
    pairs = [(left.index(a), right.index(b)) for a, b in named]
    if not pairs:
        raise SchemaError("join: no key columns", hint="name them: on='id' or on={'a': 'b'}")
    return pairs


def _same_types(
    left: Collection, right: Collection, pairs: list[tuple[int, int]]
) -> tuple[Collection, Collection]:
    """Widens key columns where one side's type is wider."""
    wide_left = list(left.schema.fields)
    wide_right = list(right.schema.fields)
    for place, other in pairs:
        a, b = wide_left[place], wide_right[other]
        if a.type == b.type:
            continue
        if widens(a.type, b.type):
            wide_left[place] = Field(a.name, b.type)
        elif widens(b.type, a.type):
            wide_right[other] = Field(b.name, a.type)
        else:
            raise SchemaError(
                f"join: key '{a.name}' is {a.type} on the left and '{b.name}' is {b.type} on"
                " the right",
                hint=f"cast one: with_columns({a.name}='cast({a.name} as {b.type})')",
            )
        if a.type.startswith("map") or b.type.startswith("map"):
            raise SchemaError(f"join: a map ('{a.name}') cannot be a key")
    return _widened(left, wide_left), _widened(right, wide_right)


def _widened(side: Collection, fields: list[Field]) -> Collection:
    schema = Schema(fields)
    return side if schema.types == side.schema.types else side._then("widen", schema)


def _inner(left: Collection, right: Collection, pairs: list[tuple[int, int]]) -> Collection:
    """The inner join with its output columns."""
    keys = {r for _, r in pairs}
    rest = [i for i in range(len(right.schema)) if i not in keys]
    taken = {n.lower() for n in left.schema.names}
    for i in rest:
        name = right.schema.names[i]
        if name.lower() in taken:
            raise SchemaError(
                f"join: both sides have a column '{name}'",
                hint=f"rename one of them first: other.rename({{'{name}': 'other_{name}'}})",
            )
    fields = [*left.schema.fields, *(right.schema.fields[i] for i in rest)]
    outputs = [[0, i] for i in range(len(left.schema))] + [[1, i] for i in rest]
    return _joined(left, right, pairs, Schema(fields), outputs)


def _pick_left(left: Collection, right: Collection, pairs: list[tuple[int, int]]) -> Collection:
    """The rows of the left side that have a match, as often as they match."""
    outputs = [[0, i] for i in range(len(left.schema))]
    return _joined(left, right, pairs, left.schema, outputs)


def _joined(
    left: Collection,
    right: Collection,
    pairs: list[tuple[int, int]],
    schema: Schema,
    outputs: list[list[int]],
) -> Collection:
    params = {"left": [a for a, _ in pairs], "right": [b for _, b in pairs], "outputs": outputs}
    return left._make("join", schema, (left, right), params)
