"""Builds the aggregate of a definition, and names the columns that it needs."""

from __future__ import annotations

from collections.abc import Sequence

from nosync_nb.errors import NosyncError
from nosync_nb.expressions import Aggregation, Types, compile_aggregates, of_params
from nosync_nb.operators.aggregates.aggregate import Aggregate
from nosync_nb.operators.base import Operator
from nosync_nb.operators.spec import (
    AdaptedPart,
    DefinitionPart,
    LostColumnError,
    Places,
    RemainingColumns,
    Spec,
    group_key,
)


def _aggregation(part: DefinitionPart, types: Types | None) -> Aggregation:
    schema = part.inputs[0].schema
    keys = [schema.names[i] for i in part.params["keys"]]
    named, settings = part.params["named"], of_params(part.params)
    return compile_aggregates(named, schema, keys, types=types, settings=settings)


def _build(part: DefinitionPart, types: Types | None) -> Operator:
    _, calls, outputs, inner = _aggregation(part, types)
    return Aggregate(part.inputs[0].schema, part.params["keys"], calls, outputs, inner)


def _fit(
    part: DefinitionPart, inputs: Sequence[RemainingColumns], types: Types | None
) -> AdaptedPart:
    """Requires its keys and the columns of its aggregates."""
    keys = inputs[0].moved(part.params["keys"])
    try:
        calls = _aggregation(part, types).calls
    except NosyncError as error:
        raise LostColumnError(str(error)) from error
    for argument in (argument for call in calls for argument in call.arguments):
        inputs[0].moved(argument.columns)
    return AdaptedPart({**part.params, "keys": keys}, {})


def _reads(part: DefinitionPart, wanted: Places, types: Types | None) -> Sequence[Places]:
    """Its keys and the columns of all its aggregates: a sum that is not requested may overflow."""
    arguments = (each for call in _aggregation(part, types).calls for each in call.arguments)
    return [frozenset(part.params["keys"]).union(*(each.columns for each in arguments))]


SPEC = Spec(
    "aggregate",
    _fit,
    build=_build,
    expressions=lambda part: part.params["named"].values(),
    key=group_key,
    reads=_reads,
)
