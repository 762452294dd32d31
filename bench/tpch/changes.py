"""Epochs that insert, update and delete rows of all tables of a benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.tpch.data import Tables

KEYS = ("key", "_sk", "_id", "_number")
"""The ends of the names of columns that an update leaves as they are."""


class Epoch(NamedTuple):
    """The rows that an epoch inserts and removes, and the tables after it."""

    inserts: Tables
    removals: Tables
    after: Tables


def changes(
    loaded: Tables, epochs: int, *, share: float = 0.01, least: int = 1, seed: int = 2
) -> Iterator[Epoch]:
    """Yields epochs after a load; a deleted row comes back two epochs later.

    An updated row has another string or number in one column that is no key.

    Args:
        share: which share of the rows of each table an epoch updates, and which it deletes.
        least: at least as many rows of each table.
    """
    rng = np.random.default_rng(seed)
    now, gone = dict(loaded), []
    for _ in range(epochs):
        inserts = {name: [table] for name, table in (gone.pop(0) if len(gone) == 2 else {}).items()}
        removals, deleted = {}, {}
        for name, table in now.items():
            count = max(least, int(share * table.num_rows))
            if not count:
                continue
            picked = rng.choice(table.num_rows, min(table.num_rows, 2 * count), replace=False)
            removals[name] = table.take(pa.array(picked))
            changed, deleted[name] = removals[name].slice(0, count), removals[name].slice(count)
            inserts.setdefault(name, []).append(_updated(changed, rng))
            rest = np.ones(table.num_rows, bool)
            rest[picked] = False
            now[name] = pa.concat_tables([table.filter(pa.array(rest)), *inserts[name]])
        gone.append(deleted)
        added = {name: pa.concat_tables(some) for name, some in inserts.items()}
        yield Epoch(added, removals, dict(now))


def _updated(table: pa.Table, rng: np.random.Generator) -> pa.Table:
    """Returns rows with other values in a column that is no key."""
    free = [field.name for field in table.schema if not field.name.endswith(KEYS)]
    if not free:
        return table
    name = free[rng.integers(0, len(free))]
    values = table[name]
    if pa.types.is_decimal(values.type) or pa.types.is_integer(values.type):
        other = pc.add(values, pa.scalar(1, pa.int32())).cast(values.type)
    else:
        other = pc.take(values, pa.array(rng.permutation(table.num_rows)))
    return table.set_column(table.schema.get_field_index(name), name, other)
