"""Demand: a definition in which every part carries only the columns that somebody reads.

What is read is told from above: the result has all its columns; each operator says what it needs
of its inputs for those of its own that are wanted (`Spec.reads`). Joins and selects then give
fewer columns; where something else would carry more than is read, a `select` stands before it: it
is fused with the row-wise operators beside it and copies nothing.

What is as before:
- Named collections have all their columns; one arrangement of them by a key serves all readers.
- The rows of the result, and its definition: this is a plan, which has no part in fingerprints of
  stages, and may be another in the next release.
- What raises. An expression that may raise is computed for the same rows, wanted or not. Of rows
  that are there fewer than 0 times some may cancel others once the columns are gone by which they
  differ: as they are in no collection that is read, nothing is computed for them, and so nothing
  raises that would not raise as it is written.
- Loops, with all they read.
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

_UNREAD = LostColumn("nobody reads it", retyped=False)


def with_pruned_columns(tree: Definition, types: Types | None) -> Definition:
    """A definition of the same rows, without what nobody reads; itself if there is no such thing.

    Cost: O(size), and that of compiling its expressions.
    """
    try:
        return _Pruning(tree, types).tree()
    except (LostColumnError, NosyncError):  # it cannot be compiled as it stands either, or not now
        return tree


class _Pruning:
    """The pruning of one definition.

    Attributes:
        wanted: by the `id` of a part, the columns of it that somebody reads.
        reads: for each part, what it reads of its inputs.
        arranged: the parts that something reads which does not work row by row.
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
            self._ask(part)
        self.made: dict[int, tuple[Definition, tuple[int, ...]]] = {}

    def tree(self) -> Definition:
        """The definition, pruned."""
        for part in self.parts:
            self.made[id(part)] = self._narrow(part)
        return self.made[id(self.parts[-1])][0]

    def _ask(self, part: Definition) -> None:
        """Notes what a part reads, as all that read it have told what they want."""
        wanted, spec = self.wanted[id(part)], SPECS.get(part.op)
        if spec is None or id(part) in self.fixed:
            reads = all_columns(part, frozenset(), self.types)
        else:
            wanted |= spec.firm(part)
            if not wanted:
                wanted |= _least(part.schema)
            reads = spec.reads(part, frozenset(wanted), self.types)
        self.reads[id(part)] = reads
        for each, places in zip(part.inputs, reads, strict=True):
            self.wanted[id(each)] |= places
            if not is_linear(part):
                self.arranged.add(id(each))

    def _narrow(self, part: Definition) -> tuple[Definition, tuple[int, ...]]:
        """A part over narrowed inputs, and the places of the columns that are left."""
        every = tuple(range(len(part.schema)))
        spec = SPECS.get(part.op)
        if spec is None or id(part) in self.fixed:
            return part, every
        kept = tuple(sorted(self.wanted[id(part)]))
        params: Mapping[str, object] = part.params
        have = every
        if spec.narrowed is not None and kept != every:
            params, have = spec.narrowed(part, kept), kept
        inputs = [
            self._trimmed(part, each, reads)
            for each, reads in zip(part.inputs, self.reads[id(part)], strict=True)
        ]
        below = tuple([each for each, _ in inputs])
        if have == every and all(a is b for a, b in zip(below, part.inputs, strict=True)):
            return self._ended(part, part, every, kept)
        schema = Schema([part.schema.fields[i] for i in have])
        remains = [
            RemainingColumns(left, {i: _UNREAD for i in range(len(each.schema)) if i not in left})
            for (_, left), each in zip(inputs, part.inputs, strict=True)
        ]
        if any(each.lost for each in remains):
            cut = Definition(part.op, schema, part.inputs, params, part.captured)
            params, lost = spec.fit(cut, remains, self.types)
            schema = Schema([field for i, field in enumerate(schema.fields) if i not in lost])
            have = tuple(place for i, place in enumerate(have) if i not in lost)
        narrow = Definition(part.op, schema, below, params, part.captured)
        return self._ended(part, narrow, have, kept)

    def _trimmed(
        self, part: Definition, each: Definition, reads: Places
    ) -> tuple[Definition, tuple[int, ...]]:
        """An input without what its reader would carry along, if that copies rows or compares."""
        made, have = self.made[id(each)]
        carries = (is_linear(part) and part.op != "select") or part.op == "concat"
        if not carries or reads.issuperset(have):
            return made, have
        left = reads or _least(each.schema)
        return _picked(made, have, tuple(sorted(left)))

    def _ended(
        self, part: Definition, made: Definition, have: tuple[int, ...], kept: tuple[int, ...]
    ) -> tuple[Definition, tuple[int, ...]]:
        """A part without what it still has and nobody reads, where somebody would arrange that."""
        if have == kept or not is_linear(part) or id(part) not in self.arranged:
            return made, have
        return _picked(made, have, kept)


def parts_with_fixed_columns(parts: Sequence[Definition]) -> set[int]:
    """The parts, by `id`, that loops are or read: these are compiled as they stand."""
    fixed: set[int] = set()
    for part in reversed(parts):
        if part.op in ("iterate", "variable") or id(part) in fixed:
            fixed.add(id(part))
            fixed.update(id(each) for each in part.inputs)
    return fixed


def _picked(
    made: Definition, have: tuple[int, ...], kept: tuple[int, ...]
) -> tuple[Definition, tuple[int, ...]]:
    """Some columns of a part, which has columns of these places."""
    return made.columns([have.index(place) for place in kept]), kept


def _least(schema: Schema) -> set[int]:
    """A column for rows of which only the number counts: one of fixed width, if there is one."""
    places = range(len(schema))
    return {min(places, key=lambda i: (schema.types[i] not in FIXED, i))} if places else set()
