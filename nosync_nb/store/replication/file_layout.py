"""Layout: where a file of a log lies in its folder, by its name alone; the same at every replica.

Control files (`generation`, `owner`, `lock`) are no files of the log: each copy has its own.
"""

from __future__ import annotations

import os
from functools import lru_cache

from nosync_nb.errors import CorruptLogError
from nosync_nb.files import safe_names
from nosync_nb.files.safe_names import PACK, PART, checked_file_name, is_safe_file_name
from nosync_nb.store.log import checkpoint, segments

FOLDERS = safe_names.FOLDERS
"""The inner folders of a log, by the ending of what lies there."""

BRANCHES = "branches"
"""Below a log, and below each of its copies, the folder of its branches."""

_KNOWN_MAX = 1 << 12  # names are asked for again with every look at a folder


def is_file(name: object) -> bool:
    """Tells whether a name is one of a file of a log."""
    return isinstance(name, str) and branch_part(name) is not None


def is_frames(name: object) -> bool:
    """Tells whether it is the name of a segment or of a checkpoint: without one there is no log."""
    return isinstance(name, str) and branch_part(name) == ""


def is_rows(name: object) -> bool:
    """Tells whether it is the name of a file of rows, which says nothing by itself."""
    return isinstance(name, str) and bool(branch_part(name))


def is_segment(name: object) -> bool:
    """Tells whether it is the name of a segment, which grows; all others are written once."""
    return isinstance(name, str) and segments.is_name(name)


def is_checkpoint(name: object) -> bool:
    """Tells whether it is the name of a checkpoint."""
    return isinstance(name, str) and checkpoint.is_name(name)


@lru_cache(_KNOWN_MAX)
def branch_part(name: str) -> str | None:
    """Returns the inner folder of a file, empty for the log's own; None: no file has the name."""
    if is_safe_file_name(name, PART, PACK):
        return FOLDERS[os.path.splitext(name)[1]]
    return "" if is_segment(name) or is_checkpoint(name) else None


@lru_cache(_KNOWN_MAX)
def temporary_name(folder: str, name: str) -> str:
    """Returns the path of an inner folder, or of a control file, of the copy in `folder`."""
    return os.path.join(folder, name)


@lru_cache(_KNOWN_MAX)
def file_path(folder: str, name: str) -> str:
    """Returns the path of a file of the log in `folder`.

    Raises:
        CorruptLogError: no file of a log has such a name.
    """
    inner = branch_part(name)
    if inner is None:
        checked_file_name(name, PART, PACK)
        raise CorruptLogError(f"'{name}' is no name of a file of a log")
    return os.path.join(folder, inner, name)
