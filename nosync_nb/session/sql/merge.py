"""Runs MERGE, with Spark's rules."""

from __future__ import annotations

from collections.abc import Sequence

from nosync_nb.collections.sql.grammar import TextSpan, words_of
from nosync_nb.collections.sql.statements import (
    Clause,
    MergeStatement,
    When,
    alias_of,
)
from nosync_nb.rows.array_ops import ones
from nosync_nb.rows.ddl import quoted
from nosync_nb.session.sql.assignment import StoreAssignmentError
from nosync_nb.session.sql.results import RowCounts
from nosync_nb.session.sql.statement_run import (
    NewValue,
    StatementRun,
    spans_of,
)
from nosync_nb.session.state.transactions import key_text
from nosync_nb.trace.batch import Updates, concat_updates

_RANDOM = frozenset(("RAND", "RANDOM", "RANDN", "RANDSTR", "UUID", "SHUFFLE"))


class MergeRun(StatementRun):
    """A MERGE that runs."""

    def merge(self, statement: MergeStatement) -> RowCounts:
        """Runs MERGE, with Spark's rules: for each row, the first clause that fits is applied."""
        self._all.reserve(self.stage)
        if self.stage.key is None:
            raise self._failed(
                statement.target.span,
                f"[UNSUPPORTED_MERGE] input '{self.stage.name}' has no key",
                "declare the input with key=, or write UPDATE, DELETE and INSERT",
            )
        self._check_clauses(statement)
        self._refuse_random(statement)
        if all(each.when != "not matched by source" for each in statement.clauses):
            self._narrow(statement.on, statement.source)
        removed: list[Updates] = []
        added: list[Updates] = []
        inserted = updated = deleted = 0
        for at, clause in enumerate(statement.clauses):
            source = self._clause_source(statement, at)
            if clause.action == "delete":
                found = self._targets(self._compose("SELECT ", self._qualifier, ".*", *source))
                found = Updates(found.columns, ones(len(found.diff)))  # two rows may delete one
                removed.append(found)
                deleted += len(found.diff)
            elif clause.action == "update":
                old, new = self._updated(self._values_of(clause, statement), source)
                removed.append(old)
                added.append(new)
                updated += int(old.diff.sum())
            else:
                new = self._inserted(self._values_of(clause, statement), source)
                added.append(new)
                inserted += int(new.diff.sum())
        self._check_cardinality(statement)  # behind the queries, whose names are checked so
        types = self.stage.schema.types
        if removed:
            self._add("remove", concat_updates(removed, types))
        if added:
            self._add("insert", concat_updates(added, types))
        return RowCounts(inserted, updated, deleted)

    def _check_clauses(self, statement: MergeStatement) -> None:
        """Raises if a clause can never be reached, as in Spark."""
        last: dict[When, Clause] = {}
        for clause in statement.clauses:
            before = last.get(clause.when)
            if before is not None and before.condition is None:
                raise self._failed(
                    before.span,
                    f"[NON_LAST_{clause.when.upper().replace(' ', '_')}_CLAUSE_OMIT_CONDITION] only"
                    f" the last clause WHEN {clause.when.upper()} may omit its condition",
                    "add AND condition, or move the clause to the end",
                )
            last[clause.when] = clause

    def _refuse_random(self, statement: MergeStatement) -> None:
        """Raises if a condition or the source may differ each time it is evaluated, as in Spark."""
        conditions = [each.condition for each in statement.clauses if each.condition is not None]
        for span in (statement.source, statement.on, *conditions):
            for word in words_of(self._text[span.start : span.stop]):
                if word.word in _RANDOM:
                    start = span.start + word.span.start
                    raise self._failed(
                        TextSpan(start, start + len(word.word)),
                        f"[INVALID_NON_DETERMINISTIC_EXPRESSIONS] {word.word.lower()}() may differ"
                        " each time that MERGE evaluates it",
                        "insert the source into an input first, and merge from there",
                    )

    def _check_cardinality(self, statement: MergeStatement) -> None:
        """Raises if one row of the input is matched by several rows of the source.

        As in Spark, this is no error if all matched rows are deleted without a condition.
        """
        matched = [each for each in statement.clauses if each.when == "matched"]
        if not matched:
            return
        if len(matched) == 1 and matched[0].action == "delete" and matched[0].condition is None:
            return
        text = self._compose(
            "SELECT ", self._qualifier, ".* FROM ", *self._target, " JOIN ", statement.source,
            " ON (", statement.on, ")",
        )  # fmt: skip
        found = self._targets(text)
        several = (found.diff > 1).nonzero()[0]  # a keyed input has each row once
        if len(several):
            row = int(several[0])
            raise self._failed(
                statement.on,
                "[MERGE_CARDINALITY_VIOLATION] the ON condition matches the row of key"
                f" {key_text(self.stage, found, row)} of input '{self.stage.name}' with"
                f" {int(found.diff[row])} rows of the source",
                "keep one source row of each key, for example with GROUP BY or QUALIFY",
            )

    def _clause_source(self, statement: MergeStatement, at: int) -> tuple[str | TextSpan, ...]:
        """Returns FROM and WHERE of the rows to which a clause applies."""
        clause, source = statement.clauses[at], statement.source
        on: tuple[str | TextSpan, ...] = (" ON (", statement.on, ")")
        if clause.when == "matched":
            tables = (" FROM ", *self._target, " JOIN ", source, *on)
        elif clause.when == "not matched":
            tables = (" FROM ", source, " LEFT ANTI JOIN ", *self._target, *on)
        else:
            tables = (" FROM ", *self._target, " LEFT ANTI JOIN ", source, *on)
        where: list[str | TextSpan] = []
        for earlier in statement.clauses[:at]:
            if earlier.when == clause.when and earlier.condition is not None:
                where += [" AND ", "NOT coalesce((", earlier.condition, "), false)"]
        if clause.condition is not None:
            where += [" AND ", "(", clause.condition, ")"]
        return (*tables, " WHERE ", *where[1:]) if where else tables

    def _values_of(self, clause: Clause, statement: MergeStatement) -> dict[int, NewValue]:
        """Returns the new values of a clause, by position of their column."""
        if clause.assignments:
            assigned = self._assigned(clause.assignments)
            return {
                column: NewValue(self._value(each.value, column), each.value)
                for column, each in assigned.items()
            }
        alias = alias_of(self._text, statement.source)
        if alias is None:
            raise self._failed(
                statement.source,
                "[PARSE_SYNTAX_ERROR] the source has no name, which `*` needs",
                "write USING (SELECT ...) AS source",
            )
        names = self._query(self._compose("SELECT * FROM ", statement.source)).names
        have = {name.lower() for name in names}
        missing = [name for name in self.stage.schema.names if name.lower() not in have]
        if missing:
            own = ", ".join(name for name in self.stage.schema.names if name not in missing)
            listed = f"INSERT ({own}) VALUES (...)"
            listed = "UPDATE SET column = value" if clause.action == "update" else listed
            raise self._failed(
                clause.span,
                f"[UNRESOLVED_COLUMN.WITH_SUGGESTION] the source has no column `{missing[0]}` of"
                f" input '{self.stage.name}', which `*` needs; its columns are {', '.join(names)}",
                f"list the columns: {listed}",
            )
        return {
            column: NewValue((alias, f".{quoted(name)}"), clause.span)
            for column, name in enumerate(self.stage.schema.names)
        }

    def _inserted(self, values: dict[int, NewValue], source: Sequence[str | TextSpan]) -> Updates:
        """Returns the rows that a clause inserts."""
        pieces: list[str | TextSpan] = ["SELECT "]
        places: list[int | None] = [None] * self._width
        for at, (column, value) in enumerate(values.items()):
            pieces += [*value.pieces, ", "]
            places[column] = at
        text = self._compose(*pieces[:-1], *source)
        try:
            return self._rows(text, self._query(text), places).values()
        except StoreAssignmentError as error:
            raise self._misfit(error, spans_of(values)) from None
