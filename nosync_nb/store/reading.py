"""Reading: what a log says, to who only reads it: its epochs, and a snapshot of its stages.

It takes no session. Nothing is compiled or run, and a catalog of somebody else's is read like one
of this user's, but none of its rows is taken on trust.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from nosync_nb.dataflow.graph import Graph
from nosync_nb.dataflow.runner import Version
from nosync_nb.dataflow.snapshot import Snapshot, hide, named_logs, seen
from nosync_nb.errors import CorruptLogError
from nosync_nb.store import journal, signing
from nosync_nb.store.decoding import decoding
from nosync_nb.store.ledger import Ledger, Record
from nosync_nb.store.store import Store, Told
from nosync_nb.store.wellformed import check_catalog, check_text, check_texts


class Said(NamedTuple):
    """A catalog as it was written at an epoch, and what stood as its signature."""

    epoch: int
    catalog: Mapping[str, Any]
    signature: Any


class Judged(NamedTuple):
    """Whose a catalog is: this user's key, why there is none, and where the catalog is from."""

    key: bytes | None
    unfit: str | None
    origin: signing.Origin


def read(store: Store) -> tuple[Ledger, Snapshot]:
    """The epochs of a log that was opened, and what is there after its last frame.

    Raises:
        CorruptLogError: if what it says makes no sense.
    """
    with decoding("the log"):
        ledger = Ledger.restored(store.epoch, store.times, store.meta)
        epoch, said = told(ledger, store.tail, store.epoch, store.meta, store.log.durable)
        if said is None:
            return ledger, Snapshot(Version(epoch, {}), Graph(), {}, seen(store.history))
        judged(store, said)
        catalog = journal.catalog_from_json(said.catalog, b"", None)
        graph = restored_graph(store.tail, said.catalog)
        hide(store.history, named_logs(graph), catalog)
        store.remember(graph, store.tail)
        version = Version(epoch, store.restored(graph))
        store.release()
        return ledger, Snapshot(version, graph, catalog, seen(store.history))


def told(
    ledger: Ledger, tail: Iterable[Told], epoch: int, meta: Mapping[str, Any], durable: int
) -> tuple[int, Said | None]:
    """Records the epochs that frames tell of; returns the last one and the last catalog.

    Args:
        epoch: the last one before them.
        meta: of the checkpoint at `epoch`; empty without one.
        durable: how far frames are on disk.
    """
    said = _said(epoch, meta) if "catalog" in meta else None
    for seq, kind, payload in tail:
        if kind == journal.DEFINITION:
            said = _said(payload.epoch, payload.meta)
        if kind != journal.EPOCH:
            continue
        if payload.epoch != epoch + 1:
            raise CorruptLogError(f"epoch {payload.epoch} follows epoch {epoch} in the log")
        epoch = payload.epoch
        once = check_texts(payload.meta.get("once", {}), "the key of a load")
        named = payload.meta
        label = check_text(named["label"], "a label") if "label" in named else None
        ledger.record(Record(epoch, payload.utc, seq, durable, label, once))
    return epoch, said


def _said(epoch: int, meta: Mapping[str, Any]) -> Said:
    return Said(epoch, meta["catalog"], meta.get("signed"))


def judged(store: Store, said: Said) -> Judged:
    """Tells whose a catalog is; of what is not this user's alone, rows are not trusted either."""
    check_catalog(said.catalog, said.epoch)
    key, unfit = signing.own_key()
    origin = signing.judged(key, store.log.id, said.epoch, said.catalog, said.signature)
    if not origin.own or any(each.get("signer") for each in said.catalog["stages"]):
        store.look_through()
    return Judged(key, unfit, origin)


def restored_graph(tail: Iterable[Told], data: Mapping[str, Any]) -> Graph:
    """The graph that a catalog names.

    Numbers that a definition took which never came about are not given again.
    """
    taken = (e.number for each in tail for _, e in journal.changes(each.payload))
    return Graph(journal.restored_nodes(data), max((data["numbers"], *taken)))
