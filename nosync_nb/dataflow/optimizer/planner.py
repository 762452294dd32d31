"""Plans a definition: finds one with the same rows that is cheaper to run.

A plan does not contribute to the identity of a stage: fingerprints of stages, the catalog and the
log have the definition as it was written. Parts without a name have the fingerprints of the plan,
and operator state has its plan beside it (`dataflow/graph.py`). If a plan differs from the previous
one, such parts are rebuilt once from the logs of their inputs.

A plan depends on one definition alone, with one exception: a multiway join needs no intermediate
rows if others maintain the arrangements for its lookups. That plan is built beside the default one,
and `dataflow/shared_arrangements.py` chooses between them. Parts that are equal in the plans of two
stages are one node, as for definitions.

A definition that cannot be planned, or not in reasonable time, is run as it is written. So are
nondeterministic stages, because results of their functions are memoised by the rows of their
inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, combinations
from typing import NamedTuple
from weakref import WeakKeyDictionary

from nosync_nb.collections.definition import Definition
from nosync_nb.dataflow.optimizer.multiway_joins import (
    NOBODYS,
    Lookup,
    lookup_keys,
    with_multiway_joins,
)
from nosync_nb.dataflow.optimizer.pushdown import with_pruned_columns, with_pushed_filters
from nosync_nb.expressions import Types

WISHES_MAX = 4
"""With more wishes, only the plans with all or none of them are tried."""

PLANNED_MAX = 1000
"""Definitions with more operators are run as written, because planning would take seconds."""


class PlanSet:
    """The plans of a definition.

    Attributes:
        wishes: lookups into named collections that avoid intermediate rows if others support them.
        asks: the lookups of the default plan.
    """

    def __init__(self, tree: Definition, made: _CachedPlans) -> None:
        self.wishes = made.wishes
        self.asks = made.asks
        self._tree = tree
        self._cached = made

    def plan_for(self, others: frozenset[Lookup]) -> Definition:
        """Returns the plan for the wishes that others support."""
        cached, tree = self._cached, self._tree
        if others not in cached.plans:
            joined = with_multiway_joins(tree if cached.narrow is None else cached.narrow, others)
            cached.plans[others] = None if joined is tree else joined
        plan = cached.plans[others]
        return tree if plan is None else plan

    def subsets(self) -> Iterable[frozenset[Lookup]]:
        """Yields the non-empty subsets of the wishes, the largest first.

        Only the full set if they are many.
        """
        count = len(self.wishes)
        sizes = range(count, 0, -1) if count <= WISHES_MAX else [count]
        return map(
            frozenset, chain.from_iterable(combinations(sorted(self.wishes), n) for n in sizes)
        )


class _CachedPlans(NamedTuple):
    """Plans of a definition; None represents the definition itself.

    A reference to the definition would keep its own key in the cache alive.

    Attributes:
        narrow: the definition before the search for multiway joins.
        plans: the plans that were requested, by the wishes that others support.
    """

    narrow: Definition | None
    plans: dict[frozenset[Lookup], Definition | None]
    wishes: frozenset[Lookup]
    asks: frozenset[Lookup]


class _AllLookups:
    """A set that contains every lookup."""

    def __contains__(self, lookup: object) -> bool:
        return lookup is not None


_PLANS: WeakKeyDictionary[Definition, _CachedPlans] = WeakKeyDictionary()


def plan_definition(
    tree: Definition,
    types: Types | None,
    kept: Callable[[PlanSet], frozenset[Lookup]] = lambda _: NOBODYS,
) -> Definition:
    """Returns the plan of a definition; the same object each time for one choice.

    Args:
        kept: returns the wishes that others support; called only if there are wishes.

    Cost: the compilation of its expressions, the first time.
    """
    plans = plans_for_catalog(tree, types)
    return plans.plan_for(kept(plans) if plans.wishes else NOBODYS)


def plans_for_catalog(tree: Definition, types: Types | None) -> PlanSet:
    """Returns the plans of a definition. Cost: as for `plan_definition`."""
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
