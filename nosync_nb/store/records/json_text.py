"""Encodes the JSON of catalogs, frames and checkpoints, and caches the text of unchanged parts.

A definition writes the whole catalog and changes one stage of it. The unchanged stages are not
encoded again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from nosync_nb.dataflow.graph import appended_items, changed_items
from nosync_nb.store.records import format_features

Key = TypeVar("Key")
Value = TypeVar("Value")


def compact_json(value: Any) -> str:
    """Returns a value as JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))


class JsonPiece(dict[str, Any]):
    """A JSON object that must not change any more, and its text."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        super().__init__(content)
        self.text = compact_json(content)


class CatalogText(dict[str, Any]):
    """A JSON object of lists of pieces and of plain values, which must not change, and its text."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        super().__init__(content)
        inner = (f"{compact_json(key)}:{_value_text(value)}" for key, value in content.items())
        self.text = f"{{{','.join(inner)}}}"


def catalog_text(catalog: Mapping[str, Any]) -> str:
    """Returns the text of a catalog; encodes it unless it is cached."""
    return catalog.text if isinstance(catalog, CatalogText) else compact_json(catalog)


class JsonPieceList(list[JsonPiece]):
    """A list of pieces that must not change, and its text without the brackets."""

    def __init__(self, pieces: Iterable[JsonPiece], text: str) -> None:
        super().__init__(pieces)
        self.text = text


def _value_text(value: Any) -> str:
    return f"[{value.text}]" if isinstance(value, JsonPieceList) else compact_json(value)


class JsonPieceCache(Generic[Key, Value]):
    """The pieces of one list of the last catalog, cached for the next one.

    Args:
        state: returns the part of a value that its piece depends on.
        make: returns the content of its piece.
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
        """Returns the pieces of values; reuses those whose value is equal to the last of its key.

        Cost: that of the new pieces, and of the text, once; 20 ns for each reused piece while new
        values come after the others.
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
    """Returns the JSON object of a frame or a checkpoint as text; b"" for an empty one.

    Args:
        needs: the features that the rest of the frame needs; its catalog may need more.
    """
    catalog = meta.get("catalog")
    if catalog and "interval " in catalog_text(catalog):
        needs = [*needs, *format_features.required_features(catalog)]
    if needs:
        meta = {**meta, format_features.NEEDS: [*meta.get(format_features.NEEDS, ()), *needs]}
    if not meta:
        return b""
    if not isinstance(catalog, CatalogText):
        return compact_json(meta).encode()
    catalog_only = f'{{"catalog":{catalog.text}}}'.encode()
    rest = {key: value for key, value in meta.items() if key != "catalog"}
    return _join_objects(catalog_only, compact_json(rest).encode()) if rest else catalog_only


class CheckpointText:
    """The JSON text of checkpoints. The text of the catalog is cached, as it seldom changes."""

    def __init__(self) -> None:
        self._last: tuple[object, list[str], bytes] | None = None

    def encode(self, catalog: Any, meta: Mapping[str, Any]) -> bytes:
        """Returns the text of a catalog and the rest of the object, which names files."""
        rest = header_text(meta)
        needs, last = format_features.required_features_of_json(rest), self._last
        if last is None or last[0] is not catalog or last[1] != needs:
            last = self._last = catalog, needs, header_text({"catalog": catalog}, needs)
        return _join_objects(last[2], rest)


def _join_objects(one: bytes, other: bytes) -> bytes:
    """Returns the texts of two JSON objects, not empty and without common keys, as one object."""
    return b"".join((one[:-1], b",", other[1:]))
