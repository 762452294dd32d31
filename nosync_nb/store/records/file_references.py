"""Naming: which files of rows a frame or a checkpoint names; without them it says nothing.

Which files of a log an epoch needs on replicas to be safe there, and which come last.

A stage that is kept on disk is promised nothing on replicas: it is had again by running; so is one
that is scaled back under a backlog, until that falls (session/durability/backlog_policy.py). What
such a stage alone keeps is *local*: the numbers of its logs and traces, and of parts that no other
stage uses. A file that local ones alone name is owed last: replicas get it when they have all else,
and what they acknowledge says nothing of it. Frames are whole: small changes of a local stage ride
in them, as packs of the past have those of all stages.

Which numbers are local stands in each definition, and in each checkpoint with the files that packs
refer to for them. The last word counts, for all files that are named then. So whoever reads a copy
back, which may end at any frame, knows of it what was owed to it when it was acknowledged.

What one frame, or one checkpoint, names; read once for all who follow the same log.

Each replica is shipped to by somebody of its own, who reads the log himself, and a recovery reads
what each of them holds: the same bytes come by as often as there are replicas. What small ones name
is kept for the next one who asks; it follows from the bytes alone.

Memory: `_KNOWN_MAX` frames and as many checkpoints, of `_SMALL_BYTES` each at most, and
`_STRETCHES_MAX` stretches of the log of `_STRETCH_BYTES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any, NamedTuple

from nosync_nb.dataflow.graph import Graph
from nosync_nb.dataflow.stage import DISK, Stage
from nosync_nb.files.filesystem import Files
from nosync_nb.store import lazy_layer, ownership_history
from nosync_nb.store.log import frames
from nosync_nb.store.log.frames import Damage, Frame, Mark
from nosync_nb.store.records import payloads
from nosync_nb.store.records.payloads import INLINE, Payload, PayloadEntry
from nosync_nb.store.safe_decoding import guarded_decoding
from nosync_nb.trace.history import pack_tree
from nosync_nb.trace.history.history import History
from nosync_nb.trace.parts.part_file import PartRef

LOCAL_KEY = "local"
_PACKED = -1  # named by a pack, for many
NO_NUMBERS: frozenset[int] = frozenset()

Namers = Mapping[str, AbstractSet[int]]
"""By file, the logs and traces that name it."""

_SMALL_BYTES = 1 << 13
_CACHED_MAX = 1 << 8
_STRETCH_BYTES = 1 << 15
_STRETCHES_MAX = 1 << 5


class FileReference(NamedTuple):
    """A file of rows that a log names, with what it has of it.

    Attributes:
        size, digest: None of a part that a pack alone refers to.
    """

    name: str
    size: int | None = None
    digest: str | None = None


def references_of_changes(changes: Mapping[int, Sequence[tuple[int, PayloadEntry]]]) -> set[str]:
    """The files that entries of frames name; see `journal.changes`.

    Raises:
        CorruptLogError: what they say makes no sense.
    """
    filed = (entry for each in changes.values() for _, entry in each if entry.kind != INLINE)
    return {ref.path for entry in filed for ref in payloads.entry_files(entry)}


def references_of_layers(meta: Mapping[str, Any]) -> set[str]:
    """The files of the layers that a checkpoint lists."""
    with guarded_decoding("a checkpoint"):
        listed = [layer for _, _, layers in meta.get("layers", {}).values() for layer in layers]
        return {ref.path for *_, refs in listed for ref in lazy_layer.layer_refs(refs)}


def check_history(payload: Payload, packs: str, files: Files) -> None:
    """Raises CorruptLogError unless the past that a checkpoint describes is of a known format.

    Args:
        packs: the folder of the log's history; nothing in it is opened.
    """
    manifest = payload.meta.get("history")
    if manifest is not None:
        with guarded_decoding("a checkpoint"):
            History.restore(packs, manifest, write=False, files=files)


def file_references(
    meta: Mapping[str, Any], changes: Sequence[Mapping[int, Any]]
) -> dict[str, FileReference]:
    """The files that a checkpoint and entries of frames name, by their names.

    Args:
        meta: the checkpoint's; empty without one.
        changes: what frames hold, see `journal.changes`.
    """
    known: dict[str, FileReference] = {}
    if not meta and not any(changes):
        return known
    with guarded_decoding("the log"):
        for each in (
            *_references_of_meta(meta),
            *(one for some in changes for one in _references_of_entries(some)),
        ):
            if each.digest is not None or each.name not in known:
                known[each.name] = each
    return known


def _references_of_entries(
    changes: Mapping[int, Sequence[tuple[int, PayloadEntry]]],
) -> Iterator[FileReference]:
    for some in changes.values():
        for _, entry in some:
            for ref in payloads.entry_files(entry):
                yield FileReference(ref.path, ref.size_bytes, ref.digest)


def _references_of_meta(meta: Mapping[str, Any]) -> Iterator[FileReference]:
    for _, _, layers in meta.get("layers", {}).values():
        for _, _, refs in layers:
            for ref in lazy_layer.layer_refs(refs):
                yield FileReference(ref.path, ref.size_bytes, ref.digest)
    history = meta.get("history") or {"tree": ()}
    for top in map(pack_tree.node_from_json, history["tree"]):
        for node in top.walk():
            yield FileReference(node.name, node.size_bytes, node.digest)
            yield from map(FileReference, node.parts)


def local_numbers(catalog: Mapping[str, Stage], graph: Graph) -> frozenset[int]:
    """The numbers of what stages on disk alone keep, and those in memory."""
    # Asked of each stage at each definition: a call takes ten times as long.
    asked = (n for n, s in catalog.items() if s.options.persist == DISK or s.scaled is not None)
    kept = {name for name in asked if catalog[name].on_disk}
    return graph.only_of(kept | graph.memory) if kept else NO_NUMBERS


def recorded_requirement(
    numbers: AbstractSet[int], history: History | None = None
) -> dict[str, Any]:
    """What a definition says of local numbers, or a checkpoint, which has a history."""
    if not numbers:
        return {}
    files = {} if history is None else history.only_of(numbers)
    return {
        LOCAL_KEY: [sorted(numbers), [[n, sorted(names)] for n, names in files.items() if names]]
    }


class ReplicationRequirement(NamedTuple):
    """What a definition or a checkpoint says: local numbers, and files of packs that name them."""

    numbers: frozenset[int]
    files: Namers


NO_REQUIREMENT = ReplicationRequirement(NO_NUMBERS, {})


def requirement_of(payload: Payload) -> ReplicationRequirement | None:
    """What a payload says of local numbers; None if it is not of those that say it.

    Raises:
        CorruptLogError: it makes no sense.
    """
    if "catalog" not in payload.meta:
        return None
    if LOCAL_KEY not in payload.meta:
        return NO_REQUIREMENT
    with guarded_decoding("what is owed to replicas"):
        numbers, listed = payload.meta[LOCAL_KEY]
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
        return NO_NUMBERS if self._said is None else self._said.numbers

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
    own = requirement_of(payload) or NO_REQUIREMENT
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


def expected_files_of_frame(
    payload: Payload, after: int, *, current: bool = True
) -> Iterator[ExpectedFile]:
    """The files that a frame names; `after` is its end."""
    for number, changes in payloads.entries_by_log([payload]).items():
        for epoch, entry in changes:
            for ref in payloads.entry_files(entry):
                part = _expected_part(ref, number, _interval(epoch, entry), after, current=current)
                yield part._replace(framed=True)


def expected_files_of_checkpoint(
    payload: Payload, after: int, *, current: bool = True
) -> Iterator[ExpectedFile]:
    """The files that the state in a checkpoint lies in."""
    for number, (log, _, layers) in payload.meta.get("layers", {}).items():
        for lower, upper, refs in layers:
            for ref in lazy_layer.layer_refs(refs):
                yield _expected_part(
                    ref, int(number), range(lower, upper), after, current=current, log=log
                )
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


def _expected_part(
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


class FrameFiles(NamedTuple):
    """The epoch of a frame, the files that it names, and for whom; nobody changes them.

    `said` is what it says of what is owed last; None if nothing.
    """

    epoch: int
    files: Mapping[str, FileReference]
    namers: Namers
    said: ReplicationRequirement | None


class CheckpointFiles(NamedTuple):
    """The same of a checkpoint, and who owned the log before."""

    epoch: int
    files: Mapping[str, FileReference]
    namers: Namers
    said: ReplicationRequirement | None
    reigns: ownership_history.Reigns


def scan_frames(data: bytes, origin: int, before: Mark) -> tuple[Sequence[Frame], Damage | None]:
    """The frames of a stretch of the log; see `frames.scan`."""
    return (_cached_stretch if len(data) <= _STRETCH_BYTES else frames.scan_buffer)(
        data, origin, before
    )


def files_of_frame(payload: bytes | memoryview) -> FrameFiles:
    """What the payload of a frame names.

    Raises:
        CorruptLogError: it makes no sense.
    """
    if isinstance(payload, bytes) and len(payload) <= _SMALL_BYTES:
        return _cached_frame(payload)
    return _decode_frame(payload)


def files_of_checkpoint(payload: bytes) -> CheckpointFiles:
    """What the payload of a checkpoint names.

    Raises:
        CorruptLogError: it makes no sense.
    """
    return (_cached_checkpoint if len(payload) <= _SMALL_BYTES else _decode_checkpoint)(payload)


def _decode_frame(data: bytes | memoryview) -> FrameFiles:
    payload = payloads.decode_payload(data)
    changes = payloads.entries_by_log([payload])
    files, namers = (
        file_references({}, [changes]),
        required_by_changes(changes),
    )
    return FrameFiles(payload.epoch, files, namers, requirement_of(payload))


def _decode_checkpoint(data: bytes) -> CheckpointFiles:
    payload = payloads.decode_payload(data)
    files, namers = (
        file_references(payload.meta, ()),
        required_by_checkpoint(payload),
    )
    reigns = ownership_history.decode_ownership(payload.meta)
    return CheckpointFiles(payload.epoch, files, namers, requirement_of(payload), reigns)


_cached_stretch = lru_cache(_STRETCHES_MAX)(frames.scan_buffer)
_cached_frame = lru_cache(_CACHED_MAX)(_decode_frame)
_cached_checkpoint = lru_cache(_CACHED_MAX)(_decode_checkpoint)
