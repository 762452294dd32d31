"""Retention: which past of a log can be told apart, as its catalog says.

Single epochs are kept for the newest `epochs`, or those of the last `seconds`; intervals of 16 for
16 times as long, of 256 for 256 times, and so on. Pins keep their epochs exactly. It stands in the
catalog, under the same signature: nothing is let go because a stranger's log says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from nosync_nb.errors import SchemaError
from nosync_nb.trace.history.downsampling import RetainedEpochs

KEY = "retention"
"""Under which a catalog has it, but for its bound of files."""

BOUNDS = "bounds"
"""Under which a catalog has that: releases that know none pass it over."""

_NAMED = ("files", "writes")
"""What a catalog has as bounds."""

_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_LONGEST = 2**40
_SIZES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZES |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_LARGEST = 2**60


class Retention(NamedTuple):
    """What is kept of the past; neither `epochs` nor `seconds`: all of it.

    Attributes:
        pins: epochs that stay as they are, by name.
        budget: the bytes on disk from which on less is kept; None: as many as it takes.
        files: likewise how many files.
        writes: how often what comes in may be written, from where on merges wait; None: as often
            as merges pay.
    """

    epochs: int | None = None
    seconds: int | None = None
    pins: Mapping[str, int] = {}
    budget: int | None = None
    files: int | None = None
    writes: float | None = None

    @property
    def bounded(self) -> bool:
        """Whether less of the past is kept if the log takes more than it may."""
        return self.budget is not None or self.files is not None

    @property
    def bounds(self) -> int | str | None:
        """As a user says them: a number of bytes, `"500 B, 100 files, 3x"`, or None for none."""
        if self.files is self.writes is None:
            return self.budget
        said = [] if self.budget is None else [f"{self.budget} B"]
        said += [] if self.files is None else [f"{self.files} file{'' if self.files == 1 else 's'}"]
        said += [] if self.writes is None else [f"{self.writes:.15g}x"]
        return ", ".join(said)

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

    def to_json(self) -> dict[str, Any]:
        """As a catalog has it, by key; nothing of what was not said."""
        data = self._asdict()
        named = {name: data.pop(name) for name in _NAMED}
        said = {name: most for name, most in named.items() if most is not None}
        bounds = {BOUNDS: said} if said else {}
        if self.budget is None:  # as releases had it that knew no budget
            del data["budget"]
        plain = self._replace(files=None, writes=None)
        return {**({KEY: data} if plain != Retention() else {}), **bounds}

    def upto(self, epoch: int) -> Retention:
        """The same without pins of later epochs."""
        return self._replace(pins={name: at for name, at in self.pins.items() if at <= epoch})

    def keep(
        self, now: int, since: Callable[[float], int], held: Iterable[int]
    ) -> RetainedEpochs | None:
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
        return RetainedEpochs(max(single, 1), self.pinned(held))

    def pinned(self, held: Iterable[int]) -> frozenset[int]:
        """The epochs that stay as they are: pins, and what somebody else needs."""
        return frozenset([*self.pins.values(), *held])


def retention_of(catalog: Mapping[str, Any]) -> Retention:
    """That of a catalog that was checked."""
    bounds = catalog.get(BOUNDS) or {}
    named: dict[str, Any] = {name: bounds.get(name) for name in _NAMED}
    return Retention(**(catalog.get(KEY) or {}), **named)


def without_pins(catalog: Mapping[str, Any]) -> dict[str, Any]:
    """A catalog that says nothing of it."""
    return {key: value for key, value in catalog.items() if key not in (KEY, BOUNDS)}


def bounds_well_formed(data: Any) -> bool:
    """Whether what a catalog has as bounds can be what `to_json` gave; later ones may be there."""
    if type(data) is not dict:
        return False
    files, writes = data.get("files", 1), data.get("writes", 1)
    if type(files) is not int or type(writes) not in (int, float):
        return False
    return 1 <= files <= _LONGEST and 1 <= writes <= _LONGEST


def well_formed(data: Any, epoch: int) -> bool:
    """Whether what a catalog of an epoch has can be what `to_json` gave."""
    try:
        said = Retention(**data, files=None, writes=None)
        whole = type(said.pins) is dict and all(isinstance(name, str) for name in said.pins)
        numbers = [*said.pins.values(), said.epochs or 1, said.seconds or 1, said.budget or 1]
    except (TypeError, AttributeError):
        return False
    if not whole or not all(type(number) is int for number in numbers):
        return False
    return (
        all(0 <= at <= epoch for at in said.pins.values())
        and all(1 <= number <= _LONGEST for number in numbers[-3:-1])
        and 1 <= numbers[-1] <= _LARGEST
    )


def parse_retention(asked: Any) -> tuple[int | None, int | None]:
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


class DiskBudget(NamedTuple):
    """What a log may take on its disk, and how often write what comes in; see `Retention`."""

    budget: int | None = None
    files: int | None = None
    writes: float | None = None


def parse_bounds(asked: Any) -> DiskBudget:
    """Bounds as a user says them: a number of bytes, or a size, a number of files, `"3x"`.

    Raises:
        SchemaError: something is none of these, or is said twice; says how it is written.
    """
    if asked is None or asked == "none":
        return DiskBudget()
    said: dict[str, Any] = {}
    for part in asked.split(",") if isinstance(asked, str) else [asked]:
        name, value = _bound(part)
        if value is None or name in said:
            raise SchemaError(
                f"budget={asked!r}: {part!r} is "
                + ("said twice" if value is not None else "no size, number of files, or how often"),
                hint='write budget="2 GB" (B, kB, MB, GB, TB, or KiB to TiB), "500 files", "3x" for'
                " what comes in to be written three times at most (1x: once, as it comes),"
                ' "2 GB, 500 files, 3x", or budget="none"',
            )
        said[name] = value
    return DiskBudget(**said)


def _bound(part: Any) -> tuple[str, Any]:
    """Which bound a part says, and how much; None: it says none."""
    if type(part) is int:
        return "budget", part if 1 <= part <= _LARGEST else None
    pattern = r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([a-zA-Z]*)\s*"
    written = re.fullmatch(pattern, part) if isinstance(part, str) else None
    if written is None:
        return "", None
    number, unit = Decimal(written[1]), written[2].lower()
    if unit in _SIZES:
        size = int(number * _SIZES[unit])
        return "budget", size if 1 <= size <= _LARGEST else None
    if unit in ("file", "files"):
        return "files", int(number) if number == int(number) and 1 <= number <= _LONGEST else None
    if unit == "x":
        return "writes", float(number) if 1 <= number <= _LONGEST else None
    return "", None


def size_text(size_bytes: int) -> str:
    """A size as it is written in messages: `812 B`, `1.4 MB`; never less than it is."""
    if size_bytes < 1000:
        return f"{size_bytes} B"
    unit = next((u for u in ("kB", "MB", "GB") if size_bytes < 1000 * _SIZES[u.lower()]), "TB")
    return f"{-(-10 * size_bytes // _SIZES[unit.lower()]) / 10} {unit}"
