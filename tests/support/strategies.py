"""Hypothesis strategies of schemas, rows and histories, as users pass them.

Values come from small pools with all bounds in them, so that rows, keys and groups meet, cancel and
return. No count is negative at the end of an epoch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from hypothesis import strategies as st
from models.model import Bag, Row, summed, value

POOLS: dict[str, Sequence[Any]] = {
    "boolean": (True, False),
    "tinyint": (-128, 0, 1, 127),
    "smallint": (-(2**15), 0, 1, 2**15 - 1),
    "int": (-(2**31), -1, 0, 1, 2**31 - 1),
    "bigint": (-(2**63), -1, 0, 1, 2, 2**53 + 1, 2**63 - 1),
    "float": (math.nan, -math.inf, -0.0, 0.0, 0.5, 2.0**-149, 2.0**127),
    "double": (math.nan, -math.inf, math.inf, -0.0, 0.0, 0.1, 5e-324, 1e308, -1e308, 1.5),
    "decimal(10,2)": (Decimal("-0.01"), Decimal("0.00"), Decimal("1.50"), Decimal("99999999.99")),
    "decimal(38,10)": (Decimal("-1E-10"), Decimal("0E-10"), Decimal("9" * 28 + ".0000000001")),
    "string": ("", "a", "A", "ab", "ä", "日本", "\U0001f600", "\uffff", "a\0b"),
    "binary": (b"", b"\x00", b"\x00\xff", b"ab"),
    "date": (date(1, 1, 1), date(1969, 12, 31), date(1970, 1, 1), date(9999, 12, 31)),
    "timestamp": (
        datetime(1, 1, 2, tzinfo=UTC),
        datetime(1970, 1, 1, tzinfo=UTC) - timedelta(microseconds=1),
        datetime(2013, 6, 30, 23, 59, 59, 999_999, tzinfo=UTC),
    ),
    "timestamp_ntz": (datetime(1, 1, 1), datetime(1970, 1, 1), datetime(9999, 12, 31, 23, 59, 59)),
}
TYPES = tuple(POOLS)
NUMBERS = tuple(t for t in TYPES if t.endswith("int") or t in ("float", "double") or "dec" in t)
NESTED = ("array<int>", "struct<x:int,y:string>", "array<double>")
_PARTS: dict[str, st.SearchStrategy[Any]] = {
    "array<int>": st.lists(st.sampled_from([None, 0, 1]), max_size=2),
    "array<double>": st.lists(st.sampled_from([None, 0.0, -0.0, math.nan]), max_size=2),
    "struct<x:int,y:string>": st.fixed_dictionaries(
        {"x": st.sampled_from([None, 1]), "y": st.sampled_from([None, "", "a"])}
    ),
}

types = st.sampled_from(TYPES)
all_types = st.sampled_from(TYPES + NESTED)


def values(type_: str) -> st.SearchStrategy[Any]:
    """Values of a type, null among them."""
    known = _PARTS[type_] if type_ in _PARTS else st.sampled_from(POOLS[type_])
    return st.none() | known


def rows(row_types: Sequence[str]) -> st.SearchStrategy[Row]:
    return st.tuples(*map(values, row_types))


def schemas(
    of: st.SearchStrategy[str] = types, min_size: int = 1, max_size: int = 3
) -> st.SearchStrategy[tuple[str, ...]]:
    """Column types; `ddl` names the columns."""
    return st.lists(of, min_size=min_size, max_size=max_size).map(tuple)


def ddl(row_types: Sequence[str], prefix: str = "c") -> str:
    """The DDL of columns c0, c1, ... of these types."""
    return ", ".join(f"{prefix}{i} {type_}" for i, type_ in enumerate(row_types))


class Change(NamedTuple):
    """Rows of one insert or remove call."""

    insert: bool
    rows: list[Row]


class Epoch(NamedTuple):
    """The calls of an epoch by input, and the contents of every input after it."""

    calls: dict[str, list[Change]]
    after: dict[str, Bag]


@st.composite
def histories(
    draw: st.DrawFn,
    inputs: Mapping[str, Sequence[str]],
    max_epochs: int = 4,
    pool_size: int = 6,
    pools: Mapping[str, st.SearchStrategy[Row]] | None = None,
) -> list[Epoch]:
    """Epochs of changes to inputs of given column types, retractions and empty epochs included.

    An epoch may remove a row and insert it again, in any order.
    """
    made = pools or {}
    pool = {
        name: draw(
            st.lists(made[name] if name in made else rows(of), min_size=1, max_size=pool_size),
            label=f"{name} pool",
        )
        for name, of in inputs.items()
    }
    held: dict[str, Bag] = {name: Counter() for name in inputs}
    epochs = []
    for _ in range(draw(st.integers(1, max_epochs), label="epochs")):
        calls = {}
        for name in inputs:
            wanted = st.dictionaries(
                st.integers(0, len(pool[name]) - 1), st.integers(0, 3), max_size=pool_size
            )
            diffs: list[tuple[Row, int]] = []
            for place, count in draw(wanted, label=f"{name} counts").items():
                row = pool[name][place]
                diffs.append((row, count - held[name][key(row)]))
                held[name] = summed([*held[name].items(), (key(row), diffs[-1][1])])
            if draw(st.booleans(), label="cancelled"):
                row = draw(st.sampled_from(pool[name]))
                diffs += [(row, 1), (row, -1)]
            calls[name] = draw(st.permutations(_calls(diffs)), label=f"{name} calls")
        epochs.append(Epoch(calls, dict(held)))
    return epochs


def key(row: Row) -> Row:
    """A row as the model holds it."""
    return tuple(map(value, row))


def _calls(diffs: Sequence[tuple[Row, int]]) -> list[Change]:
    """Diffs as two calls: all insertions, and all removals."""
    changes = []
    for insert in (True, False):
        made = [row for row, n in diffs for _ in range(n if insert else -n)]
        if made:
            changes.append(Change(insert, made))
    return changes
