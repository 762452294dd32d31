"""Kernels in this process: an operator runs over a change at once, or file by file of it.

What lies in several files need not be in memory at once: operators whose output for pieces of a
change adds up get them one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from nosync_nb.dataflow.delta import Delta, Held
from nosync_nb.dataflow.elsewhere import Done
from nosync_nb.dataflow.graph import Node
from nosync_nb.operators import Leg, Operator, Step
from nosync_nb.trace.batch import Batch, Updates, concat_updates


def in_process(node: Node, deltas: list[Delta | None], step: Step) -> Done:
    """Runs an operator's kernel here."""
    operator = node.operator
    assert operator is not None
    apart = any(delta is not None and delta.is_apart for delta in deltas)
    legs = operator.legs(deltas, step) if apart else None
    if legs is not None:
        output = _along(legs, operator, deltas, step)
    elif apart and operator.additive:
        output = _piecewise(operator, deltas, step)
    else:
        output = _at_once(operator, deltas, step)
    emitted: list[Held | None] = []
    if step.emitted:
        emitted = [None if b is None or not len(b.diff) else Held((b,)) for b in step.emitted]
    delta = None
    if output is not None and len(output.diff):
        delta = Delta(operator.types, output)
    return Done(delta, emitted, step.touched, step.placement or "in process")


def _at_once(operator: Operator, deltas: list[Delta | None], step: Step) -> Updates | None:
    """Runs a kernel over all that has changed."""
    given: list[Updates | Batch | None] = []
    for port, (layout, delta) in enumerate(zip(operator.layouts, deltas, strict=True)):
        if delta is None:
            given.append(None)
        elif layout is None or operator.loose:
            given.append(delta.narrowed(operator.used(port)))
        else:
            given.append(delta.batch(layout) if operator.sorts else delta.hashed(layout))
    step.give(given)
    return operator.step(step)


def _piecewise(operator: Operator, deltas: list[Delta | None], step: Step) -> Updates | None:
    """The same over changes of which some lie in several files, one file after the other."""
    outputs = []
    for port, (layout, delta) in enumerate(zip(operator.layouts, deltas, strict=True)):
        for piece in delta.pieces(layout) if delta is not None else ():
            step.give([piece if at == port else None for at in range(len(deltas))])
            output = operator.step(step)
            if output:
                outputs.append(output)
    return concat_updates(outputs, operator.types) if outputs else None


def _along(
    legs: Sequence[Leg], operator: Operator, deltas: list[Delta | None], step: Step
) -> Updates | None:
    """The same leg by leg; of an input with several orders only that is read which a leg asks."""
    outputs = []
    for leg in legs:
        delta = deltas[leg.port]
        assert delta is not None
        for piece in delta.pieces(operator.layouts[leg.port]):
            step.give([piece if at == leg.port else None for at in range(len(deltas))])
            output = operator.walk(leg, step)
            if output:
                outputs.append(output)
    return concat_updates(outputs, operator.types) if outputs else None
