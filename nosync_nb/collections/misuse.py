"""What people bring from pandas and Spark, and what it is called here.

A method that a collection does not have is answered with the one that does it; so is an argument
in the form that those libraries take. The errors are `MisuseError`: an AttributeError where Python
asks whether something is there, and shown as one line with the remedy.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from nosync_nb.errors import MisuseError

_FIRST = "head(n, by='x desc') shows the first; group_by().top(n, by='x desc') is kept up to date"
_PANDAS = "to_pandas().{}(...)"
_WHOLE = "group_by().agg(name='{}(x)') for all rows, or group_by(column).agg(...)"
_NULLS = "with_columns(x=\"coalesce(x, 0)\") or filter('x is not null')"

ELSEWHERE = {
    **dict.fromkeys(("groupBy", "groupby"), "group_by(...)"),
    **dict.fromkeys(("withColumn", "withColumns", "assign"), "with_columns(name='...')"),
    **dict.fromkeys(("dropDuplicates", "drop_duplicates", "unique"), "distinct()"),
    **dict.fromkeys(("limit", "orderBy", "order_by", "sort", "sort_values", "top"), _FIRST),
    **dict.fromkeys(("nlargest", "nsmallest", "iloc", "tail", "first", "take"), _FIRST),
    **dict.fromkeys(("collect", "iterrows", "itertuples", "toLocalIterator"), "rows()"),
    **dict.fromkeys(("describe", "summary", "hist", "plot", "corr"), _PANDAS),
    **dict.fromkeys(("to_csv", "to_excel", "to_json", "sample", "pivot_table"), _PANDAS),
    **dict.fromkeys(("sum", "mean", "avg", "min", "max", "median", "std", "nunique"), _WHOLE),
    **dict.fromkeys(("agg", "aggregate"), "group_by(...).agg(name='sum(x)')"),
    **dict.fromkeys(("apply", "applymap", "transform"), "map(function, schema='...')"),
    **dict.fromkeys(("fillna", "dropna"), _NULLS),
    **dict.fromkeys(("query", "loc", "mask"), "filter('x > 1')"),
    **dict.fromkeys(("dtypes", "printSchema", "info"), "schema"),
    **dict.fromkeys(("cache", "persist", "checkpoint"), "a name in a %%dd cell: stages are kept"),
    **dict.fromkeys(("write", "to_parquet"), "to_arrow(), or to_spark().write"),
    "columns": "schema.names",
    "shape": "count() and schema.names",
    "size": "count()",
    "unionAll": "union_all(other)",
    "append": "union_all(other), or insert(rows) on an input",
    "exceptAll": "except_all(other)",
    "intersect": "join(other, how='semi', on=[...])",
    "isin": "join(other, how='semi', on=[...])",
    "crossJoin": "join(other, how='cross')",
    "merge": "join(other, on=[...])",
    "hvplot": "it once it is installed: pip install hvplot",
    "toPandas": "to_pandas()",
    "toArrow": "to_arrow()",
    "show": "head(n)",
    "withColumnRenamed": "rename({'old': 'new'})",
    "explode": "select('*', 'explode(a) AS x')",
    "value_counts": "group_by('x').count()",
}
"""The names of others, with what to write."""

_GROUPED = {
    **dict.fromkeys(("sum", "mean", "avg", "min", "max", "median", "std", "first"), ""),
    **dict.fromkeys(("apply", "applyInPandas", "transform"), "reduce(function, schema='...')"),
    **dict.fromkeys(("head", "nlargest", "nsmallest", "tail"), "top(n, by='x desc')"),
    **dict.fromkeys(("size", "value_counts"), "count()"),
    "filter": "agg(...) and then filter(...)",
}


def no_attribute(name: str, columns: Iterable[str], own: Iterable[str]) -> NoReturn:
    """Raises for an attribute that a collection of these columns does not have."""
    known = ELSEWHERE.get(name, "").replace("{}", name)
    if name in columns:
        known = f"an SQL string, as in filter('{name} = ...') or select('{name}')"
    raise MisuseError(f"a collection has no '{name}'", hint=_use(known, name, own))


def no_grouped(name: str, own: Iterable[str]) -> NoReturn:
    """Raises for an attribute that a grouped collection does not have."""
    known = _GROUPED.get(name)
    if known == "":
        known = f"agg(name='{name}(x)')"
    hint = _use(known, name, own) or "it ends in agg, count, reduce, top or rank"
    raise MisuseError(f"a grouped collection has no '{name}'", hint=hint)


def unnamed(call: str, given: Any) -> NoReturn:
    """Raises for columns that were given to `call` without saying what they are to be called."""
    raise MisuseError(
        f"{call} takes columns by name, not {str(given)!r}", hint=f"write {_named(call, given)}"
    )


def _named(call: str, given: Any) -> str:
    """What was given in the form of others, in ours."""
    if isinstance(given, dict) and all(isinstance(each, str) for each in given.values()):
        named = [f"{column}={f'{how}({column})'!r}" for column, how in given.items()]
        return f"{call}({', '.join(named)})"
    alias = re.fullmatch(r"\s*(.+?)\s+as\s+(\w+)\s*", str(given), re.IGNORECASE | re.DOTALL)
    if alias:
        return f"{call}({alias[2]}={alias[1]!r})"
    return f"{call}(name={str(given)!r})"


def _use(known: str | None, name: str, own: Iterable[str]) -> str | None:
    if known:
        return f"use {known}" if not known.startswith(("head", "a ")) else known
    near = difflib.get_close_matches(name, [each for each in own if not each.startswith("_")], n=1)
    return f"did you mean '{near[0]}'?" if near else None
