"""Fingerprints of loads, independent of the order of their rows.

A fingerprint is a few integers over the hashes of rows. Equal multisets have equal fingerprints;
different multisets have different ones, except by a rare chance. The log records one for each load
with an idempotency key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nosync_nb import rows
from nosync_nb.dataflow.stage import Stage
from nosync_nb.session.state.pending_changes import PendingCall


class LoadFingerprint(NamedTuple):
    """Integers that equal multisets of rows share, and others only by a rare chance."""

    rows: int
    sum: int
    squares: int


def load_text(stage: Stage, calls: Sequence[PendingCall]) -> str:
    """Returns the calls on one input as a text for the log: equal for equal rows in any order."""
    every = stage.schema.types
    text = [type_kinds(every)]
    for kind in dict.fromkeys(call.kind for call in calls):
        types = every
        if kind == "delete":  # its rows are keys
            types = tuple(every[i] for i in stage.key or ())
        each = fingerprint_of_calls([call for call in calls if call.kind == kind], types)
        text.append(f"{kind} {each.rows} {each.sum:x} {each.squares:x}")
    return " ".join(text)


def type_kinds(types: Sequence[str]) -> str:
    """Returns a short text for the types of columns.

    A fingerprint needs it because the hash of a number depends on its type.
    """
    return hashlib.blake2b("\n".join(types).encode(), digest_size=4).hexdigest()


def fingerprint_of_calls(calls: Sequence[PendingCall], types: Sequence[str]) -> LoadFingerprint:
    """Returns the fingerprint of the rows of some inserts."""
    return fingerprint(
        (rows.hash_columns(u.columns, types, len(u.diff)), u.diff)
        for call in calls
        for u in call.row_parts
    )


def fingerprint(
    parts: Iterator[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]],
) -> LoadFingerprint:
    """Returns the fingerprint of rows, given as hashes and counts.

    Neither the order of the rows nor their division into parts matters.
    """
    count = sums = squares = 0
    for hashes, diff in parts:
        times = diff.view(np.uint64)
        count += int(diff.sum())
        sums += int((hashes * times).sum())
        squares += int((hashes * hashes * times).sum())
    return LoadFingerprint(count, sums % 2**64, squares % 2**64)
