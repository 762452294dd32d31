"""The equi-join of many collections by lookups, without intermediate state.

Let A, B, C be the inputs before the epoch, A', B', C' those after it, and dA, dB, dC their changes.
The change of the join is `dA x B x C + A' x dB x C + A' x B' x dC`, which has every combination
once. In each term, a change is looked up in one other input after the other: always in the smallest
input for which the carried rows have a key. An input has a port for each key by which it is looked
up.

Joined columns are equal in the output, so any of them may replace the others. Null equals nothing.
A predicate is evaluated as soon as its columns are available, because no predicate can raise.

Source: McSherry, "Delta queries"; Materialize's delta joins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from nosync_nb import rows
from nosync_nb.expressions import Expression, Types, compile_expression, of_params
from nosync_nb.operators.base import LookupHop, LookupStage, Operator, RowPiece, Step
from nosync_nb.operators.join import Join
from nosync_nb.operators.linear import predicate_mask
from nosync_nb.operators.spec import DefinitionPart, Spec, every_column
from nosync_nb.rows import Column, Schema
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import (
    NO_HASHES,
    UNORDERED,
    Batch,
    Index,
    Layout,
    Updates,
    concat_updates,
)

_ORDERS_MAX = 1 << 10
"""The maximum number of cached lookup orders. An order depends on the sizes of the inputs."""

Spot = tuple[int, int]
"""A column of an input: the number of the input, and the position of the column in it."""


class JoinPredicate(NamedTuple):
    """A predicate over columns of several inputs, which cannot raise."""

    predicate: Expression
    places: tuple[Spot, ...]


class LookupKey(NamedTuple):
    """An input, and the positions of a key by which it is looked up."""

    input: int
    key: tuple[int, ...]


class ResidualFilter(RowPiece):
    """Keeps the rows that satisfy some equalities and predicates.

    Args:
        same: pairs of positions with their type; the columns must be equal and not null.
        tests: predicates, each with the positions of the columns of its schema.
    """

    name = "sieve"

    def __init__(
        self,
        same: Sequence[tuple[int, int, str]],
        tests: Sequence[tuple[Expression, tuple[int, ...]]],
    ) -> None:
        self.same = same
        self.tests = tests

    def apply(self, updates: Updates, step: Step) -> Updates:
        index = self.index(updates.columns, len(updates.diff))
        return updates if index is None else updates.take(index)

    def of_batch(self, batch: Batch) -> Batch:
        """Filters a batch without hashing the keys again."""
        index = self.index(batch.columns, len(batch.diff))
        if index is None:
            return batch
        columns = [rows.take(column, index) for column in batch.columns]
        return Batch(UNORDERED, columns, batch.khash[index], NO_HASHES, batch.diff[index])

    def index(self, columns: Sequence[Column], n: int) -> Index | None:
        """Returns the positions of the remaining rows; None if all rows remain."""
        mask = np.ones(n, bool)
        for one, other, type_ in self.same:
            null = rows.null_mask(columns[one])
            mask &= rows.equal(columns[one], columns[other], type_)
            if null is not None:
                mask &= ~null
        for predicate, places in self.tests:
            mask &= predicate_mask(predicate.evaluate([columns[place] for place in places], n))
        return None if mask.all() else mask.nonzero()[0]


class JoinLookup(NamedTuple):
    """One lookup of a route: joins the carried rows with the trace of a port, then filters."""

    port: int
    join: Join
    sieve: ResidualFilter | None


class LookupRoute(NamedTuple):
    """The lookups of one input's change in the other inputs.

    Attributes:
        start: a filter on the rows of the change, if any.
        hops: the lookups, in order.
        outputs: the positions of the output's columns in the rows of the last lookup.
    """

    start: ResidualFilter | None
    hops: tuple[JoinLookup, ...]
    outputs: tuple[int, ...]


class MultiwayJoin(Operator):
    """Joins any number of inputs on columns that have the same types.

    Args:
        inputs: the column types of each input.
        ports: the arrangements for lookups, at least one for each input.
        same: columns that are equal in every row of the output, as disjoint sets.
        tests: predicates that hold for every row of the output.
        outputs: the columns of the output.
    """

    name = "joins"
    sorts = False

    def __init__(
        self,
        inputs: Sequence[Sequence[str]],
        ports: Sequence[LookupKey],
        same: Iterable[Iterable[Spot]],
        tests: Sequence[JoinPredicate],
        outputs: Sequence[Spot],
    ) -> None:
        self.inputs = tuple(map(tuple, inputs))
        self.ports = tuple(ports)
        self.tests = tuple(tests)
        self.outputs = tuple(outputs)
        self.types = tuple(inputs[i][place] for i, place in outputs)
        self.layouts = tuple(Layout(self.inputs[port.input], port.key) for port in ports)
        self.same = {place: number for number, places in enumerate(same) for place in places}
        self._routes: dict[tuple[int, ...], LookupRoute] = {}
        self._orders: dict[tuple[int, tuple[int, ...]], tuple[int, ...]] = {}

    def step(self, step: Step) -> Updates | None:
        parts = [
            part
            for leg in self.lookup_stages(step.deltas, step)
            if (part := self.walk(leg, step)) is not None
        ]
        return concat_updates(parts, self.types) if parts else None

    def lookup_stages(self, changed: Sequence[object | None], step: Step) -> Sequence[LookupStage]:
        """Returns for each changed input the stage that looks its change up in the others."""
        legs = []
        for source in range(len(self.inputs)):
            own = [at for at, port in enumerate(self.ports) if port.input == source]
            if changed[own[0]] is None:
                continue
            traces = self._traces_for(source, step)
            order = self.order(source, [0 if t is None else t.rows_count for t in traces])
            if not order:
                continue
            route = self.route(source, order)
            first = route.hops[0].join.keys[0]
            port = next((at for at in own if self.ports[at].key == first), own[0])
            hops = [
                LookupHop(each.port, each.join, trace, each.sieve)
                for each in route.hops
                if (trace := traces[each.port]) is not None
            ]
            legs.append(LookupStage(port, route.start, tuple(hops), route.outputs))
        return legs

    def walk(self, leg: LookupStage, step: Step) -> Updates | None:
        """Returns the joined rows for the change of one input; None if there are none."""
        delta = step.deltas[leg.port]
        assert isinstance(delta, Batch)
        carried = delta
        if leg.start is not None:
            assert isinstance(leg.start, ResidualFilter)
            carried = leg.start.of_batch(delta)
        for number, hop in enumerate(leg.hops):
            if not len(carried.diff):
                return None
            join = hop.operator
            assert isinstance(join, Join)
            if number or join.keys[0] != self.ports[leg.port].key:
                carried = _with_key_hashes(carried, join.layouts[0])
            paired = join.pairs(0, carried, hop.trace, step)
            if paired is None:
                return None
            updates = paired[0] if hop.sieve is None else hop.sieve.apply(paired[0], step)
            carried = Batch(UNORDERED, updates.columns, NO_HASHES, NO_HASHES, updates.diff)
        if not len(carried.diff):
            return None
        return Updates([carried.columns[i] for i in leg.outputs], carried.diff)

    def _traces_for(self, source: int, step: Step) -> list[Trace | None]:
        """Returns for each port the trace in which the change of input `source` is looked up.

        Inputs before `source` are read after their change, later inputs before it.
        """
        both = zip(self.ports, step.before, step.after, strict=True)
        return [after if port.input < source else before for port, before, after in both]

    def visited(self, port: int, sizes: Sequence[int]) -> Sequence[int]:
        return self.order(self.ports[port].input, sizes)

    def order(self, source: int, sizes: Sequence[int]) -> tuple[int, ...]:
        """Returns the ports in which an input's change is looked up, in order.

        Empty if one of the other inputs has no rows, because then there is no joined row.

        Args:
            sizes: the number of rows of each port's trace.
        """
        ports = self.ports
        if 0 in sizes and any(
            not n for n, port in zip(sizes, ports, strict=True) if port.input != source
        ):
            return ()
        # Smaller inputs go first; of the same size those with more key columns.
        first = tuple(sorted(range(len(ports)), key=lambda at: (sizes[at], -len(ports[at].key))))
        order = self._orders.get((source, first))
        if order is None:
            if len(self._orders) >= _ORDERS_MAX:
                self._orders.clear()
            order = self._orders[source, first] = self._ordered_ports(source, first)
        return order

    def _ordered_ports(self, source: int, first: Sequence[int]) -> tuple[int, ...]:
        """Chooses the lookup order: always the first port of `first` whose key is available."""
        bound, available, order = {source}, self._equal_sets_of(source), list[int]()
        while len(bound) < len(self.inputs):
            at = next(
                at
                for at in first
                if self.ports[at].input not in bound
                and available.issuperset(
                    self.same[self.ports[at].input, k] for k in self.ports[at].key
                )
            )
            order.append(at)
            bound.add(self.ports[at].input)
            available |= self._equal_sets_of(self.ports[at].input)
        return tuple(order)

    def _equal_sets_of(self, number: int) -> set[int]:
        """Returns the numbers of the sets of equal columns that include a column of an input."""
        return {each for (i, _), each in self.same.items() if i == number}

    def route(self, source: int, order: tuple[int, ...]) -> LookupRoute:
        """Returns the route for a lookup order; routes are cached."""
        route = self._routes.get((source, *order))
        if route is None:
            route = self._routes[(source, *order)] = self._build_route(source, order)
        return route

    def _build_route(self, source: int, order: tuple[int, ...]) -> LookupRoute:
        have = [(source, place) for place in range(len(self.inputs[source]))]
        waiting = [*self.tests]
        start = self._residual_filter(have, self._equalities(source, (), []), waiting)
        hops: list[JoinLookup] = []
        for at, port in enumerate(order):
            number, key = self.ports[port]
            left = [self._stand_in(have, self.same[number, k]) for k in key]
            checks = self._equalities(number, key, have)
            ahead = {self.ports[later].input for later in order[at + 1 :]}
            new = [(number, place) for place in range(len(self.inputs[number]))]
            wanted = self._needed_columns([*have, *new], ahead, waiting)
            wanted.update(place for pair in checks for place in pair)
            outputs = [(0, i) for i, place in enumerate(have) if place in wanted]
            outputs += [(1, place) for _, place in new if (number, place) in wanted]
            types = [self.inputs[i][place] for i, place in have]
            join = Join(types, self.inputs[number], left, key, outputs)
            have = [have[i] if side == 0 else (number, i) for side, i in outputs]
            hops.append(JoinLookup(port, join, self._residual_filter(have, checks, waiting)))
        return LookupRoute(start, tuple(hops), tuple([have.index(place) for place in self.outputs]))

    def _stand_in(self, have: Sequence[Spot], number: int) -> int:
        """Returns the position of the first carried column of a set of equal columns."""
        return next(i for i, place in enumerate(have) if self.same.get(place) == number)

    def _equalities(
        self, number: int, key: Sequence[int], have: Sequence[Spot]
    ) -> list[tuple[Spot, Spot]]:
        """Returns the pairs of columns that must still be compared after the lookup of an input.

        Args:
            number: the input that is looked up.
            key: the key of the lookup, whose columns are equal already.
            have: the carried columns.
        """
        first = {self.same[place]: place for place in reversed(have) if place in self.same}
        checks = []
        for place in range(len(self.inputs[number])):
            own = self.same.get((number, place))
            if own is None or place in key:
                continue
            other = first.setdefault(own, (number, place))
            if other != (number, place):
                checks.append((other, (number, place)))
        return checks

    def _needed_columns(
        self, there: Sequence[Spot], ahead: set[int], waiting: Sequence[JoinPredicate]
    ) -> set[Spot]:
        """Returns the columns that the output, a later lookup or a later predicate needs.

        Args:
            there: the columns after the current lookup.
            ahead: the inputs of later lookups.
            waiting: the predicates that are not evaluated yet.
        """
        wanted = {*self.outputs, *(place for test in waiting for place in test.places)}
        for number in {each for (i, _), each in self.same.items() if i in ahead}:
            wanted.update([p for p in there if self.same.get(p) == number][:1])
        return wanted

    def _residual_filter(
        self,
        have: Sequence[Spot],
        checks: Sequence[tuple[Spot, Spot]],
        waiting: list[JoinPredicate],
    ) -> ResidualFilter | None:
        """Builds the filter for rows with the columns `have`; None if it would test nothing.

        Predicates of the filter are removed from `waiting`.
        """
        ready = [test for test in waiting if {*test.places} <= {*have}]
        waiting[:] = [test for test in waiting if test not in ready]
        if not checks and not ready:
            return None
        at = {place: i for i, place in enumerate(have)}
        same = [(at[a], at[b], self.inputs[a[0]][a[1]]) for a, b in checks]
        tests = [(test.predicate, tuple(at[place] for place in test.places)) for test in ready]
        return ResidualFilter(same, tests)


def _with_key_hashes(batch: Batch, layout: Layout) -> Batch:
    """Returns unordered rows with the hashes of the key of a layout."""
    keys = [batch.columns[i] for i in layout.places]
    types = [layout.types[i] for i in layout.places]
    khash = rows.hash_columns(keys, types, len(batch.diff))
    return Batch(UNORDERED, batch.columns, khash, NO_HASHES, batch.diff)


def _build(part: DefinitionPart, types: Types | None) -> Operator:
    params = part.params
    numbers: list[int] = params["inputs"]
    ports = [LookupKey(i, tuple(key)) for i, key in zip(numbers, params["keys"], strict=True)]
    schemas = {i: each.schema.types for i, each in zip(numbers, part.inputs, strict=True)}
    tests = []
    for each in params["tests"]:
        schema = Schema([(name, type_) for name, type_ in each["schema"]])
        settings = of_params(each)
        predicate = compile_expression(
            each["predicate"], schema, types=lambda *_: ["boolean"], settings=settings
        )
        tests.append(JoinPredicate(predicate, _spots(each["places"])))
    same = [_spots(each) for each in params["same"]]
    inputs = [schemas[i] for i in range(len(schemas))]
    return MultiwayJoin(inputs, ports, same, tests, _spots(params["outputs"]))


def _spots(pairs: Iterable[Sequence[int]]) -> tuple[Spot, ...]:
    return tuple((number, place) for number, place in pairs)


SPEC = Spec("joins", every_column, build=_build)
