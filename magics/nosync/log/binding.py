"""Binds the notebook of one shell to its log, and records facts of the notebook beside the log.

The record is written when the log is opened, and when a cell runs for the first time. It is never
written during a commit, nor by a notebook that only reads the log.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nosync.log import location
from nosync.log.location import LogPlace, prepare_folder, shown_path
from nosync.log.notebook_facts import (
    NotebookFile,
    find_notebook,
    former,
    known_logs,
    located,
    notebook_facts,
    open_in,
    read_record,
    register_log,
    registered_logs,
    renamed,
    write_record,
)
from nosync.log.notebook_memo import NotebookMemo
from nosync.log.resolution import (
    CHOSEN,
    GONE,
    FileId,
    LogRecord,
    LogResolution,
    NotebookFacts,
    is_same_notebook,
    resolution_text,
    resolve_log,
)

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


class Binding:
    """Finds the notebook's log, and records the facts of the notebook beside it."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._file = NotebookFile()
        self._record: tuple[Path, LogRecord] | None = None
        self._news = self._last_news = ""
        self._rename: tuple[Path, Path] | None = None
        notebook = self._notebook()
        self._started = None if notebook is None else (notebook, location.file_of(notebook))

    def find_log(self) -> LogPlace | None:
        """Returns the notebook's log, or the place of a new one; None if the notebook is unknown.

        Cost: parses the notebook's file, and reads the records of the known logs, a few KiB each.
        """
        here = self._collect_facts()
        if here.chosen is None and here.natural is None:
            return None
        verdict = resolve_log(here, [] if here.chosen else known_logs(here))
        assert verdict.log is not None
        self._news = self._resolution_message(verdict)
        self._rename = None if verdict.rename is None else (verdict.log, verdict.rename)
        source = "NOSYNC_SESSION" if verdict.why == CHOSEN else f"the notebook's {verdict.why}"
        return LogPlace(verdict.log, source)

    def rename(self, place: LogPlace) -> LogPlace:
        """Renames the folder of the notebook's log after a rename of the notebook, if possible.

        Returns the place of the log. Nothing is renamed while a process has the log or one of its
        branches open.

        Failure: 1. The kernel dies between two of these steps. 2. The signature of a memo, the list
        of logs and the registry of replicas name the folder by a wrong path. Hence memos and list
        name both paths before the rename; `adopt` does the rest, also later.
        """
        due, self._rename = self._rename, None
        if due is None or due[0] != place.path or not prepare_folder(place):
            return place
        from nosync_nb.log_folders import LogFolder

        def name_both(folders: Sequence[tuple[str, str]]) -> None:
            for old, new in folders:
                if (Path(old) / location.MEMO).exists():
                    NotebookMemo.read(Path(old)).write(Path(old), moves=Path(new))
            _list_moved(*due)

        if not LogFolder(due[0]).move(due[1], name_both):
            return place
        self._news = (
            f"the log {shown_path(due[0])} was renamed after its notebook: {shown_path(due[1])}"
        )
        return replace(place, path=due[1])

    def news(self) -> str:
        """Returns a message about a related log, or about a rename of the log; else empty.

        A message that was just returned is not repeated.
        """
        news, self._news = self._news, ""
        if news == self._last_news:
            return ""
        self._last_news = news or self._last_news
        return news

    def adopt(self, place: LogPlace) -> bool:
        """Records beside a log that it is this notebook's. The log must be open for writing.

        Returns:
            True if the log was this notebook's before, or if it is temporary.
        """
        self._news = ""
        if place.temporary:
            return True
        here = self._collect_facts()
        is_explicit = place.source in ("%dd open", "NOSYNC_SESSION")
        previous = read_record(place.path) or LogRecord(here.notebook, automatic=not is_explicit)
        is_own, names = is_same_notebook(here, previous), former(place.path, previous)
        if names != previous.former:
            _update_registries(Path(previous.log), place.path)
        self._record = (
            place.path,
            LogRecord(
                here.notebook,
                here.file,
                previous.cells if is_own else (),
                here.kernel,
                str(place.path),
                time.time(),
                previous.automatic,
                names,
                previous.previous if is_own else _owner_before(previous),
            ),
        )
        register_log(place.path)
        self.ran(write=True)
        return is_own

    def ran(self, *, write: bool = False) -> None:
        """Adds the running or last cell to the record, if it is not recorded yet.

        The current path of the notebook is recorded as well. It is looked up, because a kernel is
        not notified when its notebook is renamed.

        Args:
            write: True to write the record even if it has not changed.
        """
        if self._record is None:
            return
        folder, record = self._record
        cell = self._running_cell()
        if cell and cell not in record.cells:
            notebook, cells = find_notebook(record) or record.notebook, (*record.cells, cell)
            record = replace(record, notebook=notebook, cells=cells, seen=time.time())
            self._record = folder, record
        elif not write:
            return
        write_record(*self._record)

    def release(self) -> None:
        """Stops recording cells, because the log is closed."""
        self._record = None

    def _notebook(self) -> Path | None:
        return location.notebook_path(self._shell.user_ns, os.environ, Path.cwd())

    def _collect_facts(self) -> NotebookFacts:
        notebook, chosen = self._notebook(), location.chosen_place(os.environ, Path.cwd())
        if notebook is not None:
            path, file = self._started or (None, None)
            notebook = renamed(notebook, file if path == notebook else None, self._running_cell())
        self._file = NotebookFile.read(notebook)
        return notebook_facts(
            None if chosen is None else located(chosen),
            None if notebook is None else location.default_place(notebook),
            self._file,
            self._running_cell(),
        )

    def _running_cell(self) -> str:
        """Returns the identity of the running cell; see `NotebookFile.cell`."""
        request: dict[str, Any] = getattr(self._shell, "get_parent", dict)() or {}
        cell_id = (request.get("metadata") or {}).get("cellId")
        source = (request.get("content") or {}).get("code")
        return self._file.cell(cell_id, source if isinstance(source, str) else "")

    def _resolution_message(self, verdict: LogResolution) -> str:
        other = verdict.other
        if other is None:
            return ""
        record = other.record or LogRecord()
        if verdict.relation == GONE and open_in(other.path) is not None:
            return ""  # the notebook was renamed while the kernel ran
        whose = other.lives or find_notebook(record) or record.notebook
        return resolution_text(
            verdict, _quoted_path(other.path), _quoted_path(Path(whose)) if whose else ""
        )


def _owner_before(known: LogRecord) -> tuple[str, FileId] | None:
    """Returns path and file of the notebook that had a log until now, if the file still exists.

    If it does not, returns the owner before that notebook.
    """
    path = find_notebook(known)
    return (path, known.file) if path and known.file is not None else known.previous


def _list_moved(old: Path, new: Path) -> None:
    """Registers the new paths of a renamed log and of the branches in its folder."""
    paths = [path for path in map(Path, registered_logs()) if path.is_relative_to(old)]
    register_log(*(new / path.relative_to(old) for path in paths))


def _update_registries(old: Path, new: Path) -> None:
    """Updates the user's lists of logs and of replicas after the folder of a log was renamed."""
    from nosync_nb.errors import NosyncError
    from nosync_nb.log_folders import LogFolder

    _list_moved(old, new)
    with suppress(NosyncError):  # opening must succeed even if the home folder cannot be written
        LogFolder(new).record_move(old)


def _quoted_path(path: Path) -> str:
    """Returns a path as an argument of `%dd open`: in quotes if it has a space."""
    text = str(shown_path(path))
    return f"'{text}'" if " " in text else text


@contextmanager
def log_owner_notebook(place: LogPlace) -> Iterator[None]:
    """Names the notebook of a log in the error if another process has the log open."""
    __tracebackhide__ = True
    import nosync_nb

    try:
        yield
    except nosync_nb.FencedError as error:
        __tracebackhide__ = True
        record = read_record(place.path) or LogRecord()
        notebook = find_notebook(record) or record.notebook
        whose = f"it is the log of {_quoted_path(Path(notebook))}; " if notebook else ""
        opens = f"%dd open {_quoted_path(place.path)}"
        hint = f"{whose}`{opens} --mode r` reads it, `{opens} --takeover` takes it over"
        raise nosync_nb.FencedError(str(error), hint=hint) from error
