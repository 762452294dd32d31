"""Expected: the files of rows that frames and checkpoints name, with what is known of each.

The names alone are `naming`'s, for who ships and sweeps; here are sizes, digests, whose rows they
hold and of which epochs, so that damage can be told by what is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from nosync_nb.store import lazy_layer
from nosync_nb.store.records import payloads
from nosync_nb.store.records.file_references__owed import RequirementHistory
from nosync_nb.store.records.payloads import Payload, PayloadEntry
from nosync_nb.trace.history import pack_tree
from nosync_nb.trace.parts.part_file import PartRef


class ExpectedFile(NamedTuple):
    """A file of rows that the log names.

    Attributes:
        name: plain.
        size, digest: as the log has them; None: it is named by a pack, which has them.
        traces: the numbers of those whose rows it holds; empty: many.
        epochs: of its rows.
        after: the end of the frame that names it, in the stream: who holds more has it; of what a
            checkpoint alone names the end of what that stands for.
        current: the newest state needs it, and not only the one before.
        framed: a frame names it, and not a checkpoint alone, which copies get after it.
    """

    name: str
    size: int | None
    digest: str | None
    traces: frozenset[int]
    epochs: range
    after: int
    current: bool
    framed: bool = False

    def owed(self, spoken: RequirementHistory) -> ExpectedFile:
        """This file, as whoever holds frames has it once it was owed again that came last."""
        since = [spoken.since[n] for n in self.traces if n in spoken.since]
        if not since or self.traces - spoken.numbers - spoken.since.keys():
            return self
        return self._replace(after=max(since), framed=True) if max(since) > self.after else self

    def joined(self, other: ExpectedFile) -> ExpectedFile:
        """This file, which another place names as well: its rows in another order, or state."""
        current, framed = self.current or other.current, self.framed or other.framed
        after = min(each.after for each in (self, other) if each.framed == framed)
        if self.digest is None or other.digest is None:  # a pack says that it needs it, and no more
            more = other if self.digest is None else self
            return more._replace(after=after, current=current, framed=framed)
        many = self.traces and other.traces
        epochs = self.epochs, other.epochs
        return self._replace(
            traces=self.traces | other.traces if many else frozenset(),
            epochs=range(min(e.start for e in epochs), max(e.stop for e in epochs)),
            after=after,
            current=current,
            framed=framed,
        )


def of_frame(payload: Payload, after: int, *, current: bool = True) -> Iterator[ExpectedFile]:
    """The files that a frame names; `after` is its end."""
    for number, changes in payloads.entries_by_log([payload]).items():
        for epoch, entry in changes:
            for ref in payloads.entry_files(entry):
                part = _part(ref, number, _interval(epoch, entry), after, current=current)
                yield part._replace(framed=True)


def of_checkpoint(payload: Payload, after: int, *, current: bool = True) -> Iterator[ExpectedFile]:
    """The files that the state in a checkpoint lies in."""
    for number, (log, _, layers) in payload.meta.get("layers", {}).items():
        for lower, upper, refs in layers:
            for ref in lazy_layer.layer_refs(refs):
                yield _part(ref, int(number), range(lower, upper), after, current=current, log=log)
    history = payload.meta.get("history") or {"tree": ()}
    for top in map(pack_tree.node_from_json, history["tree"]):
        for node in top.walk():
            epochs = range(node.lower, max(min(node.upper, node.clip), node.lower + 1))
            many: frozenset[int] = frozenset()
            yield ExpectedFile(
                node.name, node.size_bytes, node.digest, many, epochs, after, current=current
            )
            for part in node.parts:
                yield ExpectedFile(part, None, None, many, epochs, after, current=current)


def _part(
    ref: PartRef, number: int, epochs: range, after: int, *, current: bool, log: int | None = None
) -> ExpectedFile:
    numbers = frozenset((number,) if log is None else (number, log))
    return ExpectedFile(
        ref.path, ref.size_bytes, ref.digest, numbers, epochs, after, current=current
    )


def _interval(epoch: int, entry: PayloadEntry) -> range:
    if entry.kind == payloads.FILES:
        return range(epoch, epoch + 1)
    lower, upper, _ = payloads.layer_of(entry)
    return range(lower, upper)


def stages_of(meta: dict[str, Any]) -> dict[int, str]:
    """The names of stages by the numbers of their logs and traces, as a catalog has them."""
    stages = {}
    for node in meta.get("catalog", {}).get("nodes", ()):
        name = node["name"]
        if isinstance(name, str):
            numbers = [node["log"], *(number for _, number in node["traces"]), *node["state"]]
            stages.update(dict.fromkeys(numbers, name))
    return stages
