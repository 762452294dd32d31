"""Plans by known sizes: the plan of a stage follows the sizes of its inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from internals import graph_of, snapshot_of

import nosync_nb
from nosync_nb import Collection, Session
from nosync_nb.dataflow import cardinality

LINES, ORDERS, BUYERS = 1600, 400, 40

pytestmark = pytest.mark.usefixtures("no_disk")


@pytest.fixture(autouse=True)
def low_size_threshold() -> Iterator[None]:
    with mock.patch.object(cardinality, "LEAST_BYTES", 1 << 12):
        yield


def opened(path: Any) -> Session:
    return nosync_nb.open(path)


def loaded(session: Session) -> None:
    lines = session.input("lines", "line_order int, item int, quantity int")
    orders = session.input("orders", "order_id int, buyer int, day int")
    buyers = session.input("buyers", "id int, name string")
    lines.insert([(n % ORDERS, n, n % 10) for n in range(LINES)])
    orders.insert([(n, n % BUYERS, n % 7) for n in range(ORDERS)])
    buyers.insert([(n, f"buyer {n}") for n in range(BUYERS)])
    session.commit()


@pytest.fixture
def session(tmp_path: Any) -> Iterator[Session]:
    with opened(tmp_path / "log") as session:
        loaded(session)
        yield session


def order_lines(session: Session, predicate: str = "") -> Collection:
    lines, orders = session["lines"], session["orders"]
    both = lines.join(orders, on={"line_order": "order_id"})
    if predicate:
        both = both.filter(predicate)
    return both.join(session["buyers"], on={"buyer": "id"}).select("name", "item", "day")


def unnamed_rows(session: Session) -> int:
    """The rows stored by unnamed parts."""
    seen = snapshot_of(session)
    numbers = [n for node in seen.graph if node.name is None for n, _ in node.layouts()]
    return sum(t.rows_count for n in numbers if (t := seen.version.traces.get(n)) is not None)


def rows(session: Session, keep: Any = lambda line, day: True) -> list[Any]:
    """Computes `bought` by a loop."""
    found = []
    for n in range(LINES):
        order = n % ORDERS
        if keep(n % 10, order % 7):
            found.append((f"buyer {order % BUYERS}", n, order % 7))
    return sorted(found)


@pytest.mark.parametrize("predicate", ["", "quantity > 0", "day < 6 and quantity > 0"])
def test_large_intermediate_rows_are_not_stored(session: Session, predicate: str) -> None:
    stage = session.stage("bought", order_lines(session, predicate))
    assert unnamed_rows(session) == 0
    keep = {
        "": lambda line, day: True,
        "quantity > 0": lambda line, day: line > 0,
        "day < 6 and quantity > 0": lambda line, day: line > 0 and day < 6,
    }[predicate]
    assert sorted(stage.rows()) == rows(session, keep)
    session["orders"].remove([(0, 0, 0)])
    session["lines"].insert([(1, 9999, 5)])
    session.commit()
    expected = [each for each in rows(session, keep) if each[1] % ORDERS != 0]
    assert sorted(stage.rows()) == sorted([*expected, ("buyer 1", 9999, 1)])


@pytest.mark.parametrize("predicate", ["quantity = 3", "day = 3 and quantity > 5", "item < 9"])
def test_few_intermediate_rows_are_stored(session: Session, predicate: str) -> None:
    session.stage("bought", order_lines(session, predicate))
    assert 0 < unnamed_rows(session) < LINES


def test_unknown_predicate_is_estimated_at_one_third(session: Session) -> None:
    tables = cardinality.TableSizes(*graph_and_traces(session))
    read = order_lines(session, "quantity < day").filter("10 div day > 1")
    assert share(read, tables) == pytest.approx(cardinality.STAYS**2)


def test_explain_shows_estimated_sizes(session: Session) -> None:
    told = str(session.stage("bought", order_lines(session)).explain())
    instead = f"looked up instead of about {LINES:,} rows between, which would be larger: "
    assert f"{instead}orders by buyer" in told
    kept = str(session.stage("kept", order_lines(session, "quantity = 3")).explain())
    assert "stores the rows of the join below (160 rows): a predicate is between the joins" in kept
    assert f"to store none it would look up orders by buyer ({ORDERS} rows)" in kept


def test_small_tables_use_default_plan(session: Session) -> None:
    with mock.patch.object(cardinality, "LEAST_BYTES", 1 << 30):
        session.stage("bought", order_lines(session))
    assert unnamed_rows(session) == LINES


def test_empty_input_gives_no_estimate(session: Session) -> None:
    late = session.input("late", "id int, name string")
    pair = session["lines"].join(session["orders"], on={"line_order": "order_id"})
    session.stage("bought", pair.join(late, on={"buyer": "id"}))
    assert unnamed_rows(session) == LINES


def test_chosen_plan_is_independent_of_later_sizes(tmp_path: Any) -> None:
    with opened(tmp_path / "log") as session:
        loaded(session)
        session.stage("bought", order_lines(session))
        session["orders"].insert([(ORDERS + n, 1, 0) for n in range(9 * LINES)])
        session.commit()
        session.stage("other", session["orders"].group_by("day").count())
        assert unnamed_rows(session) == 0
        had = {node.id: node.fingerprint for node in graph_of(session)}
    with opened(tmp_path / "log") as session:
        session["lines"].insert([(1, 9999, 5)])
        session.commit()
        graph = graph_of(session)
        assert {node.id: node.fingerprint for node in graph} == had
        assert len(session["bought"].rows()) == LINES + 1
        session.stage("again", order_lines(session).select("name"))  # there are many orders now
        assert unnamed_rows(session) > 0


def graph_and_traces(session: Session) -> Any:
    seen = snapshot_of(session)
    return seen.graph, seen.version.traces


def share(collection: Collection, tables: cardinality.TableSizes) -> float:
    from nosync_nb.collections.session_protocol import definition_of

    tree = definition_of("test", collection)
    size = cardinality.estimate(tree, tables)[id(tree)]
    return size.rows / size.whole
