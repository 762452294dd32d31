"""The store: makes the versions of a session durable, and recovers them.

It combines the log (the order of all events), part files (large layers) and the history (old
epochs). Every file that the log names exists: part files are written and synced before the frame
that names them. A file that no frame and no checkpoint names is removed at the next opening.

Recovery restores the layers of the checkpoint without reading them. Then it reads the tail: the
batches of one trace are concatenated and arranged once, independent of their number.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from nosync_nb import rows
from nosync_nb.dataflow.graph import Graph
from nosync_nb.dataflow.runtime.delta import ArrangedChange, ArrangedDifference
from nosync_nb.dataflow.runtime.epoch_result import EpochResult, VersionState
from nosync_nb.errors import CorruptLogError, DurabilityError
from nosync_nb.files import memory_map
from nosync_nb.files.filesystem import Files
from nosync_nb.files.safe_names import (
    PACK,
    PART,
    checked_file_name,
    checked_path_within,
    is_safe_file_name,
)
from nosync_nb.store import point_in_time, provenance, trace_recovery
from nosync_nb.store.lazy_layer import HistoryLayer
from nosync_nb.store.log import Frame, FramePosition, Log, folder
from nosync_nb.store.ownership_history import OwnershipHistory
from nosync_nb.store.records import file_references, payloads
from nosync_nb.store.records.json_text import CheckpointText
from nosync_nb.store.records.payloads import FrameContent, FrameReplay, PayloadEntry, rewind_target
from nosync_nb.store.safe_decoding import guarded_decoding
from nosync_nb.store.trace_recovery import Changes
from nosync_nb.trace import Layer, Trace
from nosync_nb.trace.batch import (
    UNORDERED,
    Batch,
    Hashes,
    Layout,
    Updates,
    arrange,
    arranged_pieces,
    size_bytes,
)
from nosync_nb.trace.difference import negated
from nosync_nb.trace.history.history import History
from nosync_nb.trace.parts.part_file import (
    ROWS_MAX,
    PartRef,
    encode_few_texts,
    link_removed,
    open_part,
    write_and_release,
    write_part,
)

SPILL_ROWS = 1 << 16
"""Batches with more rows than this are written to part files, not into frames."""

FRAME_BYTES = 8 << 20
"""Batches with more bytes than this are written to part files too, even if they have few rows."""

SPILL_BYTES = 1 << 20
"""Layers with more bytes than this are written to part files, and checkpoints only name them."""

SETTLED_BYTES = 1 << 16
"""The corresponding limit for layers that a checkpoint would contain for the second time."""

SYNC_DELAY_S = 0.02
"""The time for which the syncing thread collects epochs, unless a caller waits for it. Each run of
that thread takes the interpreter's lock away from the committing thread.
"""

TIMES = 0
"""The number under which a checkpoint stores the times of epochs; no trace has this number."""


class Store:
    """The durable side of a session, in one folder.

    Attributes:
        tail: the recovered frames after the checkpoint, until `release`.
        changes: the entries of the tail, by log or trace.
        verified: the performance counter at the time when the log was open and its tail verified.
        meta: the checkpoint's JSON, empty without a checkpoint.
        position: the position of the last recovered frame after the checkpoint, if there is one.
        clocks: the writer of the provenance.
        succession: the owners that wrote the log.
        retired: the files that the previous checkpoint needs, and this one does not.
        back: the epoch before that of the checkpoint to which the tail rewinds; `None` if there is
            no such rewind.
        named: the files that the checkpoint and the tail name, also in frames that a rewind has
            undone.
        foreign: True if this user has not signed the log; see `look_through`.
    """

    def __init__(self, path: str, log: Log, files: Files) -> None:
        self.verified = time.perf_counter()
        self.path = path
        self.parts = os.path.join(path, "layers")
        self.log = log
        self.files = files
        self.packs = os.path.join(path, "history")
        for inner in (self.parts, self.packs):
            folder.path_inside(files, inner, write=log.mode == "w")
        self.meta: dict[str, Any] = {}
        self.retired: tuple[str, ...] = ()
        self.foreign, self.epoch = False, 0
        self._checkpoint_text = CheckpointText()
        self._inline: dict[int, list[PayloadEntry]] = {}
        if (payload := log.checkpoint) is not None:
            checkpoint = payloads.decode_payload(payload)
            self.meta = checkpoint.meta
            self.retired = tuple(
                checked_file_name(n, PART, PACK) for n in checkpoint.meta.get("retired", ())
            )
            self.epoch = checkpoint.epoch
            for each in checkpoint.entries:
                if each.kind != payloads.INLINE:
                    raise CorruptLogError(
                        f"the checkpoint holds an entry of kind {each.kind}, not a layer",
                        hint="restore the log from a copy",
                    )
                self._inline.setdefault(each.number, []).append(each)
        frames = list(log.frames())
        self.position = frames[-1].position if frames else None
        self._replay = FrameReplay()
        self.tail = self.decoded(frames)
        self.changes = payloads.frame_changes(self.tail)
        back = rewind_target(self.tail)
        self.back = back if back is not None and back < self.epoch else None
        log.forget()
        self.clocks = provenance.ClockWriter(log, self.meta, self.tail)
        self.succession = OwnershipHistory(log.heads, self.meta, log.checkpoint_seq, frames)
        self.history = History.restore(
            self.packs, self.meta.get("history"), write=log.mode == "w", files=files
        )
        self.named = self._required_files() if log.mode == "w" else set()
        if back is not None:
            every = payloads.entries_by_log(each.payload for each in self.tail)
            self.named.update(each.name for each in file_references.named_files({}, every))
        if self.back is not None:
            with guarded_decoding("the log"):
                self.history.truncate(self.back)
        self._checkpoint_history = self.history.copied(())  # at the checkpoint, or at `back`

    @classmethod
    def open(
        cls,
        path: str,
        *,
        mode: Literal["r", "w"] = "w",
        takeover: bool = False,
        files: Files | None = None,
        opened: Callable[..., Log] = Log.open,
    ) -> Store:
        """Opens the folder; see `Log.open` for the errors. The new owner starts its log later.

        Args:
            files: the disk; tests pass a simulated one.
            opened: opens the log: `Log.open`, or a variant with more arguments.
        """
        disk = files or Files()
        log = opened(
            path, mode=mode, takeover=takeover, files=disk, delay_s=SYNC_DELAY_S, start=False
        )
        try:
            with guarded_decoding("the log"):
                return cls(path, log, disk)
        except BaseException:
            log.close()
            raise

    # -- writing -----------------------------------------------------------------------------

    def write_epoch(
        self, draft: EpochResult, utc: float, meta: Mapping[str, Any], graph: Graph
    ) -> FramePosition:
        """Appends the frame of an epoch; afterwards it survives the death of this process."""
        entries = None
        if draft.largest <= SPILL_ROWS and not graph.memory:
            entries = payloads.inline_entries(draft.logged, draft.cleared, FRAME_BYTES)
        if entries is None:
            entries = self._entries(draft, graph)
            trace_recovery.share_parts(draft, graph)
        entries += self.clocks.stamped(graph, [(draft.epoch, entries)])
        return self.log.append(
            payloads.EPOCH, payloads.encode_payload(draft.epoch, utc, meta, entries)
        )

    def write_replay(self, draft: EpochResult, graph: Graph) -> bool:
        """Appends the frame of a past epoch, which the next definition makes visible.

        Returns False if there is nothing to write.
        """
        entries = self._entries(draft, graph)
        if graph.memory and not entries:
            return False
        self.clocks.replay(draft.epoch, entries)
        self.log.append(
            payloads.REPLAY, payloads.encode_payload(draft.epoch, time.time(), {}, entries)
        )
        return True

    def definition(
        self,
        draft: EpochResult,
        before: VersionState,
        graph: Graph,
        meta: Mapping[str, Any],
        missed: Iterable[EpochResult] = (),
        replays: int = 0,
        *,
        back: Iterable[PayloadEntry] | None = None,
    ) -> bytes:
        """Returns the payload of a definition: the catalog, and the first contents of new nodes.

        Afterwards large contents are in files, also in the drafts.

        Args:
            graph: the compiled graph.
            meta: the JSON with the catalog and its signature.
            missed: past epochs of stages that had lagged behind; either all of them take effect, or
                none.
            replays: the number of past epochs that were written right before this frame; they take
                effect with it.
            back: the entries that a rewind to the draft's epoch undoes; `None` if it is not a
                rewind.
        """
        meta = {**meta, "replays": replays} if replays else meta
        now = time.time()
        missed_entries = [(each.epoch, self._entries(each, graph)) for each in missed]
        new_entries = self._entries(draft, graph, before)
        rewound_to = None if back is None else draft.epoch
        stamped = self.clocks.stamped(
            graph, [*missed_entries, (draft.epoch, new_entries)], defines=True, back=rewound_to
        )
        entries = [
            *payloads.missed_epoch_entries(missed_entries, now),
            *new_entries,
            *stamped,
            *(back or ()),
        ]
        return payloads.encode_payload(draft.epoch, now, meta, entries)

    def write_definition(self, payload: bytes, *, back: bool = False) -> FramePosition:
        """Appends the frame of a definition or a rewind.

        Afterwards it survives the death of this process.
        """
        return self.log.append(payloads.REWIND if back else payloads.DEFINITION, payload)

    def large(self, batch: Batch) -> bool:
        """Returns True if a batch must be written to a part file."""
        return len(batch) > SPILL_ROWS or size_bytes(batch) > FRAME_BYTES

    def _entries(
        self, draft: EpochResult, graph: Graph, before: VersionState | None = None
    ) -> list[PayloadEntry]:
        """Returns the entries of a draft; large batches and layers are spilled to files first.

        A trace that a definition added is named as a whole (`RESET`), because its log may be older.
        """
        unwritten = graph.unwritten
        entries = [
            payloads.clear_entry(number) for number in draft.cleared if number not in unwritten
        ]
        spilled: dict[int, tuple[Batch, ArrangedChange]] = {}  # references keep the ids valid
        for at, (number, layout, change) in enumerate(draft.logged):
            if number in unwritten:
                continue
            if not change.refs and self.large(change.parts[0]):
                (batch,) = change.parts
                if batch.layout is UNORDERED:
                    batch = arrange(layout, batch.updates)
                change = self.spill([batch], batch.layout, f"log{number}-{draft.epoch}")
                spilled[id(batch)] = batch, change
                draft.logged[at] = (number, layout, change)
            entries.append(payloads.batch_entry(number, layout, change))
        for number, trace in (draft.since(before) if before else draft.traces).items():
            if not trace.layers or trace.layers[-1].upper <= draft.epoch or number in unwritten:
                continue
            last = trace.layers[-1]
            if last.rows_count <= SPILL_ROWS and not last.files:
                continue
            if not last.files:
                written = spilled.get(id(last.parts[0])) if len(last.parts) == 1 else None
                stem = f"trace{number}-{last.lower}-{last.upper}"
                change = written[1] if written else self.spill(last.parts, trace.layout, stem)
                last = Layer(last.lower, last.upper, change.parts, change.refs)
                layers = (*trace.layers[:-1], last)
                draft.traces[number] = Trace(trace.layout, layers, trace.memos)
            if before is not None and number in before.traces:
                continue
            if last.lower == draft.epoch and (before is None or len(trace.layers) == 1):
                kind = payloads.TRACE if before is None else payloads.RESET
                entries.append(payloads.layer_entry(kind, number, last))
        return entries

    def spill(self, parts: Iterable[Batch], layout: Layout, stem: str) -> ArrangedChange:
        """Writes batches to part files and maps them back."""
        stem = f"{stem}-g{self.log.generation}"
        batches, refs = write_and_release(self.parts, parts, layout, stem, files=self.files)
        return ArrangedChange(tuple(batches), tuple(refs))

    def link_removed(self, change: ArrangedChange, stem: str) -> ArrangedChange:
        """Returns a change in files with opposite counts; its files get a second name.

        If the file system has no hard links, the rows are written again.
        """
        layout = change.parts[0].layout
        full_stem = f"{stem}-g{self.log.generation}"
        try:
            refs = link_removed(self.parts, change.refs, full_stem, files=self.files)
        except DurabilityError:
            return self.spill([negated(part) for part in change.parts], layout, stem)
        self.files.sync_folder(self.parts)
        return ArrangedChange(tuple(self.open_part(ref, layout) for ref in refs), tuple(refs))

    def open_part(self, ref: PartRef, layout: Layout) -> Batch:
        """Maps a part file that was just written.

        Cost: the read of a header, independent of the size of the file.
        """
        return open_part(self.parts, ref, layout, files=self.files)

    def checked_part(self, ref: PartRef, layout: Layout) -> Batch:
        """Maps an older part file, after comparing its bytes with their checksums."""
        thorough = self.foreign
        return open_part(self.parts, ref, layout, files=self.files, checked=True, thorough=thorough)

    def look_through(self) -> None:
        """Turns on the verification of all rows of the log, because they may not be this user's."""
        self.foreign = True
        self.history.look_through()

    def checkpoint_payload(
        self,
        version: VersionState,
        graph: Graph,
        meta: Mapping[str, Any],
        times: bytes,
        past: Mapping[str, Any],
    ) -> bytes:
        """Returns the payload of a checkpoint: layers in files by name, layers in memory inline.

        Args:
            meta: the other entries of the JSON.
            times: when each epoch was committed, as doubles in seconds UTC.
            past: the manifest of the history up to the version.
        """
        layers, nonnegative, inline = trace_recovery.listed_layers(graph, version)
        entries = [PayloadEntry(TIMES, payloads.INLINE, times), *inline]
        branch = {"branch": self.meta["branch"]} if "branch" in self.meta else {}
        meta = {
            **branch,
            **meta,
            "layers": layers,
            trace_recovery.NONNEGATIVE_KEY: nonnegative,
            "history": past,
        }
        text = self._checkpoint_text.encode(meta.pop("catalog", None), meta)
        return payloads.encode_payload(version.epoch, time.time(), text, entries)

    def write_layers(
        self, number: int, trace: Trace, *, thinned: bool = False
    ) -> list[tuple[Layer, Layer]]:
        """Writes layers to part files, so that checkpoints name them instead of containing them.

        These are large layers, and smaller ones that a checkpoint would contain for the second
        time.

        Args:
            thinned: True if the past is downsampled. Then layers that would be read from the
                history are written as well.

        Returns:
            pairs of a layer and the layer that replaces it.
        """
        pairs = []
        for layer in trace.layers:
            in_history = isinstance(layer, HistoryLayer) and not layer.is_made
            in_history = in_history and not thinned
            if layer.files or in_history or not layer.rows_count:
                continue
            in_checkpoint = layer.encoded is not None
            size = len(trace_recovery.encoded_traces(trace.layout, layer))
            if size > (SETTLED_BYTES if in_checkpoint else SPILL_BYTES):
                stem = f"trace{number}-{layer.lower}-{layer.upper}"
                change = self.spill(layer.parts, trace.layout, stem)
                statistics = layer.seen if len(change.parts) == len(layer.parts) else None
                in_files = Layer(
                    layer.lower, layer.upper, change.parts, change.refs, seen=statistics
                )
                pairs.append((layer, in_files))
        return pairs

    def write_layer(self, number: int, layout: Layout, batch: Batch, epoch: int) -> Layer:
        """Returns the contents of a trace at an epoch as a layer in files, even if it is small."""
        stem = f"trace{number}-{epoch}-{epoch + 1}"
        refs = self.spill([batch], layout, stem).refs
        refs = refs or (write_part(self.parts, batch, stem, files=self.files),)
        return Layer(epoch, epoch + 1, tuple(self.open_part(r, layout) for r in refs), refs)

    @property
    def times(self) -> bytes:
        """The commit times of the epochs in the checkpoint."""
        return bytes(self._inline[TIMES][0].data) if TIMES in self._inline else b""

    # -- restoring ---------------------------------------------------------------------------

    def decoded(self, frames: Iterable[Frame]) -> list[FrameContent]:
        """Returns the contents of frames; see `FrameReplay.contents_of`."""
        return self._replay.contents_of(frames)

    def remember(self, graph: Graph, changes: Changes) -> None:
        """Adds the changes in frames to the history of named collections."""
        trace_recovery.history_layers(self.history, graph, changes)

    def restored(self, graph: Graph) -> dict[int, Trace]:
        """Returns the traces after the last frame.

        Cost: independent of the number of rows.
        """
        layers, nonnegative = (
            self.meta.get("layers", {}),
            self.meta.get(trace_recovery.NONNEGATIVE_KEY, {}),
        )
        nonnegative = {} if self.foreign else nonnegative
        inline, history = self._inline, self._checkpoint_history
        traces = trace_recovery.of_checkpoint(
            layers, inline, self.checked_part, history, nonnegative
        )
        if self.back is not None:
            undone = point_in_time.read_undone(self.tail, self.epoch)
            traces = trace_recovery.traces_at(
                traces, graph, self._checkpoint_history, self.back, undone
            )
        return trace_recovery.extend_traces(graph, traces, self.changes, self.checked_part)

    def followed_by(
        self, graph: Graph, before: VersionState, old: Graph, changes: Changes
    ) -> dict[int, Trace]:
        """Returns the traces of a version after further frames.

        Args:
            before, old: the version and its graph.
            changes: the entries of the further frames.
        """
        traces = trace_recovery.traces_of_version(before, old)
        return trace_recovery.extend_traces(graph, traces, changes, self.checked_part)

    def release(self) -> None:
        """Drops the data that only `restored` needs."""
        self.tail, self.changes, self._inline, self.back = [], {}, {}, None

    # -- unreferenced files ------------------------------------------------------------------

    def remove(self, names: Iterable[str]) -> None:
        """Deletes files; processes that have mapped them can still read them.

        A session that was replaced, and a forked child, delete nothing: the next opening deletes
        the files that the log does not name.
        """
        for name in names if self.log.owned else ():
            folder = self.packs if name.endswith(PACK) else self.parts
            self.files.unlink(checked_path_within(folder, name, PART, PACK))

    def sweep(self) -> list[str]:
        """Deletes the files of unfinished work of a dead owner: those that nothing recovered names.

        All files remain if a checkpoint could not be read, because it may name more of them. They
        also remain in the log of another user: an untrusted log must not make us delete files.

        Returns:
            the names of the files that are needed and missing.
        """
        needed = self._required_files()
        named = needed.union(self.retired, self.named)
        existing = [*self.files.names(self.parts), *self.files.names(self.packs)]
        if not self.log.unread and not self.foreign:
            self.remove(n for n in existing if is_safe_file_name(n, PART, PACK) and n not in named)
        return sorted(needed.difference(existing))

    def _required_files(self) -> set[str]:
        """Returns every file that the checkpoint, the frames after it, or the history name."""
        layers = {"layers": self.meta.get("layers", {})}
        named = file_references.named_files(layers, self.changes)
        return self.history.files().union(each.name for each in named)

    def close(self) -> None:
        """Syncs the log and records that it was closed properly."""
        self.log.close()


REST_BYTES = 1 << 26
"""If an operator has read more bytes of files than this, none of their pages stay in memory."""


class RunFiles:
    """The large results of one run at a time, in files while later operators still compute.

    Otherwise a run over many rows would keep the output of all its operators in memory until the
    frame is written. Instead each batch that the frame would only reference is written at once and
    memory-mapped from then on. So the run needs memory for one operator at a time.

    The files of a run are not referenced until a frame names them. Files that one operator writes
    for the next are deleted at the end of the run. If the run fails, all its files are deleted.

    The caller holds the writer's lock, unless the run computes off-lock.

    Args:
        store: the store in whose folder the files are written.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._temporary: list[PartRef] = []
        self._final: list[PartRef] = []

    def lend(self, refs: Iterable[PartRef]) -> None:
        """Records files that only later operators of the run read."""
        self._temporary += refs

    def keep(self, refs: Iterable[PartRef]) -> None:
        """Records files that the run's frame will name."""
        self._final += refs

    def spilled(self, number: int, held: ArrangedChange, epoch: int) -> ArrangedChange:
        """Returns the batch of a log or a trace: in files if it is large, else unchanged.

        Raises:
            DurabilityError: the disk reports an error. The written files are deleted with the run.
        """
        store, (batch,) = self._store, held.parts
        if batch.layout is UNORDERED or not store.large(batch):
            return held
        held = store.spill([batch], batch.layout, f"run{number}-{epoch}")
        self.keep(held.refs)
        return held

    def difference(
        self, number: int, added: Batch, removed: ArrangedChange, epoch: int
    ) -> ArrangedDifference:
        """Returns the change of a log or a trace as parts in files.

        Args:
            added: the rows that the epoch adds.
            removed: the rows that it removes: with references a previous layer with all of its
                files, which get a second name; without them a batch with negative counts.

        Raises:
            DurabilityError: the disk reports an error. The written files are deleted with the run.
        """
        store, stem = self._store, f"run{number}-{epoch}"
        written = store.spill([added], added.layout, stem)
        self.keep(written.refs)
        if removed.refs:
            removed = store.link_removed(removed, stem)
        else:
            removed = store.spill(removed.parts, added.layout, stem)
        self.keep(removed.refs)
        return ArrangedDifference(written, removed)

    def release_pages(self, size_bytes: int) -> None:
        """Returns the mapped pages to the system if more than `REST_BYTES` of files were read."""
        if size_bytes > REST_BYTES:
            memory_map.drop_mapped_pages()

    def arranged(
        self, traces: Mapping[Layout, int], updates: Updates, epoch: int
    ) -> dict[Layout, ArrangedChange]:
        """Returns rows in each requested order: in files, or in memory if the disk has an error.

        While a file is written, only the rows of this file are in memory a second time.

        Args:
            traces: the number of the trace for each requested order.
            updates: the rows. Columns of few texts are replaced by encoded ones in their list.
        """
        types, columns, n = next(iter(traces)).types, updates.columns, len(updates.diff)
        for at, type_ in enumerate(types):
            few = encode_few_texts(columns[at], type_)
            if few is not None:
                columns[at] = few  # in place, so that the texts can be freed
        rhash = rows.hash_columns(columns, types, n)
        return {
            layout: self._arranged(layout, number, updates, rhash, epoch)
            for layout, number in traces.items()
        }

    def _arranged(
        self, layout: Layout, number: int, updates: Updates, rhash: Hashes, epoch: int
    ) -> ArrangedChange:
        """Returns rows in one order; see `arranged`."""
        try:
            pieces = arranged_pieces(layout, updates, rhash, ROWS_MAX)
            held = self._store.spill(pieces, layout, f"run{number}-{epoch}")
        except DurabilityError:  # the commit will fail in the same way, and reports the error
            return ArrangedChange((arrange(layout, updates, rhash=rhash),))
        self.keep(held.refs)
        return held

    def end(self, *, failed: bool) -> None:
        """Deletes the files that are not needed any more; after a failure, all files of the run."""
        if self._temporary or self._final:
            useless = (*self._temporary, *(self._final if failed else ()))
            self._store.remove(ref.path for ref in useless)
            self._temporary, self._final = [], []
