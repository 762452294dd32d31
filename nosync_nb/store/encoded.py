"""JSON that is made once: a catalog as text, of pieces that know theirs.

A definition writes the whole catalog, of which it changes a stage. What did not change is not
encoded again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from typing import Any


def compact(value: Any) -> str:
    """A value as JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))


class Piece(dict[str, Any]):
    """A JSON object that is not changed any more, and its text."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        super().__init__(content)
        self.text = compact(content)


class Catalog(dict[str, Any]):
    """A JSON object of lists of pieces and of plain values, not changed any more, and its text."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        super().__init__(content)
        inner = (f"{compact(key)}:{_text(value)}" for key, value in content.items())
        self.text = f"{{{','.join(inner)}}}"


def text_of(catalog: Mapping[str, Any]) -> str:
    """The text of a catalog, encoded now unless it was before."""
    return catalog.text if isinstance(catalog, Catalog) else compact(catalog)


def _text(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(each, Piece) for each in value):
        return f"[{','.join([each.text for each in value])}]"
    return compact(value)


class Pieces:
    """The pieces of the last catalog, to be taken for the next one where nothing changed."""

    def __init__(self) -> None:
        self._last: dict[Hashable, tuple[Any, Piece]] = {}
        self._next: dict[Hashable, tuple[Any, Piece]] = {}

    def piece(self, name: Hashable, state: Any, make: Callable[[], Mapping[str, Any]]) -> Piece:
        """The piece of that name, made anew unless it was made of an equal state."""
        known = self._last.get(name)
        if known is None or (known[0] is not state and known[0] != state):
            known = state, Piece(make())
        self._next[name] = known
        return known[1]

    def done(self) -> None:
        """The catalog is whole: what was not asked for is forgotten."""
        self._last, self._next = self._next, {}
