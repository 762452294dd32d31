"""Audits: asks functions again, now and then, whether they still give what they gave.

A stage that is not declared --nondeterministic retracts a row by computing it again. If its
function gives something else by then, counts go wrong for ever. So every `AUDIT_EVERY` epochs some
rows that are in the input are computed again and compared with what the stage holds. A stage that
fails goes on as a new version that keeps what its functions give, and says so.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from nosync_nb import rows
from nosync_nb.batch import Batch, Layout, Updates, arrange
from nosync_nb.errors import NosyncError
from nosync_nb.graph import Node
from nosync_nb.operators import Linear, Step
from nosync_nb.operators.functions import tuples
from nosync_nb.rows import Schema
from nosync_nb.trace import Trace

if TYPE_CHECKING:
    from nosync_nb.session import Session

AUDIT_EVERY = 64
SAMPLES = 4
GROUP_ROWS_MAX = 1000


def audit(session: Session) -> list[str]:
    """Audits every stage that calls functions row by row; returns those that were demoted.

    Cost: `SAMPLES` calls of each function, two where its results are not held.
    """
    seen = session._snapshot
    graph, traces = seen.graph, seen.version.traces
    chance = random.Random(session.now)
    failed: dict[str, str] = {}
    for node in graph:
        operator = node.operator
        if node.frozen or node.stage in failed or not isinstance(operator, Linear):
            continue
        if not operator.asks:
            continue
        source = graph.nodes[node.inputs[0]]
        held = next((traces[n] for n in source.traces.values() if n in traces), None)
        for _ in range(SAMPLES if held is not None else 0):
            row = _row(held, chance)  # type: ignore[arg-type]
            told = None if row is None else _differs(session, node, operator, row, traces)
            if told is not None:
                failed[node.stage] = told
                break
    for name, told in failed.items():
        _demote(session, name, told)
    return list(failed)


def _row(trace: Trace, chance: random.Random) -> Updates | None:
    """Some row that a trace holds, once."""
    parts = [p for p in trace.parts() if len(p)]
    if not parts:
        return None
    part = chance.choices(parts, weights=[len(p) for p in parts])[0]
    at = np.array([chance.randrange(len(part))])
    key = trace.layout.key
    places = range(len(trace.layout.types)) if key is None else key
    found = trace.lookup(part.khash[at], [rows.take(part.columns[i], at) for i in places])
    if found is None or len(found.diff) > GROUP_ROWS_MAX:
        return None
    there = arrange(Layout(trace.layout.types), Updates(found.columns, found.diff))
    index = (there.diff > 0).nonzero()[0]
    if not len(index):
        return None
    one = index[[chance.randrange(len(index))]]
    return Updates([rows.take(c, one) for c in there.columns], np.ones(1, np.int64))


def _differs(
    session: Session, node: Node, operator: Linear, row: Updates, traces: Mapping[int, Trace]
) -> str | None:
    """What is wrong with the results of a row, None if nothing is."""
    layout = Layout(operator.types)
    first = _made(session, node, operator, row, layout)
    if first is None:
        return None
    if node.name is None:
        again = _made(session, node, operator, row, layout)
        if again is not None and first.rhash.tobytes() != again.rhash.tobytes():
            return f"{operator.name} gave {_shown(first)}, then {_shown(again)}"
        return None
    held = next((traces[n] for n in node.traces.values() if n in traces), None)
    for at in range(len(first)):
        one = first.slice(at, at + 1)
        if one.diff[0] > 0 and not _holds(held, one):
            return f"{operator.name} now gives {_shown(one)}, which the stage does not hold"
    return None


def _made(
    session: Session, node: Node, operator: Linear, row: Updates, layout: Layout
) -> Batch | None:
    """What an operator makes of a row; None if it fails."""
    step = Step([row], [None], [None], (), stage=node.stage, evaluate=session._spark.evaluate)
    try:
        output = operator.step(step)
    except NosyncError:
        return None
    return arrange(layout, output) if output is not None else arrange(layout, row.take(_NONE))


_NONE = np.zeros(0, np.int64)


def _holds(trace: Trace | None, one: Batch) -> bool:
    """Whether a trace holds a row."""
    if trace is None:
        return False
    types, key, _ = trace.layout
    places = tuple(range(len(types))) if key is None else key
    keys = [one.columns[i] for i in places]
    khash = rows.hash_columns(keys, [types[i] for i in places], 1)
    found = trace.lookup(khash, keys)
    if found is None:
        return False
    there = arrange(Layout(types), Updates(found.columns, found.diff))
    same = there.rhash == one.rhash[0]
    return bool((there.diff[same] > 0).any())


def _shown(batch: Batch) -> str:
    """Some rows for a message."""
    types = batch.layout.types
    schema = Schema([(f"c{i}", t) for i, t in enumerate(types)])
    shown = tuples([rows.slice_(c, 0, 2) for c in batch.columns], schema, min(2, len(batch)))
    return ", ".join(repr(tuple(row)) for row in shown) or "nothing"


def _demote(session: Session, name: str, told: str) -> None:
    """Goes on with a stage as one that keeps what its functions give."""
    stage = session._catalog.get(name)
    if stage is None or stage.options.get("nondeterministic"):
        return
    session._demote(name)
    warnings.warn(
        f"stage '{name}' is not deterministic: {told}. It goes on as a new version that keeps what"
        " its functions give; declare it --nondeterministic",
        stacklevel=2,
    )
