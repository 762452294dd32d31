"""Removes dependent joins: no relation uses columns of another side afterwards.

Source: T. Neumann, A. Kemper, *Unnesting Arbitrary Queries*, BTW 2015; T. Neumann, *Improving
Unnesting of Complex Queries*, BTW 2025.

A dependent join is first simplified: a condition of the right side that compares with columns of
the left one moves up into the join, through filters, projections and groups (whose keys grow by
its inner side). What remains is evaluated for each distinct combination of the outer columns, the
domain, which is pushed down until the relation below does not depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from nosync_nb.collections.sql.algebra import (
    Column,
    LogicalAggregate,
    LogicalDistinct,
    LogicalFilter,
    LogicalGenerate,
    LogicalJoin,
    LogicalProject,
    LogicalSetOperation,
    LogicalTop,
    LogicalWindow,
    Numbers,
    Output,
    Relation,
    Scalar,
    column,
    equality,
    free_columns,
    rebuilt,
    with_columns,
)

_ZERO = ("count", "count_if", "regr_count", "approx_count_distinct")
_EMPTY_LIST = ("collect_list", "collect_set", "array_agg")


def unnested(relation: Relation, numbers: Numbers) -> Relation:
    """Returns an equal relation without dependent joins."""

    def change(each: Relation) -> Relation:
        return _independent(each, numbers) if isinstance(each, LogicalJoin) else each

    return rebuilt(relation, change)


def _independent(join: LogicalJoin, numbers: Numbers) -> Relation:
    """Returns a join whose right side does not use the left one's columns."""
    outer = frozenset(join.left.columns)
    if not free_columns(join.right) & outer:
        return join
    pulled = _Pull(outer, numbers, join.kind).pull(join.right)
    computed = frozenset[Column]() if pulled is None else frozenset(pulled.values)
    if pulled is not None and not any(c.columns & computed for c in join.conditions):
        right, conditions, values, _ = pulled
        made: Relation = replace(join, right=right, conditions=(*join.conditions, *conditions))
        return _restored(made, join.columns, values, right)
    return _by_domain(join, outer, numbers)


def _restored(
    made: Relation, wanted: tuple[Column, ...], values: Mapping[Column, Scalar], right: Relation
) -> Relation:
    """Computes the columns that depended on the left side, after the join."""
    assert isinstance(made, LogicalJoin)
    if made.kind in ("semi", "anti", "mark"):
        return made
    inner = replace(made, columns=(*made.left.columns, *right.columns))
    outputs = tuple(Output(each, values.get(each, column(each))) for each in wanted)
    if not values:
        return replace(made, columns=(*made.left.columns, *right.columns))
    return LogicalProject(wanted, inner, outputs)


class _Pulled(NamedTuple):
    """A relation that does not depend on the left side.

    Attributes:
        conditions: those that moved up, into the join.
        values: the values of columns that are computed after the join.
        is_total: True if the relation before had one row for each row of the left side: an
            aggregate without keys. A left row without match then has the aggregate of no rows.
    """

    relation: Relation
    conditions: list[Scalar]
    values: dict[Column, Scalar]
    is_total: bool = False


class _Pull:
    """Moves conditions on outer columns up.

    Args:
        outer: the columns of the left side.
        kind: the kind of the join.
    """

    def __init__(self, outer: frozenset[Column], numbers: Numbers, kind: str) -> None:
        self._outer, self._numbers, self._kind = outer, numbers, kind

    def pull(self, relation: Relation) -> _Pulled | None:
        """Returns a relation that does not depend on the left side, and what moved up.

        Returns None if the relation cannot be simplified so.
        """
        if not free_columns(relation) & self._outer:
            return _Pulled(relation, [], {})
        if isinstance(relation, LogicalFilter):
            return self._filter(relation)
        if isinstance(relation, LogicalProject):
            return self._project(relation)
        if isinstance(relation, LogicalAggregate):
            return self._aggregate(relation)
        if isinstance(relation, LogicalDistinct):
            return self._distinct(relation)
        if isinstance(relation, LogicalJoin) and relation.kind == "inner":
            return self._join(relation)
        return None

    def _filter(self, relation: LogicalFilter) -> _Pulled | None:
        below = self.pull(relation.source)
        if below is None or below.is_total or relation.condition.columns & below.values.keys():
            return None
        if relation.condition.columns & self._outer:
            if self._kind == "single" and relation.condition.sides is None:
                return None
            return below._replace(conditions=[*below.conditions, relation.condition])
        source = below.relation
        return below._replace(relation=LogicalFilter(source.columns, source, relation.condition))

    def _project(self, relation: LogicalProject) -> _Pulled | None:
        below = self.pull(relation.source)
        if below is None or below.values:
            return None
        source, conditions = below.relation, below.conditions
        outputs: list[Output] = []
        values: dict[Column, Scalar] = {}
        for each in relation.outputs:
            is_computed = each.value.column is None
            if each.value.columns & self._outer or (below.is_total and is_computed):
                values[each.column] = each.value
            else:
                outputs.append(each)
        if values and not below.is_total and self._kind not in ("inner", "semi", "anti", "mark"):
            return None
        made = {each.column for each in outputs}
        needed = {c for s in (*conditions, *values.values()) for c in s.columns} - self._outer
        outputs += [Output(each, column(each)) for each in source.columns if each in needed - made]
        if (needed - made) - set(source.columns):
            return None
        columns = tuple(each.column for each in outputs)
        made_relation = LogicalProject(columns, source, tuple(outputs))
        return _Pulled(made_relation, conditions, values, below.is_total)

    def _aggregate(self, relation: LogicalAggregate) -> _Pulled | None:
        """Groups by the inner sides of equalities, if there are no other conditions."""
        if any(each.value.columns & self._outer for each in relation.calls):
            return None
        is_total = not relation.keys
        if is_total and self._kind not in ("single", "left"):
            return None
        if is_total and any(_of_nothing(each.value) for each in relation.calls):
            return None  # the domain gives groups without rows their count of 0
        below = self.pull(relation.source)
        if below is None or below.values or below.is_total:
            return None
        source = below.relation
        outputs = [Output(each, column(each)) for each in source.columns]
        keys, moved = [], []
        for each in below.conditions:
            sides = self._inner_and_outer(each)
            if sides is None:
                return None
            inner, other = sides
            key = inner.column
            if key is None:
                key = self._numbers.new()
                outputs.append(Output(key, inner))
            keys.append(key)
            moved.append(equality(column(key), other, null_safe=each.null_safe))
        if is_total and not keys:
            return None
        if len(outputs) > len(source.columns):
            source = LogicalProject(tuple(o.column for o in outputs), source, tuple(outputs))
        every = tuple(dict.fromkeys((*relation.keys, *keys)))
        columns = (*every, *(each.column for each in relation.calls))
        return _Pulled(
            LogicalAggregate(columns, source, every, relation.calls), moved, {}, is_total
        )

    def _inner_and_outer(self, condition: Scalar) -> tuple[Scalar, Scalar] | None:
        if condition.sides is None:
            return None
        a, b = condition.sides
        if a.columns & self._outer:
            a, b = b, a
        if a.columns & self._outer or not b.columns <= self._outer:
            return None
        return a, b

    def _distinct(self, relation: LogicalDistinct) -> _Pulled | None:
        below = self.pull(relation.source)
        if below is None or below.values or below.is_total:
            return None
        source, conditions = below.relation, below.conditions
        if self._kind not in ("semi", "anti", "mark"):
            if any(self._inner_and_outer(each) is None for each in conditions):
                return None
            if set(source.columns) != set(relation.columns):
                return None
        return _Pulled(LogicalDistinct(source.columns, source), conditions, {})

    def _join(self, relation: LogicalJoin) -> _Pulled | None:
        left, right = self.pull(relation.left), self.pull(relation.right)
        if left is None or right is None or any(s.values or s.is_total for s in (left, right)):
            return None
        own = [c for c in relation.conditions if not c.columns & self._outer]
        conditions = [c for c in relation.conditions if c.columns & self._outer]
        if self._kind == "single" and any(each.sides is None for each in conditions):
            return None
        conditions += [*left.conditions, *right.conditions]
        columns = (*left.relation.columns, *right.relation.columns)
        joined = LogicalJoin(columns, left.relation, right.relation, "inner", tuple(own))
        return _Pulled(joined, conditions, {})


@dataclass(frozen=True)
class _Domain:
    """The distinct combinations of the outer columns.

    Attributes:
        columns: its column for each outer column.
    """

    relation: Relation
    columns: Mapping[Column, Column]


def _by_domain(join: LogicalJoin, outer: frozenset[Column], numbers: Numbers) -> Relation:
    """Evaluates the right side for each combination of the outer columns that it uses."""
    free = sorted(free_columns(join.right) & outer)
    names = {each: numbers.new() for each in free}
    picked = LogicalProject(
        tuple(names.values()),
        join.left,
        tuple(Output(new, column(old)) for old, new in names.items()),
    )
    domain = _Domain(LogicalDistinct(picked.columns, picked), names)
    right, places = _Push(domain, numbers).push(join.right)
    match = tuple(equality(column(old), column(places[old]), null_safe=True) for old in free)
    columns = join.columns
    if join.kind not in ("semi", "anti", "mark"):
        columns = (*join.left.columns, *right.columns)
    return replace(join, columns=columns, right=right, conditions=(*join.conditions, *match))


class _Push:
    """Pushes a domain down into a relation."""

    def __init__(self, domain: _Domain, numbers: Numbers) -> None:
        self._domain, self._numbers = domain, numbers
        self._outer = frozenset(domain.columns)

    def push(self, relation: Relation) -> tuple[Relation, Mapping[Column, Column]]:
        """Returns the relation for each row of the domain, and the places of the outer columns."""
        if not free_columns(relation) & self._outer:
            domain, places = self._copy()
            columns = (*relation.columns, *domain.columns)
            return LogicalJoin(columns, relation, domain, "inner", ()), places
        if isinstance(relation, LogicalFilter):
            source, places = self.push(relation.source)
            return LogicalFilter(source.columns, source, relation.condition.mapped(places)), places
        if isinstance(relation, LogicalProject):
            source, places = self.push(relation.source)
            outputs = [Output(o.column, o.value.mapped(places)) for o in relation.outputs]
            made = {o.column for o in outputs}
            outputs += [Output(p, column(p)) for p in places.values() if p not in made]
            return LogicalProject(tuple(o.column for o in outputs), source, tuple(outputs)), places
        if isinstance(relation, LogicalDistinct):
            source, places = self.push(relation.source)
            return LogicalDistinct(source.columns, source), places
        if isinstance(relation, LogicalTop):
            source, places = self.push(relation.source)
            groups = (*(places.get(g, g) for g in relation.groups), *places.values())
            return replace(relation, columns=source.columns, source=source, groups=groups), places
        if isinstance(relation, LogicalWindow):
            source, places = self.push(relation.source)
            groups = (*(places.get(g, g) for g in relation.groups), *places.values())
            columns = (*source.columns, *(f.column for f in relation.functions))
            return replace(relation, columns=columns, source=source, groups=groups), places
        if isinstance(relation, LogicalGenerate):
            source, places = self.push(relation.source)
            call = relation.generator
            call = call._replace(argument=call.argument.mapped(places))
            columns = (*source.columns, *call.columns)
            return replace(relation, columns=columns, source=source, generator=call), places
        if isinstance(relation, LogicalAggregate):
            return self._aggregate(relation)
        if isinstance(relation, LogicalSetOperation):
            return self._set_operation(relation)
        if isinstance(relation, LogicalJoin):
            return self._join(relation)
        raise AssertionError(type(relation))

    def _copy(self) -> tuple[Relation, Mapping[Column, Column]]:
        """The domain with columns of its own."""
        places = {old: self._numbers.new() for old in self._domain.columns}
        outputs = tuple(
            Output(places[old], column(mid)) for old, mid in self._domain.columns.items()
        )
        columns = tuple(places.values())
        return LogicalProject(columns, self._domain.relation, outputs), places

    def _aggregate(self, relation: LogicalAggregate) -> tuple[Relation, Mapping[Column, Column]]:
        source, places = self.push(relation.source)
        keys = (*(places.get(k, k) for k in relation.keys), *places.values())
        calls = tuple(Output(c.column, c.value.mapped(places)) for c in relation.calls)
        columns = (*keys, *(c.column for c in calls))
        grouped = LogicalAggregate(columns, source, keys, calls)
        if relation.keys:
            return grouped, places
        # Without keys there is one row, also for a combination without input.
        domain, own = self._copy()
        match = tuple(
            equality(column(own[old]), column(places[old]), null_safe=True) for old in places
        )
        joined = LogicalJoin((*domain.columns, *columns), domain, grouped, "left", match)
        outputs = [Output(each, column(each)) for each in domain.columns]
        for call in calls:
            default = _of_nothing(call.value)
            value = column(call.column)
            if default is not None:
                value = Scalar(("coalesce(", call.column, f", {default})"))
                fresh = self._numbers.new()
                inner = tuple(
                    Output(fresh if c == call.column else c, column(c)) for c in joined.columns
                )
                joined_ = LogicalProject(tuple(o.column for o in inner), joined, inner)
                joined = joined_  # type: ignore[assignment]
                value = Scalar(("coalesce(", fresh, f", {default})"))
            outputs.append(Output(call.column, value))
        return LogicalProject(tuple(o.column for o in outputs), joined, tuple(outputs)), own

    def _set_operation(
        self, relation: LogicalSetOperation
    ) -> tuple[Relation, Mapping[Column, Column]]:
        (left, a), (right, b) = self.push(relation.left), self.push(relation.right)
        left = with_columns(left, (*relation.left.columns, *a.values()))
        right = with_columns(right, (*relation.right.columns, *(b[old] for old in a)))
        places = {old: self._numbers.new() for old in a}
        columns = (*relation.columns, *places.values())
        return replace(relation, columns=columns, left=left, right=right), places

    def _join(self, relation: LogicalJoin) -> tuple[Relation, Mapping[Column, Column]]:
        in_left = bool(free_columns(relation.left) & self._outer)
        in_right = bool(free_columns(relation.right) & self._outer)
        both_sides = relation.kind in ("full", "right")
        left, right = relation.left, relation.right
        places: Mapping[Column, Column] = {}
        conditions = list(relation.conditions)
        if relation.kind == "inner" and in_right and not in_left:
            right, places = self.push(right)
        else:
            left, places = self.push(left)
            if in_right or both_sides:
                right, theirs = self.push(right)
                conditions += [
                    equality(column(places[old]), column(theirs[old]), null_safe=True)
                    for old in places
                ]
        conditions = [each.mapped(places) for each in conditions]
        if relation.kind in ("semi", "anti"):
            columns = left.columns
        elif relation.kind == "mark":
            columns = (*left.columns, relation.mark)
        else:
            columns = (*left.columns, *right.columns)
        made = replace(
            relation, columns=columns, left=left, right=right, conditions=tuple(conditions)
        )
        if not both_sides:
            return made, places
        merged = {old: self._numbers.new() for old in places}
        outputs = [Output(each, column(each)) for each in columns]
        outputs += [
            Output(merged[old], Scalar(("coalesce(", places[old], ", ", theirs[old], ")")))
            for old in places
        ]
        return LogicalProject(tuple(o.column for o in outputs), made, tuple(outputs)), merged


def _of_nothing(call: Scalar) -> str | None:
    """Returns the value of an aggregate over no rows; None: null."""
    first = call.pieces[0] if call.pieces else ""
    name = first.split("(", 1)[0].strip().lower() if isinstance(first, str) else ""
    if name in _ZERO:
        return "0"
    return "array()" if name in _EMPTY_LIST else None
