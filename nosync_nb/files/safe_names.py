"""Checks file names that come from a log: plain, and with the extension of their type.

A log may come from an untrusted writer, and a name in it determines which file is opened, mapped or
deleted. Therefore every such name passes `checked_file_name` when it is read, and again when a path
is built from it.
"""

from __future__ import annotations

import os
import re
from typing import Any

from nosync_nb.errors import CorruptLogError

PART, PACK = ".arrow", ".pack"
"""Extensions of part files and of packs; no control file of a log has one of them."""

FOLDERS = {PART: "layers", PACK: "history"}
"""The folders inside a log, by the extension of their files."""

_PLAIN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.))*")
_LENGTH_MAX = 200
_SHOWN = 60


def is_safe_file_name(name: Any, *endings: str) -> bool:
    """Returns True if `checked_file_name` accepts a name."""
    return (
        isinstance(name, str)
        and len(name) <= _LENGTH_MAX
        and _PLAIN.fullmatch(name) is not None
        and (not endings or name.endswith(endings))
    )


def checked_file_name(name: Any, *endings: str) -> str:
    """Returns a name that consists of letters, digits, `-`, `_` and single dots, without a folder.

    Args:
        endings: the allowed extensions; if none are given, any extension is allowed.

    Raises:
        CorruptLogError: the name is not valid; the message contains it.
    """
    if is_safe_file_name(name, *endings):
        return str(name)
    shown = ascii(name if isinstance(name, str) else type(name).__name__)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    raise CorruptLogError(
        f"the log names a file {shown}, which is not a valid name of {_kind(endings)}",
        hint="restore the log from a copy; no file of that name was opened or deleted",
    )


def checked_path_within(folder: str, name: Any, *endings: str) -> str:
    """Returns the path of a checked name in a folder; raises the errors of `checked_file_name`."""
    return os.path.join(folder, checked_file_name(name, *endings))


def _kind(endings: tuple[str, ...]) -> str:
    return f"a file ending with {' or '.join(endings)}" if endings else "a plain file"
