"""The peer Pathway on TPC-H: eight queries maintained over refreshes; run by its own Python.

It prints one line of JSON. Measured from the first row passed to a connector until the last change
of a query that orders and lines cause. Everything is in memory alone. Days are numbers, because
Pathway's dates are times. The order and limit at the end of queries 3, 10 and 18 are left to the
reader of the groups, as Pathway has no such operator. The result of each query after each epoch is
written to a file, one line an epoch, which `bench.peers.duckdb_tpch` compares to its own.
"""

from __future__ import annotations

import argparse
import heapq
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pathway as pw
import pyarrow as pa
import pyarrow.compute as pc

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.tpch.data import REFRESHED, Refreshes, Tables, generated, read

_TYPES = {
    pa.int64(): int,
    pa.int32(): int,
    pa.float64(): float,
    pa.string(): str,
    pa.date32(): int,
}
_KEYS = {"lineitem": ("l_orderkey", "l_linenumber")}
_ROWS = 10_000
_WAIT_S = 900
_SILENT_S, _SILENT_LOAD_S = 0.2, 3.0
"""After so long without news an epoch, or the load, has ended; it is not counted."""


def day(text: str) -> int:
    """Returns a date as its number of days."""
    return (date.fromisoformat(text) - date(1970, 1, 1)).days


def as_text(days: int) -> str:
    """Returns a number of days as the text of a date."""
    return str(date.fromordinal(days + date(1970, 1, 1).toordinal()))


def rows_of(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yields the rows of a table as a connector takes them, made one by one."""
    dates = [i for i, field in enumerate(table.schema) if field.type == pa.date32()]
    for place in dates:
        field = table.schema.field(place)
        table = table.set_column(place, field.name, table.column(place).cast(pa.int32()))
    for batch in table.to_batches(_ROWS):
        yield from batch.to_pylist()


class Feed(pw.io.python.ConnectorSubject):
    """The rows of a table, which the driver passes on."""

    _deletions_enabled = True  # it finds out by the text of `run` if that is not said

    def __init__(self, drive: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._drive, self._ended = drive, threading.Event()

    def run(self) -> None:
        """Drives, or waits until who does has ended."""
        if self._drive is None:
            self._ended.wait()
        else:
            self._drive()
        self.close()

    def finish(self) -> None:
        """Nothing follows."""
        self._ended.set()

    def take(self, inserts: pa.Table | None, removals: pa.Table | None) -> None:
        """Hands rows on as one commit."""
        for row in () if inserts is None else rows_of(inserts):
            self.next(**row)
        for row in () if removals is None else rows_of(removals):
            self._remove_inner(None, row)
        self.commit()


def inputs(load: Tables, feeds: dict[str, Feed]) -> dict[str, Any]:
    """Returns the tables of Pathway, each fed by a connector of its own."""
    of = {}
    for name, table in load.items():
        keys = _KEYS.get(name, table.schema.names[:1])
        columns = {
            field.name: pw.column_definition(
                dtype=_TYPES[field.type], primary_key=field.name in keys
            )
            for field in table.schema
        }
        schema = pw.schema_builder(columns=columns, name=name)
        of[name] = pw.io.python.read(feeds[name], schema=schema, autocommit_duration_ms=None)
    return of


def _joined(of: dict[str, Any]) -> Any:
    """Joins customers, their orders and the lines of these: the columns that queries read."""
    customer, orders, lineitem = of["customer"], of["orders"], of["lineitem"]
    some = customer.join(orders, customer.c_custkey == orders.o_custkey).select(
        *(pw.left[name] for name in customer.column_names()),
        *(pw.right[name] for name in orders.column_names()),
    )
    return some.join(lineitem, some.o_orderkey == lineitem.l_orderkey).select(
        *(pw.left[name] for name in some.column_names()),
        *(pw.right[name] for name in lineitem.column_names()),
    )


def _revenue(table: Any) -> Any:
    return table.l_extendedprice * (1 - table.l_discount)


def _grouped(table: Any, keys: list[str], **reduced: Any) -> Any:
    """Aggregates rows by keys."""
    return table.groupby(*(table[key] for key in keys)).reduce(
        *(pw.this[key] for key in keys), **reduced
    )


def queries(of: dict[str, Any]) -> dict[str, Any]:
    """Returns the queries, with DuckDB's columns; filters are where they are cheapest."""
    sum_, count, avg = pw.reducers.sum, pw.reducers.count, pw.reducers.avg
    lines, orders = of["lineitem"], of["orders"]
    shipped = lines.filter(lines.l_shipdate <= day("1998-09-02"))
    joined = _joined(of)
    q3 = joined.filter(
        (joined.c_mktsegment == "BUILDING")
        & (joined.o_orderdate < day("1995-03-15"))
        & (joined.l_shipdate > day("1995-03-15"))
    )
    late = lines.filter(lines.l_commitdate < lines.l_receiptdate)
    late = late.groupby(late.l_orderkey).reduce(late.l_orderkey)
    quarter = orders.filter(
        (orders.o_orderdate >= day("1993-07-01")) & (orders.o_orderdate < day("1993-10-01"))
    )
    q4 = quarter.join(late, quarter.o_orderkey == late.l_orderkey).select(pw.left.o_orderpriority)
    year = joined.filter(
        (joined.o_orderdate >= day("1994-01-01")) & (joined.o_orderdate < day("1995-01-01"))
    )
    nation, region, supplier = of["nation"], of["region"], of["supplier"]
    asia = region.filter(region.r_name == "ASIA")
    asian = nation.join(asia, nation.n_regionkey == asia.r_regionkey).select(
        pw.left.n_nationkey, pw.left.n_name
    )
    sold = year.join(
        supplier,
        year.l_suppkey == supplier.s_suppkey,
        year.c_nationkey == supplier.s_nationkey,
    ).select(pw.left.c_nationkey, pw.left.l_extendedprice, pw.left.l_discount)
    q5 = sold.join(asian, sold.c_nationkey == asian.n_nationkey).select(
        pw.right.n_name, pw.left.l_extendedprice, pw.left.l_discount
    )
    q6 = lines.filter(
        (lines.l_shipdate >= day("1994-01-01"))
        & (lines.l_shipdate < day("1995-01-01"))
        & (lines.l_discount >= 0.045)
        & (lines.l_discount <= 0.075)
        & (lines.l_quantity < 24)
    )
    returned = joined.filter(
        (joined.o_orderdate >= day("1993-10-01"))
        & (joined.o_orderdate < day("1994-01-01"))
        & (joined.l_returnflag == "R")
    )
    named = ["c_custkey", "c_name", "c_acctbal", "c_address", "c_phone", "c_comment"]
    q10 = returned.join(nation, returned.c_nationkey == nation.n_nationkey).select(
        *(pw.left[name] for name in (*named, "l_extendedprice", "l_discount")), pw.right.n_name
    )
    modes = lines.filter(
        ((lines.l_shipmode == "MAIL") | (lines.l_shipmode == "SHIP"))
        & (lines.l_commitdate < lines.l_receiptdate)
        & (lines.l_shipdate < lines.l_commitdate)
        & (lines.l_receiptdate >= day("1994-01-01"))
        & (lines.l_receiptdate < day("1995-01-01"))
    )
    q12 = orders.join(modes, orders.o_orderkey == modes.l_orderkey).select(
        pw.right.l_shipmode,
        urgent=pw.cast(
            int, (pw.left.o_orderpriority == "1-URGENT") | (pw.left.o_orderpriority == "2-HIGH")
        ),
    )
    sums = lines.groupby(lines.l_orderkey).reduce(lines.l_orderkey, q=sum_(lines.l_quantity))
    large = sums.filter(sums.q > 300)
    q18 = joined.join(large, joined.o_orderkey == large.l_orderkey).select(
        *(pw.left[name] for name in joined.column_names())
    )
    return {
        "q1": _grouped(
            shipped,
            ["l_returnflag", "l_linestatus"],
            sum_qty=sum_(shipped.l_quantity),
            sum_base=sum_(shipped.l_extendedprice),
            sum_disc=sum_(_revenue(shipped)),
            sum_charge=sum_(_revenue(shipped) * (1 + shipped.l_tax)),
            avg_qty=avg(shipped.l_quantity),
            avg_price=avg(shipped.l_extendedprice),
            avg_disc=avg(shipped.l_discount),
            n=count(),
        ),
        "q3": _grouped(
            q3, ["o_orderkey", "o_orderdate", "o_shippriority"], revenue=sum_(_revenue(q3))
        ),
        "q4": _grouped(q4, ["o_orderpriority"], n=count()),
        "q5": _grouped(q5, ["n_name"], revenue=sum_(_revenue(q5))),
        "q6": q6.reduce(revenue=sum_(q6.l_extendedprice * q6.l_discount)),
        "q10": _grouped(
            q10,
            ["c_custkey", "c_name", "c_acctbal", "n_name", "c_address", "c_phone", "c_comment"],
            revenue=sum_(_revenue(q10)),
        ),
        "q12": _grouped(q12, ["l_shipmode"], high=sum_(q12.urgent), low=sum_(1 - q12.urgent)),
        "q18": _grouped(
            q18,
            ["c_name", "c_custkey", "o_orderkey", "o_orderdate", "o_totalprice"],
            q=sum_(q18.l_quantity),
        ),
    }


_ENDS: dict[str, tuple[int, Callable[[list[Any]], Any]]] = {
    "q3": (10, lambda row: (-row[3], row[1], row[0])),
    "q10": (20, lambda row: (-row[7], row[0])),
    "q18": (100, lambda row: (-row[4], row[3], row[2])),
}
"""How many rows queries have in the end, and by what they are ordered."""
_DATES = {"q3": 1, "q18": 3}


class Results:
    """The results of the queries, and the time of the last change.

    The arrived part of an input is identified by the sum of its keys, which each refresh changes.
    """

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._rows: dict[str, dict[Any, list[Any]]] = {}
        self._sums: dict[str, int] = {}
        self._last = 0.0

    def watch(self, name: str, table: Any) -> None:
        """Keeps the rows of a query, or the sum of an input."""
        rows: dict[Any, list[Any]] = self._rows.setdefault(name, {})

        def changed(key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:
            values = [*row.values()]
            if is_addition:
                rows[key] = values
                if name.startswith("sum "):
                    self._sums[name] = row["keys"]
            elif rows.get(key) == values:
                del rows[key]

        def ended(moment: int) -> None:
            with self._news:
                self._last = time.perf_counter()
                self._news.notify_all()

        pw.io.subscribe(table, on_change=changed, on_time_end=ended)

    def reach(self, sums: dict[str, int], silent_s: float) -> float:
        """Waits until the keys of inputs add up so, and until nothing has come for so long.

        A query tells of a time if it changed in it, and of no other: so what ends an epoch is that
        no more comes. Returns when the last came.
        """

        def there() -> bool:
            return all(self._sums.get(f"sum {name}") == n for name, n in sums.items())

        with self._news:
            if not self._news.wait_for(there, _WAIT_S):
                raise TimeoutError(f"{self._sums} instead of {sums} after {_WAIT_S} s")
            while self._news.wait(silent_s):
                pass
            return self._last

    def line(self) -> str:
        """What the queries give now, as a line of JSON."""
        found = {}
        for name, rows in self._rows.items():
            if name.startswith("sum "):
                continue
            values = [*rows.values()]
            if name in _ENDS:
                most, order = _ENDS[name]
                values = heapq.nsmallest(most, values, key=order)
            if name in _DATES:
                place = _DATES[name]
                values = [[*r[:place], as_text(r[place]), *r[place + 1 :]] for r in values]
            found[name] = values
        return json.dumps(found)


def _keys_sum(table: pa.Table) -> int:
    """Returns the sum of the first column, the key of its orders."""
    return int(pc.sum(table.column(0)).as_py() or 0)


class Driver:
    """Loads, then runs the epochs, each after the result of the one before."""

    def __init__(self, refreshes: Refreshes, results: Results, path: Path) -> None:
        self._refreshes, self._results, self._path = refreshes, results, path
        self.feeds = {name: Feed() for name in refreshes.load if name != "lineitem"}
        self.feeds["lineitem"] = Feed(self._drive)
        self.load_seconds, self.peak_kib = 0.0, 0
        self.latencies: list[float] = []
        self.sizes: list[int] = []
        self.error: BaseException | None = None

    def _drive(self) -> None:
        try:
            self._measure()
        except BaseException as error:
            self.error = error
        finally:
            for feed in self.feeds.values():
                feed.finish()

    def _reach(self, sums: dict[str, int], silent_s: float) -> float:
        """Waits for the results; a commit of nothing says that of this time no more comes."""
        for name in sums:
            self.feeds[name].commit()
        return self._results.reach(sums, silent_s)

    def _measure(self) -> None:
        load = self._refreshes.load
        sums = {name: _keys_sum(load[name]) for name in REFRESHED}
        Path("/proc/self/clear_refs").write_text("5")
        started = time.perf_counter()
        for name, table in load.items():
            self.feeds[name].take(table, None)
            if name not in sums:
                self.feeds[name].finish()
        self.load_seconds = self._reach(sums, _SILENT_LOAD_S) - started
        with self._path.open("w") as file:
            print(self._results.line(), file=file)
            for size, inserts, removals in self._refreshes:
                for name in sums:
                    sums[name] += _keys_sum(inserts[name]) - _keys_sum(removals[name])
                started = time.perf_counter()
                for name in sums:
                    self.feeds[name].take(inserts[name], removals[name])
                self.latencies.append(self._reach(sums, _SILENT_S) - started)
                self.sizes.append(size)
                print(self._results.line(), file=file)
        lines = Path("/proc/self/status").read_text().splitlines()
        self.peak_kib = int(next(one for one in lines if one.startswith("VmHWM:")).split()[1])


def main() -> None:
    """Runs the load and the epochs, and prints their times."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sf", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--results", type=Path, required=True)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    refreshes = Refreshes(read(generated(options.sf)), options.epochs)
    results = Results()
    driver = Driver(refreshes, results, options.results)
    of = inputs(refreshes.load, driver.feeds)
    for name, table in queries(of).items():
        results.watch(name, table)
    for name, key in REFRESHED.items():
        results.watch(f"sum {name}", of[name].reduce(keys=pw.reducers.sum(of[name][key])))
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    if driver.error is not None:
        raise driver.error
    print(
        json.dumps(
            {
                "peer": f"Pathway {pw.__version__}",
                "load_seconds": driver.load_seconds,
                "peak_kib": driver.peak_kib,
                "rows": driver.sizes,
                "latencies_ms": [1000 * each for each in driver.latencies],
            }
        )
    )


if __name__ == "__main__":
    main()
