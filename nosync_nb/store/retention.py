"""Retention: which past of a log can be told apart, as its catalog says.

Single epochs are kept for the newest `epochs`, or those of the last `seconds`; intervals of 16 for
16 times as long, of 256 for 256 times, and so on. Pins keep their epochs exactly. It stands in the
catalog, under the same signature: nothing is let go because a stranger's log says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from nosync_nb.errors import SchemaError
from nosync_nb.trace.past.thinning import Keep

KEY = "retention"
"""Under which a catalog has it."""

_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_LONGEST = 2**40


class Retention(NamedTuple):
    """What is kept of the past; neither `epochs` nor `seconds`: all of it.

    Attributes:
        pins: epochs that stay as they are, by name.
    """

    epochs: int | None = None
    seconds: int | None = None
    pins: Mapping[str, int] = {}

    @property
    def asked(self) -> int | str | None:
        """As a user says it: a number of epochs, `"30 days"`, or None for all."""
        if self.seconds is None:
            return self.epochs
        unit, size = max(
            ((u, s) for u, s in _UNITS.items() if self.seconds % s == 0), key=lambda each: each[1]
        )
        many = self.seconds // size
        return f"{many} {unit}{'' if many == 1 else 's'}"

    def to_json(self) -> dict[str, Any] | None:
        """As a catalog has it; None if all is kept and nothing pinned."""
        return self._asdict() if self != Retention() else None

    def upto(self, epoch: int) -> Retention:
        """The same without pins of later epochs."""
        return self._replace(pins={name: at for name, at in self.pins.items() if at <= epoch})

    def keep(self, now: int, since: Callable[[float], int], held: Iterable[int]) -> Keep | None:
        """What is not thinned out now; None: nothing is.

        Args:
            since: the first epoch of the last so many seconds.
            held: epochs that somebody else needs as they are.
        """
        if self.seconds is not None:
            single = now + 1 - since(self.seconds)
        elif self.epochs is not None:
            single = self.epochs
        else:
            return None
        return Keep(max(single, 1), frozenset([*self.pins.values(), *held]))


def of(catalog: Mapping[str, Any]) -> Retention:
    """That of a catalog that was checked."""
    data = catalog.get(KEY)
    return Retention(**data) if data else Retention()


def well_formed(data: Any, epoch: int) -> bool:
    """Whether what a catalog of an epoch has can be what `to_json` gave."""
    try:
        said = Retention(**data)
        whole = type(said.pins) is dict and all(isinstance(name, str) for name in said.pins)
        numbers = [*said.pins.values(), said.epochs or 1, said.seconds or 1]
    except (TypeError, AttributeError):
        return False
    if not whole or not all(type(number) is int for number in numbers):
        return False
    return all(0 <= at <= epoch for at in said.pins.values()) and all(
        1 <= number <= _LONGEST for number in numbers[-2:]
    )


def parsed(asked: Any) -> tuple[int | None, int | None]:
    """Epochs or seconds, as a user says it.

    Raises:
        SchemaError: it is neither; says how it is written.
    """
    if asked is None or asked == "all":
        return None, None
    if isinstance(asked, str):
        found = re.fullmatch(r"\s*(\d+)(?:\s+([a-z]+?)s?)?\s*", asked)
        if found and found[2] in (None, *_UNITS) and 1 <= int(found[1]) <= _LONGEST:
            number = int(found[1])
            return (number, None) if found[2] is None else (None, number * _UNITS[found[2]])
    elif type(asked) is int and 1 <= asked <= _LONGEST:
        return asked, None
    raise SchemaError(
        f"retain={asked!r} is neither a number of epochs, from 1 on, nor a time",
        hint='write retain=1000, retain="30 days" (seconds to weeks), or retain="all"',
    )
