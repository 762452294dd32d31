"""Layout: where a file of a log lies in its folder, by its name alone; the same at every replica.

Control files (`generation`, `owner`, `lock`) are no files of the log: each copy has its own.
"""

from __future__ import annotations

import os

from nosync_nb.errors import CorruptLogError
from nosync_nb.files import names
from nosync_nb.files.names import PACK, PART, is_plain, plain
from nosync_nb.store.log import checkpoint, segments

FOLDERS = names.FOLDERS
"""The inner folders of a log, by the ending of what lies there."""


def is_file(name: object) -> bool:
    """Tells whether a name is one of a file of a log."""
    return is_rows(name) or is_frames(name)


def is_frames(name: object) -> bool:
    """Tells whether it is the name of a segment or of a checkpoint: without one there is no log."""
    return is_segment(name) or is_checkpoint(name)


def is_rows(name: object) -> bool:
    """Tells whether it is the name of a file of rows, which says nothing by itself."""
    return is_plain(name, PART, PACK)


def is_segment(name: object) -> bool:
    """Tells whether it is the name of a segment, which grows; all others are written once."""
    return isinstance(name, str) and bool(segments.listed([name]))


def is_checkpoint(name: object) -> bool:
    """Tells whether it is the name of a checkpoint."""
    return isinstance(name, str) and bool(checkpoint.listed([name]))


def path_of(folder: str, name: str) -> str:
    """Returns the path of a file of the log in `folder`.

    Raises:
        CorruptLogError: no file of a log has such a name.
    """
    if not is_file(name):
        plain(name, PART, PACK)
        raise CorruptLogError(f"'{name}' is no name of a file of a log")
    if is_frames(name):
        return os.path.join(folder, name)
    return os.path.join(folder, FOLDERS[os.path.splitext(name)[1]], name)
