"""Compiles expressions over aggregates of groups into aggregate calls and row expressions.

`round(sum(x) / count(*), 2)` becomes the calls sum(x) and count(*), computed by the operator, and
the row expression `round(_0 / _1, 2)` over the keys and the results of the calls. Equal calls are
computed once. `aggregate_registry.py` lists the functions. `filter (where c)` becomes a part of the
argument, `case when c then x end`, because all aggregates ignore nulls.

Holistic aggregates cannot be computed incrementally from sums: a percentile, the most frequent
value or a concatenation is computed from all values of the group, each with its count. They take
constants in addition to their argument, and some take an order:
`percentile_cont(0.5) within group (order by x desc)`. If several results are correct in Spark, as
for `mode` of equally frequent values or `listagg` without an order, the first one in canonical
order is chosen, so that equal groups have equal results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlglot import exp

from nosync_nb import rows
from nosync_nb.errors import ExpressionError
from nosync_nb.expressions.aggregate_registry import AGGREGATORS, REFUSED, Aggregator
from nosync_nb.expressions.expression import (
    Expression,
    Functions,
    Types,
    UntypedNullError,
    compile_expression,
    compile_shown,
)
from nosync_nb.expressions.settings import DEFAULT, Asked, SettingsDependency, SqlSettings
from nosync_nb.expressions.syntax import analyzer
from nosync_nb.expressions.syntax.parser import OrderTerm, Word, parse, parse_order, tokens
from nosync_nb.rows import Field, Schema
from nosync_nb.rows.ddl import INTERVALS, quoted
from nosync_nb.rows.types import FLOATS, INTEGERS


class HolisticCall(NamedTuple):
    """A call of a holistic aggregate, as text.

    Attributes:
        written: the name of the function, in lower case.
        texts: the arguments.
        order: the text of `within group (order by ...)`; None without one.
        distinct: True if equal values count once.
        type_of: returns the type of an argument.
        constant: returns the value of an argument that reads no column.
    """

    written: str
    texts: list[str]
    order: str | None
    distinct: bool
    type_of: Callable[[str], str]
    constant: Callable[[str], Any]


class HolisticForm(NamedTuple):
    """The kernel and the arguments that the operator receives for a call.

    Attributes:
        kernel: the computation of the operator.
        arguments: the texts of the arguments that are evaluated for each row.
        type: the type of the result.
        parameters: constants that the kernel receives in addition to the values.
        required: the number of leading arguments that must not be null.
    """

    kernel: str
    arguments: list[str]
    type: str
    parameters: tuple[Any, ...] = ()
    required: int = 1


class HolisticCallError(Exception):
    """An invalid call; the message describes the error, and `hint` shows the correct form."""

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.hint = hint


def _number(call: HolisticCall, text: str) -> None:
    type_ = call.type_of(text)
    if type_ not in (*INTEGERS, *FLOATS) and not type_.startswith("decimal"):
        what = f"there is no {call.written} of a {type_} ('{text}')"
        raise HolisticCallError(what, f"cast it, as in {call.written}(cast({text} as double), ...)")


def _shares(call: HolisticCall, text: str) -> tuple[tuple[float, ...], bool]:
    """Returns the percentages of a percentile call, from 0 to 1, and True if they are an array."""
    value = call.constant(text)
    several = isinstance(value, list)
    shares = value if several else [value]
    for share in shares:
        if not isinstance(share, float) or not 0.0 <= share <= 1.0:
            raise HolisticCallError(
                f"{call.written} of {text}, which is not a constant from 0 to 1",
                "write a number such as 0.95, or array(0.5, 0.95)",
            )
    return tuple(shares), several


def _single(call: HolisticCall) -> OrderTerm:
    """Returns the term of an order that must have exactly one."""
    terms = parse_order(call.order or "")
    if len(terms) != 1:
        raise HolisticCallError(
            f"{call.written} takes one value to order by", "order by one column"
        )
    return terms[0]


def _takes(call: HolisticCall, least: int, most: int) -> None:
    if not least <= len(call.texts) <= most:
        many = str(least) if least == most else f"{least} to {most}"
        raise HolisticCallError(f"{call.written} takes {many} arguments")


def _percentile(call: HolisticCall) -> HolisticForm:
    """Parses `percentile(x, p [, frequency])`, which interpolates between values."""
    _takes(call, 2, 3)
    text, share, *more = call.texts
    _number(call, text)
    shares, several = _shares(call, share)
    if more and call.type_of(more[0]) not in INTEGERS:
        raise HolisticCallError(f"a frequency must be an integer, not '{more[0]}'")
    type_ = "array<double>" if several else "double"
    return HolisticForm(
        "percentile", [text, *more], type_, ("between", False, shares, several), 1 + len(more)
    )


def _median(call: HolisticCall) -> HolisticForm:
    _takes(call, 1, 1)
    _number(call, call.texts[0])
    return HolisticForm("percentile", call.texts, "double", ("between", False, (0.5,), False))


def _within(way: str) -> Callable[[HolisticCall], HolisticForm]:
    """Returns the parser of `percentile_cont(p)` or `percentile_disc(p)`, ordered by one value."""

    def form(call: HolisticCall) -> HolisticForm:
        _takes(call, 1, 1)
        if call.order is None:
            what = f"{call.written} needs an order"
            raise HolisticCallError(what, f"write {call.written}(0.5) within group (order by x)")
        term = _single(call)
        _number(call, term.sql)
        shares, several = _shares(call, call.texts[0])
        type_ = "array<double>" if several else "double"
        return HolisticForm(
            "percentile", [term.sql], type_, (way, term.descending, shares, several)
        )

    return form


def _approximate(call: HolisticCall) -> HolisticForm:
    """Parses `approx_percentile(x, p [, accuracy])`: an existing value, computed exactly here."""
    _takes(call, 2, 3)
    text = call.texts[0]
    type_ = call.type_of(text)
    if type_ not in ("date", "timestamp", "timestamp_ntz"):
        _number(call, text)
    shares, several = _shares(call, call.texts[1])
    result = f"array<{type_}>" if several else type_
    return HolisticForm("approx_percentile", [text], result, (shares, several))


def _mode(call: HolisticCall) -> HolisticForm:
    """Parses `mode(x)`, `mode(x, true)` and `mode() within group (order by x)`."""
    descending = False
    if call.order is not None:
        _takes(call, 0, 0)
        term = _single(call)
        text, descending = term.sql, term.descending
    else:
        _takes(call, 1, 2)
        text = call.texts[0]
    type_ = call.type_of(text)
    if "map<" in type_:
        raise HolisticCallError(
            f"there is no mode of a {type_} ('{text}')", "use one of its values"
        )
    return HolisticForm("mode", [text], type_, (descending,))


def _text(call: HolisticCall) -> HolisticForm:
    """Parses `listagg(x [, separator]) [within group (order by ...)]`."""
    _takes(call, 1, 2)
    text = call.texts[0]
    type_ = call.type_of(text)
    if type_ not in ("string", "binary"):
        argument = f"cast(({text}) as string)"
        call.type_of(argument)
    else:
        argument = text
    result = "binary" if type_ == "binary" else "string"
    separator = call.constant(call.texts[1]) if len(call.texts) > 1 else None
    separator = (b"" if result == "binary" else "") if separator is None else separator
    if not isinstance(separator, bytes if result == "binary" else str):
        raise HolisticCallError(f"the separator {separator!r} is not of type {result}")
    arguments, places = [argument], []
    terms = parse_order(call.order) if call.order is not None else []
    for term in terms:
        if term.descending == term.nulls_first:
            raise HolisticCallError(
                "an order inside listagg has nulls first, or last if descending"
            )
        if call.distinct and term.sql != text:
            raise HolisticCallError(
                "distinct values can only be ordered by themselves", f"order by {text}"
            )
        if term.sql not in arguments:
            arguments.append(term.sql)
        places.append((arguments.index(term.sql), term.descending))
    return HolisticForm("listagg", arguments, result, (separator, tuple(places)))


def _product(call: HolisticCall) -> HolisticForm:
    """Parses `product(x)`, the product of doubles, which is rounded once."""
    _takes(call, 1, 1)
    _number(call, call.texts[0])
    return HolisticForm("product", call.texts, "double")


WHOLES: dict[str, Callable[[HolisticCall], HolisticForm]] = {
    "percentile": _percentile,
    "median": _median,
    "percentile_cont": _within("between"),
    "percentile_disc": _within("at"),
    "approx_percentile": _approximate,
    "percentile_approx": _approximate,
    "mode": _mode,
    "listagg": _text,
    "string_agg": _text,
    "product": _product,
}
ORDERED = frozenset(("percentile_cont", "percentile_disc", "mode", "listagg", "string_agg"))
"""Aggregates that may be followed by `within group (order by ...)`."""


def holistic_form(
    call: HolisticCall, failed: Callable[[str, str | None], ExpressionError]
) -> HolisticForm:
    """Parses a call of a holistic aggregate.

    Args:
        failed: builds the exception from the description of the error and the hint.

    Raises:
        ExpressionError: if the call is invalid; built by `failed`.
    """
    try:
        return WHOLES[call.written](call)
    except HolisticCallError as error:
        raise failed(str(error), error.hint) from None


def shown_call(texts: Sequence[str], order: str | None) -> str:
    """Returns the arguments and the order of a call as they were written, for messages."""
    behind = f") within group (order by {order}" if order is not None else ""
    return f"{', '.join(texts)}{behind}"


class AggregateCall(NamedTuple):
    """One aggregate call, compiled.

    Attributes:
        function: `count_star`, which has no argument, or the kernel of an aggregate.
        argument: the first argument; None for `count_star`.
        type: the type of the result.
        more: the other arguments. `min_by` and `max_by` ignore rows in which their second argument
            is null, not the first.
        distinct: True if equal values count once.
        parameters: constants for the kernel.
        required: the number of leading arguments that must not be null; -1 if none may be null.
    """

    function: str
    argument: Expression | None
    type: str
    more: tuple[Expression, ...] = ()
    distinct: bool = False
    parameters: tuple[Any, ...] = ()
    required: int = -1

    @property
    def kernel(self) -> tuple[Any, ...]:
        """The identity of the computation without its arguments: function, distinct, parameters."""
        return (self.function, self.distinct, self.parameters)

    @property
    def arguments(self) -> tuple[Expression, ...]:
        """All arguments of the call, the first one included."""
        return () if self.argument is None else (self.argument, *self.more)


class Aggregation(NamedTuple):
    """Compiled aggregates.

    Attributes:
        names: the names of the results, in order.
        calls: the distinct aggregate calls.
        outputs: one row expression for each name, over `inner`.
        inner: the schema of the keys, then `_0`, `_1`, ... with the types of the calls.
        totals: the settings on which the sums and averages depend.
    """

    names: tuple[str, ...]
    calls: list[AggregateCall]
    outputs: list[Expression]
    inner: Schema
    totals: SqlSettings = SqlSettings()

    @property
    def settings(self) -> list[SqlSettings]:
        """The settings on which each of the expressions depends."""
        expressions = [*(e for c in self.calls for e in c.arguments), *self.outputs]
        return [*(e.settings for e in expressions), self.totals]


def compile_aggregates(
    named: Mapping[str, str],
    schema: Schema,
    keys: Sequence[str],
    *,
    types: Types | None = None,
    settings: Asked = DEFAULT,
    functions: Functions | None = None,
) -> Aggregation:
    """Compiles expressions over aggregates of the rows of a group.

    Args:
        named: the SQL of each result by its name, such as "count(*)" or "max(a) - min(a)".
        schema: the columns of the rows.
        keys: the columns that identify a group.
        types, settings, functions: as in `compile_expression`.

    Raises:
        ExpressionError: for an unknown aggregate, an aggregate inside another one, an argument of
            an unsupported type, or a column that is neither a key nor inside an aggregate.
    """
    compiler = _Compiler(schema, keys, types, settings, functions)
    texts = [compiler.replaced(sql) for sql in named.values()]
    inner = compiler.inner()
    labels = {f"{compiler.prefix}{i}": text for i, text in enumerate(compiler.labels)}
    outputs = []
    for sql, text in zip(named.values(), texts, strict=True):
        compiler.check_columns(text, inner, sql)
        outputs.append(compile_shown(text, inner, types, settings, (repr(sql), labels), functions))
    return Aggregation(tuple(named), compiler.calls, outputs, inner, compiler.totals)


_WITHOUT_ANSI = {"sum": "try_sum", "avg": "try_avg"}
"""The kernels whose total is null where it does not fit its type."""


class _Compiler:
    """Compiles several expressions over one group, and collects their aggregate calls."""

    def __init__(
        self,
        schema: Schema,
        keys: Sequence[str],
        types: Types | None,
        settings: Asked,
        functions: Functions | None,
    ) -> None:
        self.schema = schema
        self.keys = [schema.fields[schema.index(key)] for key in keys]
        self.types = types
        self.settings = settings
        self.functions = functions
        self.calls: list[AggregateCall] = []
        self.labels: list[str] = []
        self.totals = SqlSettings()
        self._numbers: dict[tuple[Any, ...], int] = {}
        self.prefix = "_"
        while any(key.name.startswith(self.prefix) for key in self.keys):
            self.prefix += "_"

    def inner(self) -> Schema:
        """Returns the schema of the outputs: the keys, then the results of the calls."""
        results = [Field(f"{self.prefix}{i}", call.type) for i, call in enumerate(self.calls)]
        return Schema([*self.keys, *results])

    def replaced(self, sql: str) -> str:
        """Returns the text with each aggregate call replaced by the name of its result."""
        parsed = parse(sql)
        words = parsed.words
        pieces: list[str] = []
        at, i = 0, 0
        while i < len(words):
            if not _is_call(words, i):
                i += 1
                continue
            start = words[i].start
            number, i = self.call(sql, words, i)
            pieces += [sql[at:start], f"{self.prefix}{number}"]
            at = words[i - 1].end
        stop = words[-1].end if words else len(sql)
        return "".join([*pieces, sql[at:stop]])

    def call(self, sql: str, words: Sequence[Word], i: int) -> tuple[int, int]:
        """Compiles the call at word `i`; returns its number, and the index of the word after it."""
        written = words[i].text.lower()
        close = _closing(words, i + 1, sql)
        inside = words[i + 2 : close]
        if written not in AGGREGATORS and written not in WHOLES:
            given = _split(sql, inside, words[i + 1].end, words[close].start) if inside else []
            raise _unknown(sql, written, given)
        for k in range(len(inside)):
            if _is_call(inside, k):
                raise _failure(
                    sql,
                    f"{inside[k].text} is inside {written}",
                    "compute it in an earlier stage under a name",
                )
        after = close + 1
        order, condition = None, None
        if after < len(words) and words[after].text.lower() == "within":
            if written not in ORDERED:
                raise _failure(sql, f"{written} does not take an order", None)
            end = _closing(words, after + 2, sql)
            by = next(word for word in words[after + 3 :] if word.text.lower().endswith("by"))
            order = sql[by.end : words[end].start].strip()
            after = end + 1
        if written == "any_value" and [w.text.lower() for w in words[after : after + 2]] in (
            ["ignore", "nulls"],
            ["respect", "nulls"],
        ):
            after += 2
        if after < len(words) and words[after].text.lower() == "filter":
            end = _closing(words, after + 1, sql)
            condition = sql[words[after + 2].end : words[end].start].strip()
            after = end + 1
        if after < len(words) and words[after].text.lower() == "over":
            raise _failure(
                sql, "a window function reads other groups", "use group_by(...).top(...)"
            )
        distinct = bool(inside) and inside[0].text.lower() == "distinct"
        start = inside[0].end if distinct else words[i + 1].end
        texts = _split(sql, inside, start, words[close].start) if inside else []
        if distinct and texts == ["*"]:
            texts = [quoted(name) for name in self.schema.names]
        if written == "count" and not distinct and (texts == ["*"] or _is_constant(inside)):
            if condition is None:
                return self.number(AggregateCall("count_star", None, "bigint"), "count(*)"), after
            texts = ["1"]
        if written in WHOLES:
            return self.compile_over_rows(sql, written, texts, order, distinct, condition), after
        return self.numbered(sql, written, texts, distinct, condition), after

    def compile_over_rows(
        self,
        sql: str,
        written: str,
        texts: list[str],
        order: str | None,
        distinct: bool,
        condition: str | None,
    ) -> int:
        """Compiles the call of a holistic aggregate, and returns its number."""
        call = HolisticCall(written, texts, order, distinct, self.type_of, self.constant)
        form = holistic_form(call, lambda what, hint: _failure(sql, what, hint))
        label = f"{written}({'distinct ' if distinct else ''}{shown_call(texts, order)})"
        arguments = form.arguments
        if condition is not None:
            label += " filter (...)"
            arguments = [f"case when {condition} then ({arguments[0]}) end", *arguments[1:]]
        compiled = [self.expression(text) for text in arguments]
        more = tuple(compiled[1:])
        made = AggregateCall(
            form.kernel, compiled[0], form.type, more, distinct, form.parameters, form.required
        )
        return self.number(made, label)

    def type_of(self, text: str) -> str:
        return self.expression(text).type

    def constant(self, text: str) -> Any:
        """Returns the value of an argument that reads no column: text, bytes, double, list or None.

        Any other argument is returned as an expression, which no parser accepts as a constant.
        """
        tree = parse(text).tree
        if isinstance(tree, exp.Anonymous) and tree.name.lower() == "array":
            return [self.constant(part.sql("spark")) for part in tree.expressions]
        if isinstance(tree, exp.Null):
            return None
        plain = isinstance(tree, exp.Literal | exp.HexString)
        e = self.expression(text if plain and not _is_number(tree) else f"double({text})")
        if e.columns or not e.local:
            return e
        return rows.to_pylist(e.evaluate([None] * len(self.schema), 1), e.type)[0]

    def numbered(
        self, sql: str, written: str, texts: list[str], distinct: bool, condition: str | None
    ) -> int:
        """Compiles the call of an incremental aggregate; equal calls have the same number."""
        aggregator = AGGREGATORS[written]
        shown = f"{written}({'distinct ' if distinct else ''}{', '.join(texts)})"
        texts = shown_as = _checked_arguments(sql, written, texts, distinct)
        if condition is not None:
            shown += " filter (...)"
            self._check_condition(sql, condition)
            texts = _conditional(texts, condition, distinct)
        compiled = [self._argument(text, aggregator) for text in texts]
        if aggregator.result("double") == "double" and aggregator.result("string") is None:
            compiled = [self._number_of(text, e) for text, e in zip(texts, compiled, strict=True)]
        type_ = aggregator.result(compiled[0].type)
        if type_ is None:
            orders = written in ("min", "max")
            kind = "INVALID_ORDERING_TYPE" if orders else "UNEXPECTED_INPUT_TYPE"
            what = f"[DATATYPE_MISMATCH.{kind}] there is no {written} of a {compiled[0].type}"
            what += f" ('{shown_as[0]}')"
            raise _failure(sql, what, aggregator.hint(written, shown_as[0], compiled[0].type))
        maps = [t for t, each in zip(shown_as, compiled, strict=True) if "map<" in each.type]
        if distinct and maps:
            what = f"there are no distinct values of a map ('{maps[0]}')"
            raise _failure(sql, what, f"use one of its values, as in {maps[0]}['key']")
        if aggregator.both and aggregator.result(compiled[1].type) is None:
            what = f"there is no {written} of a {compiled[1].type} ('{shown_as[1]}')"
            raise _failure(sql, what, aggregator.hint(written, shown_as[1], compiled[1].type))
        if len(compiled) == 2 and "map<" in compiled[1].type and not distinct:
            what = f"there is no {written} by a {compiled[1].type} ('{shown_as[1]}')"
            raise _failure(
                sql, what, f"maps have no order; use one of its values, {shown_as[1]}['key']"
            )
        kernel, weighed = self._kernel(sql, aggregator.kernel, compiled[0].type), distinct
        if distinct and aggregator.distinct:
            kernel, weighed = aggregator.distinct, False
        if kernel == "count_distinct":
            kernel, weighed = "count", True
        if kernel == "count_if":
            compiled = [self.expression(f"case when ({text}) then 1 end") for text in texts]
            type_, kernel = "bigint", "count"
        return self.number(
            AggregateCall(kernel, compiled[0], type_, tuple(compiled[1:]), weighed), shown
        )

    def _kernel(self, sql: str, kernel: str, type_: str) -> str:
        """Returns the kernel of an aggregate; in ANSI mode a sum that does not fit is an error.

        Without it, a sum of integers wraps around, and a total of decimals is null.
        """
        if kernel not in _WITHOUT_ANSI or type_ in FLOATS or type_ in INTERVALS or self._ansi(sql):
            return kernel
        if not type_.startswith("decimal"):
            return "wrapping_sum" if kernel == "sum" else kernel
        return _WITHOUT_ANSI[kernel]

    def _ansi(self, sql: str) -> bool:
        """Returns the ANSI mode of the totals; it is recorded if it is off."""
        settings = self.settings
        if not isinstance(settings, SqlSettings):
            settings = settings(SettingsDependency(time_zone=False, ansi=True), sql)
        if settings.ansi is False:
            self.totals = SqlSettings(ansi=False)
        return settings.ansi is not False

    def _argument(self, text: str, aggregator: Aggregator) -> Expression:
        """Compiles an argument; a null without a type gets one that the aggregate accepts."""
        try:
            return self.expression(text)
        except UntypedNullError:
            kinds = ("string", "double", "boolean", "bigint")
            kind = next(each for each in kinds if aggregator.result(each) is not None)
            return self.expression(f"cast(null as {kind})")

    def _number_of(self, text: str, argument: Expression) -> Expression:
        """Returns an argument of an aggregate of numbers; a text becomes a double, as in Spark."""
        if argument.type != "string":
            return argument
        return self.expression(f"cast({text} as double)")

    def _check_condition(self, sql: str, condition: str) -> None:
        """Raises ExpressionError if the condition of FILTER is not boolean."""
        type_ = self.expression(condition).type
        if type_ != "boolean":
            what = f"the condition {condition!r} is of type {type_}, not boolean"
            hint = "write a comparison, as in filter (where x > 60)"
            raise _failure(sql, f"[INVALID_AGGREGATE_FILTER.NOT_BOOLEAN] {what}", hint)

    def expression(self, text: str) -> Expression:
        """Compiles an argument, which must be deterministic."""
        e = compile_expression(
            text,
            self.schema,
            types=self.types,
            settings=self.settings,
            functions=self.functions,
        )
        if not e.deterministic:
            what = f"{e.sql!r} is not deterministic"
            raise _failure(
                e.sql,
                what,
                "compute it as a column of a stage or view first, which memoises the results",
            )
        return e

    def number(self, call: AggregateCall, shown: str) -> int:
        made_of = tuple(a.fingerprint for a in call.arguments)
        key = (call.function, call.distinct, call.parameters, made_of)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.calls)
            self.calls.append(call)
            self.labels.append(shown)
        return number

    def check_columns(self, text: str, inner: Schema, sql: str) -> None:
        """Raises ExpressionError if a column that is not a key is used outside of aggregates."""
        inner_names = {name.lower() for name in inner.names}
        rows_only = {name.lower() for name in self.schema.names} - inner_names
        words = tokens(text)
        for i, word in enumerate(words):
            called = i + 1 < len(words) and words[i + 1].text == "("
            if word.kind in ("word", "name") and not called and word.text.lower() in rows_only:
                raise _failure(
                    sql,
                    f"column {word.text!r} is neither a key nor inside an aggregate",
                    f"aggregate it, as in max({word.text}), or add it to group_by",
                )


_NULLS = re.compile(r"\s+(ignore|respect)\s+nulls\Z", re.IGNORECASE)


def _failure(sql: str, what: str, hint: str | None) -> ExpressionError:
    return ExpressionError(f"aggregate {sql!r}: {what}", hint=hint)


def _is_number(tree: exp.Expression) -> bool:
    return isinstance(tree, exp.Literal) and not tree.is_string


def _unknown(sql: str, written: str, given: Sequence[str]) -> ExpressionError:
    if written in REFUSED:
        what = f"{written} depends on the order of rows, and a group has none"
        argument = _NULLS.sub("", given[0]) if given else "x"
        return _failure(sql, what, REFUSED[written].format(argument))
    names = ", ".join((*AGGREGATORS, *WHOLES))
    hint = f"use one of {names}, or .reduce(f)"
    return _failure(sql, f"unknown aggregate {written}", hint)


def _checked_arguments(sql: str, written: str, texts: list[str], distinct: bool) -> list[str]:
    """Returns the arguments to compile, after checking their number.

    `count(a, b)` counts the rows in which neither is null, and `count(distinct a, b)` the distinct
    pairs.
    """
    wanted = AGGREGATORS[written].arguments
    if written == "approx_count_distinct" and len(texts) == 2:
        return texts[:1]  # drop the allowed error, because the result is exact
    if written == "any_value" and texts:
        # the least value is null only if all values are, so it needs no IGNORE NULLS
        texts = [_NULLS.sub("", texts[0]), *texts[1:]]
        if len(texts) == 2 and texts[1].lower() in ("true", "false"):
            return texts[:1]
    if (written == "count" and len(texts) > 1) or (written == "regr_count" and len(texts) == 2):
        if distinct:
            return texts
        there = " and ".join(f"({text}) is not null" for text in texts)
        return [f"case when {there} then 1 end"]
    if len(texts) == wanted:
        return texts
    hint = None
    if written in ("max", "min"):
        hint = "use greatest(a, b) or least(a, b) inside it"
    elif wanted == 2 and not AGGREGATORS[written].both:
        hint = f"write {written}(x, o): the x of the row with that o"
    how_many = "one argument" if wanted == 1 else f"{wanted} arguments"
    raise _failure(sql, f"[WRONG_NUM_ARGS] {written} takes {how_many}", hint)


def _conditional(texts: list[str], condition: str, distinct: bool) -> list[str]:
    """Rewrites the arguments so that rows are ignored if the condition is not true.

    An argument becomes null in these rows. For `min_by` and `max_by` only the second argument, the
    order, becomes null, because the first one may be null in other rows as well.
    """
    conditional = [f"case when {condition} then ({text}) end" for text in texts]
    return conditional if distinct or len(texts) == 1 else [texts[0], *conditional[1:]]


def _split(sql: str, inside: Sequence[Word], start: int, stop: int) -> list[str]:
    """Splits the text of the arguments at their commas."""
    commas = [w for k, w in enumerate(inside) if w.text == "," and _depth(inside, k) == 0]
    starts = [start, *(word.end for word in commas)]
    stops = [*(word.start for word in commas), stop]
    return [sql[a:b].strip() for a, b in zip(starts, stops, strict=True)]


def _is_call(words: Sequence[Word], i: int) -> bool:
    """Returns True if an aggregate is called at word `i`."""
    return (
        words[i].kind == "word"
        and words[i].text.lower() in analyzer.AGGREGATES
        and i + 1 < len(words)
        and words[i + 1].text == "("
    )


def _closing(words: Sequence[Word], i: int, sql: str) -> int:
    """Returns the index of the parenthesis that closes the one at word `i`."""
    depth = 0
    for k in range(i, len(words)):
        if words[k].kind == "sign":
            depth += (words[k].text == "(") - (words[k].text == ")")
            if depth == 0 and k > i:
                return k
    raise _failure(sql, "a parenthesis is not closed", None)


def _depth(words: Sequence[Word], k: int) -> int:
    return sum((w.text == "(") - (w.text == ")") for w in words[:k] if w.kind == "sign")


def _is_constant(inside: Sequence[Word]) -> bool:
    """Returns True for a literal: `count(1)` counts rows."""
    return len(inside) == 1 and inside[0].kind in ("number", "string")


def is_aggregate_name(name: str) -> bool:
    """Returns True if a function of this name, in lower case, aggregates rows."""
    return name in AGGREGATORS or name in REFUSED or name in WHOLES
