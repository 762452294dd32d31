"""Clocks: which batch of a named collection each of its readers was made from.

Every frame that changes named collections has one clock for each of them: the label of the batch
that it adds, and the labels of the last batches of what that collection reads by name. A label is
the log, the generation of its writer, the upper of the batch and the digest of its bytes as they
stand in the frame. So a clock has `SIZE_BYTES`, and `LABEL_BYTES` for each input, whatever else
there is: two levels of the tree of causes, of which the rest is in the clocks of the inputs.

It is read where one log is not what the others saw (causes.py), and written by stamping.py.

A clock has room for determinants, the seeds and answers that a stage has used: `bytes` of
them follow its inputs. None are written yet; who reads passes them over.

Design: a batch is digested as the bytes that its frame has anyway. Of one in files these are their
references, which name the digest of each.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable
from typing import NamedTuple
from zlib import adler32, crc32

from nosync_nb.store.records.payloads import CLOCKS, PayloadEntry
from nosync_nb.store.safe_decoding import damage_error, guarded_decoding

NO_DIGEST = 0
"""That of the batch of a log that has none yet."""

LABEL = struct.Struct("<IIQQ")
"""A label as it is written."""

PACKED = struct.Struct("<IIQII")
"""The same with the digest in its two halves."""

COUNTS = struct.Struct("<HH")
"""How many labels of inputs follow that of a batch, and how many bytes of determinants those."""

LABEL_BYTES = LABEL.size
SIZE_BYTES = LABEL_BYTES + COUNTS.size
INPUTS_MAX = 2**16 - 1


class BatchLabel(NamedTuple):
    """One batch of a log: the generation that wrote it, its upper, and what it is."""

    log: int
    generation: int
    upper: int
    digest: int


class BatchClock(NamedTuple):
    """The batch that a frame adds to a log, and the last ones of what that reads by name."""

    own: BatchLabel
    inputs: tuple[BatchLabel, ...]


def batch_digest(data: bytes | memoryview) -> int:
    """What a batch is, by its bytes in a frame: two checksums of 32 bits.

    NOTE: it tells batches apart that came about differently; that nobody has changed one is what
    the chain of frames holds, with a digest of its own.

    Cost: 0.3 us, and 0.5 ms a MiB.
    """
    return crc32(data) << 32 | adler32(data)


def encoded_clocks(data: bytes) -> list[tuple[bytes, bytes]]:
    """The clocks of a frame as they are written: the label of the batch, and those of its inputs.

    Raises:
        CorruptLogError: they do not fit.
    """
    clocks, at, size = [], 0, len(data)
    try:
        while at < size:
            inputs, room = COUNTS.unpack_from(data, at + LABEL_BYTES)
            start = at + SIZE_BYTES
            end = start + inputs * LABEL_BYTES
            clocks.append((data[at : at + LABEL_BYTES], data[start:end]))
            at = end + room
            if at > size:
                raise ValueError("one is cut short")
    except (struct.error, ValueError) as error:
        raise damage_error("the clocks of a frame", error) from error
    return clocks


def read_clocks(data: bytes | memoryview) -> list[BatchClock]:
    """The clocks of a frame; see `split`."""
    return [
        BatchClock(
            BatchLabel(*LABEL.unpack(own)), tuple(map(BatchLabel._make, LABEL.iter_unpack(inputs)))
        )
        for own, inputs in encoded_clocks(bytes(data))
    ]


def clocks_in_entries(entries: Iterable[PayloadEntry]) -> list[BatchClock]:
    """The clocks among the entries of a frame."""
    return [clock for each in entries if each.kind == CLOCKS for clock in read_clocks(each.data)]


def labels_to_text(labels: Iterable[bytes]) -> str:
    """Labels as a checkpoint keeps them."""
    return base64.b64encode(b"".join(labels)).decode()


def labels_from_text(text: str) -> dict[int, bytes]:
    """The labels that a checkpoint keeps, as they are written, by log.

    Raises:
        CorruptLogError: they are none.
    """
    with guarded_decoding("the clocks of a checkpoint"):
        labels = LABEL.iter_unpack(base64.b64decode(text, validate=True))
        return {label[0]: LABEL.pack(*label) for label in labels}
