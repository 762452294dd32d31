"""Parses the statements of a SQL cell: their kinds, names and parts.

A statement is parsed down to its queries, conditions and expressions. Those stay parts of the text:
the statement's execution puts them into queries, which `query` parses. So a part cannot change its
meaning on the way, and an error in it has its position in the user's text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, NoReturn

from nosync_nb.collections.sql.grammar import SqlWord, TextSpan, failure, words_of


class Name(NamedTuple):
    """A name in a statement."""

    name: str
    span: TextSpan


@dataclass(frozen=True)
class SqlStatement:
    """One statement.

    Attributes:
        span: its part of the text.
    """

    span: TextSpan


@dataclass(frozen=True)
class SelectStatement(SqlStatement):
    """A query that is not stored."""


@dataclass(frozen=True)
class CreateView(SqlStatement):
    """CREATE VIEW.

    Attributes:
        columns: new names for the columns of the query.
    """

    name: Name
    columns: tuple[Name, ...]
    query: TextSpan
    replace: bool
    temporary: bool
    only_if_new: bool


@dataclass(frozen=True)
class DropView(SqlStatement):
    """DROP VIEW."""

    name: Name
    only_if_known: bool


@dataclass(frozen=True)
class RefreshTable(SqlStatement):
    """REFRESH TABLE.

    Attributes:
        names: the parts of the name: the table, perhaps after its catalog and database.
    """

    names: tuple[Name, ...]


@dataclass(frozen=True)
class Write(SqlStatement):
    """A statement that changes an input.

    Attributes:
        with_: the clause WITH before it.
        alias: the name of the input within the statement.
    """

    with_: TextSpan | None
    target: Name
    alias: Name | None


@dataclass(frozen=True)
class InsertStatement(Write):
    """INSERT INTO.

    Attributes:
        columns: the listed columns; empty without a list.
        rows: the expressions of each row, if the query is `VALUES (...), ...`.
    """

    columns: tuple[Name, ...]
    by_name: bool
    query: TextSpan
    rows: tuple[tuple[TextSpan, ...], ...]


@dataclass(frozen=True)
class DeleteStatement(Write):
    """DELETE FROM."""

    condition: TextSpan | None


class Assignment(NamedTuple):
    """A column and its new value.

    Attributes:
        table: the name before the column, as in `t.price`.
    """

    column: Name
    value: TextSpan
    table: Name | None = None


@dataclass(frozen=True)
class UpdateStatement(Write):
    """UPDATE."""

    assignments: tuple[Assignment, ...]
    condition: TextSpan | None


When = Literal["matched", "not matched", "not matched by source"]
Action = Literal["update", "delete", "insert"]


@dataclass(frozen=True)
class Clause:
    """One WHEN clause of MERGE.

    Attributes:
        assignments: the new values; empty for `UPDATE SET *` and `INSERT *`.
    """

    span: TextSpan
    when: When
    condition: TextSpan | None
    action: Action
    assignments: tuple[Assignment, ...]


@dataclass(frozen=True)
class MergeStatement(Write):
    """MERGE INTO."""

    source: TextSpan
    on: TextSpan
    clauses: tuple[Clause, ...]


@dataclass(frozen=True)
class Inspect(SqlStatement):
    """SHOW TABLES, SHOW VIEWS, DESCRIBE or EXPLAIN.

    Attributes:
        name: the table that DESCRIBE names.
        query: the query that EXPLAIN explains.
    """

    kind: Literal["tables", "views", "describe", "explain"]
    name: Name | None = None
    query: TextSpan | None = None


def parse_cell(text: str) -> list[SqlStatement]:
    """Parses statements that are separated by semicolons.

    Raises:
        SqlError: if a statement is not one of those above; names the line, the column, and what to
            write instead.
    """
    parsed: list[SqlStatement] = []
    words: list[SqlWord] = []
    for word in [*words_of(text), None]:
        if word is not None and word.word != ";":
            words.append(word)
        elif words:
            parsed.append(_HeadParser(text, words).statement())
            words = []
    return parsed


_KINDS: dict[type[SqlStatement], str] = {
    SelectStatement: "SELECT",
    CreateView: "CREATE VIEW",
    DropView: "DROP VIEW",
    RefreshTable: "REFRESH TABLE",
    InsertStatement: "INSERT",
    DeleteStatement: "DELETE",
    UpdateStatement: "UPDATE",
    MergeStatement: "MERGE",
}
_INSPECTIONS = {"tables": "SHOW", "views": "SHOW", "describe": "DESCRIBE", "explain": "EXPLAIN"}


def kind_of(statement: SqlStatement) -> str:
    """Returns the kind of a statement: SELECT, INSERT, CREATE VIEW, ..."""
    if isinstance(statement, Inspect):
        return _INSPECTIONS[statement.kind]
    return _KINDS[type(statement)]


def statement_kinds(text: str) -> list[str]:
    """Returns the kinds of the statements of a text.

    Raises:
        SqlError: as in `parse_cell`.
    """
    return [kind_of(each) for each in parse_cell(text)]


def alias_of(text: str, source: TextSpan) -> TextSpan | None:
    """Returns the name of a relation of a FROM clause: its alias, or that of the table."""
    words = words_of(text[source.start : source.stop])
    at, depth = len(words) - 1, 0
    if words[at].word == ")":  # perhaps names of columns behind the alias
        while at >= 0:
            depth += {")": 1, "(": -1}.get(words[at].word, 0)
            at -= 1
            if not depth:
                break
    if at < 0 or words[at].name is None:
        return None
    span = words[at].span
    return TextSpan(source.start + span.start, source.start + span.stop)


_QUERY = ("SELECT", "WITH", "FROM", "TABLE", "VALUES", "(")
_REMEDIES = {
    "CREATE TABLE": "write nosync.input('name', 'id bigint, ...') in a Python cell, or CREATE VIEW",
    "CREATE": "write CREATE VIEW name AS SELECT ...",
    "DROP TABLE": "write `%dd drop NAME`, or session.drop('NAME')",
    "DROP": "write DROP VIEW name",
    "ALTER": "write `%dd rename OLD NEW`, or CREATE OR REPLACE VIEW name AS SELECT ...",
    "TRUNCATE": "write DELETE FROM name",
    "SET": "set Spark's options with `%config NoSync.spark_conf`, or in nosync.open(spark=...)",
    "RESET": "set Spark's options with `%config NoSync.spark_conf`",
    "USE": "name the log with `%dd open PATH`, or the branch with `%dd switch NAME`",
    "CACHE": "write CREATE VIEW name AS SELECT ...: a stage is stored and maintained",
    "UNCACHE": "write DROP VIEW name",
    "REFRESH": "write REFRESH TABLE name for a table of Spark; stages follow their inputs",
    "ANALYZE": "nothing has to be analyzed: NoSync counts rows itself",
    "LOAD": "write name.insert(spark.read...) in a Python cell",
    "BEGIN": "write the statements one after another: the cell is one transaction",
    "COMMIT": "nothing has to be committed: the cell is one transaction",
    "ROLLBACK": "write `%dd rewind EPOCH`; a cell that fails changes nothing",
    "SHOW": "write SHOW TABLES, SHOW VIEWS, or `%dd status`",
    "INSERT OVERWRITE": "write DELETE FROM name; INSERT INTO name ...",
}


class _HeadParser:
    """Parses the words of one statement."""

    def __init__(self, text: str, words: Sequence[SqlWord]) -> None:
        self._text, self._words, self._at = text, words, 0
        self.span = TextSpan(words[0].span.start, words[-1].span.stop)

    # -- words ---------------------------------------------------------------------------------

    @property
    def _word(self) -> str:
        """The current word; empty for a quoted name, a string, and the end."""
        return self._words[self._at].word if self._at < len(self._words) else ""

    @property
    def _here(self) -> TextSpan:
        """The span of the current word; at the end, that behind the last one."""
        if self._at < len(self._words):
            return self._words[self._at].span
        return TextSpan(self.span.stop, self.span.stop + 1)

    def _fail(self, what: str, hint: str, span: TextSpan | None = None) -> NoReturn:
        raise failure(self._text, span or self._here, f"[PARSE_SYNTAX_ERROR] {what}", hint)

    def _took(self, *words: str) -> bool:
        """Skips some words if the next ones are these."""
        ahead = [each.word for each in self._words[self._at : self._at + len(words)]]
        if ahead != list(words):
            return False
        self._at += len(words)
        return True

    def _take(self, *words: str, hint: str) -> None:
        if not self._took(*words):
            self._fail(f"expected {' '.join(words)} here", hint)

    def _rest(self) -> TextSpan:
        """Returns all that is left of the statement."""
        if self._at == len(self._words):
            self._fail("the statement ends here", "write SELECT ...")
        return TextSpan(self._here.start, self.span.stop)

    def _done(self) -> None:
        if self._at < len(self._words):
            self._fail("the statement should end here", "separate statements by a semicolon")

    def _name(self, what: str, *, reserved: Collection[str] = ()) -> Name:
        """Takes a name that has one part."""
        word = self._words[self._at] if self._at < len(self._words) else None
        if word is None or word.name is None or word.word in reserved:
            self._fail(f"expected {what} here", "write a name; quote others with backticks")
        self._at += 1
        if self._word == ".":
            self._fail(
                f"{what} has one part: there are no catalogs and databases",
                "leave out the part before the dot",
                TextSpan(word.span.start, self._here.stop),
            )
        return Name(word.name, word.span)

    def _names(self) -> tuple[Name, ...]:
        """Takes a list of names in parentheses, each perhaps with a comment."""
        names = []
        self._take("(", hint="write (a, b)")
        while True:
            names.append(self._name("a column"))
            if self._took("COMMENT"):
                self._at += 1
            if not self._took(","):
                break
        self._take(")", hint="close the list of columns")
        return tuple(names)

    def _part(self, ends: Callable[[str], bool], what: str) -> TextSpan:
        """Takes an expression or a query up to a word outside of parentheses and CASE."""
        first, depth, cases = self._at, 0, 0
        while self._at < len(self._words):
            word = self._word
            behind_dot = self._at > 0 and self._words[self._at - 1].word == "."
            if depth == cases == 0 and self._at > first and not behind_dot and ends(word):
                break
            if depth == cases == 0 and self._at == first and word in (",", ")"):
                break
            if word in ("(", "["):
                depth += 1
            elif word in (")", "]"):
                depth -= 1
                if depth < 0:
                    if ends(word):
                        break
                    self._fail(f"{word} closes nothing", "remove it, or open it before")
            elif word == "CASE" and not behind_dot:
                cases += 1
            elif word == "END" and cases and not behind_dot:
                cases -= 1
            self._at += 1
        if depth > 0:
            self._fail("a parenthesis is not closed", "close it", self._words[first].span)
        if self._at == first:
            self._fail(f"expected {what} here", f"write {what}")
        return TextSpan(self._words[first].span.start, self._words[self._at - 1].span.stop)

    # -- statements ----------------------------------------------------------------------------

    def statement(self) -> SqlStatement:
        """Returns the statement."""
        with_ = None
        if self._word == "WITH":
            with_ = self._with()
        match self._word:
            case "INSERT" if self._took("INSERT", "INTO"):
                return self._insert(with_)
            case "DELETE" if self._took("DELETE", "FROM"):
                return self._delete(with_)
            case "UPDATE":
                self._at += 1
                return self._update(with_)
            case "MERGE" if self._took("MERGE", "INTO"):
                return self._merge(with_)
        if with_ is not None or self._word in _QUERY:
            return SelectStatement(self.span)
        if self._took("CREATE"):
            return self._create()
        if self._took("DROP", "VIEW"):
            known = self._took("IF", "EXISTS")
            dropped = DropView(self.span, self._name("a view"), known)
            self._done()
            return dropped
        if self._took("REFRESH", "TABLE"):
            return self._refresh()
        return self._inspect()

    def _refresh(self) -> RefreshTable:
        names = []
        while True:
            word = self._words[self._at] if self._at < len(self._words) else None
            if word is None or word.name is None:
                self._fail("expected a table here", "write REFRESH TABLE name")
            self._at += 1
            names.append(Name(word.name, word.span))
            if not self._took("."):
                break
        self._done()
        return RefreshTable(self.span, tuple(names))

    def _with(self) -> TextSpan | None:
        """Takes WITH and its queries; returns None if a SELECT follows."""
        start = self._at
        self._at += 1
        writes = ("INSERT", "DELETE", "UPDATE", "MERGE")
        part = self._part(lambda word: word in (*writes, "SELECT", "FROM", "VALUES"), "a query")
        if self._word in writes:
            return TextSpan(self._words[start].span.start, part.stop)
        self._at = start
        return None

    def _refuse(self) -> NoReturn:
        first = " ".join(each.word for each in self._words[:2])
        first = first if first in _REMEDIES else self._words[0].word
        known = ", ".join(("SELECT", "CREATE VIEW", "DROP VIEW", "INSERT", "DELETE", "UPDATE"))
        hint = _REMEDIES.get(first, f"the statements are {known}, MERGE, SHOW, DESCRIBE, EXPLAIN")
        span = self._words[0].span
        raise failure(
            self._text,
            span,
            f"[UNSUPPORTED_STATEMENT] {first or 'this'} is not a statement of NoSync",
            hint,
        )

    def _create(self) -> CreateView:
        replace = self._took("OR", "REPLACE")
        self._took("GLOBAL")
        temporary = self._took("TEMPORARY") or self._took("TEMP")
        if not self._took("VIEW"):
            self._refuse()
        new = self._took("IF", "NOT", "EXISTS")
        name = self._name("a view")
        columns = self._names() if self._word == "(" else ()
        if self._took("COMMENT"):
            self._at += 1
        self._take("AS", hint="write CREATE VIEW name AS SELECT ...")
        return CreateView(self.span, name, columns, self._rest(), replace, temporary, new)

    def _target(self, *, reserved: Collection[str]) -> tuple[Name, Name | None]:
        """Takes the name of an input, and perhaps an alias."""
        name = self._name("an input")
        if self._took("AS"):
            return name, self._name("an alias")
        word = self._words[self._at] if self._at < len(self._words) else None
        if word is not None and word.name is not None and word.word not in reserved:
            return name, self._name("an alias")
        return name, None

    def _insert(self, with_: TextSpan | None) -> InsertStatement:
        self._took("TABLE")
        name = self._name("an input")
        columns: tuple[Name, ...] = ()
        by_name = self._took("BY", "NAME")
        if self._word == "PARTITION":
            self._fail("inputs have no partitions", "leave the clause out")
        behind = self._words[self._at + 1].word if self._at + 1 < len(self._words) else ""
        if self._word == "(" and behind not in _QUERY:
            columns = self._names()
        if self._word not in _QUERY:
            self._fail("expected VALUES or SELECT here", "write INSERT INTO name VALUES (...), ...")
        query = self._rest()
        rows = self._rows() if self._word == "VALUES" else ()
        return InsertStatement(self.span, with_, name, None, columns, by_name, query, rows)

    def _rows(self) -> tuple[tuple[TextSpan, ...], ...]:
        """Takes the rows of VALUES; returns none if something follows them, such as an alias."""
        self._at += 1
        rows: list[tuple[TextSpan, ...]] = []
        while True:
            if self._took("("):
                values = [self._value(")")]
                while self._took(","):
                    values.append(self._value(")"))
                self._take(")", hint="close the row")
                rows.append(tuple(values))
            else:
                rows.append((self._value(),))
            if not self._took(","):
                return tuple(rows) if self._at == len(self._words) else ()

    def _value(self, *ends: str) -> TextSpan:
        return self._part(lambda word: word == "," or word in ends, "a value")

    def _delete(self, with_: TextSpan | None) -> DeleteStatement:
        name, alias = self._target(reserved=("WHERE",))
        return DeleteStatement(self.span, with_, name, alias, self._condition())

    def _condition(self) -> TextSpan | None:
        """Takes WHERE and all that is left; None without it."""
        if not self._took("WHERE"):
            self._done()
            return None
        part = self._part(lambda _: False, "a condition")
        self._done()
        return part

    def _update(self, with_: TextSpan | None) -> UpdateStatement:
        name, alias = self._target(reserved=("SET",))
        self._take("SET", hint="write UPDATE name SET column = value WHERE ...")
        assignments = self._assignments("WHERE")
        return UpdateStatement(self.span, with_, name, alias, assignments, self._condition())

    def _assignments(self, *ends: str) -> tuple[Assignment, ...]:
        """Takes `column = value, ...`; the column may have the name of the table before it."""
        assigned = []
        while True:
            table = None
            if self._at + 1 < len(self._words) and self._words[self._at + 1].word == ".":
                before = self._words[self._at]
                table = Name(before.name or "", before.span)
                self._at += 2
            column = self._name("a column")
            if not self._took("="):
                self._take("==", hint="write SET column = value")
            value = self._part(lambda word: word == "," or word in ends, "a value")
            assigned.append(Assignment(column, value, table))
            if not self._took(","):
                return tuple(assigned)

    def _merge(self, with_: TextSpan | None) -> MergeStatement:
        name, alias = self._target(reserved=("USING",))
        self._take("USING", hint="write MERGE INTO name USING source ON condition WHEN ...")
        source = self._part(lambda word: word == "ON", "a source")
        self._take("ON", hint="write ON condition behind the source")
        on = self._part(lambda word: word == "WHEN", "a condition")
        clauses = []
        while self._word == "WHEN":
            clauses.append(self._clause())
        self._done()
        if not clauses:
            self._fail("MERGE has no WHEN clause", "write WHEN MATCHED THEN UPDATE SET *")
        return MergeStatement(self.span, with_, name, alias, source, on, tuple(clauses))

    def _clause(self) -> Clause:
        start = self._here.start
        self._at += 1
        when: When = "matched"
        if self._took("NOT", "MATCHED"):
            when = "not matched"
            if self._took("BY", "SOURCE"):
                when = "not matched by source"
            else:
                self._took("BY", "TARGET")
        else:
            self._take("MATCHED", hint="write WHEN MATCHED or WHEN NOT MATCHED")
        condition = None
        if self._took("AND"):
            condition = self._part(lambda word: word == "THEN", "a condition")
        self._take("THEN", hint="write THEN UPDATE SET ..., THEN DELETE, or THEN INSERT ...")
        return self._action(start, when, condition)

    def _action(self, start: int, when: When, condition: TextSpan | None) -> Clause:
        place, action = self._here, self._word.lower()
        fits = ("insert",) if when == "not matched" else ("update", "delete")
        if action not in fits:
            self._fail(
                f"WHEN {when.upper()} has no action {self._word or 'here'}",
                f"write THEN {' or THEN '.join(fits).upper()}",
            )
        self._at += 1
        assigned: tuple[Assignment, ...] = ()
        star = False
        if action == "update":
            self._take("SET", hint="write UPDATE SET column = value, or UPDATE SET *")
            star = self._took("*")
            assigned = () if star else self._assignments("WHEN")
        elif action == "insert":
            star = self._took("*")
            assigned = () if star else self._inserted()
        if star and when == "not matched by source":
            self._fail(
                "UPDATE SET * has no source row here", "write UPDATE SET column = value", place
            )
        span = TextSpan(start, self._words[self._at - 1].span.stop)
        if action == "update":
            return Clause(span, when, condition, "update", assigned)
        return Clause(span, when, condition, "delete" if action == "delete" else "insert", assigned)

    def _inserted(self) -> tuple[Assignment, ...]:
        """Takes `(column, ...) VALUES (value, ...)`."""
        place = self._here
        columns = self._names()
        self._take("VALUES", hint="write INSERT (column, ...) VALUES (value, ...), or INSERT *")
        self._take("(", hint="write VALUES (value, ...)")
        values = [self._value(")")]
        while self._took(","):
            values.append(self._value(")"))
        self._take(")", hint="close the values")
        if len(values) != len(columns):
            self._fail(
                f"{len(columns)} columns have {len(values)} values",
                "write one value for each column",
                place,
            )
        return tuple(map(Assignment, columns, values))

    def _inspect(self) -> Inspect:
        if self._took("SHOW"):
            for kind in ("tables", "views"):
                if self._took(kind.upper()):
                    self._done()
                    return Inspect(self.span, "tables" if kind == "tables" else "views")
        elif self._took("DESCRIBE") or self._took("DESC"):
            _ = self._took("TABLE") or self._took("EXTENDED")
            name = self._name("a table")
            self._done()
            return Inspect(self.span, "describe", name)
        elif self._took("EXPLAIN"):
            if self._word in _QUERY:
                return Inspect(self.span, "explain", query=self._rest())
            if self._word:
                self._fail("EXPLAIN has no such form", "write EXPLAIN SELECT ...")
        self._at = 0
        return self._refuse()
