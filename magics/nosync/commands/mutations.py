"""Subcommands of `%dd` that change the log: commits, copies, stages, and the retained history."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from nosync.commands import Subcommand, epoch_of, moment
from nosync_widgets import formats
from nosync_widgets.tables import Table

if TYPE_CHECKING:
    from nosync.notebook import Notebook
    from nosync_nb import Session


def _commit(notebook: Notebook, arguments: Namespace) -> None:
    __tracebackhide__ = True
    epoch = notebook.session().commit(wait=arguments.wait, label=arguments.label)
    notebook.say(f"epoch {epoch} is committed")


def _discard(notebook: Notebook, _arguments: Namespace) -> None:
    session = notebook.session()
    rows = sum(item.rows for item in session.pending.values())
    session.discard()
    notebook.say(f"{formats.count(rows, 'pending row')} discarded")


def _sync(notebook: Notebook, arguments: Namespace) -> None:
    __tracebackhide__ = True
    session = notebook.session()
    session.sync(arguments.level)
    notebook.say(f"epoch {session.now} is safe on {arguments.level}")


def _copy(notebook: Notebook, arguments: Namespace) -> None:
    __tracebackhide__ = True
    from nosync_nb import copy

    session, folder = notebook.session(), os.path.expanduser(arguments.folder)
    epoch = copy(session.path, folder)
    which = "the log" if notebook.branch is None else f"branch {notebook.branch}"
    notebook.say(
        f"copied {which} up to epoch {epoch} to {arguments.folder}, an independent log:"
        f" nosync.open({folder!r})"
    )


def drop(notebook: Notebook, names: Sequence[str], *, cascade: bool) -> str:
    """Drops stages with their views and variables, and returns a message."""
    __tracebackhide__ = True
    session = notebook.session()
    before = {*session.inputs, *session.stages}
    session.drop(*names, cascade=cascade)
    gone = sorted(before - {*session.inputs, *session.stages})
    notebook.forget(*gone)
    return f"dropped {formats.listing(gone)}"


def rename(notebook: Notebook, old: str, new: str) -> str:
    """Renames a stage and its variable, and returns a message."""
    __tracebackhide__ = True
    session = notebook.session()
    session.rename(old, new)
    notebook.forget(old)
    notebook.variables.set(new, session[new])
    return f"{old} is now {new}"


def _drop(notebook: Notebook, arguments: Namespace) -> None:
    __tracebackhide__ = True
    notebook.say(drop(notebook, arguments.names, cascade=arguments.cascade))


def _rename(notebook: Notebook, arguments: Namespace) -> None:
    __tracebackhide__ = True
    notebook.say(rename(notebook, arguments.old, arguments.new))


def _recover(notebook: Notebook, _arguments: Namespace) -> None:
    __tracebackhide__ = True
    if notebook.opened is None:
        notebook.open(force=True)
    elif notebook.opened.closed:
        notebook.reopen()
    else:
        notebook.show_report()


def _reset(notebook: Notebook, _arguments: Namespace) -> None:
    __tracebackhide__ = True
    path = notebook.reset()
    notebook.say(
        f"NoSync: closed; the replicas of {path} are forgotten: delete the folder to begin a new"
        " log"
    )


def _retain(notebook: Notebook, arguments: Namespace) -> None:
    __tracebackhide__ = True
    session = notebook.session()
    if arguments.budget:
        session.budget = " ".join(arguments.budget)
    if arguments.asked:
        session.retain = " ".join(arguments.asked)
    notebook.say(_retention_text(session))


def _retention_text(session: Session) -> str:
    """Describes the retained history, the pins and the budget."""
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
        "commit",
        "commit the pending changes now",
        _commit,
        [
            (["--wait"], {"choices": ["disk", "replicas"], "help": "wait until it is safe there"}),
            (["--label"], {"help": "a name for the epoch"}),
        ],
    ),
    Subcommand("discard", "discard the pending changes", _discard),
    Subcommand(
        "sync",
        "wait until all epochs are safe",
        _sync,
        [(["level"], {"nargs": "?", "choices": ["disk", "replicas"], "default": "disk"})],
    ),
    Subcommand(
        "copy",
        "copy the log at its last epoch to a new folder",
        _copy,
        [(["folder"], {"help": "a folder that does not exist"})],
    ),
    Subcommand(
        "drop",
        "drop stages or inputs; deleting a cell drops nothing",
        _drop,
        [
            (["names"], {"nargs": "+"}),
            (
                ["--cascade"],
                {"action": "store_true", "help": "also drop the stages that read them"},
            ),
        ],
    ),
    Subcommand("rename", "rename a stage or input", _rename, [(["old"], {}), (["new"], {})]),
    Subcommand("reset", "close the log and forget its replicas", _reset),
    Subcommand(
        "recover",
        "show the recovery report; retry a recovery that ended the kernel twice",
        _recover,
    ),
)

RETENTION = (
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
