"""Plan rewrites: what they change in definitions, and when they leave them unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import nosync_nb
from nosync_nb import Collection, Session
from nosync_nb.collections.definition import Definition
from nosync_nb.collections.session_protocol import definition_of
from nosync_nb.dataflow.optimizer.pushdown import with_pruned_columns, with_pushed_filters
from nosync_nb.dataflow.planner import PLANNED_MAX, plan_definition
from nosync_nb.errors import ExpressionError
from nosync_nb.expressions import conjuncts

ORDERS = "id int, customer int, price int, note string, clerk string"
CUSTOMERS = "customer int, name string, address string, rank int"


@pytest.fixture
def session(tmp_path: Any) -> Iterator[Session]:
    with nosync_nb.open(tmp_path / "log") as session:
        session.input("orders", ORDERS)
        session.input("customers", CUSTOMERS)
        yield session


def plan_of(collection: Collection) -> Definition:
    return plan_definition(definition_of("test", collection), None)


def nested(tree: Definition) -> Any:
    """A plan as nested tuples: operator, its main parameter, inputs."""
    match tree.op:
        case "ref":
            return tree.name
        case "filter":
            own = tree.params["predicate"]
        case _:
            own = ",".join(tree.schema.names)
    return (tree.op, own, *map(nested, tree.inputs))


def joined(session: Session) -> Collection:
    return session["orders"].join(session["customers"], on="customer")


def test_join_carries_only_columns_that_are_read(session: Session) -> None:
    counted = joined(session).group_by("name").agg(total="sum(price)")
    assert nested(plan_of(counted)) == (
        "aggregate", "name,total", ("join", "price,name", "orders", "customers"),
    )  # fmt: skip


def test_count_of_join_keeps_one_narrow_column(session: Session) -> None:
    counted = joined(session).agg(n="count(*)")
    assert nested(plan_of(counted)) == ("aggregate", "n", ("join", "id", "orders", "customers"))


def test_rows_are_narrowed_before_filter(session: Session) -> None:
    summed = session["orders"].filter("price > 3").group_by("id").agg(n="count(*)")
    assert nested(plan_of(summed)) == (
        "aggregate", "id,n",
        ("select", "id", ("filter", "price > 3", ("select", "id,price", "orders"))),
    )  # fmt: skip


def test_shared_part_has_columns_of_all_readers(session: Session) -> None:
    part = joined(session).filter("price > 3 or rank > 3")
    twice = part.select("name").concat(part.select("address AS name"))
    (both,) = {id(p): p for p in plan_of(twice).walk() if p.op == "join"}.values()
    assert both.schema.names == ("price", "name", "address", "rank")


@pytest.mark.parametrize(
    "whole",
    [
        lambda all_: all_.distinct().select("name"),
        lambda all_: all_.except_all(all_.filter("price > 3")).select("name"),
        lambda all_: all_.multiplicity().select("name"),
        lambda all_: all_.group_by("name").top(1, by="price").select("name"),
        lambda all_: all_.filter(lambda row: row.price > 3).select("name"),
        lambda all_: all_.map(lambda row: (row.name,), "name string"),
        lambda all_: all_.group_by("name").reduce(lambda key, rows: [(1,)], "n int").select("name"),
        lambda all_: all_.iterate(lambda x: x.filter("price < 0").concat(all_).distinct()),
    ],
    ids=["distinct", "except_all", "multiplicity", "top", "filter", "map", "reduce", "loop"],
)
def test_whole_row_operators_get_whole_rows(
    session: Session, whole: Callable[[Collection], Collection]
) -> None:
    tree = plan_of(whole(joined(session)))
    assert {len(part.schema) for part in tree.walk() if part.op == "join"} == {8}


def test_raising_expression_is_computed_though_unread(session: Session) -> None:
    orders = session["orders"].select("id", "10 div price AS share", "id + 1L AS next")
    session.stage("ids", orders.select("id").distinct())
    session["orders"].insert([(1, 1, 0, "", "")])
    with pytest.raises(ExpressionError, match="ivi"):
        session.commit()


def test_conjuncts_of_filter_move_below_joins(session: Session) -> None:
    more = joined(session).join(session["customers"].select("rank", "name AS other"), on="rank")
    kept = more.filter("price > 3 and other = 'x' and (note = 'a' or name = 'b')").select("id")
    assert nested(with_pruned_columns(with_pushed_filters(definition_of("test", kept)), None)) == (
        "select", "id",
        ("join", "id",
         ("select", "id,rank",
          ("filter", "(price > 3) and ((note = 'a' or name = 'b'))",
           ("join", "id,price,note,name,rank", "orders", "customers"))),
         ("select", "rank",
          ("filter", "other = 'x'",
           ("select", "rank,other", "customers")))),
    )  # fmt: skip


def test_filter_stays_above_named_collections_with_shared_arrangement(session: Session) -> None:
    kept = joined(session).filter("price > 3 and name = 'b'")
    assert plan_of(kept) is definition_of("test", kept)


def test_filter_moves_into_union_and_below_distinct(session: Session) -> None:
    both = joined(session).concat(joined(session).filter("rank > 1").negate())
    kept = both.distinct().filter("price > 3")
    ops = [p.op for p in plan_of(kept).walk()]
    assert ops[-2:] == ["concat", "distinct"]


def insert_unmatched_rows(session: Session) -> None:
    """Inserts a row that a join drops and that makes a division raise."""
    session["orders"].insert([(1, 1, 0, "a", "x")])
    session["orders"].insert([(2, 2, 5, "b", "x")])
    session["customers"].insert([(2, "name", "address", 1)])


def test_raising_filter_stays_above_join_that_drops_rows(session: Session) -> None:
    more = (
        session["orders"].select("id", "customer", "price").join(session["customers"], "customer")
    )
    session.stage("kept", more.filter("10 div price > 1").select("id"))
    insert_unmatched_rows(session)
    session.commit()
    assert [row.id for row in session["kept"].rows()] == [2]


@pytest.mark.parametrize("raising", ["select", "filter"])
def test_filter_stays_above_raising_expressions(session: Session, raising: str) -> None:
    more = session["orders"].join(session["customers"], "customer", how="left")
    if raising == "select":
        more = more.select("id", "price", "10 div price AS share")
    else:
        more = more.filter("10 div price > 1")
    session.stage("kept", more.filter("price > 3").select("id"))
    insert_unmatched_rows(session)
    with pytest.raises(ExpressionError, match="ivi"):
        session.commit()


@pytest.mark.parametrize("deciding", ["top", "aggregate", "reduce"])
def test_filter_stays_above_operators_that_compare_rows(session: Session, deciding: str) -> None:
    groups = joined(session).group_by("name")
    kept = {
        "top": groups.top(1, by="price desc"),
        "aggregate": groups.agg(price="max(price)"),
        "reduce": groups.reduce(lambda key, rows: [(len(rows),)], "price int"),
    }[deciding].filter("price > 3")
    assert plan_of(kept).op == "filter"


def test_very_large_definition_is_not_rewritten(session: Session) -> None:
    part = joined(session)
    for number in range(PLANNED_MAX):
        part = part.filter(f"price > {number % 7}")
    assert plan_of(part.select("id")) is not None
    tree = definition_of("test", part.select("id"))
    assert plan_definition(tree, None) is tree


def test_plan_is_computed_once_and_leaves_definition(session: Session) -> None:
    counted = joined(session).agg(n="count(*)")
    tree = definition_of("test", counted)
    session.stage("counted", counted)
    assert plan_definition(tree, None) is plan_definition(tree, None) is not tree
    assert session["counted"].schema.names == ("n",)


@pytest.mark.parametrize(
    ("sql", "parts"),
    [
        ("a > 1 and b between 1 and 2 and c = 'x and y'",
         ("a > 1", "b between 1 and 2", "c = 'x and y'")),
        ("a or b and c", ("a or b and c",)),
        ("(a and b) AND c", ("(a and b)", "c")),
        ("not a and case when b and c then d else e end",
         ("not a", "case when b and c then d else e end")),
        ("a and `and` = 1", ("a", "`and` = 1")),
        ("a -- and\n and b", ("a -- and\n and b",)),
        ("a and b as x", ("a and b as x",)),
        ("a", ("a",)),
    ],
)  # fmt: skip
def test_conjuncts_are_split_at_top_level_and(sql: str, parts: tuple[str, ...]) -> None:
    assert conjuncts(sql) == parts
