"""The subcommand of `%dd` that runs SQL in a line."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from nosync.commands import Subcommand
from nosync.sql_cells import run_sql_line

if TYPE_CHECKING:
    from nosync.notebook import Notebook


def _sql(notebook: Notebook, arguments: Namespace) -> Any:
    __tracebackhide__ = True
    return run_sql_line(notebook, arguments.statement)


COMMANDS = (
    Subcommand(
        "sql",
        "run SQL in a line; `%%dd sql` begins a cell of SQL",
        _sql,
        [(["statement"], {"help": "SELECT, INSERT, CREATE VIEW, ... as written; see %%%%dd?"})],
        raw=True,
    ),
)
