"""Incremental compilation: a new definition reuses the graph, and gives what a full one gives."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from internals import catalog_of, services_of

from nosync_nb import Collection, NosyncError, Session
from nosync_nb.collections.definition import Definition
from nosync_nb.dataflow import compiler
from nosync_nb.dataflow.graph import Graph, Node
from nosync_nb.session.backfill import execute
from nosync_nb.store.records import json_text

ROWS = [(i % 10, i) for i in range(100)]


@pytest.fixture
def base(session: Session) -> Collection:
    rows = session.input("base", "k int, v int")
    rows.insert(ROWS)
    names = session.input("names", "k int, name int")
    names.insert([(k, k) for k in range(10)])
    session.commit()
    return rows


# -- what it costs -----------------------------------------------------------------------------


def chain(session: Session, base: Collection, i: int) -> Collection:
    return (session[f"s{i - 1}"] if i else base).filter(f"v > {i - 1000}")


def grouped_sum(session: Session, base: Collection, i: int) -> Collection:
    return base.group_by("k").agg(x=f"sum(v + {i})")


def joins(session: Session, base: Collection, i: int) -> Collection:
    """Each stage requests a new arrangement of the one before."""
    read = session[f"s{i - 1}"] if i else base
    return read.join(session["names"], on="k").select("k", "v")


SHAPES = {"chain": chain, "fan": grouped_sum, "joins": joins}
Shape = Callable[[Session, Collection, int], Collection]


@contextmanager
def counting() -> Iterator[list[int]]:
    """Counts the calls of Python functions, with each step of a generator."""
    calls = [0]

    def count(frame: FrameType, event: str, argument: Any) -> None:
        calls[0] += event == "call"

    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def fewest_calls(define: Callable[[int], Any], numbers: range) -> int:
    """The fewest calls that one of some definitions takes; some of them begin a segment."""
    most = []
    for i in numbers:
        with counting() as calls:
            define(i)
        most.append(calls[0])
    return min(most)


def costs(session: Session, define: Callable[[int], Any], at: tuple[int, int]) -> list[int]:
    """The cost of a definition among few stages, and among many."""
    found, count = [], 0
    for stages in at:
        for i in range(count, stages):
            define(i)
        count = stages + 4
        found.append(fewest_calls(define, range(stages, count)))
    return found


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_cost_of_definition_is_independent_of_other_stages(
    session: Session, base: Collection, shape: Shape
) -> None:
    def define(i: int) -> None:
        session.stage(f"s{i}", shape(session, base, i))

    few, many = costs(session, define, (50, 100))
    assert many <= few + 20


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_cost_of_equal_definition_is_independent_of_other_stages(
    session: Session, base: Collection, shape: Shape
) -> None:
    def define(i: int) -> None:
        session.stage(f"s{i}", shape(session, base, i))

    counts = []
    for stages in (50, 100):
        for i in range(stages - 50, stages):
            define(i)
        counts.append(fewest_calls(define, range(stages - 10, stages)))
    few, many = counts
    assert many <= few + 20


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_definition_compiles_and_serialises_only_what_it_adds(
    session: Session, base: Collection, shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    added, described = [], []
    add, piece = compiler.Compiler.add, json_text.JsonPiece.__init__
    monkeypatch.setattr(
        compiler.Compiler, "add", lambda self, stage: added.append(stage) or add(self, stage)
    )
    monkeypatch.setattr(
        json_text.JsonPiece,
        "__init__",
        lambda self, made: described.append(made) or piece(self, made),
    )
    for stages in (50, 100):
        for i in range(stages - 50, stages):
            session.stage(f"s{i}", shape(session, base, i))
        added.clear()
        described.clear()
        session.stage(f"s{stages}", shape(session, base, stages))
        assert [stage.name for stage in added] == [f"s{stages}"]
        assert len(described) <= 4  # a stage, its nodes, and the node whose trace it reads
        session.drop(f"s{stages}")


# -- what it gives -----------------------------------------------------------------------------


def node_of(graph: Graph, old: Graph, node: Node) -> tuple[Any, ...]:
    """The facts of a node that do not depend on new numbers."""
    traces = {number for each in old for number, _ in each.layouts()}
    logs = {each.log for each in old}
    return (
        node.id if node.id in old.nodes else None,
        node.types,
        node.log if node.log in logs else node.log is None,
        {layout: n if n in traces else None for layout, n in node.traces.items()},
        [n if n in traces else None for n in node.state],
        (node.plan, node.frozen, node.stopped),
        [(graph.nodes[i].fingerprint, graph.nodes[i].name) for i in node.inputs],
        type(node.operator),
    )


def nodes_of(graph: Graph, old: Graph) -> dict[tuple[str, str | None], tuple[Any, ...]]:
    """The nodes of a graph, each after its inputs."""
    seen: set[int] = set()
    nodes = {}
    for node in graph:
        assert seen.issuperset(node.inputs)
        seen.add(node.id)
        nodes[node.fingerprint, node.name] = node_of(graph, old, node)
    assert len(nodes) == len(graph.nodes)
    return nodes


def wiring_of(graph: Graph) -> list[Any]:
    """The wiring of a graph, independent of the numbers of its nodes."""
    wiring = graph.wiring
    assert wiring is not None
    what = {node.id: (node.fingerprint, node.name) for node in graph}
    return [
        wiring.stages,
        wiring.prints,
        {fingerprint: what[i] for fingerprint, i in wiring.parts.items()},
        {what[i]: count for i, count in wiring.readers.items()},
        {what[i]: counts for i, counts in wiring.wanted.items() if counts},
        {what[i]: {(what[j], layout) for j, layout in some} for i, some in wiring.asked.items()},
    ]


class Compared:
    """Compiles incrementally, and compares each graph with a full compilation."""

    def __init__(self) -> None:
        self.count = 0
        self.compiled = execute.compile_catalog

    def __call__(self, catalog: Any, old: Graph, types: Any, **how: Any) -> Graph:
        before = [(node, dict(vars(node)), dict(node.traces)) for node in old]
        wired = None if old.wiring is None else [dict(each) for each in old.wiring]
        graph = self.compiled(catalog, old, types, **how)
        assert before == [(node, vars(node), node.traces) for node in old]
        if old.wiring is not None and graph.wiring is not None and not how["extended"]:
            assert wired == [*old.wiring]
            alone = Graph(old.nodes.values(), old.numbers, old.made)
            whole = self.compiled(catalog, alone, types, **how)
            assert nodes_of(whole, old) == nodes_of(graph, old)
            assert wiring_of(whole) == wiring_of(graph)
            assert graph.named == {node.name: node for node in graph if node.name}
            self.count += 1
        return graph


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Compared:
    made = Compared()
    monkeypatch.setattr(execute, "compile_catalog", made)
    return made


@pytest.mark.parametrize("edit", ["drop", "edit", "drop the reader, then edit"])
def test_one_of_two_equal_stages_may_be_dropped_or_edited(
    session: Session, base: Collection, edit: str
) -> None:
    for name in ("a", "b"):
        session.stage(name, base.filter("v > 90"))
    session.stage("first", session["a"].select("v").distinct().filter("v > 91"))
    second = session.stage(
        "second", session["b"].select("v").distinct().group_by().agg(n="count(*)")
    )
    if edit != "edit":
        session.drop("first")
    if edit == "drop":
        session.drop("a")
    else:
        session.stage("a", base.filter("v > 95"))
    session.inputs["base"].insert([(1, 1000)])
    session.commit()
    assert second.rows() == [(10,)]


def two_readers(base: Collection, *, once: bool, stateful: bool) -> Collection:
    """Two readers of a row-wise part, which is described once or twice."""
    first = base.select("k", "v + 1 AS v")
    second = first if once else base.select("k", "v + 1 AS v")
    few, many = first.filter("v > 50"), second.filter("v > 20")
    if stateful:
        few, many = (each.distinct().group_by("k").agg(v="max(v)") for each in (few, many))
    return few.concat(many)


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_repeated_parts_equal_shared_parts(
    session: Session, base: Collection, first: bool, kept: bool, stateful: bool
) -> None:
    """A part with one reader is fused with it; a part with two readers is a node."""
    forms = {name: name == "a" for name in ("a", "b")}
    for name, once in forms.items():
        made = two_readers(base, once=once == first, stateful=stateful)
        session.stage(name, made, nondeterministic=kept)
    for step, turned in enumerate([False, True, True]):
        for name, once in forms.items():
            made = two_readers(base, once=(once == first) != turned, stateful=stateful)
            [report] = session.define({name: made}, nondeterministic=kept)
            assert report.status == "unchanged"
        session.inputs["base"].insert([(step, 60 + step)])
        session.inputs["base"].remove([ROWS[30 + step]])
        session.commit()
        wanted = sorted(two_readers(base, once=True, stateful=stateful).rows())
        assert sorted(session["a"].rows()) == sorted(session["b"].rows()) == wanted
        session.rename("a", "c")  # all is compiled, in another order
        session.rename("c", "a")
    session.drop("a")
    session.inputs["base"].remove([ROWS[60]])
    session.commit()
    wanted = sorted(two_readers(base, once=False, stateful=stateful).rows())
    assert sorted(session["b"].rows()) == wanted


def random_stage(session: Session, rng: random.Random, name: str) -> Collection:
    """A stage over others, often with a common part."""
    names = [each for each in (*session.stages, "base") if each != name]
    read = session[rng.choice(names)].select("k", "v").filter(f"v > {rng.randrange(3)}")
    match rng.randrange(6):
        case 0:
            return read
        case 5:  # equal to others of another name
            return session["base"].filter("v > 1")
        case 1:
            return read.group_by("k").agg(v=f"{rng.choice(['sum', 'max'])}(v)")
        case 2:
            return read.join(session["names"], on="k").select("k", "v")
        case 3:
            return read.distinct().group_by("k").agg(v="min(v)")
        case _:
            return read.concat(session[rng.choice(names)].select("k", "v")).distinct()


def random_step(session: Session, rng: random.Random, step: int) -> None:
    stages = list(session.stages)
    name = f"s{step}" if not stages or rng.random() < 0.5 else rng.choice(stages)
    kind = rng.randrange(10)
    if kind < 6:
        again = rng.random() < 0.1
        session.define({name: random_stage(session, rng, name)}, again=again)
    elif kind == 6:
        session.drop(name if name in stages else "base_", cascade=True)
    elif kind == 7:
        session.rename(name, f"r{step}")
    else:
        session.inputs["base"].insert([(step % 10, step)])
        session.commit()


@pytest.mark.parametrize("seed", range(8))
def test_incremental_graph_equals_full_compilation(
    session: Session, base: Collection, compared: Compared, seed: int
) -> None:
    rng = random.Random(seed)
    for step in range(40):
        try:
            random_step(session, rng, step)
        except NosyncError:  # a circle, other columns, or a name that is taken or not there
            continue
    assert compared.count > 5
    for name, stage in catalog_of(session).items():
        if stage.live and (tree := stage.definition) is not None:
            parts = Definition(tree.op, tree.schema, tree.inputs, tree.params, tree.captured)
            unnamed = Collection(services_of(session).host, parts)
            assert sorted(unnamed.rows()) == sorted(session[name].rows())
