"""Subcommands of `%dd` about the notebook's log: logs, open, verify."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from nosync.commands import Subcommand
from nosync.log.location import LogPlace, default_place, notebook_path, shown_path
from nosync.log.notebook_facts import find_notebook, logs_in, open_in, read_record, registered_logs
from nosync_widgets import formats
from nosync_widgets.tables import Table

if TYPE_CHECKING:
    from nosync.notebook import Notebook
    from nosync_nb.frontend import DamagedRange, VerificationReport


def _logs(notebook: Notebook, arguments: Namespace) -> Table:
    beside = _folder(notebook)
    paths = list(logs_in(beside))
    if arguments.all:
        paths += [path for path in map(Path, registered_logs()) if path not in paths]
    if notebook.place is not None and notebook.place.path not in paths:
        paths.append(notebook.place.path)
    from nosync_nb.log_folders import LogFolder

    rows, idle = [], False
    for path in paths:
        if not LogPlace(path, "").has_log:
            continue
        size, used = LogFolder(path).disk_usage()
        own = notebook.place is not None and path == notebook.place.path
        process = open_in(path)
        whose = "this notebook" if own else _notebook_of(path, lives=process is not None)
        owner = "" if own or process is None else process
        idle |= not own and process is None
        rows.append([str(shown_path(path)), whose, owner, formats.size(size), formats.moment(used)])
    notes = ["`%dd open LOG` uses a log in this notebook, `--mode r` only reads it"]
    if idle:
        notes.append("to delete a log that is not open and not needed, delete its folder")
    return Table(
        f"logs in {shown_path(beside)}"
        + (" and of this user's notebooks" if arguments.all else ""),
        ("log", "notebook", "open in", "size", "last written"),
        rows,
        notes=notes,
    )


def _folder(notebook: Notebook) -> Path:
    """Returns the folder of the logs beside the notebook."""
    own = notebook_path(notebook.shell.user_ns, os.environ, Path.cwd())
    return default_place(own or Path.cwd() / "notebook").parent


def _notebook_of(log: Path, *, lives: bool) -> str:
    """Describes the notebook of a log, if it is known.

    Args:
        lives: True if a process has the log open. Then a notebook that is not found was renamed,
            not deleted.
    """
    record = read_record(log)
    if record is None or not record.notebook:
        return "unknown"
    found = find_notebook(record)
    suffix = "" if found or lives else " (deleted)"
    return f"{shown_path(Path(found or record.notebook))}{suffix}"


def _open(notebook: Notebook, arguments: Namespace) -> None:
    __tracebackhide__ = True
    options: dict[str, Any] = {
        name: value
        for name, value in vars(arguments).items()
        if name not in ("path", "branch") and value is not None
    }
    from nosync.log.lookup import folder_of

    path = str(folder_of(arguments.path))
    if path != arguments.path:
        notebook.say(f"NoSync: the log of {arguments.path} is {shown_path(Path(path))}")
    if arguments.branch is not None:
        log, path = Path(path).expanduser().resolve(), _branch(notebook, path, arguments.branch)
        if log == notebook.main and not arguments.takeover and arguments.mode != "r":
            session = notebook.switch(arguments.branch)
            notebook.say(f"now on branch {arguments.branch}, at epoch {session.now}")
            return
    previous = notebook.opened
    session = notebook.open(path, force=True, **options)
    if session is previous:
        notebook.say(f"{path} is already open, at epoch {session.now}")


def _branch(notebook: Notebook, path: str, name: str) -> str:
    """Returns the folder of a branch of the log at a path; forks a missing branch first."""
    __tracebackhide__ = True
    import nosync_nb
    from nosync_nb.frontend import check_name
    from nosync_nb.log_folders import LogFolder

    name = check_name(name, "branch")
    log = str(Path(path).expanduser().resolve())
    if not LogPlace(Path(log), "").has_log:
        raise UsageError(f"%dd open: there is no log at {path}")
    folder = LogFolder(log)
    place = folder.branch(name).path
    if name in folder.local_branches:
        return place
    if notebook.opened is not None and Path(notebook.opened.path) == Path(log):
        raise UsageError(f"%dd open: {path} is open in this notebook: use `%dd branch {name}`")
    try:
        with nosync_nb.open(log) as main:
            main.fork(name)
    except nosync_nb.FencedError as error:
        error.add_note(
            f"Hint: its notebook has it open: run `%dd branch {name}` there, then here"
            f" `%dd open {shown_path(Path(place))}`"
        )
        raise
    return place


def _verify(notebook: Notebook, _arguments: Namespace) -> Table | None:
    __tracebackhide__ = True
    verified = notebook.session().verify()
    notebook.say(str(verified))
    return None if verified.whole else _damage_table(verified)


def _damage_table(verified: VerificationReport) -> Table:
    """Returns a table with a row for each damaged range."""
    own = [("", each) for each in verified.damage]
    copies = [(copy.url, each) for copy in verified.replicas for each in copy.damage]
    return Table(
        caption="damaged: restore these files from a copy, or open the log with its replicas",
        columns=("where", "file", "stage", "epochs", "what"),
        types=("string", "string", "string", "string", "string"),
        rows=[[where or "this disk", *_damage_row(each)] for where, each in own + copies],
    )


def _damage_row(each: DamagedRange) -> list[str | None]:
    from nosync_nb.frontend import findings_text

    return [each.file, formats.value(each.stage), findings_text(each.epochs), each.what]


COMMANDS = (
    Subcommand(
        "logs",
        "list the logs beside this notebook, their notebooks and sizes",
        _logs,
        [(["--all"], {"action": "store_true", "help": "also those in other folders"})],
    ),
    Subcommand(
        "open",
        "use this folder as the notebook's log, also after a restart",
        _open,
        [
            (
                ["path"],
                {"help": "a folder, which is created or recovered; or a notebook that has a log"},
            ),
            (["--branch"], {"metavar": "NAME", "help": "use a branch of it; forked if new"}),
            (["--mode"], {"choices": ["r", "w"]}),
            (["--takeover"], {"action": "store_true", "help": "take it over from another process"}),
        ],
    ),
)

VERIFY = Subcommand("verify", "read every byte of the log, and list damaged files", _verify)
"""Not in `COMMANDS`, because `dispatch` lists it near the end of all subcommands."""
