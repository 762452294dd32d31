"""Errors of NoSync as a person reads them: what failed, the remedy, the line of the cell.

`_render_traceback_` is bound to the error while it is displayed and taken off again, so `%tb` and
`%config NoSync.short_errors = False` show every frame and errors stay picklable. Exceptions of the
user's own code are left alone; a `StageError` also shows the line of the function that raised, and
a body of `%%dd` that is no Python the line and nothing of us, as IPython shows a cell that is none.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from nosync_widgets import formats

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from nosync.protocols import Settings

BODY = "_nosync_body"
"""Marks a `SyntaxError` as one of the body of a cell, not of code that it ran."""

_RED, _PLAIN = "\x1b[31m", "\x1b[0m"


class ShortErrors:
    """Takes over the display of `NosyncError` in one shell."""

    def __init__(self, shell: InteractiveShell, settings: Settings) -> None:
        self._shell = shell
        self._settings = settings
        self._installed = False

    def install(self) -> None:
        """Starts; does nothing if another extension has taken IPython's only place for this."""
        if self._installed or self._shell.custom_exceptions:
            return
        from nosync_nb.errors import NosyncError

        self._shell.set_custom_exc((NosyncError, SyntaxError), self._show)
        self._installed = True

    def remove(self) -> None:
        """Gives IPython's place back."""
        if self._installed:
            self._shell.set_custom_exc((), None)
            self._installed = False

    def show(self, error: BaseException) -> None:
        """Displays an error that no cell raised, such as one of recovery."""
        self._show(self._shell, type(error), error, error.__traceback__)

    def _show(
        self,
        shell: InteractiveShell,
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
        tb_offset: int | None = None,
    ) -> None:
        if isinstance(error, SyntaxError):
            if getattr(error, BODY, False):
                shell.showsyntaxerror()
            else:
                shell.showtraceback((kind, error, trace), running_compiled_code=True)
            return
        if not self._settings.short_errors or not hasattr(error, "kind"):
            shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
            return
        error._render_traceback_ = partial(render, shell, error, trace)  # type: ignore[attr-defined]
        try:
            shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
        finally:
            del error._render_traceback_  # type: ignore[attr-defined]


def render(shell: InteractiveShell, error: BaseException, trace: TracebackType | None) -> list[str]:
    """Draws an error: name and message, notes, the line of the cell, the user's cause."""
    lines = [f"{_RED}{type(error).__name__}{_PLAIN}: {formats.visible(str(error))}"]
    lines += map(formats.visible, getattr(error, "__notes__", ()))
    lines += list(_cell_lines(shell, trace))[-1:]
    cause = error.__cause__
    if cause is not None and getattr(error, "kind", "") == "stage":
        said = formats.visible(str(cause))
        lines.append(f"caused by {_RED}{type(cause).__name__}{_PLAIN}: {said}")
        lines += list(_cell_lines(shell, cause.__traceback__))[-1:]
    return lines


def _cell_lines(shell: InteractiveShell, trace: TracebackType | None) -> Iterator[str]:
    """Every frame of a traceback that is code of a cell, outermost first."""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        place = shell.compile.format_code_name(file)
        if place is not None:
            source = linecache.getline(file, trace.tb_lineno).strip()
            where = f"  {place[0]} {place[1]}, line {trace.tb_lineno}: {source}"
            yield formats.visible(where)
        trace = trace.tb_next
