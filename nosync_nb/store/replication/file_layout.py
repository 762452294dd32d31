"""Derives the path of a log's file from its name alone; the layout is equal at every replica.

Control files (`generation`, `owner`, `lock`) are not files of the log: each copy has its own.
"""

from __future__ import annotations

import os
from functools import lru_cache

from nosync_nb.errors import CorruptLogError
from nosync_nb.files import safe_names
from nosync_nb.files.safe_names import PACK, PART, checked_file_name, is_safe_file_name
from nosync_nb.store.log import checkpoint, segments

FOLDERS = safe_names.FOLDERS
"""The inner folders of a log, by the extension of the files in them."""

BRANCHES = "branches"
"""The folder of the branches, in a log and in each of its copies."""

_CACHED_MAX = 1 << 12  # results are cached because each listing of a folder has the same names


def is_file(name: object) -> bool:
    """Returns True for the name of a file of a log."""
    return isinstance(name, str) and branch_part(name) is not None


def is_frames(name: object) -> bool:
    """Returns True for the name of a segment or checkpoint; a copy without any contains no log."""
    return isinstance(name, str) and branch_part(name) == ""


def is_rows(name: object) -> bool:
    """Returns True for the name of a file of rows, which is useless without frames that name it."""
    return isinstance(name, str) and bool(branch_part(name))


def is_segment(name: object) -> bool:
    """Returns True for the name of a segment; segments grow, all other files are written once."""
    return isinstance(name, str) and segments.is_name(name)


def is_checkpoint(name: object) -> bool:
    """Returns True for the name of a checkpoint."""
    return isinstance(name, str) and checkpoint.is_name(name)


@lru_cache(_CACHED_MAX)
def branch_part(name: str) -> str | None:
    """Returns the inner folder of a file; None if a log has no file of such a name.

    The result is empty for a segment or a checkpoint, which is in the log's folder itself.
    """
    if is_safe_file_name(name, PART, PACK):
        return FOLDERS[os.path.splitext(name)[1]]
    return "" if is_segment(name) or is_checkpoint(name) else None


@lru_cache(_CACHED_MAX)
def file_path(folder: str, name: str) -> str:
    """Returns the path of a file of the log whose folder is `folder`.

    Raises:
        CorruptLogError: no file of a log has such a name.
    """
    inner = branch_part(name)
    if inner is None:
        checked_file_name(name, PART, PACK)
        raise CorruptLogError(f"'{name}' is not a valid name of a file of a log")
    return os.path.join(folder, inner, name)
