"""Resolves the columns of an expression and refuses forbidden parts, before it is compiled.

Some functions of Spark depend on more than the values of one row. Some of these are forbidden in a
row expression. Others mark the expression as nondeterministic, because two evaluations may differ.

`conjuncts` returns the operands of the `and`s of a predicate, as text. A filter keeps the rows for
which every conjunct is true. So each conjunct may be evaluated in a different operator of the plan.
The caller must check whether a conjunct may be evaluated on other rows.
"""

from __future__ import annotations

import difflib
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

from sqlglot import exp

from nosync_nb.errors import ExpressionError, SchemaError
from nosync_nb.expressions.syntax.parser import listed_patterns, parse
from nosync_nb.rows import Schema

_AGGREGATES = """
any any_value approx_count_distinct approx_percentile approx_top_k array_agg avg bit_and bit_or
bit_xor bitmap_and_agg bitmap_construct_agg bitmap_or_agg bool_and bool_or collect_list collect_set
corr count count_distinct count_if count_min_sketch covar_pop covar_samp every first first_value
grouping grouping_id histogram_numeric hll_sketch_agg hll_union_agg kurtosis last last_value listagg
max max_by mean median min min_by mode percentile percentile_approx percentile_cont percentile_disc
product regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy
schema_of_json_agg skewness some std stddev stddev_pop stddev_samp string_agg sum sum_distinct
try_avg try_sum var_pop var_samp variance
"""
_WINDOWS = "cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number"
_EXPLODING = "explode explode_outer posexplode posexplode_outer inline inline_outer"
_GENERATORS = f"{_EXPLODING} stack json_tuple variant_explode variant_explode_outer"
_WITHOUT_PARENTHESES = """
current_date current_timestamp current_time localtimestamp current_user user session_user
"""
_UNSTABLE = f"""
{_WITHOUT_PARENTHESES} rand randn random randstr uniform uuid shuffle monotonically_increasing_id
spark_partition_id input_file_name input_file_block_start input_file_block_length now curdate
current_timezone current_catalog current_database current_schema version reflect java_method
try_reflect
"""
_UNITS = "year quarter month week day dayofyear hour minute second millisecond microsecond"
_TAKES_UNIT = "dateadd date_add datediff date_diff timestampadd timestampdiff timediff"

AGGREGATES = frozenset(_AGGREGATES.split())
WINDOWS = frozenset(_WINDOWS.split())
GENERATORS = frozenset(_GENERATORS.split())
EXPLODING = frozenset(_EXPLODING.split())
"""Generators that expand an array or map to rows."""

UNSTABLE = frozenset(_UNSTABLE.split())
"""Functions whose result depends on more than their arguments."""

WITHOUT_PARENTHESES = frozenset(_WITHOUT_PARENTHESES.split())
UNITS = frozenset(_UNITS.split())
TAKES_UNIT = frozenset(_TAKES_UNIT.split())


class ExpressionFacts(NamedTuple):
    """The facts of an expression that do not depend on its types.

    Attributes:
        columns: the positions of the columns that it reads, ascending.
        deterministic: True if two evaluations must have the same result.
        names: each column name of the text, in lower case, with its name in the schema.
    """

    columns: tuple[int, ...]
    deterministic: bool
    names: tuple[tuple[str, str], ...]


_UNSTABLE_NODES: dict[type[exp.Expression], str] = {
    exp.CurrentDate: "current_date",
    exp.CurrentTimestamp: "current_timestamp",
    exp.CurrentUser: "current_user",
    exp.SessionUser: "session_user",
}
CLOCK_FUNCTIONS = frozenset(
    (
        *("current_date", "current_time", "current_timestamp", "curdate", "localtimestamp", "now"),
        "unix_timestamp",
    )
)
"""Functions whose result is the time, if they have no arguments."""


def analyze(tree: exp.Expression, schema: Schema, text: str) -> ExpressionFacts:
    """Resolves columns, and refuses expressions that are not over a single row.

    Raises:
        ExpressionError: for a missing column, and for aggregates, windows, subqueries and
            generators.
    """
    places: set[int] = set()
    names: dict[str, str] = {}
    deterministic = True
    bound = {
        name.name.lower() for function in tree.find_all(exp.Lambda) for name in function.expressions
    }
    for node in tree.walk():
        _refuse(node, text)
        if isinstance(node, exp.Column):
            name = node.parts[0].name
            if (name.lower() in bound and _is_variable(node)) or is_unit(node):
                continue
            if _unstable_name(node, schema):
                deterministic = False
                continue
            place = _place(name, schema, text)
            places.add(place)
            names[name.lower()] = schema.names[place]
        elif _unstable_name(node, schema):
            deterministic = False
    return ExpressionFacts(tuple(sorted(places)), deterministic, tuple(sorted(names.items())))


def _called(node: Any) -> str:
    return str(node.name).lower() if isinstance(node, exp.Anonymous) else ""


def unstable_function(sql: str, schema: Schema) -> str | None:
    """Returns the first function of an expression whose results may differ for equal arguments.

    Raises:
        ExpressionError: if the text cannot be parsed.
    """
    names = (_unstable_name(node, schema) for node in parse(sql).tree.walk())
    return next((name for name in names if name), None)


def _unstable_name(node: Any, schema: Schema) -> str:
    """Returns the name of the function if a node calls an unstable one; otherwise empty."""
    if isinstance(node, exp.Column):
        name = node.parts[0].name
        is_call = len(node.parts) == 1 and name not in schema and _is_unstable_name(name, schema)
        return name.lower() if is_call else ""
    called = _UNSTABLE_NODES.get(type(node)) or _called(node)
    if called == "unix_timestamp" and not node.expressions:
        return called
    return called if called in UNSTABLE else ""


def _is_variable(node: exp.Column) -> bool:
    """Returns True if the name is a variable of an enclosing lambda, and not a column."""
    name, around = node.parts[0].name.lower(), node.find_ancestor(exp.Lambda)
    while around is not None:
        if name in (variable.name.lower() for variable in around.expressions):
            return True
        around = around.find_ancestor(exp.Lambda)
    return False


def is_unit(node: exp.Column) -> bool:
    """Returns True for a unit such as `DAY` in `dateadd(DAY, 1, d)`, which is not a column."""
    call = node.parent
    return (
        isinstance(call, exp.Anonymous)
        and call.name.lower() in TAKES_UNIT
        and len(call.expressions) == 3
        and call.expressions[0] is node
        and node.name.lower() in UNITS
    )


def _is_unstable_name(name: str, schema: Schema) -> bool:
    lower = name.lower()
    return lower in WITHOUT_PARENTHESES and lower not in {n.lower() for n in schema.names}


def _place(name: str, schema: Schema, text: str) -> int:
    try:
        return schema.index(name)
    except SchemaError as error:
        if "ambiguous" in str(error):
            raise ExpressionError(f"expression {text!r}: {error}", hint=error.hint) from None
    raise unknown_column(name, schema, text)


def unknown_column(name: str, schema: Schema, text: str) -> ExpressionError:
    """Returns the error for a missing column; its hint names the most similar existing column."""
    names = {own.lower(): own for own in reversed(schema.names)}
    near = difflib.get_close_matches(name.lower(), names, n=1)
    guess = f"did you mean {names[near[0]]!r}? " if near else ""
    hint = f"{guess}the columns are {', '.join(schema.names)}"
    return ExpressionError(f"expression {text!r}: no column {name!r}", hint=hint)


def _refuse(node: Any, text: str) -> None:
    called = _called(node)
    if isinstance(node, exp.Window) or called in WINDOWS:
        is_over = isinstance(node, exp.Window)
        what = "a window function reads other rows"
        what = what if is_over else f"[WINDOW_FUNCTION_WITHOUT_OVER_CLAUSE] {what}"
        _raise(text, what, "use group_by(...).top(...) or .reduce(...)")
    if called in AGGREGATES or isinstance(node, exp.Filter):
        no_filter = "[INVALID_SQL_SYNTAX.FUNCTION_WITH_UNSUPPORTED_SYNTAX] filter belongs to an"
        what = f"{called} is an aggregate" if called else f"{no_filter} aggregate"
        _raise(text, what, "use group_by(...).agg(name='...')")
    if called in GENERATORS:
        alone = f"write it alone, as in select('*', '{called}(a) AS x')"
        hint = alone if called in EXPLODING else "use flat_map(function, schema)"
        _raise(text, f"{called} generates several rows", hint)
    in_words = isinstance(node, exp.Alias) and isinstance(node.parent, exp.Paren)
    if in_words or isinstance(node, exp.Query | exp.Exists):  # `(table t)` is a query in Spark
        _raise(text, "a subquery reads other rows", "use join(..., how='semi' or 'anti')")
    if isinstance(node, exp.Placeholder | exp.Parameter):
        _raise(text, "a parameter has no value here", "write the value, as in f'x > {value!r}'")
    if isinstance(node, exp.In) and not any(v for k, v in node.args.items() if k != "this"):
        what = "[INVALID_SQL_SYNTAX.EMPTY_IN_PREDICATE] the list after IN is empty"
        _raise(text, what, "write at least one value: x IN (NULL) is never true")
    if isinstance(node, exp.AtTimeZone):
        hint = "write from_utc_timestamp(t, 'Europe/Paris'), or to_utc_timestamp(t, 'Europe/Paris')"
        _raise(text, "[PARSE_SYNTAX_ERROR] AT TIME ZONE is not Spark SQL", hint)
    if isinstance(node, exp.Any | exp.All):
        _check_quantifier(node, text)
    if isinstance(node, exp.Star) and (call := _called(node.parent)):
        near = difflib.get_close_matches(call, AGGREGATES, n=1)
        hint = f"did you mean '{near[0]}'?" if near else "write * alone in count(*)"
        _raise(text, f"'{call}' does not take *", hint)
    if isinstance(node, exp.Star):
        _raise(text, "* stands for columns", "use it alone in select('*')")


def _check_quantifier(node: Any, text: str) -> None:
    """Raises ExpressionError for ANY or ALL without patterns, or after an operator but LIKE."""
    word = type(node).__name__.upper()
    is_like = isinstance(node.parent, exp.Like | exp.ILike)
    if not is_like or isinstance(node.parent.parent, exp.Escape):
        escaped = " with ESCAPE" if is_like else ""
        what = f"[PARSE_SYNTAX_ERROR] {word} (...){escaped} is not Spark SQL here"
        _raise(text, what, "write x LIKE ANY ('a%', 'b%'), or compare with AND and OR")
    if not listed_patterns(node):
        what = f"[INVALID_SQL_SYNTAX.EMPTY_QUANTIFIED_PATTERN] LIKE {word} has no patterns"
        _raise(text, what, f"list them: x LIKE {word} ('a%', 'b%')")


def _raise(text: str, what: str, hint: str) -> NoReturn:
    raise ExpressionError(f"expression {text!r}: {what}", hint=hint)


_OPENING = {"(", "[", "{", "CASE"}
_CLOSING = {")", "]", "}", "END"}


@lru_cache(maxsize=512)
def conjuncts(sql: str) -> tuple[str, ...]:
    """Returns the conjuncts of a predicate: the texts between each top-level `and`.

    The texts are checked against the parser's result. Returns the whole predicate if they disagree,
    or if it contains a comment.
    """
    parsed = parse(sql)
    if parsed.name is not None or "--" in sql or "/*" in sql:
        return (sql,)
    depth, between, start, texts = 0, 0, 0, []
    for word in parsed.words:
        text = word.text.upper() if word.kind in ("word", "sign") else ""
        if text in _OPENING:
            depth += 1
        elif text in _CLOSING:
            depth -= 1
        elif depth == 0 and text == "BETWEEN":
            between += 1
        elif depth == 0 and text == "AND":
            if between:
                between -= 1
            else:
                texts.append(sql[start : word.start].strip())
                start = word.end
    texts.append(sql[start:].strip())
    try:
        trees = [parse(text).tree for text in texts]
    except ExpressionError:
        return (sql,)
    return tuple(texts) if trees == _operands(parsed.tree) else (sql,)


def _operands(tree: exp.Expression) -> list[Any]:
    """Returns the operands of a chain of `and`."""
    waiting: list[Any] = [tree]
    operands: list[Any] = []
    while waiting:
        each = waiting.pop()
        if isinstance(each, exp.And):
            waiting += [each.right, each.left]
        else:
            operands.append(each)
    return operands
