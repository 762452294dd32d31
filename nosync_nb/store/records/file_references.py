"""Lists the files of rows that frames and checkpoints name, and which of them replicas must hold.

Only `named_files` enumerates these references. Opening, replication, verification and restore
derive from them what they need: names, sizes with digests, the numbers of the logs and traces that
reference a file, or its epochs.

A stage at durability level `disk` needs nothing on replicas, because it can be recomputed. The same
holds for a stage that is demoted under a backlog, until the backlog falls
(session/durability/backlog_policy.py). The numbers of the logs, traces and parts that only such
stages use are *local*. A file that only local numbers reference ships last: replicas get it after
all other files, and their acknowledgement does not cover it. Frames ship whole: they contain the
small changes of local stages, as the packs of the history contain those of all stages.

Each definition records the local numbers. Each checkpoint records them as well, with the files that
packs reference for them. The latest record applies to all files that are referenced at that time. A
copy may end at any frame; a restore knows from the records before that frame which files were
required when the copy was acknowledged.

Each replica has a worker that reads the log on its own, and a recovery reads the log of each
replica. So the same bytes would be decoded once for each replica. The results for small frames and
checkpoints are cached, because they depend on the bytes alone.

Memory: at most `_CACHED_MAX` frames and `_CACHED_MAX` checkpoints, each from at most `_SMALL_BYTES`
of payload.
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
from nosync_nb.store.records import payloads
from nosync_nb.store.records.payloads import WITHOUT_FILES, Payload, PayloadEntry
from nosync_nb.store.safe_decoding import guarded_decoding
from nosync_nb.trace.history import pack_tree
from nosync_nb.trace.history.history import History
from nosync_nb.trace.parts.part_file import PartRef

LOCAL_KEY = "local"
_PACKED = -1  # referenced by a pack, for many traces
NO_NUMBERS: frozenset[int] = frozenset()

Namers = Mapping[str, AbstractSet[int]]
"""The numbers of the logs and traces that reference each file, by the name of the file."""

_SMALL_BYTES = 1 << 13
_CACHED_MAX = 1 << 8


class FileReference(NamedTuple):
    """A file of rows that a log names.

    Attributes:
        size, digest: `None` for a part that only a pack references.
    """

    name: str
    size: int | None = None
    digest: str | None = None

    def held_in(self, sizes: Mapping[str, int]) -> bool:
        """Returns True if a copy that has files of these sizes, by name, contains this file."""
        return self.name in sizes and self.size in (None, sizes[self.name])


class NamedFile(NamedTuple):
    """One reference to a file of rows, in a checkpoint or in an entry of a frame.

    Attributes:
        size, digest: `None` for a part that only a pack references.
        number: the log or the trace that has the rows; `None` for a pack, or for a part that a pack
            references.
        epochs: the epochs of its rows.
        log: the number of the log that feeds the trace, if a checkpoint contains the reference.
    """

    name: str
    size: int | None
    digest: str | None
    number: int | None
    epochs: range
    log: int | None = None


def named_files(
    meta: Mapping[str, Any], changes: Mapping[int, Sequence[tuple[int, PayloadEntry]]]
) -> Iterator[NamedFile]:
    """Yields the files that a checkpoint and entries of frames name, once for each reference.

    Args:
        meta: the checkpoint's JSON; empty without one.
        changes: the entries, see `payloads.entries_by_log`.

    Raises:
        CorruptLogError: a reference is invalid.
    """
    with guarded_decoding("a checkpoint"):
        for number, (log, _, layers) in meta.get("layers", {}).items():
            for lower, upper, listed in layers:
                for ref in lazy_layer.layer_refs(listed):
                    yield _named_part(ref, int(number), range(lower, upper), log)
        history = meta.get("history") or {"tree": ()}
        for top in map(pack_tree.node_from_json, history["tree"]):
            for node in top.walk():
                epochs = range(node.lower, max(min(node.upper, node.clip), node.lower + 1))
                yield NamedFile(node.name, node.size_bytes, node.digest, None, epochs)
                for part in node.parts:
                    yield NamedFile(part, None, None, None, epochs)
    for number, entries in changes.items():
        for epoch, entry in entries:
            if entry.kind not in WITHOUT_FILES:
                epochs, refs = payloads.files_of_entry(epoch, entry)
                for ref in refs:
                    yield _named_part(ref, number, epochs)


def _named_part(ref: PartRef, number: int, epochs: range, log: int | None = None) -> NamedFile:
    return NamedFile(ref.path, ref.size_bytes, ref.digest, number, epochs, log)


def references(named: Iterable[NamedFile]) -> dict[str, FileReference]:
    """Returns one reference for each file name; those with a digest are preferred."""
    by_name: dict[str, FileReference] = {}
    for each in named:
        if each.digest is not None or each.name not in by_name:
            by_name[each.name] = FileReference(each.name, each.size, each.digest)
    return by_name


def check_history(payload: Payload, packs: str, files: Files) -> None:
    """Checks that the history in a checkpoint has a known format.

    Args:
        packs: the folder of the log's history; no file in it is opened.

    Raises:
        CorruptLogError: the format is unknown, or the history is invalid.
    """
    manifest = payload.meta.get("history")
    if manifest is not None:
        with guarded_decoding("a checkpoint"):
            History.restore(packs, manifest, write=False, files=files)


def local_numbers(catalog: Mapping[str, Stage], graph: Graph) -> frozenset[int]:
    """Returns the numbers that only stages at the levels `disk` and `memory` use."""
    # inline, because it runs for each stage at each definition: a call would take ten times as long
    candidates = (
        n for n, s in catalog.items() if s.options.persist == DISK or s.scaled is not None
    )
    local = {name for name in candidates if catalog[name].on_disk}
    return graph.only_of(local | graph.memory) if local else NO_NUMBERS


def recorded_requirement(
    numbers: AbstractSet[int], history: History | None = None
) -> dict[str, Any]:
    """Returns the JSON that records local numbers in a definition or a checkpoint.

    Args:
        history: the history of a checkpoint, whose packs reference files; `None` for a definition.
    """
    if not numbers:
        return {}
    files = {} if history is None else history.only_of(numbers)
    return {
        LOCAL_KEY: [sorted(numbers), [[n, sorted(names)] for n, names in files.items() if names]]
    }


class ReplicationRequirement(NamedTuple):
    """The local numbers that a definition or a checkpoint records.

    Attributes:
        numbers: the local numbers.
        files: the files that packs reference for them.
    """

    numbers: frozenset[int]
    files: Namers


NO_REQUIREMENT = ReplicationRequirement(NO_NUMBERS, {})


def requirement_of(payload: Payload) -> ReplicationRequirement | None:
    """Returns the record of local numbers in a payload; None if it is no definition or checkpoint.

    Raises:
        CorruptLogError: the record is invalid.
    """
    if "catalog" not in payload.meta:
        return None
    if LOCAL_KEY not in payload.meta:
        return NO_REQUIREMENT
    with guarded_decoding("the replication requirement"):
        numbers, listed = payload.meta[LOCAL_KEY]
        files: dict[str, set[int]] = {}
        for number, names in listed:
            for name in names:
                files.setdefault(name, set()).add(number)
        if not all(
            type(n) is int for n in (*numbers, *(n for each in files.values() for n in each))
        ):
            raise ValueError("they are not numbers")
        return ReplicationRequirement(frozenset(numbers), files)


class RequirementHistory:
    """The records of local numbers, followed from one definition to the next.

    Attributes:
        numbers: the current local numbers.
        since: for numbers that are no longer local, the offset in the stream where they became
            required. A copy that ends before this offset may lack their files.
    """

    def __init__(self) -> None:
        self.since: dict[int, int] = {}
        self._latest: ReplicationRequirement | None = None

    @property
    def numbers(self) -> frozenset[int]:
        return NO_NUMBERS if self._latest is None else self._latest.numbers

    def add_checkpoint_record(self, said: ReplicationRequirement | None) -> None:
        """Adds the record of a checkpoint; it is ignored if a newer checkpoint had a record."""
        self._latest = self._latest or said

    def follow(self, said: ReplicationRequirement, end: int) -> None:
        """Adds the record of the next frame, which ends at the offset `end` of the stream."""
        self.since.update(dict.fromkeys(self.numbers - said.numbers, end))
        for number in said.numbers & self.since.keys():
            del self.since[number]
        self._latest = said


def namers_of(
    named: Iterable[NamedFile], requirement: ReplicationRequirement | None = None
) -> Namers:
    """Returns the numbers that reference each file.

    Args:
        requirement: the record of a checkpoint, which contains the numbers that reference parts
            through packs.
    """
    packed = (requirement or NO_REQUIREMENT).files
    namers: dict[str, set[int]] = {}
    for each in named:
        numbers = (each.number,) if each.number is not None else packed.get(each.name, (_PACKED,))
        namers.setdefault(each.name, set()).update(numbers)
    return namers


def ships_last(numbers: AbstractSet[int], named: Iterable[Namers]) -> frozenset[str]:
    """Returns the files that only local numbers reference.

    Args:
        numbers: the local numbers.
        named: all references of the log.
    """
    if not numbers:
        return frozenset()
    namers: dict[str, set[int]] = {}
    for namers_of_files in named:
        for name, numbers_of_file in namers_of_files.items():
            namers.setdefault(name, set()).update(numbers_of_file)
    return frozenset(name for name, numbers_of_file in namers.items() if numbers_of_file <= numbers)


class ExpectedFile(NamedTuple):
    """A file of rows that the log names, with the facts that a damage report needs.

    Attributes:
        name: a plain file name.
        size, digest: the values that the log records; `None` if only a pack references the file,
            and records them.
        traces: the numbers of the logs and traces that have the rows; empty if these are unknown,
            as for packs.
        epochs: the epochs of its rows.
        after: log offset from which a replica must hold this file: the end of the frame that names
            it. For a file that only a checkpoint names, it is the end of the frames before the
            checkpoint.
        current: True if the newest checkpoint or a later frame names it; False if only the previous
            checkpoint does.
        framed: True if a frame names it. A file that only a checkpoint names is shipped after it.
    """

    name: str
    size: int | None
    digest: str | None
    traces: frozenset[int]
    epochs: range
    after: int
    current: bool
    framed: bool = False

    def with_required_offset(self, spoken: RequirementHistory) -> ExpectedFile:
        """Returns this file with a later offset if its traces became required after it was named.

        The file is unchanged if one of its traces was required all the time.
        """
        since = [spoken.since[n] for n in self.traces if n in spoken.since]
        if not since or self.traces - spoken.numbers - spoken.since.keys():
            return self
        return self._replace(after=max(since), framed=True) if max(since) > self.after else self

    def joined(self, other: ExpectedFile) -> ExpectedFile:
        """Returns this file combined with a second reference to it.

        The second reference may be of a trace with another order of the rows, or of a checkpoint.
        """
        current, framed = self.current or other.current, self.framed or other.framed
        after = min(each.after for each in (self, other) if each.framed == framed)
        if self.digest is None or other.digest is None:  # a pack records only the name
            recorded = other if self.digest is None else self
            return recorded._replace(after=after, current=current, framed=framed)
        all_known = self.traces and other.traces
        epochs = self.epochs, other.epochs
        return self._replace(
            traces=self.traces | other.traces if all_known else frozenset(),
            epochs=range(min(e.start for e in epochs), max(e.stop for e in epochs)),
            after=after,
            current=current,
            framed=framed,
        )


def expected_files(
    named: Iterable[NamedFile], after: int, *, current: bool = True, framed: bool = False
) -> Iterator[ExpectedFile]:
    """Yields named files in the form that a verification expects; see `ExpectedFile`."""
    for name, size, digest, number, epochs, log in named:
        traces = frozenset(each for each in (number, log) if each is not None)
        yield ExpectedFile(name, size, digest, traces, epochs, after, current, framed)


def stages_of(meta: dict[str, Any]) -> dict[int, str]:
    """Returns the name of the stage for each number of a log or trace in a catalog."""
    stages = {}
    for node in meta.get("catalog", {}).get("nodes", ()):
        name = node["name"]
        if isinstance(name, str):
            numbers = [node["log"], *(number for _, number in node["traces"]), *node["state"]]
            stages.update(dict.fromkeys(numbers, name))
    return stages


class FrameFiles(NamedTuple):
    """The epoch of a frame, and the files that it names. Cached: must not be changed.

    Attributes:
        namers: the logs and traces that reference each file.
        said: the record of local numbers; `None` if the frame has none.
    """

    epoch: int
    files: Mapping[str, FileReference]
    namers: Namers
    said: ReplicationRequirement | None


class CheckpointFiles(NamedTuple):
    """The epoch of a checkpoint, its files, and the owners before it. Cached: must not change."""

    epoch: int
    files: Mapping[str, FileReference]
    namers: Namers
    said: ReplicationRequirement | None
    reigns: ownership_history.Reigns


def files_of_frame(payload: bytes | memoryview) -> FrameFiles:
    """Returns the files that the payload of a frame names.

    Raises:
        CorruptLogError: the payload is invalid.
    """
    if isinstance(payload, bytes) and len(payload) <= _SMALL_BYTES:
        return _cached_frame(payload)
    return _decode_frame(payload)


def files_of_checkpoint(payload: bytes) -> CheckpointFiles:
    """Returns the files that the payload of a checkpoint names.

    Raises:
        CorruptLogError: the payload is invalid.
    """
    return (_cached_checkpoint if len(payload) <= _SMALL_BYTES else _decode_checkpoint)(payload)


def _decode_frame(data: bytes | memoryview) -> FrameFiles:
    payload = payloads.decode_payload(data)
    named = [*named_files({}, payloads.entries_by_log([payload]))]
    return FrameFiles(payload.epoch, references(named), namers_of(named), requirement_of(payload))


def _decode_checkpoint(data: bytes) -> CheckpointFiles:
    payload = payloads.decode_payload(data)
    named, requirement = [*named_files(payload.meta, {})], requirement_of(payload)
    reigns = ownership_history.decode_ownership(payload.meta)
    namers = namers_of(named, requirement)
    return CheckpointFiles(payload.epoch, references(named), namers, requirement, reigns)


_cached_frame = lru_cache(_CACHED_MAX)(_decode_frame)
_cached_checkpoint = lru_cache(_CACHED_MAX)(_decode_checkpoint)
