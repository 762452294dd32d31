"""Graph algorithms: functions from collections to a collection, built from public operators only.

Edges are rows (src, dst); both columns have the same orderable type, and further columns are
ignored. All functions treat unusual edges alike: duplicates count once, and an edge with a null end
is ignored. Nodes are the ends of the edges. A node without edges must be passed explicitly: where
that matters, `nodes` takes rows (node), and the result includes them. A node whose only edge leads
to itself is a node like any other. In undirected algorithms an edge and its reverse are one edge,
and edges from a node to itself have no effect.

The functions are lazy, like operators. If the result is named as a stage, it is maintained
incrementally as the edges change. The cost of an epoch is the number of changes in each round. Most
edges cause few changes, but an edge that connects two halves of a graph can change half the graph.
Parts that do not depend on a round (distinct edges, degrees, neighbours) are outside of the loops
and arranged once.

Examples:
    >>> nosync.graphs.triangles(links).rows()
    [Row(a=1, b=2, c=3)]
"""

from __future__ import annotations

import sys
from typing import NoReturn

from nosync_nb.collections.collection import Collection
from nosync_nb.collections.library.edges import (
    all_nodes,
    each_edge,
    named_nodes,
    neighbours,
    nodes_of,
    upwards,
    weighted,
    whole,
)

MILLION = 1_000_000
"""The rank of an average page; see `pagerank`."""


def reachable(edges: Collection, roots: Collection) -> Collection:
    """The nodes that can be reached from some nodes along edges, including these nodes.

    Args:
        edges: rows (src, dst).
        roots: rows (node), with the type of the edges' ends; they need not have edges.

    Returns:
        rows (node), each once.

    Cost: the first run follows each reachable edge once. The number of rounds is the distance of
    the farthest node. A later epoch follows the edges of nodes that become reachable or
    unreachable, or whose distance changes.
    Ends: always, because each node is reached only once.
    Source: McSherry et al., Differential dataflow, CIDR 2013.

    Examples:
        >>> roots = links.filter("src = 1").select("src AS node")
        >>> nosync.graphs.reachable(links, roots).rows()
        [Row(node=1), Row(node=2), Row(node=3)]
    """
    links, start = each_edge("reachable", edges), nodes_of("reachable", "roots", edges, roots)
    return start.iterate(
        lambda nodes: (
            nodes.join(links, on={"node": "src"}).select("dst AS node").concat(start).distinct()
        )
    )


def distances(edges: Collection, roots: Collection, weight: str | None = None) -> Collection:
    """The length of the shortest path from the nearest of some nodes.

    Args:
        edges: rows (src, dst), or with weights (src, dst, weight).
        roots: rows (node), with the type of the edges' ends; they have distance 0.
        weight: the column with the length of an edge, integers or doubles; by default every edge
            has length 1. Of parallel edges the shortest counts; an edge with a null length is
            ignored.

    Returns:
        rows (node, dist), one for each node that can be reached. The type of dist is int; with
            weights it is bigint or double.

    Raises:
        SchemaError: if the weight is neither an integer nor a double.

    Cost: as `reachable`. With weights, a node is visited again in each round that finds a shorter
    path with more edges. One edge can change the path of a node, and of all nodes reached through
    it.
    Ends: always if all lengths are above 0. A cycle of negative length shortens a path for ever
    (DivergenceError).
    Source: Bellman, On a routing problem, 1958.

    Examples:
        >>> roots = links.filter("src = 1").select("src AS node")
        >>> nosync.graphs.distances(links, roots).rows()
        [Row(node=1, dist=0), Row(node=2, dist=1), Row(node=3, dist=2)]
    """
    start = nodes_of("distances", "roots", edges, roots)
    if weight is None:
        links, zero, longer = each_edge("distances", edges), "0", "dist + 1"
    else:
        links, kind = weighted("distances", edges, weight)
        zero, longer = f"CAST(0 AS {kind})", "dist + length"
    begin = start.select("node", f"{zero} AS dist")
    return begin.iterate(
        lambda paths: (
            paths.join(links, on={"node": "src"})
            .select("dst AS node", f"{longer} AS dist")
            .concat(begin)
            .group_by("node")
            .agg(dist="min(dist)")
        )
    )


def connected_components(edges: Collection, nodes: Collection | None = None) -> Collection:
    """The connected components of a graph, ignoring the direction of edges.

    Args:
        edges: rows (src, dst).
        nodes: rows (node), for nodes without edges.

    Returns:
        rows (node, component): the component is named by its least node.

    Names spread along the edges, and each node takes the least. Only nodes that are less than all
    their neighbours start with a name, because no other node can be the least of a component.

    Cost: each edge passes on each lesser name that arrives. The number of rounds is at most the
    diameter of a component. A later epoch follows the nodes whose name changes, or arrives along
    another path.
    Ends: always, because names only decrease.
    Source: Murray et al., Naiad, SOSP 2013.

    Examples:
        >>> found = nosync.graphs.connected_components(links)
        >>> found.group_by("component").agg(nodes="collect_list(node)").rows()
        [Row(component=1, nodes=[1, 2, 3]), Row(component=4, nodes=[4, 5])]
    """
    both = neighbours("connected_components", edges)
    named = named_nodes(all_nodes("connected_components", edges, nodes))
    lesser = both.filter("dst < src").select("src AS node")
    return _least(named.join(lesser, on="node", how="anti"), both, "src", "dst")


def strongly_connected_components(edges: Collection, nodes: Collection | None = None) -> Collection:
    """The strongly connected components: sets of nodes that can all reach each other along edges.

    Args:
        edges: rows (src, dst).
        nodes: rows (node), for nodes without edges.

    Returns:
        rows (node, component): the component is named by its least node; a node that is on no cycle
            is a component by itself.

    An outer loop contains two inner loops. The first computes for each node the least node from
    which it can be reached. An edge is removed if this least node is not the same for both ends.
    The second does the same for the least node that can be reached. The outer loop ends when no
    edge is removed.

    Cost: names spread twice through the remaining edges, in each round of the outer loop. A random
    graph takes a few such rounds. The state has the changes of each round of the inner loops, for
    each round of the outer loop.
    Ends: always, because edges are only removed.
    Source: Orzan, On distributed verification and verified distribution, 2004 (colouring); as a
    nested loop: McSherry et al., Differential dataflow, CIDR 2013.

    Examples:
        >>> found = nosync.graphs.strongly_connected_components(links)
        >>> found.filter("component < 4").rows()
        [Row(node=1, component=1), Row(node=2, component=1), Row(node=3, component=1)]
    """
    named = named_nodes(all_nodes("strongly_connected_components", edges, nodes))

    def trimmed(links: Collection, src: str, dst: str) -> Collection:
        """Returns the edges whose ends have the same least name if names spread to `dst`."""
        names = _least(named, links, src, dst)
        return (
            links.join(names, on={"src": "node"})
            .join(names, on={"dst": "node", "component": "component"})
            .select("src", "dst")
        )

    links = each_edge("strongly_connected_components", edges).filter("src <> dst")
    inside = links.iterate(lambda left: trimmed(trimmed(left, "src", "dst"), "dst", "src"))
    return _least(named, inside, "src", "dst")


def pagerank(
    edges: Collection,
    nodes: Collection | None = None,
    *,
    rounds: int = 20,
    damping_percent: int = 85,
) -> Collection:
    """The rank that the links of a graph give to each of its nodes, in whole millionths.

    The average page has rank 1 000 000. In each round a page distributes `damping_percent` of its
    rank to the pages that it links to, in equal shares. Each share is rounded down to a millionth.
    Every page also receives (100 - `damping_percent`) % of 1 000 000. The rank of a page without
    links is not distributed; some other definitions distribute it over all pages. Ranks are
    integers, so they are exact: equal edges have equal ranks, independent of earlier epochs.

    Args:
        edges: rows (src, dst); an edge from a page to itself is a link like any other.
        nodes: rows (node), for nodes without edges.
        rounds: the number of rounds; each multiplies the error by `damping_percent` / 100.
        damping_percent: 1 to 99.

    Returns:
        rows (node, rank bigint).

    Cost: the first run uses each edge once in each round. A later epoch follows the shares that
    change, along at most `rounds` links, until rounding removes the difference. NOTE: in a graph of
    small diameter one link changes all ranks, and an epoch costs as much as the first run; fewer
    rounds help.
    Ends: after `rounds`.
    Source: Page et al., The PageRank citation ranking, 1999.

    Examples:
        >>> nosync.graphs.pagerank(links).filter("node > 3").rows()
        [Row(node=4, rank=150000), Row(node=5, rank=277500)]
    """
    whole("pagerank", "damping_percent", damping_percent, 1, 99)
    whole("pagerank", "rounds", rounds)
    links, pages = each_edge("pagerank", edges), all_nodes("pagerank", edges, nodes)
    out = links.join(links.group_by("src").agg(links="count(*)"), on="src")
    share = f"floor(rank * {damping_percent} / (links * 100))"
    rest = MILLION // 100 * (100 - damping_percent)
    base = pages.select("node", f"CAST({rest} AS BIGINT) AS part")
    return pages.select("node", f"CAST({MILLION} AS BIGINT) AS rank").iterate(
        lambda ranks: (
            ranks.join(out, on={"node": "src"})
            .select("dst AS node", f"{share} AS part")
            .concat(base)
            .group_by("node")
            .agg(rank="sum(part)")
        ),
        rounds=rounds,
    )


def triangles(edges: Collection) -> Collection:
    """The triangles of a graph: three nodes that are all neighbours, ignoring directions.

    Args:
        edges: rows (src, dst).

    Returns:
        rows (a, b, c), a < b < c, each once.

    Cost: there is no loop. Pairs of edges a-b, b-c with a < b < c are stored: m x n pairs at a node
    with m lesser and n greater neighbours. An epoch reads the pairs that contain a changed edge.

    Examples:
        >>> nosync.graphs.triangles(links).rows()
        [Row(a=1, b=2, c=3)]
    """
    up = upwards("triangles", edges)
    return (
        up.select("src AS a", "dst AS b")
        .join(up.rename({"dst": "c"}), on={"b": "src"})
        .join(up, on={"a": "src", "c": "dst"})
    )


def k_core(edges: Collection, k: int) -> Collection:
    """The k-core: the largest set of nodes that all have at least k neighbours in the set.

    Args:
        edges: rows (src, dst); their direction does not matter.
        k: 1 or more.

    Returns:
        rows (node).

    In each round the nodes with fewer than k remaining neighbours leave the set.

    Cost: the first run uses each edge once, and once more when one of its ends leaves. The number
    of rounds is the length of the longest chain of nodes that leave one after the other. A later
    epoch follows the nodes that leave in another round than before, or no longer leave.
    Ends: always, because no node enters the set again.
    Source: Seidman, Network structure and minimum degree, 1983.

    Examples:
        >>> nosync.graphs.k_core(links, 2).rows()
        [Row(node=1), Row(node=2), Row(node=3)]
    """
    whole("k_core", "k", k)
    both = neighbours("k_core", edges)
    return (
        both.select("src AS node")
        .distinct()
        .iterate(
            lambda left: (
                left.join(both, on={"node": "src"})
                .group_by("dst")
                .agg(neighbours="count(*)")
                .filter(f"neighbours >= {k}")
                .select("dst AS node")
            )
        )
    )


def label_propagation(
    edges: Collection, nodes: Collection | None = None, *, rounds: int = 5
) -> Collection:
    """Communities: each node repeatedly takes the label that most of its neighbours have.

    All nodes choose at the same time. Each node begins with itself as its label, and also votes for
    its own label. If several labels have the most votes, the node takes the least of them. So the
    result is a function of the edges, and two nodes do not swap labels for ever.

    Args:
        edges: rows (src, dst); their direction does not matter.
        nodes: rows (node), for nodes without edges; each has itself as its label.
        rounds: the number of rounds.

    Returns:
        rows (node, label).

    Cost: the first run uses each edge once in each round. A later epoch follows the nodes that
    choose another label.
    Ends: after `rounds`.
    Source: Raghavan et al., Near linear time algorithm to detect community structures, 2007; in
    contrast to it, all nodes choose at the same time and vote for their own label.

    Examples:
        >>> found = nosync.graphs.label_propagation(links)
        >>> found.group_by("label").count().rows()
        [Row(label=1, count=3), Row(label=4, count=2)]
    """
    whole("label_propagation", "rounds", rounds)
    own = all_nodes("label_propagation", edges, nodes)
    both = neighbours("label_propagation", edges).concat(own.select("node AS src", "node AS dst"))
    # Votes are negative, so that one `min_by` finds the most votes and then the least label.
    voters = both.select("src", "dst", "CAST(-1 AS BIGINT) AS vote")

    def chosen(labels: Collection) -> Collection:
        """Returns the next labels: for each node the one with the most votes."""
        return (
            labels.join(voters, on={"node": "src"})
            .group_by("dst", "label")
            .agg(votes="sum(vote)")
            .group_by("dst")
            .agg(label="min_by(label, votes)")
            .select("dst AS node", "label")
        )

    return own.select("node", "node AS label").iterate(chosen, rounds=rounds)


def _least(named: Collection, links: Collection, src: str, dst: str) -> Collection:
    """Computes the least name that reaches each node along the edges from `src` to `dst`.

    Args:
        named: rows (node, component) with the initial names.
    """
    return named.iterate(
        lambda names: (
            names.join(links, on={"node": src})
            .select(f"{dst} AS node", "component")
            .concat(named)
            .group_by("node")
            .agg(component="min(component)")
        )
    )


def __getattr__(name: str) -> NoReturn:
    module = sys.modules[__name__]
    raise AttributeError(f"module 'nosync.graphs' has no attribute {name!r}", name=name, obj=module)
