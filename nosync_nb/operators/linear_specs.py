"""The specs of row-wise operators: how each is built, the columns it needs and those it passes on.

The kernels run the pieces that are built here, and compile nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nosync_nb.expressions import Types
from nosync_nb.operators.base import RowPiece
from nosync_nb.operators.linear import (
    Concat,
    Consolidate,
    Filter,
    FilterFunction,
    FlatMap,
    Map,
    Negate,
    Pad,
    Select,
    Widen,
)
from nosync_nb.operators.spec import (
    AdaptedPart,
    DefinitionPart,
    Key,
    Places,
    RemainingColumns,
    Spec,
    all_columns,
    compiled_part_expression,
    every_column,
    fit_comparing_rows,
    passed_through,
    same_columns,
    same_key,
    used_columns,
)


def _filter(part: DefinitionPart, types: Types | None) -> RowPiece:
    schema = part.inputs[0].schema
    if part.functions:
        return FilterFunction(part.functions[0], schema)
    return Filter(compiled_part_expression(part, part.params["predicate"], "boolean"), schema)


def _filter_fit(
    part: DefinitionPart, inputs: Sequence[RemainingColumns], types: Types | None
) -> AdaptedPart:
    """Passes on the columns that its predicate does not use."""
    if part.functions:
        return every_column(part, inputs, types)
    inputs[0].moved(used_columns(part, part.params["predicate"], types))
    return passed_through(part, inputs, types)


def _filter_reads(part: DefinitionPart, wanted: Places, types: Types | None) -> Sequence[Places]:
    """The columns of its predicate, and those that it passes on; a function may read all."""
    if part.functions:
        return all_columns(part, wanted, types)
    return [
        wanted.union(compiled_part_expression(part, part.params["predicate"], "boolean").columns)
    ]


def _predicate(part: DefinitionPart) -> Iterable[str]:
    return () if part.functions else (part.params["predicate"],)


def _select(part: DefinitionPart, types: Types | None) -> RowPiece:
    typed = zip(part.params["outputs"], part.schema.types, strict=True)
    outputs = [
        o if isinstance(o, int) else compiled_part_expression(part, o, type_) for o, type_ in typed
    ]
    return Select(outputs, part.inputs[0].schema)


def _select_fit(
    part: DefinitionPart, inputs: Sequence[RemainingColumns], types: Types | None
) -> AdaptedPart:
    """Requires the columns that it names; if it *passes* its first columns, these are optional.

    It passes them if the engine added the piece, to compute a column beside the existing ones.
    """
    source, passes = inputs[0], part.params.get("passes", 0)
    outputs: list[Any] = []
    lost = {}
    for place, each in enumerate(part.params["outputs"]):
        if not isinstance(each, int):
            source.moved(used_columns(part, each, types))
            outputs.append(each)
        elif place < passes and each in source.lost:
            lost[place] = source.lost[each]
        else:
            outputs += source.moved([each])
    params = {**part.params, "outputs": outputs}
    if passes:
        params["passes"] = passes - len(lost)
    return AdaptedPart(params, lost)


def _select_reads(part: DefinitionPart, wanted: Places, types: Types | None) -> Sequence[Places]:
    """The columns that it names, by position or in expressions, for the requested columns."""
    reads: set[int] = set()
    for place in wanted:
        each = part.params["outputs"][place]
        if isinstance(each, int):
            reads.add(each)
        else:
            reads.update(compiled_part_expression(part, each, part.schema.types[place]).columns)
    return [frozenset(reads)]


def _select_firm(part: DefinitionPart) -> Places:
    """The expressions that may raise."""
    typed = enumerate(zip(part.params["outputs"], part.schema.types, strict=True))
    return frozenset(
        place
        for place, (each, type_) in typed
        if not isinstance(each, int) and compiled_part_expression(part, each, type_).raises
    )


def _select_narrowed(part: DefinitionPart, kept: Sequence[int]) -> Mapping[str, Any]:
    params = {**part.params, "outputs": [part.params["outputs"][i] for i in kept]}
    params.pop("passes", None)
    return params


def _selected(part: DefinitionPart) -> Iterable[str]:
    return [o for o in part.params["outputs"] if not isinstance(o, int)]


def _select_key(part: DefinitionPart, below: Sequence[Key]) -> Key:
    """The key columns at their new positions, if all of them remain."""
    outputs = part.params["outputs"]
    if below[0] is None or not all(place in outputs for place in below[0]):
        return None
    return tuple(outputs.index(place) for place in below[0])


def _function(kind: type[Map | FlatMap]) -> Callable[[DefinitionPart, Types | None], RowPiece]:
    """Returns the builder of a piece that calls a function of rows."""
    return lambda part, _: kind(part.functions[0], part.inputs[0].schema, part.schema)


def _widen(part: DefinitionPart, types: Types | None) -> RowPiece:
    return Widen(part.inputs[0].schema.types, part.schema.types)


def _pad(part: DefinitionPart, types: Types | None) -> RowPiece:
    return Pad(part.schema.types[len(part.inputs[0].schema) :])


SPECS = (
    Spec(
        "filter",
        _filter_fit,
        piece=_filter,
        expressions=_predicate,
        key=same_key,
        reads=_filter_reads,
    ),
    Spec(
        "select",
        _select_fit,
        piece=_select,
        expressions=_selected,
        key=_select_key,
        reads=_select_reads,
        narrowed=_select_narrowed,
        firm=_select_firm,
    ),
    Spec("map", every_column, piece=_function(Map)),
    Spec("flat_map", every_column, piece=_function(FlatMap)),
    Spec("widen", passed_through, piece=_widen, key=same_key, reads=same_columns),
    Spec("pad", passed_through, piece=_pad, key=same_key, reads=same_columns),
    Spec(
        "negate", passed_through, piece=lambda part, _: Negate(), key=same_key, reads=same_columns
    ),
    Spec(
        "concat",
        fit_comparing_rows,
        build=lambda part, _: Concat(part.schema.types, len(part.inputs)),
        key=same_key,
        reads=same_columns,
    ),
    Spec(
        "consolidate",
        fit_comparing_rows,
        build=lambda part, _: Consolidate(part.schema.types),
        key=same_key,
    ),
)
