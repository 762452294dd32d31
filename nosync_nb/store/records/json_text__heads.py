"""Heads: the JSON object of a frame or a checkpoint as text, with what its reader must know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nosync_nb.store.records import format_features, json_text


def header_text(meta: Mapping[str, Any], needs: Sequence[str] = ()) -> bytes:
    """A JSON object as text; nothing for an empty one.

    Args:
        needs: what the rest of the frame asks of its reader; its catalog may ask for more.
    """
    catalog = meta.get("catalog")
    if catalog and "interval " in json_text.catalog_text(catalog):
        needs = [*needs, *format_features.required_features(catalog)]
    if needs:
        meta = {**meta, format_features.NEEDS: [*meta.get(format_features.NEEDS, ()), *needs]}
    if not meta:
        return b""
    if not isinstance(catalog, json_text.CatalogText):
        return json_text.compact_json(meta).encode()
    own = f'{{"catalog":{catalog.text}}}'.encode()
    rest = {key: value for key, value in meta.items() if key != "catalog"}
    return _joined(own, json_text.compact_json(rest).encode()) if rest else own


class CheckpointText:
    """The text of checkpoints; that of the catalog is kept, as it seldom changes."""

    def __init__(self) -> None:
        self._last: tuple[object, list[str], bytes] | None = None

    def of(self, catalog: Any, meta: Mapping[str, Any]) -> bytes:
        """A catalog and the rest of the object, which names files."""
        rest = header_text(meta)
        needs, last = format_features.required_features_of_json(rest), self._last
        if last is None or last[0] is not catalog or last[1] != needs:
            last = self._last = catalog, needs, header_text({"catalog": catalog}, needs)
        return _joined(last[2], rest)


def _joined(one: bytes, other: bytes) -> bytes:
    """The texts of two JSON objects, neither empty nor with a key of the other, as one."""
    return b"".join((one[:-1], b",", other[1:]))
