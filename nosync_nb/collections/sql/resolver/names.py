"""The names that Spark generates for columns without an alias.

Spark prints the analyzed expression: parentheses around operators, arguments with their defaults,
strings without quotes, casts omitted. This module prints the syntax tree in that form.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from sqlglot import exp

from nosync_nb.collections.sql.grammar import span_of
from nosync_nb.collections.sql.resolver.context import Context
from nosync_nb.collections.sql.resolver.rows import Rows
from nosync_nb.collections.sql.resolver.scope import Scope
from nosync_nb.collections.sql.resolver.trees import (
    is_aggregate_call,
    signed_integer,
    without_parentheses,
)
from nosync_nb.errors import NosyncError
from nosync_nb.expressions.syntax.parser import Unsigned, listed_patterns, value_of
from nosync_nb.operators.windows.calls import RANKS

_BINARY: dict[type[exp.Expr], str] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.IntDiv: "div",
    exp.Mod: "%",
    exp.BitwiseAnd: "&",
    exp.BitwiseOr: "|",
    exp.BitwiseXor: "^",
    exp.BitwiseLeftShift: "<<",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.EQ: "=",
    exp.NullSafeEQ: "<=>",
    exp.And: "AND",
    exp.Or: "OR",
}
_NEGATED: dict[type[exp.Expr], str] = {exp.NEQ: "=", exp.NullSafeNEQ: "<=>"}
_UPPER = frozenset(
    (
        *(
            "acos",
            "acosh",
            "asin",
            "asinh",
            "atan",
            "atan2",
            "atanh",
            "cbrt",
            "ceil",
            "cos",
            "cosh",
        ),
        *("cot", "csc", "degrees", "dense_rank", "e", "exp", "expm1", "floor", "hypot", "log"),
        *("log10", "log1p", "log2", "percent_rank", "pi", "power", "radians", "rank", "rint"),
        *("sec", "signum", "sin", "sinh", "sqrt", "tan", "tanh"),
    )
)
"""Functions whose names Spark shows in upper case."""
_DEFAULTS: dict[tuple[str, int], tuple[str, ...]] = {
    ("approx_percentile", 2): ("10000",),
    ("bround", 1): ("0",),
    ("from_unixtime", 1): ("yyyy-MM-dd HH:mm:ss",),
    ("listagg", 1): ("NULL",),
    ("locate", 2): ("1",),
    ("lpad", 2): (" ",),
    ("months_between", 2): ("true",),
    ("overlay", 3): ("-1",),
    ("percentile", 2): ("1",),
    ("percentile_approx", 2): ("10000",),
    ("position", 2): ("1",),
    ("regexp_extract", 2): ("1",),
    ("regexp_extract_all", 2): ("1",),
    ("regexp_replace", 3): ("1",),
    ("round", 1): ("0",),
    ("rpad", 2): (" ",),
    ("split", 2): ("-1",),
    ("string_agg", 1): ("NULL",),
    ("substr", 2): ("2147483647",),
    ("substring", 2): ("2147483647",),
    ("to_unix_timestamp", 1): ("yyyy-MM-dd HH:mm:ss",),
    ("unix_timestamp", 1): ("yyyy-MM-dd HH:mm:ss",),
}
"""The arguments that Spark adds to a function with a number of arguments."""
_STRINGS = re.compile(r"""(?:[rR]?(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"))+""", re.DOTALL)
"""Strings; those that touch are one string with a quote in it."""
_CASTS = frozenset(
    (
        *("bigint", "binary", "boolean", "date", "decimal", "double", "float", "int", "smallint"),
        *("string", "timestamp", "tinyint"),
    )
)
"""Functions that are casts, which a name omits."""
_WITH_UNIT = ("date_add", "date_diff", "dateadd", "datediff", "timestampadd", "timestampdiff")
_TIMES = ("date", "timestamp", "timestamp_ntz")
_WHOLE_NUMBERS = ("tinyint", "smallint", "int")
_RENAMED = {"array_agg": "collect_list"}
_VARIABLE = "namedlambdavariable()"
_Print = Callable[[Any], str]


def generated_name(context: Context, tree: Any, rows: Rows | None) -> str:
    """Returns the name of a column without an alias.

    Args:
        rows: the rows to which the expression refers, if its name may depend on types.
    """
    tree = without_parentheses(tree)
    if isinstance(tree, exp.Column | exp.Dot):
        return tree.parts[-1].name if isinstance(tree, exp.Column) else tree.expression.name
    return _Names(context, rows).text(tree)


class _Names:
    """Prints expressions as Spark names them."""

    def __init__(self, context: Context, rows: Rows | None) -> None:
        self._context = context
        self._rows = rows
        self._variables: frozenset[str] = frozenset()  # of the lambda functions around

    def text(self, tree: Any) -> str:
        """Returns an expression as text."""
        tree = without_parentheses(tree)
        kind = type(tree)
        if kind in (exp.Add, exp.Sub) and (shown := self._time_arithmetic(tree)):
            return shown
        if kind in _BINARY:
            return f"({self.text(tree.left)} {_BINARY[kind]} {self.text(tree.right)})"
        if kind in _NEGATED:
            return f"(NOT ({self.text(tree.left)} {_NEGATED[kind]} {self.text(tree.right)}))"
        method: _Print | None = getattr(self, f"_{kind.__name__.lower()}", None)
        return self._cut(tree) if method is None else method(tree)

    def _cut(self, tree: Any) -> str:
        """Returns the user's text, with single spaces."""
        return " ".join(self._context.cut(tree).split())

    def _list(self, trees: Any) -> str:
        return ", ".join(self.text(each) for each in trees)

    # -- times ---------------------------------------------------------------------------------

    def _time_arithmetic(self, tree: exp.Binary) -> str:
        """Returns the name of a sum of a time and days or an interval; empty for other sums."""
        left, right = without_parentheses(tree.left), without_parentheses(tree.right)
        if not self._may_be_added(left) and not self._may_be_added(right):
            return ""
        type_ = self._type(left)
        if type_ not in _TIMES and isinstance(tree, exp.Add):
            left, right, type_ = right, left, self._type(right)
        if type_ not in _TIMES:
            return ""
        minus = isinstance(tree, exp.Sub)
        if isinstance(right, exp.Interval):
            shown = self.text(right)
            if type_ == "date" and shown.endswith("DAY"):
                days = f"extractansiintervaldays({shown})"
                return f"date_add({self.text(left)}, {f'(- {days})' if minus else days})"
            return f"{self.text(left)} {'-' if minus else '+'} {shown}"
        if type_ == "date" and self._type(right) in _WHOLE_NUMBERS:
            return f"{'date_sub' if minus else 'date_add'}({self._list([left, right])})"
        return ""

    def _may_be_added(self, tree: Any) -> bool:
        """Returns True for an interval, and for an expression that may be a whole number."""
        if isinstance(tree, exp.Literal):
            return signed_integer(tree) is not None
        return not isinstance(tree, exp.Mul | exp.Div | exp.Mod | exp.Boolean)

    def _type(self, tree: Any) -> str:
        """Returns the type of an expression; empty if it is not known."""
        if isinstance(tree, exp.Interval | exp.Null) or self._rows is None or self._variables:
            return ""
        if isinstance(tree, exp.Literal):
            return "int" if signed_integer(tree) is not None else ""
        if isinstance(tree, exp.Mul | exp.Div | exp.Mod | exp.Window | exp.Query):
            return ""
        if is_aggregate_call(tree) and str(tree.this).lower() in ("count", "sum", "avg"):
            return ""
        try:
            scalar = self._context.scalar(tree, self._rows)
            return self._context.type_of(scalar, self._rows)
        except NosyncError:  # a column of an enclosing query, whose type is not known
            return ""

    def _column(self, tree: exp.Column) -> str:
        """Returns the name of a column, with the fields of a struct behind it."""
        parts, used = tree.parts, len(tree.parts)
        scope = self._rows.scope if self._rows is not None else None
        while scope is not None:
            found, count = scope.find([part.name for part in parts])
            if found:
                used, scope = count, None
            else:
                scope = scope.outer
        return ".".join([self._identifier(parts[used - 1]), *(p.name for p in parts[used:])])

    def _identifier(self, tree: exp.Expr) -> str:
        return _VARIABLE if tree.name.lower() in self._variables else str(tree.name)

    def _dot(self, tree: exp.Dot) -> str:
        return f"{self.text(tree.this)}.{tree.expression.name}"

    def _star(self, _: exp.Star) -> str:
        return "1"  # count(*) is count(1)

    def _literal(self, tree: exp.Literal) -> str:
        source = self._context.cut(tree)
        if not source:  # an argument of a function
            return str(tree.this)
        if tree.is_string:
            return _string(source)
        number = re.sub("(BD|[LSYDF])$", "", source, flags=re.IGNORECASE)
        if "e" in number.lower() or source[-1] in "DdFf":
            value = float(number)
            return repr(value) if 1e-3 <= abs(value) < 1e7 or not value else _scientific(value)
        return number

    def _boolean(self, tree: exp.Boolean) -> str:
        return "true" if tree.this else "false"

    def _null(self, _: exp.Null) -> str:
        return "NULL"

    def _neg(self, tree: exp.Neg) -> str:
        if isinstance(tree.this, exp.Literal) and not tree.this.is_string:
            return "-" + self.text(tree.this)
        return f"(- {self.text(tree.this)})"

    def _bitwisenot(self, tree: exp.BitwiseNot) -> str:
        return "~" + self.text(tree.this)

    def _not(self, tree: exp.Not) -> str:
        inner = without_parentheses(tree.this)
        if isinstance(inner, exp.Is) and isinstance(inner.expression, exp.Null):
            return f"({self.text(inner.this)} IS NOT NULL)"
        return f"(NOT {self.text(inner)})"

    def _is(self, tree: exp.Is) -> str:
        if isinstance(tree.expression, exp.Boolean):
            return f"({self.text(tree.this)} <=> {self.text(tree.expression)})"
        return f"({self.text(tree.this)} IS NULL)"

    def _between(self, tree: exp.Between) -> str:
        return f"between({self._list([tree.this, tree.args['low'], tree.args['high']])})"

    def _in(self, tree: exp.In) -> str:
        if tree.args.get("query") is not None:
            outer = self._outer_columns(tree.args["query"])
            return f"({self.text(tree.this)} IN (listquery({outer})))"
        return f"({self.text(tree.this)} IN ({self._list(tree.expressions)}))"

    def _like(self, tree: exp.Like) -> str:
        if isinstance(tree.expression, exp.Any | exp.All):
            return self._like_several(tree)
        shown = f"{self.text(tree.this)} LIKE {self.text(tree.expression)}"
        return f"(NOT {shown})" if tree.args.get("negate") else shown

    def _like_several(self, tree: exp.Like | exp.ILike) -> str:
        """Returns the name of `x LIKE ANY (...)`; Spark omits patterns that are strings."""
        patterns, value = listed_patterns(tree.expression), self.text(tree.this)
        is_all, negated = isinstance(tree.expression, exp.All), tree.args.get("negate")
        lower = isinstance(tree, exp.ILike)
        if all(isinstance(each, exp.Literal) and each.is_string for each in patterns):
            name = f"{'not' if negated else ''}like{'all' if is_all else 'any'}"
            return f"{name}({f'lower({value})' if lower else value})"
        parts = []
        for each in map(self.text, patterns):
            part = f"ilike({value}, {each})" if lower else f"{value} LIKE {each}"
            parts.append(f"(NOT {part})" if negated else part)
        return f"({(' AND ' if is_all else ' OR ').join(parts)})"

    def _ilike(self, tree: exp.ILike) -> str:
        if isinstance(tree.expression, exp.Any | exp.All):
            return self._like_several(tree)
        return f"ilike({self._list([tree.this, tree.expression])})"

    def _regexplike(self, tree: exp.RegexpLike) -> str:
        return f"RLIKE({self._list([tree.this, tree.expression])})"

    def _escape(self, tree: exp.Escape) -> str:
        return f"{self.text(tree.this)} ESCAPE '{self.text(tree.expression)}'"

    def _dpipe(self, tree: exp.DPipe) -> str:
        return f"concat({self._list([tree.left, tree.right])})"

    def _case(self, tree: exp.Case) -> str:
        parts = ["CASE"]
        for each in tree.args["ifs"]:
            test = self.text(each.this)
            if tree.this is not None:
                test = f"({self.text(tree.this)} = {test})"
            parts.append(f"WHEN {test} THEN {self.text(each.args['true'])}")
        if tree.args.get("default") is not None:
            parts.append(f"ELSE {self.text(tree.args['default'])}")
        return " ".join([*parts, "END"])

    def _cast(self, tree: exp.Cast) -> str:
        typed = re.match(r"(date|timestamp)\s*'(.*)'$", self._context.cut(tree), re.IGNORECASE)
        if typed is not None:
            return f"{typed[1].upper()} '{typed[2]}'"
        is_written = re.match(r"(try_)?cast\b|.*::", self._cut(tree), re.IGNORECASE) is not None
        if is_written and isinstance(without_parentheses(tree.this), exp.Literal):
            return f"CAST({self.text(tree.this)} AS {tree.to.sql('spark').upper()})"
        return self.text(tree.this)

    _trycast = _cast

    def _bracket(self, tree: exp.Bracket) -> str:
        return f"{self.text(tree.this)}[{self._list(tree.expressions)}]"

    def _extract(self, tree: exp.Extract) -> str:
        return f"extract({tree.this.name} FROM {self.text(tree.expression)})"

    def _currentdate(self, _: exp.CurrentDate) -> str:
        return "current_date()"

    def _currenttimestamp(self, _: exp.CurrentTimestamp) -> str:
        return "current_timestamp()"

    def _concat(self, tree: exp.Concat) -> str:
        """Returns adjacent strings; those that touch have a quote between them, as in `'it''s'`."""
        sources = _STRINGS.findall(self._context.cut(tree))
        return "".join(_string(each) for each in sources)

    def _rawstring(self, tree: exp.RawString) -> str:
        return _string(self._context.cut(tree))

    def _unsigned(self, tree: Any) -> str:
        return self.text(tree.this)

    def _bitwiserightshift(self, tree: exp.BitwiseRightShift) -> str:
        sign = ">>>" if isinstance(tree.expression, Unsigned) else ">>"
        return f"({self.text(tree.left)} {sign} {self.text(tree.right)})"

    def _transform(self, tree: exp.Transform) -> str:
        return f"transform({self._list([tree.this, tree.expression])})"

    def _if(self, tree: exp.If) -> str:
        parts = [tree.this, tree.args["true"], tree.args.get("false")]
        return f"(IF({self._list(each for each in parts if each is not None)}))"

    def _interval(self, tree: exp.Interval) -> str:
        value = tree.this
        if not isinstance(value, exp.Literal) or not isinstance(tree.args.get("unit"), exp.Var):
            return self._cut(tree)
        unit, number = tree.args["unit"].name.upper().removesuffix("S"), self.text(value)
        if unit == "WEEK" and number.isdigit():
            unit, number = "DAY", str(7 * int(number))
        if unit in ("HOUR", "MINUTE", "SECOND") and number.isdigit():
            number = number.zfill(2)
        return f"INTERVAL '{number}' {unit}"

    def _alias(self, tree: exp.Alias) -> str:
        return f"{self.text(tree.this)} AS {tree.alias}"

    def _distinct(self, tree: exp.Distinct) -> str:
        return f"DISTINCT {self._list(tree.expressions)}"

    def _anonymous(self, tree: exp.Anonymous) -> str:
        name = str(tree.this).lower()
        given = [self.text(each) for each in tree.expressions]
        if name in _CASTS and len(given) == 1:
            return given[0]
        if len(given) == 2 and (shown := self._with_keyword(tree, name, given)):
            return shown
        if name in _WITH_UNIT and len(given) == 3:
            name = "timestampadd" if "add" in name else "timestampdiff"
        if name == "if":
            return f"(IF({', '.join(given)}))"
        if name in ("isnull", "isnotnull") and given:
            return f"({given[0]} IS {'NOT ' * (name == 'isnotnull')}NULL)"
        if name in ("first", "last", "first_value", "last_value", "any_value"):
            given = given[:1]
        if name == "log" and len(given) == 1:
            given = ["E()", *given]
        if name in ("lag", "lead"):
            given = [*given, *("1", "NULL")[len(given) - 1 :]]
        given += _DEFAULTS.get((name, len(given)), ())
        name = _RENAMED.get(name, name)
        is_upper = name in _UPPER and not (name in ("ceil", "floor") and len(given) > 1)
        return f"{name.upper() if is_upper else name}({', '.join(given)})"

    def _with_keyword(self, tree: exp.Anonymous, name: str, given: list[str]) -> str:
        """Returns the name of `trim(BOTH x FROM y)` and of `position(x IN y)`; else empty."""
        first, second = (span_of(each) for each in tree.expressions)
        source, at = self._context.cut(tree), span_of(tree).start
        low, high = sorted((first, second))
        words = source[low.stop - at : high.start - at].upper().split()
        if name in ("trim", "ltrim", "rtrim") and words == ["FROM"]:
            side = {"ltrim": "LEADING", "rtrim": "TRAILING"}.get(name, "BOTH")
            return f"TRIM({side} {given[0]} FROM {given[1]})"
        if name == "position" and words == ["IN"]:
            return f"locate({given[0]}, {given[1]}, 1)"
        return ""

    def _outer_columns(self, tree: Any) -> str:
        """Returns the columns of enclosing queries that a subquery uses."""
        around: list[Scope] = []
        scope = self._rows.scope if self._rows is not None else None
        while scope is not None:
            around.append(scope)
            scope = scope.outer
        columns = sorted(tree.find_all(exp.Column), key=span_of)
        outer = [(each, self._context.outer.get(id(each))) for each in columns]
        names = [self.text(each) for each, s in outer if any(s is one for one in around)]
        return ", ".join(names)

    def _lambda(self, tree: exp.Lambda) -> str:
        names = {each.name.lower() for each in tree.expressions}
        outer, self._variables = self._variables, self._variables | names
        body = self.text(tree.this)
        self._variables = outer
        return f"lambdafunction({', '.join([body, *(_VARIABLE for _ in names)])})"

    def _filter(self, tree: exp.Filter) -> str:
        return f"{self.text(tree.this)} FILTER (WHERE {self.text(tree.expression.this)})"

    def _withingroup(self, tree: exp.WithinGroup) -> str:
        terms = [
            self.text(each.this) + (" DESC" if each.args.get("desc") else "")
            for each in tree.expression.expressions
        ]
        return f"{self.text(tree.this)} WITHIN GROUP (ORDER BY {', '.join(terms)})"

    def _ignorenulls(self, tree: exp.IgnoreNulls) -> str:
        name = str(tree.this.this).lower() if isinstance(tree.this, exp.Anonymous) else ""
        if name in ("first", "first_value", "last", "last_value"):
            return f"{name.removesuffix('_value')}({self._list(tree.this.expressions[:1])})"
        return f"{self.text(tree.this)} ignore nulls"

    def _respectnulls(self, tree: exp.RespectNulls) -> str:
        return self.text(tree.this)

    def _subquery(self, tree: exp.Subquery) -> str:
        return f"scalarsubquery({self._outer_columns(tree)})"

    def _exists(self, tree: exp.Exists) -> str:
        return f"exists({self._outer_columns(tree)})"

    def _window(self, tree: exp.Window) -> str:
        partition, order = tree.args.get("partition_by"), tree.args.get("order")
        parts = []
        if partition:
            parts.append(f"PARTITION BY {self._list(partition)}")
        if order is not None:
            terms = [self._ordered(each) for each in order.expressions]
            parts.append(f"ORDER BY {', '.join(terms)}")
        parts.append(self._frame(tree, is_ordered=order is not None))
        return f"{self.text(tree.this)} OVER ({' '.join(parts)})"

    def _ordered(self, tree: exp.Ordered) -> str:
        is_descending = bool(tree.args.get("desc"))
        first = tree.args.get("nulls_first")
        first = not is_descending if first is None else bool(first)
        nulls = "FIRST" if first else "LAST"
        return f"{self.text(tree.this)} {'DESC' if is_descending else 'ASC'} NULLS {nulls}"

    def _frame(self, tree: exp.Window, *, is_ordered: bool) -> str:
        called = tree.this
        while not isinstance(called, exp.Anonymous) and isinstance(called.this, exp.Expr):
            called = called.this
        name = str(called.this).lower() if isinstance(called, exp.Anonymous) else ""
        if name in ("lag", "lead"):
            given = called.expressions
            n = (signed_integer(given[1]) if len(given) > 1 else 1) or 0
            n = -n if name == "lag" else n
            return f"ROWS BETWEEN {n} FOLLOWING AND {n} FOLLOWING"
        spec = tree.args.get("spec")
        if spec is None:
            unit = "ROWS" if name in RANKS or not is_ordered else "RANGE"
            end = "CURRENT ROW" if is_ordered else "UNBOUNDED FOLLOWING"
            return f"{unit} BETWEEN UNBOUNDED PRECEDING AND {end}"
        start, end = (self._bound(spec, each) for each in ("start", "end"))
        return f"{str(spec.args['kind']).upper()} BETWEEN {start} AND {end}"

    def _bound(self, spec: exp.WindowSpec, name: str) -> str:
        value, side = spec.args.get(name), str(spec.args.get(name + "_side") or "").upper()
        if value is None or str(value).upper() == "CURRENT ROW":
            return "CURRENT ROW"
        shown = value.upper() if isinstance(value, str) else self.text(value)
        return f"{shown} {side}"


def _string(source: str) -> str:
    """Returns the value of a string as it is written; the text itself if it cannot be read."""
    try:
        return value_of(source)
    except (ValueError, IndexError):
        return source


def _scientific(value: float) -> str:
    """Returns a number as Java prints large and small ones: 1.0E10."""
    mantissa, exponent = f"{value!r}e0".split("e")[0], 0
    digits = f"{value:.17e}".split("e")
    exponent = int(digits[1])
    mantissa = repr(value / 10.0**exponent)
    return f"{mantissa}E{exponent}"
