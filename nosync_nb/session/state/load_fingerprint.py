"""Digests: by what a load is known again, whatever the order of its rows.

A few whole numbers over the hashes of rows, which equal multisets have in common, and others do not
but by a rare chance. The log keeps one of each load with a key.
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
    """What equal multisets of rows have in common, and others do not but by a rare chance."""

    rows: int
    sum: int
    squares: int


def load_text(stage: Stage, calls: Sequence[PendingCall]) -> str:
    """The calls on one input as a text for the log: equal for equal rows in any order."""
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
    """A short text for the types of columns: the hash of a number depends on its type."""
    return hashlib.blake2b("\n".join(types).encode(), digest_size=4).hexdigest()


def fingerprint_of_calls(calls: Sequence[PendingCall], types: Sequence[str]) -> LoadFingerprint:
    """The digest of the rows of some inserts."""
    return fingerprint(
        (rows.hash_columns(u.columns, types, len(u.diff)), u.diff)
        for call in calls
        for u in call.pieces
    )


def fingerprint(
    parts: Iterator[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]],
) -> LoadFingerprint:
    """Adds up hashes and counts of rows; the order and the parts do not matter."""
    count = sums = squares = 0
    for hashes, diff in parts:
        times = diff.view(np.uint64)
        count += int(diff.sum())
        sums += int((hashes * times).sum())
        squares += int((hashes * hashes * times).sum())
    return LoadFingerprint(count, sums % 2**64, squares % 2**64)
