"""Decides which log belongs to a notebook, purely from collected facts.

Design
    Names of notebooks change, and are reused. So a log records facts of its notebook (`LogRecord`),
    and a notebook in a kernel has facts of its own (`NotebookFacts`). From the strongest to the
    weakest:

    1. a choice: `%dd open PATH` or NOSYNC_SESSION;
    2. the kernel's id, which stays over restarts, while the notebook is renamed or not yet saved;
    3. the notebook's file, identified by its number on the disk, which saving and renaming keep,
       together with a cell that the log has recorded: a number that became free goes to the next
       file;
    4. such a cell alone, unless the notebook that the log knows still exists: then this one is a
       copy of it, and gets a log of its own. Ids that were written by hand, like "setup", occur in
       many notebooks: they count only with the path, or with the file if they are several;
    5. the path, unless a fact contradicts it.

    Else the log is new. A message names a log that may have been this notebook's, and how to open
    it. Logs of other notebooks that still exist are not mentioned.

    The folder of a log is named after its notebook, by `folder_for`. If the notebook is renamed, so
    is the folder, at its next opening. Its former names stay reserved as long as the log exists: a
    path that was written down in another notebook never leads to another log.

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
"""The prefix of a text hash, for a cell whose id identifies nothing: one of many cells "0"."""

_RANDOM = re.compile(
    r"[0-9a-f]{8,64}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?=.*[a-z])(?=.*[A-Z])[\w-]{12}"
)
"""Ids as nbformat, JupyterLab, VS Code and Colab generate them."""

FileId = tuple[int, int]
"""Device and number of a file."""


class NotebookFacts(NamedTuple):
    """The facts that a kernel knows of its notebook.

    Attributes:
        natural: the default folder of its log; None: the notebook's name is unknown.
        notebook: the path of its file, without links.
        file: that file, None if it does not exist.
        cells: ids of the cells in the file and of the running one, or hashes of their texts; empty:
            there are none yet; None: they are unknown.
        kernel: the kernel's id, empty without one that stays.
        chosen: the log that the user has named.
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

    notebook, file, kernel: as in `NotebookFacts`, at the last time.
    cells: ids or text hashes of the cells that ran with it, the latest last.
    log: the folder of the log, which identifies a copy of the folder.
    seen: when it was written, seconds since 1970.
    automatic: the folder was named after the notebook, not by the user.
    former: the paths that the folder had before it was renamed, the latest last.
    previous: the path and the file of the notebook that had the log before another one took it.
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
        record: None: the log has no record.
        lives: the current path of the notebook that it knows, if that is another file than this
            notebook's; else empty.
        brought: its folder is a copy of one that still exists.
        former: its earlier paths.
    """

    path: Path
    record: LogRecord | None = None
    lives: str = ""
    brought: bool = False
    former: tuple[str, ...] = ()


class LogResolution(NamedTuple):
    """The log of a notebook, the reason, and the log that was rejected.

    Attributes:
        log: None: the notebook's name is unknown.
        why: chosen, kernel, file, cells, path or new.
        other: the closest other log, if a new one is created.
        relation: of the other one: this notebook is a copy of its notebook, its notebook is gone,
            or may be this one, or it was this notebook's until another one took it.
        rename: the path that the folder of the log should have.
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
    """Returns the path that the folder of a notebook's log should have; None: its current one.

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
    """Returns True if a log knows this notebook, so that its recorded cells stay valid."""
    if here.kernel and record.kernel == here.kernel:
        return True
    if _shared_cells(here, record):
        return True
    return not _differs(here, record) and record.notebook == here.notebook


def may_be_same_notebook(here: NotebookFacts, log: Path, record: LogRecord) -> bool:
    """Returns True if any fact of its record, except the kernel, supports a log."""
    named = here.notebook and record.notebook == here.notebook
    found = here.file and record.file == here.file
    return bool(named or found or log == here.natural or _shared_cells(here, record))


def drawn_identity(known: str) -> bool:
    """Returns True if a cell's id was generated at random, so that no other notebook has it."""
    return _RANDOM.fullmatch(known) is not None


def _shared_cells(here: NotebookFacts, record: LogRecord, *, words: bool = True) -> int:
    """Counts the cells of the notebook that the log has recorded.

    Texts count if they are several, and half of the texts of either side: one line occurs in many
    notebooks.

    Args:
        words: False: ids that were written by hand count no more than texts.
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
    """Returns True if a notebook without a cell in common with a log is another one.

    Texts are edited, so a difference of texts proves nothing.
    """
    if here.cells is None or not record.cells:
        return False
    return not here.cells or (_has_ids(here.cells) and _has_ids(record.cells))


def _latest(known: KnownLog) -> tuple[bool, float]:
    return not known.brought, known.record.seen if known.record else 0.0


def _nearest(here: NotebookFacts, known: KnownLog) -> tuple[bool, bool, int, float]:
    """Orders logs that may be the notebook's: the one in its default folder goes first."""
    record = known.record or LogRecord()
    is_default = known.path == here.natural
    return is_default, record.notebook == here.notebook, _shared_cells(here, record), record.seen


def _has_path(here: NotebookFacts, known: KnownLog) -> bool:
    record = known.record
    named = record is not None and bool(here.notebook) and record.notebook == here.notebook
    return named or known.path == here.natural


def _contradicts(here: NotebookFacts, known: KnownLog) -> bool:
    """Returns True if a log with the notebook's path belongs to another one; they share no cell."""
    record = known.record
    if record is None:
        return False
    if known.lives or _differs(here, record):
        return True
    if record.file and here.file:
        return record.file != here.file
    return bool(record.notebook) and record.notebook != here.notebook


def _may_be_file(here: NotebookFacts, record: LogRecord) -> bool:
    """Returns True if the log knows the file, and there are no cells to decide."""
    return here.file is not None and record.file == here.file and not _differs(here, record)


def _free_folder(natural: Path, logs: Iterable[KnownLog]) -> Path:
    """Returns the notebook's default folder, or one beside it that no log has or had."""
    used = {path for each in logs for path in (each.path, *map(Path, each.former))}
    if natural not in used:
        return natural
    places = (natural.with_name(f"{natural.name}-{number}") for number in count(2))
    return next(place for place in places if place not in used)


def resolution_text(verdict: LogResolution, log: str, notebook: str) -> str:
    """Returns a message about the closest other log; empty without one.

    Args:
        log: the other one, as it is shown.
        notebook: that log's notebook, as it is shown; empty if unknown.
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
