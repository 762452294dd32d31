"""Prunes columns: every part of the resulting definition has only the columns that are read.

The required columns are determined from the top. The result has all its columns, and each operator
determines the input columns for its own required ones (`Spec.reads`). Joins and selects then output
fewer columns. If another operator would carry unread columns, a `select` is inserted below it. It
is fused with the adjacent row-wise operators and copies nothing.

These properties are preserved:
- Named collections have all their columns; one arrangement of them by a key serves all readers.
- The rows of the result and its definition. This is a plan, which does not contribute to
  fingerprints of stages, and may differ in the next release.
- Errors. An expression that may raise is computed for the same rows, required or not. Rows with a
  negative multiplicity may cancel others once the columns that distinguish them are pruned. Such
  rows are in no collection that is read, so nothing is computed for them. Therefore the plan raises
  no error that the definition as written would not raise.
- Loops, with all their inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nosync_nb.collections.definition import Definition
from nosync_nb.errors import NosyncError
from nosync_nb.expressions import Types
from nosync_nb.operators.registry import SPECS, is_linear
from nosync_nb.operators.spec import (
    LostColumn,
    LostColumnError,
    Places,
    RemainingColumns,
    all_columns,
)
from nosync_nb.rows import Schema
from nosync_nb.rows.types import FIXED

_UNREAD = LostColumn("no other operator reads it", retyped=False)


def with_pruned_columns(tree: Definition, types: Types | None) -> Definition:
    """Returns an equivalent definition without unread columns; itself if all columns are read.

    Cost: O(size), and the compilation of its expressions.
    """
    try:
        return _ColumnPruner(tree, types).tree()
    except (LostColumnError, NosyncError):  # as written it does not compile either, or not now
        return tree


class _ColumnPruner:
    """Prunes one definition.

    Attributes:
        wanted: by the `id` of a part, its columns that are read.
        reads: for each part, the columns of its inputs that it reads.
        arranged: the parts with a reader that is not row-wise.
    """

    def __init__(self, tree: Definition, types: Types | None) -> None:
        self.types = types
        self.parts = [*tree.walk()]
        self.fixed = parts_with_fixed_columns(self.parts)
        self.wanted: dict[int, set[int]] = {id(part): set() for part in self.parts}
        self.reads: dict[int, Sequence[Places]] = {}
        self.arranged: set[int] = set()
        self.wanted[id(tree)].update(range(len(tree.schema)))
        for part in reversed(self.parts):
            self._record_reads(part)
        self.made: dict[int, tuple[Definition, tuple[int, ...]]] = {}

    def tree(self) -> Definition:
        """Returns the pruned definition."""
        for part in self.parts:
            self.made[id(part)] = self._narrow(part)
        return self.made[id(self.parts[-1])][0]

    def _record_reads(self, part: Definition) -> None:
        """Records the columns that a part reads, after all of its readers."""
        wanted, spec = self.wanted[id(part)], SPECS.get(part.op)
        if spec is None or id(part) in self.fixed:
            reads = all_columns(part, frozenset(), self.types)
        else:
            wanted |= spec.firm(part)
            if not wanted:
                wanted |= _narrowest_column(part.schema)
            reads = spec.reads(part, frozenset(wanted), self.types)
        self.reads[id(part)] = reads
        for each, positions in zip(part.inputs, reads, strict=True):
            self.wanted[id(each)] |= positions
            if not is_linear(part):
                self.arranged.add(id(each))

    def _narrow(self, part: Definition) -> tuple[Definition, tuple[int, ...]]:
        """Returns a part over narrowed inputs, and the positions of its remaining columns."""
        every = tuple(range(len(part.schema)))
        spec = SPECS.get(part.op)
        if spec is None or id(part) in self.fixed:
            return part, every
        required = tuple(sorted(self.wanted[id(part)]))
        params: Mapping[str, object] = part.params
        have = every
        if spec.narrowed is not None and required != every:
            params, have = spec.narrowed(part, required), required
        inputs = [
            self._trim_input(part, each, reads)
            for each, reads in zip(part.inputs, self.reads[id(part)], strict=True)
        ]
        below = tuple([each for each, _ in inputs])
        if have == every and all(a is b for a, b in zip(below, part.inputs, strict=True)):
            return self._trim_output(part, part, every, required)
        schema = Schema([part.schema.fields[i] for i in have])
        remains = [
            RemainingColumns(
                remaining, {i: _UNREAD for i in range(len(each.schema)) if i not in remaining}
            )
            for (_, remaining), each in zip(inputs, part.inputs, strict=True)
        ]
        if any(each.lost for each in remains):
            cut = Definition(part.op, schema, part.inputs, params, part.captured)
            params, lost = spec.fit(cut, remains, self.types)
            schema = Schema([field for i, field in enumerate(schema.fields) if i not in lost])
            have = tuple(position for i, position in enumerate(have) if i not in lost)
        narrow = Definition(part.op, schema, below, params, part.captured)
        return self._trim_output(part, narrow, have, required)

    def _trim_input(
        self, part: Definition, each: Definition, reads: Places
    ) -> tuple[Definition, tuple[int, ...]]:
        """Returns an input without unread columns, if its reader would copy or compare them."""
        narrowed, have = self.made[id(each)]
        carries = (is_linear(part) and part.op != "select") or part.op == "concat"
        if not carries or reads.issuperset(have):
            return narrowed, have
        required = reads or _narrowest_column(each.schema)
        return _project(narrowed, have, tuple(sorted(required)))

    def _trim_output(
        self,
        part: Definition,
        narrowed: Definition,
        have: tuple[int, ...],
        required: tuple[int, ...],
    ) -> tuple[Definition, tuple[int, ...]]:
        """Returns a part without its unread columns, if a reader arranges it."""
        if have == required or not is_linear(part) or id(part) not in self.arranged:
            return narrowed, have
        return _project(narrowed, have, required)


def parts_with_fixed_columns(parts: Sequence[Definition]) -> set[int]:
    """Returns the parts, by `id`, that are in loops or inputs of loops; these are not planned."""
    fixed: set[int] = set()
    for part in reversed(parts):
        if part.op in ("iterate", "variable") or id(part) in fixed:
            fixed.add(id(part))
            fixed.update(id(each) for each in part.inputs)
    return fixed


def _project(
    narrowed: Definition, have: tuple[int, ...], required: tuple[int, ...]
) -> tuple[Definition, tuple[int, ...]]:
    """Returns a projection of a part whose columns have the positions `have`."""
    return narrowed.columns([have.index(position) for position in required]), required


def _narrowest_column(schema: Schema) -> set[int]:
    """Returns a column for rows that are only counted: one of fixed width, if there is one."""
    positions = range(len(schema))
    return {min(positions, key=lambda i: (schema.types[i] not in FIXED, i))} if positions else set()
