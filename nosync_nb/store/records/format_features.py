"""Defines the additions to the log format, and the rules for older programs that read them.

The number of the format describes the layout of bytes, and does not change. Later additions go
where there is room, under one of two rules:

    may be ignored       a key of a JSON object that does not change the meaning of any other; the
                         rest of a block of words. A reader that does not know it skips it, and
                         reads everything else.
    must be known        it changes what the rest means: a kind of frame or of entry, a flag of a
                         header, or a key that `needs` of the same object lists. A reader that does
                         not know it refuses the log with one message, and changes nothing.

Failure: 1. A later program stores rows in a way that an older one does not know. 2. The older one
reads the log without these rows, and writes a checkpoint of the others. 3. It deletes the files
that its checkpoint does not name. Hence the author of an addition checks what is lost if a reader
ignores it: unless nothing is lost, the addition must be known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nosync_nb.errors import CorruptLogError
from nosync_nb.rows.types import holds_interval
from nosync_nb.trace.parts import part_file

NEEDS = "needs"
"""The key in the JSON of a frame or a checkpoint that lists the features its reader must know."""

INTERVALS = "intervals"
"""Columns of intervals: a reader that does not know these types cannot read the other rows either.
"""

CODED = "coded"
"""Parts with dictionary-encoded columns: a reader that does not know them takes them for damaged.
"""

_CODED = part_file.CODED.encode()

KNOWN: frozenset[str] = frozenset((INTERVALS, CODED))
"""The features that this program knows. Format 1 as it was frozen needs none."""


def required_features(catalog: Mapping[str, Any]) -> list[str]:
    """Returns the features that a reader of a catalog must know."""
    return [INTERVALS] if any(map(holds_interval, _column_types(catalog))) else []


def required_features_of_json(text: bytes) -> list[str]:
    """Returns the features that a reader of JSON with names of parts must know."""
    return [CODED] if _CODED in text else []


def _column_types(catalog: Mapping[str, Any]) -> Iterator[str]:
    """Yields the types of all stored columns."""
    for stage in catalog.get("stages", ()):
        yield from (type_ for _, type_ in stage["schema"])
    for node in catalog.get("nodes", ()):
        for layout in (node["log_layout"], *(layout for layout, _ in node["traces"])):
            yield from layout[0] if layout else ()


def check_features(needs: Any) -> None:
    """Checks that this program knows all features.

    Raises:
        CorruptLogError: a feature is not known; the message names it.
        TypeError: `needs` is no list of names.
    """
    for each in needs:
        if each not in KNOWN:
            raise unknown_feature_error(f"'{each}'")


def unknown_feature_error(what: str) -> CorruptLogError:
    """Returns the error for an addition that must be known and is not."""
    return CorruptLogError(
        f"the log has {what}, which this program does not know",
        hint="upgrade nosync; nothing was changed",
    )
