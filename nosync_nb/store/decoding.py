"""Decoding: one wrapper round whatever is made of bytes that somebody else may have written.

Checksums tell that bytes are those that were written, not that they make sense: a crafted catalog
nests a thousand lists, counts with text, names a column that is not there. Each is damage of the
log, whichever of Python's errors comes of it, and says what could not be read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def decoding(what: str, *others: type[Exception]) -> Iterator[None]:
    """A block that reads something of a log.

    Args:
        others: errors that content may give here as well.

    Raises:
        CorruptLogError: if what stands there makes no sense.
    """
    try:
        yield
    except (CorruptLogError, TrustError):
        raise
    except (*CRAFTED, *others) as error:
        raise damaged(what, error) from error


def damaged(what: str, error: Exception) -> CorruptLogError:
    """The error of something that cannot be decoded."""
    said = str(error)[:200] or type(error).__name__
    return CorruptLogError(
        f"{what} cannot be decoded: {said}", hint="restore the log from a copy; nothing was changed"
    )
