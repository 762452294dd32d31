"""Rewrites windows of a query: equal windows are merged, and first rows of groups become `top`.

Windows of one partitioning and order are computed together, also if other windows or computed
columns are between them. `row_number() <= k` above a window is the first rows of each group, whose
cost does not depend on the size of the group; the numbers of these rows follow from them. So is
`rank() <= k`, with all rows that are equal to the last one. `dense_rank() <= k` is not, because k
ranks may have any number of rows, unless k is 1.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from nosync_nb.collections.sql.algebra import (
    Column,
    LogicalFilter,
    LogicalProject,
    LogicalTop,
    LogicalWindow,
    Output,
    Relation,
    Scalar,
    column,
    walk,
    with_inputs,
)

_BELOW = re.compile(r"\(*\s*#\s*\)*\s*(<=|<|=|==)\s*\(*\s*(\d{1,9})\s*\)*")
_ABOVE = re.compile(r"\(*\s*(\d{1,9})\s*\)*\s*(>=|>|=|==)\s*\(*\s*#\s*\)*")


def planned_windows(relation: Relation) -> Relation:
    """Returns an equal relation with fewer and cheaper windows."""
    if not any(isinstance(each, LogicalWindow) for each in walk(relation)):
        return relation
    relation = _rewritten(relation, _Rewriter.merged)
    return _rewritten(relation, _Rewriter.first_rows)


def _rewritten(
    relation: Relation, change: Callable[[_Rewriter, Relation, Relation], Relation]
) -> Relation:
    rewriter = _Rewriter(relation)
    made: dict[int, Relation] = {}
    for each in walk(relation):
        inputs = [made[id(i)] for i in each.inputs]
        made[id(each)] = change(rewriter, with_inputs(each, inputs), each)
    return made[id(relation)]


class _Rewriter:
    """Rewrites operators whose input has no other reader."""

    def __init__(self, whole: Relation) -> None:
        self._uses = Counter(id(i) for each in walk(whole) for i in each.inputs)
        self._whole = whole  # ids are valid as long as it lives

    def _is_shared(self, original: Relation) -> bool:
        return any(self._uses[id(each)] > 1 for each in original.inputs)

    def merged(self, relation: Relation, original: Relation) -> Relation:
        """Moves computed columns below windows, and windows into equal ones below them."""
        if self._is_shared(original):
            return relation
        if isinstance(relation, LogicalProject):
            return _lowered(relation)
        if isinstance(relation, LogicalWindow):
            return _sunk(relation) or relation
        return relation

    def first_rows(self, relation: Relation, original: Relation) -> Relation:
        """Replaces a condition on row numbers by the first rows of groups."""
        if not isinstance(relation, LogicalFilter) or self._is_shared(original):
            return relation
        conditions = [relation.condition]
        below = relation.source
        at = original.inputs[0]
        while (
            isinstance(below, LogicalFilter)
            and isinstance(at, LogicalFilter)
            and not self._is_shared(at)
        ):
            conditions.append(below.condition)
            below, at = below.source, at.inputs[0]
        if not isinstance(below, LogicalWindow):
            return relation
        made = _top(below, relation.condition)
        if made is None:
            return relation
        for condition in reversed(conditions[1:]):
            made = LogicalFilter(relation.columns, made, condition)
        return made


def _lowered(project: LogicalProject) -> Relation:
    """Moves a projection that only adds columns below the windows under it."""
    window = project.source
    if not isinstance(window, LogicalWindow):
        return project
    passed = {each.column for each in project.outputs if each.value.column == each.column}
    results = {each.column for each in window.functions}
    if not passed >= set(window.columns):
        return project
    added = [each for each in project.outputs if each.column not in passed]
    if any(each.value.columns & results for each in added):
        return project
    source = window.source
    outputs = [*(Output(c, column(c)) for c in source.columns), *added]
    below = LogicalProject(tuple(each.column for each in outputs), source, tuple(outputs))
    return replace(window, columns=project.columns, source=_lowered(below))


def _sunk(window: LogicalWindow) -> Relation | None:
    """Merges a window into an equal one below it; None if the one below differs."""
    below = window.source
    if not isinstance(below, LogicalWindow):
        return None
    results = {each.column for each in below.functions}
    used: set[Column] = set()
    for scalar in window.scalars:
        used |= scalar.columns
    if used & results:
        return None
    if set(below.groups) == set(window.groups) and below.order == window.order:
        functions = (*below.functions, *window.functions)
        return replace(below, columns=window.columns, functions=functions)
    own = tuple(c for c in window.columns if c not in results)
    merged = _sunk(replace(window, columns=own, source=below.source))
    return None if merged is None else replace(below, columns=window.columns, source=merged)


def _top(window: LogicalWindow, condition: Scalar) -> Relation | None:
    """Returns the rows of a window whose row number or rank satisfies a condition."""
    numbers = [p for p in condition.pieces if isinstance(p, int)]
    found = [f for f in window.functions if f.function in ("row_number", "rank", "dense_rank")]
    function = next((f for f in found if numbers == [f.column]), None)
    if function is None:
        return None
    bound = _bound("".join("#" if isinstance(p, int) else p for p in condition.pieces))
    if bound is None:
        return None
    sign, k = bound
    k -= sign == "<"
    is_exact = sign in ("=", "==")
    ties = function.function != "row_number"
    if k < 1 or (function.function == "dense_rank" and k > 1):
        return None
    rest = tuple(f for f in window.functions if f is not function)
    source = window.source
    if rest:
        columns = tuple(c for c in window.columns if c != function.column)
        source = replace(window, columns=columns, functions=rest)
    if is_exact and not ties:
        first = LogicalTop(source.columns, source, window.groups, window.order, 1, k - 1)
        outputs = [Output(c, column(c)) for c in source.columns]
        outputs.append(Output(function.column, Scalar((f"cast({k} as int)",))))
        return LogicalProject(tuple(o.column for o in outputs), first, tuple(outputs))
    first = LogicalTop(source.columns, source, window.groups, window.order, k, 0, ties)
    columns = (*source.columns, function.column)
    made = LogicalWindow(columns, first, window.groups, window.order, (function,))
    return LogicalFilter(columns, made, condition) if is_exact else made


def _bound(text: str) -> tuple[str, int] | None:
    """Returns the comparison and the number of a condition `# <= 3`; None for any other one."""
    if text.count("(") != text.count(")"):
        return None
    if match := _BELOW.fullmatch(text.strip()):
        return match[1], int(match[2])
    if match := _ABOVE.fullmatch(text.strip()):
        return match[2].replace(">", "<"), int(match[1])
    return None
