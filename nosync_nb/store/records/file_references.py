"""Naming: which files of rows a frame or a checkpoint names; without them it says nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from nosync_nb.files.filesystem import Files
from nosync_nb.store import lazy_layer
from nosync_nb.store.records import payloads
from nosync_nb.store.records.payloads import INLINE, Payload, PayloadEntry
from nosync_nb.store.safe_decoding import guarded_decoding
from nosync_nb.trace.history import pack_tree
from nosync_nb.trace.history.history import History


class FileReference(NamedTuple):
    """A file of rows that a log names, with what it has of it.

    Attributes:
        size, digest: None of a part that a pack alone refers to.
    """

    name: str
    size: int | None = None
    digest: str | None = None


def references_of_changes(changes: Mapping[int, Sequence[tuple[int, PayloadEntry]]]) -> set[str]:
    """The files that entries of frames name; see `journal.changes`.

    Raises:
        CorruptLogError: what they say makes no sense.
    """
    filed = (entry for each in changes.values() for _, entry in each if entry.kind != INLINE)
    return {ref.path for entry in filed for ref in payloads.entry_files(entry)}


def references_of_layers(meta: Mapping[str, Any]) -> set[str]:
    """The files of the layers that a checkpoint lists."""
    with guarded_decoding("a checkpoint"):
        listed = [layer for _, _, layers in meta.get("layers", {}).values() for layer in layers]
        return {ref.path for *_, refs in listed for ref in lazy_layer.layer_refs(refs)}


def check_history(payload: Payload, packs: str, files: Files) -> None:
    """Raises CorruptLogError unless the past that a checkpoint describes is of a known format.

    Args:
        packs: the folder of the log's history; nothing in it is opened.
    """
    manifest = payload.meta.get("history")
    if manifest is not None:
        with guarded_decoding("a checkpoint"):
            History.restore(packs, manifest, write=False, files=files)


def file_references(
    meta: Mapping[str, Any], changes: Sequence[Mapping[int, Any]]
) -> dict[str, FileReference]:
    """The files that a checkpoint and entries of frames name, by their names.

    Args:
        meta: the checkpoint's; empty without one.
        changes: what frames hold, see `journal.changes`.
    """
    known: dict[str, FileReference] = {}
    if not meta and not any(changes):
        return known
    with guarded_decoding("the log"):
        for each in (*_of_meta(meta), *(one for some in changes for one in _of_entries(some))):
            if each.digest is not None or each.name not in known:
                known[each.name] = each
    return known


def _of_entries(
    changes: Mapping[int, Sequence[tuple[int, PayloadEntry]]],
) -> Iterator[FileReference]:
    for some in changes.values():
        for _, entry in some:
            for ref in payloads.entry_files(entry):
                yield FileReference(ref.path, ref.size_bytes, ref.digest)


def _of_meta(meta: Mapping[str, Any]) -> Iterator[FileReference]:
    for _, _, layers in meta.get("layers", {}).values():
        for _, _, refs in layers:
            for ref in lazy_layer.layer_refs(refs):
                yield FileReference(ref.path, ref.size_bytes, ref.digest)
    history = meta.get("history") or {"tree": ()}
    for top in map(pack_tree.node_from_json, history["tree"]):
        for node in top.walk():
            yield FileReference(node.name, node.size_bytes, node.digest)
            yield from map(FileReference, node.parts)
