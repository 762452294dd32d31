"""Chooses the plan of a stage by the arrangements that other stages maintain.

A multiway join needs no intermediate rows if arrangements of its inputs exist for its lookups. If
no other stage maintains such an arrangement, it may be larger than the intermediate rows. Other
stages maintain the lookups of their own default plans, and keyed collections their own key. An
arrangement that a stage only wishes for does not influence the choice of another stage.

A choice is retained, so that no definition and no opening drops the state of another stage. The
nodes in the log identify the plan of a stage, even if it was chosen by sizes. The plan is chosen
again if no such node exists. It is also chosen again before the first epoch, because no state
exists then, and the order of definitions should not matter.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from nosync_nb.collections.definition import Definition
from nosync_nb.dataflow.graph import Graph, Node
from nosync_nb.dataflow.optimizer.multiway_joins import NOBODYS, Lookup
from nosync_nb.dataflow.optimizer.planner import PlanSet, plans_for_catalog
from nosync_nb.dataflow.stage import Stage, separated_fingerprint
from nosync_nb.expressions import Types
from nosync_nb.operators.registry import is_linear


def shared_plan(
    plans: PlanSet, stage: Stage, prints: Mapping[str, str], parts: Container[str], graph: Graph
) -> frozenset[Lookup] | None:
    """Returns the lookups of the current plan of a stage; None if no node identifies it.

    Args:
        prints: the fingerprints of its inputs.
        parts: the fingerprints of the nodes without a name.
        graph: the graph in which it runs, if it runs; after an opening its readers are unknown.
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
    """Returns the arrangements that exist independently of a stage. Cost: O(stages)."""
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
    """Returns the fingerprints of the nodes of the parts, by `id`."""
    fingerprints = plan.fingerprints(prints)
    return {
        id(p): fingerprints[id(p)]
        if p.is_ref
        else separated_fingerprint(fingerprints[id(p)], apart)
        for p in plan.walk()
    }


def _unnamed_node_parts(plan: Definition) -> set[int]:
    """Returns the parts with unnamed nodes; row-wise parts are fused with their reader."""
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
    """Returns True if a graph has a named collection arranged by a key."""
    node = graph.named.get(name)
    return node is not None and any(layout.key == key for layout in node.traces)
