"""Names of files, as a log may give them: plain, with the ending of what they are.

A log is data that may come from anywhere, and a name in it says which file is opened, mapped or
deleted. Hence every such name passes `plain`, when it is read and again where a path is made of it.
"""

from __future__ import annotations

import os
import re
from typing import Any

from nosync_nb.errors import CorruptLogError

PART, PACK = ".arrow", ".pack"
"""What the names of part files and of packs end with; no control file of a log does."""

FOLDERS = {PART: "layers", PACK: "history"}
"""The inner folders of a log, by the ending of what lies there."""

_PLAIN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.))*")
_LENGTH_MAX = 200
_SHOWN = 60


def is_safe_file_name(name: Any, *endings: str) -> bool:
    """Tells whether `plain` takes a name."""
    return (
        isinstance(name, str)
        and len(name) <= _LENGTH_MAX
        and _PLAIN.fullmatch(name) is not None
        and (not endings or name.endswith(endings))
    )


def checked_file_name(name: Any, *endings: str) -> str:
    """Returns a name that is one: letters, digits, `-`, `_` and single dots, no folder.

    Args:
        endings: what it may end with; none: anything.

    Raises:
        CorruptLogError: it is anything else; tells the name.
    """
    if is_safe_file_name(name, *endings):
        return str(name)
    shown = ascii(name if isinstance(name, str) else type(name).__name__)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    raise CorruptLogError(
        f"the log names a file {shown}, which is no name of {_kind(endings)}",
        hint="nothing was opened or deleted by that name; restore the log from a copy",
    )


def checked_path_within(folder: str, name: Any, *endings: str) -> str:
    """Returns the path of a plain name in a folder; see `plain` for the error."""
    return os.path.join(folder, checked_file_name(name, *endings))


def _kind(endings: tuple[str, ...]) -> str:
    return f"a file ending with {' or '.join(endings)}" if endings else "a plain file"
