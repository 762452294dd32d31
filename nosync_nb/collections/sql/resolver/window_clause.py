"""Resolves window functions: `function(...) OVER (PARTITION BY ... ORDER BY ... ROWS ...)`."""

from __future__ import annotations

from typing import Any

from sqlglot import exp

from nosync_nb.collections.sql.algebra import (
    Column,
    LogicalWindow,
    Scalar,
    WindowFunction,
)
from nosync_nb.collections.sql.grammar import span_of
from nosync_nb.collections.sql.resolver.context import Context
from nosync_nb.collections.sql.resolver.order import order_terms
from nosync_nb.collections.sql.resolver.rows import Rows
from nosync_nb.collections.sql.resolver.trees import signed_integer
from nosync_nb.operators.windows.calls import OFFSETS, PICKS, RANKS, Bound

_FUNCTIONS = frozenset((*RANKS, *OFFSETS, *PICKS, "first", "last", "any_value"))


def window_column(context: Context, tree: exp.Window, rows: Rows) -> Column:
    """Adds the column of a window function to rows."""
    tree = _with_named_window(context, tree, rows)
    function, skips_nulls = tree.this, False
    while isinstance(function, exp.IgnoreNulls | exp.RespectNulls):
        skips_nulls |= isinstance(function, exp.IgnoreNulls)
        function = function.this
    condition = None
    if isinstance(function, exp.Filter):
        function, condition = function.this, function.expression.this
    if not isinstance(function, exp.Anonymous):
        raise context.failed(
            tree,
            "this function cannot be evaluated over a window",
            "use an aggregate or row_number()",
        )
    name = str(function.this).lower()
    partition = tree.args.get("partition_by") or ()
    groups = tuple(rows.place(context.scalar(each, rows)) for each in partition)
    order = order_terms(context, tree.args.get("order"), rows, ())
    frame = _frame(context, tree, rows)
    number = context.numbers.new()
    if name in _FUNCTIONS:
        made = _function(context, function, name, number, frame, rows)
        made = made._replace(skips_nulls=skips_nulls or made.skips_nulls)
        if condition is not None:
            made = _filtered(context, tree, made, context.scalar(condition, rows), rows)
    else:
        call, arguments = _aggregate_call(context, function, condition, rows)
        made = WindowFunction(
            number, "aggregate", arguments, 1, skips_nulls, frame=frame, call=call
        )
    columns = (*rows.relation.columns, number)
    rows.extend(LogicalWindow(columns, rows.relation, groups, order, (made,)))
    if condition is not None and name in _FUNCTIONS:
        return rows.place(Scalar((number, ".value")))
    return number


def _filtered(
    context: Context, tree: exp.Window, made: WindowFunction, condition: Scalar, rows: Rows
) -> WindowFunction:
    """Returns `first_value(x) FILTER (WHERE p)`, or another function that picks a row.

    It picks among structs of the values, which are null where `p` is not true.
    """
    if made.function not in PICKS:
        raise context.failed(
            tree,
            f"[INVALID_SQL_SYNTAX.FUNCTION_WITH_UNSUPPORTED_SYNTAX] {made.function} has no FILTER",
            "compute CASE WHEN ... THEN ... END in its argument",
        )
    (value,) = made.arguments
    test: tuple[str | Column, ...] = ("CASE WHEN (", *condition.pieces, ")")
    if made.skips_nulls:
        test += (" AND ", value, " IS NOT NULL")
    picked = Scalar((*test, " THEN named_struct('value', ", value, ") END"))
    return made._replace(arguments=(rows.place(picked),), skips_nulls=True)


def _with_named_window(context: Context, tree: exp.Window, rows: Rows) -> exp.Window:
    """Returns a window with the parts of the window of the WINDOW clause that it names."""
    name = tree.args.get("alias")
    if name is None:
        return tree
    found = rows.windows.get(name.name.lower())
    if found is None:
        raise context.failed(
            tree,
            f"[MISSING_WINDOW_SPECIFICATION] there is no window {name.name!r}",
            f"define it after FROM: WINDOW {name.name} AS (ORDER BY ...)",
        )
    joined: exp.Window = found.copy()
    joined.meta.update(tree.meta)
    joined.set("this", tree.this)
    for part in ("partition_by", "order", "spec"):
        own = tree.args.get(part) or found.args.get(part)
        if own:
            joined.set(part, own)
    joined.set("alias", None)
    return joined


def _aggregate_call(
    context: Context, function: exp.Anonymous, condition: Any, rows: Rows
) -> tuple[Scalar, tuple[Column, ...]]:
    """Returns an aggregate over columns, to which its arguments are added."""
    arguments = [each for each in function.expressions if not isinstance(each, exp.Star)]
    distinct = ""
    if len(arguments) == 1 and isinstance(arguments[0], exp.Distinct):
        arguments, distinct = list(arguments[0].expressions), "distinct "
    values = [context.scalar(each, rows) for each in arguments]
    if condition is not None:
        test = context.scalar(condition, rows).pieces
        first = values[0].pieces if values else ("1",)
        values[:1] = [Scalar(("CASE WHEN ", *test, " THEN ", *first, " END"))]
    places = [rows.place(each) for each in values]
    inside: list[str | Column] = []
    for each in places:
        inside += [", ", each]
    pieces = (f"{str(function.this).lower()}({distinct}", *(inside[1:] or ["*"]), ")")
    return Scalar(pieces, span_of(function)), tuple(places)


def _function(
    context: Context, function: Any, name: str, number: Column, frame: Any, rows: Rows
) -> WindowFunction:
    arguments = list(function.expressions)
    if arguments and isinstance(arguments[-1], exp.IgnoreNulls):
        arguments[-1] = arguments[-1].this
    if name == "ntile":
        n = _integer(context, arguments[0]) if arguments else 1
        return WindowFunction(number, name, n=n, frame=frame)
    if name in OFFSETS:
        n = 1 if len(arguments) < 2 else _integer(context, arguments[1])
        places = [rows.place(context.scalar(arguments[0], rows))]
        if len(arguments) > 2:
            places.append(rows.place(context.scalar(arguments[2], rows)))
        return WindowFunction(number, name, tuple(places), n, frame=frame)
    if name in ("first", "last", "any_value"):
        name = "last_value" if name == "last" else "first_value"
    skips = len(arguments) > 1 and isinstance(arguments[1], exp.Boolean) and arguments[1].this
    n = _integer(context, arguments[1]) if name == "nth_value" else 1
    places = [rows.place(context.scalar(each, rows)) for each in arguments[:1]]
    return WindowFunction(number, name, tuple(places), n, bool(skips), frame=frame)


def _integer(context: Context, tree: Any) -> int:
    value = signed_integer(tree)
    if value is None:
        what = "[DATATYPE_MISMATCH.NON_FOLDABLE_INPUT] this must be a number of rows"
        raise context.failed(tree, what, "write an integer, as in 10")
    return value


def _frame(context: Context, tree: Any, rows: Rows) -> tuple[str, Bound, Bound] | None:
    """Returns the unit and the bounds of a frame; see operators/windows/calls.py."""
    spec = tree.args.get("spec")
    if spec is None:
        return None
    unit = str(spec.args["kind"]).lower()
    low, high = (_bound(context, spec, name, unit, rows) for name in ("start", "end"))
    return (unit, low, high)


def _bound(context: Context, spec: Any, name: str, unit: str, rows: Rows) -> Bound:
    value, side = spec.args.get(name), str(spec.args.get(name + "_side") or "").upper()
    if value is None or (isinstance(value, str) and value.upper() != "UNBOUNDED"):
        return 0
    if isinstance(value, str):
        if side != ("PRECEDING" if name == "start" else "FOLLOWING"):
            raise context.failed(
                spec.parent,
                "[DATATYPE_MISMATCH.SPECIFIED_WINDOW_FRAME_INVALID_BOUND] a frame"
                f" {'begins' if name == 'start' else 'ends'} with UNBOUNDED {side}",
                "write BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING, or a part of it",
            )
        return None
    is_before = side == "PRECEDING"
    if unit == "range":
        pieces = context.scalar(value, rows).pieces
        return ("-" if is_before else "+") + "".join(map(str, pieces))
    n = _integer(context, value)
    return -n if is_before else n
