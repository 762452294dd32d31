"""The subcommand `%dd verify`: every byte of the log is read, and what is damaged is told.

It runs while cells of other notebooks go on with the log, and can be interrupted like any cell.
"""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from nosync.commands.arguments import Subcommand
from nosync_widgets import formats
from nosync_widgets.data.tables import Table

if TYPE_CHECKING:
    from nosync.notebook import Notebook
    from nosync_nb.store.verification.report import DamagedRange, VerificationReport


def _verify(notebook: Notebook, _arguments: Namespace) -> Table | None:
    __tracebackhide__ = True
    verified = notebook.session().verify()
    notebook.say(str(verified))
    return None if verified.whole else _table(verified)


def _table(verified: VerificationReport) -> Table:
    """What is damaged, a row for each place."""
    own = [("", each) for each in verified.damage]
    copies = [(copy.url, each) for copy in verified.replicas for each in copy.damage]
    return Table(
        caption="damaged: restore these files from a copy, or open the log with its replicas",
        columns=("where", "file", "stage", "epochs", "what"),
        types=("string", "string", "string", "string", "string"),
        rows=[[where or "here", *_row(each)] for where, each in own + copies],
    )


def _row(each: DamagedRange) -> list[str | None]:
    """The cells of a row."""
    from nosync_nb.store.verification.report import findings_text

    return [each.file, formats.value(each.stage), findings_text(each.epochs), each.what]


COMMANDS = (Subcommand("verify", "read every byte of the log, and tell what is damaged", _verify),)
