"""`iterate`: meaning, retained state, cost and refusals of loops.

Random loops are in test_random_programs.py; here are those that end by themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from checks.checking import EDGES, closure, count, net
from internals import graph_of, snapshot_of

import nosync_nb
from nosync_nb import Collection, DivergenceError, SchemaError, Session, StageError
from nosync_nb.operators.iterate.divergence import DivergenceDetector


def state_rows(session: Session, stage: str) -> int:
    """The rows of a stage's operator state."""
    node = graph_of(session).named[stage]
    version = snapshot_of(session).version
    total = 0
    for number in node.state:
        if number in version.traces:
            total += len(version.traces[number].consolidated())
    return total


def reachable(roots: Collection, edges: Collection) -> Collection:
    return roots.iterate(
        lambda r: r.join(edges, on={"node": "src"}).select("dst as node").concat(roots).distinct()
    )


# -- public cases ------------------------------------------------------------------------------


def test_removed_edge_removes_nodes_of_unreachable_cycle(session: Session) -> None:
    edges, roots = session.input("edges", EDGES), session.input("roots", "node int")
    stage = session.stage("reach", reachable(roots, edges))
    roots.insert([(1,)])
    edges.insert([(1, 2), (2, 3), (3, 2)])
    session.commit()
    assert count(stage) == {(1,): 1, (2,): 1, (3,): 1}
    edges.remove([(1, 2)])
    session.commit()
    assert net(stage) == {(2,): -1, (3,): -1}, "the cycle does not keep itself alive"


def test_fixpoint_and_closure_follow_removals(session: Session) -> None:
    start = session.input("start", "node int")
    one = session.stage("one", start.iterate(lambda v: v.concat(start).distinct()))
    edges = session.input("edges", EDGES)
    paths = session.stage("paths", closure(edges))
    start.insert([(1,)])
    edges.insert([(0, 1), (1, 2)])
    session.commit()
    assert count(one) == {(1,): 1}
    assert count(paths) == {(0, 1): 1, (1, 2): 1, (0, 2): 1}
    edges.remove([(0, 1)])
    session.commit()
    assert count(paths) == {(1, 2): 1}


# -- meaning -----------------------------------------------------------------------------------


def test_rounds_limit_applications_of_body(session: Session) -> None:
    numbers = session.input("numbers", "n int")
    stages = [
        session.stage(f"after_{k}", numbers.iterate(lambda v: v.select("n + 1 as n"), rounds=k))
        for k in (1, 2, 5)
    ]
    numbers.insert([(0,), (10,)])
    session.commit()
    assert [count(s) for s in stages] == [{(k,): 1, (10 + k,): 1} for k in (1, 2, 5)]
    numbers.remove([(10,)])
    session.commit()
    assert [count(s) for s in stages] == [{(k,): 1} for k in (1, 2, 5)]


def test_equal_loops_do_not_interfere(session: Session) -> None:
    edges, roots = session.input("edges", EDGES), session.input("roots", "node int")
    first = session.stage("first", reachable(roots, edges))
    both = session.stage("both", reachable(roots, edges).concat(reachable(roots, edges)))
    roots.insert([(1,)])
    edges.insert([(1, 2), (2, 1), (2, 3)])
    session.commit()
    edges.remove([(2, 3)])
    session.commit()
    assert count(first) == {(1,): 1, (2,): 1}
    assert count(both) == {(1,): 2, (2,): 2}


# -- nothing stays -----------------------------------------------------------------------------


@pytest.mark.parametrize("build", [closure, lambda edges: closure(closure(edges))])
def test_removed_chain_leaves_no_rows_and_no_state(
    session: Session, build: Callable[[Collection], Collection]
) -> None:
    edges = session.input("edges", EDGES)
    stage = session.stage("paths", build(edges))
    chain = [(i, i + 1) for i in range(12)]
    for _ in range(10):
        edges.insert(chain)
        session.commit()
        assert len(count(stage)) == 12 * 13 // 2
        assert state_rows(session, "paths") > 0
        edges.remove(chain)
        session.commit()
        assert count(stage) == {}
        assert state_rows(session, "paths") == 0


def test_nested_loop_leaves_no_state(session: Session) -> None:
    edges = session.input("edges", EDGES)

    def around(value: Collection) -> Collection:
        inner = value.iterate(
            lambda paths: (
                paths.join(value.rename({"src": "mid", "dst": "end"}), on={"dst": "mid"})
                .select("src", "end as dst")
                .concat(value)
                .distinct()
            )
        )
        return inner.filter("src < dst").concat(edges).distinct()

    stage = session.stage("paths", edges.iterate(around))
    rows = [(0, 1), (1, 2), (2, 0), (2, 3)]
    for _ in range(3):
        edges.insert(rows)
        session.commit()
        assert (0, 3) in count(stage)
        edges.remove(rows)
        session.commit()
        assert count(stage) == {}
        assert state_rows(session, "paths") == 0


def test_loop_may_be_nested_three_times(session: Session) -> None:
    edges = session.input("edges", EDGES)

    def step(paths: Collection) -> Collection:
        steps = edges.rename({"src": "mid", "dst": "end"})
        longer = paths.join(steps, on={"dst": "mid"}).select("src", "end as dst")
        return longer.concat(paths, edges).distinct()

    def inner(paths: Collection) -> Collection:
        return paths.iterate(step).filter("dst < 3").concat(edges).distinct()

    def middle(paths: Collection) -> Collection:
        return paths.iterate(inner).filter("src < 3").concat(edges).distinct()

    stage = session.stage("paths", edges.iterate(middle))
    for rows in ([(0, 1), (1, 2)], [(2, 3), (3, 0)]):
        edges.insert(rows)
        session.commit()
    short = {(a, b) for a in range(3) for b in range(3)}
    assert count(stage) == dict.fromkeys(short | {(2, 3), (3, 0)}, 1)
    edges.remove([(3, 0)])
    session.commit()
    assert count(stage) == dict.fromkeys([(0, 1), (0, 2), (1, 2), (2, 3)], 1)


# -- recovery ----------------------------------------------------------------------------------


def test_first_epoch_after_restart_is_incremental(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        edges, roots = session.input("edges", EDGES), session.input("roots", "node int")
        session.stage("reach", reachable(roots, edges))
        roots.insert([(1,)])
        edges.insert([(1, 2), (2, 3), (3, 2), (3, 4)])
        session.commit()
    with nosync_nb.open(tmp_path / "log") as session:
        assert session.recovery.recomputed == 0
        before = session.stats["touched"]
        session["edges"].remove([(3, 4)])
        session.commit()
        assert net(session["reach"]) == {(4,): -1}
        assert session.stats["touched"] - before < 30, "the loop was not run again"
        session["edges"].remove([(1, 2)])
        session.commit()
        assert count(session["reach"]) == {(1,): 1}


# -- work --------------------------------------------------------------------------------------


def test_work_of_loop_follows_change_not_size(tmp_path: Path) -> None:
    touched = []
    for size in (1_000, 10_000):
        rng = np.random.default_rng(1)
        with nosync_nb.open(tmp_path / f"log{size}", spark_rows=1 << 40) as session:
            edges, roots = session.input("edges", EDGES), session.input("roots", "node int")
            session.stage("reach", reachable(roots, edges))
            roots.insert([(0,)])
            made = rng.integers(0, size, (2, 5 * size)).astype(np.int32)
            edges.insert(pa.table({"src": made[0], "dst": made[1]}))
            session.commit()
            before = session.stats["touched"]
            for i in range(20):  # leaves: a new node behind node 0 comes and goes
                edges.insert([(0, size + i)])
                session.commit()
                edges.remove([(0, size + i)])
                session.commit()
            touched.append(session.stats["touched"] - before)
    assert touched[1] <= 2 * touched[0]


# -- what is refused ---------------------------------------------------------------------------


def refuses(session: Session, error: type[Exception], match: str, make: Callable[[], Any]) -> None:
    before = session.now, set(session.stages)
    with pytest.raises(error, match=match):
        make()
    assert (session.now, set(session.stages)) == before


def test_invalid_loops_are_refused_at_definition(session: Session, tmp_path: Path) -> None:
    edges, roots = session.input("edges", EDGES), session.input("roots", "node int")
    kept: list[Collection] = []

    def keeps(value: Collection) -> Collection:
        kept.append(value)
        return value.distinct()

    def case(error: type[Exception], match: str, make: Callable[[], Any]) -> None:
        refuses(session, error, match, make)

    case(StageError, "does not use its variable", lambda: roots.iterate(lambda r: roots))
    case(StageError, "rounds=0", lambda: roots.iterate(lambda r: r, rounds=0))
    case(StageError, "rounds=-1", lambda: roots.iterate(lambda r: r, rounds=-1))
    case(StageError, "rounds=True", lambda: roots.iterate(lambda r: r, rounds=True))
    case(StageError, "is not a function", lambda: roots.iterate(5))  # type: ignore[arg-type]
    case(StageError, "returned None", lambda: roots.iterate(lambda r: None))  # type: ignore[arg-type,return-value]
    case(SchemaError, "node int", lambda: roots.iterate(lambda r: r.select("node as other")))
    case(SchemaError, "schemas differ", lambda: edges.iterate(lambda e: e.select("src")))
    edges.iterate(keeps)
    case(StageError, "outside", lambda: roots.iterate(lambda r: kept[0].select("src as node")))
    case(StageError, "outside", lambda: session.stage("leaked", kept[0].filter("src > 1")))
    case(StageError, "outside", lambda: kept[0].rows())
    case(StageError, "outside", lambda: kept[0].iterate(lambda w: w.distinct()))
    inner: list[Collection] = []

    def nests(value: Collection) -> Collection:
        inner.append(
            value.select("src").iterate(lambda w: w.concat(value.select("dst")).distinct())
        )
        return value.distinct()

    edges.iterate(nests)
    case(StageError, "outside", lambda: inner[0].rows())
    case(
        StageError,
        "outside",
        lambda: roots.iterate(lambda r: r.concat(inner[0].select("src as node"))),
    )
    with nosync_nb.open(tmp_path / "other") as other:
        theirs = other.input("theirs", "node int")
        case(StageError, "another session", lambda: roots.iterate(lambda r: r.concat(theirs)))
    case(StageError, "a value for each", lambda: session.iterate(lambda a, b: a, a=roots, b=roots))
    case(StageError, "no variables", lambda: session.iterate(lambda: ()))


@pytest.mark.parametrize("what", ["insert", "commit", "define", "drop", "input"])
def test_body_may_only_describe(session: Session, what: str) -> None:
    numbers = session.inputs.get("numbers") or session.input("numbers", "n int")
    session.stage("kept", numbers.distinct())
    deeds: dict[str, Callable[[], Any]] = {
        "insert": lambda: numbers.insert([(1,)]),
        "commit": session.commit,
        "define": lambda: session.stage("more", numbers.filter("n > 1")),
        "drop": lambda: session.drop("kept"),
        "input": lambda: session.input("others", "n int"),
    }

    def body(value: Collection) -> Collection:
        deeds[what]()
        return value.distinct()

    for build in (
        lambda: numbers.iterate(body),
        lambda: session.iterate(lambda a: body(a), a=numbers),
        lambda: numbers.iterate(lambda v: v.iterate(body)),
    ):
        said = f"{what} inside the body of a loop is not possible"
        refuses(session, StageError, said, build)
    assert session.pending == {}
    assert set(session.inputs) == {"numbers"}
    deeds[what]()  # outside of the body nothing is refused


def test_body_cannot_read_its_variable(session: Session) -> None:
    numbers = session.input("numbers", "n int")
    other = session.input("other", "n int")
    for look in (
        lambda v: v.rows(),
        len,
        lambda v: v.select("n").to_pandas(),
        lambda v: v.map(lambda row: (row.n,)),
    ):
        body: Callable[[Collection], Any] = lambda v, look=look: look(v) and v  # noqa: E731
        refuses(
            session, StageError, "cannot be read in the body", lambda b=body: numbers.iterate(b)
        )
    numbers.iterate(lambda v: v.distinct() if not other.rows() else v)


def test_body_of_wrong_signature_names_expected_one(session: Session) -> None:
    a, b = session.input("a", "n int"), session.input("b", "n int")

    def case(error: type[Exception], match: str, make: Callable[[], Any]) -> None:
        refuses(session, error, match, make)

    one = "must accept one argument, its variable"
    case(StageError, rf"body <lambda>\(\) {one}", lambda: a.iterate(lambda: a))  # type: ignore[arg-type,misc]
    case(StageError, rf"body <lambda>\(v, w\) {one}", lambda: a.iterate(lambda v, w: v))  # type: ignore[arg-type,misc]
    two = "must accept its variables a, b by name"
    case(StageError, two, lambda: session.iterate(lambda x, y: (x, y), a=a, b=b))
    case(StageError, two, lambda: session.iterate(lambda a: a, a=a, b=b))
    case(StageError, "'rounds'", lambda: session.iterate(lambda rounds: rounds, rounds=a))  # type: ignore[arg-type]
    case(StageError, "returned None, not a", lambda: session.iterate(lambda a, b: None, a=a, b=b))
    case(StageError, "3 values, not a", lambda: session.iterate(lambda a, b: (a, b, a), a=a, b=b))
    case(
        StageError,
        "a dict with 'c' without 'b', not a value for each of a, b",
        lambda: session.iterate(lambda a, b: {"a": a, "c": b}, a=a, b=b),
    )
    case(StageError, "returned 5 for 'b'", lambda: session.iterate(lambda a, b: (a, 5), a=a, b=b))
    case(
        SchemaError,
        r"returns \(m int\) for 'b', its variable is \(n int\)",
        lambda: session.iterate(lambda a, b: (a, b.select("n as m")), a=a, b=b),
    )
    case(
        SchemaError,
        "value for 'b': the schemas differ",
        lambda: session.iterate(lambda a, b: (a, b.select("'x' as n")), a=a, b=b),
    )
    case(StageError, "a=5 is not a collection", lambda: session.iterate(lambda a: a, a=5))  # type: ignore[arg-type]
    for rounds in (0, -1, True, 1.5, "3"):
        made: Any = rounds
        case(StageError, f"rounds={rounds!r}", lambda m=made: a.iterate(lambda v: v, m))
        case(StageError, f"rounds={rounds!r}", lambda m=made: session.iterate(lambda a: a, m, a=a))


def test_loop_variable_may_have_any_other_name(session: Session, tmp_path: Path) -> None:
    a = session.input("a", "n int")
    for name in ("body", "self", "sources", "session"):
        found = session.iterate(lambda **v: {n: c.distinct() for n, c in v.items()}, **{name: a})
        assert list(found) == [name]
    with nosync_nb.open(tmp_path / "other") as other:
        theirs = other.input("theirs", "n int")
        with pytest.raises(StageError, match="iterate: b belongs to another session"):
            session.iterate(lambda a, b: (a, b), a=a, b=theirs)


def test_oscillating_loop_names_period_and_rows(session: Session) -> None:
    numbers = session.input("numbers", "n int")
    all_ = session.input("all", "n int")
    session.stage("flip", numbers.iterate(lambda v: all_.except_all(v)))
    all_.insert([(1,), (2,)])
    numbers.insert([(1,)])
    with pytest.raises(DivergenceError, match=r"'flip'.*period 2.*\((1|2),\)"):
        session.commit()
    assert session.now == 0
    session.discard()
    assert count(session["flip"]) == {}
    all_.insert([(3,)])
    numbers.insert([(3,)])
    with pytest.raises(DivergenceError):
        session.commit()


def test_growing_loop_is_stopped(session: Session) -> None:
    numbers = session.input("numbers", "n int")
    session.stage("grow", numbers.iterate(lambda v: v.select("n + 1 as n").concat(numbers)))
    numbers.insert([(0,)])
    with pytest.raises(DivergenceError, match=r"'grow'.*did not converge in 10001 rounds"):
        session.commit()
    assert session.now == 0


def test_oscillation_in_later_epoch_is_found(session: Session) -> None:
    edges = session.input("edges", EDGES)
    gate = session.input("gate", "n int")

    def body(value: Collection) -> Collection:
        return edges.select("src as n").join(gate, on="n", how="semi").except_all(value)

    session.stage("flip", gate.filter("n < 0").iterate(body))
    edges.insert([(1, 1)])
    session.commit()
    gate.insert([(1,)])
    with pytest.raises(DivergenceError, match="period 2"):
        session.commit()
    assert session.now == 1
    session.discard()
    gate.insert([(2,)])
    session.commit()
    assert count(session["flip"]) == {}


def test_each_round_runs_once(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[tuple[int, ...]] = []
    begin = DivergenceDetector.begin_round

    def noted(watch: DivergenceDetector, time: tuple[int, ...]) -> None:
        rounds.append(time)
        begin(watch, time)

    monkeypatch.setattr(DivergenceDetector, "begin_round", noted)
    numbers = session.input("numbers", "n int")
    session.stage(
        "nested",
        numbers.iterate(
            lambda v: (
                v.iterate(lambda w: w.select("n - 1 as n").filter("n > 0").concat(v).distinct())
                .filter("n % 2 = 1")
                .concat(numbers)
                .distinct()
            )
        ),
    )
    numbers.insert([(4,)])
    session.commit()
    assert len(rounds) == len(set(rounds))
    assert max(r for r in rounds if len(r) == 1) == (1,)


def test_loop_may_take_thousands_of_rounds(session: Session) -> None:
    numbers = session.input("numbers", "n int")
    session.stage("down", numbers.iterate(lambda v: v.select("if(n > 0, n - 1, n) as n")))
    numbers.insert([(9_000,)])
    session.commit()
    assert count(session["down"]) == {(0,): 1}


@pytest.mark.spark
def test_row_operators_of_body_run_on_executors(tmp_path: Path, spark: Any) -> None:
    found = []
    for rows_min in (0, 1 << 40):
        path = tmp_path / str(rows_min)
        with nosync_nb.open(path, spark=spark, spark_rows=rows_min) as session:
            numbers = session.input("numbers", "n bigint")

            def body(value: Collection) -> Collection:
                pairs = value.join(value.rename({"n": "m"}).with_columns(k="m % 2"), on={"n": "m"})
                texts = pairs.select("cast(n + k + 1 as string) as t", "n", "k")
                return (
                    texts.map(lambda row: (int(row.t),), "n bigint")
                    .filter("n < 12")
                    .concat(value)
                    .distinct()
                )

            session.stage("grown", numbers.iterate(body))
            numbers.insert([(1,), (2,)])
            session.commit()
            found.append(count(session["grown"]))
    assert found[0] == found[1]
    assert len(found[0]) > 5


# -- joins in bodies -------------------------------------------------------------------------------


@pytest.mark.parametrize("left", ["the loop", "what is outside"])
@pytest.mark.parametrize("first", [True, False])
def test_both_sides_of_join_in_body_may_change_in_one_epoch(
    session: Session, left: str, first: bool
) -> None:
    edges, roots = session.input("edges", EDGES), session.input("roots", "node int")

    def body(r: Collection) -> Collection:
        joined = r.join(edges, on={"node": "src"})
        if left != "the loop":
            joined = edges.join(r, on={"src": "node"})
        return joined.select("dst as node").concat(roots).distinct()

    stage = session.stage("reach", roots.iterate(body))
    if not first:
        session.commit()
    roots.insert([(1,)])
    edges.insert([(1, 2), (2, 3)])
    session.commit()
    assert count(stage) == {(1,): 1, (2,): 1, (3,): 1}
    roots.insert([(7,)])
    edges.insert([(7, 8), (8, 9)])
    edges.remove([(2, 3)])
    session.commit()
    assert count(stage) == {(1,): 1, (2,): 1, (7,): 1, (8,): 1, (9,): 1}
    roots.remove([(1,), (7,)])
    edges.remove([(1, 2), (7, 8), (8, 9)])
    session.commit()
    assert count(stage) == {}
    assert state_rows(session, "reach") == 0


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_global_aggregate_in_body_has_row_from_first_round(session: Session, rounds: int) -> None:
    given = session.input("given", "node int")
    counted = session.stage(
        "counted",
        given.iterate(
            lambda r: r.group_by().agg(n="count(*)").select("cast(n + 3 as int) as node"),
            rounds=rounds,
        ),
    )
    session.commit()
    assert count(counted) == {(3 if rounds == 1 else 4,): 1}
    given.insert([(7,), (8,)])
    session.commit()
    assert count(counted) == {(5 if rounds == 1 else 4,): 1}
    given.remove([(7,), (8,)])
    session.commit()
    assert count(counted) == {(3 if rounds == 1 else 4,): 1}
