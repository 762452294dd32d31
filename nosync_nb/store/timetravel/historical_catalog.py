"""Then: what a log computed as of an epoch, out of the frames and checkpoints that are kept.

Each definition, and each rewind, says the whole catalog. An epoch was computed by the last one that
was written before it, on the line of epochs that the log is on now. What frames do not reach is not
known any more: no catalog is kept for the past alone.

A log's number is never used for two things. So what a stage held then is had from the past under
its number of then, whatever became of its name; what operators remember, of those nodes that are
the same to this day. A stage that was dropped since is computed from what it reads, as one that was
defined later would be; a dropped input is gone, and with it this graph.

Failure: 1. A stage stops; an epoch follows; it goes on, and is given what it missed. 2. Somebody
takes the graph of that epoch, in which it has stopped, with the layers of now, which have it. Hence
of what stood still then and moved since no layer is taken, only the past up to where it stood.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from nosync_nb.dataflow.graph import Graph, Node
from nosync_nb.dataflow.runtime.epoch_result import VersionState
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import TimeError, TrustError
from nosync_nb.store.catalog import signature as signing
from nosync_nb.store.catalog.validation import check_catalog
from nosync_nb.store.log.frame_index import checkpoint_states, retained_frames
from nosync_nb.store.records import payloads
from nosync_nb.store.records.payloads import Payload
from nosync_nb.store.safe_decoding import guarded_decoding
from nosync_nb.store.undo import FrameStore
from nosync_nb.trace.history.history import History

_STATE = 1 << 16
"""What a checkpoint is among the kinds of frames; it stands behind the frame that it is made at."""


class HistoricalCatalog(NamedTuple):
    """A catalog as it was written at an epoch, and its signature."""

    epoch: int
    catalog: Mapping[str, Any]
    signature: Any


def historical_catalog(store: FrameStore, epoch: int, now: int) -> HistoricalCatalog:
    """The catalog that an epoch was computed by; of epoch 0 that of the epoch after it.

    What was defined after an epoch was committed, and before the next one, is not of it.

    Args:
        now: the last epoch.

    Raises:
        TimeError: nothing that is kept says so; names the first epoch of which it does.
        CorruptLogError: a frame is damaged.

    Cost: some us a frame that is kept, and two checkpoints are read.
    """
    known = _known(store, now)
    if epoch not in known:
        since = f"those of epoch {min(known)} and later are; " if known else ""
        raise TimeError(
            f"what was defined at epoch {epoch} is not known any more",
            hint=f"{since}leave out definitions='then' to go on with the definitions of now",
        )
    return known[epoch]


def _known(store: FrameStore, now: int) -> dict[int, HistoricalCatalog]:
    """By epoch, the catalog that it was computed by, as far as that is known."""
    files, folder = store.files, store.log.path
    frames = retained_frames(files, folder, store.log.head)
    steps = [(frame.position.seq, frame.kind, frame.payload) for frame in frames]
    steps += [(seq, _STATE, payload) for seq, payload in checkpoint_states(files, folder)]
    known: dict[int, HistoricalCatalog] = {}
    standing: HistoricalCatalog | None = None
    for seq, kind, data in sorted(steps, key=lambda each: each[:2]):
        epoch = payloads.payload_epoch(data)
        if kind == payloads.EPOCH and standing is not None:
            known[epoch] = standing
            known.update({0: standing} if epoch == 1 else {})
        if kind == payloads.REWIND:
            known = {at: each for at, each in known.items() if at <= epoch and epoch}
        if kind in payloads.DEFINES or (kind == _STATE and standing is None):
            standing = _said(payloads.decode_payload(data))
            if kind == _STATE and not seq and standing is not None:  # the log began with it
                known[epoch] = standing
    if standing is not None and not now:
        known[0] = standing
    return known


def _said(payload: Payload) -> HistoricalCatalog | None:
    meta = payload.meta
    if "catalog" not in meta:
        return None
    return HistoricalCatalog(payload.epoch, meta["catalog"], meta.get("signed"))


def with_historical_catalog(seen: Snapshot, was: HistoricalCatalog, log_id: bytes) -> Snapshot:
    """A snapshot with an earlier catalog and its graph, to be planned as of an epoch of it.

    Nothing of it is compiled, and none of the user's functions is loaded.

    Raises:
        TimeError: an input of it was dropped since.
        TrustError: another key has signed it, or nobody.
        CorruptLogError: it makes no sense.

    Cost: O(nodes), each some us.
    """
    check_catalog(was.catalog, was.epoch)
    origin = signing.judge_signature(
        signing.own_key()[0], log_id, was.epoch, was.catalog, was.signature
    )
    if not origin.own:
        raise TrustError(
            f"what was defined at epoch {was.epoch} cannot be gone on with: {origin.why}",
            hint="leave out definitions='then' to go on with the definitions of now",
        )
    with guarded_decoding("an earlier catalog"):
        catalog = payloads.catalog_from_json(was.catalog, log_id, None)
        nodes = [*payloads.restored_nodes(was.catalog)]
    return _Earlier(seen, catalog).snapshot(nodes)


class _Earlier:
    """The nodes of an earlier catalog, each as far as it is there now."""

    def __init__(self, seen: Snapshot, catalog: dict[str, Stage]) -> None:
        self.seen, self.catalog = seen, catalog
        self.history: History = seen.history.copied(())
        self.logs = {node.log: node for node in seen.graph.named.values() if node.log is not None}
        self.moved: set[int] = set()  # the traces that are not what they were
        # Whose parts are kept elsewise is told by who reads them, which is not known of then.
        every = [*catalog.values(), *seen.catalog.values()]
        self.shared = not any(stage.options.persist for stage in every)

    def snapshot(self, nodes: Iterable[Node]) -> Snapshot:
        there = [made for node in nodes if (made := self._node(node)) is not None]
        memory = frozenset(name for name, stage in self.catalog.items() if stage.in_memory)
        graph = Graph(there, self.seen.graph.numbers, memory=memory)
        traces = self.seen.version.traces
        version = VersionState(
            self.seen.epoch, {n: trace for n, trace in traces.items() if n not in self.moved}
        )
        return Snapshot(version, graph, self.catalog, self.history)

    def _node(self, node: Node) -> Node | None:
        """A node of then: that of now if it is the same, else without what it remembers.

        None of a part without a name that is not the same: nothing is known of it.
        """
        now = self.seen.graph.nodes.get(node.id)
        if node.name is None:
            return _same(node, now) if self.shared else None
        assert node.log is not None
        stage, there = self.catalog[node.name], self.logs.get(node.log)
        bare = replace(node, stage=node.name, state=(), plan="")
        if there is None:
            self._lost(stage, node)
            return bare
        assert there.name is not None
        today = self.seen.catalog[there.name]
        gaps = tuple(sorted({*stage.gaps, *today.gaps}))
        self.catalog[node.name] = replace(stage, gaps=gaps)
        if there.stopped != node.stopped or today.in_memory != stage.in_memory:
            self.moved.update(node.traces.values())
            return bare
        return _same(node, now) or bare

    def _lost(self, stage: Stage, node: Node) -> None:
        """A named collection of which nothing is left."""
        if stage.is_input:
            raise TimeError(
                f"input '{stage.name}', which was there then, was dropped since: its rows are gone",
                hint="leave out definitions='then' to go on with the definitions of now",
            )
        assert node.log is not None
        self.history.begin(node.log, self.seen.epoch + 1)


def _same(node: Node, now: Node | None) -> Node | None:
    """The node of now, with the arrangements of then, if it has what the one of then had."""
    if now is None or (now.state and now.operator is None):
        return None
    if (node.fingerprint, node.plan, node.log, node.state, node.stopped) != (
        now.fingerprint,
        now.plan,
        now.log,
        now.state,
        now.stopped,
    ):
        return None
    return replace(now, name=node.name, stage=node.name or now.stage, traces=node.traces)
