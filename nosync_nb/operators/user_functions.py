"""Calls the user's Python functions, and determines the schema of the rows that they return.

An error in a call names the row. The schema is declared, annotated, or inferred from existing rows.
"""

from __future__ import annotations

import builtins
import typing
from collections import namedtuple
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from nosync_nb import rows
from nosync_nb.errors import NosyncError, SchemaError, StageError, text_of, titled
from nosync_nb.rows import Column, Field, Schema, infer_schema


@lru_cache(maxsize=256)
def row_class(names: tuple[str, ...]) -> type[Any]:
    """Returns a named tuple class for rows with the given column names."""
    return namedtuple("Row", names, rename=True)


def named_tuples(columns: list[Column], schema: Schema, n: int) -> list[Any]:
    """Converts `n` rows in columns to named tuples of Python values."""
    make = row_class(schema.names)._make
    if not columns:
        return [make(())] * n
    values = [rows.to_pylist(c, t) for c, t in zip(columns, schema.types, strict=True)]
    return [make(v) for v in zip(*values, strict=True)]


def function_title(function: Callable[..., Any], operator: str = "") -> str:
    """Returns the name of a function for messages: `f()`, or `reduce(f)` with an operator."""
    name = getattr(function, "__name__", "function")
    return f"{operator}({name})" if operator else f"{name}()"


def call_user_function(
    function: Callable[..., Any], stage: str, shown: Any, *arguments: Any, operator: str = ""
) -> Any:
    """Calls a user's function, and converts its exceptions to StageError.

    Args:
        shown: the row or key that the message names.

    Raises:
        StageError: if the function raised an exception, which is chained. A NosyncError is passed
            on unchanged.
    """
    try:
        return function(*arguments)
    except NosyncError:
        raise
    except Exception as error:
        raise user_function_error(function, stage, shown, error, operator=operator) from error


def truth(function: Callable[..., Any], stage: str, row: Any) -> bool:
    """Returns the truth value of a user's function for a row.

    Raises:
        StageError: if the function raised an exception, or its result has no truth value.
    """
    value = call_user_function(function, stage, row, row)
    if isinstance(value, bool):
        return value
    try:
        return bool(value)
    except NosyncError:
        raise
    except Exception as error:
        raise StageError(
            f"{titled(stage)}: {function_title(function)} returned a {type(value).__name__} without"
            f" a truth value ({type(error).__name__}: {text_of(error, str)}) on {row!r}",
            hint="return True or False, for an array .any() or .all(); this epoch was not applied",
            stage=stage,
            row=row,
        ) from error


def user_function_error(
    function: Callable[..., Any], stage: str, shown: Any, error: Exception, *, operator: str = ""
) -> StageError:
    """Returns the StageError for a function that raised `error` on the row `shown`."""
    name = function_title(function, operator)
    return StageError(
        f"{titled(stage)}: {name} raised {type(error).__name__}: {text_of(error, str)}"
        f" on {shown!r}",
        hint="fix the function or filter the row out; this epoch was not applied",
        stage=stage,
        row=shown,
    )


def result_columns(produced: list[Any], schema: Schema, stage: str, what: str) -> list[Column]:
    """Converts rows that a function returned to columns.

    Raises:
        StageError: if a row does not fit `schema`.
    """
    try:
        columns, _ = rows.to_columns(produced, schema, "")
    except SchemaError as error:
        raise StageError(
            f"{titled(stage)}: {what} must return rows of ({schema.ddl}): {error}",
            hint="return tuples with one value for each column",
            stage=stage,
        ) from error
    return columns


def checked_rows(
    value: Any, function: Callable[..., Any], stage: str, shown: Any, *, operator: str = ""
) -> list[Any]:
    """Returns the rows that a function returned or yielded, as a list; empty for None.

    A generator runs here, so that its exceptions are converted as well.

    Raises:
        StageError: if the value is not an iterable of rows, or if its iteration raised.
    """
    if value is None:
        return []
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise StageError(
            f"{titled(stage)}: {function_title(function, operator)} returned {text_of(value)}"
            f" for {shown!r}, not an iterable of rows",
            hint="yield tuples, or return a list of tuples",
            stage=stage,
            row=shown,
        )
    try:
        return builtins.list(value)
    except NosyncError:
        raise
    except Exception as error:
        raise user_function_error(function, stage, shown, error, operator=operator) from error


_COLUMN_TYPES = {bool: "boolean", int: "bigint", float: "double", str: "string", bytes: "binary"}
_SAMPLE_ROWS = 100


def check_callable(what: str, function: Any, example: str) -> None:
    """Checks that an argument is callable.

    Raises:
        StageError: if it is not; the message names the operator and the value.
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
    """Returns the schema of the rows that a function returns.

    The schema is the declared one, or that of the return annotation, or is inferred from calls on
    existing rows.

    Args:
        schema: the declared schema, if any.
        sample: returns up to a given number of existing rows.
        many: True for `flat_map`, False for `map`.

    Raises:
        SchemaError: if the schema cannot be determined in any of these ways.
    """
    what = "flat_map" if many else "map"
    check_callable(what, function, f"{what}(lambda row: ..., 'name string, n bigint')")
    if schema is not None:
        return (schema if isinstance(schema, Schema) else Schema.parse(schema)).usable(what)
    annotated = _annotated_schema(function)
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


def _annotated_schema(function: Callable[..., Any]) -> Schema | None:
    """Returns the schema of a return annotation; None unless it is a NamedTuple, or names one."""
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
    if not all(t in _COLUMN_TYPES for t in types.values()):
        return None
    return Schema([Field(n, _COLUMN_TYPES[t]) for n, t in types.items()])
