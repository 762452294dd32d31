"""Displays the value of a `%dd` line, even in the middle of a cell.

IPython only shows the value of a cell's last expression, so the output of `%dd diff late` above
another line would vanish. The bytecode at the call shows if the value is used: Python drops an
unused value in the very next step.
"""

from __future__ import annotations

import dis
import inspect
from types import FrameType
from typing import TYPE_CHECKING

from IPython.display import display

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def display_line_value(shell: InteractiveShell, value: object) -> object:
    """Returns a value if the caller uses it; else displays it, and returns None.

    Call it from a magic, while a line of a cell waits for it.
    """
    if value is None or not _is_dropped(_caller(shell)):
        return value
    display(value)
    return None


def _caller(shell: InteractiveShell) -> FrameType | None:
    """Returns the innermost frame that is code of a cell."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        if shell.compile.format_code_name(frame.f_code.co_filename) is not None:
            return frame
        frame = frame.f_back
    return None


def _is_dropped(frame: FrameType | None) -> bool:
    """Returns True if the value that a frame waits for will be dropped."""
    if frame is None:
        return False
    after = (step for step in dis.get_instructions(frame.f_code) if step.offset > frame.f_lasti)
    return next((step.opname == "POP_TOP" for step in after if step.opname != "CACHE"), False)
