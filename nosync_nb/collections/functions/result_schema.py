"""Checks the user's functions, and determines the columns of the rows that they return."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

from nosync_nb.errors import SchemaError, StageError
from nosync_nb.rows import Field, Schema, infer_schema

_PYTHON = {bool: "boolean", int: "bigint", float: "double", str: "string", bytes: "binary"}
_SAMPLE_ROWS = 100


def check_callable(what: str, function: Any, example: str) -> None:
    """Refuses an argument that is not callable.

    Raises:
        StageError: names the operator and the value.
    """
    if not callable(function):
        raise StageError(f"{what}: {function!r} is not a function", hint=f"write {example}")


def result_schema(
    function: Callable[[Any], Any],
    schema: str | Schema | None,
    sample: Callable[[int], list[Any]],
    *,
    many: bool,
) -> Schema:
    """The schema of a function's rows: given, annotated, or inferred from existing rows.

    Args:
        sample: returns some existing rows.

    Raises:
        SchemaError: if the schema is given in none of these ways.
    """
    what = "flat_map" if many else "map"
    check_callable(what, function, f"{what}(lambda row: ..., 'name string, n bigint')")
    if schema is not None:
        return (schema if isinstance(schema, Schema) else Schema.parse(schema)).usable(what)
    annotated = _annotated(function)
    if annotated is not None:
        return annotated
    name = getattr(function, "__name__", "function")
    values: list[Any] = []
    for row in sample(_SAMPLE_ROWS):
        value = function(row)
        values += list(value) if many else [value]
    if not values:
        raise SchemaError(
            f"the columns that {name}() returns are unknown: there are no rows to call it with",
            hint="declare them: map(f, 'name string, n bigint')",
        )
    if any(isinstance(v, tuple) and not hasattr(v, "_fields") for v in values):
        raise SchemaError(
            f"the columns that {name}() returns have no names",
            hint="declare them: map(f, 'name string, n bigint'), or return named tuples or dicts",
        )
    return infer_schema(values).usable(what)


def _annotated(function: Callable[..., Any]) -> Schema | None:
    """The schema of a return annotation that is a NamedTuple class (or an iterable of it)."""
    try:
        hint = typing.get_type_hints(function).get("return")
    except Exception:
        return None
    arguments = typing.get_args(hint)
    row = arguments[0] if arguments else hint
    fields = getattr(row, "__annotations__", None)
    if not (isinstance(row, type) and issubclass(row, tuple) and fields):
        return None
    types = typing.get_type_hints(row)
    if not all(t in _PYTHON for t in types.values()):
        return None
    return Schema([Field(n, _PYTHON[t]) for n, t in types.items()])
