"""Owed: which files of a log an epoch needs on replicas to be safe there, and which come last.

A stage that is kept on disk is promised nothing on replicas: it is had again by running; so is one
that is scaled back under a backlog, until that falls (session/durability/backlog_policy.py). What
such a stage alone keeps is *local*: the numbers of its logs and traces, and of parts that no other
stage uses. A file that local ones alone name is owed last: replicas get it when they have all else,
and what they acknowledge says nothing of it. Frames are whole: small changes of a local stage ride
in them, as packs of the past have those of all stages.

Which numbers are local stands in each definition, and in each checkpoint with the files that packs
refer to for them. The last word counts, for all files that are named then. So whoever reads a copy
back, which may end at any frame, knows of it what was owed to it when it was acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from nosync_nb.dataflow.graph import Graph
from nosync_nb.dataflow.stage import DISK, Stage
from nosync_nb.store import lazy_layer
from nosync_nb.store.records import payloads
from nosync_nb.store.records.payloads import Payload, PayloadEntry
from nosync_nb.store.safe_decoding import guarded_decoding
from nosync_nb.trace.history import pack_tree
from nosync_nb.trace.history.history import History

KEY = "local"
_PACKED = -1  # named by a pack, for many
NONE: frozenset[int] = frozenset()

Namers = Mapping[str, AbstractSet[int]]
"""By file, the logs and traces that name it."""


def local_numbers(catalog: Mapping[str, Stage], graph: Graph) -> frozenset[int]:
    """The numbers of what stages on disk alone keep, and those in memory."""
    # Asked of each stage at each definition: a call takes ten times as long.
    asked = (n for n, s in catalog.items() if s.options.persist == DISK or s.scaled is not None)
    kept = {name for name in asked if catalog[name].on_disk}
    return graph.only_of(kept | graph.memory) if kept else NONE


def recorded_requirement(
    numbers: AbstractSet[int], history: History | None = None
) -> dict[str, Any]:
    """What a definition says of local numbers, or a checkpoint, which has a history."""
    if not numbers:
        return {}
    files = {} if history is None else history.only_of(numbers)
    return {KEY: [sorted(numbers), [[n, sorted(names)] for n, names in files.items() if names]]}


class ReplicationRequirement(NamedTuple):
    """What a definition or a checkpoint says: local numbers, and files of packs that name them."""

    numbers: frozenset[int]
    files: Namers


NOTHING = ReplicationRequirement(NONE, {})


def requirement_of(payload: Payload) -> ReplicationRequirement | None:
    """What a payload says of local numbers; None if it is not of those that say it.

    Raises:
        CorruptLogError: it makes no sense.
    """
    if "catalog" not in payload.meta:
        return None
    if KEY not in payload.meta:
        return NOTHING
    with guarded_decoding("what is owed to replicas"):
        numbers, listed = payload.meta[KEY]
        files: dict[str, set[int]] = {}
        for number, names in listed:
            for name in names:
                files.setdefault(name, set()).add(number)
        if not all(
            type(n) is int for n in (*numbers, *(n for each in files.values() for n in each))
        ):
            raise ValueError("they are no numbers")
        return ReplicationRequirement(frozenset(numbers), files)


class RequirementHistory:
    """What was said of local numbers, as one definition follows the other.

    Attributes:
        numbers: those of now.
        since: of those that were local the place in the stream where they are owed again: who has
            no more of it may lack their files.
    """

    def __init__(self) -> None:
        self.since: dict[int, int] = {}
        self._said: ReplicationRequirement | None = None

    @property
    def numbers(self) -> frozenset[int]:
        return NONE if self._said is None else self._said.numbers

    def begin(self, said: ReplicationRequirement | None) -> None:
        """Takes what a checkpoint says; the newest one is given first."""
        self._said = self._said or said

    def follow(self, said: ReplicationRequirement, end: int) -> None:
        """Takes what a frame says that ends at a place in the stream."""
        self.since.update(dict.fromkeys(self.numbers - said.numbers, end))
        for number in said.numbers & self.since.keys():
            del self.since[number]
        self._said = said


def required_by_checkpoint(payload: Payload) -> Namers:
    """Who names the files that the state in a checkpoint lies in."""
    own = requirement_of(payload) or NOTHING
    namers: dict[str, set[int]] = {}
    with guarded_decoding("a checkpoint"):
        for number, (_, _, layers) in payload.meta.get("layers", {}).items():
            for ref in (ref for *_, refs in layers for ref in lazy_layer.layer_refs(refs)):
                namers.setdefault(ref.path, set()).add(int(number))
        history = payload.meta.get("history") or {"tree": ()}
        for node in (
            n for top in map(pack_tree.node_from_json, history["tree"]) for n in top.walk()
        ):
            namers.setdefault(node.name, set()).add(_PACKED)
            for part in node.parts:
                namers.setdefault(part, set()).update(own.files.get(part, (_PACKED,)))
    return namers


def required_by_changes(changes: Mapping[int, Sequence[tuple[int, PayloadEntry]]]) -> Namers:
    """Who names the files that entries of frames name; see `journal.changes`."""
    namers: dict[str, set[int]] = {}
    for number, some in changes.items():
        for ref in (ref for _, entry in some for ref in payloads.entry_files(entry)):
            namers.setdefault(ref.path, set()).add(number)
    return namers


def ships_last(numbers: AbstractSet[int], named: Iterable[Namers]) -> frozenset[str]:
    """The files that come last, as local numbers alone name them; of all that are named."""
    if not numbers:
        return frozenset()
    namers: dict[str, set[int]] = {}
    for each in named:
        for name, some in each.items():
            namers.setdefault(name, set()).update(some)
    return frozenset(name for name, some in namers.items() if some <= numbers)
