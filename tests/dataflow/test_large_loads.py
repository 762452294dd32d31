"""Large loads: files are read piece by piece, without columns that no stage reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from internals import graph_of, traces_of

from nosync_nb import Session
from nosync_nb.session.writes import ingest
from nosync_nb.store import store as stores
from nosync_nb.trace.parts import part_file

ROWS = 80_000
WIDTH = 250
NOTES = ROWS * WIDTH


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes large loads lie in several files, as gigabytes do."""
    monkeypatch.setattr(ingest, "LOAD_BYTES", 1 << 20)
    whole = part_file.split
    monkeypatch.setattr(part_file, "split", lambda batch, *most: whole(batch, 1 << 13, *most[1:]))


@contextmanager
def counted() -> Iterator[pa.MemoryPool]:
    """A block in which Arrow allocates from a new pool; yields the pool."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)


def load(session: Session, *, joined: bool, kept: bool = False) -> dict[tuple[int, ...], int]:
    """Defines inputs, one of them large, and inserts rows; returns the expected result."""
    orders = session.input("orders", "item bigint, client bigint, amount bigint, note string")
    items = session.input("items", "item bigint, kind bigint")
    lands = session.input("lands", "item bigint, land bigint")
    if kept:  # what others look up is looked up by a join of all as well: two orders of one input
        clients = session.input("clients", "client bigint, zone bigint")
        clients.insert([(number, number % 2) for number in range(317)])
        session.stage("one", orders.join(items, on="item").group_by("kind").agg(n="count(*)"))
        session.stage("other", orders.join(clients, on="client").group_by("zone").agg(n="count(*)"))
        every = orders.join(items, on="item").join(clients, on="client")
        session.stage("sums", every.group_by("kind", "zone").agg(total="sum(amount)"))
        assert "without intermediate rows" in str(session["sums"].explain())
    elif joined:
        every = orders.join(items, on="item").join(lands, on="item")
        session.stage("sums", every.group_by("kind", "land").agg(total="sum(amount)"))
    else:
        session.stage("sums", orders.group_by("client").agg(total="sum(amount)"))
    places = np.arange(ROWS)
    item, client, amount = places % 1000, places % 317, places % 10
    notes = pa.array([f"{place:0{WIDTH}}" for place in places.tolist()])
    items.insert([(number, number % 7) for number in range(1000)])
    lands.insert([(number, number % 3) for number in range(1000)])
    orders.insert(pa.table({"item": item, "client": client, "amount": amount, "note": notes}))
    other = client % 2 if kept else item % 3
    keys = zip(item % 7, other, strict=True) if joined else zip(client, strict=True)
    expected = dict[tuple[int, ...], int]()
    for key, n in zip(keys, amount.tolist(), strict=True):
        own = tuple(map(int, key))
        expected[own] = expected.get(own, 0) + n
    return expected


def files_of(session: Session, name: str) -> list[Any]:
    """The files of each trace of a collection."""
    numbers = graph_of(session).named[name].traces.values()
    traces = (traces_of(session)[number] for number in numbers)
    return [[ref for layer in trace.layers for ref in layer.files] for trace in traces]


@pytest.mark.parametrize(("joined", "kept"), [(False, False), (True, False), (True, True)])
def test_load_copies_no_unread_column(session: Session, *, joined: bool, kept: bool) -> None:
    expected = load(session, joined=joined, kept=kept)
    with counted() as pool:
        session.commit()
    assert pool.max_memory() < NOTES // 4
    assert all(len(files) >= ROWS >> 13 for files in files_of(session, "orders"))
    rows = session["sums"].rows()
    assert {tuple(row[:-1]): row[-1] for row in rows} == expected


def test_insert_copies_rows_once_for_several_orders(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "ROWS_MAX", ROWS >> 4)
    orders = session.input("orders", "item bigint, client bigint, note string")
    for key in ("item", "client"):
        other = session.input(f"{key}s", f"{key} bigint, kind bigint")
        other.insert([(number, number % 7) for number in range(1000)])
        session.stage(f"by_{key}", orders.join(other, on=key))
    assert len(graph_of(session).named["orders"].traces) == 2
    places = np.arange(ROWS)
    notes = pa.array([f"{place:0{WIDTH}}" for place in places.tolist()])
    table = pa.table({"item": places % 1000, "client": places % 317, "note": notes})
    with counted() as pool:
        orders.insert(table)
    assert NOTES < pool.max_memory() < NOTES * 1.25
    session.commit()
    assert all(len(files) >= 16 for files in files_of(session, "orders"))
    assert sorted(orders.rows()) == sorted(zip(*table.to_pydict().values(), strict=True))
    for key in ("item", "client"):
        assert session[f"by_{key}"].count() == np.count_nonzero(table[key].to_numpy() < 1000)


def test_few_texts_are_encoded_before_rows_are_sorted(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = [f"{number:0{WIDTH}}" for number in range(5)]
    table = pa.table({"item": np.arange(ROWS), "kind": [kinds[i % 5] for i in range(ROWS)]})
    orders = session.input("orders", "item bigint, kind string")
    sort, allocated = stores.arranged_pieces, []

    def counted_pieces(*arguments: Any) -> Any:
        allocated.append(pool.bytes_allocated())
        return sort(*arguments)

    monkeypatch.setattr(stores, "arranged_pieces", counted_pieces)
    with counted() as pool:
        orders.insert(table)
    assert allocated
    assert max(allocated) < NOTES // 10 < pool.max_memory()
    session.commit()
    assert sorted(orders.rows()) == sorted(zip(*table.to_pydict().values(), strict=True))


def resident_bytes(folder: Path) -> int:
    """The resident bytes of a log's layers."""
    size, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if "-" in first and len(rest) > 3:
            ours = rest[-1].startswith(f"{folder}/layers")
        elif ours and first == "Rss:":
            size += 1024 * int(rest[0])
    return size


@pytest.mark.parametrize("large", [False, True])
def test_pages_of_files_stay_resident_if_few(
    session: Session, monkeypatch: pytest.MonkeyPatch, *, large: bool
) -> None:
    monkeypatch.setattr(stores, "REST_BYTES", 1 << 20 if large else 1 << 40)
    expected = load(session, joined=True)
    session.commit()
    left = resident_bytes(Path(session.path))
    assert left < 1 << 20 if large else left > 1 << 21
    rows = session["sums"].rows()  # its files are read again
    assert {tuple(row[:-1]): row[-1] for row in rows} == expected
    session["orders"].remove([session["orders"].head(1)[0]])  # type: ignore[attr-defined]
    session.commit()
    assert sum(row.total for row in session["sums"].rows()) < sum(expected.values()) + 1
