"""The store: a session's versions made durable, and brought back.

It ties the log (the order of everything), part files (large layers) and the history (old epochs)
together. What the log names exists: part files are written and synced before the frame that names
them, and a file that no frame and no checkpoint names is nobody's and is removed at opening.

Restoring reads the checkpoint's layers (mapped, not read), then the tail: batches of one trace are
concatenated and arranged once, whatever their number.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from nosync_nb import journal, restoring
from nosync_nb.batch import UNORDERED, Batch, Layout, arrange, concat_updates
from nosync_nb.dataflow import Draft, Version
from nosync_nb.delta import Held
from nosync_nb.files import Files
from nosync_nb.graph import Graph
from nosync_nb.journal import Entry, Payload
from nosync_nb.log import Frame, Log, Position, codec
from nosync_nb.trace import Layer, Trace
from nosync_nb.trace.history import History
from nosync_nb.trace.parts import PartRef, open_part, write_parts

SPILL_ROWS = 1 << 16
"""Batches above this many rows go to part files, not into frames."""

SYNC_DELAY_S = 0.02
"""How long the syncing thread lets epochs gather, unless somebody waits for it: each time it runs
it takes the interpreter's lock away from the committing thread."""

TIMES = 0
"""The number under which a checkpoint keeps the times of epochs; no trace has it."""


class Told(NamedTuple):
    """What a frame says."""

    seq: int
    kind: int
    payload: Payload


class Store:
    """The durable side of a session, in one folder.

    Attributes:
        tail: the recovered frames after the checkpoint, until `release`.
        followed: frames that were read since by a reader.
        verified: when the log was open and its tail verified, by the performance counter.
        meta: the checkpoint's JSON, empty if there was none.
        position: the last recovered frame after the checkpoint, if any.
    """

    def __init__(self, path: str, log: Log, files: Files) -> None:
        self.verified = time.perf_counter()
        self.path = path
        self.parts = os.path.join(path, "layers")
        self.log = log
        self.files = files
        if log.mode == "w":
            self.files.make_folder(self.parts)
        self.meta: dict[str, Any] = {}
        self.epoch = 0
        self._inline: dict[int, list[Entry]] = {}
        payload = log.checkpoint
        if payload is not None:
            found = journal.unpack(payload)
            self.meta = found.meta
            self.epoch = found.epoch
            for each in found.entries:
                self._inline.setdefault(each.number, []).append(each)
        frames = list(log.frames())
        self.position = frames[-1].position if frames else None
        self.tail = self.decoded(frames)
        self.followed = 0
        log.forget()
        self.packs = os.path.join(path, "history")
        self.history = History.restore(
            self.packs, self.meta.get("history"), write=log.mode == "w", files=files
        )

    @classmethod
    def open(
        cls,
        path: str,
        *,
        mode: Literal["r", "w"] = "w",
        takeover: bool = False,
        files: Files | None = None,
    ) -> Store:
        """Opens the folder; see `Log.open` for the errors.

        Args:
            files: the disk; tests put another in its place.
        """
        disk = files or Files()
        log = Log.open(path, mode=mode, takeover=takeover, files=disk, delay_s=SYNC_DELAY_S)
        try:
            return cls(path, log, disk)
        except BaseException:
            log.close()
            raise

    # -- writing -----------------------------------------------------------------------------

    def write_epoch(self, draft: Draft, utc: float, meta: Mapping[str, Any]) -> Position:
        """Writes an epoch's frame, after which it survives the death of this process."""
        if draft.largest <= SPILL_ROWS:
            entries = [journal.entry(*each) for each in draft.logged]
        else:
            entries = self._entries(draft)
        position = self.log.append(journal.EPOCH, journal.pack(draft.epoch, utc, meta, entries))
        self.log.note(draft.epoch)
        return position

    def write_replay(self, draft: Draft) -> Position:
        """Writes a past epoch of a version that the next definition will make visible."""
        payload = journal.pack(draft.epoch, time.time(), {}, self._entries(draft))
        return self.log.append(journal.REPLAY, payload)

    def write_definition(
        self, draft: Draft, before: Version, catalog: Mapping[str, Any], missed: Iterable[Draft]
    ) -> Position:
        """Writes a definition's frame: the catalog, and what new nodes made of what was there.

        Args:
            missed: past epochs of stages that had lagged behind; all of them count, or none.
        """
        now = time.time()
        past = (journal.pack(each.epoch, now, {}, self._entries(each)) for each in missed)
        entries = [*map(journal.past, past), *self._entries(draft, before)]
        payload = journal.pack(draft.epoch, now, {"catalog": catalog}, entries)
        return self.log.append(journal.DEFINITION, payload)

    def _entries(self, draft: Draft, before: Version | None = None) -> list[Entry]:
        """The entries of a draft; large batches and layers are spilled to files first.

        A trace that a definition added is named as a whole (`RESET`): its log may be older.
        """
        entries = []
        spilled: dict[int, tuple[Batch, Held]] = {}  # a batch that is kept keeps its id
        for at, (number, layout, held) in enumerate(draft.logged):
            if not held.refs and len(held.parts[0]) > SPILL_ROWS:
                (batch,) = held.parts
                if batch.layout is UNORDERED:
                    batch = arrange(layout, batch.updates)
                held = self.spill([batch], batch.layout, f"log{number}-{draft.epoch}")
                spilled[id(batch)] = batch, held
                draft.logged[at] = (number, layout, held)
            entries.append(journal.entry(number, layout, held))
        for number, trace in draft.traces.items():
            if not trace.layers or trace.layers[-1].upper <= draft.epoch:
                continue
            last = trace.layers[-1]
            if last.rows_count <= SPILL_ROWS and not last.files:
                continue
            if not last.files:
                known = spilled.get(id(last.parts[0])) if len(last.parts) == 1 else None
                if known is not None:
                    held = known[1]
                else:
                    stem = f"trace{number}-{last.lower}-{last.upper}"
                    held = self.spill(last.parts, trace.layout, stem)
                last = Layer(last.lower, last.upper, held.parts, held.refs)
                draft.traces[number] = Trace(trace.layout, (*trace.layers[:-1], last))
            if before is not None and number in before.traces:
                continue
            if last.lower == draft.epoch and (before is None or len(trace.layers) == 1):
                kind = journal.TRACE if before is None else journal.RESET
                entries.append(self._trace_entry(kind, number, last))
        return entries

    def _trace_entry(self, kind: int, number: int, layer: Layer) -> Entry:
        data = [layer.lower, layer.upper, layer.files]
        return Entry(number, kind, json.dumps(data).encode())

    def spill(self, parts: Iterable[Batch], layout: Layout, stem: str) -> Held:
        """Writes batches to part files and maps them back."""
        stem = f"{stem}-g{self.log.generation}"
        refs = write_parts(self.parts, list(parts), stem, files=self.files)
        return Held(tuple(self.open_part(r, layout) for r in refs), tuple(refs))

    def open_part(self, ref: PartRef, layout: Layout) -> Batch:
        """Maps a part file that was just written; costs a header, whatever its size."""
        return open_part(self.parts, ref, layout, files=self.files)

    def checked_part(self, ref: PartRef, layout: Layout) -> Batch:
        """Maps a part file of before, after comparing its bytes with their checksums."""
        return open_part(self.parts, ref, layout, files=self.files, checked=True)

    def checkpoint_payload(
        self, version: Version, graph: Graph, meta: Mapping[str, Any], times: bytes
    ) -> bytes:
        """The state of a version: layers by file, and those in memory inline.

        Args:
            times: when each epoch was committed, doubles of seconds UTC.
        """
        layers: dict[str, Any] = {}
        entries = [Entry(TIMES, journal.INLINE, times)]
        owner = restoring.trace_logs(graph)
        for number, trace in version.traces.items():
            if number not in owner:
                continue
            listed = []
            for layer in trace.layers:
                if layer.files:
                    listed.append([layer.lower, layer.upper, layer.files])
                elif layer.rows_count:
                    listed.append([layer.lower, layer.upper, None])
                    updates = concat_updates([p.updates for p in layer.parts], trace.layout.types)
                    data = codec.encode(updates.columns, trace.layout.types, updates.diff)
                    entries.append(Entry(number, journal.INLINE, data))
            layers[str(number)] = [owner[number], trace.layout, listed]
        meta = {**meta, "layers": layers, "history": self.history.manifest()}
        return journal.pack(version.epoch, time.time(), meta, entries)

    @property
    def times(self) -> bytes:
        """The checkpoint's times of epochs."""
        found = self._inline.get(TIMES)
        return bytes(found[0].data) if found else b""

    # -- restoring ---------------------------------------------------------------------------

    def decoded(self, frames: Iterable[Frame]) -> list[Told]:
        """What frames say."""
        return [Told(f.position.seq, f.kind, journal.unpack(f.payload)) for f in frames]

    def remember(self, graph: Graph, tail: Iterable[Told]) -> None:
        """Gives the history of named collections what frames say."""
        changes = restoring.changes_of(each.payload for each in tail)
        restoring.remembered(self.history, graph, changes)

    def restored(self, graph: Graph) -> dict[int, Trace]:
        """The traces after the last frame; costs the same whatever they hold."""
        known = restoring.of_checkpoint(
            self.meta.get("layers", {}), self._inline, self.checked_part
        )
        changes = restoring.changes_of(each.payload for each in self.tail)
        return restoring.extended(graph, known, changes, self.checked_part)

    def followed_by(
        self, graph: Graph, before: Version, old: Graph, tail: list[Told]
    ) -> dict[int, Trace]:
        """The traces that frames make of those before them."""
        known = restoring.of_version(before, old)
        changes = restoring.changes_of(each.payload for each in tail)
        return restoring.extended(graph, known, changes, self.checked_part)

    def release(self) -> None:
        """Lets go of what `restored` needs."""
        self.tail = []
        self._inline = {}

    # -- files nobody names ------------------------------------------------------------------

    def remove(self, names: Iterable[str]) -> None:
        """Deletes files; those that are mapped stay readable to whoever mapped them."""
        for name in names:
            folder = self.packs if name.endswith(".pack") else self.parts
            self.files.unlink(os.path.join(folder, name))

    def sweep(self) -> list[str]:
        """Deletes what a dead owner left half done: files of ours that nothing recovered names.

        Returns:
            the files that are named and missing.
        """
        named = self._named()
        there = [*self.files.names(self.parts), *self.files.names(self.packs)]
        self.remove(n for n in there if n.endswith((".arrow", ".pack")) and n not in named)
        return sorted(named.difference(there, self.meta.get("retired", ())))

    def _named(self) -> set[str]:
        """Every file that the checkpoint, the frames after it, or the history name."""
        named = self.history.files().union(self.meta.get("retired", ()))
        for _, _, layers in self.meta.get("layers", {}).values():
            named.update(ref[0] for _, _, refs in layers for ref in refs or ())
        for told in self.tail:
            for _, entry in journal.changes(told.payload):
                named.update(ref.path for ref in journal.named(entry))
        return named

    def close(self) -> None:
        """Syncs and leaves the mark of a proper end."""
        self.log.close()
