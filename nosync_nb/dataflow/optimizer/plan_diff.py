"""Reports what planning has changed, by a comparison of the definition with its plan.

Planning records nothing, so the report costs nothing until it is requested. A filter was moved if
it has fewer operators of some kind below it than in the definition. Pruned columns are reported
only if the plan has its operators in the same order as the definition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nosync_nb.collections.definition import Definition
from nosync_nb.errors import NosyncError
from nosync_nb.expressions import Types, conjuncts
from nosync_nb.operators.registry import SPECS, is_linear
from nosync_nb.operators.spec import LostColumnError, Places, all_columns

Heights = Mapping[str, int]
"""By operator, the maximal number of operators of that kind on a path below a part."""


def plan_moves(written: Definition, plan: Definition) -> dict[int, list[str]]:
    """Returns below which kinds of operators filters were moved, by `id` of the filter.

    The `id` is that in the plan. Cost: O(size).
    """
    if written is plan:
        return {}
    heights_by_text: dict[str, Heights] = {}
    for text, heights in _conjuncts_with_heights(written):
        heights_by_text.setdefault(text, heights)
    moves: dict[int, list[str]] = {}
    for part, heights in _filters_with_heights(plan):
        for text in conjuncts(part.params["predicate"]):
            heights_before = heights_by_text.get(text, {})
            below = [op for op, count in heights_before.items() if heights.get(op, 0) < count]
            if below:
                moves[id(part)] = sorted({*below, *moves.get(id(part), [])})
    return moves


def pruned_columns(written: Definition, plan: Definition) -> dict[int, list[str]]:
    """Returns the columns that the plan omits, by `id` of the part in the plan. Cost: O(size)."""
    if written is plan:
        return {}
    old_parts, new_parts = _non_linear_parts(written), _non_linear_parts(plan)
    if [part.op for part in old_parts] != [part.op for part in new_parts]:
        return {}
    pruned = {}
    for old, new in zip(old_parts, new_parts, strict=True):
        omitted = [name for name in old.schema.names if name not in new.schema.names]
        if omitted:
            pruned[id(new)] = omitted
    return pruned


def columns_read(plan: Definition, types: Types | None) -> dict[int, Places]:
    """Returns the columns of each part that the parts above it read, by `id`. Cost: O(size)."""
    read: dict[int, set[int]] = {}
    for part in plan.walk():
        spec, every = SPECS.get(part.op), frozenset(range(len(part.schema)))
        try:
            reads = (spec.reads if spec else all_columns)(part, every, types)
        except (NosyncError, LostColumnError):
            reads = all_columns(part, every, types)
        for each, positions in zip(part.inputs, reads, strict=True):
            read.setdefault(id(each), set()).update(positions)
    return {key: frozenset(positions) for key, positions in read.items()}


def _non_linear_parts(tree: Definition) -> Sequence[Definition]:
    """Returns the parts that are not row-wise."""
    return [part for part in tree.walk() if not is_linear(part)]


def _conjuncts_with_heights(tree: Definition) -> Iterable[tuple[str, Heights]]:
    """Yields the conjuncts of the filters of a definition, with the heights below each."""
    for part, heights in _filters_with_heights(tree):
        for text in conjuncts(part.params["predicate"]):
            yield text, heights


def _filters_with_heights(tree: Definition) -> Iterable[tuple[Definition, Heights]]:
    heights_by_id: dict[int, Heights] = {}
    for part in tree.walk():
        below = [heights_by_id[id(each)] for each in part.inputs]
        heights = below[0] if len(below) == 1 else _max_heights(below)
        if part.op == "joins":
            joins = len({*part.params["inputs"]}) - 1
            heights = {**heights, "join": heights.get("join", 0) + joins}
        elif not is_linear(part) and not part.is_ref:
            heights = {**heights, part.op: heights.get(part.op, 0) + 1}
        heights_by_id[id(part)] = heights
        if part.op == "filter" and not part.functions:
            yield part, heights


def _max_heights(each: Sequence[Heights]) -> Heights:
    words = {word for heights in each for word in heights}
    return {word: max(heights.get(word, 0) for heights in each) for word in words}
