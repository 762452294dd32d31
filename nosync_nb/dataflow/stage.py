"""Stages: the named collections of a catalog, as values.

A `Stage` is an input, or a definition with its options and state. It is immutable: a change creates
a new value, and readers of an earlier snapshot continue with the old one.

Its `fingerprint` identifies its meaning: the computation and its columns. Nodes and arrangements
belong to the graph, so a new graph does not change the stages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.functions.fingerprint import definition_fingerprint
from nosync_nb.rows import Field, Schema

MEMORY = "memory"
"""The durability level of stages whose rows are not written."""

DISK = "disk"
"""The durability level of stages that are durable on disk, and shipped to replicas last."""

REMEMBERED = 1 << 14
"""The maximum number of stage fingerprints of each kind that a kernel caches."""


@dataclass(frozen=True)
class StageOptions:
    """The options of a stage besides its definition.

    Attributes:
        on: the placement of its operators: auto, local or spark.
        nondeterministic: True if the results of its functions are memoised, because they may differ
            in another run.
        demoted: True if the stage was found to be nondeterministic, although its cell does not
            declare it.
        persist: its durability level: memory, disk or replicas; empty means the default of the log.
    """

    on: str = "auto"
    nondeterministic: bool = False
    demoted: bool = False
    persist: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns the options for a catalog; without `persist` if that is the default."""
        data = asdict(self)
        if not self.persist:
            del data["persist"]
        return data


@dataclass(frozen=True)
class LiveState:
    """The stage has every epoch."""


@dataclass(frozen=True)
class StaleState:
    """The stage has stopped, and stays so until the cause is removed.

    Attributes:
        reason: the cause, for messages.
        since: its last epoch.
    """

    reason: str
    since: int


@dataclass(frozen=True)
class FrozenState:
    """The stage is an earlier version, which can be read but does not advance.

    Attributes:
        since: its last epoch.
        log: the number of its log.
        trace: the number of its trace.
        key: the positions of the key columns of the trace; None if it has no key.
    """

    since: int
    log: int
    trace: int
    key: tuple[int, ...] | None


Life = LiveState | StaleState | FrozenState

LIVE = LiveState()


class RefutedState(NamedTuple):
    """The rows of a stage are not trusted.

    Attributes:
        epoch: the first epoch whose rows are not trusted.
        why: the reason.
    """

    epoch: int
    why: str


@dataclass(frozen=True)
class Stage:
    """A named collection in the catalog: an input (no definition) or a stage.

    Attributes:
        version: the number of the definition among those of this name, from 1.
        begin: its first epoch.
        uid: the identity of an input across renames: its first name, unless that was in use.
        fingerprint: identifies its meaning as of the last definition or opening; see
            `current_fingerprint`.
        gaps: the epochs `[lower, upper)` that cannot be read separately, because the stage caught
            up in one step.
        apart: a number that separates the stage and its unnamed parts from equal ones of other
            stages, because their contents may differ. 0 means that equal parts are shared.
        signer: the key id of the user who defined the stage; None if that is this user.
        held: the reason why it may not be compiled or run until the user's own cell defines it;
            None if it may.
        refuted: the rows that are not trusted until they are recomputed; None if all are trusted.
        scaled: the last epoch of the stage that replicas had when its durability was demoted
            because of the replication backlog. Until the backlog falls, the stage is durable on
            disk only. None if it is not demoted.
        origin: the table of a Spark session that an input was loaded from, as SQL; empty if it was
            not loaded from one.
    """

    name: str
    schema: Schema
    definition: Definition | None = None
    key: tuple[int, ...] | None = None
    version: int = 1
    begin: int = 0
    uid: str = ""
    fingerprint: str = ""
    options: StageOptions = StageOptions()
    life: Life = LIVE
    gaps: tuple[tuple[int, int], ...] = ()
    apart: int = 0
    signer: str | None = None
    held: str | None = None
    refuted: RefutedState | None = None
    scaled: int | None = None
    origin: str = ""

    def __post_init__(self) -> None:
        if not self.uid:
            object.__setattr__(self, "uid", self.name)

    @property
    def is_input(self) -> bool:
        """True if it is an input, into which users insert rows."""
        return self.definition is None

    @property
    def in_memory(self) -> bool:
        """True if its rows are never written."""
        return self.options.persist == MEMORY

    @property
    def on_disk(self) -> bool:
        """True if it is durable on disk only: replicas need not have it.

        This requires that it can be recomputed. A stage that has stopped, is nondeterministic or
        was defined by another user cannot be recomputed.
        """
        options, disk_only = self.options, self.options.persist == DISK or self.scaled is not None
        return disk_only and not options.nondeterministic and self.live and not self.signer

    @property
    def live(self) -> bool:
        """True if it has every epoch."""
        return isinstance(self.life, LiveState)

    @property
    def goes_on(self) -> bool:
        """True if it has not stopped: it has every epoch, or is an earlier version."""
        return self.held is None and not isinstance(self.life, StaleState)

    @property
    def frozen(self) -> bool:
        """True if it is an earlier version."""
        return isinstance(self.life, FrozenState)

    @property
    def is_distrusted(self) -> bool:
        """True if it has stopped with rows that are not trusted, so that it cannot continue."""
        return self.refuted is not None and isinstance(self.life, StaleState)

    @property
    def reason(self) -> str | None:
        """The reason why it is stale; None if it is not stale."""
        return self.life.reason if isinstance(self.life, StaleState) else None

    def last(self, now: int) -> int:
        """Returns its last epoch.

        Args:
            now: the last epoch of live stages.
        """
        return now if isinstance(self.life, LiveState) else self.life.since

    def has(self, epoch: int) -> bool:
        """Returns True if its traces hold its contents at its last epoch.

        If not, the contents must be computed first: the stage was in memory only, or its log begins
        at an epoch before its definition.

        Args:
            epoch: the last epoch of the stage.
        """
        return not any(lower <= epoch < upper for lower, upper in self.gaps)

    def as_stale(self, reason: str, now: int) -> Stage:
        """Returns the stage as stale since `now`; if it has stopped already, since that epoch."""
        return replace(self, life=StaleState(reason, self.last(now)), scaled=None)

    def forgotten(self, reason: str, now: int) -> Stage:
        """Returns the stage without a readable epoch, because its rows in memory are lost."""
        stage = self if self.frozen else self.as_stale(reason, now)
        return replace(stage, gaps=((0, now + 1),))

    def resumed(self) -> Stage:
        """Returns the stage as live."""
        return self if self.live else replace(self, life=LIVE)

    def as_earlier_version(self, life: FrozenState) -> Stage:
        """Returns the stage as an earlier version, `name@version`, identified by its log alone."""
        name, fingerprint = f"{self.name}@{self.version}", _frozen_fingerprint(life.log)
        was = replace(self, refuted=None, scaled=None)
        return replace(was, name=name, fingerprint=fingerprint, life=life, apart=0)

    def current_fingerprint(self, named: Mapping[str, str]) -> str:
        """Returns its current fingerprint.

        Args:
            named: the fingerprints of the collections that it reads, by name.
        """
        if isinstance(self.life, FrozenState):
            return _frozen_fingerprint(self.life.log)
        if self.definition is None:
            return _input_fingerprint(self.uid, self.schema.types, self.key)
        definition_print = self.definition.fingerprint(named)
        return separated_fingerprint(
            _stage_fingerprint(definition_print, self.options.nondeterministic), self.apart
        )

    def identified(self, named: Mapping[str, str]) -> Stage:
        """Returns the stage with its current fingerprint."""
        fingerprint = self.current_fingerprint(named)
        return self if fingerprint == self.fingerprint else replace(self, fingerprint=fingerprint)

    def to_json(self) -> dict[str, Any]:
        """Returns the stage for a catalog, without its definition and functions."""
        data: dict[str, Any] = {
            "name": self.name,
            "schema": [list(f) for f in self.schema.fields],
            "key": self.key,
            "version": self.version,
            "begin": self.begin,
            "uid": self.uid,
            "fingerprint": self.fingerprint,
            "options": self.options.to_json(),
            "life": {"is": _NAMES[type(self.life)], **asdict(self.life)},
            "gaps": self.gaps,
        }
        if self.apart:
            data["apart"] = self.apart
        if self.refuted is not None:
            data["refuted"] = tuple(self.refuted)
        if self.scaled is not None:
            data["scaled"] = self.scaled
        if self.origin:
            data["origin"] = self.origin
        return data if self.signer is None else {**data, "signer": self.signer}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], definition: Definition | None) -> Stage:
        """Returns the stage that `to_json` wrote, with its definition."""
        return cls(
            data["name"],
            Schema([Field(*f) for f in data["schema"]]),
            definition,
            _tuple(data["key"]),
            data["version"],
            data["begin"],
            data["uid"],
            data["fingerprint"],
            StageOptions(**data["options"]),
            _life_from_json(data["life"]),
            tuple((lower, upper) for lower, upper in data["gaps"]),
            data.get("apart", 0),
            data.get("signer"),
            refuted=_refuted_from_json(data.get("refuted")),
            scaled=None if data.get("scaled") is None else int(data["scaled"]),
            origin=data.get("origin", ""),
        )


def separated_fingerprint(fingerprint: str, apart: int) -> str:
    """Returns the fingerprint of a collection, changed by the number that separates it.

    The number 0 leaves the fingerprint unchanged; see `Stage.apart`.
    """
    return definition_fingerprint({"of": fingerprint, "apart": apart}) if apart else fingerprint


_NAMES = {LiveState: "live", StaleState: "stale", FrozenState: "frozen"}


def _life_from_json(data: Mapping[str, Any]) -> Life:
    if data["is"] == "stale":
        return StaleState(data["reason"], data["since"])
    if data["is"] == "frozen":
        return FrozenState(data["since"], data["log"], data["trace"], _tuple(data["key"]))
    return LIVE


def _refuted_from_json(data: list[Any] | None) -> RefutedState | None:
    return None if data is None else RefutedState(int(data[0]), str(data[1]))


def _tuple(data: list[int] | None) -> tuple[int, ...] | None:
    return None if data is None else tuple(data)


@lru_cache(maxsize=REMEMBERED)
def _input_fingerprint(uid: str, types: tuple[str, ...], key: tuple[int, ...] | None) -> str:
    return definition_fingerprint({"input": uid, "types": types, "key": key})


@lru_cache(maxsize=REMEMBERED)
def _stage_fingerprint(own: str, nondeterministic: bool) -> str:
    return definition_fingerprint({"stage": own, "nondeterministic": nondeterministic})


@lru_cache(maxsize=REMEMBERED)
def _frozen_fingerprint(log: int) -> str:
    return definition_fingerprint({"frozen": log})
