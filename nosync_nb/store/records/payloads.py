"""Encodes and decodes the payloads of frames and checkpoints: epochs, definitions, layers.

A payload is a fixed head (epoch, time), an optional JSON text, and entries. An entry names a log or
a trace by number, and contains its change inline or as references to part files. An empty change
has no entry: an epoch that changes no row takes about 60 bytes.

Recovery decodes frames in their order (`FrameReplay`). A replayed epoch takes effect with its
definition, which follows it. After a rewind the log continues from the epoch that the rewind
names, as if no later epoch had been committed.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.functions.closure import CapturedFunction, Function, UnavailableFunction
from nosync_nb.dataflow.graph import NO_LAYOUT, Graph, Node
from nosync_nb.dataflow.runtime.delta import ArrangedChange
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import CorruptLogError, TrustError
from nosync_nb.store import retention_policy
from nosync_nb.store.log import Frame, batch_codec
from nosync_nb.store.records import json_text
from nosync_nb.store.records.json_text import JsonPieceList
from nosync_nb.store.safe_decoding import CRAFTED, damage_error, guarded_decoding
from nosync_nb.trace import Layer
from nosync_nb.trace.batch import Layout
from nosync_nb.trace.parts.part_file import PartRef, refs_from_json

EPOCH, DEFINITION, REPLAY, REWIND = 1, 2, 3, 4
"""Kinds of frames. REPLAY: past epochs of logs that the next definition begins to use. REWIND: the
log continues from an earlier epoch; its frame contains a catalog, as that of a definition does."""

KINDS = (EPOCH, DEFINITION, REPLAY, REWIND)
DEFINES = (DEFINITION, REWIND)
"""Kinds of frames after which another catalog applies."""

INLINE, FILES, TRACE, RESET, PAST, CLEAR, CLOCKS, UNDONE = range(8)
"""Kinds of entries. INLINE: a log's batch inline. FILES: the files of a log's batch. TRACE: the
files of a trace's layer. RESET: the files of a whole trace. PAST: the payload of an epoch that a
stage had missed. CLEAR: empties a trace of an operator's state, before the rows that the same epoch
adds to it. CLOCKS: the provenance of the frame's changes; its number has no meaning. UNDONE: the
payload of an epoch that a rewind undoes (store/point_in_time.py)."""

NUMBERS_MAX = 2**31
"""Upper bound of the numbers of logs and traces: half of what an entry can hold."""

_COPIED_BYTES_MAX = 1 << 16
"""The size of a payload up to which copied slices cost less than views, to create and to read."""

_HEAD = struct.Struct("<QdI")
_ENTRY = struct.Struct("<IBI")


class PayloadEntry(NamedTuple):
    """One change in a payload, of the log or the trace with this number."""

    number: int
    kind: int
    data: bytes | memoryview


class Payload(NamedTuple):
    """A decoded payload; `meta` is the JSON object, or empty."""

    epoch: int
    utc: float
    meta: dict[str, Any]
    entries: list[PayloadEntry]


def encode_payload(
    epoch: int, utc: float, meta: Mapping[str, Any] | bytes, entries: Sequence[PayloadEntry]
) -> bytes:
    """Returns the bytes of a payload; `meta` may already be encoded.

    Cost: a few us for a small epoch.
    """
    pieces: list[Any] = []
    needs: list[str] = []
    for number, kind, data in entries:
        pieces += _ENTRY.pack(number, kind, len(data)), data
        if kind and kind != CLOCKS:
            needs += json_text.required_features_of_json(bytes(data))
    head = (
        meta
        if isinstance(meta, bytes)
        else json_text.header_text(meta, [*dict.fromkeys(needs)])
        if meta or needs
        else b""
    )
    return b"".join((_HEAD.pack(epoch, utc, len(head)), head, *pieces))


def decode_payload(data: bytes | memoryview) -> Payload:
    """Reads the output of `encode_payload`; entries are views of `data`, or copies if it is small.

    Raises:
        CorruptLogError: the lengths contradict each other, or an entry or a feature is unknown.
    """
    # No function calls in the loop, because this runs for each frame whenever a log is opened.
    end, new, read, size_of = len(data), tuple.__new__, _ENTRY.unpack_from, _ENTRY.size
    view = data if end <= _COPIED_BYTES_MAX else memoryview(data)
    try:
        epoch, utc, length = _HEAD.unpack_from(view)
        at = _HEAD.size + length
        meta = json.loads(bytes(view[_HEAD.size : at])) if length else {}
        if json_text.NEEDS in meta:
            json_text.check_features(meta[json_text.NEEDS])
        entries = []
        is_valid = isinstance(meta, dict)
        while at < end:
            number, kind, size = read(view, at)
            start = at + size_of
            at = start + size
            if at > end:
                raise ValueError("an entry is truncated")
            if kind > UNDONE:
                raise json_text.unknown_feature_error(f"an entry of kind {kind}")
            if number >= NUMBERS_MAX or (kind == CLEAR and size):
                is_valid = False
            entries.append(new(PayloadEntry, (number, kind, view[start:at])))
        if not is_valid:
            raise ValueError("it has an unknown type")
    except CRAFTED as error:
        raise damage_error("a frame", error) from error
    return new(Payload, (epoch, utc, meta, entries))


def payload_epoch(data: bytes | memoryview) -> int:
    """Returns the epoch of a payload without decoding the rest."""
    return int.from_bytes(data[:8], "little")


def batch_entry(number: int, layout: Layout, held: ArrangedChange) -> PayloadEntry:
    """Returns the entry of a log's batch: inline, or with the names of its files.

    Args:
        layout: the layout of the log. If the files have another layout, the entry contains it.
    """
    batch = held.parts[0]
    if held.refs:
        file_layout = batch.layout
        data: Any = (
            held.refs if file_layout == layout else {"layout": file_layout, "refs": held.refs}
        )
        return PayloadEntry(number, FILES, json.dumps(data).encode())
    return PayloadEntry(
        number, INLINE, batch_codec.encode_batch(batch.columns, layout.types, batch.diff)
    )


def inline_entries(
    logged: Iterable[tuple[int, Layout, ArrangedChange]], emptied: Sequence[int], most: int
) -> list[PayloadEntry] | None:
    """Returns the entries of a small epoch; None if a batch in it takes more than `most` bytes.

    Args:
        logged: the changes of the epoch, each with the number and the layout of its log.
        emptied: the traces that the epoch empties.
    """
    entries, new = [], tuple.__new__
    for number, layout, held in logged:
        parts, refs = held
        if refs:
            entries.append(batch_entry(number, layout, held))
            continue
        batch = parts[0]
        data = batch_codec.encode_small(batch.columns, layout.types, batch.diff, most)
        if data is None:
            return None
        entries.append(new(PayloadEntry, (number, INLINE, data)))
    if emptied:
        entries[:0] = map(clear_entry, emptied)
    return entries


def clear_entry(number: int) -> PayloadEntry:
    """Returns the entry that empties a trace."""
    return PayloadEntry(number, CLEAR, b"")


def layer_entry(kind: int, number: int, layer: Layer) -> PayloadEntry:
    """Returns the entry of a trace's layer that is stored in files."""
    return PayloadEntry(number, kind, json.dumps([layer.lower, layer.upper, layer.files]).encode())


def missed_epoch_entry(payload: bytes) -> PayloadEntry:
    """Returns the entry of a missed epoch, for the definition with which the stage catches up."""
    return PayloadEntry(0, PAST, payload)


def missed_epoch_entries(
    made: Iterable[tuple[int, Sequence[PayloadEntry]]], utc: float
) -> list[PayloadEntry]:
    """Returns the entries of missed epochs; see `missed_epoch_entry`."""
    return [missed_epoch_entry(encode_payload(epoch, utc, {}, entries)) for epoch, entries in made]


def entries_by_log(payloads: Iterable[Payload]) -> dict[int, list[tuple[int, PayloadEntry]]]:
    """Returns the entries of payloads by log or trace, including those of missed epochs."""
    by_log: dict[int, list[tuple[int, PayloadEntry]]] = {}
    for payload in payloads:
        _add_entries(payload, by_log)
    return by_log


def _add_entries(payload: Payload, by_log: dict[int, list[tuple[int, PayloadEntry]]]) -> None:
    epoch = payload.epoch
    for each in payload.entries:
        number, kind, data = each
        if kind < PAST or kind == CLEAR:
            if number in by_log:
                by_log[number].append((epoch, each))
            else:
                by_log[number] = [(epoch, each)]
        elif kind == PAST:
            _add_entries(decode_payload(data), by_log)


def batch_files(data: bytes | memoryview, layout: Layout) -> tuple[tuple[PartRef, ...], Layout]:
    """Returns the files of a log's batch and their layout; `layout` is the layout of the log."""
    with guarded_decoding("the files of a frame"):
        value = json.loads(bytes(data))
        if isinstance(value, dict):
            layout, value = Layout.from_json(value["layout"]), value["refs"]
        return refs_from_json(value), layout


WITHOUT_FILES = frozenset((INLINE, CLEAR, CLOCKS))
"""The kinds of entries that name no files."""


def files_of_entry(epoch: int, entry: PayloadEntry) -> tuple[range, tuple[PartRef, ...]]:
    """Returns the files that an entry names, and the epochs of their rows.

    The kind of the entry must not be in `WITHOUT_FILES`.
    """
    if entry.kind == FILES:
        return range(epoch, epoch + 1), batch_files(entry.data, NO_LAYOUT)[0]
    lower, upper, refs = layer_of(entry)
    return range(lower, upper), refs


def layer_of(entry: PayloadEntry) -> tuple[int, int, tuple[PartRef, ...]]:
    """Returns the interval and the files of a layer that an entry names."""
    with guarded_decoding("a layer of a frame"):
        lower, upper, listed = json.loads(bytes(entry.data))
        if type(lower) is not int or type(upper) is not int or not 0 <= lower < upper:
            raise ValueError(f"[{lower!r:.40}, {upper!r:.40}) is not an interval")
        return lower, upper, refs_from_json(listed)


# -- the catalog ------------------------------------------------------------------------------


Seal = Callable[[CapturedFunction, str], str | None]
"""Returns the signed text of a function for a context; None if the function cannot be stored."""
Unseal = Callable[[str, str, str], Function]
"""Loads a function from its text. Raises TrustError unless the text was signed for the context and
the function has the identity.
"""


def context_of(log_id: bytes, stage: str, place: int, identity: str) -> str:
    """Returns the context for which a function is signed.

    The context consists of the log, the stage, the position of the function in it, and its
    identity.
    """
    return json.dumps([log_id.hex(), stage, place, identity])


class CatalogPieces:
    """The encoded pieces of a session's catalog, cached for the next one.

    The functions of stages that may run are signed for their context; the others keep their stored
    text.

    Args:
        log_id: the id of the log to which the catalogs are written.
    """

    def __init__(self, log_id: bytes, seal: Seal) -> None:
        self._stages: json_text.JsonPieceCache[str, Stage] = json_text.JsonPieceCache(
            lambda stage: stage, lambda stage: _stage_json(stage, log_id, seal)
        )
        self._nodes: json_text.JsonPieceCache[int, Node] = json_text.JsonPieceCache(
            _node_state, lambda node: _node_json(_node_state(node))
        )

    def pieces_of(
        self, catalog: Mapping[str, Stage], graph: Graph
    ) -> tuple[JsonPieceList, JsonPieceList]:
        """Returns the stages of a catalog, and the nodes of its graph."""
        return self._stages.pieces_of(catalog), self._nodes.pieces_of(graph.nodes)


def catalog_json(
    catalog: Mapping[str, Stage],
    graph: Graph,
    pieces: CatalogPieces,
    kept: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns everything that defines the dataflow as JSON.

    Args:
        pieces: the cached pieces of the last catalog; updated to those of this one.
        kept: the retention policy, if it is not the default; see `Retention.to_json`.

    Cost: proportional to the changes since the last catalog, plus one join of the text.
    """
    stages, nodes = pieces.pieces_of(catalog, graph)
    return json_text.CatalogText(
        {"stages": stages, "nodes": nodes, "numbers": graph.numbers, **(kept or {})}
    )


_NODE = ("id", "fingerprint", "name", "log", "log_layout", "traces", "state", "plan", "stopped")


def _node_state(n: Node) -> tuple[Any, ...]:
    traces = [[layout, number] for layout, number in n.traces.items()]
    named = n.id, n.fingerprint, n.name, n.log, n.log_layout
    return *named, traces, n.state, n.plan, n.stopped


def _node_json(state: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(_NODE, state, strict=True))


def _stage_json(stage: Stage, log_id: bytes, seal: Seal) -> dict[str, Any]:
    data = stage.to_json()
    if stage.definition is not None:
        functions: list[CapturedFunction] = []
        data["definition"] = stage.definition.to_json(functions)
        fixed = stage.frozen or stage.signer is not None
        data["functions"] = [
            [
                f.identity,
                f.text(None if fixed else context_of(log_id, stage.name, i, f.identity), seal),
            ]
            for i, f in enumerate(functions)
        ]
    return data


def foreign_json(data: Mapping[str, Any], signer: str) -> dict[str, Any]:
    """Returns a catalog that this user has not signed, with the signer's key id in its stages.

    Only the nodes of named stages, which have the computed rows, remain. The state of operators is
    not trusted. The retention policy is removed, because an untrusted log must not make us drop
    history.
    """
    stages = []
    for stage in data["stages"]:
        copy = dict(stage)
        if "definition" in copy:
            copy["signer"] = signer
        stages.append(copy)
    nodes = [{**node, "state": []} for node in data["nodes"] if node["name"] is not None]
    return {**retention_policy.without_pins(data), "stages": stages, "nodes": nodes}


def catalog_from_json(
    data: Mapping[str, Any], log_id: bytes, unseal: Unseal | None
) -> dict[str, Stage]:
    """Returns the stages of a catalog; functions that were not restored are `UnavailableFunction`.

    Args:
        unseal: loads the functions of stages that this user signed and that may run; `None` means
            that no function is loaded, because nothing will be run.
    """
    catalog = {}
    for each in data["stages"]:
        signer = each.get("signer")
        load = None if signer is not None or each["life"]["is"] == "frozen" else unseal
        definition = None
        if "definition" in each:
            name, stored = each["name"], each["functions"]
            functions = [
                _restore_function(f, context_of(log_id, name, i, f[0]), load)
                for i, f in enumerate(stored)
            ]
            definition = Definition.from_json(each["definition"], functions)
        catalog[each["name"]] = Stage.from_json(each, definition)
    return catalog


def _restore_function(data: Sequence[Any], context: str, unseal: Unseal | None) -> CapturedFunction:
    """Returns a function of a stage; loads it with `unseal`, if that is given."""
    identity, text = data
    function: Function = UnavailableFunction("it could not be stored")
    if text:
        try:
            function = (
                unseal(text, context, identity)
                if unseal
                else UnavailableFunction("it must not run here")
            )
        except TrustError as error:
            function = UnavailableFunction(str(error))
    return CapturedFunction(function, identity, text, context)


def restored_nodes(data: Mapping[str, Any]) -> Iterable[Node]:
    """Yields the nodes of a catalog for the compiler; they have numbers, but no operators."""
    for n in data["nodes"]:
        yield Node(
            n["id"],
            n["fingerprint"],
            (),
            "",
            n["name"],
            log=n["log"],
            log_layout=Layout.from_json(n["log_layout"]),
            traces={Layout.from_json(layout): number for layout, number in n["traces"]},
            state=tuple(n["state"]),
            plan=n["plan"],
            stopped=n["stopped"],
        )


Changes = dict[int, list[tuple[int, PayloadEntry]]]
"""Entries by log or trace, each with its epoch, oldest first."""


class FrameContent(NamedTuple):
    """The decoded content of a frame."""

    seq: int
    kind: int
    payload: Payload


class FrameReplay:
    """Decodes frames in their order; each call continues after the previous one."""

    def __init__(self) -> None:
        self._pending: list[FrameContent] = []

    def contents_of(self, frames: Iterable[Frame]) -> list[FrameContent]:
        """Returns the contents of frames, in order.

        Replayed epochs are returned with their definition, which follows them. Those of a failed
        definition are dropped. If the frames end before the definition, the next call returns them.

        Raises:
            CorruptLogError: a frame is invalid.
        """
        contents: list[FrameContent] = []
        unpack, new, plain = decode_payload, tuple.__new__, EPOCH
        for (seq, _), kind, data, _, _ in frames:  # for each frame, whenever a log is opened
            each = new(FrameContent, (seq, kind, unpack(data)))
            if kind == plain and not self._pending:
                contents.append(each)
                continue
            if each.kind not in KINDS:
                raise json_text.unknown_feature_error(f"a frame of kind {each.kind}")
            if each.kind == REPLAY:
                self._pending.append(each)
                continue
            count = each.payload.meta.get("replays", 0) if each.kind in DEFINES else 0
            if type(count) is not int or not 0 <= count <= len(self._pending):
                raise CorruptLogError(
                    f"frame {each.seq} defines stages with {count!r} replayed epochs, of which "
                    f"{len(self._pending)} precede it",
                    hint="restore the log from a copy",
                )
            contents += [*self._pending[len(self._pending) - count :], each]
            self._pending.clear()
        return contents


def rewind_target(tail: Iterable[FrameContent]) -> int | None:
    """Returns the earliest epoch that frames rewind to; None if there is no rewind."""
    return min((each.payload.epoch for each in tail if each.kind == REWIND), default=None)


def frame_changes(tail: Iterable[FrameContent]) -> Changes:
    """Returns the entries of frames by log or trace, without those that a rewind has undone."""
    changes: Changes = {}
    run: list[Payload] = []
    for each in tail:
        if each.kind == REWIND:
            changes = _join_changes(changes, entries_by_log(run), each.payload.epoch)
            run = []
        run.append(each.payload)
    return _join_changes(changes, entries_by_log(run)) if changes else entries_by_log(run)


def _join_changes(one: Changes, other: Changes, upto: int | None = None) -> Changes:
    """Returns changes followed by later ones; without those after the epoch `upto`, if given."""
    changes = {
        number: [*one.get(number, ()), *other.get(number, ())] for number in {**one, **other}
    }
    if upto is None:
        return changes
    remaining = (
        (number, [each for each in entries if each[0] <= upto])
        for number, entries in changes.items()
    )
    return {number: entries for number, entries in remaining if entries}
