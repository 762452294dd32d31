"""From definitions to operators: compiles expressions and picks the kernel of each operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from nosync_nb import operators as ops
from nosync_nb.collections.definition import Definition
from nosync_nb.errors import StageError
from nosync_nb.expressions import (
    Expression,
    Types,
    compile_aggregates,
    compile_expression,
    of_params,
)
from nosync_nb.rows import Schema


def _compiled(d: Definition, sql: str, type_: str) -> Expression:
    """An expression of a definition, which knows its type: Spark is not asked again."""
    schema, settings = d.inputs[0].schema, of_params(d.params)
    return compile_expression(sql, schema, types=lambda *_: [type_], settings=settings)


def _filter(d: Definition, types: Types | None) -> ops.Row:
    schema = d.inputs[0].schema
    if d.functions:
        return ops.FilterFunction(d.functions[0], schema)
    return ops.Filter(_compiled(d, d.params["predicate"], "boolean"), schema)


def _select(d: Definition, types: Types | None) -> ops.Row:
    given = zip(d.params["outputs"], d.schema.types, strict=True)
    outputs = [o if isinstance(o, int) else _compiled(d, o, type_) for o, type_ in given]
    return ops.Select(outputs, d.inputs[0].schema)


def _map(d: Definition, types: Types | None) -> ops.Row:
    return ops.Map(d.functions[0], d.inputs[0].schema, d.schema)


def _flat_map(d: Definition, types: Types | None) -> ops.Row:
    return ops.FlatMap(d.functions[0], d.inputs[0].schema, d.schema)


def _widen(d: Definition, types: Types | None) -> ops.Row:
    return ops.Widen(d.inputs[0].schema.types, d.schema.types)


def _pad(d: Definition, types: Types | None) -> ops.Row:
    return ops.Pad(d.schema.types[len(d.inputs[0].schema) :])


def _order(d: Definition, types: Types | None) -> ops.Row:
    return ops.Order(d.inputs[0].schema.types, [ops.By(*b) for b in d.params["by"]])


def _negate(d: Definition, types: Types | None) -> ops.Row:
    return ops.Negate()


def _join(d: Definition, types: Types | None) -> ops.Operator:
    left, right = (i.schema.types for i in d.inputs)
    outputs = [(s, i) for s, i in d.params["outputs"]]
    return ops.Join(left, right, d.params["left"], d.params["right"], outputs)


def _asof(d: Definition, types: Types | None) -> ops.Operator:
    left, right = (i.schema.types for i in d.inputs)
    p = d.params
    return ops.AsOf(left, right, p["left"], p["at"], p["further"], p["tolerance"])


def _sessions(d: Definition, types: Types | None) -> ops.Operator:
    p = d.params
    return ops.Sessions(d.inputs[0].schema.types, p["keys"], p["at"], p["gap"])


def _aggregate(d: Definition, types: Types | None) -> ops.Operator:
    schema = d.inputs[0].schema
    keys = [schema.names[i] for i in d.params["keys"]]
    found = compile_aggregates(
        d.params["named"], schema, keys, types=types, settings=of_params(d.params)
    )
    return ops.Aggregate(schema, d.params["keys"], found.calls, found.outputs, found.inner)


def _reduce(d: Definition, types: Types | None) -> ops.Operator:
    keys = d.params["keys"]
    output = Schema(d.schema.fields[len(keys) :])
    return ops.Reduce(d.inputs[0].schema, keys, d.functions[0], output)


def _distinct(d: Definition, types: Types | None) -> ops.Operator:
    return ops.Threshold("distinct", d.schema.types, ops.distinct)


def _except_all(d: Definition, types: Types | None) -> ops.Operator:
    return ops.Threshold("except_all", d.schema.types, ops.except_all, 2)


def _subtract(d: Definition, types: Types | None) -> ops.Operator:
    return ops.Threshold("subtract", d.schema.types, ops.subtract, 2)


def _multiplicity(d: Definition, types: Types | None) -> ops.Operator:
    return ops.Multiplicity(d.inputs[0].schema.types)


def _threshold(d: Definition, types: Types | None) -> ops.Operator:
    return ops.ThresholdFunction(d.functions[0], d.schema)


def _top(d: Definition, types: Types | None) -> ops.Operator:
    p = d.params
    by = [ops.By(*b) for b in p["by"]]
    given = d.inputs[0].schema.types
    return ops.Top(given, p["width"], p["keys"], by, p["k"], p["offset"], p["rank"])


def _concat(d: Definition, types: Types | None) -> ops.Operator:
    return ops.Concat(d.schema.types, len(d.inputs))


def _consolidate(d: Definition, types: Types | None) -> ops.Operator:
    return ops.Consolidate(d.schema.types)


_PIECES: dict[str, Callable[[Definition, Types | None], ops.Row]] = {
    "filter": _filter,
    "select": _select,
    "map": _map,
    "flat_map": _flat_map,
    "widen": _widen,
    "pad": _pad,
    "negate": _negate,
    "order": _order,
}
_OPERATORS: dict[str, Callable[[Definition, Types | None], ops.Operator]] = {
    "join": _join,
    "asof": _asof,
    "sessions": _sessions,
    "aggregate": _aggregate,
    "reduce": _reduce,
    "distinct": _distinct,
    "except_all": _except_all,
    "subtract": _subtract,
    "multiplicity": _multiplicity,
    "threshold": _threshold,
    "top": _top,
    "concat": _concat,
    "consolidate": _consolidate,
}


def expressions_of(definition: Definition) -> Iterator[str]:
    """The expressions of one operator, as they are compiled here."""
    params = definition.params
    if definition.op == "filter" and not definition.captured:
        yield params["predicate"]
    elif definition.op == "select":
        yield from (o for o in params["outputs"] if not isinstance(o, int))
    elif definition.op == "aggregate":
        yield from params["named"].values()


def is_linear(definition: Definition) -> bool:
    """Whether an operator works row by row and can be fused with its neighbours."""
    return definition.op in _PIECES


def chain(definitions: Sequence[Definition], types: Types | None = None) -> ops.Linear:
    """One operator for a chain of row-wise definitions, first one first."""
    pieces = [_PIECES[d.op](d, types) for d in definitions]
    return ops.Linear(pieces, definitions[-1].schema.types)


def operator(definition: Definition, types: Types | None = None) -> ops.Operator:
    """The operator of one definition.

    Raises:
        StageError: if this version of NoSync has no such operator.
    """
    if definition.op in _PIECES:
        return chain([definition], types)
    make = _OPERATORS.get(definition.op)
    if definition.op == "variable":
        raise StageError(
            "the variable of a loop is used outside of it",
            hint="its last value is what iterate() returns",
        )
    if make is None:
        raise StageError(
            f"operator '{definition.op}' is unknown to this version",
            hint="the log was written by a newer version; install it",
        )
    return make(definition, types)
