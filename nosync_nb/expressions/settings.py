"""The parts of a Spark session that change the meaning of an expression, recorded with it.

Two settings change results: the time zone of the session, and its ANSI mode. An expression that
depends on neither has the same meaning everywhere. Any other expression records the settings on
which it depends. It is always evaluated under the recorded settings, regardless of the current
session.

Dependencies are derived from the parsed tree and the types; in doubt, a dependency is assumed. An
expression that is computed here depends on the time zone if it can only be computed in UTC. It
depends on ANSI mode if it may raise, or if values of different types are combined. An expression
that only Spark knows is assumed to depend on both.

The third part is the functions that the user registered with Spark. The name of such a function may
stand for different functions in different sessions, so the identity of the function is recorded
too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from sqlglot import exp

from nosync_nb.expressions.syntax.analyzer import WITHOUT_PARENTHESES
from nosync_nb.rows import Schema

UTC = "UTC"

_UTC = re.compile(r"(etc/)?(utc|gmt|uct|zulu|universal|greenwich)([+-]?0)?|z|[+-]?0?0(:00)?", re.I)
_TIME = re.compile(
    "time|date|day|month|year|hour|minute|second|week|quarter|zone|now|utc|unix|micros|millis"
    "|interval|current|local|window|trunc|json|csv|xml|avro|variant|reflect|java"
)
"""Substrings of the names of functions that may depend on the time zone."""


class SettingsDependency(NamedTuple):
    """The settings on which an expression depends, True for each of them."""

    time_zone: bool
    ansi: bool


class Registered(NamedTuple):
    """A function that the user registered with Spark under a name.

    Attributes:
        name: the name in expressions, in lower case.
        identity: equal for functions with the same behaviour, as for functions passed to operators.
        deterministic: False if the function was registered with `asNondeterministic()`.
    """

    name: str
    identity: str
    deterministic: bool = True


class SqlSettings(NamedTuple):
    """Settings of a Spark session on which expressions depend.

    Attributes:
        time_zone: the time zone of the session; None if unknown or irrelevant.
        ansi: True in ANSI mode; None if unknown or irrelevant.
        registered: the user's functions that the expression calls.
    """

    time_zone: str | None = None
    ansi: bool | None = None
    registered: tuple[Registered, ...] = ()

    @property
    def utc(self) -> bool:
        """True if the time zone is UTC, which is the default."""
        return self.time_zone is None or self.time_zone == UTC

    def select(self, depends: SettingsDependency) -> SqlSettings:
        """Returns only the settings on which an expression depends."""
        return SqlSettings(
            self.time_zone if depends.time_zone else None,
            self.ansi if depends.ansi else None,
            self.registered,
        )

    def over(self, other: SqlSettings) -> SqlSettings:
        """Returns these settings; unknown ones are taken from the other settings."""
        return SqlSettings(
            other.time_zone if self.time_zone is None else self.time_zone,
            other.ansi if self.ansi is None else self.ansi,
            tuple(dict.fromkeys((*self.registered, *other.registered))),
        )

    @property
    def stable(self) -> bool:
        """True if every registered function is deterministic."""
        return all(each.deterministic for each in self.registered)


DEFAULT = SqlSettings(UTC, True)

Asked: TypeAlias = SqlSettings | Callable[[SettingsDependency, str], SqlSettings]
"""The settings, or a function that returns them.

The function is called only for an expression that depends on some of them.
"""


def zone(name: str) -> str:
    """Returns the name of a time zone; all names of UTC become `UTC`."""
    return UTC if _UTC.fullmatch(name) else name


def recorded_settings(given: Iterable[SqlSettings]) -> dict[str, Any]:
    """Returns the settings of a definition's expressions, as parameters of the definition."""
    settings = SqlSettings()
    for each in given:
        settings = settings.over(each)
    params: dict[str, Any] = {}
    if settings[:2] != (None, None):
        params["settings"] = [settings.time_zone, settings.ansi]
    if settings.registered:
        params["registered"] = [list(each) for each in settings.registered]
    return params


def of_params(params: Mapping[str, Any]) -> SqlSettings:
    """Returns the settings that `recorded_settings` stored, completed by the defaults."""
    return retained_settings(params).over(DEFAULT)


def retained_settings(params: Mapping[str, Any]) -> SqlSettings:
    """Returns the settings that `recorded_settings` stored among other parameters."""
    registered = tuple(_registered(params.get("registered")))
    match params.get("settings"):
        case [str() | None as name, bool() | None as ansi]:
            return SqlSettings(name, ansi, registered)
    return SqlSettings(registered=registered)


def _registered(entries: Any) -> Iterator[Registered]:
    for each in entries if isinstance(entries, list) else ():
        match each:
            case [str() as name, str() as identity, bool() as deterministic]:
                yield Registered(name, identity, deterministic)


def needs_zone(tree: exp.Expression, schema: Schema, columns: Iterable[int]) -> bool:
    """Returns True if an expression that only Spark knows may depend on the time zone."""
    if any("timestamp" in schema.types[i].replace("timestamp_ntz", "") for i in columns):
        return True
    return any(_may_read_zone(node) for node in tree.walk())


def _may_read_zone(node: Any) -> bool:
    if isinstance(node, exp.Column):
        return len(node.parts) == 1 and node.name.lower() in WITHOUT_PARENTHESES
    if isinstance(node, exp.Cast):
        return "timestamp" in node.to.sql("spark").lower()
    if isinstance(node, exp.Anonymous):
        return bool(_TIME.search(node.name.lower()))
    if isinstance(node, exp.Func | exp.Interval):
        return bool(_TIME.search(type(node).__name__.lower()))
    return False
