"""Graph algorithms: at every epoch equal to networkx, or to a plain loop over all edges."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pytest
from internals import traces_of
from soak import tried

import nosync_nb
from nosync_nb import Collection, SchemaError, Session, StageError
from nosync_nb.collections.library import graphs
from nosync_nb.operators.iterate import loop

Edge = tuple[Any, Any]
Rows = set[tuple[Any, ...]]
LENGTHS = "src int, dst int, weight int"
NODES = 12
EDITS = tried(300, soak=3000)


pytestmark = pytest.mark.usefixtures("no_disk")


def distinct_rows(collection: Collection) -> Rows:
    """The rows, which must be distinct."""
    found = [tuple(row) for row in collection.rows()]
    assert len(found) == len(set(found))
    return set(found)


# -- what they must give ---------------------------------------------------------------------------


def digraph(rows: Counter[Edge], nodes: Rows) -> nx.DiGraph:
    """The edges with both ends, the shortest of parallel ones, and the nodes."""
    graph: nx.DiGraph = nx.DiGraph()
    graph.add_nodes_from(node for (node,) in nodes)
    for src, dst, weight in rows:
        if src is None or dst is None:
            continue
        graph.add_edge(src, dst)
        if weight is not None:
            known = graph.edges[src, dst].get("weight", weight)
            graph.edges[src, dst]["weight"] = min(weight, known)
    return graph


def undirected_graph(graph: nx.DiGraph) -> nx.Graph:
    """The undirected graph without loops."""
    both: nx.Graph = nx.Graph(graph)
    both.remove_edges_from(list(nx.selfloop_edges(both)))
    return both


def path_lengths(graph: nx.DiGraph, roots: Rows, weight: Any) -> Rows:
    """Distances from the nearest root; edges without length are skipped."""
    graph = graph.copy()
    starts = {node for (node,) in roots}
    graph.add_nodes_from(starts)
    if not starts:
        return set()
    return set(nx.multi_source_dijkstra_path_length(graph, starts, weight=weight).items())


def components(found: Any) -> Rows:
    """Sets of nodes, each named by its least."""
    return {(node, min(each)) for each in found for node in each}


def ranks(graph: nx.DiGraph, rounds: int) -> Rows:
    """PageRank as its docstring says."""
    rank = dict.fromkeys(graph, 1_000_000)
    for _ in range(rounds):
        following = dict.fromkeys(graph, 150_000)
        for src, dst in graph.edges:
            following[dst] += rank[src] * 85 // (graph.out_degree(src) * 100)
        rank = following
    return set(rank.items())


def propagated_labels(graph: nx.DiGraph, rounds: int) -> Rows:
    """Label propagation as its docstring says."""
    both = undirected_graph(graph)
    label = {node: node for node in both}
    for _ in range(rounds):
        following = {}
        for node in both:
            votes = Counter([label[node], *(label[other] for other in both[node])])
            most = max(votes.values())
            following[node] = min(each for each, n in votes.items() if n == most)
        label = following
    return set(label.items())


def cliques(graph: nx.DiGraph) -> Rows:
    """Triangles, each in order."""
    found = nx.enumerate_all_cliques(undirected_graph(graph))
    return {tuple(sorted(each)) for each in found if len(each) == 3}


def k_core_nodes(graph: nx.DiGraph, k: int) -> Rows:
    return {(node,) for node in nx.k_core(undirected_graph(graph), k)}


Build = Callable[[Collection, Collection, Collection], Collection]
Oracle = Callable[[nx.DiGraph, Rows], Rows]
ALGORITHMS: Mapping[str, tuple[Build, Oracle]] = {
    "reachable": (
        lambda edges, nodes, roots: graphs.reachable(edges, roots),
        lambda graph, roots: {row[:1] for row in path_lengths(graph, roots, None)},
    ),
    "distances": (
        lambda edges, nodes, roots: graphs.distances(edges, roots),
        lambda graph, roots: path_lengths(graph, roots, None),
    ),
    "lengths": (
        lambda edges, nodes, roots: graphs.distances(edges, roots, "weight"),
        lambda graph, roots: path_lengths(graph, roots, lambda src, dst, edge: edge.get("weight")),
    ),
    "connected": (
        lambda edges, nodes, roots: graphs.connected_components(edges, nodes),
        lambda graph, roots: components(nx.weakly_connected_components(graph)),
    ),
    "strong": (
        lambda edges, nodes, roots: graphs.strongly_connected_components(edges, nodes),
        lambda graph, roots: components(nx.strongly_connected_components(graph)),
    ),
    "pagerank": (
        lambda edges, nodes, roots: graphs.pagerank(edges, nodes, rounds=8),
        lambda graph, roots: ranks(graph, 8),
    ),
    "triangles": (
        lambda edges, nodes, roots: graphs.triangles(edges),
        lambda graph, roots: cliques(graph),
    ),
    "core": (
        lambda edges, nodes, roots: graphs.k_core(edges, 3),
        lambda graph, roots: k_core_nodes(graph, 3),
    ),
    "labels": (
        lambda edges, nodes, roots: graphs.label_propagation(edges, nodes),
        lambda graph, roots: propagated_labels(graph, 5),
    ),
}


# -- edits -----------------------------------------------------------------------------------------


class Edits:
    """A graph under random edits: the rows of an input, and its next changes.

    The number of rows stays around `size`. Some rows are duplicates, some are loops, and some have
    one end only.
    """

    def __init__(self, seed: int, size: int) -> None:
        self.random = random.Random(seed)
        self.size = size
        self.rows: Counter[Edge] = Counter()

    def _new(self) -> tuple[Any, ...]:
        if self.rows and self.random.random() < 0.1:
            return self.random.choice(sorted(self.rows, key=repr))
        ends: list[Any] = [self.random.randrange(NODES) for _ in range(2)]
        if self.random.random() < 0.03:
            ends[self.random.randrange(2)] = None
        weight = None if self.random.random() < 0.03 else self.random.randint(1, 9)
        return (*ends, weight)

    def apply(self, edges: Any, count: int) -> None:
        for _ in range(count):
            if self.random.randrange(2 * self.size) >= self.rows.total():
                row = self._new()
                self.rows[row] += 1
                edges.insert([row])
            else:
                row = self.random.choice(sorted(self.rows.elements(), key=repr))
                self.rows -= Counter([row])
                edges.remove([row])


def stored_rows(session: Session) -> int:
    return sum(len(trace.consolidated()) for trace in traces_of(session).values())


def define(session: Session, names: Any = ALGORITHMS) -> None:
    edges = session.input("edges", LENGTHS)
    nodes, roots = session.input("nodes", "node int"), session.input("roots", "node int")
    for name in names:
        session.stage(name, ALGORITHMS[name][0](edges, nodes, roots))


def compare(session: Session, edits: Edits, nodes: Rows, roots: Rows) -> None:
    graph = digraph(edits.rows, nodes)
    for name in ALGORITHMS:
        if name in session.stages:
            assert distinct_rows(session[name]) == ALGORITHMS[name][1](graph, roots), name


@pytest.mark.filterwarnings("ignore:.*before the restart")
@pytest.mark.parametrize(("seed", "size"), [(1, 10), (2, 20), (3, 40)])
def test_algorithms_follow_random_edits_across_restarts_and_leave_no_state(
    seed: int, size: int, tmp_path: Path
) -> None:
    edits = Edits(seed, size)
    nodes: Rows = {(0,), (NODES + 1,)}
    roots: Rows = {(0,), (NODES + 2,)}
    with nosync_nb.open(tmp_path / "log") as session:
        define(session)
        session["nodes"].insert(sorted(nodes))
        session["roots"].insert(sorted(roots))
        session.commit()
    for _ in range(3):
        with nosync_nb.open(tmp_path / "log") as session:
            assert session.recovery.recomputed == 0
            for _ in range(8):
                edits.apply(session["edges"], edits.random.randint(1, 6))
                session.commit()
                compare(session, edits, nodes, roots)
    with nosync_nb.open(tmp_path / "log") as session:
        assert stored_rows(session) > 0
        for each in ("edges", "nodes", "roots"):
            session[each].clear()
        session.commit()
        assert [name for name in ALGORITHMS if distinct_rows(session[name])] == []
        assert stored_rows(session) == 0


@pytest.mark.parametrize("name", ["strong", "core"])
def test_hundreds_of_random_edits_equal_networkx(name: str, session: Session) -> None:
    """Each edit is an epoch; the graph has the size at which parts merge."""
    edits = Edits(seed=len(name), size=2 * NODES if name == "core" else 3 * NODES // 2)
    define(session, [name])
    changed, before = 0, set()
    for epoch in range(1, EDITS + 1):
        edits.apply(session["edges"], 1)
        assert session.commit() == epoch
        compare(session, edits, set(), set())
        changed += distinct_rows(session[name]) != before
        before = distinct_rows(session[name])
    assert changed > EDITS // 20, "the edits did not try much"


# -- what is not random ----------------------------------------------------------------------------


def test_nodes_may_be_of_any_type_and_other_columns_are_ignored(session: Session) -> None:
    flights = session.input("flights", "carrier string, src string, dst string")
    start = session.input("start", "node string, why string")
    reached = session.stage("reached", graphs.reachable(flights, start))
    parts = session.stage("parts", graphs.connected_components(flights))
    start.insert([("JFK", "home"), ("JFK", "work"), (None, "nowhere")])
    flights.insert([("AA", "JFK", "LAX"), ("UA", "JFK", "LAX"), ("UA", "ORD", "BOS")])
    session.commit()
    assert distinct_rows(reached) == {("JFK",), ("LAX",)}
    assert distinct_rows(parts) == {("JFK", "JFK"), ("LAX", "JFK"), ("ORD", "BOS"), ("BOS", "BOS")}
    flights.remove([("AA", "JFK", "LAX")])
    session.commit()
    assert distinct_rows(reached) == {("JFK",), ("LAX",)}, "another flight is left"


def test_lengths_may_be_doubles_and_stay_exact(session: Session) -> None:
    edges = session.input("edges", "src int, dst int, km double")
    roots = session.input("roots", "node int")
    far = session.stage("far", graphs.distances(edges, roots, "km"))
    roots.insert([(0,)])
    edges.insert([(0, 1, 0.1), (1, 2, 0.2), (0, 2, 0.5)])
    session.commit()
    first = distinct_rows(far)
    assert first == {(0, 0.0), (1, 0.1), (2, 0.1 + 0.2)}
    edges.remove([(0, 1, 0.1)])
    session.commit()
    assert distinct_rows(far) == {(0, 0.0), (2, 0.5)}
    edges.insert([(0, 1, 0.1)])
    session.commit()
    assert distinct_rows(far) == first


def test_negative_length_is_accepted_without_negative_cycle(session: Session) -> None:
    edges = session.input("edges", LENGTHS)
    roots = session.input("roots", "node int")
    far = session.stage("far", graphs.distances(edges, roots, "weight"))
    roots.insert([(0,)])
    edges.insert([(0, 1, 5), (1, 2, -3), (2, 1, 3)])
    session.commit()
    assert distinct_rows(far) == {(0, 0), (1, 5), (2, 2)}


def test_pagerank_approximates_stationary_distribution(session: Session) -> None:
    graph = nx.gnp_random_graph(30, 0.15, seed=7, directed=True)
    nx.add_cycle(graph, range(30))  # no page without links
    edges = session.input("edges", "src int, dst int")
    stage = session.stage("ranks", graphs.pagerank(edges, rounds=80))
    edges.insert(sorted(graph.edges))
    session.commit()
    values, vectors = np.linalg.eig(nx.google_matrix(graph, alpha=0.85).T)
    wanted = np.real(vectors[:, np.argmax(np.real(values))])
    wanted = wanted / wanted.sum() * len(graph)
    found = dict(distinct_rows(stage))
    for place, node in enumerate(graph):
        assert abs(found[node] / 1_000_000 - wanted[place]) < 1e-4


def sample_graph() -> nx.DiGraph:
    """A small graph with some unreachable pairs."""
    return nx.gnp_random_graph(10, 0.3, seed=3, directed=True)


def graph_copies(count: int) -> pa.Table:
    """Copies of one small graph with their own nodes."""
    src, dst = np.array(sorted(sample_graph().edges)).T
    first = 100 * np.arange(count)[:, None]
    return pa.table({"src": (first + src).ravel(), "dst": (first + dst).ravel()})


@pytest.mark.parametrize(
    "few_rows", [pytest.param(-1, id="batches"), pytest.param(1 << 40, id="rows")]
)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_work_is_independent_of_distant_parts(
    name: str, few_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The edges of one of many equal parts change: the work does not depend on their number."""
    monkeypatch.setattr(loop, "FEW_ROWS", few_rows)
    touched = []
    for count in (20, 200):
        with nosync_nb.open(tmp_path / f"log{count}", spark_rows=1 << 40) as session:
            edges = session.input("edges", "src bigint, dst bigint")
            weighted = edges.with_columns(weight="1 + abs(src - dst)")
            nodes = session.input("nodes", "node bigint")
            roots = session.input("roots", "node bigint")
            session.stage(name, ALGORITHMS[name][0](weighted, nodes, roots))
            edges.insert(graph_copies(count))
            roots.insert([(100 * number,) for number in range(count)])
            session.commit()
            size = len(session[name])
            assert size >= count
            before = session.stats["touched"]
            for src, dst in sorted(sample_graph().edges):
                edges.remove([(src, dst)])
                session.commit()
                edges.insert([(src, dst)])
                session.commit()
            touched.append(session.stats["touched"] - before)
            assert len(session[name]) == size
    assert touched[1] == touched[0] > 0


@pytest.mark.parametrize("name", ["reachable", "distances", "connected", "strong", "core"])
def test_leaf_of_large_graph_is_small_change(name: str, tmp_path: Path) -> None:
    touched = []
    for size in (100, 1000):
        with nosync_nb.open(tmp_path / f"log{size}", spark_rows=1 << 40) as session:
            edges = session.input("edges", "src bigint, dst bigint")
            nodes = session.input("nodes", "node bigint")
            roots = session.input("roots", "node bigint")
            session.stage(name, ALGORITHMS[name][0](edges, nodes, roots))
            src, dst = np.random.default_rng(1).integers(0, size, (2, 4 * size))
            edges.insert(pa.table({"src": src, "dst": dst}))
            roots.insert([(0,)])
            session.commit()
            before = session.stats["touched"]
            for number in range(10):
                edges.insert([(0, size + number)])
                session.commit()
                edges.remove([(0, size + number)])
                session.commit()
            touched.append((session.stats["touched"] - before) / 20)
    assert touched[1] <= 2 * touched[0]
    assert touched[1] <= 1000


# -- what is refused -------------------------------------------------------------------------------


OVER_EDGES: dict[str, Callable[[Any], Any]] = {  # every algorithm, on some edges
    "reachable": lambda e: graphs.reachable(e, e.select("src AS node")),
    "distances": lambda e: graphs.distances(e, e.select("src AS node")),
    "connected_components": graphs.connected_components,
    "strongly_connected_components": graphs.strongly_connected_components,
    "pagerank": graphs.pagerank,
    "triangles": graphs.triangles,
    "k_core": lambda e: graphs.k_core(e, 2),
    "label_propagation": graphs.label_propagation,
}
WITH_NODES: dict[str, Callable[[Any, Any], Any]] = {  # those that take nodes besides
    "reachable: roots": graphs.reachable,
    "distances: roots": graphs.distances,
    "connected_components: nodes": graphs.connected_components,
    "strongly_connected_components: nodes": graphs.strongly_connected_components,
    "pagerank: nodes": graphs.pagerank,
    "label_propagation: nodes": graphs.label_propagation,
}


class NotACollection:
    """An object with the methods of a collection."""

    def __repr__(self) -> str:
        return "<a table>"

    def select(self, *_: str) -> NotACollection:
        return self


@pytest.mark.parametrize("name", OVER_EDGES)
def test_invalid_edges_are_refused_with_name_of_algorithm(session: Session, name: str) -> None:
    run = OVER_EDGES[name]
    other = session.input("other", "src int, target int, node int")
    maps = session.input("maps", "src map<string,int>, dst map<string,int>")
    texts = session.input("texts", "src int, dst string")
    for given, said, hint in (
        (NotACollection(), "edges=<a table> is not a collection", "rows (src, dst)"),
        (other, "edges has no column 'dst', its columns are src, target, node", "AS dst"),
        (maps, "src is map<string,int> in edges, and a map cannot be a node", "src['key']"),
        (texts, "src is int and dst is string in the edges", "cast(src as string)"),
    ):
        with pytest.raises(SchemaError) as caught:
            run(given)
        assert f"{name}: {said}" == str(caught.value)
        assert hint in str(caught.value.hint)


@pytest.mark.parametrize("name", WITH_NODES)
def test_invalid_nodes_are_refused_with_name_of_argument(
    session: Session, name: str, tmp_path: Path
) -> None:
    run = WITH_NODES[name]
    what, argument = name.split(": ")
    edges = session.input("edges", "src int, dst int")
    with pytest.raises(SchemaError, match=rf"^{name}=\[1, 2\] is not a collection"):
        run(edges, [1, 2])
    with pytest.raises(SchemaError, match=f"^{name} has no column 'node', its columns are src"):
        run(edges, edges)
    with pytest.raises(SchemaError, match=f"^{what}: node is string in {argument} and int in the"):
        run(edges, edges.select("'a' AS node"))
    with nosync_nb.open(tmp_path / "other") as other:
        theirs = other.input("theirs", "node int")
        with pytest.raises(StageError, match=f"^{name} belongs to another session"):
            run(edges, theirs)


def test_invalid_numbers_and_weights_are_refused(session: Session) -> None:
    edges = session.input("edges", "src int, dst int, km string, toll decimal(5,2)")
    roots = edges.select("src AS node")
    given: Any
    for given in (0, 100, 0.85, "85", True):
        with pytest.raises(StageError, match=f"^pagerank: damping_percent={given!r} is not a"):
            graphs.pagerank(edges, damping_percent=given)
    for given in (0, 2.5, "3", None):
        with pytest.raises(StageError, match=f"^pagerank: rounds={given!r} is not a"):
            graphs.pagerank(edges, rounds=given)
        with pytest.raises(StageError, match=f"^label_propagation: rounds={given!r} is not a"):
            graphs.label_propagation(edges, rounds=given)
        with pytest.raises(StageError, match=f"^k_core: k={given!r} is not an integer of 1"):
            graphs.k_core(edges, given)
    with pytest.raises(SchemaError, match=r"^distances: edges has no column 'miles'"):
        graphs.distances(edges, roots, "miles")
    with pytest.raises(SchemaError, match=r"^distances: weight=5 is not the name of a column"):
        graphs.distances(edges, roots, 5)  # type: ignore[arg-type]
    for column, kind in (("km", "string"), ("toll", "decimal")):
        with pytest.raises(SchemaError, match=f"^distances: weight '{column}' is {kind}"):
            graphs.distances(edges, roots, column)
