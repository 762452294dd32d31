"""The results of SQL statements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from nosync_nb import rows
from nosync_nb.collections.collection import Collection
from nosync_nb.collections.sql.query import OrderPosition
from nosync_nb.operators.user_functions import named_tuples
from nosync_nb.rows import Schema
from nosync_nb.rows.order import ordered
from nosync_nb.session.state.report import StageReport
from nosync_nb.trace.batch import Batch


class RowCounts(NamedTuple):
    """The rows that a statement has changed."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0


@dataclass(frozen=True)
class StatementResult:
    """What one statement of `Session.execute` did.

    Attributes:
        statement: its kind: SELECT, CREATE VIEW, DROP VIEW, INSERT, DELETE, UPDATE, MERGE, REFRESH
            TABLE, SHOW, DESCRIBE or EXPLAIN.
        name: the input, stage or view that it names; None for a SELECT.
        inserted: the number of rows that it inserted, duplicates included.
        updated: the number of rows that it updated.
        deleted: the number of rows that it deleted.
        collection: the query of a SELECT, as a collection that is not stored; the view that CREATE
            VIEW defined.
        rows: the rows of a SELECT; None if it is an input or a stage, `SELECT * FROM late`.
        report: the report of the stage that CREATE VIEW defined.
        reports: this report, and those of stages that read the stage and followed its change.
        order: the ORDER BY of a SELECT as text; empty without one.
        note: what the reader of the result should know, for example about its order, or that a
            table of Spark was loaded.
        text: the text of EXPLAIN.
        columns: the columns of the table that SHOW and DESCRIBE return.
        table: the rows of that table.

    Examples:
        >>> results = session.execute("DELETE FROM flights WHERE delay < 10")
        >>> results[0].statement, results[0].name, results[0].deleted
        ('DELETE', 'flights', 1)
    """

    statement: str
    name: str | None = None
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    collection: Collection | None = None
    report: StageReport | None = None
    reports: tuple[StageReport, ...] = ()
    order: str = ""
    note: str = ""
    text: str = ""
    columns: tuple[str, ...] = ()
    table: tuple[tuple[str, ...], ...] = ()
    rows: QueryRows | None = field(default=None, repr=False)

    @property
    def count(self) -> int:
        """The number of rows of a SELECT, duplicates included.

        Examples:
            >>> [result] = session.execute("SELECT carrier FROM flights WHERE delay > 10")
            >>> result.count
            2
        """
        if self.rows is not None:
            return self.rows.count
        if self.statement != "SELECT" or self.collection is None:
            return 0
        return self.collection.count()

    def first(self, count: int) -> list[Any]:
        """Returns the first rows of a SELECT, in the order of its ORDER BY.

        Without ORDER BY they are in canonical order, as those of `Collection.rows`. They are the
        rows that the statement has read, whatever was committed since.

        Cost: O(n log n) for n rows.

        Examples:
            >>> [result] = session.execute("SELECT carrier, delay FROM flights ORDER BY delay")
            >>> result.first(2)
            [Row(carrier='AA', delay=5.0), Row(carrier='UA', delay=20.0)]
        """
        if self.rows is not None:
            return self.rows.first(count)
        if self.statement != "SELECT" or self.collection is None:
            return []
        return self.collection.head(count)


def order_text(names: Sequence[str], visible: int, order: Sequence[OrderPosition]) -> str:
    """Describes an order for a title: `carrier, delay desc`.

    Args:
        visible: the number of columns that the query shows; others are expressions.
    """
    shown = []
    for term in order:
        name = names[term.position] if term.position < visible else "an expression"
        shown.append(name + (" desc" if term.descending else ""))
    return ", ".join(shown)


class QueryRows:
    """The rows of a SELECT as its statement read them, which never change.

    Args:
        batch: the rows of the query, with further columns behind its own, for the order.
        schema: the columns of the query.
    """

    def __init__(self, batch: Batch, schema: Schema, order: Sequence[OrderPosition]) -> None:
        self._batch = batch
        self._schema = schema
        self._order = order

    @property
    def count(self) -> int:
        """The number of rows, duplicates included."""
        return int(self._batch.diff.sum())

    def first(self, count: int) -> list[Any]:
        """Returns the first rows in the order of the query; ties are in canonical order."""
        columns, types = list(self._batch.columns), list(self._batch.layout.types)
        ordering: list[tuple[int, bool]] = []
        for term in self._order:
            if term.nulls_first is term.descending:  # else the order of values has nulls there
                mask = rows.null_mask(columns[term.position])
                ordering.append((len(columns), term.nulls_first))
                columns.append(np.zeros(len(self._batch), np.bool_) if mask is None else mask)
                types.append("boolean")
            ordering.append((term.position, term.descending))
        index = ordered(columns, types, ordering)
        index = index.repeat(np.minimum(self._batch.diff[index], max(count, 0)))[: max(count, 0)]
        width = len(self._schema)
        shown = [rows.take(column, index) for column in columns[:width]]
        return named_tuples(shown, self._schema, len(index))
