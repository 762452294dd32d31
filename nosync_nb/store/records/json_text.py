"""Encodes the JSON of catalogs, frames and checkpoints, and caches the text of unchanged parts.

A definition writes the whole catalog and changes one stage of it. The unchanged stages are not
encoded again.

The header of a frame lists the additions to the log format that its reader must know (`needs`). The
number of the format describes the layout of bytes, and does not change. Each later addition follows
one of two rules:

    may be ignored       a key of a JSON object that does not change the meaning of any other key,
                         or unused words at the end of a block. A reader that does not know the
                         addition skips it, and reads everything else.
    must be known        an addition that changes the meaning of the rest: a kind of frame or of
                         entry, a flag of a header, or a key that `needs` of the same object lists.
                         A reader that does not know it refuses the log with one message, and
                         changes nothing.

Failure: 1. A later program stores rows in a way that an older one does not know. 2. The older one
reads the log without these rows, and writes a checkpoint of the others. 3. It deletes the files
that its checkpoint does not name. Hence the author of an addition checks what is lost if a reader
ignores it: unless nothing is lost, the addition must be known.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from nosync_nb.dataflow.graph import appended_items, changed_items
from nosync_nb.errors import CorruptLogError
from nosync_nb.rows.types import holds_interval
from nosync_nb.trace.parts import part_file

NEEDS = "needs"
"""The key in the JSON of a frame or a checkpoint that lists the features its reader must know."""

INTERVALS = "intervals"
"""Columns of intervals: a reader that does not know these types cannot read the other rows either.
"""

CODED = "coded"
"""Parts with dictionary-encoded columns: a reader that does not know these would report damage."""

REMOVED = "removed"
"""Parts whose counts are the opposite of those in their file: a reader that does not know these
would add the rows that an epoch removes.
"""

_CODED = part_file.CODED.encode()
_REMOVED = part_file.REMOVED.encode(), part_file.REMOVED_CODED.encode()

KNOWN: frozenset[str] = frozenset((INTERVALS, CODED, REMOVED))
"""The features that this program knows. The original format 1 needs none of them."""


def required_features(catalog: Mapping[str, Any]) -> list[str]:
    """Returns the features that a reader of a catalog must know."""
    return [INTERVALS] if any(map(holds_interval, _column_types(catalog))) else []


def required_features_of_json(text: bytes) -> list[str]:
    """Returns the features that a reader of JSON with names of parts must know."""
    needs = [CODED] if _CODED in text else []
    return [*needs, REMOVED] if any(suffix in text for suffix in _REMOVED) else needs


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
        TypeError: `needs` is not a list of names.
    """
    for each in needs:
        if each not in KNOWN:
            raise unknown_feature_error(f"'{each}'")


def unknown_feature_error(what: str) -> CorruptLogError:
    """Returns the error for an addition that the reader must know, but does not know."""
    return CorruptLogError(
        f"the log has {what}, which this program does not know",
        hint="upgrade nosync; nothing was changed",
    )


Key = TypeVar("Key")
Value = TypeVar("Value")


def compact_json(value: Any) -> str:
    """Returns a value as JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))


class JsonPiece(dict[str, Any]):
    """A JSON object with its cached text. It must not change."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        super().__init__(content)
        self.text = compact_json(content)


class CatalogText(dict[str, Any]):
    """A JSON object of lists of pieces and of plain values, with its text. It must not change."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        super().__init__(content)
        inner = (f"{compact_json(key)}:{_value_text(value)}" for key, value in content.items())
        self.text = f"{{{','.join(inner)}}}"


def catalog_text(catalog: Mapping[str, Any]) -> str:
    """Returns the text of a catalog; encodes it unless it is cached."""
    return catalog.text if isinstance(catalog, CatalogText) else compact_json(catalog)


class JsonPieceList(list[JsonPiece]):
    """A list of pieces with its text, without the brackets. It must not change."""

    def __init__(self, pieces: Iterable[JsonPiece], text: str) -> None:
        super().__init__(pieces)
        self.text = text


def _value_text(value: Any) -> str:
    return f"[{value.text}]" if isinstance(value, JsonPieceList) else compact_json(value)


class JsonPieceCache(Generic[Key, Value]):
    """The pieces of one list of the last catalog, cached for the next one.

    Args:
        state: returns the part of a value that determines the content of its piece.
        make: returns the content of the piece for a value.
    """

    def __init__(
        self, state: Callable[[Value], Any], make: Callable[[Value], Mapping[str, Any]]
    ) -> None:
        self._state = state
        self._make = make
        self._last: tuple[dict[Key, Value], JsonPieceList] = (
            {},
            JsonPieceList((), ""),
        )  # in the same order

    def pieces_of(self, values: Mapping[Key, Value]) -> JsonPieceList:
        """Returns the pieces of values; reuses those whose values have an equal state.

        Cost: the encoding of the new pieces, and one join of the text. A reused piece takes 20 ns,
        as long as new values come after the others.
        """
        before, last = self._last
        added_values = appended_items(values, before)
        if added_values is not None:
            added = [JsonPiece(self._make(value)) for value in added_values.values()]
            texts = [last.text] if last else []
            texts += [piece.text for piece in added]
            listed = JsonPieceList([*last, *added], ",".join(texts))
        else:
            pieces_by_key = dict(zip(before, last, strict=True))
            for key, value in changed_items(values, before).items():
                if key not in pieces_by_key or self._state(before[key]) != self._state(value):
                    pieces_by_key[key] = JsonPiece(self._make(value))
            pieces = [pieces_by_key[key] for key in values]
            listed = JsonPieceList(pieces, ",".join([piece.text for piece in pieces]))
        self._last = dict(values), listed
        return listed


def header_text(meta: Mapping[str, Any], needs: Sequence[str] = ()) -> bytes:
    """Returns the JSON object of a frame or a checkpoint as text; b"" for an empty object.

    Args:
        needs: the features that the rest of the frame needs. Those of the catalog are added.
    """
    catalog = meta.get("catalog")
    if catalog and "interval " in catalog_text(catalog):
        needs = [*needs, *required_features(catalog)]
    if needs:
        meta = {**meta, NEEDS: [*meta.get(NEEDS, ()), *needs]}
    if not meta:
        return b""
    if not isinstance(catalog, CatalogText):
        return compact_json(meta).encode()
    catalog_only = f'{{"catalog":{catalog.text}}}'.encode()
    rest = {key: value for key, value in meta.items() if key != "catalog"}
    return _join_objects(catalog_only, compact_json(rest).encode()) if rest else catalog_only


class CheckpointText:
    """The JSON text of checkpoints. It caches the text of the catalog, which seldom changes."""

    def __init__(self) -> None:
        self._last: tuple[object, list[str], bytes] | None = None

    def encode(self, catalog: Any, meta: Mapping[str, Any]) -> bytes:
        """Returns the text of a catalog together with the other entries, which name files."""
        rest = header_text(meta)
        needs, last = required_features_of_json(rest), self._last
        if last is None or last[0] is not catalog or last[1] != needs:
            last = self._last = catalog, needs, header_text({"catalog": catalog}, needs)
        return _join_objects(last[2], rest)


def _join_objects(one: bytes, other: bytes) -> bytes:
    """Returns the texts of two JSON objects, not empty and without common keys, as one object."""
    return b"".join((one[:-1], b",", other[1:]))
