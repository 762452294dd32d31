"""Declaring: inputs by name, with their columns and their key.

An input that is there with equal columns is the input; another one of that name is an error, never
a change of the one that is there.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import SchemaError
from nosync_nb.rows import Schema, infer_schema
from nosync_nb.session.backfill.apply_catalog import CatalogInstaller
from nosync_nb.session.planning.definition_diff import unchanged_decision
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.session.state.writer_lock import DefinitionOutcome, WriterLock
from nosync_nb.spark.connection import SparkConnection


class InputDeclarations:
    """Declares the inputs of a session; owns the names of those made from data."""

    def __init__(
        self,
        gate: WriterLock,
        publisher: Publisher,
        installation: CatalogInstaller,
        link: SparkConnection,
    ) -> None:
        self._gate = gate
        self._publisher = publisher
        self._installation = installation
        self._link = link
        self._from_data: list[str] = []

    def from_data(self) -> list[str]:
        """The inputs made from data that has rows, since this was asked last: they took none."""
        names, self._from_data = self._from_data, []
        return names

    def declare(self, name: str, schema: Any, key: Any) -> None:
        """Sees to it that an input is there, with these columns and this key; or raises."""
        wanted = _schema(schema)
        if self._is_there(name, wanted, key):
            return
        if wanted is None:
            raise SchemaError(
                f"input '{name}' needs columns",
                hint=f"session.input('{name}', 'id bigint, name string')",
            )
        wanted.usable(f"input '{name}'")
        places = None
        if key is not None:
            names = [key] if isinstance(key, str) else list(key)
            places = tuple(wanted.index(k) for k in names)
            for place in places:
                if wanted.types[place].startswith("map"):
                    column = wanted.names[place]
                    raise SchemaError(
                        f"input '{name}': '{column}' is a map, and maps cannot be keys",
                        hint="key the input by other columns, or declare it without key=",
                    )
        outcome = DefinitionOutcome()
        try:
            self._make(name, wanted, key, places, outcome)
            if _has_rows(schema):
                self._from_data.append(name)
            self._link.follow()
        except BaseException as error:
            self._gate.settle(error, outcome, f"input '{name}' is defined and stands")
            raise

    def _make(
        self,
        name: str,
        wanted: Schema,
        key: Any,
        places: tuple[int, ...] | None,
        outcome: DefinitionOutcome,
    ) -> None:
        """Makes an input, unless somebody else was faster."""
        with self._gate.lock:
            self._gate.turn("input")
            if self._is_there(name, wanted, key):
                return
            now, catalog = self._publisher.now, self._publisher.snapshot.catalog
            uid = self._unused(name)
            stage = Stage(name, wanted, key=places, begin=now, uid=uid).identified({})
            self._installation.install(
                unchanged_decision({**catalog, name: stage}), outcome=outcome
            )

    def _is_there(self, name: str, wanted: Schema | None, key: Any) -> bool:
        """Whether the input is there, which is as wanted then."""
        stage = self._publisher.snapshot.catalog.get(name)
        if stage is None:
            return False
        if not stage.is_input:
            raise SchemaError(f"'{name}' is a stage, not an input", hint="use another name")
        _same_input(stage, wanted, key)
        return True

    def _unused(self, name: str) -> str:
        """An identity that no input has, under which no load is recorded: the name, if it is so."""
        snapshot = self._publisher.snapshot
        taken = {s.uid for s in snapshot.catalog.values() if s.is_input}
        recorded = self._publisher.ledger.has_loads(json.dumps([name])[:-1] + ",")
        return f"{name}#{snapshot.graph.numbers}" if name in taken or recorded else name


def _schema(schema: Any) -> Schema | None:
    if schema is None or isinstance(schema, Schema):
        return schema
    if isinstance(schema, str):
        return Schema.parse(schema)
    if type(schema).__module__.startswith("pyspark.sql"):
        from nosync_nb.spark import ingest

        return ingest.schema_of(schema)
    if hasattr(schema, "__arrow_c_schema__") and not hasattr(schema, "__arrow_c_stream__"):
        return Schema.from_arrow(_arrow_schema(schema))
    return infer_schema(schema)


def _has_rows(schema: Any) -> bool:
    """Whether the columns were taken from data with rows; as far as that is known."""
    if isinstance(schema, str | Schema | pa.Schema):
        return False
    if hasattr(schema, "__arrow_c_schema__") and not hasattr(schema, "__arrow_c_stream__"):
        return False
    if type(schema).__module__.startswith("pyspark.sql"):
        return hasattr(schema, "schema")  # a DataFrame; a StructType has none
    try:
        return len(schema) > 0
    except TypeError:  # a stream: nobody knows before it is read
        return True


def _arrow_schema(given: Any) -> pa.Schema:
    """What exports an Arrow schema, as one.

    Raises:
        SchemaError: if it is the type of one column.
    """
    try:
        return pa.schema(given)
    except (pa.ArrowException, TypeError, ValueError) as error:
        said = str(error).strip().partition("\n")[0]
        raise SchemaError(
            f"a {type(given).__name__} is no schema of a table: {said}",
            hint="give the columns as text, 'name type, ...', or as a pyarrow.Schema",
        ) from None


def _same_input(stage: Stage, wanted: Schema | None, key: Any) -> None:
    if wanted is not None and wanted != stage.schema:
        raise SchemaError(
            f"input '{stage.name}' has columns ({stage.schema.ddl}), not ({wanted.ddl})",
            hint=f"use another name, or drop it first: session.drop('{stage.name}', cascade=True)",
        )
    names = None if key is None else [key] if isinstance(key, str) else list(key)
    held = None if stage.key is None else [stage.schema.names[i] for i in stage.key]
    if names is not None and names != held:
        raise SchemaError(
            f"input '{stage.name}' has key {held}, not {names}",
            hint=f"leave key out, use another name, or drop it first: session.drop('{stage.name}')",
        )
