"""Reads a log into a value: its epochs, and a snapshot after its last frame.

Nothing is compiled or run, and only the store that was opened for the read is changed. A reader
uses the catalog of another user like one of this user, but it does not trust the rows. Recovery for
a writer decides separately for each stage (nosync_nb/session/recovery/recover.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from nosync_nb.dataflow.graph import Graph
from nosync_nb.dataflow.runtime.epoch_result import VersionState
from nosync_nb.dataflow.snapshot import Snapshot, hidden_columns, named_logs, visible_columns
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import CorruptLogError
from nosync_nb.store import durability
from nosync_nb.store.catalog import signature as signing
from nosync_nb.store.catalog.epoch_index import EpochIndex, EpochRecord, RewindMark
from nosync_nb.store.catalog.validation import check_catalog, check_text, check_texts
from nosync_nb.store.durability import DefinitionOffset
from nosync_nb.store.records import payloads
from nosync_nb.store.records.payloads import FrameContent, Payload
from nosync_nb.store.safe_decoding import guarded_decoding
from nosync_nb.store.store import Store

_NO_LOADS: Mapping[str, str] = MappingProxyType({})


class WrittenCatalog(NamedTuple):
    """A catalog as it was written at an epoch, with its signature.

    Attributes:
        defined: the frame that defines each named log.
    """

    epoch: int
    catalog: Mapping[str, Any]
    signature: Any
    defined: Mapping[int, DefinitionOffset]


class CatalogTrust(NamedTuple):
    """This user's key, or None, and the origin of a catalog."""

    key: bytes | None
    origin: signing.CatalogOrigin


class RecoveredState(NamedTuple):
    """The state of a log after its last frame.

    Attributes:
        store: the store of the log's folder.
        ledger: the index of epochs.
        snapshot: the stages and their contents; nothing in it is compiled.
        data: the catalog with its untrusted stages disabled.
        said: the catalog as it was written; `None` before the first definition.
        judged: the key of this user, and the origin of the catalog.
    """

    store: Store
    ledger: EpochIndex
    snapshot: Snapshot
    data: Mapping[str, Any] = {}
    said: WrittenCatalog | None = None
    judged: CatalogTrust = CatalogTrust(None, signing.OWN)


Described = tuple[Mapping[str, Any], dict[str, Stage]]
"""A catalog with its untrusted stages disabled, and its stages."""


def described(log_id: bytes, said: WrittenCatalog, judged: CatalogTrust, epoch: int) -> Described:
    """Returns the stages of a log's catalog for a reader, which runs none of them.

    Stages in the memory of the log's owner are marked as stopped.
    """
    catalog = payloads.catalog_from_json(said.catalog, log_id, None)
    why = "it is in the memory of the session that owns the log"
    for name in [name for name, stage in catalog.items() if stage.in_memory]:
        catalog[name] = catalog[name].forgotten(why, epoch)
    return said.catalog, catalog


def recover_state(
    store: Store, describe: Callable[[WrittenCatalog, CatalogTrust, int], Described] | None = None
) -> RecoveredState:
    """Returns the state of an opened log after its last frame.

    Args:
        describe: returns the stages for a catalog, its origin and the last epoch; `None` means the
            stages for a reader, which never runs them.

    Raises:
        CorruptLogError: the frames or the checkpoint are invalid.
    """
    with guarded_decoding("the log"):
        ledger = EpochIndex.restored(store.epoch, store.times, store.meta)
        written = None
        if "catalog" in store.meta:
            written = _written_at(store.epoch, store.meta, None, store.log.checkpoint_seq)
        epoch, written = written_catalog(
            ledger, store.tail, store.epoch, written, store.log.durable
        )
        if written is None:
            empty = Snapshot(
                VersionState(epoch, {}),
                Graph(),
                {},
                visible_columns(store.history),
                ledger.incarnation,
            )
            return RecoveredState(store, ledger, empty)
        trust = catalog_trust(store, written)
        describe = describe or partial(described, store.log.id)
        data, catalog = describe(written, trust, epoch)
        graph = restored_graph(store.changes, data)
        hidden_columns(store.history, named_logs(graph), catalog)
        store.remember(graph, store.changes)
        version = VersionState(epoch, store.restored(graph))
        past = visible_columns(store.history)
        snapshot = Snapshot(version, graph, catalog, past, ledger.incarnation)
        return RecoveredState(store, ledger, snapshot, data, written, trust)


def follow_frames(before: RecoveredState, tail: list[FrameContent]) -> RecoveredState:
    """Returns the state of a reader after the frames that the owner has appended since `before`."""
    store, ledger, last = before.store, before.ledger, before.snapshot
    epoch, written = written_catalog(ledger, tail, last.epoch, before.said, store.log.durable)
    graph, catalog = last.graph, last.catalog
    if written is not None and written is not before.said:
        trust = catalog_trust(store, written)
        data, catalog = described(store.log.id, written, trust, epoch)
        graph = Graph(payloads.restored_nodes(data), data["numbers"])
        hidden_columns(store.history, named_logs(graph), catalog)
        before = before._replace(data=data, said=written, judged=trust)
    changes = payloads.entries_by_log(each.payload for each in tail)
    store.remember(graph, changes)
    version = VersionState(epoch, store.followed_by(graph, last.version, last.graph, changes))
    return before._replace(
        snapshot=Snapshot(
            version, graph, catalog, visible_columns(store.history), ledger.incarnation
        )
    )


def written_catalog(
    ledger: EpochIndex,
    tail: Iterable[FrameContent],
    epoch: int,
    said: WrittenCatalog | None,
    durable: int,
) -> tuple[int, WrittenCatalog | None]:
    """Records the epochs of frames; returns the last epoch and the last catalog.

    Args:
        epoch: the last epoch before the frames.
        said: the last catalog before the frames; `None` before the first definition.
        durable: the number of the last frame that is on disk.
    """
    records: list[EpochRecord] = []
    new = tuple.__new__  # faster, because this runs for each epoch of the log
    for seq, kind, payload in tail:
        if kind in payloads.DEFINES:
            said = _written_at(payload.epoch, payload.meta, said, seq)
        if kind == payloads.REWIND:
            ledger.record(*records)
            ledger.rewind(_rewind_mark(ledger, payload, epoch, seq))
            records, epoch = [], payload.epoch
        if kind != payloads.EPOCH:
            continue
        at, utc, meta, _ = payload
        if at != epoch + 1:
            raise CorruptLogError(f"epoch {at} follows epoch {epoch} in the log")
        epoch = at
        once, label = _keys_and_label(meta) if meta else (_NO_LOADS, None)
        records.append(new(EpochRecord, (epoch, utc, seq, durable, label, once)))
    ledger.record(*records)
    return epoch, said


def _keys_and_label(meta: Mapping[str, Any]) -> tuple[Mapping[str, str], str | None]:
    """Returns the idempotency keys of the loads in an epoch, and the label of the epoch."""
    once = check_texts(meta["once"], "the key of a load") if "once" in meta else {}
    return once, check_text(meta["label"], "a label") if "label" in meta else None


def _rewind_mark(ledger: EpochIndex, payload: Payload, epoch: int, seq: int) -> RewindMark:
    """Returns the mark of a rewind; `epoch` is the last epoch before it."""
    incarnation = payload.meta.get("incarnation")
    if payload.epoch > epoch or incarnation != ledger.incarnation + 1:
        raise CorruptLogError(
            f"frame {seq} rewinds from epoch {epoch} to {payload.epoch} as incarnation"
            f" {incarnation!r:.40} after {ledger.incarnation}",
            hint="restore the log from a copy",
        )
    return RewindMark(payload.epoch, incarnation, seq)


def _written_at(
    epoch: int, meta: Mapping[str, Any], before: WrittenCatalog | None, frame: int
) -> WrittenCatalog:
    catalog = meta["catalog"]
    offsets, earlier_catalog = ({}, {}) if before is None else (before.defined, before.catalog)
    return WrittenCatalog(
        epoch,
        catalog,
        meta.get("signed"),
        durability.offsets_after_definition(offsets, earlier_catalog, catalog, frame),
    )


def catalog_trust(store: Store, said: WrittenCatalog) -> CatalogTrust:
    """Determines the origin of a catalog.

    If this user has not signed all of the catalog, the rows of the log are not trusted either.
    """
    check_catalog(said.catalog, said.epoch)
    key, unfit = signing.own_key()
    origin = signing.judge_signature(key, store.log.id, said.epoch, said.catalog, said.signature)
    if not origin.is_by_this_user and unfit is not None:
        origin = origin._replace(why=unfit)
    if not origin.is_by_this_user or any(each.get("signer") for each in said.catalog["stages"]):
        store.look_through()
    return CatalogTrust(key, origin)


def restored_graph(taken: Iterable[int], data: Mapping[str, Any]) -> Graph:
    """Returns the graph of a catalog.

    Args:
        taken: the numbers that frames name. An unfinished definition may have used some of them, so
            they are not assigned again.
    """
    return Graph(payloads.restored_nodes(data), max((data["numbers"], *taken)))
