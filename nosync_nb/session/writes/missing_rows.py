"""Finds rows that inputs lack because absent rows were removed, and the command that repairs them.

A count below 0 is legal between two epochs, because the row may still be inserted. Reading raises
until it is, so each such error ends with a command that can be typed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from nosync_nb import rows
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import SchemaError
from nosync_nb.trace.batch import Updates

_ROWS_MAX, _TEXT_MAX = 5, 200
"""The most rows, and characters, that are written into the command."""

_NAMED_MAX = 3
_IMPORTS = {"datetime.": "import datetime", "Decimal(": "from decimal import Decimal"}


def repair(snapshot: Snapshot, names: Iterable[str]) -> str:
    """Returns the commands that repair the inputs which some collections read.

    Cost: sorting the rows of these inputs.
    """
    commands = []
    for stage in _inputs(snapshot, names):
        batch = snapshot.contents(stage.name).consolidated()
        below = (batch.diff < 0).nonzero()[0]
        if len(below):
            commands.append(_repair_command(stage, batch.updates.take(below)))
    if not commands:
        return "read the last epoch, at which no input has a negative count"
    left = len(commands) - _NAMED_MAX
    more = f"; `%dd status` lists {left} more inputs" if left > 0 else ""
    why = "# rows were removed that did not exist: this inserts them; then commit"
    return f"{'; '.join(commands[:_NAMED_MAX])}  {why}{more}"


def _repair_command(stage: Stage, lacking: Updates) -> str:
    """Returns the command that adds the rows of an input whose counts are below 0.

    Few rows are written out. For many rows the command sets every count below 0 to 0. So it does
    for a keyed input, whose key may be present with another row.
    """
    every = None if stage.key is not None else _rows_text(lacking, stage.schema.types)
    name = stage.name
    if every is None:
        return f"{name}.set({name}.except_all({name}.filter('false')))"
    imports = [text for sign, text in _IMPORTS.items() if sign in every]
    return "; ".join([*imports, f"{name}.insert({every})"])


def _inputs(snapshot: Snapshot, names: Iterable[str]) -> Iterator[Stage]:
    """Yields the inputs that some collections read, directly or not."""
    waiting, visited, reads = [*names], set[str](), snapshot.reads
    while waiting:
        name = waiting.pop(0)
        if name in visited or name not in snapshot.catalog:
            continue
        visited.add(name)
        stage = snapshot.catalog[name]
        if stage.is_input:
            yield stage
        waiting += reads[name]


def _rows_text(lacking: Updates, types: Sequence[str]) -> str | None:
    """Returns rows as a Python list; None if it would be long or cannot be written."""
    counts = (-lacking.diff).tolist()
    if sum(counts) > _ROWS_MAX:
        return None
    try:
        columns = [rows.to_pylist(c, t) for c, t in zip(lacking.columns, types, strict=True)]
    except SchemaError:  # a date outside the range of Python
        return None
    each = [_text(row) for row in zip(*columns, strict=True)]
    text = ", ".join(one for one, n in zip(each, counts, strict=True) for _ in range(n))
    return f"[{text}]" if len(text) <= _TEXT_MAX else None


def _text(value: Any) -> str:
    """Returns a value as Python source."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(k)}: {_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_text, value)) + (",)" if len(value) == 1 else ")")
    return repr(value)
