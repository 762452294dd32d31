"""Payloads of the log's frames and checkpoints: epochs, definitions, layers.

A payload is a fixed head (epoch, time), an optional JSON text, and entries. An entry names a log or
a trace by number and holds its change inline or as references to part files. Absent means empty:
an epoch that changes nothing but itself is some 60 bytes.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from nosync_nb.batch import Layout
from nosync_nb.definition import Captured, Definition
from nosync_nb.delta import Held
from nosync_nb.errors import CorruptLogError, TrustError
from nosync_nb.graph import NO_LAYOUT, Graph, Stage
from nosync_nb.log import codec
from nosync_nb.rows import Field, Schema
from nosync_nb.trace.parts import PartRef

EPOCH, DEFINITION, REPLAY = 1, 2, 3
"""Kinds of frames; REPLAY: past epochs of logs that the next definition begins to use."""

INLINE, FILES, TRACE, RESET, PAST = 0, 1, 2, 3, 4
"""Kinds of entries: a log's batch inline; in files; files of a trace's layer; a whole trace; the
payload of an epoch that a stage had missed."""

_HEAD = struct.Struct("<QdI")
_ENTRY = struct.Struct("<IBI")


class Entry(NamedTuple):
    """One change in a payload."""

    number: int
    kind: int
    data: bytes | memoryview


class Payload(NamedTuple):
    """A decoded payload; `meta` is the JSON object, empty if there was none."""

    epoch: int
    utc: float
    meta: dict[str, Any]
    entries: list[Entry]


def pack(epoch: int, utc: float, meta: Mapping[str, Any], entries: Sequence[Entry]) -> bytes:
    """The bytes of a payload. Cost: microseconds for a small epoch."""
    text = json.dumps(meta, separators=(",", ":")).encode() if meta else b""
    pieces: list[Any] = [_HEAD.pack(epoch, utc, len(text)), text]
    for number, kind, data in entries:
        pieces.append(_ENTRY.pack(number, kind, len(data)))
        pieces.append(data)
    return b"".join(pieces)


def unpack(data: bytes | memoryview) -> Payload:
    """Reads what `pack` wrote; entries are views of `data`.

    Raises:
        CorruptLogError: if lengths do not fit.
    """
    view = memoryview(data)
    try:
        epoch, utc, length = _HEAD.unpack_from(view)
        at = _HEAD.size + length
        meta = json.loads(bytes(view[_HEAD.size : at])) if length else {}
        entries = []
        while at < len(view):
            number, kind, size = _ENTRY.unpack_from(view, at)
            at += _ENTRY.size
            if at + size > len(view):
                raise ValueError("an entry is cut short")
            entries.append(Entry(number, kind, view[at : at + size]))
            at += size
    except (struct.error, ValueError) as error:
        raise CorruptLogError(f"a frame cannot be decoded: {error}") from error
    return Payload(epoch, utc, meta, entries)


def entry(number: int, layout: Layout, held: Held) -> Entry:
    """The entry of a log's batch: inline, or as the files that hold it.

    Args:
        layout: of the log; files may be arranged in another, which the entry names then.
    """
    batch = held.parts[0]
    if held.refs:
        had = batch.layout
        data: Any = held.refs if had == layout else {"layout": had, "refs": held.refs}
        return Entry(number, FILES, json.dumps(data).encode())
    return Entry(number, INLINE, codec.encode(batch.columns, layout.types, batch.diff))


def past(payload: bytes) -> Entry:
    """The entry of a missed epoch, in the definition after which the stage has it."""
    return Entry(0, PAST, payload)


def changes(payload: Payload) -> Iterator[tuple[int, Entry]]:
    """The entries of a payload, and of the epochs in it, each with its epoch."""
    for each in payload.entries:
        if each.kind == PAST:
            yield from changes(unpack(each.data))
        else:
            yield payload.epoch, each


def filed(data: bytes | memoryview, layout: Layout) -> tuple[tuple[PartRef, ...], Layout]:
    """The files of a log's batch, and how they are arranged; `layout` is the log's own."""
    found = json.loads(bytes(data))
    if isinstance(found, dict):
        layout, found = layout_of(found["layout"]), found["refs"]
    return tuple(PartRef(*r) for r in found), layout


def named(entry: Entry) -> tuple[PartRef, ...]:
    """The files that an entry names, whatever its kind."""
    if entry.kind == INLINE:
        return ()
    if entry.kind == FILES:
        return filed(entry.data, NO_LAYOUT)[0]
    return tuple(PartRef(*r) for r in json.loads(bytes(entry.data))[2])


# -- the catalog ------------------------------------------------------------------------------


def catalog_json(catalog: Mapping[str, Stage], graph: Graph, seal: Any) -> dict[str, Any]:
    """Everything that defines the dataflow, JSON-able.

    Args:
        seal: turns a captured function into signed bytes, or None if it cannot be stored.
    """
    functions: list[Captured] = []
    stages = []
    for stage in catalog.values():
        data: dict[str, Any] = {
            "name": stage.name,
            "schema": [list(f) for f in stage.schema.fields],
            "key": stage.key,
            "version": stage.version,
            "frozen": stage.frozen,
            "begin": stage.begin,
            "reason": stage.reason,
            "options": stage.options,
        }
        if stage.definition is not None:
            data["definition"] = stage.definition.to_json(functions)
        stages.append(data)
    nodes = [
        {
            "id": n.id,
            "fingerprint": n.fingerprint,
            "name": n.name,
            "log": n.log,
            "log_layout": n.log_layout,
            "traces": [[layout, number] for layout, number in n.traces.items()],
            "state": n.state,
            "stopped": n.stopped,
        }
        for n in graph
    ]
    texts = [[f.identity, f.text(lambda given: _sealed_text(given, seal))] for f in functions]
    return {"stages": stages, "functions": texts, "nodes": nodes, "numbers": graph.numbers}


def _sealed_text(captured: Captured, seal: Any) -> str | None:
    """A function as it stands in the catalog."""
    sealed = seal(captured)
    return None if sealed is None else base64.b64encode(sealed).decode()


class Unknown:
    """Stands for a function of the log that may not or cannot be loaded; calling it raises."""

    def __init__(self, why: str) -> None:
        self.why = why
        self.__name__ = "function"

    def __call__(self, *_: Any) -> Any:
        raise TrustError(
            f"a function of this stage was not restored: {self.why}",
            hint="run the cell that defines the stage",
        )


def catalog_from_json(data: Mapping[str, Any], unseal: Any) -> dict[str, Stage]:
    """The catalog; functions that were not restored are `Unknown`.

    Args:
        unseal: loads a function; None: they stay where they are, as nothing will be run.
    """
    functions: list[Captured] = []
    for identity, text in data["functions"]:
        try:
            known = unseal(base64.b64decode(text)) if text and unseal else None
            function = known or Unknown("it could not be stored")
        except TrustError as error:
            function = Unknown(str(error))
        functions.append(Captured(function, identity, text))
    catalog = {}
    for each in data["stages"]:
        definition = None
        if "definition" in each:
            definition = Definition.from_json(each["definition"], functions)
        catalog[each["name"]] = Stage(
            each["name"],
            Schema([Field(*f) for f in each["schema"]]),
            definition,
            None if each["key"] is None else tuple(each["key"]),
            each["version"],
            each["frozen"],
            each["reason"],
            each["begin"],
            dict(each["options"]),
        )
    return catalog


def layout_of(data: Sequence[Any]) -> Layout:
    """A layout from JSON."""
    types, key, order = data
    return Layout(tuple(types), None if key is None else tuple(key), order)


def restored_nodes(data: Mapping[str, Any]) -> Iterable[Any]:
    """The nodes of a catalog as the compiler can reuse them: numbers without operators."""
    from nosync_nb.graph import Node

    for n in data["nodes"]:
        yield Node(
            n["id"],
            n["fingerprint"],
            (),
            "",
            n["name"],
            log=n["log"],
            log_layout=layout_of(n["log_layout"]),
            traces={layout_of(layout): number for layout, number in n["traces"]},
            state=tuple(n["state"]),
            stopped=n.get("stopped"),
        )
