"""Pushes filters down a definition and prunes columns, where that saves work.

A filter above a join is evaluated on the side whose columns it reads, before rows of that side are
joined and stored. It is also pushed into the inputs of a union, and below `distinct`. The conjuncts
of an `and` are pushed separately.

The pushdown preserves these properties:
1. A predicate moves only if no row can make it raise. Below a join it is also evaluated on rows
   without a partner, unlike in the definition as written.
2. A predicate does not move below an operator that may raise. In the definition as written that
   operator processes all rows, so it must do so in the plan.
3. A predicate stays above a part with another reader, and above named collections. A named
   collection has one arrangement for all readers, and filtered rows would need another one.
4. A predicate stays above `top`, aggregates, functions and loops, because there a row may affect
   the result for other rows.

The module also prunes columns: every part of the resulting definition has only the columns that are
read. The required columns are determined from the top down. The result has all of its columns. From
the required columns of its output, each operator determines the required columns of its inputs
(`Spec.reads`). Joins and selects then output fewer columns. If another operator would carry unread
columns, a `select` is inserted below it. The `select` is fused with the adjacent row-wise
operators, and copies no rows.

These properties are preserved:
- Named collections. They have all of their columns, so that one arrangement by a key serves all
  readers.
- The rows of the result. The definition itself is also unchanged: a plan does not contribute to
  fingerprints of stages, and may differ in the next release.
- Errors. An expression that may raise is computed for the same rows, even if it is not required.
  Rows with a negative multiplicity may cancel others after the columns that distinguish them are
  pruned. Such rows are in no collection that is read, so nothing is computed for them. Therefore
  the plan raises no error that the definition as written would not raise.
- Loops and all of their inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nosync_nb.collections.definition import Definition, SuspendedCall, run_trampoline
from nosync_nb.errors import NosyncError
from nosync_nb.expressions import Expression, Types, compile_expression, conjuncts, of_params
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
    """Returns an equivalent definition without unread columns.

    If all columns are read, or the definition does not compile, it returns the same object.

    Cost: O(size), and the compilation of its expressions.
    """
    try:
        return _ColumnPruner(tree, types).tree()
    except (LostColumnError, NosyncError):  # because the definition does not compile at present
        return tree


class _ColumnPruner:
    """Prunes one definition.

    Attributes:
        wanted: the columns of each part that are read, by `id` of the part.
        reads: the columns of its inputs that each part reads, by `id` of the part.
        arranged: the parts, by `id`, that have a reader that is not row-wise.
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
        """Records the columns that a part reads; its readers must have been recorded before."""
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
        """Returns a part without unread columns, and the positions of its remaining columns."""
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
        """Returns an input of a part.

        Columns that nobody reads are dropped here if the part would only copy them to its output.
        """
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
        """Returns a row-wise part, without unread columns if a reader arranges its rows."""
        if have == required or not is_linear(part) or id(part) not in self.arranged:
            return narrowed, have
        return _project(narrowed, have, required)


def parts_with_fixed_columns(parts: Sequence[Definition]) -> set[int]:
    """Returns the parts, by `id`, that are loops or below a loop; they are not changed."""
    fixed: set[int] = set()
    for part in reversed(parts):
        if part.op in ("iterate", "variable") or id(part) in fixed:
            fixed.add(id(part))
            fixed.update(id(each) for each in part.inputs)
    return fixed


def _project(
    narrowed: Definition, have: tuple[int, ...], required: tuple[int, ...]
) -> tuple[Definition, tuple[int, ...]]:
    """Returns a projection of a part to the required columns.

    Args:
        have: the original positions of the columns of the part.
    """
    return narrowed.columns([have.index(position) for position in required]), required


def _narrowest_column(schema: Schema) -> set[int]:
    """Returns the column to retain if rows are only counted; if possible, of fixed width."""
    positions = range(len(schema))
    return {min(positions, key=lambda i: (schema.types[i] not in FIXED, i))} if positions else set()


_PASSING = ("concat", "negate", "distinct", "consolidate", "except_all", "subtract")
"""Operators for which the count of an output row depends only on equal rows of the inputs."""


class _Conjunct(NamedTuple):
    """A conjunct that is being pushed down: its text, and its original filter."""

    text: str
    origin: Definition


def with_pushed_filters(tree: Definition) -> Definition:
    """Returns an equivalent definition with its filters pushed down; unchanged if none moves."""
    if not any(part.op == "filter" and not part.functions for part in tree.walk()):
        return tree
    return run_trampoline(_FilterPusher(tree).build(tree, ()))


class _FilterPusher:
    """Pushes the filters of one definition."""

    def __init__(self, tree: Definition) -> None:
        parts = [*tree.walk()]
        self.uses = tree.uses
        self.fixed = parts_with_fixed_columns(parts)
        self.built: dict[int, Definition] = {}

    def build(self, part: Definition, pushed: Sequence[_Conjunct]) -> SuspendedCall[Definition]:
        """Returns a part with its filters, and the conjuncts from above it, pushed down."""
        if not pushed:
            built = self.built.get(id(part))
            if built is None:
                built = self.built[id(part)] = yield self._build_part(part, ())
            return built
        if not self._is_open(part):
            base: Definition = yield self.build(part, ())
            return _with_filters(base, pushed)
        result: Definition = yield self._build_part(part, pushed)
        return result

    def _is_open(self, part: Definition) -> bool:
        """Returns True if filters may be pushed into a part.

        The part must have a single reader. It must not be in a loop, or an input of a loop.
        """
        return self.uses[id(part)] == 1 and id(part) not in self.fixed

    def _build_part(
        self, part: Definition, pushed: Sequence[_Conjunct]
    ) -> SuspendedCall[Definition]:
        """Returns a part with its filters pushed down, below the conjuncts that cannot move."""
        if id(part) in self.fixed:
            return _with_filters(part, pushed)
        if part.op == "filter" and _cannot_raise(part):
            own_conjuncts = [_Conjunct(text, part) for text in conjuncts(part.params["predicate"])]
            below: Definition = yield self.build(part.inputs[0], [*own_conjuncts, *pushed])
            return below
        above, sides = self._divide(part, pushed)
        inputs: list[Definition] = []
        for each, pushed_down in zip(part.inputs, sides, strict=True):
            inputs.append((yield self.build(each, pushed_down)))
        result = part
        if any(a is not b for a, b in zip(inputs, part.inputs, strict=True)):
            result = Definition(part.op, part.schema, tuple(inputs), part.params, part.captured)
        return _with_filters(result, above)

    def _divide(
        self, part: Definition, pushed: Sequence[_Conjunct]
    ) -> tuple[list[_Conjunct], list[list[_Conjunct]]]:
        """Returns the conjuncts that stay above a part, and those for each input."""
        above: list[_Conjunct] = []
        sides: list[list[_Conjunct]] = [[] for _ in part.inputs]
        for ask in pushed:
            chosen = _target_inputs(part, ask)
            if not chosen or not all(self._is_worthwhile(part.inputs[side]) for side in chosen):
                above.append(ask)
                continue
            for side in chosen:
                sides[side].append(ask)
        return above, sides

    def _is_worthwhile(self, part: Definition) -> bool:
        """Returns True if a filter on an input saves work."""
        return not part.is_ref and self._is_open(part)


def _cannot_raise(part: Definition) -> bool:
    """Returns True if a filter is a deterministic expression that no row can make raise."""
    if part.functions:
        return False
    predicate = _compiled_predicate(part.params["predicate"], part.inputs[0], part)
    return predicate is not None and not predicate.raises and predicate.deterministic


def _compiled_predicate(sql: str, source: Definition, origin: Definition) -> Expression | None:
    """Compiles a predicate over the columns of a part; returns None if that fails."""
    settings = of_params(origin.params)
    try:
        return compile_expression(
            sql, source.schema, types=lambda *_: ["boolean"], settings=settings
        )
    except NosyncError:
        return None


def _target_inputs(part: Definition, ask: _Conjunct) -> Sequence[int]:
    """Returns the inputs into which a conjunct can be pushed; empty if it must stay above."""
    predicate = _compiled_predicate(ask.text, part, ask.origin)
    if predicate is None or not predicate.columns:
        return ()
    columns = predicate.columns
    if part.op == "range_join" or (part.op == "join" and part.params["left"]):
        sides = {part.params["outputs"][i][0] for i in columns}
        positions = [part.params["outputs"][i][1] for i in columns]
        chosen = [*sides] if len(sides) == 1 else []
    elif part.op == "select" and not SPECS["select"].firm(part):
        positions = [part.params["outputs"][i] for i in columns]
        chosen = [0] if all(isinstance(position, int) for position in positions) else []
    else:
        positions = [*columns]
        chosen = [*range(len(part.inputs))] if part.op in _PASSING else []
    same = all(_means_the_same(part, part.inputs[side], ask, columns, positions) for side in chosen)
    return chosen if same else ()


def _means_the_same(
    part: Definition,
    source: Definition,
    ask: _Conjunct,
    columns: Sequence[int],
    positions: Sequence[int],
) -> bool:
    """Returns True if a predicate reads the same columns of an input, and cannot raise there."""
    fields = part.schema.fields
    if any(source.schema.fields[p] != fields[c] for c, p in zip(columns, positions, strict=True)):
        return False
    pushed = _compiled_predicate(ask.text, source, ask.origin)
    return pushed is not None and {*pushed.columns} == {*positions} and not pushed.raises


def _with_filters(base: Definition, conjuncts_above: Sequence[_Conjunct]) -> Definition:
    """Returns a part with filters above it, one for each original filter of the conjuncts.

    A complete filter in its original position is reused.
    """
    texts: dict[int, list[str]] = {}
    origins: dict[int, Definition] = {}
    for text, origin in conjuncts_above:
        texts.setdefault(id(origin), []).append(text)
        origins[id(origin)] = origin
    for key, origin in origins.items():
        predicate = origin.params["predicate"]
        if tuple(texts[key]) != conjuncts(predicate):
            parts = texts[key]
            predicate = parts[0] if len(parts) == 1 else " and ".join(f"({p})" for p in parts)
        elif base is origin.inputs[0]:
            base = origin
            continue
        base = base.then("filter", params={**origin.params, "predicate": predicate})
    return base
