"""The tables of TPC-H as `tpchgen-cli` makes them, and refreshes of them.

A refresh inserts orders with their lines, and removes others. New orders are the last ones of the
generated tables, which the load lacks; removed ones are drawn at random. Decimals, of 15 digits
with 2 places, are read as doubles unless decimals are requested.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.report import PATHWAY, TOP, MeasurementError

TABLES = ("customer", "orders", "lineitem", "supplier", "nation", "region")
REFRESHED = {"orders": "o_orderkey", "lineitem": "l_orderkey"}
LINES = 4
"""How many lines an order has on average; with the order itself that many rows, and one, come."""
SHARES = {10: 1.0, 70: 1.0, 150: 1.0, 750: 0.5, 7500: 0.25}
"""The sizes of epochs, in rows, and how many there are of each, as a share of `--epochs`."""
_TYPES = {pa.string_view(): pa.string()}

Tables = dict[str, pa.Table]


class Refresh(NamedTuple):
    """One epoch: the rows that are inserted and removed, by table."""

    rows: int
    inserts: Tables
    removals: Tables


def generated(scale: float) -> Path:
    """Returns the folder with the tables, which are generated once.

    Raises:
        MeasurementError: if `tpchgen-cli` is not installed, or fails.
    """
    tool = PATHWAY.with_name("tpchgen-cli")
    folder = TOP / ".tools" / f"tpch-{scale:g}"
    if not folder.exists():
        made = folder.with_suffix(".new")
        command = [tool, "parquet", "-s", f"{scale:g}", f"--output-dir={made}"]
        try:
            subprocess.run([*map(str, command)], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise MeasurementError(f"tpchgen-cli (make bench installs it): {error}") from error
        made.rename(folder)
    return folder


def read(folder: Path, *, decimals: bool = False) -> Tables:
    """Reads the tables of a folder, with decimals or with doubles for them."""
    return {name: _plain(pq.read_table(folder / f"{name}.parquet"), decimals) for name in TABLES}


def _plain(table: pa.Table, decimals: bool) -> pa.Table:
    """Converts a table to plain strings, and decimals to doubles unless they stay."""
    fields = []
    for field in table.schema:
        exact = decimals or not pa.types.is_decimal(field.type)
        type_ = field.type if exact else pa.float64()
        fields.append(field.with_type(_TYPES.get(type_, type_)).with_metadata(None))
    return table.cast(pa.schema(fields)).combine_chunks()


class Refreshes:
    """The load, and the epochs after it; the same for everybody who is measured.

    Args:
        epochs: how many there are of the small sizes.

    Attributes:
        load: the tables without the orders that come later.
    """

    def __init__(self, tables: Tables, epochs: int, *, seed: int = 1) -> None:
        sizes = [size for size, share in SHARES.items() for _ in range(max(1, int(share * epochs)))]
        self._sizes = [(size, max(1, size // (2 * (1 + LINES)))) for size in sizes]
        count = sum(orders for _, orders in self._sizes)
        keys = tables["orders"]["o_orderkey"].to_numpy()
        if 2 * count > len(keys):
            raise MeasurementError(f"{len(keys):,} orders are too few to refresh {count:,}")
        kept = keys[: len(keys) - count]
        self._coming = keys[len(keys) - count :]
        self._going = np.random.default_rng(seed).choice(kept, count, replace=False)
        self._refreshed = _of_orders(tables, np.concatenate([self._coming, self._going]))
        self.load = {**tables, **_of_orders(tables, kept)}

    def __iter__(self) -> Iterator[Refresh]:
        start = 0
        for size, orders in self._sizes:
            part = slice(start, start + orders)
            inserts, removals = (
                _of_orders(self._refreshed, keys[part]) for keys in (self._coming, self._going)
            )
            yield Refresh(size, inserts, removals)
            start += orders


def _of_orders(tables: Tables, keys: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Tables:
    """Returns some orders and their lines."""
    wanted = pa.array(keys)
    return {
        name: tables[name].filter(pc.is_in(tables[name][key], value_set=wanted)).combine_chunks()
        for name, key in REFRESHED.items()
    }
