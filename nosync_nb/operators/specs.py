"""All operators, by their word in definitions; what builds them asks here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nosync_nb.errors import StageError
from nosync_nb.expressions import Types
from nosync_nb.operators import asof, join, linear, ordering, reduce, sessions, top
from nosync_nb.operators.aggregates import spec as aggregates
from nosync_nb.operators.base import Operator
from nosync_nb.operators.distinct import SPECS as THRESHOLDS
from nosync_nb.operators.linear import Linear
from nosync_nb.operators.spec import Part, Spec

SPECS: dict[str, Spec] = {
    spec.op: spec
    for spec in (
        *linear.SPECS,
        *THRESHOLDS,
        aggregates.SPEC,
        asof.SPEC,
        join.SPEC,
        ordering.SPEC,
        reduce.SPEC,
        sessions.SPEC,
        top.SPEC,
    )
}

COMPILED = frozenset(("ref", "iterate", "variable"))
"""Words that are no operator: a name, a loop and its variable, which the compiler reads itself."""


def expressions_of(part: Part) -> Iterable[str]:
    """The expressions of one operator, as they are compiled."""
    spec = SPECS.get(part.op)
    return () if spec is None else spec.expressions(part)


def is_linear(part: Part) -> bool:
    """Whether an operator works row by row and can be fused with its neighbours."""
    spec = SPECS.get(part.op)
    return spec is not None and spec.piece is not None


def chain(parts: Sequence[Part], types: Types | None = None) -> Linear:
    """One operator for a chain of row-wise parts, first one first."""
    pieces = [piece(part, types) for part in parts if (piece := SPECS[part.op].piece) is not None]
    return Linear(pieces, parts[-1].schema.types)


def operator(part: Part, types: Types | None = None) -> Operator:
    """The operator of one part of a definition.

    Raises:
        StageError: if this version of NoSync has no such operator.
    """
    if is_linear(part):
        return chain([part], types)
    if part.op == "variable":
        raise StageError(
            "the variable of a loop is used outside of it",
            hint="its last value is what iterate() returns",
        )
    spec = SPECS.get(part.op)
    if spec is None or spec.build is None:
        raise StageError(
            f"operator '{part.op}' is unknown to this version",
            hint="the log was written by a newer version; install it",
        )
    return spec.build(part, types)
