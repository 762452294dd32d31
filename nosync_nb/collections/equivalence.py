"""Decides whether two definitions mean the same although the texts of their expressions differ.

A fingerprint covers the texts as they are stored. `t.select("a + 1 AS x")` stores the text with its
alias, and `SELECT a + 1 AS x FROM t` and `with_columns(x="a + 1")` without it. The name is in the
schema too, so a redefinition in the other language changes nothing. The fingerprints of existing
logs stay as they are, because only the comparison omits aliases, spaces and case.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nosync_nb.collections.definition import Definition
from nosync_nb.errors import ExpressionError
from nosync_nb.expressions.syntax.parser import canonical, parse


def is_equivalent(one: Definition, other: Definition, named: Mapping[str, str]) -> bool:
    """Returns True if two definitions have equal fingerprints, or differ in these texts alone.

    Args:
        named: the fingerprints of inputs and stages by name.

    Cost: that of the fingerprints; O(size) if they differ and the definitions have equal schemas.
    """
    if one.fingerprint(named) == other.fingerprint(named):
        return True
    if one.schema != other.schema or one.size != other.size:
        return False
    return _canonical(one).fingerprint(named) == _canonical(other).fingerprint(named)


def _canonical(definition: Definition) -> Definition:
    """Returns a definition with the canonical texts of its filters and projections."""
    made: dict[int, Definition] = {}
    for part in definition.walk():
        inputs = tuple(made[id(each)] for each in part.inputs)
        params = _canonical_params(part) if part.op in ("select", "filter") else part.params
        if params is part.params and inputs == part.inputs:
            made[id(part)] = part
        else:
            made[id(part)] = Definition(part.op, part.schema, inputs, params, part.captured)
    return made[id(definition)]


def _canonical_params(part: Definition) -> Mapping[str, Any]:
    if part.captured:
        return part.params
    names = {name.lower(): name for name in part.inputs[0].schema.names}
    if part.op == "filter":
        return {**part.params, "predicate": _text(part.params["predicate"], names)}
    outputs = [each if isinstance(each, int) else _text(each, names) for each in _outputs(part)]
    return {**part.params, "outputs": outputs}


def _outputs(part: Definition) -> list[int | str]:
    outputs: list[int | str] = part.params["outputs"]
    return outputs


def _text(sql: str, names: dict[str, str]) -> str:
    try:
        return canonical(parse(sql).words, names)
    except ExpressionError:  # a text of another release; it is equal only to itself
        return sql
