"""Subcommands of `%dd` that define the retained history: retain, pin."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from nosync.commands.arguments import Subcommand, epoch_of, moment
from nosync_widgets import formats
from nosync_widgets.data.tables import Table

if TYPE_CHECKING:
    from nosync.notebook import Notebook
    from nosync_nb import Session


def _retain(notebook: Notebook, arguments: Namespace) -> None:
    __tracebackhide__ = True
    session = notebook.session()
    if arguments.budget:
        session.budget = " ".join(arguments.budget)
    if arguments.asked:
        session.retain = " ".join(arguments.asked)
    notebook.say(_retention_text(session))


def _retention_text(session: Session) -> str:
    """Describes the retained history."""
    retained, pins = session.retain, len(session.pins)
    pinned = f"; {formats.count(pins, 'epoch')} pinned" if pins else ""
    if session.budget is not None:
        pinned += f"; less, if the log exceeds {formats.size(session.budget)}"
    if retained is None:
        return f"every epoch is retained{pinned}"
    long = retained if isinstance(retained, str) else formats.count(retained, "epoch")
    return (
        f"single epochs are retained for {long}, every 16th epoch for 16 times as long, every 256th"
        f" for 256 times, and so on; older history is downsampled in the background{pinned}"
    )


def _pin(notebook: Notebook, arguments: Namespace) -> Table | None:
    __tracebackhide__ = True
    session = notebook.session()
    if arguments.drop is not None:
        if arguments.epoch is not None or arguments.name is not None:
            raise UsageError("%dd pin: write `%dd pin EPOCH NAME`, or `%dd pin --drop NAME`")
        session.unpin(arguments.drop)
        notebook.say(f"unpinned '{arguments.drop}'")
        return None
    if arguments.epoch is None:
        rows = [[name, formats.value(at)] for name, at in session.pins.items()]
        return Table("pinned epochs", ("name", "epoch"), rows, ("string", "bigint"))
    if arguments.name is None:
        raise UsageError("%dd pin: a pin needs a name: `%dd pin EPOCH NAME`")
    epoch = session.pin(epoch_of(session, arguments.epoch), arguments.name)
    notebook.say(f"pinned epoch {epoch} as '{arguments.name}'")
    return None


COMMANDS = (
    Subcommand(
        "retain",
        "show or set how long single epochs are retained",
        _retain,
        [
            (["asked"], {"nargs": "*", "help": "a number of epochs, `30 days`, or `all`"}),
            (
                ["--budget"],
                {"nargs": "+", "metavar": "SIZE", "help": "`2 GB`, or `none`"},
            ),
        ],
    ),
    Subcommand(
        "pin",
        "pin an epoch, so that it stays readable",
        _pin,
        [
            (["epoch"], {"nargs": "?", "type": moment, "help": "omitted: lists the pins"}),
            (["name"], {"nargs": "?"}),
            (["--drop"], {"metavar": "NAME", "help": "remove a pin"}),
        ],
    ),
)
