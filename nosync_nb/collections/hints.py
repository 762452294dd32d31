"""Hints for names and arguments that users know from pandas and Spark.

If a user calls a method of those libraries that does not exist here, the error names the right
method. The same applies to an argument in the form of those libraries. The error is a
`MisuseError`: an AttributeError, as Python's attribute lookup requires, which is shown as one line
with the remedy.
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
_UPSERT = "upsert(rows) on an input with key=; for a join of pandas, join(other, on=[...])"
_FIRST_OF = "group_by('x').top(1, by='y') for one row of each x, distinct() for each row once"
_SETS = "group_by(...).agg(...) for each set of columns, and union_all(...) of the results"
_WINDOW = "window(partition_by='k', order_by='x').with_columns(n='row_number()')"
_SPREAD = "agg(a=\"count_if(x = 'a')\", b=\"count_if(x = 'b')\"), a column for each value"
_ROW = "map(function, schema='...') for a row of each row, flat_map(...) for any number"
_LONG = "select('id', \"explode(map('a', a, 'b', b)) AS (name, value)\")"
_COMPUTED = "with_columns(x='a * b')"
_CAST = "with_columns(x='cast(x as int)')"
_VIEW = "its name in Spark SQL: each stage has a temp view"
_PLACED = "the collection as it is: rows are distributed automatically"
_SPARK = "to_spark().{}(...)"
_NULLS = "with_columns(x=\"coalesce(x, 0)\") or filter('x is not null')"

_TYPO = 0.8
"""The similarity from 0 to 1 from which an unknown name is treated as a misspelled one."""

ELSEWHERE = {
    **dict.fromkeys(("groupBy", "groupby"), "group_by(...)"),
    **dict.fromkeys(("withColumn", "withColumns", "assign"), "with_columns(name='...')"),
    **dict.fromkeys(("dropDuplicates", "drop_duplicates", "duplicated"), _FIRST_OF),
    **dict.fromkeys(("merge", "mergeInto", "update"), _UPSERT),
    **dict.fromkeys(("cube", "rollup", "groupingSets"), _SETS),
    **dict.fromkeys(("pivot", "crosstab", "unstack", "pivot_table"), f"group_by(...).{_SPREAD}"),
    **dict.fromkeys(("melt", "unpivot", "stack"), _LONG),
    **dict.fromkeys(("rank", "shift", "rolling", "expanding", "cumsum", "cumprod"), _WINDOW),
    **dict.fromkeys(("cummax", "cummin", "ewm", "pct_change", "zipWithIndex"), _WINDOW),
    **dict.fromkeys(("mapInPandas", "mapInArrow", "mapPartitions", "flatMap", "rdd", "eval"), _ROW),
    **dict.fromkeys(("foreach", "foreachPartition", "items"), "rows()"),
    **dict.fromkeys(("astype", "to", "convert_dtypes", "round", "replace", "clip"), _CAST),
    **dict.fromkeys(("isna", "isnull", "notna", "notnull"), "filter('x is null')"),
    **dict.fromkeys(("na", "bfill", "ffill", "interpolate"), _NULLS),
    **dict.fromkeys(("repartition", "repartitionByRange", "coalesce", "unpersist"), _PLACED),
    **dict.fromkeys(("repartitionById", "sortWithinPartitions", "localCheckpoint"), _PLACED),
    **dict.fromkeys(("createTempView", "createOrReplaceTempView", "registerTempTable"), _VIEW),
    **dict.fromkeys(("createGlobalTempView", "createOrReplaceGlobalTempView"), _VIEW),
    **dict.fromkeys(("writeTo", "writeStream", "randomSplit", "sampleBy", "pandas_api"), _SPARK),
    **dict.fromkeys(("approxQuantile", "quantile"), "group_by().agg(p='percentile(x, 0.5)')"),
    **dict.fromkeys(("var", "skew", "kurtosis", "product", "mode", "any", "all"), _WHOLE),
    **dict.fromkeys(("to_sql", "to_dict", "to_numpy", "to_html", "to_markdown", "stat"), _PANDAS),
    **dict.fromkeys(("to_records", "to_string", "resample", "cov"), _PANDAS),
    **dict.fromkeys(("withColumnsRenamed", "toDF", "set_axis"), "rename({'old': 'new'})"),
    **dict.fromkeys(("isEmpty", "empty"), "count() == 0"),
    **dict.fromkeys(("unionByName",), "union_all(other.select('a', 'b'))"),
    **dict.fromkeys(("diff", "equals"), "changes(after=epoch), or session.compare(one, other)"),
    **dict.fromkeys(("add", "sub", "mul", "multiply", "div", "mod", "pow"), _COMPUTED),
    "unique": "distinct()",
    "keys": "schema.names",
    "selectExpr": "select(...)",
    "lateralJoin": "flat_map('explode(a) AS x'), or join(...)",
    "last": "head(n, by='x desc')",
    **dict.fromkeys(("limit", "orderBy", "order_by", "sort", "sort_values", "top"), _FIRST),
    **dict.fromkeys(("nlargest", "nsmallest", "iloc", "iat", "tail", "first", "take"), _FIRST),
    **dict.fromkeys(("collect", "iterrows", "itertuples", "toLocalIterator"), "rows()"),
    **dict.fromkeys(("describe", "summary", "hist", "plot", "corr"), _PANDAS),
    **dict.fromkeys(("to_csv", "to_excel", "to_json", "sample"), _PANDAS),
    **dict.fromkeys(("sum", "mean", "avg", "min", "max", "median", "std", "nunique"), _WHOLE),
    **dict.fromkeys(("agg", "aggregate"), "group_by(...).agg(name='sum(x)')"),
    **dict.fromkeys(("apply", "applymap", "transform"), "map(function, schema='...')"),
    **dict.fromkeys(("fillna", "dropna"), _NULLS),
    **dict.fromkeys(("query", "loc", "mask"), "filter('x > 1')"),
    **dict.fromkeys(("dtypes", "printSchema", "info"), "schema"),
    **dict.fromkeys(("cache", "persist", "checkpoint"), "a name in a %%dd cell: stages are stored"),
    **dict.fromkeys(("write", "to_parquet"), "to_arrow(), or to_spark().write"),
    "columns": "schema.names",
    "shape": "count() and schema.names",
    "style": "to_pandas().style",
    "size": "count()",
    "unionAll": "union_all(other)",
    "append": "union_all(other), or insert(rows) on an input",
    "exceptAll": "except_all(other)",
    "intersectAll": "except_all(one.except_all(other))",
    "intersect": "join(other, how='semi', on=[...])",
    "isin": "join(other, how='semi', on=[...])",
    "crossJoin": "join(other, how='cross'), or join(other, where='x < y') with a condition",
    "hvplot": "hvplot after you install it: pip install hvplot",
    "toPandas": "to_pandas()",
    "toArrow": "to_arrow()",
    "show": "head(n)",
    "withColumnRenamed": "rename({'old': 'new'})",
    "explode": "select('*', 'explode(a) AS x')",
    "value_counts": "group_by('x').count()",
}
"""Names from other libraries, with the text to write instead."""

_GROUPED = {
    **dict.fromkeys(("sum", "mean", "avg", "min", "max", "median", "std", "first"), ""),
    **dict.fromkeys(("apply", "applyInPandas", "transform"), "reduce(function, schema='...')"),
    **dict.fromkeys(("head", "nlargest", "nsmallest", "tail"), "top(n, by='x desc')"),
    **dict.fromkeys(("size", "value_counts"), "count()"),
    **dict.fromkeys(("applyInArrow", "cogroup"), "reduce(function, schema='...')"),
    "pivot": _SPREAD,
    "filter": "agg(...), then filter(...)",
}


def missing_attribute_error(name: str, columns: Iterable[str], own: Iterable[str]) -> NoReturn:
    """Raises MisuseError for a missing attribute of a collection, with a hint.

    Args:
        columns: the names of its columns.
        own: the names of its attributes.
    """
    known = ELSEWHERE.get(name, "").replace("{}", name)
    if name in columns:
        known = f"an SQL string, as in filter('{name} = ...') or select('{name}')"
    raise MisuseError(f"a collection has no '{name}'", hint=_hint_for(known, name, own))


def missing_grouped_attribute_error(name: str, own: Iterable[str]) -> NoReturn:
    """Raises MisuseError for a missing attribute of a grouped collection, with a hint."""
    known = _GROUPED.get(name)
    if known == "":
        known = f"agg(name='{name}(x)')"
    hint = _hint_for(known, name, own) or "call agg, count, reduce, top or rank on it"
    raise MisuseError(f"a grouped collection has no '{name}'", hint=hint)


def unnamed_column_error(call: str, given: Any) -> NoReturn:
    """Raises MisuseError for an argument of `call` that does not name the result column."""
    raise MisuseError(
        f"{call} takes columns by name, not {str(given)!r}", hint=f"write {_named(call, given)}"
    )


def _named(call: str, given: Any) -> str:
    """Returns a call with named columns for an argument in the form of other libraries."""
    if isinstance(given, dict) and all(isinstance(each, str) for each in given.values()):
        named = [f"{column}={f'{how}({column})'!r}" for column, how in given.items()]
        return f"{call}({', '.join(named)})"
    text = str(given)
    column = re.fullmatch(r"Column<'(.*)'>", text, re.DOTALL)  # the text of a PySpark column
    text = column[1] if column else text
    alias = re.fullmatch(r"\s*(.+?)\s+as\s+(\w+)\s*", text, re.IGNORECASE | re.DOTALL)
    if alias:
        return f"{call}({alias[2]}={alias[1]!r})"
    return f"{call}(name={text!r})"


def _hint_for(known: str | None, name: str, own: Iterable[str]) -> str | None:
    if known:
        return f"use {known}" if not known.startswith(("head", "a ")) else known
    names = [each for each in own if not each.startswith("_")]
    near = difflib.get_close_matches(name, names, n=1, cutoff=_TYPO)
    return f"did you mean '{near[0]}'?" if near else None
