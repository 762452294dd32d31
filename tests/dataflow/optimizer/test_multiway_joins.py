"""Multiway joins: which joins become one, what they retain, and each combination counts once."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from internals import graph_of, snapshot_of
from planner_switches import planless

import nosync_nb
from nosync_nb import Collection, Session
from nosync_nb.collections.session_protocol import definition_of
from nosync_nb.dataflow.planner import plan_definition

TABLES = {
    "customers": "c int, place int, name string",
    "orders": "o int, c int, price int",
    "lines": "o int, item int, n int",
    "bills": "o int, paid int",
}
ROWS: dict[str, list[Any]] = {
    "customers": [(1, 7, "ann"), (2, 8, "bob"), (None, 9, "nobody")],
    "orders": [(10, 1, 5), (11, 1, 6), (12, 2, 7), (13, None, 8), (None, 2, 9)],
    "lines": [(10, 100, 1), (10, 101, 2), (11, 100, 3), (12, 101, 4), (None, 100, 5)],
    "bills": [(10, 1), (10, 2), (12, 3), (13, 4), (None, 5)],
}


@pytest.fixture
def session(tmp_path: Any) -> Iterator[Session]:
    with nosync_nb.open(tmp_path / "log") as session:
        for name, columns in TABLES.items():
            session.input(name, columns)
        yield session


def purchases(session: Session) -> Collection:
    return session["customers"].join(session["orders"], on="c")


def sales(session: Session) -> Collection:
    return purchases(session).join(session["lines"], on="o").join(session["bills"], on="o")


def chain_input_counts(collection: Collection) -> list[int]:
    tree = plan_definition(definition_of("test", collection), None)
    return [len({*part.params["inputs"]}) for part in tree.walk() if part.op == "joins"]


def unnamed_rows(session: Session) -> int:
    """The rows stored by unnamed parts."""
    snapshot = snapshot_of(session)
    numbers = [n for node in snapshot.graph if node.name is None for n, _ in node.layouts()]
    traces = [trace for n in numbers if (trace := snapshot.version.traces.get(n)) is not None]
    return sum(trace.rows_count for trace in traces)


def insert(session: Session, factor: int = 1) -> None:
    for name, rows in ROWS.items():
        (session[name].insert if factor > 0 else session[name].remove)(rows * abs(factor))


def expected(counts: dict[str, Counter[Any]]) -> Counter[Any]:
    """Computes `sold` by loops over all rows."""
    held: Counter[Any] = Counter()
    for rows in itertools.product(*(counts[name].items() for name in TABLES)):
        (customer, a), (order, b), (line, c), (bill, d) = rows
        same = {order[0], line[0], bill[0]}
        if None not in (customer[0], *same) and customer[0] == order[1] and len(same) == 1:
            held[(*customer, order[0], order[2], *line[1:], bill[1])] += a * b * c * d
    return +held


def test_multiway_join_stores_no_intermediate_rows(session: Session) -> None:
    session.stage("sold", sales(session).select("name", "item", "paid"))
    insert(session)
    session.commit()
    assert chain_input_counts(sales(session)) == [4]
    assert unnamed_rows(session) == 0
    assert sorted(session["sold"].rows()) == [
        ("ann", 100, 1), ("ann", 100, 2), ("ann", 101, 1), ("ann", 101, 2), ("bob", 101, 3),
    ]  # fmt: skip


def test_explain_shows_lookups_by_size(session: Session) -> None:
    session.stage("sold", sales(session).filter("paid > price or paid < 2"))
    insert(session)
    session["lines"].insert([(99, 1, 1)])
    session.commit()
    told = [line.strip() for line in str(session["sold"].explain()).splitlines()]
    assert told[1] == (
        "join of 4, without intermediate rows, on c and o where paid > price or paid < 2:"
        " c, place, name, o, price, item, n, paid"
    )
    assert told[2:6] == ["├─ customers", "├─ orders", "├─ lines", "└─ bills"]
    looks = "orders: customers by c (3 rows), bills by o (5 rows), lines by o (6 rows)"
    assert told[-3] == looks


def why_stored(collection: Collection) -> list[str]:
    """The reasons for stored rows of joins in a plan, with row counts."""
    return re.findall(r"stores the rows of the join below \(([^;\n]*)", str(collection.explain()))


def test_explain_names_reason_for_stored_rows(session: Session) -> None:
    orders, lines, bills = session["orders"], session["lines"], session["bills"]
    twice = purchases(session)
    session.define(
        {
            "filtered": twice.filter("name < 'b'").join(lines, on="o"),
            "raising": twice.filter("10 div price > 1").join(lines, on="o"),
            "python": twice.filter(lambda row: row.c > 0).join(lines, on="o"),
            "computed": twice.select("o + 0 AS o", "name").join(lines, on="o"),
            "both": twice.join(lines, on={"o": "o", "place": "n"}),
            "again": twice.join(lines, on="o").concat(
                twice.join(lines.rename({"o": "p"}), on={"o": "item"}).rename({"p": "item"})
            ),
            "counted": twice.filter("10 div price > 1").group_by("o").count().join(lines, on="o"),
        }
    )
    insert(session)
    session.commit()
    sieved = "a predicate is between the joins"
    assert [why_stored(session[n]) for n in ("filtered", "raising", "python")] == [
        [f"2 rows): {sieved}"], [f"1 row): {sieved}"], [f"4 rows): {sieved}"],
    ]  # fmt: skip
    assert why_stored(session["computed"]) == ["4 rows): columns are computed between the joins"]
    assert why_stored(session["both"]) == ["4 rows): the join key has columns of several inputs"]
    assert why_stored(session["again"]) == ["4 rows): other operators read them"] * 2
    assert why_stored(session["counted"]) == []
    session.stage("star", orders.join(bills, on="o").join(session["customers"], on={"paid": "c"}))
    assert why_stored(session["star"]) == [
        "4 rows): a multiway join would need as many arrangements as it saves"
    ]


def test_unplanned_joins_store_intermediate_rows(session: Session) -> None:
    with planless():
        session.stage("sold", sales(session))
        insert(session)
        session.commit()
    assert unnamed_rows(session) == 4 + 4


def test_combinations_count_once_if_all_inputs_change(session: Session) -> None:
    session.stage("sold", sales(session))
    counts = {name: Counter[Any]() for name in TABLES}
    for step in range(6):
        for at, (name, rows) in enumerate(ROWS.items()):
            for number, row in enumerate(rows):
                if (step + at + number) % 3 == 0:
                    times = (step + number) % 2 + 1
                    session[name].insert([row] * times)
                    counts[name][row] += times
                elif counts[name][row]:
                    session[name].remove([row])
                    counts[name][row] -= 1
        session.commit()
        assert Counter(map(tuple, session["sold"].rows())) == expected(counts)
    assert +counts["orders"]


def test_one_arrangement_serves_all_joins_by_its_key(session: Session) -> None:
    tree = plan_definition(definition_of("test", sales(session)), None)
    assert tree.params["inputs"] == [0, 1, 1, 2, 3]
    assert tree.params["keys"] == [[0], [1], [0], [0], [0]]


def test_transitively_equal_columns_are_compared(session: Session) -> None:
    edges = session.input("edges", "a int, b int")
    by_a = edges.rename({"b": "c"}).join(edges.rename({"b": "d"}), on="a")
    both = by_a.join(edges.rename({"b": "e"}), on="a").join(edges, on={"a": "a", "c": "b"})
    session.stage("both", both.filter("d < e"))
    edges.insert([(1, 2), (1, 3), (2, 2), (None, 1), (1, None), (None, None)])
    session.commit()
    edges.insert([(1, 4), (1, 2)])
    edges.remove([(1, 3)])
    session.commit()
    assert chain_input_counts(both) == [3]
    rows = [(1, 2), (1, 2), (1, None), (1, 4)]
    pairs = [(c, d, e) for (_, c), (_, d), (_, e) in itertools.product(rows, repeat=3)]
    held = [p for p in pairs if p[0] is not None and None not in p and p[1] < p[2]]
    counted = Counter((row.c, row.d, row.e) for row in session["both"].rows())
    assert counted == Counter(p for p in held for _ in range(sum(b == p[0] for _, b in rows)))


@pytest.mark.parametrize(
    "between",
    [
        lambda s: purchases(s).filter("price > place"),
        lambda s: purchases(s).filter("10 div price > 1"),
        lambda s: purchases(s).filter(lambda row: row.price > 1),
        lambda s: purchases(s).select("*", "price + 1L AS more"),
        lambda s: purchases(s).distinct(),
        lambda s: s["customers"].join(s["orders"], on="c", how="left"),
        lambda s: s["customers"].join(s["orders"].filter("price > 3"), on="c"),
    ],
    ids=["filtered", "raises", "function", "computes", "distinct", "left", "no name"],
)
def test_only_plain_inner_joins_are_merged(session: Session, between: Any) -> None:
    more = between(session).join(session["lines"], on="o").join(session["bills"], on="o")
    assert 4 not in chain_input_counts(more)


def test_merge_must_save_more_arrangements_than_it_needs(session: Session) -> None:
    assert chain_input_counts(purchases(session).join(session["lines"], on="o")) == []
    star = session["orders"].join(session["customers"], on="c").join(session["lines"], on="o")
    assert chain_input_counts(star) == []


def test_key_of_two_inputs_ends_multiway_join(session: Session) -> None:
    lines = session["lines"].rename({"item": "place"})
    both = purchases(session).join(lines, on=["o", "place"]).join(session["bills"], on="o")
    assert chain_input_counts(both) == []


def test_join_that_saves_nothing_stays_above_multiway_join(session: Session) -> None:
    items = session.input("items", "item int, label string")
    labelled = sales(session).join(items, on="item")
    tree = plan_definition(definition_of("test", labelled), None)
    assert [part.op for part in tree.walk()][-3:] == ["joins", "ref", "join"]
    session.stage("labelled", labelled.select("name", "label", "paid"))
    insert(session)
    items.insert([(101, "y")])
    session.commit()
    labels = [("ann", "y", 1), ("ann", "y", 2), ("bob", "y", 3)]
    assert sorted(session["labelled"].rows()) == labels


def test_rows_read_by_others_are_stored(session: Session) -> None:
    part = purchases(session)
    more = part.join(session["lines"], on="o").join(session["bills"], on="o").select("name")
    assert 4 not in chain_input_counts(more.concat(part.select("name")))
    session.stage("bought", part)
    more = session["bought"].join(session["lines"], on="o").join(session["bills"], on="o")
    assert chain_input_counts(more) == [3]


def test_joins_in_loops_are_not_merged(session: Session) -> None:
    looped = sales(session).iterate(lambda all_: all_.filter("price < 0").concat(all_).distinct())
    assert chain_input_counts(looped) == []


def cheap(session: Session) -> Collection:
    """Joins with a predicate between; without orders by their own key they must store rows."""
    return purchases(session).filter("price < 7").join(session["lines"], on="o").select("name", "n")


def paid_orders(session: Session) -> Collection:
    return session["orders"].join(session["bills"], on="o").select("paid")


CHEAP = [("ann", 1), ("ann", 2), ("ann", 3)]


@pytest.mark.parametrize("names", [("cheap", "paid"), ("paid", "cheap")])
def test_arrangement_of_other_stage_is_looked_up_below_predicate(
    session: Session, names: tuple[str, str]
) -> None:
    for name in names:
        session.stage(name, {"cheap": cheap, "paid": paid_orders}[name](session))
    insert(session)
    session.commit()
    assert unnamed_rows(session) == 0
    assert "looked up in the arrangements of others: orders by o" in str(session["cheap"].explain())
    assert sorted(session["cheap"].rows()) == CHEAP
    session["orders"].remove([(10, 1, 5)])
    session.commit()
    assert sorted(session["cheap"].rows()) == [("ann", 3)]


def test_arrangement_of_dropped_stage_is_not_used_without_state(session: Session) -> None:
    session.define({"cheap": cheap(session), "paid": paid_orders(session)})
    session.drop("paid")
    insert(session)
    session.commit()
    assert why_stored(session["cheap"]) == ["2 rows): a predicate is between the joins"]


def nodes(session: Session) -> dict[int, str]:
    return {node.id: node.fingerprint for node in graph_of(session)}


@pytest.mark.parametrize("first", ["cheap", "both"])
def test_plan_of_stage_with_state_is_independent_of_other_stages(tmp_path: Any, first: str) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        for name, columns in TABLES.items():
            session.input(name, columns)
        given = {"cheap": cheap(session), "paid": paid_orders(session)}
        session.define(given if first == "both" else {"cheap": given["cheap"]})
        insert(session)
        session.commit()
        had = nodes(session)
        if first == "both":
            session.drop("paid")
        else:
            session.stage("paid", given["paid"])
        between = ["2 rows): a predicate is between the joins"]
        assert why_stored(session["cheap"]) == ([] if first == "both" else between)
        now = nodes(session)
        assert now.items() <= had.items() or had.items() <= now.items()
    with nosync_nb.open(tmp_path / "log") as session:
        session["lines"].insert([(10, 7, 7)])
        session.commit()
        assert nodes(session) == now
        assert sorted(session["cheap"].rows()) == sorted([*CHEAP, ("ann", 7)])


def test_only_shared_arrangements_are_reused(session: Session) -> None:
    places = session.input("places", "place int, label string")
    labelled = cheap_lines(session).join(places, on="place").select("label", "n")
    session.define({"labelled": labelled, "paid": paid_orders(session)})
    insert(session)
    places.insert([(7, "x")])
    session.commit()
    assert unnamed_rows(session) == 3  # by place: no other part stores customers by it
    assert sorted(session["labelled"].rows()) == [("x", 1), ("x", 2), ("x", 3)]


def cheap_lines(session: Session) -> Collection:
    return purchases(session).filter("price < 7").join(session["lines"], on="o").filter("n < 9")
