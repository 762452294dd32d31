"""Refuses what the parser knows from other dialects, and Spark does not have.

The parser accepts clauses of many databases. A clause that is not Spark's would be ignored, and the
result would be another one than the text says.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlglot import exp


class ForeignClause(NamedTuple):
    """A clause of another dialect: its tree, the reason, and what Spark has instead."""

    tree: exp.Expr
    what: str
    hint: str


def foreign_clause(tree: exp.Expr) -> ForeignClause | None:
    """Returns the first clause of a statement that Spark does not have.

    Cost: in proportion to the statement.
    """
    waiting = [tree]
    while waiting:
        each = waiting.pop()
        found = _refusal(each)
        if found is not None:
            return found
        waiting += list(each.iter_expressions())
    return None


def _refusal(tree: Any) -> ForeignClause | None:
    if isinstance(tree, exp.Fetch):
        return ForeignClause(tree, "FETCH is not a clause of Spark SQL", "write LIMIT n")
    if isinstance(tree, exp.Limit) and _has_options(tree):
        return ForeignClause(tree, "LIMIT takes a number of rows alone", "write LIMIT n")
    if isinstance(tree, exp.Join) and tree.method in ("ASOF", "POSITIONAL"):
        return ForeignClause(
            tree,
            f"a join by {tree.method} is not part of Spark SQL",
            "in Python write asof_join(...), or join on a range: ON a.t BETWEEN b.start AND b.stop",
        )
    if isinstance(tree, exp.Table) and isinstance(_alias(tree), exp.Parameter):
        name = f"{tree.name}@{_alias(tree).name}"
        return ForeignClause(
            tree, f"{name} is not a name without quotes", f"write it in backticks: `{name}`"
        )
    return None


def _has_options(limit: exp.Limit) -> bool:
    options = limit.args.get("limit_options")
    return options is not None and any(options.args.values())


def _alias(table: exp.Table) -> Any:
    alias = table.args.get("alias")
    return alias.this if isinstance(alias, exp.TableAlias) else None
