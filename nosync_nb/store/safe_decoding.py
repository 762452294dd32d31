"""Decoding: one wrapper round whatever is made of bytes that somebody else may have written.

Checksums tell that bytes are those that were written, not that they make sense: a crafted catalog
nests a thousand lists, counts with text, names a column that is not there. Each is damage of the
log, whichever of Python's errors comes of it, and says what could not be read.
"""

from __future__ import annotations

import struct
from contextlib import AbstractContextManager

import pyarrow as pa

from nosync_nb.errors import CorruptLogError, StageError, TrustError

CRAFTED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    NotImplementedError,
    RecursionError,
    StageError,
    TypeError,
    ValueError,
    pa.ArrowException,
    struct.error,
)
"""What comes of content that fits its checksum and nothing else."""


def guarded_decoding(what: str, *others: type[Exception]) -> AbstractContextManager[None]:
    """A block that reads something of a log.

    Args:
        others: errors that content may give here as well.

    Raises:
        CorruptLogError: if what stands there makes no sense.
    """
    return _Decoding(what, others)


class _Decoding:
    """Such a block; there is one for each frame that is read, so it is no generator."""

    __slots__ = ("_others", "_what")

    def __init__(self, what: str, others: tuple[type[Exception], ...]) -> None:
        self._what, self._others = what, others

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None or isinstance(error, CorruptLogError | TrustError):
            return
        if isinstance(error, (*CRAFTED, *self._others)):
            raise damage_error(self._what, error) from error


def damage_error(what: str, error: BaseException) -> CorruptLogError:
    """The error of something that cannot be decoded."""
    said = str(error)[:200] or type(error).__name__
    return CorruptLogError(
        f"{what} cannot be decoded: {said}", hint="restore the log from a copy; nothing was changed"
    )
