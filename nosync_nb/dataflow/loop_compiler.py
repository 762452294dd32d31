"""Compiles the definition of a loop to the operator that runs it.

A part without loop variables stays outside. It becomes an input of the loop, with the arrangement
for its lookups, and is computed once per epoch. Every other part becomes a node in the innermost
loop whose variables it depends on. A part that depends on an outer variable alone is not run again
in the rounds of the inner loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nosync_nb.collections.definition import Definition
from nosync_nb.dataflow.trampoline import Call, run_trampoline
from nosync_nb.errors import StageError, titled
from nosync_nb.expressions import Types
from nosync_nb.operators.iterate import (
    GROUP,
    JOIN,
    LEAVE,
    PLAIN,
    RESULT,
    VARIABLE,
    Loop,
    LoopNode,
    LoopPort,
    LoopScope,
    timed_layout,
)
from nosync_nb.operators.registry import build_operator
from nosync_nb.trace.batch import Layout


@dataclass
class LoopPlanBuilder:
    """A loop under construction."""

    prints: Mapping[int, str]
    types: Types | None
    nodes: list[LoopNode] = field(default_factory=list)
    outside: list[tuple[Definition, Layout | None]] = field(default_factory=list)
    states: list[tuple[Layout, int]] = field(default_factory=list)
    built: dict[tuple[str, tuple[int, ...]], int] = field(default_factory=dict)


Active = tuple[tuple[int, LoopScope, tuple[int, ...]], ...]
"""The enclosing loops: (level, scope, the nodes of its variables), outermost first."""


def compile_loop(
    tree: Definition, prints: Mapping[int, str], types: Types | None
) -> tuple[Loop, tuple[Definition, ...]]:
    """Returns the operator of a loop, and the definitions of its inputs, one for each layout.

    Args:
        prints: the fingerprints of its parts.
    """
    plan = LoopPlanBuilder(prints, types)
    scope = LoopScope(1, tree.params["rounds"])
    leave = run_trampoline(_loop(plan, tree, (), scope))
    layouts = [layout for _, layout in plan.outside]
    loop = Loop(plan.nodes, scope, layouts, plan.states, leave)
    return loop, tuple(definition for definition, _ in plan.outside)


def check_stable(loop: Loop, stage: str, *, keeping: bool) -> None:
    """Raises an error if a loop is nondeterministic, because it would not converge.

    Args:
        keeping: the stage is defined --nondeterministic, so its functions may differ between runs.
    """
    for node in loop.nodes:
        inner = node.operator
        if inner is None or node.kind != PLAIN:
            continue
        if not inner.stable or (keeping and inner.asks):
            raise StageError(
                f"{titled(stage)}: {inner.name} inside a loop must be deterministic",
                hint="compute it in a --nondeterministic stage before the loop",
            )


def _loop(plan: LoopPlanBuilder, tree: Definition, around: Active, scope: LoopScope) -> Call[int]:
    """Builds a loop inside others; returns the node that leaves it."""
    count = len(tree.inputs) // 2
    sources, results = tree.inputs[:count], tree.inputs[count:]
    ports: list[LoopPort] = []
    for source in sources:
        ports.append((yield _port(plan, source, around, None)))
    variables = []
    for source, port in zip(sources, ports, strict=True):
        variables.append(
            _add(plan, scope, LoopNode(VARIABLE, source.schema.types, (port,), scope.depth))
        )
    inside = (*around, (tree.params["level"], scope, tuple(variables)))
    ends = []
    for number, result in zip(variables, results, strict=True):
        port = yield _port(plan, result, inside, None)
        end = _add(plan, scope, LoopNode(RESULT, result.schema.types, (port,), scope.depth))
        plan.nodes[number].read(LoopPort(False, end))
        ends.append(LoopPort(False, end))
    leave = LoopNode(LEAVE, tree.schema.types, tuple(ends), scope.depth - 1)
    if around:
        around[scope.depth - 2][1].items.append(scope)
        return _add(plan, around[scope.depth - 2][1], leave)
    plan.nodes.append(leave)
    return len(plan.nodes) - 1


def _add(plan: LoopPlanBuilder, scope: LoopScope, node: LoopNode) -> int:
    plan.nodes.append(node)
    scope.items.append(len(plan.nodes) - 1)
    return len(plan.nodes) - 1


def _port(
    plan: LoopPlanBuilder, tree: Definition, active: Active, layout: Layout | None
) -> Call[LoopPort]:
    """Returns where a definition is computed: in a node, or outside with a layout."""
    if tree.levels:
        return LoopPort(False, (yield _node(plan, tree, active)))
    fingerprint = plan.prints[id(tree)]
    for number, (other, its_layout) in enumerate(plan.outside):
        if its_layout == layout and plan.prints[id(other)] == fingerprint:
            return LoopPort(True, number)
    plan.outside.append((tree, layout))
    return LoopPort(True, len(plan.outside) - 1)


def _node(plan: LoopPlanBuilder, tree: Definition, active: Active) -> Call[int]:
    """Returns the node of a definition, built once in the loops that it depends on."""
    free = tree.levels
    depths = [number for number, (level, _, _) in enumerate(active, 1) if level in free]
    if len(depths) < len(free):
        raise StageError(
            "the variable of a loop is used outside the loop",
            hint="use the result of iterate(), which is its last value",
        )
    depth = max(depths)
    active = active[:depth]
    if tree.op == "variable":
        return active[-1][2][int(tree.params["index"])]
    scopes = tuple(id(scope) for _, scope, _ in active)
    key = (plan.prints[id(tree)], scopes)
    if key not in plan.built:
        if tree.op == "iterate":
            inner = LoopScope(depth + 1, tree.params["rounds"])
            plan.built[key] = yield _loop(plan, tree, active, inner)
        else:
            plan.built[key] = yield _operator(plan, tree, active)
    return plan.built[key]


def _operator(plan: LoopPlanBuilder, tree: Definition, active: Active) -> Call[int]:
    """Returns the node of one operator, with a trace for each input that it looks up."""
    operator = build_operator(tree, plan.types)
    depth = len(active)
    inside = [bool(each.levels) for each in tree.inputs]
    kind = operator.in_loop
    if kind is None:
        raise StageError(
            f"'{operator.name}' cannot be used inside a loop",
            hint="use it before or after iterate()",
        )
    ports, states = [], []
    for position, each in enumerate(tree.inputs):
        layout = None
        if kind == JOIN:
            layout = operator.layouts[position]
        elif kind == GROUP:
            layout = operator.grouping(position)
        ports.append((yield _port(plan, each, active, layout)))
        if layout is not None:
            states.append(_state(plan, layout, depth) if inside[position] else None)
    if kind == GROUP:
        states.append(_state(plan, Layout(operator.types, operator.output_key), depth))
    node = LoopNode(kind, operator.types, tuple(ports), depth, operator, tuple(states))
    return _add(plan, active[-1][1], node)


def _state(plan: LoopPlanBuilder, layout: Layout, depth: int) -> int:
    plan.states.append((timed_layout(layout, depth), depth))
    return len(plan.states) - 1
