"""Maintenance: merges, checkpoints and what can be seen of layers.

All of it is planned by the committing thread and performed by the worker; results are adopted
between epochs, under the session's lock, if what they replace is still live.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from nosync_nb.dataflow.delta import Held
from nosync_nb.dataflow.graph import Graph, Stage
from nosync_nb.dataflow.runner import Version
from nosync_nb.dataflow.snapshot import seen
from nosync_nb.errors import DurabilityError, NosyncError, OutOfMemoryError
from nosync_nb.session import publishing
from nosync_nb.session.transactions import InputChanges, taken
from nosync_nb.store import traces as restoring
from nosync_nb.store.encoded import Pieces
from nosync_nb.store.store import SPILL_ROWS
from nosync_nb.trace import Layer, adopt, plan
from nosync_nb.trace.batch import Batch, Layout, Updates, merge
from nosync_nb.trace.parts import FRAME, frame_rows
from nosync_nb.trace.past.packing import Packed

if TYPE_CHECKING:
    from nosync_nb.session.session import Session

RANGE_ROWS = 1 << 20
EXPORTS_MAX = 64
"""DataFrames whose files are kept; older ones fail, and say so, once their files were merged."""

REMOVALS_FREE, REMOVALS_WAITING, REMOVALS_PAUSE_S = 32, 2048, 0.5
"""Epochs that are looked at at once, changes that wait then, and the pause after which anew."""

_WHOLE = 1024

PATIENCE_FRAMES = 256
"""Frames after which a checkpoint that failed is tried again."""


class Removals:
    """Rows that were taken away, until somebody looks whether they were there.

    To look costs as much as a small epoch. So the first epochs after a pause are looked at at once,
    those of a long loop many together: a row that was not there is below 0 until it comes.
    What waits when a loop ends is looked at when its cell ends, or the session is closed; until
    then reading the input tells. Guarded by the session's lock.
    """

    __slots__ = ("_free", "_last", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[tuple[Stage, list[Updates]]] = []
        self._free = REMOVALS_FREE
        self._last = 0.0

    def due(self, removing: list[InputChanges]) -> list[tuple[Stage, list[Updates]]]:
        """What is to be looked at now: nothing, or all that waited and what an epoch changed."""
        now = time.monotonic()
        if now - self._last > REMOVALS_PAUSE_S:
            self._free = REMOVALS_FREE
        self._last = now
        for changes in removing:
            parts = changes.parts
            if sum(map(len, parts)) > _WHOLE:  # do not keep what it brought
                parts = [taken(parts, changes.stage.schema.types)]
            self._waiting.append((changes.stage, parts))
        if self._free:
            self._free -= 1
        elif len(self._waiting) < REMOVALS_WAITING:
            return []
        return self.waiting()

    def waiting(self) -> list[tuple[Stage, list[Updates]]]:
        """All that waited; nothing does then."""
        waiting, self._waiting = self._waiting, []
        return waiting


@dataclass
class Upkeep:
    """What maintenance remembers of a session.

    Attributes:
        catalog: the catalog as the last definition wrote it, and its `signing.digest`.
        pieces: of that catalog, as they are written.
        retired: files that are not needed since the last checkpoint.
        expiring: files that were not needed any more before it.
        patience: the frame from which on a failed checkpoint is tried again.
        exports: the files that Spark DataFrames read when they are executed. Nobody tells when a
            DataFrame, or one made of it, is gone: the last ones are kept until the session ends.
        removals: rows that were taken away and not looked for yet.
        spilled: files that were written for such DataFrames alone, since the last checkpoint.
    """

    catalog: Mapping[str, Any] = field(default_factory=dict)
    pieces: Pieces = field(default_factory=Pieces)
    digest: bytes = b""
    retired: set[str] = field(default_factory=set)
    expiring: set[str] = field(default_factory=set)
    patience: int = 0
    exports: deque[frozenset[str]] = field(default_factory=lambda: deque(maxlen=EXPORTS_MAX))
    spilled: deque[str] = field(default_factory=deque)
    removals: Removals = field(default_factory=Removals)


def plan_merges(session: Session, numbers: Iterable[int]) -> None:
    """Queues a merge for each of some traces whose layers are out of proportion."""
    traces = session._version.traces
    for number in numbers:
        trace = traces.get(number)
        if trace is not None and len(trace.layers) > 1 and plan(trace) is not None:
            session._worker.submit(("merge", number), lambda n=number: _merge(session, n))  # type: ignore[misc]


def plan_checkpoint(session: Session) -> None:
    """Queues a checkpoint; after a failed one, not before the log has grown again."""
    if session._store.log.head.seq >= session._upkeep.patience:
        session._worker.submit("checkpoint", lambda: checkpoint(session))


def raise_background(session: Session) -> None:
    """Raises what a background task raised, once, as an error of the next call."""
    error = session._worker.take_error()
    if error is None:
        return
    if isinstance(error, NosyncError):
        raise error
    if isinstance(error, MemoryError):
        raise OutOfMemoryError(
            "out of memory: layers were not merged, or a checkpoint was not written, in the"
            " background; every epoch is as it was, and this call has done nothing",
            hint="call it again: what is left is done later; free some memory before that",
        ) from error
    raise DurabilityError(f"background work failed: {error!r}") from error


def _merge(session: Session, number: int) -> None:
    """Merges the layers of one trace that are planned, until nothing is left to plan."""
    while True:
        with session._lock:
            publishing.finish(session)
            trace = session._version.traces.get(number)
            planned = None if trace is None else plan(trace)
            if trace is None or planned is None:
                return
            inputs = trace.layers[planned.start : planned.stop]
            for layer in inputs:
                layer.claimed = True
        try:
            if not _merged(session, number, trace.layout, inputs):
                return
        finally:
            for layer in inputs:
                layer.claimed = False


def _merged(session: Session, number: int, layout: Layout, inputs: tuple[Layer, ...]) -> bool:
    """Merges layers of a trace and puts the result in their place, if they are still live."""
    parts = merged_parts(layout, [layer.parts for layer in inputs])
    held = Held(tuple(parts))
    if sum(len(p) for p in parts) > SPILL_ROWS:
        stem = f"trace{number}-{inputs[0].lower}-{inputs[-1].upper}"
        if 2 * sum(frame_rows(layer.files) for layer in inputs) >= sum(len(p) for p in parts):
            stem = FRAME + stem
        held = session._store.spill(parts, layout, stem)
    output = Layer(inputs[0].lower, inputs[-1].upper, held.parts, held.refs)
    adopted = _replaced(session, number, inputs, output)
    session._works.count("merges", adopted)
    return adopted


def _replaced(session: Session, number: int, inputs: tuple[Layer, ...], output: Layer) -> bool:
    """Puts a layer in the place of others, if they are still live; files of no use are retired."""
    with session._lock:
        publishing.finish(session)
        version = session._version
        current = version.traces.get(number)
        adopted = None if current is None else adopt(current, inputs, output)
        if adopted is None:
            session._upkeep.retired |= {ref.path for ref in output.files}
            return False
        merged = Version(version.epoch, {**version.traces, number: adopted})
        session._snapshot = session._snapshot.advanced(merged)
        session._upkeep.retired |= {ref.path for layer in inputs for ref in layer.files}
        return True


def merged_parts(layout: Layout, layers: list[tuple[Batch, ...]]) -> list[Batch]:
    """Merges layers, range by range of the key hash, so that memory stays bounded."""
    every = [p for parts in layers for p in parts if len(p)]
    total = sum(len(p) for p in every)
    if not every:
        return []
    pieces = max(1, -(-total // RANGE_ROWS))
    if pieces == 1:
        return [merge(layout, every)]
    sample = np.concatenate([p.khash[:: max(1, len(p) // 1024)] for p in every])
    sample.sort()
    cuts = [0, *sample[np.arange(1, pieces) * len(sample) // pieces].tolist(), 2**64]
    cuts = sorted(set(cuts))
    result = []
    for low, high in pairwise(cuts):
        slices = [s for p in every if len(s := p.cut(low, high))]
        if slices:
            result.append(merge(layout, slices))
    return [p for p in result if len(p)]


def checkpoint(session: Session) -> None:
    """Writes the state of now, so that the next opening reads only what follows it.

    IMPORTANT: the log's position, the version and the plan of what is packed are taken under one
    lock, so that what follows the position is exactly what is in none of them; and a session that
    only read until now gets its operators' state first, or the checkpoint would be without it.
    """
    store = session._store
    with session._lock:
        publishing.finish(session)
        session._ready()
        version, graph, position = session._version, session._graph, session._position
        if position is None:
            return
        upkeep = session._upkeep
        retired, upkeep.retired = upkeep.retired, set()
        while upkeep.spilled:
            retired.add(upkeep.spilled.popleft())
        recorded, times = session._ledger.saved()
        meta = {
            "catalog": upkeep.catalog,
            "signed": session._signed(version.epoch, upkeep.digest),
            **recorded,
            "retired": sorted(retired),
        }
        plan = store.history.pack(version.epoch)
    try:
        if plan is not None:
            _adopt(session, plan.perform())
        while (tidy := store.history.tidy()) is not None and _adopt(session, tidy.perform()):
            pass
        version = _settled(session, version, graph)
        payload = store.checkpoint_payload(version, graph, meta, times)
        store.log.write_checkpoint(payload, position)
        store.log.trim()
    except BaseException:
        session._upkeep.patience = store.log.head.seq + PATIENCE_FRAMES
        with session._lock:
            publishing.finish(session)
            session._upkeep.retired |= retired
        raise
    session._works.count("checkpoints")
    with session._lock:
        publishing.finish(session)
        read = upkeep.expiring.intersection(chain.from_iterable(list(upkeep.exports)))
        expired, upkeep.expiring = upkeep.expiring, retired | read
        live = named_files(session) | files_of(version)
    store.remove(expired - live)


def _settled(session: Session, version: Version, graph: Graph) -> Version:
    """A version of which large layers lie in files; those that are still live do so from now on."""
    traces = dict(version.traces)
    for number in restoring.trace_logs(graph).keys() & traces.keys():
        for layer, filed in session._store.settled(number, traces[number]):
            made = adopt(traces[number], (layer,), filed)
            assert made is not None
            traces[number] = made
            _replaced(session, number, (layer,), filed)
    return Version(version.epoch, traces)


def _adopt(session: Session, packed: Packed) -> bool:
    """Puts a pack in place; the files of what it replaces are retired."""
    with session._lock:
        publishing.finish(session)
        history = session._store.history
        before = history.files()
        adopted = history.adopt(packed)
        session._snapshot = session._snapshot._replace(history=seen(history))
        session._upkeep.retired |= before - history.files() if adopted else {packed.new.name}
        return adopted


def named_files(session: Session) -> set[str]:
    """Every file that a trace, the history, or the checkpoint before the newest one names."""
    named = files_of(session._version) | session._store.history.files()
    return named | session._upkeep.retired | session._upkeep.expiring


def files_of(version: Version) -> set[str]:
    """The files of a version's traces."""
    traces = version.traces.values()
    return {ref.path for trace in traces for layer in trace.layers for ref in layer.files}


def layers(session: Session, name: str) -> list[dict[str, Any]]:
    """The layers of a stage, oldest first: interval (inclusive), rows, bytes, persistence."""
    snapshot = session._snapshot
    stage, trace = snapshot.stage(name), snapshot.contents(name)
    disk = session._durable_epoch()
    result = []
    for layer in trace.layers:
        where = ["memory"] if not layer.files else []
        if layer.files or layer.upper - 1 <= disk or stage.begin > layer.lower:
            where.append("disk")
        size = (
            sum(ref.size_bytes for ref in layer.files)
            if layer.files
            else sum(
                c.nbytes if hasattr(c, "nbytes") else 0 for p in layer.parts for c in p.columns
            )
        )
        result.append(
            {
                "lower": layer.lower,
                "upper": layer.upper,
                "rows": layer.rows_count,
                "bytes": int(size),
                "persistence": "+".join(where),
            }
        )
    return result
