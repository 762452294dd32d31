"""The retention and the disk budget of a log, as its catalog records them.

The newest `epochs` epochs, or those of the last `seconds`, are retained singly. Intervals of 16
epochs are retained for 16 times as long, intervals of 256 epochs for 256 times as long, and so on.
Pinned epochs are retained exactly. The policy is part of the catalog, under the same signature: an
untrusted log must not make us delete history.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from nosync_nb.errors import SchemaError
from nosync_nb.trace.history.downsampling import RetainedEpochs

KEY = "retention"
"""The key of the retention in a catalog."""

REMOVED = "bounds"
"""The key of two limits that older releases recorded in catalogs, and that this release ignores."""

_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_COUNT_MAX = 2**40
_SIZES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZES |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_BYTES_MAX = 2**60


class Retention(NamedTuple):
    """The part of the past that is retained: all of it if neither `epochs` nor `seconds` is set.

    Attributes:
        epochs: the number of epochs that are retained singly.
        seconds: the age up to which epochs are retained singly.
        pins: named epochs that are never downsampled.
        budget: the bytes on disk above which fewer epochs are retained; `None` means no limit.
    """

    epochs: int | None = None
    seconds: int | None = None
    pins: Mapping[str, int] = {}
    budget: int | None = None

    @property
    def user_value(self) -> int | str | None:
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
        if self.budget is None:  # because releases without a budget do not know the key
            del data["budget"]
        return {KEY: data} if self != Retention() else {}

    def upto(self, epoch: int) -> Retention:
        """Returns the same policy without the pins of later epochs."""
        return self._replace(pins={name: at for name, at in self.pins.items() if at <= epoch})

    def keep(
        self, now: int, since: Callable[[float], int], held: Iterable[int]
    ) -> RetainedEpochs | None:
        """Returns the epochs that are retained exactly; `None` means that nothing is downsampled.

        Args:
            now: the last epoch.
            since: returns, for a number of seconds, the first epoch of that period.
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
    return Retention(**(catalog.get(KEY) or {}))


def without_pins(catalog: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a catalog without its retention policy."""
    return {key: value for key, value in catalog.items() if key not in (KEY, REMOVED)}


def removed_limits(catalog: Mapping[str, Any]) -> str | None:
    """Returns a note if a catalog has limits that only older releases supported; else None."""
    recorded = catalog.get(REMOVED)
    if not isinstance(recorded, dict):
        return None
    limits = [
        f"{recorded[name]:.15g}{unit}"
        for name, unit in (("files", " files"), ("writes", "x"))
        if type(recorded.get(name)) in (int, float) and 1 <= recorded[name] <= _COUNT_MAX
    ]
    if not limits:
        return None
    return (
        f"the log records a budget of {' and '.join(limits)}: this release ignores limits on the"
        " number of files and on rewriting; session.budget limits bytes, and setting it forgets"
        " the others"
    )


def well_formed(data: Any, epoch: int) -> bool:
    """Returns True if a value can be the output of `to_json` for a catalog at an epoch."""
    try:
        retention = Retention(**data)
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
    """Returns the number of epochs, or of seconds, that a user wrote; both are None for "all".

    Raises:
        SchemaError: `asked` is neither a number of epochs nor a time; the hint shows the syntax.
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
        f"retain={asked!r} is neither a positive number of epochs nor a time",
        hint='write retain=1000, retain="30 days" (seconds to weeks), or retain="all"',
    )


def parse_budget(asked: Any) -> int | None:
    """Returns the bytes that a user wrote as a number or a size; None for no limit.

    Raises:
        SchemaError: `asked` is not a size; the hint shows the syntax.
    """
    if asked is None or asked == "none":
        return None
    size = _parse_size(asked)
    if size is None:
        removed = isinstance(asked, str) and re.search(_REMOVED_LIMIT, asked, re.IGNORECASE)
        if removed:
            sizes = [part.strip() for part in asked.split(",") if _parse_size(part) is not None]
            raise SchemaError(
                f"budget={asked!r}: {removed[0]!r} is not a size; limits on the number of files"
                " and on rewriting were removed",
                hint=f'limit the bytes: budget="{sizes[0] if sizes else "2 GB"}", or budget="none"',
            )
        raise SchemaError(
            f"budget={asked!r} is not a size",
            hint='write budget="2 GB" (B, kB, MB, GB, TB, or KiB to TiB), or budget="none"',
        )
    return size


_REMOVED_LIMIT = r"\d[\d.]*\s*(?:files?|x)\b"
"""The syntax of a limit in older releases: `500 files`, `3x`."""


def _parse_size(asked: Any) -> int | None:
    """Returns the bytes of a number or a size, at least one; None for anything else."""
    if type(asked) is int:
        size = asked
    else:
        pattern = r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([a-zA-Z]*)\s*"
        written = re.fullmatch(pattern, asked) if isinstance(asked, str) else None
        if written is None or written[2].lower() not in _SIZES:
            return None
        size = int(Decimal(written[1]) * _SIZES[written[2].lower()])
    return size if 1 <= size <= _BYTES_MAX else None


def size_text(size_bytes: int) -> str:
    """Returns a size as messages show it, rounded up: `812 B`, `1.4 MB`."""
    if size_bytes < 1000:
        return f"{size_bytes} B"
    unit = next((u for u in ("kB", "MB", "GB") if size_bytes < 1000 * _SIZES[u.lower()]), "TB")
    return f"{-(-10 * size_bytes // _SIZES[unit.lower()]) / 10} {unit}"
