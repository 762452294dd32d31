"""Rebasing: a definition over the present columns of what it reads, decided purely.

Operators refer to columns by place, expressions by name, functions as they like. A column that is
gone matters if somebody uses it: an expression, a key, a place in a `select`, any function of a
row. What only passes it on passes it on no longer, and its output has a column less. What has
columns more does not see them.

A column that is there with another type is gone for this purpose, but must not pass for it: if it
would reach the output, or decide which rows are equal, the definition does not fit any more.

What stands between a definition and columns that were added or moved is a `select` marked *fitted*.
It is ours, not the user's: it uses nothing, and the next edit makes it anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from nosync_nb.collections.definition import Definition, reference_to
from nosync_nb.dataflow.stage import MEMORY, Stage, StageOptions
from nosync_nb.dataflow.trampoline import Call, run_trampoline
from nosync_nb.errors import StageError
from nosync_nb.expressions import Types
from nosync_nb.operators.registry import SPECS, may_differ
from nosync_nb.operators.spec import (
    AdaptedPart,
    LostColumn,
    LostColumnError,
    RemainingColumns,
    every_column,
    refuse_retyped,
)
from nosync_nb.rows import Schema


class _Fitted(NamedTuple):
    """A part over present columns, and what is left of those that it had."""

    tree: Definition
    remains: RemainingColumns


def adapted_to_schemas(
    stage: Stage, catalog: Mapping[str, Stage], types: Types | None
) -> tuple[Stage, str | None]:
    """The stage over the present columns of what it reads; if it uses missing ones, as it is.

    Returns:
        also why it cannot go on, None if it can.

    Raises:
        StageError: if something that it reads is not there.
    """
    tree = stage.definition
    assert tree is not None
    for name in tree.references:
        if name not in catalog:
            raise StageError(
                f"stage '{stage.name}' reads '{name}', which is not there",
                hint=f"define '{name}' first",
                stage=stage.name,
            )
    if all(catalog[ref.name].schema == ref.schema for ref in tree.refs):
        return stage, None
    try:
        fitted = run_trampoline(_Fitter(catalog, types).fit(tree))
        refuse_retyped(fitted.remains.lost)
    except LostColumnError as error:
        return stage, str(error)
    return replace(stage, definition=fitted.tree, schema=fitted.tree.schema), None


def _read(tree: Definition) -> Definition | None:
    """The collection that a part is, with the columns that a definition knows of; None if none."""
    if tree.params.get("fitted"):
        return reference_to(tree.inputs[0].name, tree.schema)
    return tree if tree.is_ref else None


def _without(schema: Schema, lost: Iterable[int]) -> Schema:
    gone = set(lost)
    return Schema([f for i, f in enumerate(schema.fields) if i not in gone])


class _Fitter:
    """Fits the parts of one definition; parts that are shared stay so."""

    def __init__(self, catalog: Mapping[str, Stage], types: Types | None) -> None:
        self.catalog = catalog
        self.types = types
        self.known: dict[int, _Fitted] = {}

    def fit(self, tree: Definition) -> Call[_Fitted]:
        """A part over present columns."""
        known = self.known.get(id(tree))
        if known is None:
            source = _read(tree)
            known = self._source(source) if source is not None else (yield self._part(tree))
            self.known[id(tree)] = known
        return known

    def _source(self, ref: Definition) -> _Fitted:
        """What is left of the columns of a collection."""
        schema = self.catalog[ref.name].schema
        every = list(range(len(ref.schema)))
        if schema == ref.schema:
            return _Fitted(ref, RemainingColumns(every, {}))
        held = {f.name: (i, f.type) for i, f in enumerate(schema.fields)}
        lost = {}
        for i, field in enumerate(ref.schema.fields):
            have = held.get(field.name, (0, None))[1]
            if have != field.type:
                why = (
                    f"it reads column '{field.name}' ({field.type}) of '{ref.name}',"
                    f" which now has {have or 'no such column'}"
                )
                lost[i] = LostColumn(why, have is not None)
        if len(lost) == len(every):
            raise LostColumnError(lost[0].why)
        places = [i for i in every if i not in lost]
        outputs = [held[ref.schema.names[i]][0] for i in places]
        fresh = (reference_to(ref.name, schema),)
        params = {"outputs": outputs, "fitted": True}
        columns = Definition("select", _without(ref.schema, lost), fresh, params)
        return _Fitted(columns, RemainingColumns(places, lost))

    def _part(self, tree: Definition) -> Call[_Fitted]:
        inputs: list[_Fitted] = []
        for each in tree.inputs:
            inputs.append((yield self.fit(each)))
        below, remains = tuple([each.tree for each in inputs]), [each.remains for each in inputs]
        fit = AdaptedPart(tree.params, {})
        if any(each.lost for each in remains):
            spec = SPECS.get(tree.op)
            fit = (spec.fit if spec else every_column)(tree, remains, self.types)
        elif all(a is b for a, b in zip(below, tree.inputs, strict=True)):
            return _Fitted(tree, RemainingColumns(range(len(tree.schema)), {}))
        schema = _without(tree.schema, fit.lost)
        fitted = Definition(tree.op, schema, below, fit.params, tree.captured)
        places = [i for i in range(len(tree.schema)) if i not in fit.lost]
        return _Fitted(fitted, RemainingColumns(places, fit.lost))


def columns_kept(tree: Definition, options: StageOptions) -> StageOptions:
    """The options of a stage; one with the clock or random values keeps what they gave."""
    if options.nondeterministic or not may_differ(tree.walk()):
        return options
    return replace(options, nondeterministic=True, persist=options.persist.replace(MEMORY, ""))
