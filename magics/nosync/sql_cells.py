"""Runs the SQL of `%%dd sql` cells and `%dd sql` lines, and shows what it did.

The text that the engine gets has the line of the magic as its first line, so that an error has the
line and the column that the user sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.display import display

from nosync.define import show_reports
from nosync_widgets import formats
from nosync_widgets.tables import Table, rows_table

if TYPE_CHECKING:
    from nosync.notebook import Notebook
    from nosync_nb import Session
    from nosync_nb.frontend import StatementResult


_VERBS = {"INSERT": "INSERT INTO", "DELETE": "DELETE FROM", "UPDATE": "UPDATE"}


def run_sql_cell(notebook: Notebook, source: str, name: str | None, options: dict[str, Any]) -> Any:
    """Runs the statements of a `%%dd sql` cell as one epoch; returns the value to display.

    Args:
        name: the stage that the SELECT of the cell is stored as; None if it is not stored.
        options: the keyword arguments for the stages that the cell defines.

    Raises:
        SqlError: nothing has changed.
    """
    __tracebackhide__ = True
    head = "\n"
    if name is not None:
        from nosync_nb.frontend import check_name, statement_kinds

        head = f"CREATE OR REPLACE VIEW {check_name(name, 'stage')} AS\n"

        kinds = statement_kinds("\n" + source)
        if kinds != ["SELECT"]:
            raise UsageError(
                f"%%dd sql {name} stores one SELECT, and the cell has {', '.join(kinds) or 'none'};"
                " write `%%dd sql`, and CREATE VIEW for each stage"
            )
    value = _run(notebook, head + source, commit=True, options=options)
    if value is not None and source.rstrip().endswith(";"):  # IPython would not show it
        display(value)
        return None
    return value


def run_sql_line(notebook: Notebook, line: str) -> Any:
    """Runs the statements of a `%dd sql` line within the cell; returns the value to display.

    Raises:
        SqlError: nothing has changed.
    """
    __tracebackhide__ = True
    if not line.strip():
        raise UsageError("%dd sql: write a statement, as in `%dd sql SELECT * FROM flights`")
    return _run(notebook, " " * len("%dd sql ") + line, commit=False, options={})


def query_table(result: StatementResult, limit: int) -> Table:
    """Returns a table of the first rows of a SELECT, in its order."""
    assert result.collection is not None
    rows = result.first(limit + 1)
    total = result.count if len(rows) > limit else None
    order = f" by {result.order}" if result.order else ""
    title = f"computed for this output, not stored{order and f'; ordered{order}'}"
    return rows_table(title, result.collection.schema, rows, limit, total)


def _run(notebook: Notebook, text: str, *, commit: bool, options: dict[str, Any]) -> Any:
    __tracebackhide__ = True
    notebook.reopen()
    notebook.errors.install()
    session = notebook.session()
    before = session.now
    results = session.execute(text, notebook.shell.user_ns, commit=commit, **options)
    if not commit:
        notebook.cells.defined([each.report for each in results if each.report is not None])
    _bind(notebook, session, results)
    lines = [line for line in map(_change_text, results) if line]
    if session.mode == "w" and session.now > before:
        lines.append(f"epoch {session.now} is committed")
        notebook.cells.heard(session.now)
    if lines:
        notebook.say("\n".join(lines), progress=True)
    reports = [report for each in results for report in each.reports]
    if reports:
        show_reports(notebook, reports, {})
    for result in results:
        if result.note:
            notebook.say(f"NoSync: {result.note}")
    return _displayed(notebook, results[-1]) if results else None


def _bind(notebook: Notebook, session: Session, results: Sequence[StatementResult]) -> None:
    """Binds the names of new views to their collections, and unbinds those of dropped ones."""
    for result in results:
        name = result.name
        if name is None or result.statement not in ("CREATE VIEW", "DROP VIEW"):
            continue
        if result.statement == "DROP VIEW":
            notebook.forget(name)
        elif result.report is not None and name in session.stages:
            notebook.variables.set(name, session[name], over=True)
        elif result.collection is not None and not notebook.variables.set(name, result.collection):
            notebook.say(f"NoSync: {name} is your variable; SQL reads the temporary view")


def _change_text(result: StatementResult) -> str:
    """Describes the rows that a statement changed: `UPDATE flights: 3 rows`."""
    counts = {"inserted": result.inserted, "updated": result.updated, "deleted": result.deleted}
    if result.statement in ("INSERT", "DELETE", "UPDATE"):
        verb = _VERBS[result.statement]
        return f"{verb} {result.name}: {formats.count(sum(counts.values()), 'row')}"
    if result.statement in ("MERGE", "REFRESH TABLE"):
        verb = "MERGE INTO" if result.statement == "MERGE" else result.statement
        parts = [f"{count:,} {word}" for word, count in counts.items() if count]
        return f"{verb} {result.name}: {', '.join(parts) or '0 rows'}"
    if result.statement == "DROP VIEW":
        return f"dropped {result.name}" if not result.note else ""
    temporary = result.statement == "CREATE VIEW" and result.report is None and not result.note
    return f"{result.name} is a temporary view: it is not logged" if temporary else ""


def _displayed(notebook: Notebook, result: StatementResult) -> Any:
    """Returns what the last statement of a cell shows."""
    limit = notebook.settings.limit
    if result.statement == "SELECT" and result.collection is not None:
        if result.rows is None:  # SELECT * FROM stage
            return result.collection
        return query_table(result, limit)
    if result.statement == "EXPLAIN" and result.collection is not None:
        return result.collection.explain()
    if result.columns:
        return Table("", result.columns, result.table, ("string",) * len(result.columns))
    if notebook.settings.show == "rows" and result.statement == "CREATE VIEW":
        display(result.collection)
    return None
