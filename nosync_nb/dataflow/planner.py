"""Plans a definition: finds an equivalent definition that is cheaper to run.

A plan is not part of the identity of a stage. The fingerprints of stages, the catalog and the log
have the definition as it was written. Unnamed parts have the fingerprints of the plan, and operator
state is stored with its plan (`dataflow/graph.py`). If the plan of a stage changes, these are
rebuilt once from the logs of their inputs.

A plan depends on one definition alone, with one exception. A multiway join needs no intermediate
rows if its inputs have arrangements for its lookups. A plan with such joins is built in addition to
the default one. If no other stage maintains these arrangements, they may be larger than the
intermediate rows. Other stages maintain the lookups of their default plans, and the key of a keyed
collection. An arrangement that a stage would only use, a wish, does not influence the plan of
another stage. Parts that are equal in the plans of two stages share one node.

A chosen plan is retained, so that no definition and no opening drops the state of another stage.
The nodes in the log identify the plan of a stage, even if the plan was chosen by sizes. The plan is
chosen again if no such node exists, and before the first epoch. At that time no state exists, and
the result should not depend on the order of definitions.

A definition that cannot be planned, or only in a long time, is run as it is written. The same
applies to nondeterministic stages, because the results of their functions are memoised by the rows
of their inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from itertools import chain, combinations
from typing import NamedTuple
from weakref import WeakKeyDictionary

from nosync_nb.collections.definition import Definition
from nosync_nb.dataflow.graph import Graph, Node
from nosync_nb.dataflow.optimizer.multiway_joins import (
    NOBODYS,
    Lookup,
    lookup_keys,
    with_multiway_joins,
)
from nosync_nb.dataflow.optimizer.pushdown import with_pruned_columns, with_pushed_filters
from nosync_nb.dataflow.stage import Stage, separated_fingerprint
from nosync_nb.expressions import Types
from nosync_nb.operators.registry import is_linear

WISHES_MAX = 4
"""With more wishes than this, only the plans for all and for none of them are tried."""

PLANNED_MAX = 1000
"""A definition with more operators is run as written, because planning would take seconds."""


class PlanSet:
    """The plans of a definition.

    Attributes:
        wishes: the lookups into named collections that could replace intermediate rows, if other
            stages maintain arrangements for them.
        asks: the lookups of the default plan.
    """

    def __init__(self, tree: Definition, made: _CachedPlans) -> None:
        self.wishes = made.wishes
        self.asks = made.asks
        self._tree = tree
        self._cached = made

    def plan_for(self, others: frozenset[Lookup]) -> Definition:
        """Returns the plan that may use the lookups `others`, a subset of the wishes."""
        cached, tree = self._cached, self._tree
        if others not in cached.plans:
            joined = with_multiway_joins(tree if cached.narrow is None else cached.narrow, others)
            cached.plans[others] = None if joined is tree else joined
        plan = cached.plans[others]
        return tree if plan is None else plan

    def subsets(self) -> Iterable[frozenset[Lookup]]:
        """Returns the non-empty subsets of the wishes, the largest first.

        With more than `WISHES_MAX` wishes, only the full set.
        """
        count = len(self.wishes)
        sizes = range(count, 0, -1) if count <= WISHES_MAX else [count]
        return map(
            frozenset, chain.from_iterable(combinations(sorted(self.wishes), n) for n in sizes)
        )


class _CachedPlans(NamedTuple):
    """The plans of a definition, in which None represents the definition itself.

    A reference to the definition would keep its own key in the cache alive.

    Attributes:
        narrow: the definition after the optimizations that precede multiway joins.
        plans: the plans that were requested so far, by the wishes that they may use.
        wishes, asks: see `PlanSet`.
    """

    narrow: Definition | None
    plans: dict[frozenset[Lookup], Definition | None]
    wishes: frozenset[Lookup]
    asks: frozenset[Lookup]


class _AllLookups:
    """A container that contains every lookup, as if other stages maintained all of them."""

    def __contains__(self, lookup: object) -> bool:
        return lookup is not None


_PLANS: WeakKeyDictionary[Definition, _CachedPlans] = WeakKeyDictionary()


def plan_definition(
    tree: Definition,
    types: Types | None,
    kept: Callable[[PlanSet], frozenset[Lookup]] = lambda _: NOBODYS,
) -> Definition:
    """Returns the plan of a definition. Plans are cached: equal lookups give the same object.

    Args:
        kept: returns the lookups that the plan may use because other stages maintain them, or
            because they make it cheaper; called only if the definition has wishes (`PlanSet`).

    Cost: the compilation of its expressions, the first time.
    """
    plans = plans_for_catalog(tree, types)
    return plans.plan_for(kept(plans) if plans.wishes else NOBODYS)


def plans_for_catalog(tree: Definition, types: Types | None) -> PlanSet:
    """Returns the plans of a definition.

    Cost: that of `plan_definition`.
    """
    cached = _PLANS.get(tree)
    if cached is None:
        cached = _PLANS[tree] = _make_plans(tree, types)
    return PlanSet(tree, cached)


def _make_plans(tree: Definition, types: Types | None) -> _CachedPlans:
    if tree.size > PLANNED_MAX:
        return _CachedPlans(None, {NOBODYS: None}, NOBODYS, lookup_keys(tree))
    narrow = with_pruned_columns(with_pushed_filters(tree), types)
    plan = with_multiway_joins(narrow)
    asks = lookup_keys(plan)
    wishes = lookup_keys(with_multiway_joins(narrow, _AllLookups())) - asks
    plans = {NOBODYS: None if plan is tree else plan}
    return _CachedPlans(None if narrow is tree else narrow, plans, wishes, asks)


def shared_plan(
    plans: PlanSet, stage: Stage, prints: Mapping[str, str], parts: Container[str], graph: Graph
) -> frozenset[Lookup] | None:
    """Returns the lookups of the current plan of a stage; None if no node identifies the plan.

    Args:
        prints: the fingerprints of the inputs of the stage, by name.
        parts: the fingerprints of the nodes without a name.
        graph: the previous graph. After an opening, the inputs of its nodes may be unknown.
    """
    node = graph.named.get(stage.name)
    inputs = _input_fingerprints(graph, node)
    tried = {}
    for lookups in (NOBODYS, *plans.subsets()):
        plan = plans.plan_for(lookups)
        fingerprints = _part_fingerprints(plan, prints, stage.apart)
        if not inputs or inputs == _plan_input_fingerprints(plan, fingerprints):
            tried[lookups] = {fingerprints[key] for key in _unnamed_node_parts(plan)}
    if inputs and len(tried) == 1:
        return next(iter(tried))
    alone = tried.pop(NOBODYS, None)
    for lookups, nodes in tried.items():
        if nodes - (alone or set()) and all(part in parts for part in nodes):
            return lookups
    if alone is not None and all(part in parts for part in alone):
        return NOBODYS
    for lookups, nodes in tried.items():
        if (
            node is not None
            and nodes != alone
            and all(_has_arrangement(graph, *each) for each in lookups)
        ):
            return lookups
    return None


def arrangements_of_others(
    catalog: Mapping[str, Stage], name: str, types: Types | None
) -> frozenset[Lookup]:
    """Returns the arrangements that all stages except one maintain.

    Cost: O(stages).
    """
    return NOBODYS.union(
        *(requested_arrangements(each, types) for n, each in catalog.items() if n != name)
    )


def requested_arrangements(stage: Stage, types: Types | None) -> frozenset[Lookup]:
    """Returns the arrangements of a stage's default plan, and the one of the stage's key."""
    own_key = NOBODYS if stage.key is None else frozenset([(stage.name, stage.key)])
    if stage.definition is None or not stage.live or stage.options.nondeterministic:
        return own_key
    return own_key | plans_for_catalog(stage.definition, types).asks


def _part_fingerprints(
    plan: Definition, prints: Mapping[str, str], apart: int
) -> Mapping[int, str]:
    """Returns the fingerprints of the nodes of a plan's parts, by `id` of the part."""
    fingerprints = plan.fingerprints(prints)
    return {
        id(p): fingerprints[id(p)]
        if p.is_ref
        else separated_fingerprint(fingerprints[id(p)], apart)
        for p in plan.walk()
    }


def _unnamed_node_parts(plan: Definition) -> set[int]:
    """Returns the parts, by `id`, that have unnamed nodes.

    A row-wise part that is fused with its reader has no node.
    """
    nodes: set[int] = set()
    for part in plan.walk():
        for each in part.inputs:
            fused = is_linear(part) and is_linear(each) and plan.uses[id(each)] == 1
            if not each.is_ref and not fused:
                nodes.add(id(each))
    return nodes


def _input_fingerprints(graph: Graph, node: Node | None) -> list[str]:
    """Returns the fingerprints of the inputs of a node; empty if they are unknown.

    A graph that was just opened may have nodes whose inputs are created by the next compilation.
    """
    read = [] if node is None else [graph.nodes.get(i) for i in node.inputs]
    fingerprints = [each.fingerprint for each in read if each is not None]
    return fingerprints if len(fingerprints) == len(read) else []


def _plan_input_fingerprints(plan: Definition, fingerprints: Mapping[int, str]) -> list[str]:
    """Returns the fingerprints of the inputs of the top node of a plan."""
    last = plan
    while is_linear(last) and is_linear(last.inputs[0]) and plan.uses[id(last.inputs[0])] == 1:
        last = last.inputs[0]
    return [fingerprints[id(each)] for each in last.inputs]


def _has_arrangement(graph: Graph, name: str, key: tuple[int, ...]) -> bool:
    """Returns True if a named collection of a graph is arranged by a key."""
    node = graph.named.get(name)
    return node is not None and any(layout.key == key for layout in node.traces)
