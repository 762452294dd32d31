"""Maintenance: merges, checkpoints and what can be seen of layers.

All of it is planned by the committing thread and performed by the worker; results are adopted
between epochs, under the session's lock, if what they replace is still live.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from nosync_nb.batch import Batch, Layout, merge
from nosync_nb.dataflow import Version
from nosync_nb.delta import Held
from nosync_nb.errors import DurabilityError, NosyncError
from nosync_nb.snapshot import seen
from nosync_nb.store import SPILL_ROWS
from nosync_nb.trace import Layer, adopt, plan
from nosync_nb.trace.packing import Packed

if TYPE_CHECKING:
    from nosync_nb.session import Session

RANGE_ROWS = 1 << 20
EXPORTS_MAX = 64
"""DataFrames whose files are kept; older ones fail, and say so, once their files were merged."""

PATIENCE_FRAMES = 256
"""Frames after which a checkpoint that failed is tried again."""


@dataclass
class Upkeep:
    """What maintenance remembers of a session.

    Attributes:
        catalog: the catalog as the last definition wrote it.
        retired: files that are not needed since the last checkpoint.
        expiring: files that were not needed any more before it.
        patience: the frame from which on a failed checkpoint is tried again.
        exports: the files that Spark DataFrames read when they are executed. Nobody tells when a
            DataFrame, or one made of it, is gone: the last ones are kept until the session ends.
        spilled: files that were written for such DataFrames alone, since the last checkpoint.
    """

    catalog: Mapping[str, Any] = field(default_factory=dict)
    retired: set[str] = field(default_factory=set)
    expiring: set[str] = field(default_factory=set)
    patience: int = 0
    exports: deque[frozenset[str]] = field(default_factory=lambda: deque(maxlen=EXPORTS_MAX))
    spilled: deque[str] = field(default_factory=deque)


def plan_merges(session: Session) -> None:
    """Queues a merge for every trace whose layers are out of proportion."""
    for number, trace in session._version.traces.items():
        if len(trace.layers) > 1 and plan(trace) is not None:
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
    raise DurabilityError(f"background work failed: {error!r}") from error


def _merge(session: Session, number: int) -> None:
    """Merges the layers of one trace that are planned, and puts the result in their place."""
    trace = session._version.traces.get(number)
    planned = None if trace is None else plan(trace)
    if trace is None or planned is None:
        return
    inputs = trace.layers[planned.start : planned.stop]
    parts = merged_parts(trace.layout, [layer.parts for layer in inputs])
    held = Held(tuple(parts))
    if sum(len(p) for p in parts) > SPILL_ROWS:
        stem = f"trace{number}-{inputs[0].lower}-{inputs[-1].upper}"
        held = session._store.spill(parts, trace.layout, stem)
    output = Layer(inputs[0].lower, inputs[-1].upper, held.parts, held.refs)
    with session._lock:
        version = session._version
        current = version.traces.get(number)
        adopted = None if current is None else adopt(current, inputs, output)
        files = {ref.path for layer in inputs for ref in layer.files}
        if adopted is None:
            session._upkeep.retired |= {ref.path for ref in held.refs}
            return
        merged = Version(version.epoch, {**version.traces, number: adopted})
        session._snapshot = session._snapshot.advanced(merged)
        session._upkeep.retired |= files
        session.stats["merges"] += 1


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
        session._ready()
        version, graph, position = session._version, session._graph, session._position
        if position is None:
            return
        upkeep = session._upkeep
        retired, upkeep.retired = upkeep.retired, set()
        while upkeep.spilled:
            retired.add(upkeep.spilled.popleft())
        meta = {
            "catalog": session._upkeep.catalog,
            "labels": dict(session._labels),
            "once": dict(session._once),
            "retired": sorted(retired),
        }
        times = session._times.tobytes()
        plan = store.history.pack(version.epoch)
    try:
        if plan is not None:
            _adopt(session, plan.perform())
        while (tidy := store.history.tidy()) is not None and _adopt(session, tidy.perform()):
            pass
        payload = store.checkpoint_payload(version, graph, meta, times)
        store.log.write_checkpoint(payload, position)
        store.log.trim()
    except BaseException:
        session._upkeep.patience = store.log.head.seq + PATIENCE_FRAMES
        with session._lock:
            session._upkeep.retired |= retired
        raise
    session.stats["checkpoints"] += 1
    with session._lock:
        read = upkeep.expiring.intersection(chain.from_iterable(list(upkeep.exports)))
        expired, upkeep.expiring = upkeep.expiring, retired | read
        live = named_files(session) | files_of(version)
    store.remove(expired - live)


def _adopt(session: Session, packed: Packed) -> bool:
    """Puts a pack in place; the files of what it replaces are retired."""
    with session._lock:
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
