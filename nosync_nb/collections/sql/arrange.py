"""Arranges inner joins: conditions go to the lowest place, and joins follow equal keys.

`FROM a, b, c WHERE ...` describes pairs of all rows; a plan that follows the equalities never
builds them. The order is that of the text, except that a table without an equality waits for one
that connects it. A relation that is used twice (a WITH query) stays one relation: conditions of one
use remain above it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from nosync_nb.collections.sql.algebra import (
    Column,
    LogicalFilter,
    LogicalJoin,
    LogicalProject,
    LogicalWindow,
    Relation,
    Scalar,
    walk,
    with_columns,
    with_inputs,
)

_RETAINS_LEFT = ("left", "semi", "anti", "mark", "single")
"""Joins that pass each left row on as it is, or not at all."""


def arranged(relation: Relation) -> Relation:
    """Returns an equal relation whose filters are as low as possible.

    Cost: O(size), apart from the choice of an order in O(n^2) for n joined tables.
    """
    return _Arranger(relation).push(relation, ())


class _Arranger:
    """Pushes conditions down.

    Args:
        whole: the relation whose uses are counted.
    """

    def __init__(self, whole: Relation) -> None:
        self._uses = Counter(id(i) for each in walk(whole) for i in each.inputs)
        self._made: dict[int, Relation] = {}
        self._whole = whole  # ids are valid as long as it lives

    def push(self, relation: Relation, conditions: Sequence[Scalar]) -> Relation:
        """Returns a relation restricted by conditions over its columns."""
        if self._uses[id(relation)] > 1:
            made = self._made.get(id(relation))
            if made is None:
                made = self._made[id(relation)] = self._push(relation, ())
            return _filtered(made, conditions)
        return self._push(relation, conditions)

    def _push(self, relation: Relation, conditions: Sequence[Scalar]) -> Relation:
        if isinstance(relation, LogicalFilter):
            return self.push(relation.source, (relation.condition, *conditions))
        if isinstance(relation, LogicalJoin):
            how = self._inner if relation.kind == "inner" else self._other_join
            return how(relation, conditions)
        if isinstance(relation, LogicalProject):
            return self._project(relation, conditions)
        if isinstance(relation, LogicalWindow):
            return self._window(relation, conditions)
        made = with_inputs(relation, [self.push(each, ()) for each in relation.inputs])
        return _filtered(made, conditions)

    def _project(self, relation: LogicalProject, conditions: Sequence[Scalar]) -> Relation:
        passed: dict[Column, Column] = {}
        for output in relation.outputs:
            if (number := output.value.column) is not None:
                passed[output.column] = number
        below = [c.mapped(passed) for c in conditions if c.columns <= passed.keys()]
        above = [c for c in conditions if not c.columns <= passed.keys()]
        return _filtered(replace(relation, source=self.push(relation.source, below)), above)

    def _window(self, relation: LogicalWindow, conditions: Sequence[Scalar]) -> Relation:
        """Conditions on whole partitions pass the window."""
        keys = frozenset(relation.groups)
        below = [c for c in conditions if c.columns and c.columns <= keys]
        above = [c for c in conditions if c not in below]
        return _filtered(replace(relation, source=self.push(relation.source, below)), above)

    def _other_join(self, relation: LogicalJoin, conditions: Sequence[Scalar]) -> Relation:
        """Conditions on the left side alone pass a join that retains its rows as they are."""
        ours, theirs = frozenset(relation.left.columns), frozenset(relation.right.columns)
        retains = relation.kind in _RETAINS_LEFT
        below = [c for c in conditions if retains and c.columns <= ours]
        above = [c for c in conditions if not (retains and c.columns <= ours)]
        own = [c for c in relation.conditions if retains and c.columns and c.columns <= theirs]
        rest = tuple(c for c in relation.conditions if c not in own)
        left, right = self.push(relation.left, below), self.push(relation.right, own)
        return _filtered(replace(relation, left=left, right=right, conditions=rest), above)

    def _inner(self, relation: LogicalJoin, conditions: Sequence[Scalar]) -> Relation:
        """Joins the tables of nested inner joins, each as soon as an equality connects it."""
        parts, every = self._flattened(relation, list(conditions))
        own: list[list[Scalar]] = [[] for _ in parts]
        rest: list[Scalar] = []
        for condition in every:
            places = [i for i, p in enumerate(parts) if condition.columns & frozenset(p.columns)]
            if len(places) == 1 and condition.columns <= frozenset(parts[places[0]].columns):
                own[places[0]].append(condition)
            else:
                rest.append(condition)
        parts = [self.push(p, o) for p, o in zip(parts, own, strict=True)]
        made, left = parts[0], parts[1:]
        while left:
            have = frozenset(made.columns)
            chosen = next(
                (p for how in (_connected, _compared) for p in left if how(have, p, rest)), left[0]
            )
            left = [p for p in left if p is not chosen]
            theirs = frozenset(chosen.columns)
            ready = tuple(c for c in rest if c.columns <= have | theirs and c.columns & theirs)
            rest = [c for c in rest if c not in ready]
            made = LogicalJoin((*made.columns, *chosen.columns), made, chosen, "inner", ready)
        return with_columns(_filtered(made, rest), relation.columns)

    def _flattened(
        self, relation: LogicalJoin, conditions: list[Scalar]
    ) -> tuple[list[Relation], list[Scalar]]:
        """Returns the tables of nested inner joins, and all conditions on them."""
        parts: list[Relation] = []
        waiting: list[Relation] = [relation]
        while waiting:
            each = waiting.pop()
            shared = each is not relation and self._uses[id(each)] > 1
            if isinstance(each, LogicalJoin) and each.kind == "inner" and not shared:
                conditions += each.conditions
                waiting += [each.right, each.left]
            elif isinstance(each, LogicalFilter) and not shared:
                conditions.append(each.condition)
                waiting.append(each.source)
            else:
                parts.append(each)
        return parts, conditions


def _filtered(relation: Relation, conditions: Sequence[Scalar]) -> Relation:
    for each in conditions:
        relation = LogicalFilter(relation.columns, relation, each)
    return relation


def _connected(have: frozenset[Column], part: Relation, conditions: Sequence[Scalar]) -> bool:
    """Returns True if an equality relates columns of a part to some that exist."""
    theirs = frozenset(part.columns)
    for each in conditions:
        if each.sides is None:
            continue
        a, b = (side.columns for side in each.sides)
        if a and b and ((a <= have and b <= theirs) or (b <= have and a <= theirs)):
            return True
    return False


def _compared(have: frozenset[Column], part: Relation, conditions: Sequence[Scalar]) -> bool:
    """Returns True if a comparison relates columns of a part to some that exist."""
    theirs = frozenset(part.columns)
    for comparison in (c for each in conditions for c in each.comparisons if c.sign != "<>"):
        a, b = comparison.left.columns, comparison.right.columns
        if a and b and ((a <= have and b <= theirs) or (b <= have and a <= theirs)):
            return True
    return False
