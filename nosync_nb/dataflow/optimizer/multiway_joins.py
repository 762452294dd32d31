"""Replaces a chain of joins with one multiway join, which stores no intermediate rows.

As written, `(A join B) join C` stores the rows of `A join B` by the key of C, in memory and in the
log. A multiway join stores no such rows. Instead it needs one more arrangement of A or B, by the
key that finds the partners of C. All readers share an arrangement of a named collection.

A join absorbs the join on its left side, and the projections and renamings between them, under
these conditions:
1. No other part reads the left join. A named collection is stored for its readers in any case.
2. No predicate is between the joins, or other stages maintain the arrangement that would be needed.
   Otherwise it would cost more, because fewer rows are left after the predicate. With TPC-H's third
   query, and no other reader of orders by their own key, epochs of 7500 rows took a third longer
   and used a sixth more disk. In a multiway join a predicate is evaluated as early as possible. It
   must run in this process, and no row may make it raise.
3. All left key columns belong to one input. That input is a named collection, or already has an
   arrangement by them. Otherwise rows would be stored a second time for this join alone.
4. The join is not a cross join, and not part of a loop.
5. The multiway join saves more arrangements than it requests, not counting those that other stages
   maintain. With equal numbers it would store more bytes, because arrangements of named collections
   have all columns. A star of facts with two other tables, and without another reader, used 1.5
   times the disk, and took twice as long for 7500 rows.

If the named collections already have rows, the estimated sizes of both plans replace conditions 2
and 5 (`dataflow/cardinality.py`): the arrangements of the smaller plan count as if other stages
maintained them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

from nosync_nb.collections.definition import Definition
from nosync_nb.dataflow.optimizer.pushdown import parts_with_fixed_columns
from nosync_nb.errors import NosyncError
from nosync_nb.expressions import Expression, compile_expression, conjuncts, of_params

LEAST = 2
"""A definition with fewer joins has no intermediate rows, so it has no chain."""

_SIEVED = "a predicate is between the joins"

_BETWEEN = ("join", "select", "filter")

Spot = tuple[int, int]

Lookup = tuple[str, tuple[int, ...]]
"""A lookup into a named collection by a key: its name, and the positions of the key columns."""

NOBODYS: frozenset[Lookup] = frozenset()


class _Chain(NamedTuple):
    """A chain of joins, which a multiway join can replace.

    Attributes:
        inputs: the joined parts.
        ports: the lookup keys of the inputs, as (number of the input, positions of the key).
        same: the sets of columns that are equal; the sets are disjoint.
        tests: the predicates, as parameters of the operator.
        columns: the input and the position of each column of the output.
        more: the number of arrangements that the definition as written would not request.
    """

    inputs: tuple[Definition, ...]
    ports: tuple[tuple[int, tuple[int, ...]], ...]
    same: tuple[frozenset[Spot], ...]
    tests: tuple[Mapping[str, Any], ...]
    columns: tuple[Spot, ...]
    more: int = 0

    @property
    def saved(self) -> int:
        """The number of arrangements that the multiway join saves.

        This is the number of intermediate arrangements minus the additional ones of inputs.
        """
        return len(self.inputs) - 2 - self.more


class _ChainSearch(NamedTuple):
    """The chains of a definition.

    Attributes:
        spines: the parts of a sequence of joins with their chains, each of which extends the
            previous one; by the `id` of each of the parts.
        ended: the reason why the joins above a part form no chain with the joins below it, by the
            `id` of the part.
    """

    spines: dict[int, list[tuple[Definition, _Chain]]]
    ended: dict[int, str]


def with_multiway_joins(tree: Definition, others: Container[Lookup] = NOBODYS) -> Definition:
    """Replaces chains of joins with multiway joins where this saves arrangements.

    Returns:
        an equivalent definition; the same object if no chain is replaced.

    Args:
        others: the lookups that other stages maintain; they count as no additional space.

    Cost: O(size), and the compilation of predicates between joins.
    """
    parts = [*tree.walk()]
    if sum(part.op == "join" for part in parts) < LEAST:
        return tree
    tops = [_best_chain(spine) for spine in _find_chains(tree, parts, others).spines.values()]
    chosen = {id(part): chain for part, chain in tops if chain.saved > 0}
    return _rebuild(parts, chosen) if chosen else tree


def without_multiway_joins(plan: Definition) -> Mapping[int, str]:
    """Returns, for each join that stores the output of the join below it, the reason.

    A join is identified by the `id` of its part.

    Cost: that of `with_multiway_joins`.
    """
    parts = [*plan.walk()]
    if sum(part.op == "join" for part in parts) < LEAST:
        return {}
    spines, ended = _find_chains(plan, parts, NOBODYS)
    reasons = {
        id(p): ended[id(p.inputs[0])]
        for p in parts
        if _is_chainable_join(p) and id(p.inputs[0]) in ended
    }
    for spine in spines.values():
        for part, chain in spine:
            if _is_chainable_join(part) and len(chain.inputs) > LEAST:
                reasons[id(part)] = "a multiway join would need as many arrangements as it saves"
    return reasons


def lookup_keys(plan: Definition) -> frozenset[Lookup]:
    """Returns the lookups of the joins of a plan into named collections.

    Cost: O(size).
    """
    sought: set[Lookup] = set()
    for part in plan.walk():
        if part.op == "join":
            keys = [part.params["left"], part.params["right"]]
        else:
            keys = part.params["keys"] if part.op == "joins" else []
        for each, key in zip(part.inputs, keys, strict=False):
            if each.is_ref:
                sought.add((each.name, tuple(key)))
    return frozenset(sought)


def _find_chains(
    tree: Definition, parts: Sequence[Definition], others: Container[Lookup]
) -> _ChainSearch:
    fixed, uses = parts_with_fixed_columns(parts), tree.uses
    spines: dict[int, list[tuple[Definition, _Chain]]] = {}
    ended: dict[int, str] = {}
    for part in parts:
        if id(part) in fixed or not part.inputs:
            continue
        below = part.inputs[0]
        spine = spines.get(id(below), [])
        if spine and uses[id(below)] > 1:
            ended[id(below)], spine = "other operators read them", []
        if spine:
            chain = _extend_chain(part, spine[-1][1], others)
        else:
            chain = ended.get(id(below)) if part.op in _BETWEEN else None
        if isinstance(chain, str):
            ended[id(below if _is_chainable_join(part) else part)] = chain
        if not isinstance(chain, _Chain) and _is_chainable_join(part):
            spine, chain = [], _extend_chain(part, _chain_of_one(below), others)
        if isinstance(chain, _Chain):
            spine.append((part, chain))
            spines[id(part)] = spine
    return _ChainSearch(spines, ended)


def _is_chainable_join(part: Definition) -> bool:
    """Returns True if a part is a join that can be in a chain."""
    return part.op == "join" and bool(part.params["left"])


def _best_chain(spine: Sequence[tuple[Definition, _Chain]]) -> tuple[Definition, _Chain]:
    """Returns the chain of a spine that saves the most arrangements, with its part.

    If several save the same number, it is the shortest. The chain includes the projections and
    predicates above its last join.
    """
    _, best = max(spine, key=lambda each: each[1].saved)
    return [each for each in spine if len(each[1].inputs) == len(best.inputs)][-1]


def _rebuild(parts: Sequence[Definition], tops: Mapping[int, _Chain]) -> Definition:
    rebuilt: dict[int, Definition] = {}
    for part in parts:
        chain = tops.get(id(part))
        if chain is not None:
            inputs = tuple([rebuilt[id(each)] for each in chain.inputs])
            rebuilt[id(part)] = _multiway_join(part, chain, inputs)
            continue
        inputs = tuple([rebuilt[id(each)] for each in part.inputs])
        rebuilt[id(part)] = part
        if any(a is not b for a, b in zip(inputs, part.inputs, strict=True)):
            rebuilt[id(part)] = Definition(part.op, part.schema, inputs, part.params, part.captured)
    return rebuilt[id(parts[-1])]


def _multiway_join(part: Definition, chain: _Chain, inputs: Sequence[Definition]) -> Definition:
    """Returns the multiway join that replaces a part."""
    params = {
        "inputs": [number for number, _ in chain.ports],
        "keys": [list(key) for _, key in chain.ports],
        "same": [sorted(map(list, each)) for each in chain.same],
        "tests": list(chain.tests),
        "outputs": [list(spot) for spot in chain.columns],
    }
    below = tuple([inputs[number] for number, _ in chain.ports])
    return Definition("joins", part.schema, below, params)


def _chain_of_one(part: Definition) -> _Chain:
    """Returns a chain with one part as its first input."""
    leaf, positions = _join_input(part)
    return _Chain((leaf,), (), (), (), tuple([(0, position) for position in positions]))


def _join_input(part: Definition) -> tuple[Definition, Sequence[int]]:
    """Returns an input of a join, and for each column its position in that input.

    For a projection or renaming of a named collection, the input is the collection itself, because
    other readers share its arrangements.
    """
    leaf, positions = part, [*range(len(part.schema))]
    while _is_projection(leaf):
        positions = [leaf.params["outputs"][position] for position in positions]
        leaf = leaf.inputs[0]
    return (leaf, positions) if leaf.is_ref else (part, range(len(part.schema)))


def _is_projection(part: Definition) -> bool:
    """Returns True if a part selects columns of its input without computing any."""
    if part.op != "select":
        return False
    return all(isinstance(position, int) for position in part.params["outputs"])


def _extend_chain(
    part: Definition, inner: _Chain, others: Container[Lookup]
) -> _Chain | str | None:
    """Returns the chain of the first input, extended by a part.

    Returns the reason as text if the chain ends there; None if the part cannot be in a chain.
    """
    match part.op:
        case "join" if part.params["left"]:
            return _with_join(part, inner, others)
        case "select" if _is_projection(part):
            columns = [inner.columns[position] for position in part.params["outputs"]]
            return inner._replace(columns=tuple(columns))
        case "select":
            return "columns are computed between the joins"
        case "filter":
            return (None if part.functions else _with_filter(part, inner)) or _SIEVED
    return None


def _with_join(part: Definition, inner: _Chain, others: Container[Lookup]) -> _Chain | str:
    right, positions = _join_input(part.inputs[1])
    number = len(inner.inputs)
    key = tuple([positions[position] for position in part.params["right"]])
    left = [inner.columns[position] for position in part.params["left"]]
    same = inner.same
    for one, other in zip(left, key, strict=True):
        same = _unite_columns(same, one, (number, other))
    port = _lookup_port(inner, left)
    maintained = not isinstance(port, str) and _lookup(inner.inputs[port[0]], port[1]) in others
    if inner.tests and not maintained:
        return _SIEVED
    if isinstance(port, str):
        return port
    ports = dict.fromkeys((*inner.ports, port, (number, key)))
    columns = [
        inner.columns[position] if side == 0 else (number, positions[position])
        for side, position in part.params["outputs"]
    ]
    more = inner.more + (number > 1 and port not in inner.ports and not maintained)
    return _Chain((*inner.inputs, right), tuple(ports), same, inner.tests, tuple(columns), more)


def _lookup_port(inner: _Chain, left: Sequence[Spot]) -> tuple[int, tuple[int, ...]] | str:
    """Returns the lookup by which a chain finds the partners of a new input.

    Returns the reason as text if the lookup would need an arrangement for this join alone.
    """
    classes = {place: at for at, places in enumerate(inner.same) for place in places}
    if all(place in classes for place in left):
        key_classes = {classes[place] for place in left}
        for number, key in inner.ports:
            if {classes[number, k] for k in key} == key_classes:
                return number, key
    owners = {number for number, _ in left}
    (owner, *others) = sorted(owners)
    if others:
        return "the join key has columns of several inputs"
    if len(inner.inputs) > 1 and not inner.inputs[owner].is_ref:
        return "the join key has no name"
    return owner, tuple(place for _, place in left)


def _lookup(part: Definition, key: tuple[int, ...]) -> Lookup | None:
    return (part.name, key) if part.is_ref else None


def _unite_columns(
    same: Sequence[frozenset[Spot]], one: Spot, other: Spot
) -> tuple[frozenset[Spot], ...]:
    """Returns the sets of equal columns after two columns have become equal."""
    both = frozenset((one, other)).union(*(each for each in same if one in each or other in each))
    return (*(each for each in same if each.isdisjoint(both)), both)


def _with_filter(part: Definition, inner: _Chain) -> _Chain | None:
    """Returns a chain with the conjuncts of a filter added to its predicates.

    Returns None if a conjunct is nondeterministic, may raise, or needs Spark.
    """
    tests = []
    schema = part.inputs[0].schema
    for text in conjuncts(part.params["predicate"]):
        predicate = _compiled_predicate(text, part)
        if predicate is None or not predicate.local or predicate.raises:
            return None
        if not predicate.deterministic:
            return None
        tests.append(
            {
                **part.params,
                "predicate": text,
                "schema": [list(schema.fields[i]) for i in predicate.columns],
                "places": [list(inner.columns[i]) for i in predicate.columns],
            }
        )
    return inner._replace(tests=(*inner.tests, *tests))


def _compiled_predicate(sql: str, part: Definition) -> Expression | None:
    """Compiles a predicate over the input of a filter; returns None if that fails."""
    settings = of_params(part.params)
    try:
        return compile_expression(
            sql, part.inputs[0].schema, types=lambda *_: ["boolean"], settings=settings
        )
    except NosyncError:
        return None
