"""Schemas: the names and types of the columns of a collection.

A schema is immutable and hashable, and is compared by its fields. It has no nullability: every
column may contain nulls. Names are exact; a lookup also accepts another case if only one column
matches, as in Spark. Declared schemas must not have names that differ only in case (`usable`); old
logs may contain such schemas.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from nosync_nb.errors import SchemaError
from nosync_nb.rows.ddl import TypeReader, quote
from nosync_nb.rows.types import (
    INTEGERS,
    arrow_field,
    arrow_type,
    canonical_type,
    decimal_parts,
    field_type,
    spark_type,
)

__all__ = ["Field", "Schema", "arrow_type", "canonical_type", "spark_type", "widens"]

_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}


class Field(NamedTuple):
    """A column: its name and its type, which is a simple string of Spark."""

    name: str
    type: str


class Schema:
    """The columns of a collection, in order.

    Args:
        fields: (name, type) pairs with canonical types (see `Schema.parse` for text).

    Raises:
        SchemaError: if a name occurs twice.
    """

    def __init__(self, fields: Iterable[tuple[str, str]]) -> None:
        self.fields: tuple[Field, ...] = tuple(Field(name, type) for name, type in fields)
        self.names: tuple[str, ...] = tuple(field.name for field in self.fields)
        self.types: tuple[str, ...] = tuple(field.type for field in self.fields)
        self._index = {name: i for i, name in enumerate(self.names)}
        if len(self._index) < len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise SchemaError(
                f"column {twice!r} occurs twice in {', '.join(self.names)}",
                hint="rename one of them",
            )
        self._hash = hash(self.fields)

    @classmethod
    def parse(cls, ddl: str) -> Schema:
        """Returns the schema of Spark DDL, `name type, ...`; types may use Spark's synonyms.

        Raises:
            SchemaError: if the text cannot be parsed or has no columns.
        """
        text = ddl.strip()
        if text.lower().startswith("struct<"):
            text = text[7:].removesuffix(">")
        reader = TypeReader(text)
        fields = reader.fields("")
        if not fields:
            raise SchemaError(
                f"no columns in {ddl!r}", hint="write 'name type, ...', such as 'id bigint'"
            )
        return cls(fields)

    @classmethod
    def from_arrow(cls, schema: pa.Schema) -> Schema:
        """Returns the schema that holds every row of an Arrow schema.

        Raises:
            SchemaError: if a column has a type that rows cannot hold; the message names the column.
        """
        fields = []
        for field in schema:
            try:
                fields.append(Field(field.name, field_type(field)))
            except SchemaError as error:
                raise SchemaError(f"column {field.name!r}: {error}", hint=error.hint) from None
        return cls(fields)

    @cached_property
    def arrow(self) -> pa.Schema:
        """The Arrow schema of these columns."""
        return pa.schema([arrow_field(name, type) for name, type in self.fields])

    @cached_property
    def ddl(self) -> str:
        """The text that `parse` converts to this schema."""
        return ", ".join(f"{quote(name)} {type}" for name, type in self.fields)

    def index(self, name: str) -> int:
        """Returns the position of a column, by its exact name or by the only name in another case.

        Raises:
            SchemaError: if no column or several columns match; the message lists the columns.
        """
        found = self._index.get(name)
        if found is not None:
            return found
        folded = name.lower()
        near = [i for i, own in enumerate(self.names) if own.lower() == folded]
        if len(near) == 1:
            return near[0]
        columns = ", ".join(self.names)
        if near:
            raise SchemaError(
                f"column {name!r} is ambiguous: the columns are {columns}",
                hint="write it in the same case as the column",
            )
        hint = f"the columns are {columns}"
        if not name.isidentifier() and any(sign in name for sign in "(+-*/%|"):
            hint += "; to use an expression, add it first with with_columns(name='...')"
        raise SchemaError(f"no column {name!r}", hint=hint)

    def usable(self, what: str) -> Schema:
        """Returns the schema itself, after checking that expressions and Spark can use its columns.

        Args:
            what: the owner of the columns, for messages: "input 'flights'".

        Raises:
            SchemaError: if there are no columns, or if two names differ only in case.
        """
        if not self.fields:
            raise SchemaError(
                f"{what}: there are no columns",
                hint="declare at least one column, such as 'id bigint'",
            )
        seen: dict[str, str] = {}
        for name in self.names:
            other = seen.setdefault(name.lower(), name)
            if other != name:
                raise SchemaError(
                    f"{what}: columns {other!r} and {name!r} differ only in case, which SQL"
                    " ignores",
                    hint="rename one of them",
                )
        return self

    def unused(self, name: str) -> str:
        """Returns `name`, with `_` appended until no column has that name in any case."""
        taken = {own.lower() for own in self.names}
        while name.lower() in taken:
            name += "_"
        return name

    def select(self, names: Iterable[str]) -> Schema:
        """Returns the schema of the named columns, in the order of `names`."""
        return Schema(self.fields[self.index(name)] for name in names)

    def __len__(self) -> int:
        return len(self.fields)

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Schema) and self.fields == other.fields)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Schema, (tuple(tuple(field) for field in self.fields),)

    def __repr__(self) -> str:
        return f"Schema({self.ddl!r})"


def widens(old: str, new: str) -> bool:
    """Returns True if every value of type `old` is exactly a value of type `new`."""
    if old == new:
        return True
    if old in INTEGERS and new in INTEGERS:
        return INTEGERS.index(old) < INTEGERS.index(new)
    if new == "double":
        return old in ("float", "tinyint", "smallint", "int")
    if new == "float":
        return old in ("tinyint", "smallint")
    if new.startswith("decimal"):
        precision, scale = decimal_parts(new)
        if old in _DIGITS:
            return precision - scale >= _DIGITS[old]
        if old.startswith("decimal"):
            old_precision, old_scale = decimal_parts(old)
            return scale >= old_scale and precision - scale >= old_precision - old_scale
    return False
