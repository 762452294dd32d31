"""Kernels in this process: an operator runs over a change at once, or file by file of it.

What lies in several files need not be in memory at once: operators whose output for pieces of a
change adds up get them one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from nosync_nb.dataflow.graph import Node
from nosync_nb.dataflow.runtime.delta import ArrangedChange, Delta
from nosync_nb.dataflow.runtime.executor__elsewhere import OperatorResult
from nosync_nb.operators import Operator, Step
from nosync_nb.trace.batch import Batch, Updates, concat_updates


def run_in_process(node: Node, deltas: list[Delta | None], step: Step) -> OperatorResult:
    """Runs an operator's kernel here."""
    operator = node.operator
    assert operator is not None
    apart = False
    for delta in deltas:  # of each step of a small epoch, too
        if delta is not None and delta.held and delta.is_apart:
            apart = True
    if apart and (operator.additive or operator.legs(deltas, step) is not None):
        output = _piecewise(operator, deltas, step)
    else:
        output = _at_once(operator, deltas, step)
    emitted: list[ArrangedChange | None] = []
    if step.emitted:
        emitted = [
            None if b is None or not len(b.diff) else ArrangedChange((b,)) for b in step.emitted
        ]
    made = None
    if output is not None and len(output.diff):
        made = Delta(operator.types, output)
    return OperatorResult(made, emitted, step.touched, step.placement or "in process")


def _at_once(operator: Operator, deltas: list[Delta | None], step: Step) -> Updates | None:
    """Runs a kernel over all that has changed."""
    given: list[Updates | Batch | None] = []
    for port, (layout, delta) in enumerate(zip(operator.layouts, deltas, strict=True)):
        if delta is None:
            given.append(None)
        elif layout is None or operator.loose:
            given.append(delta.narrowed(operator.used(port)) if delta.held else delta.updates)
        else:
            given.append(delta.batch(layout) if operator.sorts else delta.hashed(layout))
    step.give(given)
    return operator.step(step)


def _piecewise(operator: Operator, deltas: list[Delta | None], step: Step) -> Updates | None:
    """The same over changes of which some lie in several files, one file after the other.

    With legs, of an input with several orders only that is read which a leg asks for.
    """
    outputs = []
    legs = operator.legs(deltas, step)
    ways: list[tuple[int, Callable[[Step], Updates | None]]]
    if legs is None:
        ways = [(port, operator.step) for port in range(len(deltas))]
    else:
        ways = [(leg.port, partial(operator.walk, leg)) for leg in legs]
    for port, way in ways:
        delta = deltas[port]
        for piece in delta.pieces(operator.layouts[port]) if delta is not None else ():
            step.give([piece if at == port else None for at in range(len(deltas))])
            output = way(step)
            if output:
                outputs.append(output)
    return concat_updates(outputs, operator.types) if outputs else None
