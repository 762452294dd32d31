"""Guards the decoding of bytes that an untrusted writer may have produced.

A checksum proves that the bytes are unchanged, not that they are valid. A crafted catalog may nest
a thousand lists, contain text in place of a number, or name a column that does not exist. The
context manager reports each error that Python raises as damage of the log, and names what could not
be decoded.
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
"""The errors that content with a valid checksum and invalid values may raise."""


def guarded_decoding(what: str, *others: type[Exception]) -> AbstractContextManager[None]:
    """Returns a context manager for a block that decodes content of a log.

    Args:
        what: the name of the content in the message.
        others: additional exceptions that invalid content may raise in this block.

    Raises:
        CorruptLogError: the content is invalid.
    """
    return _Decoding(what, others)


class _Decoding:
    """A class instead of a generator: it is cheaper, and each frame that is read needs one."""

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
    """Returns the error for content that cannot be decoded."""
    said = str(error)[:200] or type(error).__name__
    return CorruptLogError(
        f"{what} cannot be decoded: {said}", hint="restore the log from a copy; nothing was changed"
    )
