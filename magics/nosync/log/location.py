"""Locates a notebook's log: the user's choice, or the default folder of a notebook.

VS Code sets the notebook's name only after the kernel has started, so the name is read at the first
cell that needs it, never when the extension is loaded. `resolution` decides which of the existing
logs belongs to the notebook.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# With a remote server, VS Code names the session <notebook>-jvsc-<uuid>.ipynb or
# <notebook>.ipynb-jvsc-<uuid>. No such file exists, so the suffix is removed.
_VSCODE = re.compile(r"-jvsc-[0-9a-f-]+(?=(\.ipynb)?$)")
MEMO = "notebook.json"
RECORD = "identity.json"


@dataclass(frozen=True)
class LogPlace:
    """The folder of a log; `source` names the origin of the choice, such as `%dd open`."""

    path: Path
    source: str
    temporary: bool = False

    @property
    def has_log(self) -> bool:
        """True if the folder contains files of a log; nothing is opened."""
        try:
            names = [item.name for item in self.path.iterdir()]
        except OSError:
            return False
        return any(not name.startswith((MEMO, RECORD, ".git")) for name in names)


def chosen_place(environ: Mapping[str, str], folder: Path) -> Path | None:
    """Returns the log that NOSYNC_SESSION names; None if the variable is not set.

    Args:
        folder: the working folder, for relative paths.
    """
    setting = environ.get("NOSYNC_SESSION")
    return (folder / Path(setting).expanduser()).resolve() if setting else None


def notebook_path(
    user_ns: Mapping[str, Any], environ: Mapping[str, str], folder: Path
) -> Path | None:
    """Returns the path of the notebook; None if it is unknown.

    Args:
        user_ns: the namespace of the notebook; VS Code binds `__vsc_ipynb_file__` in it.
        environ: Jupyter servers set JPY_SESSION_NAME to the notebook's path.
        folder: the working folder, for relative paths.
    """
    for value in (user_ns.get("__vsc_ipynb_file__"), environ.get("JPY_SESSION_NAME")):
        notebook = _notebook_path(value, folder)
        if notebook is not None:
            return notebook
    return None


def file_of(notebook: Path) -> tuple[int, int] | None:
    """Returns device and inode number of a notebook's file; None if it cannot be read.

    Unlike `notebook_facts.file_id`, this function does not load the engine.
    """
    with suppress(OSError):
        status = notebook.stat()
        return status.st_dev, status.st_ino
    return None


def default_place(notebook: Path) -> Path:
    """Returns the default folder of a notebook's log; it may contain another notebook's log."""
    return notebook.parent / ".nosync" / notebook.stem


def shown_path(path: Path) -> Path:
    """Returns a path for display: relative if it is below the working folder."""
    with suppress(ValueError):
        return path.relative_to(Path.cwd())
    return path


def _notebook_path(value: Any, folder: Path) -> Path | None:
    """Returns the path of a notebook that a front end has named.

    Returns None for a console, and for a name without an existing folder.
    """
    if not isinstance(value, str):
        return None
    path = folder / _VSCODE.sub("", value)
    if path.suffix != ".ipynb" or not path.parent.is_dir():
        return None
    return path


def temporary_place() -> LogPlace:
    """Creates a temporary folder for the log of an unknown notebook."""
    from nosync_nb.log_folders import Files

    path = Files().temporary_folder("nosync-")
    return LogPlace(Path(path).resolve(), "a temporary folder", temporary=True)


def current_log_folder(place: LogPlace) -> Path:
    """Returns the folder that cells use: that of a log, or of the branch that is in use."""
    from nosync_nb.log_folders import LogFolder

    log = LogFolder(place.path)
    branch = log.notebook_branch
    return place.path if branch is None else Path(log.branch(branch).path)


def main_of(log: Path) -> tuple[Path, str | None]:
    """Returns the main log of the log in a folder, and the name of the log as a branch.

    The name is `A/B` for branch B of branch A. It is None if the log is itself a main log.
    """
    from nosync_nb.log_folders import BRANCHES

    names: list[str] = []
    while log.parent.name == BRANCHES and LogPlace(log.parent.parent, "").has_log:
        names.insert(0, log.name)
        log = log.parent.parent
    return log, "/".join(names) or None


def prepare_folder(place: LogPlace, *, write: bool = True) -> bool:
    """Checks the folder of a log and its parent folder; creates the parent if `write`.

    Files beside the log are written only after this, because the folder may have come with an
    untrusted repository that contains links. A folder `.nosync` gets a file that excludes it from
    git. Returns True if the folder has a log.

    Raises:
        TrustError: a folder is a link, belongs to another user, or others can write it.
        DurabilityError: a folder cannot be created; a hint suggests another folder.
    """
    from nosync_nb.errors import DurabilityError
    from nosync_nb.log_folders import Files, LogFolder, admit_folder

    files, parent = Files(), place.path.parent
    is_default = parent.name == ".nosync"
    try:
        if is_default:
            admit_folder(parent, write=write)
        elif write:
            files.make_folder(str(parent))
        has_log = LogFolder(place.path).has_log(write=write)
    except DurabilityError as error:
        error.add_note("Hint: `%dd open PATH` uses another folder for the log")
        raise
    ignore = str(parent / ".gitignore")
    if is_default and write and not files.exists(ignore):
        with suppress(OSError):  # an unwritable folder is reported by the log itself
            file = files.create(ignore)
            file.append(b"*\n")
            file.close()
    return has_log


def is_log_lost(place: LogPlace) -> str:
    """Returns a message if a log is missing but has replicas; else an empty text."""
    from nosync_nb.log_folders import LogFolder

    if place.has_log or LogFolder(place.path).replicas is None:
        return ""
    return (
        f"the log {shown_path(place.path)} is missing, but its replicas have it: `%dd recover` or"
        " any use of nosync restores it, `%dd reset` forgets it"
    )


def restored_place(place: LogPlace, options: dict[str, Any]) -> str:
    """Looks up the replicas from which a missing log can be restored.

    Args:
        place: the folder without a log.
        options: the arguments for opening the log; receives `replicas` and `quorum`.

    Returns:
        a message if only another missing log of the same parent folder has replicas; else empty.
    """
    from nosync_nb.log_folders import LogFolder, lost_logs

    if "replicas" not in options and (replicas := LogFolder(place.path).replicas) is not None:
        options["replicas"], options["quorum"] = replicas
        return ""
    for lost in lost_logs(os.path.dirname(os.path.realpath(place.path))):
        path = shown_path(Path(lost))
        return f"the log {path} is missing, but its replicas have it: `%dd open {path}`"
    return ""


def abandoned_place(place: LogPlace) -> Exception:
    """Returns the error for a recovery that ended the kernel twice and is not repeated."""
    from nosync_nb.errors import NosyncError

    return NosyncError(
        f"recovering {shown_path(place.path)} ended the kernel twice, so it is not retried "
        "automatically; the log is unchanged",
        hint="run %dd recover to try it again, or %dd open OTHER to use another log",
    )
