"""Declaring: inputs by name, with their columns and their key.

An input that is there with equal columns is the input; another one of that name is an error, never
a change of the one that is there.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nosync_nb.dataflow.graph import Stage
from nosync_nb.errors import SchemaError
from nosync_nb.rows import Schema, infer_schema
from nosync_nb.session import publishing
from nosync_nb.session.input import Input
from nosync_nb.session.installation import install
from nosync_nb.session.versions import kept

if TYPE_CHECKING:
    from nosync_nb.session.session import Session


def input_(session: Session, name: str, schema: Any, key: Any) -> Input:
    """See `Session.input`."""
    wanted = _schema(schema)
    if name in session:
        return _known_input(session, name, wanted, key)
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
                raise SchemaError(f"input '{name}': a map cannot be a key")
    outcome = publishing.Outcome()
    try:
        _make(session, name, wanted, key, places, outcome)
        session._spark.follow()
    except BaseException as error:
        publishing.settle(session, error, outcome, f"input '{name}' is defined and stands")
        raise
    return session[name]  # type: ignore[return-value]


def _make(
    session: Session,
    name: str,
    wanted: Schema,
    key: Any,
    places: tuple[int, ...] | None,
    outcome: publishing.Outcome,
) -> None:
    """Makes an input, unless somebody else was faster."""
    with session._lock:
        publishing.finish(session)
        session._writable("input")
        if name in session:
            _known_input(session, name, wanted, key)
            return
        options: dict[str, object] = {"uid": _unused(session, name)}
        stage = Stage(name, wanted, key=places, begin=session.now, options=options)
        install(session, kept({**session._catalog, name: stage}), outcome=outcome)


def _known_input(session: Session, name: str, wanted: Schema | None, key: Any) -> Input:
    """The input that is there, if it is as wanted."""
    stage = session._snapshot.stage(name)
    if not stage.is_input:
        raise SchemaError(f"'{name}' is a stage, not an input", hint="use another name")
    _same_input(stage, wanted, key)
    return session[name]  # type: ignore[return-value]


def _unused(session: Session, name: str) -> str:
    """An identity that no input has, and under which no load is recorded: the name, if it is so."""
    taken = {s.uid for s in session._catalog.values() if s.is_input}
    recorded = session._ledger.has_loads(json.dumps([name])[:-1] + ",")
    return f"{name}#{session._graph.numbers}" if name in taken or recorded else name


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
