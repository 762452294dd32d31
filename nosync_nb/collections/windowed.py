"""`c.window(...).with_columns(...)`: window functions in Python, by Spark's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any, Generic, TypeVar

from nosync_nb.collections import hints
from nosync_nb.collections.definition import Definition
from nosync_nb.collections.row_expressions import (
    compiled,
    expression_texts,
    keyed,
    ordered_by,
    with_columns_definition,
)
from nosync_nb.collections.session_protocol import SparkTypeResolver
from nosync_nb.collections.window_functions import WindowRequest, window_definition
from nosync_nb.errors import ExpressionError, MisuseError, SchemaError
from nosync_nb.expressions import (
    SqlSettings,
    WrittenCall,
    compile_expression,
    recorded_settings,
    split_window_calls,
)
from nosync_nb.operators.windows.calls import AGGREGATE, OFFSETS, RANKS, Bound, WindowFrame
from nosync_nb.rows import Field, Schema
from nosync_nb.rows.ddl import quoted

C = TypeVar("C")

_PICKED = {
    "first": "first_value",
    "first_value": "first_value",
    "any_value": "first_value",
    "last": "last_value",
    "last_value": "last_value",
    "nth_value": "nth_value",
}
_FAR = 2**63 - 1  # Window.unboundedPreceding and unboundedFollowing of PySpark
_FRAMES = ("rows_between", "range_between", "groups_between")


class Windowed(Generic[C]):
    """A collection with a window for the functions of each row; ends in `.with_columns`.

    Examples:
        >>> by_day = flights.window(partition_by="carrier", order_by="day")
        >>> by_day.with_columns(n="row_number()", before="lag(delay)").head(2)
        [Row(carrier='AA', day=1, delay=75.0, n=1, before=None), \
Row(carrier='AA', day=2, delay=5.0, n=2, before=75.0)]
    """

    def __init__(
        self,
        source: Definition,
        keys: Sequence[int],
        by: Sequence[Sequence[Any]],
        frame: WindowFrame | None,
        width: int,
        types: SparkTypeResolver,
        wrap: Callable[[Definition], C],
    ) -> None:
        self._source, self._keys, self._by = source, keys, by
        self._frame, self._width = frame, width
        self._types, self._wrap = types, wrap

    def with_columns(self, columns: Mapping[str, str] | None = None, /, **named: str) -> C:
        """Adds or replaces columns by expressions over window functions.

        Functions are row_number, rank, dense_rank, percent_rank, cume_dist, ntile(n), lag and
        lead(x, n, default), first_value, last_value and nth_value(x, n), and all aggregates of
        `Grouped.agg`. lag, lead and the values take `ignore nulls`, and aggregates take
        `filter (where ...)`. collect_list lists values in the order of the window.

        Args:
            columns, named: the columns by name: `with_columns(gain="x - lag(x)")`, or a dict.

        Raises:
            ExpressionError: with Spark's error class, if a function is unknown, its arguments are
                invalid, or it does not fit the window.

        Cost: only the partitions of changed rows are read. In them: the rows within the distance of
        lag, lead or a frame around a change; all rows after it, for row_number, ranks, and frames
        that begin with the partition; the whole partition for percent_rank, cume_dist and ntile.
        Other aggregates than sums, counts, averages, moments, min and max also read each frame.

        Examples:
            >>> last_two = flights.window(
            ...     partition_by="carrier", order_by="day", rows_between=(-1, 0)
            ... )
            >>> last_two.with_columns(mean="avg(delay)").select("carrier", "day", "mean").rows()
            [Row(carrier='AA', day=1, mean=75.0), Row(carrier='AA', day=2, mean=40.0), \
Row(carrier='UA', day=1, mean=20.0)]
        """
        if isinstance(columns, str):
            hints.unnamed_column_error("with_columns", columns)
        named = {**(columns or {}), **named}
        if not named:
            raise ExpressionError(
                "window: nothing to compute", hint="write with_columns(n='row_number()')"
            )
        texts = expression_texts(list(named.values()), "window")
        return self._wrap(self._definition(dict(zip(named, texts, strict=True))))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise MisuseError(
            f"a window has no '{name}'", hint="compute columns: with_columns(n='row_number()')"
        )

    def _definition(self, named: Mapping[str, str]) -> Definition:
        split = {name: split_window_calls(sql) for name, sql in named.items()}
        for name, each in split.items():
            if not each.calls:
                raise ExpressionError(
                    f"window: {name}={named[name]!r} calls no window function",
                    hint="use Collection.with_columns for functions of one row",
                )
        existing = {each.lower() for each in self._source.schema.names[: self._width]}
        arguments = _Arguments(self._source, self._types)
        requests: dict[WrittenCall, WindowRequest] = {}
        taken = [*self._source.schema.fields, *(Field(name, "int") for name in named)]
        plain = True
        names: dict[str, list[str]] = {}
        for name, each in split.items():
            plain &= each.is_call and name.lower() not in existing
            for call in each.calls:
                if call in requests:
                    plain &= not each.is_call
                    continue
                own = name
                if not each.is_call or name.lower() in existing:
                    own = Schema([*taken]).unused("w") if _distinct(taken) else f"_w{len(taken)}"
                    taken.append(Field(own, "int"))
                requests[call] = self._request(own, call, arguments)
            names[name] = [quoted(requests[call].name) for call in each.calls]
        made = window_definition(
            arguments.definition(),
            self._width,
            self._keys,
            self._by,
            list(requests.values()),
            self._types,
        )
        if plain:
            return made
        texts = {name: each.text(names[name]) for name, each in split.items()}
        shown = with_columns_definition(made, texts, self._types)
        fields = list(self._source.schema.fields[: self._width])
        return _without(shown, [*(f.name for f in fields), *named])

    def _request(self, name: str, call: WrittenCall, arguments: _Arguments) -> WindowRequest:
        """Returns a call as data."""
        function = _PICKED.get(call.function, call.function)
        given = list(call.arguments)
        if call.filtered and (function in (*RANKS, *OFFSETS) or call.function in _PICKED):
            raise ExpressionError(
                "[INVALID_SQL_SYNTAX.FUNCTION_WITH_UNSUPPORTED_SYNTAX]"
                f" {call.function} does not support FILTER",
                hint="filter inside an argument: case when condition then x end",
            )
        skips = call.skips_nulls
        if function in RANKS:
            most = 1 if function == "ntile" else 0
            _check_count(call, 0, most)
            n = arguments.number(given[0], call) if given else 1
            return WindowRequest(name, function, n=n, skips_nulls=skips, frame=self._frame)
        if function in OFFSETS:
            _check_count(call, 1, 3)
            n = arguments.number(given[1], call) if len(given) > 1 else 1
            places = arguments.places(given[0], given[2] if len(given) > 2 else None)
            return WindowRequest(name, function, places, n, skips, self._frame)
        if call.function in _PICKED:
            n = 1
            if function == "nth_value":
                _check_count(call, 2, 2)
                n = arguments.number(given[1], call)
            else:
                _check_count(call, 1, 2)
                skips |= len(given) > 1 and given[1].strip().lower() == "true"
            return WindowRequest(name, function, arguments.places(given[0]), n, skips, self._frame)
        return WindowRequest(name, AGGREGATE, (), 1, skips, self._frame, call.aggregate)


def _distinct(fields: Sequence[Field]) -> bool:
    return len({f.name for f in fields}) == len(fields)


def _without(definition: Definition, names: Sequence[str]) -> Definition:
    """Returns a projection to the columns with some names, without regard to case."""
    wanted = {name.lower() for name in names}
    places = [i for i, name in enumerate(definition.schema.names) if name.lower() in wanted]
    return definition.columns(places)


def _check_count(call: WrittenCall, least: int, most: int) -> None:
    if not least <= len(call.arguments) <= most:
        many = str(least) if least == most else f"{least} to {most}"
        raise ExpressionError(
            f"[WRONG_NUM_ARGS] {call.written!r}: {call.function} takes {many} arguments",
            hint="see with_columns of a window for the functions",
        )


class _Arguments:
    """The columns of a definition, and computed arguments of window functions after them."""

    def __init__(self, source: Definition, types: SparkTypeResolver) -> None:
        self._source, self._types = source, types
        self._outputs: list[Any] = list(range(len(source.schema)))
        self._fields = list(source.schema.fields)
        self._settings: list[SqlSettings] = []

    def definition(self) -> Definition:
        """Returns the definition of all columns."""
        width = len(self._source.schema)
        if len(self._outputs) == width:
            return self._source
        params = {"outputs": self._outputs, "passes": width, **recorded_settings(self._settings)}
        return self._source.then("select", Schema(self._fields), params)

    def places(self, argument: str, default: str | None = None) -> tuple[int, ...]:
        """Returns the positions of an argument and of a default, which gets its type."""
        place = self._place(argument)
        if default is None or default.strip().lower() == "null":
            return (place,)
        type_ = self._fields[place].type
        if compiled(self._source, default, self._types).type != type_:
            default = f"cast(({default}) as {type_})"
        return place, self._place(default)

    def _place(self, text: str) -> int:
        expression = compiled(self._source, text, self._types)
        if not expression.deterministic:
            raise ExpressionError(
                f"window: {text!r} is not deterministic",
                hint="insert its value as a column of an input",
            )
        if expression.is_column:
            return expression.columns[0]
        if text in self._outputs:
            return self._outputs.index(text)
        self._outputs.append(text)
        self._settings.append(expression.settings)
        self._fields.append(Field(Schema(self._fields).unused("argument"), expression.type))
        return len(self._outputs) - 1

    def number(self, text: str, call: WrittenCall) -> int:
        """Returns the value of a constant integer."""
        try:
            made = compile_expression(
                text, Schema([]), types=self._types, settings=self._types.settings
            )
            value = made.evaluate([], 1)[0] if made.type in ("tinyint", "smallint", "int") else None
        except ExpressionError:
            value = None
        if value is None:
            raise ExpressionError(
                f"[DATATYPE_MISMATCH.NON_FOLDABLE_INPUT] {call.written!r}: {text!r} is not a"
                " constant of type int",
                hint=f"write a number such as {call.function}(x, 2)",
            )
        return int(value)


def windowed(
    source: Definition,
    partition_by: str | Sequence[str] | None,
    order_by: str | Sequence[str] | None,
    frames: Mapping[str, Any],
    types: SparkTypeResolver,
    wrap: Callable[[Definition], C],
) -> Windowed[C]:
    """Builds a window; see `Collection.window`."""
    width = len(source.schema)
    keys: Sequence[str] = ()
    if partition_by is not None:
        keys = [partition_by] if isinstance(partition_by, str) else list(partition_by)
    definition, places = keyed(source, keys, types) if keys else (source, [])
    for name, type_ in (definition.schema.fields[i] for i in places):
        if "map<" in type_:
            raise SchemaError(
                f"[EXPRESSION_TYPE_IS_NOT_ORDERABLE] window: '{name}' is a map, and maps cannot be"
                " keys",
                hint=f"partition by one of its values, as in \"{name}['key'] AS part\"",
            )
    if order_by is not None and not isinstance(order_by, str):
        order_by = ", ".join(order_by)
    definition, by = ordered_by(definition, order_by, "window", types)
    given = [name for name in _FRAMES if frames.get(name) is not None]
    if len(given) > 1:
        raise ExpressionError(
            f"window: {' and '.join(given)} are two frames", hint="give one of them"
        )
    frame = None
    if given:
        order_type = definition.schema.types[by[0][0]] if by else ""
        frame = _frame(given[0], frames[given[0]], order_type)
    return Windowed(definition, places, by, frame, width, types, wrap)


def _frame(name: str, bounds: Any, order_type: str) -> WindowFrame:
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise ExpressionError(
            f"window: {name}={bounds!r} is not a pair of bounds",
            hint=f"write {name}=(-10, 0) for 10 before the row up to it; None is unbounded",
        )
    unit = name.split("_")[0]
    low, high = (_bound(unit, name, bound, order_type) for bound in bounds)
    return WindowFrame(unit, low, high)


def _bound(unit: str, name: str, bound: Any, order_type: str) -> Bound:
    """Returns a bound as data; see `WindowFrame`."""
    if bound is None or (type(bound) is int and abs(bound) >= _FAR):
        return None
    if type(bound) is int and (unit != "range" or bound == 0):
        return bound
    if unit == "range":
        if isinstance(bound, timedelta):
            return _interval(bound, order_type)
        if isinstance(bound, int | float | Decimal) and not isinstance(bound, bool):
            text = f"{abs(bound)!r}D" if isinstance(bound, float) else str(abs(bound))
            return f"{'-' if bound < 0 else '+'}{text}"
        if isinstance(bound, str) and bound.strip().lstrip("+-").strip():
            text = bound.strip()
            sign = "-" if text.startswith("-") else "+"
            return sign + text.lstrip("+-").strip()
    raise ExpressionError(
        f"window: {name} has the bound {bound!r}",
        hint="write numbers, negative before the row; a range of times takes timedelta(days=-7) or"
        " '-interval 7 days'; None is unbounded",
    )


def _interval(span: timedelta, order_type: str) -> Bound:
    if not span:
        return 0
    sign, span = ("-", -span) if span < timedelta(0) else ("+", span)
    if order_type == "date" and span % timedelta(days=1) == timedelta(0):
        return f"{sign}INTERVAL '{span.days}' DAY"
    seconds, micros = span.seconds, span.microseconds
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    clock += f".{micros:06}" if micros else ""
    return f"{sign}INTERVAL '{span.days} {clock}' DAY TO SECOND"
