"""Completes SQL in `%%dd sql` cells and `%dd sql` lines: tables, columns, functions, keywords.

The text is incomplete while it is typed, so it is not parsed: the tables of the statement are found
by the keywords before them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

_CELL = re.compile(r"\s*%%dd\s+sql\b[^\n]*\n", re.IGNORECASE)
_LINE = re.compile(r"^\s*(?:\w+\s*=\s*)?%dd\s+sql\s", re.IGNORECASE)
_FRAGMENT = re.compile(r"((?:`[^`\n]*`|\w+)\.)?(`[^`\n]*|\w*)$")
_STRINGS = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
_CLOSED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|--[^\n]*\n|/\*.*?\*/", re.DOTALL)
_TABLE = r"(`[^`\n]+`|[^\W\d]\w*)"
_AFTER_WORD = re.compile(
    rf"\b(?:FROM|JOIN|INTO|UPDATE|USING)\s+(?:TABLE\s+)?{_TABLE}(?:\s+(?:AS\s+)?{_TABLE})?",
    re.IGNORECASE,
)
_MORE = re.compile(rf"\s*,\s*{_TABLE}(?:\s+(?:AS\s+)?{_TABLE})?", re.IGNORECASE)
_TABLE_EXPECTED = re.compile(
    r"\b(?:FROM|JOIN|INTO|UPDATE|USING|VIEW|DESCRIBE|DESC|TABLE|EXISTS)\s+$", re.IGNORECASE
)
_WITH_NAME = re.compile(
    rf"(?:\bWITH\s+(?:RECURSIVE\s+)?|\)\s*,\s*){_TABLE}\s+AS\s*\(", re.IGNORECASE
)

KEYWORDS = (
    *("SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "OFFSET", "QUALIFY"),
    *("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "CROSS JOIN", "LEFT SEMI JOIN"),
    *("LEFT ANTI JOIN", "ON", "USING", "UNION", "UNION ALL", "INTERSECT", "EXCEPT", "WITH", "AS"),
    *("AND", "OR", "NOT", "IN", "EXISTS", "BETWEEN", "LIKE", "IS NULL", "IS NOT NULL", "CASE"),
    *("WHEN", "THEN", "ELSE", "END", "DISTINCT", "OVER", "PARTITION BY", "ROWS", "RANGE", "ASC"),
    *("DESC", "NULLS FIRST", "NULLS LAST", "INSERT INTO", "VALUES", "DELETE FROM", "UPDATE"),
    *("SET", "MERGE INTO", "MATCHED", "CREATE VIEW", "CREATE OR REPLACE VIEW", "DROP VIEW"),
    *("REFRESH TABLE", "VERSION AS OF", "TIMESTAMP AS OF"),
    *("CREATE TEMPORARY VIEW", "SHOW TABLES", "SHOW VIEWS", "DESCRIBE", "EXPLAIN", "LATERAL"),
    *("NULL", "TRUE", "FALSE", "INTERVAL", "ROLLUP", "CUBE", "GROUPING SETS", "FILTER", "CAST"),
)
_CLAUSES = frozenset(
    word for phrase in (*KEYWORDS, "CROSS", "FULL", "RIGHT", "INNER", "NATURAL", "SEMI", "ANTI")
    for word in phrase.split()
)  # fmt: skip


class Completion(NamedTuple):
    """One completion.

    Attributes:
        kind: table, column, function or keyword.
    """

    text: str
    kind: str


class Completions(NamedTuple):
    """The completions at a cursor.

    Attributes:
        fragment: the text before the cursor that they replace.
    """

    fragment: str
    items: list[Completion]


def sql_before_cursor(text: str, cursor: int) -> tuple[str, str] | None:
    """Returns the SQL before and behind a cursor in a cell; None if there is no SQL."""
    cell = _CELL.match(text)
    if cell is not None:
        return None if cursor < cell.end() else (text[cell.end() : cursor], text[cursor:])
    begin = text.rfind("\n", 0, cursor) + 1
    line = _LINE.match(text[begin:cursor])
    if line is None:
        return None
    end = text.find("\n", cursor)
    return text[begin + line.end() : cursor], text[cursor : end if end >= 0 else len(text)]


def complete_sql(
    before: str, after: str, tables: Mapping[str, Sequence[str]], functions: Sequence[str]
) -> Completions:
    """Returns the completions of SQL.

    Args:
        before, after: the SQL before and after the cursor.
        tables: the columns of inputs, stages and views.
    """
    found = _FRAGMENT.search(before)
    assert found is not None
    qualifier, fragment = found[1], found[2]
    head = _blank(before[: found.start()])
    if _in_string(before):
        return Completions(fragment, [])
    statement = f"{head.rpartition(';')[2]} _{_blank(after).partition(';')[0]}"
    scope = dict(_scope(statement, tables))
    if qualifier is not None:
        columns = scope.get(qualifier[:-1].strip("`").lower(), ())
        items = [Completion(_written(name), "column") for name in columns]
        return Completions(fragment, _matching(items, fragment))
    named = [Completion(_written(name), "table") for name in tables]
    named += [Completion(match[1], "table") for match in _WITH_NAME.finditer(statement)]
    if _TABLE_EXPECTED.search(head):
        return Completions(fragment, _matching(named, fragment))
    items = [
        Completion(_written(name), "column")
        for columns in dict.fromkeys(map(tuple, scope.values()))
        for name in columns
    ]
    items += [Completion(name, "table") for name in scope]
    if fragment:
        items += named
        items += [Completion(name, "function") for name in functions]
    lower = fragment.islower()
    items += [Completion(word.lower() if lower else word, "keyword") for word in KEYWORDS]
    return Completions(fragment, _matching(items, fragment))


def _matching(items: Sequence[Completion], fragment: str) -> list[Completion]:
    """Returns the completions that begin with a fragment, in any case, each text once."""
    start = fragment.strip("`").lower()
    kept: dict[str, Completion] = {}
    for each in items:
        if each.text.strip("`").lower().startswith(start):
            kept.setdefault(each.text.lower(), each)
    return list(kept.values())


def _scope(
    statement: str, tables: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, Sequence[str]]]:
    """Yields the columns of the tables of a statement, by table name and by alias."""
    known = {name.lower(): columns for name, columns in tables.items()}
    for first in _AFTER_WORD.finditer(statement):
        match: re.Match[str] | None = first
        while match is not None:
            name = match[1].strip("`").lower()
            alias = (match[2] or "").strip("`")
            if alias.upper() in _CLAUSES or alias == "_":
                alias = ""
            if name in known:
                yield name, known[name]
                if alias:
                    yield alias.lower(), known[name]
            end = match.end(2) if alias else match.end(1)
            match = _MORE.match(statement, end)  # the tables of a list: FROM a, b


def _blank(text: str) -> str:
    """Replaces strings and comments by spaces."""
    return _STRINGS.sub(lambda match: " " * len(match[0]), text)


def _in_string(text: str) -> bool:
    """Returns True if a text ends within a string or a comment."""
    rest = _CLOSED.sub("", text)
    return "'" in rest or '"' in rest or "--" in rest or "/*" in rest


def _written(name: str) -> str:
    """Returns a name as SQL: in backticks if it is not a plain one."""
    plain = re.fullmatch(r"[^\W\d]\w*", name) is not None
    return name if plain else "`" + name.replace("`", "``") + "`"
