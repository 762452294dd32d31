"""Decides which log belongs to a notebook, purely from collected facts.

Design
    Notebooks are renamed, and their names are reused. So a log records facts of its notebook
    (`LogRecord`). They are compared with the facts of the notebook in a kernel (`NotebookFacts`).
    From the strongest to the weakest, these are:

    1. a choice: `%dd open PATH` or NOSYNC_SESSION;
    2. the kernel's id, which restarts keep, even if the notebook is renamed or not yet saved;
    3. the notebook's file, identified by its inode number, which saving and renaming keep. It
       counts only together with a recorded cell, because a free inode number is reused;
    4. a recorded cell alone, unless the recorded notebook still exists: then this notebook is a
       copy, and gets a new log. Ids that were written by hand, like "setup", occur in many
       notebooks. They count only together with the path, or with the file if there are several;
    5. the path, unless a fact contradicts it.

    If no fact decides, the log is new. A message names a log that may have been this notebook's,
    and how to open it. The log of another existing notebook is mentioned only if this notebook is
    its copy, or had the log before.

    The folder of a log is named after its notebook, by `folder_for`. After a rename of the
    notebook, the folder is renamed at the next opening. Former names stay reserved as long as the
    log exists, so a path that another notebook contains never leads to a different log.

Failure: 1. `Untitled` is saved under another name. 2. The next `Untitled` has the path of the
first. Hence the path counts only if its log has recorded no other cells, and its notebook does not
exist elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import NamedTuple

CHOSEN, KERNEL, FILE, CELLS, PATH, NEW = "chosen", "kernel", "file", "cells", "path", "new"
COPY, GONE, MAYBE, TAKEN = "copy", "gone", "maybe", "taken"

TEXT = "text-"
"""The prefix of a text hash, for a cell whose id, such as "0", occurs in many notebooks."""

_RANDOM = re.compile(
    r"[0-9a-f]{8,64}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?=.*[a-z])(?=.*[A-Z])[\w-]{12}"
)
"""Ids as nbformat, JupyterLab, VS Code and Colab generate them."""

FileId = tuple[int, int]
"""Device and inode number of a file."""


class NotebookFacts(NamedTuple):
    """The facts that a kernel knows of its notebook.

    Attributes:
        natural: the default folder of the notebook's log; None if the notebook's name is unknown.
        notebook: the path of the notebook's file, without links.
        file: the identity of that file; None if it does not exist.
        cells: the ids or text hashes of the cells in the file and of the running cell; empty if
            the notebook has no cells yet, None if they are unknown.
        kernel: the persistent id of the kernel; empty if it has none.
        chosen: the log that the user has named; None without such a choice.
    """

    natural: Path | None = None
    notebook: str = ""
    file: FileId | None = None
    cells: frozenset[str] | None = None
    kernel: str = ""
    chosen: Path | None = None


@dataclass(frozen=True)
class LogRecord:
    """The facts that a log records of its notebook, in a file beside the log.

    Attributes:
        notebook, file, kernel: as in `NotebookFacts`, when the record was written.
        cells: the ids or text hashes of the cells that ran with the log, the latest last.
        log: the folder of the log when the record was written; in a copy, the original folder.
        seen: the time of the record, in seconds since 1970.
        automatic: True if the folder was named after the notebook, not by the user.
        former: the former paths of the folder, before renames, the latest last.
        previous: path and file of the notebook that had the log before another notebook took it.
    """

    notebook: str = ""
    file: FileId | None = None
    cells: tuple[str, ...] = ()
    kernel: str = ""
    log: str = ""
    seen: float = 0.0
    automatic: bool = False
    former: tuple[str, ...] = ()
    previous: tuple[str, FileId] | None = None


class KnownLog(NamedTuple):
    """A log that may be the notebook's.

    Attributes:
        record: the record of the log; None if it has none.
        lives: the current path of the recorded notebook, if it exists and is not this notebook;
            else empty.
        brought: True if the folder is a copy of a folder that still exists.
        former: the former paths of the folder.
    """

    path: Path
    record: LogRecord | None = None
    lives: str = ""
    brought: bool = False
    former: tuple[str, ...] = ()


class LogResolution(NamedTuple):
    """The log of a notebook, the deciding fact, and the closest log that was rejected.

    Attributes:
        log: the folder of the log; None if the notebook's name is unknown.
        why: chosen, kernel, file, cells, path or new.
        other: the closest other log, if a new one is created.
        relation: the relation to the other log. copy: this notebook is a copy of its notebook;
            gone: its notebook does not exist; maybe: its notebook may be this one; taken: another
            notebook took it from this one.
        rename: the path to which the folder of the log should be renamed, if any.
    """

    log: Path | None
    why: str
    other: KnownLog | None = None
    relation: str = ""
    rename: Path | None = None


def resolve_log(here: NotebookFacts, logs: Sequence[KnownLog]) -> LogResolution:
    """Decides which log belongs to a notebook, and the name of its folder.

    Args:
        logs: all known logs, including those beside the notebook.
    """
    verdict = _decide(here, logs)
    known = next((each for each in logs if each.path == verdict.log), None)
    if known is None or verdict.why == CHOSEN or here.natural is None:
        return verdict
    return verdict._replace(rename=folder_for(here.natural, known, logs))


def folder_for(natural: Path, known: KnownLog, logs: Sequence[KnownLog]) -> Path | None:
    """Returns the path to which the folder of a log should be renamed; None if it keeps its path.

    Only a folder beside `natural` that was named after a notebook is renamed.
    """
    path, record = known.path, known.record
    if record is None or not record.automatic or path.parent != natural.parent:
        return None
    if re.fullmatch(rf"{re.escape(natural.name)}(-\d+)?", path.name):
        return None
    return _free_folder(natural, [each for each in logs if each.path != path])


def _decide(here: NotebookFacts, logs: Sequence[KnownLog]) -> LogResolution:
    if here.chosen is not None:
        return LogResolution(here.chosen, CHOSEN)
    recorded = [(each, each.record) for each in logs if each.record is not None]
    kernel = [each for each, r in recorded if here.kernel and r.kernel == here.kernel]
    if kernel:
        return LogResolution(max(kernel, key=_latest).path, KERNEL)
    if here.natural is None:
        return LogResolution(None, NEW)
    sharing = [each for each, r in recorded if _shared_cells(here, r)]
    same = [
        each
        for each, r in recorded
        if here.file and r.file == here.file and _shared_cells(here, r, words=False)
    ]
    if same:
        return LogResolution(max(same, key=_latest).path, FILE)
    orphans = [each for each in sharing if not each.lives]
    moved = [each for each in orphans if _cells_suffice(here, each)]
    if moved:
        return LogResolution(max(moved, key=lambda each: _nearest(here, each)).path, CELLS)
    named = [each for each in logs if _has_path(here, each)]
    agreeing = [each for each in named if not _contradicts(here, each)]
    if agreeing:
        return LogResolution(max(agreeing, key=lambda each: _nearest(here, each)).path, PATH)
    new = _free_folder(here.natural, logs)
    copied = [each for each, r in recorded if each.lives and _shared_cells(here, r, words=False)]
    if copied:
        return LogResolution(new, NEW, max(copied, key=_latest), COPY)
    taken_over = [
        each for each, r in recorded if here.file and r.previous == (here.notebook, here.file)
    ]
    if taken_over:
        return LogResolution(new, NEW, max(taken_over, key=_latest), TAKEN)
    if named:
        other = max(named, key=lambda each: _nearest(here, each))
        return LogResolution(new, NEW) if other.lives else LogResolution(new, NEW, other, GONE)
    doubtful = orphans or [each for each, r in recorded if _may_be_file(here, r)]
    if doubtful:
        return LogResolution(new, NEW, max(doubtful, key=_latest), MAYBE)
    return LogResolution(new, NEW)


def is_same_notebook(here: NotebookFacts, record: LogRecord) -> bool:
    """Returns True if a record is of this notebook, so that its recorded cells stay valid."""
    if here.kernel and record.kernel == here.kernel:
        return True
    if _shared_cells(here, record):
        return True
    return not _differs(here, record) and record.notebook == here.notebook


def may_be_same_notebook(here: NotebookFacts, log: Path, record: LogRecord) -> bool:
    """Returns True if any fact except the kernel suggests that a log is the notebook's."""
    named = here.notebook and record.notebook == here.notebook
    found = here.file and record.file == here.file
    return bool(named or found or log == here.natural or _shared_cells(here, record))


def drawn_identity(known: str) -> bool:
    """Returns True if a cell's id was generated at random, so that no other notebook has it."""
    return _RANDOM.fullmatch(known) is not None


def _shared_cells(here: NotebookFacts, record: LogRecord, *, words: bool = True) -> int:
    """Counts the cells of the notebook that the log has recorded.

    A single text hash does not count, because the same line occurs in many notebooks. Several count
    if they are at least half of the cells of the notebook or of the record.

    Args:
        words: False to treat ids that were written by hand like text hashes.
    """
    both = (here.cells or frozenset()).intersection(record.cells)
    if not both or (_has_ids(both) if words else any(map(drawn_identity, both))):
        return len(both)
    fewer = min(len(here.cells or ()), len(record.cells))
    return len(both) if len(both) > 1 and 2 * len(both) >= fewer else 0


def _cells_suffice(here: NotebookFacts, known: KnownLog) -> bool:
    """Returns True if cells alone prove that a log is the notebook's, although its file differs."""
    both = (here.cells or frozenset()).intersection(known.record.cells if known.record else ())
    return not _has_ids(both) or any(map(drawn_identity, both)) or _has_path(here, known)


def _has_ids(cells: Iterable[str]) -> bool:
    """Returns True if the identities contain an id."""
    return any(not each.startswith(TEXT) for each in cells)


def _differs(here: NotebookFacts, record: LogRecord) -> bool:
    """Returns True if the lack of common cells proves that a log is another notebook's.

    Different text hashes prove nothing, because texts are edited.
    """
    if here.cells is None or not record.cells:
        return False
    return not here.cells or (_has_ids(here.cells) and _has_ids(record.cells))


def _latest(known: KnownLog) -> tuple[bool, float]:
    return not known.brought, known.record.seen if known.record else 0.0


def _nearest(here: NotebookFacts, known: KnownLog) -> tuple[bool, bool, int, float]:
    """Returns the rank of a log that may be the notebook's; the default folder ranks highest."""
    record = known.record or LogRecord()
    is_default = known.path == here.natural
    return is_default, record.notebook == here.notebook, _shared_cells(here, record), record.seen


def _has_path(here: NotebookFacts, known: KnownLog) -> bool:
    record = known.record
    named = record is not None and bool(here.notebook) and record.notebook == here.notebook
    return named or known.path == here.natural


def _contradicts(here: NotebookFacts, known: KnownLog) -> bool:
    """Returns True if a log with the notebook's path belongs to another notebook.

    The log and the notebook have no cell in common.
    """
    record = known.record
    if record is None:
        return False
    if known.lives or _differs(here, record):
        return True
    if record.file and here.file:
        return record.file != here.file
    return bool(record.notebook) and record.notebook != here.notebook


def _may_be_file(here: NotebookFacts, record: LogRecord) -> bool:
    """Returns True if the log has recorded the file, and cells neither prove nor refute it."""
    return here.file is not None and record.file == here.file and not _differs(here, record)


def _free_folder(natural: Path, logs: Iterable[KnownLog]) -> Path:
    """Returns the default folder, or a numbered one beside it, that no log has or had."""
    used = {path for each in logs for path in (each.path, *map(Path, each.former))}
    if natural not in used:
        return natural
    places = (natural.with_name(f"{natural.name}-{number}") for number in count(2))
    return next(place for place in places if place not in used)


def resolution_text(verdict: LogResolution, log: str, notebook: str) -> str:
    """Returns a message about the closest other log; empty without one.

    Args:
        log: the path of the other log, for display.
        notebook: the path of that log's notebook, for display; empty if unknown.
    """
    opens = f"`%dd open {log}`"
    match verdict.relation:
        case "copy":
            return (
                f"this notebook is a copy of {notebook}, and gets a new log;"
                f" `%dd open {log} --branch NAME` uses a branch of the other log"
            )
        case "taken":
            return (
                f"{log} was this notebook's log until {notebook} took it; this notebook gets a new"
                f" log; {opens} takes it back"
            )
        case "gone":
            whose = f"of another {notebook}" if notebook else "of another notebook"
            return f"{log} is the log {whose}; this notebook gets a new log; {opens} adopts it"
        case "maybe":
            return f"{log}, the log of {notebook}, may be this notebook's: {opens} uses it"
    return ""
