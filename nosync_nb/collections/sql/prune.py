"""Removes columns that nothing uses, so that no operator stores them.

A window or the first rows of a group keep their input as state. What a query does not select, group
by or compare is projected away below them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nosync_nb.collections.sql.algebra import (
    Column,
    LogicalAggregate,
    LogicalFilter,
    LogicalGenerate,
    LogicalJoin,
    LogicalProject,
    LogicalScan,
    LogicalSetOperation,
    LogicalTop,
    LogicalWindow,
    Output,
    Relation,
    column,
    walk,
    with_inputs,
)


def pruned(relation: Relation, wanted: Sequence[Column]) -> Relation:
    """Returns a relation with at least some columns of another one, and the same rows.

    Cost: O(size).
    """
    needed = _needed(relation, wanted)
    made: dict[int, Relation] = {}
    for each in walk(relation):
        inputs = [made[id(i)] for i in each.inputs]
        made[id(each)] = _restricted(each, inputs, needed[id(each)])
    return made[id(relation)]


def _needed(relation: Relation, wanted: Sequence[Column]) -> dict[int, set[Column]]:
    """Returns the columns of each relation that the relations above it use."""
    order = list(walk(relation))
    needed: dict[int, set[Column]] = {id(each): set() for each in order}
    needed[id(relation)].update(wanted)
    for each in reversed(order):  # a relation comes before its inputs
        for source, columns in zip(each.inputs, _used(each, needed[id(each)]), strict=True):
            needed[id(source)] |= columns & set(source.columns)
    return needed


def _used(relation: Relation, needed: set[Column]) -> list[set[Column]]:
    """Returns the columns of each input that a relation uses if only some of its own are needed."""
    if isinstance(relation, LogicalProject):
        return [{c for o in relation.outputs if o.column in needed for c in o.value.columns}]
    if isinstance(relation, LogicalFilter):
        return [needed | relation.condition.columns]
    if isinstance(relation, LogicalGenerate):
        return [needed | relation.generator.argument.columns]
    if isinstance(relation, LogicalAggregate):
        calls = _calls(relation, needed)
        return [{*relation.keys, *(c for each in calls for c in each.value.columns)}]
    if isinstance(relation, LogicalTop):
        return [needed | {*relation.groups, *(term.column for term in relation.order)}]
    if isinstance(relation, LogicalWindow):
        used = {*relation.groups, *(term.column for term in relation.order)}
        for function in relation.functions:
            if function.column in needed:
                used |= {*function.arguments}
                used |= function.call.columns if function.call is not None else set()
        return [needed | used]
    if isinstance(relation, LogicalJoin):
        used = needed.union(*(each.columns for each in relation.conditions))
        return [used, used if relation.kind != "single" else used | set(relation.right.columns)]
    if isinstance(relation, LogicalSetOperation) and relation.kind == "union":
        places = [i for i, each in enumerate(relation.columns) if each in needed] or [0]
        return [{side.columns[i] for i in places} for side in relation.inputs]
    return [set(each.columns) for each in relation.inputs]  # DISTINCT, EXCEPT, a recursion


def _restricted(relation: Relation, inputs: list[Relation], needed: set[Column]) -> Relation:
    """Returns a relation over restricted inputs, with the columns that are needed."""
    if isinstance(relation, LogicalScan) and relation.at is not None:  # its rows are copied
        named = tuple(each for each in relation.named if each.column in needed)
        named = named or relation.named[:1]
        return replace(relation, columns=tuple(each.column for each in named), named=named)
    if isinstance(relation, LogicalProject):
        outputs = tuple(each for each in relation.outputs if each.column in needed)
        columns = tuple(each.column for each in outputs)
        return _merged(LogicalProject(columns, inputs[0], outputs))
    if isinstance(relation, LogicalAggregate):
        calls = _calls(relation, needed)
        columns = (*dict.fromkeys(relation.keys), *(each.column for each in calls))
        return LogicalAggregate(columns, inputs[0], relation.keys, calls)
    if isinstance(relation, LogicalGenerate):
        columns = (*inputs[0].columns, *relation.generator.columns)
        return replace(relation, columns=columns, source=inputs[0])
    if isinstance(relation, LogicalTop):
        source = _narrowed(inputs[0], _used(relation, needed)[0])
        return replace(relation, columns=source.columns, source=source)
    if isinstance(relation, LogicalWindow):
        functions = tuple(each for each in relation.functions if each.column in needed)
        if not functions:
            return inputs[0]
        source = _narrowed(inputs[0], _used(relation, needed)[0])
        columns = (*source.columns, *(each.column for each in functions))
        return replace(relation, columns=columns, source=source, functions=functions)
    if isinstance(relation, LogicalSetOperation) and relation.kind == "union":
        return _union(relation, inputs, needed)
    if isinstance(relation, LogicalFilter):
        return replace(relation, columns=inputs[0].columns, source=inputs[0])
    if isinstance(relation, LogicalJoin):
        return _join(relation, inputs[0], inputs[1], needed)
    whole = [_exactly(made, before) for made, before in zip(inputs, relation.inputs, strict=True)]
    return with_inputs(relation, whole)


def _calls(relation: LogicalAggregate, needed: set[Column]) -> tuple[Output, ...]:
    """Returns the calls that are needed; an aggregate without keys has at least one."""
    calls = tuple(each for each in relation.calls if each.column in needed)
    return calls if calls or relation.keys else relation.calls[:1]


def _join(relation: LogicalJoin, left: Relation, right: Relation, needed: set[Column]) -> Relation:
    own: tuple[Column, ...] = (*left.columns, *right.columns)
    if relation.kind in ("semi", "anti"):
        own = left.columns
    elif relation.kind == "mark":
        own = (*left.columns, relation.mark)
    if relation.kind == "single":
        right = _exactly(right, relation.right)
        own = (*left.columns, *right.columns)
    columns = tuple(each for each in own if each in needed or relation.kind != "inner")
    return replace(relation, columns=columns or own[:1], left=left, right=right)


def _union(relation: LogicalSetOperation, inputs: list[Relation], needed: set[Column]) -> Relation:
    places = [i for i, each in enumerate(relation.columns) if each in needed] or [0]
    sides = []
    for made, before in zip(inputs, relation.inputs, strict=True):
        columns = tuple(before.columns[i] for i in places)
        sides.append(made if made.columns == columns else _projected(made, columns))
    columns = tuple(relation.columns[i] for i in places)
    return replace(relation, columns=columns, left=sides[0], right=sides[1])


def _exactly(made: Relation, before: Relation) -> Relation:
    """Returns a relation with the columns of another one, in their order."""
    return made if made.columns == before.columns else _projected(made, before.columns)


def _narrowed(relation: Relation, needed: set[Column]) -> Relation:
    """Returns a relation without columns that are not needed."""
    columns = tuple(each for each in relation.columns if each in needed)
    return relation if columns == relation.columns else _projected(relation, columns)


def _projected(relation: Relation, columns: tuple[Column, ...]) -> Relation:
    return _merged(LogicalProject(columns, relation, tuple(Output(c, column(c)) for c in columns)))


def _merged(relation: LogicalProject) -> Relation:
    """Returns one projection for two, if the lower one only passes columns on."""
    below = relation.source
    if not isinstance(below, LogicalProject) or any(o.value.column is None for o in below.outputs):
        return relation
    passed = {each.column: each.value.columns for each in below.outputs}
    renamed = {c: next(iter(columns)) for c, columns in passed.items()}
    outputs = tuple(Output(o.column, o.value.mapped(renamed)) for o in relation.outputs)
    return LogicalProject(relation.columns, below.source, outputs)
