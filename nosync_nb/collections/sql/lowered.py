"""The translation of a relation: a definition, and where its columns are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.sql.algebra import Column, Scalar
from nosync_nb.rows.ddl import quoted

_PLAIN = re.compile(r"[a-z_][a-z0-9_]*\Z", re.IGNORECASE)


class Lowered(NamedTuple):
    """A definition and the positions of columns in it."""

    definition: Definition
    places: Mapping[Column, int]

    def name(self, number: Column) -> str:
        """Returns a column as it is written in an expression."""
        name = self.definition.schema.names[self.places[number]]
        return name if _PLAIN.match(name) else quoted(name)

    def text(self, scalar: Scalar) -> str:
        """Returns an expression as text over the definition's columns."""
        return "".join(self.name(each) if isinstance(each, int) else each for each in scalar.pieces)
