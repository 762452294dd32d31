"""Sharing: what of others' keeping a stage is run by.

Joins of many keep no rows between if what they look up instead is there. If nobody else keeps a
named collection by such a key, that would be more than the rows between. Others keep what their own
plans look up whatever anybody else does, and collections by their own key: what a stage only wishes
for is no reason for another's choice.

What was chosen stays, so that no definition and no opening takes away what another stage remembers:
the nodes that the log names tell by what a stage runs, be it by sizes. It is chosen anew if there
are none of them; and before the first epoch, as nothing is remembered then: the order of
definitions tells nothing.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from nosync_nb.collections.definition import Definition
from nosync_nb.dataflow.graph import Graph, Node
from nosync_nb.dataflow.optimizer.multiway_joins import NOBODYS, Lookup
from nosync_nb.dataflow.optimizer.planner import PlanSet, plans_for_catalog
from nosync_nb.dataflow.stage import Stage, inputs_and_stages
from nosync_nb.expressions import Types
from nosync_nb.operators.registry import is_linear


def shared_plan(
    plans: PlanSet, stage: Stage, prints: Mapping[str, str], parts: Container[str], graph: Graph
) -> frozenset[Lookup] | None:
    """What of its wishes a stage runs by already; None if no node tells.

    Args:
        prints: the fingerprints of what it reads.
        parts: the fingerprints of the nodes without a name.
        graph: what it runs in, if it runs; of one out of a log it is not known who reads whom.
    """
    node = graph.named.get(stage.name)
    inputs = _inputs(graph, node)
    tried = {}
    for lookups in (NOBODYS, *plans.subsets()):
        plan = plans.by(lookups)
        known = _prints(plan, prints, stage.apart)
        if not inputs or inputs == _reads(plan, known):
            tried[lookups] = {known[key] for key in _nodes(plan)}
    if inputs and len(tried) == 1:
        return next(iter(tried))
    alone = tried.pop(NOBODYS, None)
    for lookups, nodes in tried.items():
        if nodes - (alone or set()) and all(part in parts for part in nodes):
            return lookups
    if alone is not None and all(part in parts for part in alone):
        return NOBODYS
    for lookups, nodes in tried.items():
        if node is not None and nodes != alone and all(_keeps(graph, *each) for each in lookups):
            return lookups
    return None


def arrangements_of_others(
    catalog: Mapping[str, Stage], name: str, types: Types | None
) -> frozenset[Lookup]:
    """What is kept of named collections whatever becomes of a stage. Cost: O(stages)."""
    return NOBODYS.union(
        *(requested_arrangements(each, types) for n, each in catalog.items() if n != name)
    )


def requested_arrangements(stage: Stage, types: Types | None) -> frozenset[Lookup]:
    """What a stage keeps of named collections by its own plan, and of itself by its key."""
    own = NOBODYS if stage.key is None else frozenset([(stage.name, stage.key)])
    if stage.definition is None or not stage.live or stage.options.nondeterministic:
        return own
    return own | plans_for_catalog(stage.definition, types).asks


def _prints(plan: Definition, prints: Mapping[str, str], apart: int) -> Mapping[int, str]:
    """The fingerprints of what the nodes of the parts have, by `id`."""
    known = plan.fingerprints(prints)
    return {
        id(p): known[id(p)] if p.is_ref else inputs_and_stages(known[id(p)], apart)
        for p in plan.walk()
    }


def _nodes(plan: Definition) -> set[int]:
    """The parts that have nodes without a name: row-wise ones are one with what reads them."""
    nodes: set[int] = set()
    for part in plan.walk():
        for each in part.inputs:
            fused = is_linear(part) and is_linear(each) and plan.uses[id(each)] == 1
            if not each.is_ref and not fused:
                nodes.add(id(each))
    return nodes


def _inputs(graph: Graph, node: Node | None) -> list[str]:
    """The fingerprints of what a node reads; none if that is not known.

    A graph that was just opened has nodes that read some which only the next one will have.
    """
    read = [] if node is None else [graph.nodes.get(i) for i in node.inputs]
    known = [each.fingerprint for each in read if each is not None]
    return known if len(known) == len(read) else []


def _reads(plan: Definition, known: Mapping[int, str]) -> list[str]:
    """The fingerprints of what the node of a plan reads."""
    last = plan
    while is_linear(last) and is_linear(last.inputs[0]) and plan.uses[id(last.inputs[0])] == 1:
        last = last.inputs[0]
    return [known[id(each)] for each in last.inputs]


def _keeps(graph: Graph, name: str, key: tuple[int, ...]) -> bool:
    """Whether a graph has a named collection in the order of a key."""
    node = graph.named.get(name)
    return node is not None and any(layout.key == key for layout in node.traces)
