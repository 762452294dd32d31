"""The specs of all operators, by their name in definitions; builds operators from definitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from nosync_nb import expressions
from nosync_nb.errors import ExpressionError, StageError
from nosync_nb.expressions import Types
from nosync_nb.operators import (
    asof_join,
    constant,
    explode,
    join,
    linear,
    multiway_join,
    ordering,
    range_join,
    reduce,
    refusal,
    session_windows,
    top_k,
    unit,
)
from nosync_nb.operators.aggregates import aggregate
from nosync_nb.operators.base import Operator
from nosync_nb.operators.distinct import SPECS as THRESHOLDS
from nosync_nb.operators.linear import Linear
from nosync_nb.operators.spec import DefinitionPart, Key, Spec
from nosync_nb.operators.windows import window

SPECS: dict[str, Spec] = {
    spec.op: spec
    for spec in (
        *linear.SPECS,
        *THRESHOLDS,
        aggregate.SPEC,
        asof_join.SPEC,
        constant.SPEC,
        explode.SPEC,
        join.SPEC,
        multiway_join.SPEC,
        ordering.SPEC,
        *range_join.SPECS,
        reduce.SPEC,
        refusal.SPEC,
        session_windows.SPEC,
        top_k.SPEC,
        unit.SPEC,
        window.SPEC,
    )
}


def expressions_of(part: DefinitionPart) -> Iterable[str]:
    """Returns the SQL texts of all expressions of one operator."""
    spec = SPECS.get(part.op)
    return () if spec is None else spec.expressions(part)


def may_differ(parts: Iterable[DefinitionPart]) -> bool:
    """Returns True if a row-wise expression of a definition may be nondeterministic."""
    return any(
        not expressions.retained_settings(part.params).stable
        or any(
            expressions.is_nondeterministic(sql, part.inputs[0].schema)
            for sql in expressions_of(part)
        )
        for part in parts
        if is_linear(part)
    )


def spark_expressions(part: DefinitionPart) -> list[str]:
    """Returns the expressions of one operator that need Spark, each with the reason."""
    reasons = []
    for sql in expressions_of(part):
        schema, settings = part.inputs[0].schema, expressions.of_params(part.params)
        try:
            why = expressions.waits(sql, schema, settings)
        except ExpressionError:  # an aggregate: its arguments are separate expressions
            continue
        if why is not None:
            reasons.append(f"{sql!r} ({why})")
    return reasons


def row_key(parts: Iterable[DefinitionPart], named: Callable[[str], Key]) -> Key:
    """Returns the positions of the columns that identify the rows of a definition.

    Args:
        parts: the whole definition, inputs first; the last part is the requested one.
        named: returns the key of a collection that the definition reads by name.
    """
    keys: dict[int, Key] = {}
    key: Key = None
    for part in parts:
        if part.op == "ref":
            key = named(part.params["name"])
        else:
            spec = SPECS.get(part.op)
            key = spec.key(part, [keys[id(each)] for each in part.inputs]) if spec else None
        keys[id(part)] = key
    return key


def is_linear(part: DefinitionPart) -> bool:
    """Returns True if an operator is row-wise, so that it can be fused with its neighbours."""
    spec = SPECS.get(part.op)
    return spec is not None and spec.piece is not None


def linear_chain(parts: Sequence[DefinitionPart], types: Types | None = None) -> Linear:
    """Returns one operator for a chain of row-wise parts, in the order of execution."""
    pieces = [piece(part, types) for part in parts if (piece := SPECS[part.op].piece) is not None]
    return Linear(pieces, parts[-1].schema.types)


def build_operator(part: DefinitionPart, types: Types | None = None) -> Operator:
    """Returns the operator of one part of a definition.

    Raises:
        StageError: if this version of NoSync does not have the operator, or if the variable of a
            loop is used outside the loop.
    """
    if is_linear(part):
        return linear_chain([part], types)
    if part.op == "variable":
        raise StageError(
            "the variable of a loop is used outside the loop",
            hint="use the result of iterate(), which is its last value",
        )
    spec = SPECS.get(part.op)
    if spec is None or spec.build is None:
        raise StageError(
            f"this version does not have the operator '{part.op}'",
            hint="install the newer version of nosync that wrote the log",
        )
    return spec.build(part, types)
