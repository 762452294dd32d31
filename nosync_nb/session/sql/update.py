"""Runs DELETE and UPDATE."""

from __future__ import annotations

from nosync_nb.collections.sql.grammar import TextSpan
from nosync_nb.collections.sql.statements import (
    DeleteStatement,
    UpdateStatement,
)
from nosync_nb.session.sql.results import RowCounts
from nosync_nb.session.sql.statement_run import (
    NewValue,
    StatementRun,
)


class ChangeRun(StatementRun):
    """A DELETE or an UPDATE that runs."""

    def delete(self, statement: DeleteStatement) -> RowCounts:
        """Runs DELETE."""
        self._all.reserve(self.stage)
        self._narrow(statement.condition)
        rows = self._where(statement.condition)
        found = self._targets(self._compose("SELECT ", self._qualifier, ".*", *rows))
        return RowCounts(deleted=self._add("remove", found))

    def update(self, statement: UpdateStatement) -> RowCounts:
        """Runs UPDATE."""
        self._all.reserve(self.stage)
        self._narrow(statement.condition)
        assigned = {
            column: NewValue(self._value(each.value, column), each.value)
            for column, each in self._assigned(statement.assignments).items()
        }
        old, new = self._updated(assigned, self._where(statement.condition))
        count = int(old.diff.sum())
        self._add("remove", old)
        self._add("insert", new)
        return RowCounts(updated=count)

    def _where(self, condition: TextSpan | None) -> tuple[str | TextSpan, ...]:
        """Returns the FROM and WHERE clauses that select rows of the input by a condition."""
        where = () if condition is None else (" WHERE (", condition, ")")
        return (" FROM ", *self._target, *where)
