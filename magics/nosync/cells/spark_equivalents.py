"""Suggests a NoSync definition that is equivalent to Spark code in a cell.

Two uses of Spark do not define a stage. A function of PySpark raises if no Spark session runs, and
`spark.sql(...)` returns a DataFrame of the current rows, which later epochs do not change.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nosync_nb.errors import NosyncError

_GENERAL = "select, filter, join and group_by(...).agg(...) of the collections that it reads"
_WRAPPERS = ("wrapped", "wrapper", "get_active_spark_context")


def without_spark(error: BaseException) -> NosyncError | None:
    """Returns a NoSync error if a PySpark function failed because no Spark session runs; else None.

    For some functions PySpark raises only an `AssertionError` without a message.
    """
    frames = [frame for frame in trace_steps(error.__traceback__) if _module(frame) == "pyspark"]
    is_missing = "SESSION_OR_CONTEXT_NOT_EXISTS" in str(error)
    if not frames or not (is_missing or (type(error) is AssertionError and not error.args)):
        return None
    if _module(list(trace_steps(error.__traceback__))[-1]) != "pyspark":
        return None
    from nosync_nb.errors import ExpressionError

    names = [frame.tb_frame.f_code.co_name for frame in frames]
    called = next((name for name in names if name not in _WRAPPERS), "")
    what = f"PySpark's {called}()" if called and not called.startswith("_") else "PySpark"
    return ExpressionError(
        f"{what} needs a Spark session, and none runs",
        hint="write expressions as text, which need no Spark: filter('x > 1'), select('upper(s)"
        " AS s'), group_by('k').agg(total='sum(x)')",
    )


def trace_steps(trace: TracebackType | None) -> Iterator[TracebackType]:
    """Yields the steps of a traceback, outermost first."""
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _module(step: TracebackType) -> str:
    return str(step.tb_frame.f_globals.get("__name__", "")).partition(".")[0]


def frame_note(name: str, source: str, written: Callable[[str], str | None]) -> str:
    """Returns a note that a variable is a DataFrame, and how to define a stage instead.

    Args:
        source: the body of the cell.
        written: returns the Python expression for the input or stage of a name; None for any
            other name.
    """
    sql = _sql_of(name, source)
    definition = None if sql is None else _definition(sql, written)
    way = f"{name} = {definition}" if definition else f"define it with {_GENERAL}"
    return (
        f"NoSync: {name} is a Spark DataFrame with the current rows, not a stage: later epochs do"
        f" not change it. To keep it up to date: {way}"
    )


def _sql_of(name: str, source: str) -> str | None:
    """Returns the query of the last `name = spark.sql("...")` in a source; None without one."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    found = None
    for node in tree.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        call = node.value
        named = any(isinstance(each, ast.Name) and each.id == name for each in node.targets)
        if named and isinstance(call.func, ast.Attribute) and call.func.attr == "sql":
            text = call.args[0] if len(call.args) == 1 and not call.keywords else None
            found = text.value if isinstance(text, ast.Constant) else None
    return found if isinstance(found, str) else None


_CLAUSES = (
    "expressions",
    "from_",
    "from",
    "where",
    "group",
    "having",
    "order",
    "limit",
    "distinct",
)


def _definition(sql: str, written: Callable[[str], str | None]) -> str | None:
    """Translates a query of one table into operators; returns None for all other queries."""
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        tree = sqlglot.parse_one(sql, dialect="spark")
    except SqlglotError:
        return None
    used = {key for key, value in tree.args.items() if value and key != "kind"}
    source = tree.args.get("from_") or tree.args.get("from")
    table = source.this if source is not None else None
    if not isinstance(tree, exp.Select) or used - set(_CLAUSES) or not isinstance(table, exp.Table):
        return None
    if list(tree.find_all(exp.Subquery, exp.Window, exp.Lateral)) or table.args.get("joins"):
        return None
    start = written(table.name)
    if start is None or table.db:
        return None
    for column in tree.find_all(exp.Column):
        if column.table and column.table.lower() not in (table.name.lower(), table.alias.lower()):
            return None  # the qualifier is a struct, not the table
        column.set("table", None)
    return _Operators(tree, start).text()


class _Operators:
    """Builds the Python text of the operators that are equivalent to one query."""

    def __init__(self, tree: Any, start: str) -> None:
        self.tree = tree
        self.code = start

    def text(self) -> str | None:
        from sqlglot import exp

        args = self.tree.args
        if args.get("where"):
            self.add("filter", _sql(args["where"].this))
        grouped = args.get("group") or any(e.find(exp.AggFunc) for e in self.tree.expressions)
        if not (self.aggregated() if grouped else self.selected()):
            return None
        if args.get("distinct"):
            self.code += ".distinct()"
        if args.get("limit"):
            order = args.get("order")
            by = ", ".join(_sql(each) for each in order.expressions) if order else ""
            count = args["limit"].expression
            if not count.is_int:
                return None
            self.code += f".group_by().top({count}{f', by={by!r}' if by else ''})"
        return self.code

    def add(self, operator: str, *texts: str) -> None:
        self.code += f".{operator}({', '.join(map(repr, texts))})"

    def selected(self) -> bool:
        from sqlglot import exp

        listed = self.tree.expressions
        if self.tree.args.get("having"):
            return False
        if any(not isinstance(e, exp.Alias | exp.Column | exp.Star) for e in listed):
            return False  # an expression without a name
        if [type(each) for each in listed] != [exp.Star]:
            self.add("select", *map(_sql, listed))
        return True

    def aggregated(self) -> bool:
        from sqlglot import exp

        group, having = self.tree.args.get("group"), self.tree.args.get("having")
        keys = [] if group is None else list(group.expressions)
        if group is not None and any(v for k, v in group.args.items() if k != "expressions" and v):
            return False  # grouping sets
        aliases = {e.this: e.alias for e in self.tree.expressions if isinstance(e, exp.Alias)}
        written, order, named = [], [], {}
        for key in keys:
            alias = aliases.get(key)
            if not isinstance(key, exp.Column) and alias is None:
                return False  # a position, or an expression without a name
            written.append(_sql(key) if alias is None else f"{_sql(key)} AS {alias}")
        for each in self.tree.expressions:
            inner = each.this if isinstance(each, exp.Alias) else each
            name = each.alias_or_name
            if inner not in keys:
                name = each.alias or inner.key
                if name in named or not name.isidentifier() or not inner.find(exp.AggFunc):
                    return False
                named[name] = inner
            order.append(name)
        condition = None if having is None else having.this.transform(
            lambda node: next((exp.column(n) for n, e in named.items() if e == node), node)
        )  # fmt: skip
        if not named or (condition is not None and condition.find(exp.AggFunc)):
            return False
        self.add("group_by", *written)
        calls = ", ".join(f"{name}={_sql(each)!r}" for name, each in named.items())
        self.code += f".agg({calls})"
        if condition is not None:
            self.add("filter", _sql(condition))
        names = [aliases.get(key) or key.name for key in keys]
        if order != [*names, *named]:
            self.add("select", *order)
        return True


def _sql(tree: Any) -> str:
    return str(tree.sql(dialect="spark"))


def frames_among(names: Sequence[str], values: dict[str, Any]) -> list[str]:
    """Returns the names, except private ones, that are bound to Spark DataFrames."""
    kinds = {name: type(values.get(name)) for name in names if not name.startswith("_")}
    return [
        name
        for name, kind in kinds.items()
        if kind.__module__.startswith("pyspark.sql") and kind.__name__ == "DataFrame"
    ]
