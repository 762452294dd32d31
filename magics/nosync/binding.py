"""Binding: the log that the notebook of one shell goes on in, and what that log is told of it.

What a log knows of its notebook is written when the log is opened and when a cell runs that it has
not seen: never on the way of a commit, and never for a reader.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nosync import place as places
from nosync.evidence import (
    NotebookFile,
    enlist,
    known_logs,
    of_notebook,
    read_record,
    where_is,
    write_record,
)
from nosync.identity import CHOSEN, Evidence, Record, Verdict, decide, same, told
from nosync.place import Place, shown

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


class Binding:
    """Finds the notebook's log, and tells it what there is to know of the notebook."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._file = NotebookFile()
        self._record: tuple[Path, Record] | None = None
        self._news = self._said = ""

    def look(self) -> Place | None:
        """Looks for the notebook's log, or where a new one would be; None: nobody tells its name.

        Cost: parses the notebook's file and reads what the logs beside it know, some KiB each.
        """
        here = self._evidence()
        if here.chosen is None and here.natural is None:
            return None
        verdict = decide(here, [] if here.chosen else known_logs(here))
        assert verdict.log is not None
        self._news = self._told(verdict)
        source = "NOSYNC_SESSION" if verdict.why == CHOSEN else f"the notebook's {verdict.why}"
        return Place(verdict.log, source)

    def news(self) -> str:
        """A line on a log that nearly was the notebook's, once in a kernel; else empty."""
        news, self._news = self._news, ""
        if news == self._said:
            return ""
        self._said = news or self._said
        return news

    def adopt(self, place: Place) -> bool:
        """Notes beside a log, which is open for writing, that it is this notebook's from now on.

        Returns:
            whether it was before.
        """
        self._news = ""
        if place.temporary:
            return True
        here = self._evidence()
        known = read_record(place.path) or Record(here.notebook)
        own = same(here, known)
        self._record = (
            place.path,
            Record(
                here.notebook,
                here.file,
                known.cells if own else (),
                here.kernel,
                str(place.path),
                time.time(),
            ),
        )
        enlist(place.path)
        self.ran(write=True)
        return own

    def ran(self, *, write: bool = False) -> None:
        """Notes the cell that runs, or has run, if the log has not seen it; or `write` anyway.

        A kernel is not told that its notebook was renamed; where its file is now is seen here.
        """
        if self._record is None:
            return
        folder, record = self._record
        cell = self._running()
        if cell and cell not in record.cells:
            notebook, seen = where_is(record) or record.notebook, (*record.cells, cell)
            record = replace(record, notebook=notebook, cells=seen, seen=time.time())
            self._record = folder, record
        elif not write:
            return
        write_record(*self._record)

    def release(self) -> None:
        """The log is closed: cells are none of its from now on."""
        self._record = None

    def _evidence(self) -> Evidence:
        folder, names = Path.cwd(), self._shell.user_ns
        notebook = places.notebook_path(names, os.environ, folder)
        self._file = NotebookFile.read(notebook)
        return of_notebook(
            places.chosen(os.environ, folder),
            None if notebook is None else places.natural(notebook),
            self._file,
            self._running(),
        )

    def _running(self) -> str:
        """The id of the cell that runs; see `NotebookFile.cell`."""
        request: dict[str, Any] = getattr(self._shell, "get_parent", dict)() or {}
        told = (request.get("metadata") or {}).get("cellId")
        source = (request.get("content") or {}).get("code")
        return self._file.cell(told, source if isinstance(source, str) else "")

    def _told(self, verdict: Verdict) -> str:
        other = verdict.other
        if other is None:
            return ""
        record = other.record or Record()
        whose = other.lives or where_is(record) or record.notebook
        return told(verdict, _typed(other.path), _typed(Path(whose)) if whose else "")


def _typed(path: Path) -> str:
    """A path as it can be typed after `%dd open`."""
    text = str(shown(path))
    return f"'{text}'" if " " in text else text


@contextmanager
def whose(place: Place) -> Iterator[None]:
    """A block that opens a log; if another kernel has it, the error tells of which notebook."""
    __tracebackhide__ = True
    import nosync_nb

    try:
        yield
    except nosync_nb.FencedError as error:
        __tracebackhide__ = True
        record = read_record(place.path) or Record()
        notebook = where_is(record) or record.notebook
        whose = f"it is the log of {_typed(Path(notebook))}; " if notebook else ""
        opens = f"%dd open {_typed(place.path)}"
        hint = f"{whose}`{opens} --mode r` reads it, `{opens} --takeover` goes on in it here"
        raise nosync_nb.FencedError(str(error), hint=hint) from error
