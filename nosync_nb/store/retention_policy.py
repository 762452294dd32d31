"""The retention and the disk budget of a log, as its catalog records them.

Single epochs are retained for the newest `epochs`, or those of the last `seconds`; intervals of 16
for 16 times as long, of 256 for 256 times, and so on. Pinned epochs are retained exactly. The
policy is part of the catalog, under the same signature: an untrusted log must not make us delete
history.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from nosync_nb.errors import SchemaError
from nosync_nb.trace.history.downsampling import RetainedEpochs

KEY = "retention"
"""The key of the retention in a catalog, without its limits of files and writes."""

BOUNDS = "bounds"
"""The key of those limits in a catalog. Releases that know no such limits ignore it."""

_LIMITS = ("files", "writes")
"""The limits below `BOUNDS`."""

_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_COUNT_MAX = 2**40
_SIZES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZES |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_BYTES_MAX = 2**60


class Retention(NamedTuple):
    """How much of the past is retained; with neither `epochs` nor `seconds`: all of it.

    Attributes:
        pins: named epochs that are never downsampled.
        budget: the bytes on disk above which less is retained; None: no limit.
        files: the number of files above which less is retained; None: no limit.
        writes: the write amplification above which merges wait; None: no limit.
    """

    epochs: int | None = None
    seconds: int | None = None
    pins: Mapping[str, int] = {}
    budget: int | None = None
    files: int | None = None
    writes: float | None = None

    @property
    def bounded(self) -> bool:
        """True if less of the past is retained when the log exceeds its budget."""
        return self.budget is not None or self.files is not None

    @property
    def bounds(self) -> int | str | None:
        """The limits as a user writes them: bytes, `"500 B, 100 files, 3x"`, or None for none."""
        if self.files is self.writes is None:
            return self.budget
        limits = [] if self.budget is None else [f"{self.budget} B"]
        limits += (
            [] if self.files is None else [f"{self.files} file{'' if self.files == 1 else 's'}"]
        )
        limits += [] if self.writes is None else [f"{self.writes:.15g}x"]
        return ", ".join(limits)

    @property
    def asked(self) -> int | str | None:
        """The retention as a user writes it: a number of epochs, `"30 days"`, or None for all."""
        if self.seconds is None:
            return self.epochs
        unit, size = max(
            ((u, s) for u, s in _UNITS.items() if self.seconds % s == 0), key=lambda each: each[1]
        )
        count = self.seconds // size
        return f"{count} {unit}{'' if count == 1 else 's'}"

    def to_json(self) -> dict[str, Any]:
        """Returns the entries of a catalog, by key; defaults are left out."""
        data = self._asdict()
        limits = {name: data.pop(name) for name in _LIMITS}
        given = {name: most for name, most in limits.items() if most is not None}
        bounds = {BOUNDS: given} if given else {}
        if self.budget is None:  # as in releases without a budget
            del data["budget"]
        plain = self._replace(files=None, writes=None)
        return {**({KEY: data} if plain != Retention() else {}), **bounds}

    def upto(self, epoch: int) -> Retention:
        """Returns the same policy without the pins of later epochs."""
        return self._replace(pins={name: at for name, at in self.pins.items() if at <= epoch})

    def keep(
        self, now: int, since: Callable[[float], int], held: Iterable[int]
    ) -> RetainedEpochs | None:
        """Returns the epochs to be retained exactly; None: nothing is downsampled.

        Args:
            since: returns the first epoch of the last so many seconds.
            held: epochs that branches or readers need exactly.
        """
        if self.seconds is not None:
            single = now + 1 - since(self.seconds)
        elif self.epochs is not None:
            single = self.epochs
        else:
            return None
        return RetainedEpochs(max(single, 1), self.pinned(held))

    def pinned(self, held: Iterable[int]) -> frozenset[int]:
        """Returns the epochs that are never downsampled: the pins and `held`."""
        return frozenset([*self.pins.values(), *held])


def retention_of(catalog: Mapping[str, Any]) -> Retention:
    """Returns the policy of a validated catalog."""
    bounds = catalog.get(BOUNDS) or {}
    limits: dict[str, Any] = {name: bounds.get(name) for name in _LIMITS}
    return Retention(**(catalog.get(KEY) or {}), **limits)


def without_pins(catalog: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a catalog without its retention policy."""
    return {key: value for key, value in catalog.items() if key not in (KEY, BOUNDS)}


def bounds_well_formed(data: Any) -> bool:
    """Returns True if the limits of a catalog can be the output of `to_json`.

    Limits that a later release has added are ignored.
    """
    if type(data) is not dict:
        return False
    files, writes = data.get("files", 1), data.get("writes", 1)
    if type(files) is not int or type(writes) not in (int, float):
        return False
    return 1 <= files <= _COUNT_MAX and 1 <= writes <= _COUNT_MAX


def well_formed(data: Any, epoch: int) -> bool:
    """Returns True if the retention of a catalog at an epoch can be the output of `to_json`."""
    try:
        retention = Retention(**data, files=None, writes=None)
        has_names = type(retention.pins) is dict and all(
            isinstance(name, str) for name in retention.pins
        )
        numbers = [
            *retention.pins.values(),
            retention.epochs or 1,
            retention.seconds or 1,
            retention.budget or 1,
        ]
    except (TypeError, AttributeError):
        return False
    if not has_names or not all(type(number) is int for number in numbers):
        return False
    return (
        all(0 <= at <= epoch for at in retention.pins.values())
        and all(1 <= number <= _COUNT_MAX for number in numbers[-3:-1])
        and 1 <= numbers[-1] <= _BYTES_MAX
    )


def parse_retention(asked: Any) -> tuple[int | None, int | None]:
    """Returns the epochs or the seconds that a user wrote.

    Raises:
        SchemaError: `asked` is neither; the hint shows the syntax.
    """
    if asked is None or asked == "all":
        return None, None
    if isinstance(asked, str):
        found = re.fullmatch(r"\s*(\d+)(?:\s+([a-z]+?)s?)?\s*", asked)
        if found and found[2] in (None, *_UNITS) and 1 <= int(found[1]) <= _COUNT_MAX:
            number = int(found[1])
            return (number, None) if found[2] is None else (None, number * _UNITS[found[2]])
    elif type(asked) is int and 1 <= asked <= _COUNT_MAX:
        return asked, None
    raise SchemaError(
        f"retain={asked!r} is neither a number of epochs, from 1 on, nor a time",
        hint='write retain=1000, retain="30 days" (seconds to weeks), or retain="all"',
    )


class DiskBudget(NamedTuple):
    """The limits of bytes, of files and of write amplification; see `Retention`."""

    budget: int | None = None
    files: int | None = None
    writes: float | None = None


def parse_bounds(asked: Any) -> DiskBudget:
    """Returns the limits that a user wrote: bytes or a size, a number of files, `"3x"`.

    Raises:
        SchemaError: a part is not a limit, or occurs twice; the hint shows the syntax.
    """
    if asked is None or asked == "none":
        return DiskBudget()
    limits: dict[str, Any] = {}
    for part in asked.split(",") if isinstance(asked, str) else [asked]:
        name, value = _parse_bound(part)
        if value is None or name in limits:
            raise SchemaError(
                f"budget={asked!r}: {part!r} is "
                + ("said twice" if value is not None else "no size, number of files, or how often"),
                hint='write budget="2 GB" (B, kB, MB, GB, TB, or KiB to TiB), "500 files", "3x" for'
                " what comes in to be written three times at most (1x: once, as it comes),"
                ' "2 GB, 500 files, 3x", or budget="none"',
            )
        limits[name] = value
    return DiskBudget(**limits)


def _parse_bound(part: Any) -> tuple[str, Any]:
    """Returns the name and the value of one limit; the value is None if it is invalid."""
    if type(part) is int:
        return "budget", part if 1 <= part <= _BYTES_MAX else None
    pattern = r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([a-zA-Z]*)\s*"
    written = re.fullmatch(pattern, part) if isinstance(part, str) else None
    if written is None:
        return "", None
    number, unit = Decimal(written[1]), written[2].lower()
    if unit in _SIZES:
        size = int(number * _SIZES[unit])
        return "budget", size if 1 <= size <= _BYTES_MAX else None
    if unit in ("file", "files"):
        return "files", int(number) if number == int(number) and 1 <= number <= _COUNT_MAX else None
    if unit == "x":
        return "writes", float(number) if 1 <= number <= _COUNT_MAX else None
    return "", None


def size_text(size_bytes: int) -> str:
    """Returns a size as messages show it: `812 B`, `1.4 MB`; rounded up."""
    if size_bytes < 1000:
        return f"{size_bytes} B"
    unit = next((u for u in ("kB", "MB", "GB") if size_bytes < 1000 * _SIZES[u.lower()]), "TB")
    return f"{-(-10 * size_bytes // _SIZES[unit.lower()]) / 10} {unit}"
