"""Translates a join of the algebra to definitions.

Equalities become keys, and comparisons with a value of the other side become a range. Any other
condition filters the pairs; without a key or a range, these are the pairs of a cross join.

All kinds are compositions of the inner join. The rows of a side that have a match are those whose
keys are among the distinct keys of the other side. If there is more than equalities, the rows
without a match are the side minus its rows in the pairs: a pair contains the row at least as often.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.group_definitions import aggregate_definition, first_rows_definition
from nosync_nb.collections.row_expressions import compiled, filter_definition
from nosync_nb.collections.session_protocol import SparkTypeResolver
from nosync_nb.collections.sql.algebra import (
    LogicalAggregate,
    LogicalFilter,
    LogicalJoin,
    LogicalProject,
    LogicalSingle,
    LogicalTop,
    Relation,
    Scalar,
)
from nosync_nb.collections.sql.joins.comparisons import MIRRORED
from nosync_nb.collections.sql.joins.ranges import Bound, Range, overlap_in, ranges_in
from nosync_nb.collections.sql.joins.types import (
    NULL_VALUES,
    compared_as,
    is_within,
    shifted_type,
)
from nosync_nb.collections.sql.lowered import Lowered
from nosync_nb.expressions import common_type, recorded_settings
from nosync_nb.operators import has_exact_codes
from nosync_nb.rows import Field, Schema
from nosync_nb.rows.ddl import quoted

_RETAINS_LEFT = ("left", "full", "anti", "mark", "single")
"""Joins that return left rows without a match."""
_TOO_MANY = (
    "[SCALAR_SUBQUERY_TOO_MANY_ROWS] a subquery that is used as a value returns several rows"
)
_ONE_ROW = "aggregate it, as in max(x), or add ORDER BY ... LIMIT 1"


class _Existence(NamedTuple):
    """The rows of a side with a match, and those without one."""

    matched: Lowered
    alone: Lowered


class _Key(NamedTuple):
    """An equality of the join, with the type to which both sides are cast, if any."""

    left: Scalar
    right: Scalar
    type: str | None = None


class _Extreme(NamedTuple):
    """A comparison of a left value with a right one, in a type."""

    value: Scalar
    sign: str
    other: Scalar
    type: str


class _Order(NamedTuple):
    """The type that orders a value and its bounds.

    Attributes:
        is_exact: True if its order codes decide each comparison.
    """

    type: str
    is_exact: bool


_ONE_KEY = _Key(Scalar(("true",)), Scalar(("true",)))
"""The same key for all rows."""


class _Computed(NamedTuple):
    """A side with additional columns, and the positions of the requested ones."""

    definition: Definition
    places: list[int]


class JoinLowering:
    """Translates one join.

    Args:
        left, right: the translated sides.
        name: returns an unused name for a column of the result.
    """

    def __init__(
        self,
        relation: LogicalJoin,
        left: Lowered,
        right: Lowered,
        types: SparkTypeResolver,
        name: Callable[..., str],
    ) -> None:
        self._relation, self._types, self._name = relation, types, name
        self._whole = left, right
        self._keys: list[_Key] = []
        self._rest: list[Scalar] = []
        self._sides = [left, right]
        """The rows that may have a match."""
        for each in relation.conditions:
            if each.key() != ("true",) and not self._restricted(each):
                keys = self._equal_keys(each)
                self._keys += keys
                self._rest += [] if keys else [each]
        if not self._keys and self._is_small():
            self._keys.append(_ONE_KEY)

    def _is_small(self) -> bool:
        """Returns True if the pairs without a key are not more than the rows of one side.

        Then all rows get the same key, because the pairs of a cross join are limited.
        """
        if self._relation.kind == "single" and not self._rest:
            return True
        return any(
            _has_one_row(relation, side, ())
            for relation, side in zip(self._relation.inputs, self._whole, strict=True)
        )

    def _restricted(self, condition: Scalar) -> bool:
        """Filters a side by a condition on its columns; returns False for any other condition."""
        for i, side in enumerate(self._sides):
            if condition.columns <= side.places.keys() and self._type(i, condition) is not None:
                made = filter_definition(side.definition, side.text(condition), self._types)
                self._sides[i] = side._replace(definition=made)
                return True
        return False

    def lowered(self) -> Lowered:
        """Returns the definition."""
        match self._relation.kind:
            case "inner":
                return self._pairs
            case "semi":
                return self._existence(0).matched
            case "anti":
                return self._existence(0).alone
            case "mark":
                return self._mark(self._existence(0))
            case "single":
                return self._single()
        return self._outer(self._relation.kind, self._pairs)

    def _outer(self, kind: str, pairs: Lowered, more: Sequence[Definition] = ()) -> Lowered:
        """Adds the rows without a match to pairs, with nulls for the other side."""
        parts = [pairs.definition]
        if kind in _RETAINS_LEFT:
            parts.append(self._padded(0, pairs.definition.schema))
        if kind in ("right", "full"):
            parts.append(self._padded(1, pairs.definition.schema))
        both = Definition("concat", pairs.definition.schema, (*parts, *more))
        return pairs._replace(definition=both)

    # -- keys ----------------------------------------------------------------------------------

    def _equal_keys(self, condition: Scalar) -> list[_Key]:
        """Returns the keys that an equality between both sides is; none for other conditions."""
        if condition.sides is None:
            return []
        a, b = condition.sides
        left, right = (side.places.keys() for side in self._sides)
        if a.columns <= right and b.columns <= left:
            a, b = b, a
        if not (a.columns and b.columns and a.columns <= left and b.columns <= right):
            return []
        type_, other = self._type(0, a), self._type(1, b)
        if type_ is None or other is None:
            return []
        common = common_type(type_, other)
        if common is None:
            return []
        if condition.null_safe:
            return _null_safe((a, type_), (b, other), common)
        return [_Key(a, b, None if type_ == other else common)]

    def _type(self, side: int, scalar: Scalar) -> str | None:
        """Returns the type of an expression of a side; None if its values may differ by pair."""
        source = self._sides[side]
        expression = compiled(source.definition, source.text(scalar), self._types)
        return expression.type if expression.deterministic else None

    def _computed(
        self, side: int, values: Sequence[tuple[Scalar, str | None]], shifts: Sequence[str] = ()
    ) -> _Computed:
        """Adds expressions to a side, each cast to a type; columns of this type are not copied."""
        source = self._sides[side]
        schema = source.definition.schema
        outputs: list[Any] = list(range(len(schema)))
        fields = list(schema.fields)
        places, settings = [], []
        for at, (scalar, type_) in enumerate(values):
            shift = shifts[at] if shifts else ""
            number = scalar.column
            if number is not None and not shift:
                place = source.places[number]
                if type_ in (None, schema.types[place]):
                    places.append(place)
                    continue
            text = source.text(scalar)
            if type_ is not None:
                text = f"cast(({text}) as {type_})"
            if shift:
                text = f"cast({text} + ({shift}) as {type_})"
            expression = compiled(source.definition, text, self._types)
            places.append(len(outputs))
            outputs.append(text)
            settings.append(expression.settings)
            fields.append(Field(Schema(fields).unused("key"), expression.type))
        if len(outputs) == len(schema):
            return _Computed(source.definition, places)
        params = {"outputs": outputs, "passes": len(schema), **recorded_settings(settings)}
        return _Computed(source.definition.then("select", Schema(fields), params), places)

    # -- pairs ---------------------------------------------------------------------------------

    @cached_property
    def _pairs(self) -> Lowered:
        """The pairs of rows that satisfy all conditions, with the columns of both sides."""
        parts = [self._pairs_of(conditions) for conditions in self._disjoint_cases()]
        if len(parts) == 1:
            return parts[0]
        both = tuple(part.definition for part in parts)
        return parts[0]._replace(definition=Definition("concat", both[0].schema, both))

    def _disjoint_cases(self) -> list[list[Scalar]]:
        """Returns the conditions; for intervals that overlap, those of two disjoint cases."""
        cases = overlap_in(self._rest, *(side.places for side in self._sides))
        types = {
            self._type(side, value)
            for case in cases
            for comparison in case.comparisons
            for value in (comparison.left, comparison.right)
            for side in (0, 1)
            if value.columns <= self._sides[side].places.keys()
        }
        if len(types) != 1:
            return [list(self._rest)]
        return [[case, *self._rest] for case in cases]

    def _pairs_of(self, conditions: list[Scalar]) -> Lowered:
        """Returns the pairs with equal keys that satisfy conditions."""
        rest = list(conditions)
        made = self._range_pairs(rest) or self._key_pairs()
        left, right = self._whole
        width = len(left.definition.schema)
        places = dict(left.places) | {c: width + p for c, p in right.places.items()}
        pairs = Lowered(made, places)
        for each in rest:
            filtered = filter_definition(pairs.definition, pairs.text(each), self._types)
            pairs = pairs._replace(definition=filtered)
        return pairs

    def _key_pairs(self) -> Definition:
        """Returns the pairs with equal keys; all pairs without a key."""
        left = self._computed(0, [(key.left, key.type) for key in self._keys])
        right = self._computed(1, [(key.right, key.type) for key in self._keys])
        params = {"left": left.places, "right": right.places, "outputs": self._outputs(0)}
        inputs = (left.definition, right.definition)
        return Definition("join", self._pair_schema(), inputs, params)

    def _range_pairs(self, rest: list[Scalar]) -> Definition | None:
        """Returns the pairs with equal keys and a value between bounds; None without a range.

        Args:
            rest: the conditions; those that the range decides are removed.
        """
        for each in ranges_in(rest, *(side.places for side in self._sides)):
            order = self._range_order(each)
            if order is not None:
                if order.is_exact:
                    decided = _decided(each, rest)
                    rest[:] = [condition for condition in rest if condition not in decided]
                return self._pairs_in(each, order)
        return None

    def _range_order(self, each: Range) -> _Order | None:
        """Returns the type that orders a value and its bounds; None if no type does.

        Spark compares the value with each bound in a type of its own. The value and both bounds
        are ordered by a single one, which must not contradict these comparisons.
        """
        own = self._type(each.side, each.value)
        bounds = [self._type(1 - each.side, bound.value) for bound in each.bounds]
        types = [type_ for type_ in bounds if type_ is not None]
        if own is None or len(types) < len(bounds):
            return None
        compared = [compared_as(own, other) for other in types]
        common: str | None = own
        for other in compared:
            common = None if common is None or other is None else compared_as(common, other)
        if common is None or common.startswith(("map<", "array<", "struct<")):
            return None
        shifts = [bound.shift for bound in each.bounds if bound.shift]
        if shifts:
            shifted = shifted_type(common, shifts)
            return None if shifted is None else _Order(shifted, is_exact=False)
        if all(other == common for other in compared):
            return _Order(common, is_exact=has_exact_codes(common))
        if all(
            other == common or (is_within(own, other) and is_within(bound, other))
            for bound, other in zip(types, compared, strict=True)
        ):
            return _Order(common, is_exact=False)
        return None

    def _pairs_in(self, each: Range, order: _Order) -> Definition:
        """Returns the pairs with equal keys and a value between bounds."""
        side, count, type_ = each.side, len(self._keys), order.type
        keys = [[(k.left, k.type) for k in self._keys], [(k.right, k.type) for k in self._keys]]
        points = self._computed(side, [*keys[side], (each.value, type_)])
        bounds = [(bound.value, type_) for bound in each.bounds]
        shifts = [""] * count + [bound.shift for bound in each.bounds]
        intervals = self._computed(1 - side, [*keys[1 - side], *bounds], shifts)
        places = iter(intervals.places[count:])
        ends = [each.low, each.high]
        params: dict[str, Any] = {
            "low": next(places) if each.low is not None else None,
            "high": next(places) if each.high is not None else None,
            "strict": [order.is_exact and _is_strict(bound) for bound in ends],
        }
        ordered = intervals.definition
        if len(each.bounds) == 2:
            fields = [*ordered.schema.fields, Field(ordered.schema.unused("order"), "bigint")]
            ordered = ordered.then("intervals", Schema(fields), params)
        params |= {
            "left": points.places[:count],
            "right": intervals.places[:count],
            "at": points.places[count],
            "outputs": self._outputs(side),
        }
        inputs = (points.definition, ordered)
        return Definition("range_join", self._pair_schema(), inputs, params)

    def _outputs(self, first: int) -> list[list[int]]:
        """Returns the columns of both sides, for an operator whose first input is a side."""
        return [
            [side ^ first, place]
            for side in (0, 1)
            for place in range(len(self._whole[side].definition.schema))
        ]

    def _pair_schema(self) -> Schema:
        """Returns the columns of pairs; a right column gets another name if its name is taken."""
        left, right = (whole.definition.schema for whole in self._whole)
        fields = list(left.fields)
        for name, type_ in right.fields:
            taken = name.lower() in {field.name.lower() for field in fields}
            fields.append(Field(Schema(fields).unused(name) if taken else name, type_))
        return Schema(fields)

    # -- rows with and without a match ---------------------------------------------------------

    def _existence(self, side: int) -> _Existence:
        """Separates the rows of a side."""
        whole = self._whole[side]
        found = self._by_extremes() if self._rest else self._with_key(side)
        if found is None:
            both = (whole.definition, self._in_pairs(side))
            rest = Definition("except_all", whole.definition.schema, both)
            found = Definition("concat", rest.schema, (whole.definition, rest.then("negate")))
        else:
            rest = Definition("concat", found.schema, (whole.definition, found.then("negate")))
        return _Existence(Lowered(found, whole.places), Lowered(rest, whole.places))

    def _by_extremes(self) -> Definition | None:
        """Returns the left rows with a match for one comparison; None for other conditions.

        A value is above some bound of its key if it is above the least one. It differs from some
        value if it differs from the least or from the greatest one. So each left row is compared
        with one row, where its pairs may be half of all rows.
        """
        if self._relation.kind not in ("semi", "anti", "mark") or len(self._rest) != 1:
            return None
        condition = self._rest[0]
        if len(condition.comparisons) != 1 or not condition.is_compared:
            return None
        left, right = (side.places.keys() for side in self._sides)
        a, sign, b, _ = condition.comparisons[0]
        if a.columns <= right and b.columns <= left:
            a, sign, b = b, MIRRORED[sign], a
        if not (a.columns <= left and b.columns <= right):
            return None
        one, other = self._type(0, a), self._type(1, b)
        type_ = None if one is None or other is None else compared_as(one, other)
        if type_ is None or type_.startswith(("map<", "array<", "struct<")):
            return None
        if sign != "<>" and not has_exact_codes(type_):
            return None
        return self._beyond(_Extreme(a, sign, b, type_))

    def _beyond(self, extreme: _Extreme) -> Definition:
        """Returns the left rows that compare with the least or the greatest value of their key."""
        own = self._computed(0, [*self._key_values(0), (extreme.value, extreme.type)])
        right = self._computed(1, [*self._key_values(1), (extreme.other, extreme.type)])
        *keys, place = right.places
        distinct = list(dict.fromkeys(keys))
        name = quoted(right.definition.schema.names[place])
        used = Schema([right.definition.schema.fields[key] for key in distinct])
        calls = {">": ("min",), "<": ("max",), "<>": ("min", "max")}
        functions = calls.get(extreme.sign) or calls[extreme.sign[0]]
        named = {used.unused(function): f"{function}({name})" for function in functions}
        extremes = aggregate_definition(right.definition, distinct, named, self._types)
        schema = self._whole[0].definition.schema
        params: dict[str, Any] = {
            "left": own.places[:-1],
            "right": [distinct.index(key) for key in keys],
            "outputs": [[0, place] for place in range(len(schema))],
        }
        inputs = (own.definition, extremes)
        if extreme.sign != "<>":
            params["at"] = own.places[-1]
            params["low"] = len(distinct) if extreme.sign[0] == ">" else None
            params["high"] = len(distinct) if extreme.sign[0] == "<" else None
            params["strict"] = [extreme.sign == ">", extreme.sign == "<"]
            return Definition("range_join", schema, inputs, params)
        fields = list(schema.fields)
        for place in (own.places[-1], *range(len(distinct), len(distinct) + 2)):
            source = own.definition if len(fields) == len(schema) else extremes
            type_ = source.schema.types[place]
            fields.append(Field(Schema(fields).unused("value"), type_))
        params["outputs"] += [[0, own.places[-1]], [1, len(distinct)], [1, len(distinct) + 1]]
        joined = Definition("join", Schema(fields), inputs, params)
        value, least, greatest = (quoted(field.name) for field in fields[-3:])
        differs = f"{value} <> {least} OR {value} <> {greatest}"
        return filter_definition(joined, differs, self._types).columns(range(len(schema)))

    def _in_pairs(self, side: int) -> Definition:
        """Returns the rows of a side that are in pairs, as often as they are there."""
        schemas = [whole.definition.schema for whole in self._whole]
        start = side * len(schemas[0])
        places = list(range(start, start + len(schemas[side])))
        return self._pairs.definition.then("select", schemas[side], {"outputs": places})

    def _with_key(self, side: int) -> Definition:
        """Returns the rows of a side whose keys the other side has."""
        other = self._computed(1 - side, self._key_values(1 - side))
        order = list(dict.fromkeys(other.places))
        distinct = other.definition.columns(order).then("distinct")
        return self._with_keys_of(side, distinct, [order.index(p) for p in other.places])

    def _key_values(self, side: int) -> list[tuple[Scalar, str | None]]:
        """Returns the keys of a side; a constant one if there are none.

        A cross join instead would limit the number of rows.
        """
        return [((k.left, k.right)[side], k.type) for k in self._keys or [_ONE_KEY]]

    def _with_keys_of(self, side: int, other: Definition, places: list[int]) -> Definition:
        """Returns the rows of a side whose keys are in a collection, which has each key once."""
        own = self._computed(side, self._key_values(side))
        schema = self._whole[side].definition.schema
        outputs = [[0, place] for place in range(len(schema))]
        params = {"left": own.places, "right": places, "outputs": outputs}
        return Definition("join", schema, (own.definition, other), params)

    def _mark(self, found: _Existence) -> Lowered:
        """Appends the column that is true for the left rows with a match."""
        schema = found.matched.definition.schema
        name = self._name(self._relation.mark, schema)
        fields = Schema([*schema.fields, Field(name, "boolean")])
        width = len(schema)
        parts = [
            each.definition.then("select", fields, {"outputs": [*range(width), text]})
            for each, text in ((found.matched, "true"), (found.alone, "false"))
        ]
        both = Definition("concat", fields, tuple(parts))
        return Lowered(both, {**found.matched.places, self._relation.mark: width})

    def _padded(self, side: int, schema: Schema) -> Definition:
        """Returns the rows of a side without a match, with nulls for the other side."""
        alone = self._existence(side).alone.definition
        if side == 0:
            return alone.then("pad", schema) if len(alone.schema) < len(schema) else alone
        width = len(alone.schema)
        shift = len(schema) - width
        types = [*alone.schema.types, *schema.types[:shift]]
        padded = Schema([Field(f"c{i}", t) for i, t in enumerate(types)])
        wide = alone.then("pad", padded)
        return wide.then(
            "select", schema, {"outputs": [*range(width, width + shift), *range(width)]}
        )

    # -- values --------------------------------------------------------------------------------

    def _single(self) -> Lowered:
        """Returns a left join, which fails if a left row has more than one match."""
        if self._rest:
            rows = self._in_pairs(0)
            several = Definition("except_all", rows.schema, (rows, self._whole[0].definition))
            schema = self._pairs.definition.schema
            return self._outer("single", self._pairs, [_refused(several, schema)])
        right = self._computed(1, self._key_values(1))
        keys = list(dict.fromkeys(right.places))
        if _has_one_row(self._relation.right, self._whole[1], keys):
            return self._outer("single", self._pairs)
        schema = right.definition.schema
        named = {Schema([schema.fields[k] for k in keys]).unused("rows"): "count(*)"}
        counted = aggregate_definition(right.definition, keys, named, self._types)
        several = filter_definition(counted, f"{counted.schema.names[-1]} > 1", self._types)
        refused = self._with_keys_of(0, several, [keys.index(place) for place in right.places])
        first = first_rows_definition(right.definition, keys, 1, None, 0, self._types)
        width = len(self._whole[1].definition.schema)
        only = first.columns(range(width)) if width < len(schema) else first
        self._sides[1] = self._sides[1]._replace(definition=only)
        pairs = self._pairs
        return self._outer("single", pairs, [_refused(refused, pairs.definition.schema)])


def _decided(each: Range, conditions: Sequence[Scalar]) -> list[Scalar]:
    """Returns the conditions that are true for all pairs of a range."""
    decided = []
    for condition in conditions:
        own = sum(bound.condition is condition for bound in each.bounds)
        if condition.is_compared and own == len(condition.comparisons):
            decided.append(condition)
    return decided


def _is_strict(bound: Bound | None) -> bool:
    return bound is not None and bound.is_strict


def _refused(several: Definition, schema: Schema) -> Definition:
    """Returns a collection without rows, which fails if there are left rows with many matches."""
    wide = several.then("pad", schema) if len(several.schema) < len(schema) else several
    return wide.then("consolidate").then("refuse", params={"message": _TOO_MANY, "hint": _ONE_ROW})


def _null_safe(left: tuple[Scalar, str], right: tuple[Scalar, str], type_: str) -> list[_Key]:
    """Returns keys that are equal if two values are equal in a type or both are null.

    Args:
        left, right: the values with their types.
    """
    a, b = left[0], right[0]
    default = NULL_VALUES.get(type_.split("(")[0])
    if default is None:
        one, other = (
            Scalar(("named_struct('k', ", *value.pieces, ")"))
            if own == type_
            else Scalar(("named_struct('k', cast((", *value.pieces, f") as {type_}))"))
            for value, own in (left, right)
        )
        return [_Key(one, other)]
    missing = [Scalar(("(", *each.pieces, ") is null")) for each in (a, b)]
    values = [
        Scalar(("coalesce(cast((", *each.pieces, f") as {type_}), {default})")) for each in (a, b)
    ]
    return [_Key(missing[0], missing[1]), _Key(values[0], values[1])]


def _has_one_row(relation: Relation, lowered: Lowered, keys: Sequence[int]) -> bool:
    """Returns True if a relation has at most one row for each combination of some keys."""
    while isinstance(relation, LogicalProject | LogicalFilter):
        relation = relation.source
    if isinstance(relation, LogicalAggregate):
        return all(lowered.places.get(each) in keys for each in relation.keys)
    if isinstance(relation, LogicalTop) and relation.limit == 1:
        return all(lowered.places.get(each) in keys for each in relation.groups)
    return isinstance(relation, LogicalSingle)
