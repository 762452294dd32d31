"""Planning: the definition by which a stage is run, made from the one that says what it is.

A plan gives the same rows. It has no part in what a stage is: fingerprints of stages, the catalog
and the log have the definition as it was written. Parts without a name have the fingerprints of
the plan, and what an operator remembers has its plan beside it (`dataflow/graph.py`): where a plan
is another than before, they are made from the log of what feeds them, once.

A plan is of one definition alone: what other stages read has no part in it, so that a definition
that comes or goes changes no plan of another. Parts that are equal in the plans of two stages are
one node, as parts of definitions are.

What cannot be planned, or not in reasonable time, is run in the order in which it is written. So
are stages that are not deterministic: what their functions gave is kept by the rows that they saw.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from nosync_nb.collections.definition import Definition
from nosync_nb.dataflow.chaining import chained
from nosync_nb.dataflow.demand import pruned
from nosync_nb.dataflow.pushing import pushed
from nosync_nb.expressions import Types

PLANNED_MAX = 1000
"""Definitions of more operators are run as they are written: to plan them would take seconds."""

_PLANS: WeakKeyDictionary[Definition, Definition | None] = WeakKeyDictionary()


def planned(tree: Definition, types: Types | None) -> Definition:
    """The definition by which another one is run; the same object each time.

    Cost: that of compiling its expressions, the first time.
    """
    try:
        plan = _PLANS[tree]
    except KeyError:
        plan = chained(pruned(pushed(tree), types)) if tree.size <= PLANNED_MAX else tree
        _PLANS[tree] = plan = None if plan is tree else plan  # one that holds its key would stay
    return tree if plan is None else plan
