"""Naming: which files of rows a frame or a checkpoint names; without them it says nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nosync_nb.files.disk import Files
from nosync_nb.store import journal
from nosync_nb.store.decoding import decoding
from nosync_nb.store.journal import INLINE, Entry, Payload
from nosync_nb.trace.parts import refs_from_json
from nosync_nb.trace.past.history import History


def of_changes(changes: Mapping[int, Sequence[tuple[int, Entry]]]) -> set[str]:
    """The files that entries of frames name; see `journal.changes`.

    Raises:
        CorruptLogError: what they say makes no sense.
    """
    filed = (entry for each in changes.values() for _, entry in each if entry.kind != INLINE)
    return {ref.path for entry in filed for ref in journal.named(entry)}


def of_frame(payload: Payload) -> set[str]:
    """The files that a frame names; see `of_changes`."""
    return of_changes(journal.changes([payload]))


def of_layers(meta: Mapping[str, Any]) -> set[str]:
    """The files of the layers that a checkpoint lists."""
    with decoding("a checkpoint"):
        listed = [layer for _, _, layers in meta.get("layers", {}).values() for layer in layers]
        return {ref.path for _, _, refs in listed for ref in refs_from_json(refs or ())}


def of_checkpoint(payload: Payload, packs: str, files: Files) -> set[str]:
    """The files that the state in a checkpoint lies in: layers, packs, and what packs refer to.

    Args:
        packs: the folder of the log's history; nothing in it is opened.
    """
    with decoding("a checkpoint"):
        past = History.restore(packs, payload.meta.get("history"), write=False, files=files)
    return of_layers(payload.meta) | past.files()
