"""Planning: the definition by which a stage is run, made from the one that says what it is.

A plan gives the same rows. It has no part in what a stage is: fingerprints of stages, the catalog
and the log have the definition as it was written. Parts without a name have the fingerprints of
the plan, and what an operator remembers has its plan beside it (`dataflow/graph.py`): where a plan
is another than before, they are made from the log of what feeds them, once.

A plan is of one definition alone, but for one choice: joins of many keep no rows between if what
they look up instead is kept by others. That plan is made beside the other one, and who knows what
others keep chooses (`dataflow/shared_arrangements.py`). Parts that are equal in the plans of two
stages are one node, as parts of definitions are.

What cannot be planned, or not in reasonable time, is run in the order in which it is written. So
are stages that are not deterministic: what their functions gave is kept by the rows that they saw.
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
from nosync_nb.dataflow.optimizer.predicate_pushdown import with_pushed_filters
from nosync_nb.dataflow.optimizer.projection_pushdown import with_pruned_columns
from nosync_nb.expressions import Types

WISHES_MAX = 4
"""Of more wishes it is not tried which were fulfilled, unless all or none were."""

PLANNED_MAX = 1000
"""Definitions of more operators are run as they are written: to plan them would take seconds."""


class PlanSet:
    """The definitions by which another one can be run.

    Attributes:
        wishes: what of named collections, if others keep it, lets it be run with fewer rows kept.
        asks: what it looks up whatever others keep.
    """

    def __init__(self, tree: Definition, made: _Made) -> None:
        self.wishes = made.wishes
        self.asks = made.asks
        self._tree = tree
        self._made = made

    def by(self, others: frozenset[Lookup]) -> Definition:
        """The definition by which it is run if others keep some of what it wishes for."""
        made, tree = self._made, self._tree
        if others not in made.plans:
            joined = with_multiway_joins(tree if made.narrow is None else made.narrow, others)
            made.plans[others] = None if joined is tree else joined
        plan = made.plans[others]
        return tree if plan is None else plan

    def subsets(self) -> Iterable[frozenset[Lookup]]:
        """Some of the wishes or all, the most first; of many all alone."""
        count = len(self.wishes)
        sizes = range(count, 0, -1) if count <= WISHES_MAX else [count]
        return map(
            frozenset, chain.from_iterable(combinations(sorted(self.wishes), n) for n in sizes)
        )


class _Made(NamedTuple):
    """What was made of a definition, where None stands for it: who holds its own key would stay.

    Attributes:
        narrow: what is chained, by what others keep.
        plans: those that were asked for, by what others keep.
    """

    narrow: Definition | None
    plans: dict[frozenset[Lookup], Definition | None]
    wishes: frozenset[Lookup]
    asks: frozenset[Lookup]


class _Every:
    """What others keep, if they keep all named collections by every key."""

    def __contains__(self, lookup: object) -> bool:
        return lookup is not None


_PLANS: WeakKeyDictionary[Definition, _Made] = WeakKeyDictionary()


def plan_definition(
    tree: Definition,
    types: Types | None,
    kept: Callable[[PlanSet], frozenset[Lookup]] = lambda _: NOBODYS,
) -> Definition:
    """The definition by which another one is run; the same object each time for one choice.

    Args:
        kept: tells what it wishes for that others keep; asked only if it wishes for something.

    Cost: that of compiling its expressions, the first time.
    """
    plans = plans_for_catalog(tree, types)
    return plans.by(kept(plans) if plans.wishes else NOBODYS)


def plans_for_catalog(tree: Definition, types: Types | None) -> PlanSet:
    """The plans of a definition. Cost: as that of `planned`."""
    made = _PLANS.get(tree)
    if made is None:
        made = _PLANS[tree] = _made(tree, types)
    return PlanSet(tree, made)


def _made(tree: Definition, types: Types | None) -> _Made:
    if tree.size > PLANNED_MAX:
        return _Made(None, {NOBODYS: None}, NOBODYS, lookup_keys(tree))
    narrow = with_pruned_columns(with_pushed_filters(tree), types)
    plan = with_multiway_joins(narrow)
    asks = lookup_keys(plan)
    wishes = lookup_keys(with_multiway_joins(narrow, _Every())) - asks
    plans = {NOBODYS: None if plan is tree else plan}
    return _Made(None if narrow is tree else narrow, plans, wishes, asks)
