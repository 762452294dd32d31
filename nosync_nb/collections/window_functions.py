"""Builds definitions of window functions; SQL and the Python API share them.

Spark's rules are checked here: which functions need an order, which take a frame, IGNORE NULLS or
FILTER, and which distances a RANGE frame may have. `Collection.window` documents the behaviour for
users.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.session_protocol import SparkTypeResolver
from nosync_nb.errors import ExpressionError, NosyncError
from nosync_nb.expressions import (
    AggregateCall,
    SqlSettings,
    compile_aggregates,
    compile_expression,
    recorded_settings,
)
from nosync_nb.operators.windows.calls import (
    AGGREGATE,
    OFFSETS,
    PICKS,
    RANKS,
    Bound,
    WindowCall,
    WindowFrame,
)
from nosync_nb.operators.windows.ranges import bound_text
from nosync_nb.rows import Field, Schema
from nosync_nb.rows.ddl import DAY_TIMES, INTERVALS, YEAR_MONTHS, quoted
from nosync_nb.rows.types import FLOATS, INTEGERS

DEFAULT_FRAME = WindowFrame("range", None, 0)
"""The frame of a window with an order; without an order it is the whole group."""

WHOLE_FRAME = WindowFrame("rows", None, None)

_WITHOUT_ORDER = ("median", "percentile_cont", "percentile_disc")
"""Aggregates that Spark refuses in a window with an order or a frame."""

_TYPES = {"percent_rank": "double", "cume_dist": "double"}


class WindowRequest(NamedTuple):
    """A window function to compute.

    Attributes:
        name: the column of the result.
        function: one of `RANKS`, `OFFSETS` or `PICKS`, or `AGGREGATE`.
        arguments: the positions of the argument, and of the default of lag and lead.
        n: the distance, the number of buckets, or the row of nth_value.
        skips_nulls: True for IGNORE NULLS.
        frame: the frame; None for that of a window without one.
        sql: the call of an aggregate over the columns of the source.
    """

    name: str
    function: str
    arguments: tuple[int, ...] = ()
    n: int = 1
    skips_nulls: bool = False
    frame: WindowFrame | None = None
    sql: str = ""


def window_definition(
    source: Definition,
    width: int,
    keys: Sequence[int],
    by: Sequence[Sequence[Any]],
    requests: Sequence[WindowRequest],
    types: SparkTypeResolver,
) -> Definition:
    """Builds window functions of one partitioning and order.

    Args:
        width: the number of columns of the source that are in the result; computed arguments
            follow them.
        keys: the positions of the grouping columns.
        by: the order: for each term the position, True if it is descending, True if nulls come
            first.

    Returns:
        the first columns of the source, then a column for each function.

    Raises:
        ExpressionError: with Spark's error class, if a function, a frame or an argument is invalid.
    """
    schema = source.schema
    keys = list(dict.fromkeys(keys))
    calls: dict[str, dict[str, Any]] = {}
    apart: dict[str, str] = {}
    fields: dict[str, Field] = {}
    settings: list[SqlSettings] = []
    for request in requests:
        frame = checked_frame(request, schema, by, types)
        params, type_, aggregate = _call_params(request, frame, schema, by, types, settings)
        fields[request.name] = Field(request.name, type_)
        if aggregate is not None and _is_whole(frame) and _is_cheap_apart(aggregate, frame, by):
            apart[request.name] = request.sql
        else:
            calls[request.name] = params
    result, places = source, {}
    if calls or not apart:
        terms = [list(term) for term in by]
        coded = Schema([*schema.fields, Field(schema.unused("order"), "bigint")])
        made = Schema([*schema.fields[:width], *(fields[name] for name in calls)])
        how = {"keys": keys, "by": terms, "width": width, "calls": list(calls.values())}
        ordered = source.then("order", coded, {"by": terms})
        result = ordered.then("window", made, {**how, **recorded_settings(settings)})
        places = {name: width + i for i, name in enumerate(calls)}
    if apart:
        result, found = _with_aggregates(source, result, width, keys, apart, types)
        places.update(found)
    order = [*range(width), *(places[request.name] for request in requests)]
    final = Schema([*schema.fields[:width], *(fields[request.name] for request in requests)])
    if order == list(range(len(result.schema))) and final == result.schema:
        return result
    return result.then("select", final, {"outputs": order})


def _is_cheap_apart(
    aggregate: AggregateCall, frame: WindowFrame, by: Sequence[Sequence[Any]]
) -> bool:
    """Returns True if an aggregate of a whole group costs less as that of a group.

    A list in the order of a window depends on this order.
    """
    if by and aggregate.function in ("collect_list", "listagg"):
        return False
    call = WindowCall(AGGREGATE, aggregate.type, frame=frame, aggregate=aggregate)
    return not call.additive


def _is_whole(frame: WindowFrame) -> bool:
    return frame.low is None and frame.high is None


def _with_aggregates(
    source: Definition,
    rows: Definition,
    width: int,
    keys: Sequence[int],
    named: Mapping[str, str],
    types: SparkTypeResolver,
) -> tuple[Definition, dict[str, int]]:
    """Joins aggregates of whole groups to their rows; returns the positions of their columns.

    Such an aggregate costs less as a group's than in every row: an extreme of a group does not
    change with each of its rows. Null keys are equal here, so rows are matched by one structure of
    all keys.
    """
    schema = source.schema
    names = [schema.names[i] for i in keys]
    aggregation = compile_aggregates(
        named, schema, names, types=types, settings=types.settings, functions=types.registered
    )
    own = [Field(name, each.type) for name, each in zip(named, aggregation.outputs, strict=True)]
    params = {"keys": list(keys), "named": dict(named), **recorded_settings(aggregation.settings)}
    plain = Schema([*(schema.fields[i] for i in keys), *own])
    grouped = source.then("aggregate", plain, params)
    left, place = _with_key(rows, keys, types)
    right, other = _with_key(grouped, range(len(keys)), types)
    count = len(rows.schema)
    outputs = [[0, i] for i in range(count)] + [[1, len(keys) + i] for i in range(len(own))]
    made = Schema([*rows.schema.fields, *own])
    how = {"left": [place], "right": [other], "outputs": outputs}
    joined = Definition("join", made, (left, right), how)
    return joined, {field.name: count + i for i, field in enumerate(own)}


def _with_key(
    side: Definition, keys: Sequence[int], types: SparkTypeResolver
) -> tuple[Definition, int]:
    """Adds one column of all keys, in which nulls are equal; a constant without keys."""
    schema = side.schema
    texts = [f"'k{i}', {quoted(schema.names[k])}" for i, k in enumerate(keys)]
    text = f"named_struct({', '.join(texts)})" if texts else "true"
    type_ = compile_expression(text, schema, types=types, settings=types.settings).type
    width = len(schema)
    fields = Schema([*schema.fields, Field(schema.unused("key"), type_)])
    return side.then("select", fields, {"outputs": [*range(width), text]}), width


def _call_params(
    request: WindowRequest,
    frame: WindowFrame,
    schema: Schema,
    by: Sequence[Sequence[Any]],
    types: SparkTypeResolver,
    settings: list[SqlSettings],
) -> tuple[dict[str, Any], str, AggregateCall | None]:
    """Returns the parameters of a function, its type, and the compiled call of an aggregate."""
    params: dict[str, Any] = {"function": request.function}
    if request.function == AGGREGATE:
        made = compile_aggregates(
            {"value": request.sql},
            schema,
            [],
            types=types,
            settings=types.settings,
            functions=types.registered,
        )
        (aggregate,) = made.calls
        settings += made.settings
        params |= {"type": aggregate.type, "sql": request.sql, "frame": list(frame)}
        settings += _frame_settings(frame, schema, by, types)
        return params, aggregate.type, aggregate
    if request.function in RANKS:
        type_ = _TYPES.get(request.function, "int")
    else:
        type_ = schema.types[request.arguments[0]]
        params["argument"] = request.arguments[0]
    params["type"] = type_
    if request.function in (*OFFSETS, "ntile", "nth_value"):
        params["n"] = request.n
    if request.skips_nulls:
        params["skips_nulls"] = True
    if len(request.arguments) > 1:
        params["default"] = request.arguments[1]
    if request.function in PICKS:
        params["frame"] = list(frame)
        settings += _frame_settings(frame, schema, by, types)
    return params, type_, None


def _frame_settings(
    frame: WindowFrame, schema: Schema, by: Sequence[Sequence[Any]], types: SparkTypeResolver
) -> list[SqlSettings]:
    """Returns the settings on which the bounds of a RANGE frame depend."""
    found = []
    for bound in (frame.low, frame.high):
        if isinstance(bound, str):
            name, type_ = schema.fields[by[0][0]]
            text = bound_text(quoted(name), type_, bound)
            made = compile_expression(text, schema, types=types, settings=types.settings)
            found.append(made.settings)
    return found


# -- Spark's rules ---------------------------------------------------------------------------------


def checked_frame(
    request: WindowRequest, schema: Schema, by: Sequence[Sequence[Any]], types: SparkTypeResolver
) -> WindowFrame:
    """Returns the frame of a function.

    Raises:
        ExpressionError: if the function or its frame is invalid in this window.
    """
    name = request.function
    shown = request.sql.split("(")[0].strip().lower() if name == AGGREGATE else name
    if name in (*RANKS, *OFFSETS, "nth_value") and not by:
        raise ExpressionError(
            f"[WINDOW_FUNCTION_FRAME_NOT_ORDERED] {name} needs a window with an order",
            hint="add ORDER BY, or order_by='...' in Python",
        )
    if name in (*RANKS, *OFFSETS) and request.frame is not None:
        raise ExpressionError(
            f"{name} does not read a frame: cannot specify a window frame for it",
            hint="compute it over a window without ROWS, RANGE or GROUPS",
        )
    if request.skips_nulls and name not in (*OFFSETS, *PICKS):
        raise ExpressionError(
            f"[INVALID_SQL_SYNTAX.FUNCTION_WITH_UNSUPPORTED_SYNTAX] {shown} does not support"
            " IGNORE NULLS",
            hint="remove IGNORE NULLS; aggregates ignore nulls anyway",
        )
    if name == AGGREGATE and shown in _WITHOUT_ORDER and (by or request.frame is not None):
        raise ExpressionError(
            f"[INVALID_WINDOW_SPEC_FOR_AGGREGATION_FUNC] {shown} cannot have an order or a frame",
            hint="use a window with PARTITION BY alone, or percentile(x, 0.5)",
        )
    if name == "ntile":
        _check_number("ntile", "number of buckets", request.n, 2**31 - 1)
    if name == "nth_value":
        _check_number("nth_value", "offset", request.n, 2**63 - 1)
    frame = request.frame
    if frame is None:
        return DEFAULT_FRAME if by else WHOLE_FRAME
    if frame.unit not in ("rows", "range", "groups"):
        raise ExpressionError(f"a frame of {frame.unit!r}", hint="use rows, range or groups")
    if not by and frame.unit != "rows":
        raise ExpressionError(
            f"[DATATYPE_MISMATCH.RANGE_FRAME_WITHOUT_ORDER] a {frame.unit} frame needs a window"
            " with an order",
            hint="add ORDER BY, or use a frame of rows",
        )
    _check_bounds(frame, schema, by, types)
    return WHOLE_FRAME if _is_whole(frame) else frame


def _check_number(function: str, what: str, n: int, most: int) -> None:
    if not 0 < n <= most:
        raise ExpressionError(
            f"[DATATYPE_MISMATCH.VALUE_OUT_OF_RANGE] {function}: the {what} is {n}, not between 1"
            f" and {most}",
            hint=f"write a number such as {function}(2)",
        )


def _check_bounds(
    frame: WindowFrame, schema: Schema, by: Sequence[Sequence[Any]], types: SparkTypeResolver
) -> None:
    """Checks that the bounds of a frame fit its unit, the order and each other."""
    low, high = frame.low, frame.high
    shown = f"{_shown(low, 'preceding')} and {_shown(high, 'following')}"
    if frame.unit != "range":
        for bound in (low, high):
            if isinstance(bound, str) or (bound is not None and not -(2**31) <= bound < 2**31):
                raise ExpressionError(
                    "[DATATYPE_MISMATCH.SPECIFIED_WINDOW_FRAME_UNACCEPTED_TYPE] the bound"
                    f" {bound} of a frame of {frame.unit} is not an int",
                    hint="write a whole number, or use a range frame",
                )
        if isinstance(low, int) and isinstance(high, int) and low > high and low and high:
            raise _wrong_order(shown)
        return
    values = [bound for bound in (low, high) if isinstance(bound, str)]
    if not values:
        return
    if len(by) > 1:
        raise ExpressionError(
            "[DATATYPE_MISMATCH.RANGE_FRAME_MULTI_ORDER] a range frame with values needs an order"
            f" of one expression, and there are {len(by)}",
            hint="order by one number, date or time, or use a frame of rows",
        )
    type_ = schema.types[by[0][0]]
    kinds = {_check_distance(bound, type_, types) in YEAR_MONTHS for bound in values}
    if len(kinds) == 2:
        raise ExpressionError(
            "[DATATYPE_MISMATCH.SPECIFIED_WINDOW_FRAME_DIFF_TYPES] the bounds of a frame between"
            f" {shown} are of different types",
            hint="write both in months and years, or both in days and times",
        )
    if len(values) == 2:
        a, b = (f"(-({bound[1:]}))" if bound[0] == "-" else f"({bound[1:]})" for bound in values)
        made = compile_expression(f"{a} > {b}", Schema([]), types=types, settings=types.settings)
        if made.local and bool(made.evaluate([], 1)[0]):
            raise _wrong_order(shown)


def _wrong_order(shown: str) -> ExpressionError:
    return ExpressionError(
        "[DATATYPE_MISMATCH.SPECIFIED_WINDOW_FRAME_WRONG_COMPARISON] the lower bound of a frame is"
        f" after its upper bound: between {shown}",
        hint="exchange the bounds",
    )


def _shown(bound: Bound, unbounded: str) -> str:
    if bound is None:
        return f"unbounded {unbounded}"
    if bound == 0:
        return "current row"
    text = bound[1:] if isinstance(bound, str) else str(abs(bound))
    before = bound[0] == "-" if isinstance(bound, str) else bound < 0
    return f"{text} {'preceding' if before else 'following'}"


def _check_distance(bound: str, type_: str, types: SparkTypeResolver) -> str:
    """Returns the type of a distance: a constant that can be added to the type of the order."""
    text = bound[1:]
    try:
        made = compile_expression(text, Schema([]), types=types, settings=types.settings)
    except NosyncError as error:
        raise ExpressionError(
            "[DATATYPE_MISMATCH.SPECIFIED_WINDOW_FRAME_WITHOUT_FOLDABLE] the bound"
            f" {text!r} of a range frame is not a constant: {error}",
            hint="write a number or an interval",
        ) from None
    if type_ in (*INTEGERS, *FLOATS) or type_.startswith("decimal"):
        fits = made.type in (*INTEGERS, *FLOATS, "string") or made.type.startswith("decimal")
    elif type_ == "date":
        fits = made.type in ("int", "interval day", *YEAR_MONTHS)
    elif type_ in ("timestamp", "timestamp_ntz"):
        fits = made.type in INTERVALS
    elif type_ in DAY_TIMES:
        fits = made.type in DAY_TIMES
    else:
        fits = type_ in YEAR_MONTHS and made.type in YEAR_MONTHS
    if not fits:
        raise ExpressionError(
            f"[DATATYPE_MISMATCH.RANGE_FRAME_INVALID_TYPE] an order of type {type_} has no range"
            f" frame with a distance of type {made.type}",
            hint="order by a number with a number, or by a date or time with an interval",
        )
    return made.type
