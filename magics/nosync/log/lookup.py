"""Looks up the log of a notebook, or of a folder that was renamed, for `nosync.open`.

Opening a log this way does not bind it to another notebook: no record is written beside it.
"""

from __future__ import annotations

import os
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nosync_nb
from nosync.log.location import LogPlace, default_place, shown_path
from nosync.log.notebook_facts import (
    NotebookFile,
    find_notebook,
    known_logs,
    located,
    logs_in,
    open_in,
    read_record,
)
from nosync.log.resolution import MAYBE, NEW, NotebookFacts, resolve_log
from nosync_nb.errors import DurabilityError

if TYPE_CHECKING:
    from nosync_nb import Session


@wraps(nosync_nb.open)
def open(path: str | os.PathLike[str], **options: Any) -> Session:
    """Opens a log by its path, its notebook or a former path; see `nosync_nb.open`."""
    __tracebackhide__ = True
    return nosync_nb.open(folder_of(path), **options)


def folder_of(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Returns the folder of the log that a path names.

    The path may be a notebook, or the former path of a renamed folder; else it is returned as is.

    Raises:
        DurabilityError: the path is a notebook, and its log is not known.
    """
    __tracebackhide__ = True
    text = os.fsdecode(path)
    if not text or "\0" in text:
        return path
    where = Path(text).expanduser()
    if where.suffix == ".ipynb" and not where.is_dir():
        return log_of(where)
    renamed = located(Path(os.path.realpath(where)))
    return path if renamed == Path(os.path.realpath(where)) else renamed


def log_of(notebook: Path) -> Path:
    """Returns the folder of a notebook's log.

    Raises:
        DurabilityError: no log is known; the message lists the logs beside the notebook.
    """
    __tracebackhide__ = True
    file = NotebookFile.read(notebook)
    place = default_place(Path(file.path))
    here = NotebookFacts(place, file.path, file.file, file.cells)
    logs = known_logs(here)
    mine = [
        each.path for each in logs if each.record and file.file and each.record.file == file.file
    ]
    for log in mine:
        if open_in(log):  # its notebook runs, so its cells may be saved later
            return log
    verdict = resolve_log(here, logs)
    if verdict.log is not None and verdict.why != NEW:
        return verdict.log
    if verdict.relation == MAYBE and verdict.other is not None and verdict.other.path in mine:
        return verdict.other.path  # no recorded cell contradicts it
    others = [log for log in logs_in(place.parent) if LogPlace(log, "").has_log]
    listed = ", ".join(f"{shown_path(log)}{_notebook_of(log)}" for log in others)
    missing = "" if file.file else " (there is no such file)"
    beside = f"logs beside it: {listed}" if others else f"there are no logs in '{place.parent}'"
    raise DurabilityError(
        f"no log of notebook '{notebook}'{missing} was found; {beside}",
        hint=f"nosync.open('{shown_path(others[0])}', mode='r') reads the log in a folder"
        if others
        else "run a cell of the notebook that uses nosync, or name the folder of its log",
    )


def _notebook_of(log: Path) -> str:
    record = read_record(log)
    name = "" if record is None else find_notebook(record) or record.notebook
    return f" ({shown_path(Path(name))})" if name else ""
