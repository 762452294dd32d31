"""Stages: the named collections of a catalog, as values.

A `Stage` is an input, or what a definition computes. Nothing of it is changed: what becomes of a
stage is another value, beside the one that readers of an earlier snapshot go on with.

What it *means* is its `fingerprint`: what is computed, of which columns. How that is done, with
which nodes and arrangements, is the graph's, and another graph makes no other stage.
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
"""The level of stages of which nothing is written."""

DISK = "disk"
"""The level of stages of which replicas get what they can when they have all else."""

REMEMBERED = 1 << 14
"""How many fingerprints of stages are remembered, in a kernel."""


@dataclass(frozen=True)
class StageOptions:
    """What is said of a stage beside what it computes.

    Attributes:
        on: where it runs: auto, local or spark.
        nondeterministic: what its functions gave is kept, as they may give something else.
        demoted: it was found to be so, though its cell does not say it.
        persist: where it is kept: memory, disk or replicas; empty: in the log, as any.
    """

    on: str = "auto"
    nondeterministic: bool = False
    demoted: bool = False
    persist: str = ""

    def to_json(self) -> dict[str, Any]:
        """The options as a catalog has them; a level only where one is asked for."""
        data = asdict(self)
        if not self.persist:
            del data["persist"]
        return data


@dataclass(frozen=True)
class LiveState:
    """It has every epoch."""


@dataclass(frozen=True)
class StaleState:
    """It has stopped, until nothing is missing: why, and its last epoch."""

    reason: str
    since: int


@dataclass(frozen=True)
class FrozenState:
    """An earlier version, which is read and never advanced.

    Attributes:
        since: its last epoch.
        log: the number of its log.
        trace: that of one of its traces, which is arranged by `key`.
    """

    since: int
    log: int
    trace: int
    key: tuple[int, ...] | None


Life = LiveState | StaleState | FrozenState

LIVE = LiveState()


class RefutedState(NamedTuple):
    """That rows are not believed: from which epoch on, and why."""

    epoch: int
    why: str


@dataclass(frozen=True)
class Stage:
    """A named collection in the catalog: an input (no definition) or a stage.

    Attributes:
        version: counts the definitions of one name from 1.
        begin: its first epoch.
        uid: what an input stays, whatever it is called: its first name, unless that was taken.
        fingerprint: what it computes, as it was when it was last decided; see `meaning`.
        gaps: the epochs `[lower, upper)` that cannot be told apart, as it caught up in one step.
        apart: tells it, and its parts without a name, from equal ones of others: what they hold may
            be other than what these hold. 0: equal ones hold the same, and parts are shared.
        signer: the id of the key of whoever described it, None if that is this user.
        held: why nothing of it may be compiled or run before the user's own cell defines it.
        refuted: rows of it that are not believed, while they are still to be made anew.
        scaled: the last epoch that replicas had of it when it was scaled back under a backlog: it
            is promised on the disk alone until that falls. None: it is owed as its level says.
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

    def __post_init__(self) -> None:
        if not self.uid:
            object.__setattr__(self, "uid", self.name)

    @property
    def is_input(self) -> bool:
        """Whether users insert into it."""
        return self.definition is None

    @property
    def in_memory(self) -> bool:
        """Whether nothing of its rows is written."""
        return self.options.persist == MEMORY

    @property
    def on_disk(self) -> bool:
        """Whether it is promised on the disk alone: it can be had again, and replicas owe it not.

        What has stopped, and what may give something else, is not had again.
        """
        own, kept = self.options, self.options.persist == DISK or self.scaled is not None
        return kept and not own.nondeterministic and self.live and not self.signer

    @property
    def live(self) -> bool:
        """Whether it has every epoch."""
        return isinstance(self.life, LiveState)

    @property
    def goes_on(self) -> bool:
        """Whether it has not stopped: it has every epoch, or is an earlier version."""
        return self.held is None and not isinstance(self.life, StaleState)

    @property
    def frozen(self) -> bool:
        """Whether it is an earlier version."""
        return isinstance(self.life, FrozenState)

    @property
    def refused(self) -> bool:
        """Whether it has stopped with rows that are not believed: it never goes on from them."""
        return self.refuted is not None and isinstance(self.life, StaleState)

    @property
    def reason(self) -> str | None:
        """Why it is stale, None if it is not."""
        return self.life.reason if isinstance(self.life, StaleState) else None

    def last(self, now: int) -> int:
        """Its last epoch, where `now` is that of those that go on."""
        return now if isinstance(self.life, LiveState) else self.life.since

    def has(self, epoch: int) -> bool:
        """Whether what its traces hold is what it was at an epoch, its last one.

        Else it was in memory alone, or in a log that begins at an epoch before its definition, and
        is to be computed first.
        """
        return not any(lower <= epoch < upper for lower, upper in self.gaps)

    def stopped(self, reason: str, now: int) -> Stage:
        """The stage, stale; since now, or since it was."""
        return replace(self, life=StaleState(reason, self.last(now)), scaled=None)

    def forgotten(self, reason: str, now: int) -> Stage:
        """The stage, of which nothing can be read any more, as it was in memory alone."""
        stage = self if self.frozen else self.stopped(reason, now)
        return replace(stage, gaps=((0, now + 1),))

    def resumed(self) -> Stage:
        """The stage, live."""
        return self if self.live else replace(self, life=LIVE)

    def before(self, life: FrozenState) -> Stage:
        """The stage as an earlier version, `name@version`. It means its rows, nothing else."""
        name, fingerprint = f"{self.name}@{self.version}", _frozen_print(life.log)
        was = replace(self, refuted=None, scaled=None)
        return replace(was, name=name, fingerprint=fingerprint, life=life, apart=0)

    def meaning(self, named: Mapping[str, str]) -> str:
        """What it computes, now.

        Args:
            named: the meanings of what it reads, by name.
        """
        if isinstance(self.life, FrozenState):
            return _frozen_print(self.life.log)
        if self.definition is None:
            return _input_print(self.uid, self.schema.types, self.key)
        own = self.definition.fingerprint(named)
        return inputs_and_stages(_stage_print(own, self.options.nondeterministic), self.apart)

    def identified(self, named: Mapping[str, str]) -> Stage:
        """The stage with the fingerprint of what it means now."""
        fingerprint = self.meaning(named)
        return self if fingerprint == self.fingerprint else replace(self, fingerprint=fingerprint)

    def to_json(self) -> dict[str, Any]:
        """The stage as a catalog has it, without its definition and functions."""
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
        return data if self.signer is None else {**data, "signer": self.signer}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], definition: Definition | None) -> Stage:
        """The stage that `to_json` wrote, with its definition."""
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
            _life(data["life"]),
            tuple((lower, upper) for lower, upper in data["gaps"]),
            data.get("apart", 0),
            data.get("signer"),
            refuted=_refuted(data.get("refuted")),
            scaled=None if data.get("scaled") is None else int(data["scaled"]),
        )


def inputs_and_stages(fingerprint: str, apart: int) -> str:
    """The fingerprint of what is told from equal ones by a number; 0: of what is not."""
    return definition_fingerprint({"of": fingerprint, "apart": apart}) if apart else fingerprint


_NAMES = {LiveState: "live", StaleState: "stale", FrozenState: "frozen"}


def _life(data: Mapping[str, Any]) -> Life:
    if data["is"] == "stale":
        return StaleState(data["reason"], data["since"])
    if data["is"] == "frozen":
        return FrozenState(data["since"], data["log"], data["trace"], _tuple(data["key"]))
    return LIVE


def _refuted(data: list[Any] | None) -> RefutedState | None:
    return None if data is None else RefutedState(int(data[0]), str(data[1]))


def _tuple(data: list[int] | None) -> tuple[int, ...] | None:
    return None if data is None else tuple(data)


@lru_cache(maxsize=REMEMBERED)
def _input_print(uid: str, types: tuple[str, ...], key: tuple[int, ...] | None) -> str:
    return definition_fingerprint({"input": uid, "types": types, "key": key})


@lru_cache(maxsize=REMEMBERED)
def _stage_print(own: str, nondeterministic: bool) -> str:
    return definition_fingerprint({"stage": own, "nondeterministic": nondeterministic})


@lru_cache(maxsize=REMEMBERED)
def _frozen_print(log: int) -> str:
    return definition_fingerprint({"frozen": log})
