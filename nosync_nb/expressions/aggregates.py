"""Aggregates of groups: which calls an expression over aggregates makes, and what to do with them.

`round(sum(x) / count(*), 2)` becomes the calls sum(x) and count(*), computed by the operator, and
the row expression `round(_0 / _1, 2)` over the keys and the results of the calls. Equal calls are
made once. `AGGREGATES` is the place to add a function: here its name and types, in the operator
what it keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from nosync_nb.errors import ExpressionError
from nosync_nb.expressions import catalog
from nosync_nb.expressions.expression import Expression, Types, compile_expression, compile_shown
from nosync_nb.expressions.parse import Word, parse, tokens
from nosync_nb.rows import Field, Schema
from nosync_nb.rows.types import FLOATS, INTEGERS, decimal_parts


class AggregateCall(NamedTuple):
    """One call: count_star (which has no argument), count, sum, min, max or avg."""

    function: str
    argument: Expression | None
    type: str


class Aggregation(NamedTuple):
    """Compiled aggregates.

    Attributes:
        names: of the results, in order.
        calls: the distinct aggregate calls.
        outputs: one row expression for each name, over `inner`.
        inner: the schema of the keys, then `_0`, `_1`, ... with the types of the calls.
    """

    names: tuple[str, ...]
    calls: list[AggregateCall]
    outputs: list[Expression]
    inner: Schema


def _sum_type(type_: str) -> str | None:
    if type_ in INTEGERS:
        return "bigint"
    if type_.startswith("decimal"):
        precision, scale = decimal_parts(type_)
        return f"decimal({min(38, precision + 10)},{scale})"
    return "double" if type_ in FLOATS else None


def _avg_type(type_: str) -> str | None:
    return "double" if type_ in (*INTEGERS, *FLOATS) else None


AGGREGATES: dict[str, Callable[[str], str | None]] = {
    "count": lambda type_: "bigint",
    "sum": _sum_type,
    "min": lambda type_: None if type_.startswith("map<") else type_,
    "max": lambda type_: None if type_.startswith("map<") else type_,
    "avg": _avg_type,
}
"""Function -> type of its result by that of its argument, None if it does not take such values."""

_SYNONYMS = {"mean": "avg"}


def compile_aggregates(
    named: Mapping[str, str],
    schema: Schema,
    keys: Sequence[str],
    *,
    types: Types | None = None,
    time_zone: str = "UTC",
) -> Aggregation:
    """Compiles expressions over aggregates of the rows of a group.

    Args:
        named: name of the result -> SQL, such as "count(*)" or "max(a) - min(a)".
        schema: the columns of the rows; `keys` are those of the group.
        types: asks Spark for types; see `compile_expression`.

    Raises:
        ExpressionError: for an unknown aggregate, one inside another, distinct, a column that is
            neither a key nor inside an aggregate.
    """
    compiler = _Compiler(schema, keys, types, time_zone)
    texts = [compiler.replaced(sql) for sql in named.values()]
    inner = compiler.inner()
    labels = {f"{compiler.prefix}{i}": text for i, text in enumerate(compiler.labels)}
    outputs = []
    for sql, text in zip(named.values(), texts, strict=True):
        compiler.check_columns(text, inner, sql)
        outputs.append(compile_shown(text, inner, types, time_zone, (repr(sql), labels)))
    return Aggregation(tuple(named), compiler.calls, outputs, inner)


class _Compiler:
    """Collects the calls of several expressions over one group."""

    def __init__(
        self, schema: Schema, keys: Sequence[str], types: Types | None, time_zone: str
    ) -> None:
        self.schema = schema
        self.keys = [schema.fields[schema.index(key)] for key in keys]
        self.types = types
        self.time_zone = time_zone
        self.calls: list[AggregateCall] = []
        self.labels: list[str] = []
        self._numbers: dict[tuple[str, str], int] = {}
        self.prefix = "_"
        while any(key.name.startswith(self.prefix) for key in self.keys):
            self.prefix += "_"

    def inner(self) -> Schema:
        """Returns the schema of the outputs: keys and results."""
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
        """Compiles the call at word `i`; returns its number and the word after it."""
        written = words[i].text.lower()
        function = _SYNONYMS.get(written, written)
        if function not in AGGREGATES:
            raise _failure(sql, f"the aggregate {written} is not known", _known())
        close = _closing(words, i + 1, sql)
        inside = words[i + 2 : close]
        for k in range(len(inside)):
            if _is_call(inside, k):
                raise _failure(
                    sql, f"{inside[k].text} stands inside {written}", "name it in a stage before"
                )
        after = close + 1
        condition = None
        if after < len(words) and words[after].text.lower() == "filter":
            end = _closing(words, after + 1, sql)
            condition = sql[words[after + 2].end : words[end].start].strip()
            after = end + 1
        if after < len(words) and words[after].text.lower() == "over":
            raise _failure(sql, "a window looks at other groups", "use group_by(...).top(...)")
        argument = sql[words[i + 1].end : words[close].start].strip()
        return self.numbered(sql, function, inside, argument, condition), after

    def numbered(
        self, sql: str, function: str, inside: Sequence[Word], argument: str, condition: str | None
    ) -> int:
        """Returns the number of a call, made once for equal ones."""
        first = inside[0].text.lower() if inside else ""
        if first == "distinct":
            raise _failure(sql, f"{function}(distinct ...) is not known", "use distinct() before")
        if any(word.text == "," and _depth(inside, k) == 0 for k, word in enumerate(inside)):
            hint = (
                "use greatest(a, b) or least(a, b) inside it"
                if function in ("max", "min")
                else None
            )
            raise _failure(sql, f"{function} takes one argument", hint)
        star = function == "count" and (argument == "*" or _is_constant(inside))
        if star and condition is None:
            return self.number(AggregateCall("count_star", None, "bigint"), "count(*)")
        shown = f"{function}({argument})"
        text = "1" if star else argument
        if condition is not None:
            text, shown = f"case when {condition} then ({text}) end", f"{shown} filter (...)"
        compiled = compile_expression(text, self.schema, types=self.types, time_zone=self.time_zone)
        type_ = AGGREGATES[function](compiled.type)
        if type_ is None:
            raise _failure(
                sql,
                f"{function} of a {compiled.type}",
                f"cast it, as in {function}(cast(x as double))",
            )
        return self.number(AggregateCall(function, compiled, type_), shown)

    def number(self, call: AggregateCall, shown: str) -> int:
        key = (call.function, call.argument.fingerprint if call.argument else "")
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.calls)
            self.calls.append(call)
            self.labels.append(shown)
        return number

    def check_columns(self, text: str, inner: Schema, sql: str) -> None:
        """Refuses columns of the rows outside of aggregates."""
        known = {name.lower() for name in inner.names}
        rows_only = {name.lower() for name in self.schema.names} - known
        words = tokens(text)
        for i, word in enumerate(words):
            called = i + 1 < len(words) and words[i + 1].text == "("
            if word.kind in ("word", "name") and not called and word.text.lower() in rows_only:
                raise _failure(
                    sql,
                    f"column {word.text!r} is neither a key nor inside an aggregate",
                    f"aggregate it, as in max({word.text}), or add it to group_by",
                )


def _failure(sql: str, what: str, hint: str | None) -> ExpressionError:
    return ExpressionError(f"aggregate {sql!r}: {what}", hint=hint)


def _known() -> str:
    return f"the aggregates are {', '.join([*AGGREGATES, *_SYNONYMS])}; .reduce(f) does the rest"


def _is_call(words: Sequence[Word], i: int) -> bool:
    """Tells whether an aggregate is called at word `i`."""
    return (
        words[i].kind == "word"
        and words[i].text.lower() in catalog.AGGREGATES
        and i + 1 < len(words)
        and words[i + 1].text == "("
    )


def _closing(words: Sequence[Word], i: int, sql: str) -> int:
    """Returns the parenthesis that closes the one at word `i`."""
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
    """`count(1)` counts rows."""
    return len(inside) == 1 and inside[0].kind in ("number", "string")
