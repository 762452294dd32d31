"""Additions: what a later program may write into a log of this format, and what an older one does.

The number of the format says how bytes are laid out, and stays. What comes later is added where
there is room, under one of two rules:

    may be passed over   a key of a JSON object that has another meaning for nobody; the rest of a
                         block of words. Who does not know it leaves it out, and reads all else.
    must be known        it changes what the rest means: a kind of frame or of entry, a flag of a
                         header, or a key that stands in `needs` of the same object. Who does not
                         know it refuses the log in one line, and changes nothing.

Failure: a later program keeps rows in a way that an older one does not know, and the older one
reads the log without them, writes a checkpoint of what it has seen, and deletes the rest. Hence who
adds something asks what is lost by who passes it over: unless that is nothing, it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nosync_nb.errors import CorruptLogError
from nosync_nb.rows.types import holds_interval
from nosync_nb.trace.parts import part_file

NEEDS = "needs"
"""The key under which the JSON of a frame or a checkpoint names what its reader must know."""

INTERVALS = "intervals"
"""Columns of intervals: who knows no such type could read no row of the rest, either."""

CODED = "coded"
"""Parts with coded columns: who does not know them takes them for damaged."""

_CODED = part_file.CODED.encode()

KNOWN: frozenset[str] = frozenset((INTERVALS, CODED))
"""What of that this program knows: of format 1 as it was frozen, nothing is needed."""


def required_features(catalog: Mapping[str, Any]) -> list[str]:
    """What a reader of a catalog must know."""
    return [INTERVALS] if any(map(holds_interval, _types(catalog))) else []


def required_features_of_json(text: bytes) -> list[str]:
    """What a reader of JSON must know that names parts."""
    return [CODED] if _CODED in text else []


def _types(catalog: Mapping[str, Any]) -> Iterator[str]:
    """The types of all columns that are kept."""
    for stage in catalog.get("stages", ()):
        yield from (type_ for _, type_ in stage["schema"])
    for node in catalog.get("nodes", ()):
        for layout in (node["log_layout"], *(layout for layout, _ in node["traces"])):
            yield from layout[0] if layout else ()


def check_features(needs: Any) -> None:
    """Raises if something is needed that this program does not know.

    Raises:
        CorruptLogError: names it.
        TypeError: it is no list of names.
    """
    for each in needs:
        if each not in KNOWN:
            raise unknown_feature_error(f"'{each}'")


def unknown_feature_error(what: str) -> CorruptLogError:
    """The error of what was added to this format later, and must be known."""
    return CorruptLogError(
        f"the log has {what}, which this program does not know",
        hint="upgrade nosync; nothing was changed",
    )
