"""Adapts a definition to the current columns of its inputs. Pure: reads and writes nothing.

Operators refer to columns by position, and expressions by name. A function of a row may use any
column. So a missing column matters if it is used by an expression, a key, a position in a `select`,
or a function of a row. An operator that only passes the column on omits it, and its output has one
column less. Added columns are not visible to the definition.

A column with another type counts as missing, but must not be omitted silently. If it would be in
the output, or determine which rows are equal, the definition does not fit any more.

If columns were added or moved, a `select` with the parameter `fitted` adapts the input to the
definition. It is not part of the user's definition: it counts as no use of a column, and the next
adaptation builds it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from nosync_nb.collections.definition import Definition, SuspendedCall, reference_to, run_trampoline
from nosync_nb.dataflow.stage import MEMORY, Stage, StageOptions
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


class _AdaptedTree(NamedTuple):
    """A part, adapted to the current columns, and those of its previous columns that remain."""

    tree: Definition
    remains: RemainingColumns


def adapted_to_schemas(
    stage: Stage, catalog: Mapping[str, Stage], types: Types | None
) -> tuple[Stage, str | None]:
    """Adapts a stage to the current columns of its inputs.

    Returns:
        the adapted stage and None; or, if it uses a column that is missing, the unchanged stage and
        the reason why it cannot continue.

    Raises:
        StageError: if one of its inputs does not exist.
    """
    tree = stage.definition
    assert tree is not None
    for name in tree.references:
        if name not in catalog:
            raise StageError(
                f"stage '{stage.name}' reads '{name}', which does not exist",
                hint=f"define '{name}' first",
                stage=stage.name,
            )
    if all(catalog[ref.name].schema == ref.schema for ref in tree.refs):
        return stage, None
    try:
        fitted = run_trampoline(_SchemaAdapter(catalog, types).adapt_part(tree))
        refuse_retyped(fitted.remains.lost)
    except LostColumnError as error:
        return stage, str(error)
    return replace(stage, definition=fitted.tree, schema=fitted.tree.schema), None


def _source_reference(tree: Definition) -> Definition | None:
    """Returns a part as a reference with the columns that the definition was written for.

    The part is a reference, or a `fitted` projection of one. Returns None for any other part.
    """
    if tree.params.get("fitted"):
        return reference_to(tree.inputs[0].name, tree.schema)
    return tree if tree.is_ref else None


def _schema_without(schema: Schema, lost: Iterable[int]) -> Schema:
    lost_positions = set(lost)
    return Schema([f for i, f in enumerate(schema.fields) if i not in lost_positions])


class _SchemaAdapter:
    """Adapts the parts of one definition; shared parts remain shared."""

    def __init__(self, catalog: Mapping[str, Stage], types: Types | None) -> None:
        self.catalog = catalog
        self.types = types
        self.known: dict[int, _AdaptedTree] = {}

    def adapt_part(self, tree: Definition) -> SuspendedCall[_AdaptedTree]:
        """Returns a part, adapted to the current columns of its inputs."""
        adapted = self.known.get(id(tree))
        if adapted is None:
            source = _source_reference(tree)
            adapted = (
                self._adapted_reference(source)
                if source is not None
                else (yield self._adapted_part(tree))
            )
            self.known[id(tree)] = adapted
        return adapted

    def _adapted_reference(self, ref: Definition) -> _AdaptedTree:
        """Returns a reference with those of its columns that the collection still has."""
        schema = self.catalog[ref.name].schema
        every = list(range(len(ref.schema)))
        if schema == ref.schema:
            return _AdaptedTree(ref, RemainingColumns(every, {}))
        current = {f.name: (i, f.type) for i, f in enumerate(schema.fields)}
        lost = {}
        for i, field in enumerate(ref.schema.fields):
            type_now = current.get(field.name, (0, None))[1]
            if type_now != field.type:
                why = (
                    f"it reads column '{field.name}' ({field.type}) of '{ref.name}',"
                    f" which now has {type_now or 'no such column'}"
                )
                lost[i] = LostColumn(why, type_now is not None)
        if len(lost) == len(every):
            raise LostColumnError(lost[0].why)
        positions = [i for i in every if i not in lost]
        outputs = [current[ref.schema.names[i]][0] for i in positions]
        reference = (reference_to(ref.name, schema),)
        params = {"outputs": outputs, "fitted": True}
        columns = Definition("select", _schema_without(ref.schema, lost), reference, params)
        return _AdaptedTree(columns, RemainingColumns(positions, lost))

    def _adapted_part(self, tree: Definition) -> SuspendedCall[_AdaptedTree]:
        inputs: list[_AdaptedTree] = []
        for each in tree.inputs:
            inputs.append((yield self.adapt_part(each)))
        below, remains = tuple([each.tree for each in inputs]), [each.remains for each in inputs]
        fit = AdaptedPart(tree.params, {})
        if any(each.lost for each in remains):
            spec = SPECS.get(tree.op)
            fit = (spec.fit if spec else every_column)(tree, remains, self.types)
        elif all(a is b for a, b in zip(below, tree.inputs, strict=True)):
            return _AdaptedTree(tree, RemainingColumns(range(len(tree.schema)), {}))
        schema = _schema_without(tree.schema, fit.lost)
        fitted = Definition(tree.op, schema, below, fit.params, tree.captured)
        positions = [i for i in range(len(tree.schema)) if i not in fit.lost]
        return _AdaptedTree(fitted, RemainingColumns(positions, fit.lost))


def columns_kept(tree: Definition, options: StageOptions) -> StageOptions:
    """Returns the options of a stage, as nondeterministic if its expressions may be so.

    Then its results are memoised, so `persist` must not be `memory`.
    """
    if options.nondeterministic or not may_differ(tree.walk()):
        return options
    return replace(options, nondeterministic=True, persist=options.persist.replace(MEMORY, ""))
