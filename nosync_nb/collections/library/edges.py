"""Checks and normalises the edges and nodes that are passed to graph algorithms.

Every function has a parameter `what`, the name of the algorithm. So an error can quote the call:
the algorithm, the argument, the value, and the correct form.
"""

from __future__ import annotations

from typing import Any

from nosync_nb.collections.collection import Collection
from nosync_nb.collections.session_protocol import definition_of, session_of
from nosync_nb.errors import SchemaError, StageError
from nosync_nb.rows.types import FLOATS, INTEGERS


def whole(what: str, argument: str, given: Any, least: int = 1, most: int | None = None) -> None:
    """Checks that the value of an argument is an integer from `least` to `most`.

    Raises:
        StageError: if it is not; the message has the algorithm, the argument and the value.
    """
    fits = isinstance(given, int) and not isinstance(given, bool) and given >= least
    if not fits or (most is not None and given > most):
        bounds = f"of {least} or more" if most is None else f"from {least} to {most}"
        raise StageError(
            f"{what}: {argument}={given!r} is not an integer {bounds}",
            hint=f"write {what}(..., {argument}={least if most is None else (least + most) // 2})",
        )


def each_edge(what: str, edges: Collection) -> Collection:
    """Returns the distinct edges as (src, dst)."""
    return _ends(what, edges).distinct()


def upwards(what: str, edges: Collection) -> Collection:
    """Returns each pair of neighbours once, as (src, dst) with src < dst."""
    ends = _ends(what, edges)
    turned = ends.filter("src > dst").select("dst AS src", "src AS dst")
    return ends.filter("src < dst").concat(turned).distinct()


def neighbours(what: str, edges: Collection) -> Collection:
    """Returns each pair of neighbours in both directions, as (src, dst)."""
    ends = _ends(what, edges).filter("src <> dst")
    return ends.concat(ends.select("dst AS src", "src AS dst")).distinct()


def weighted(what: str, edges: Collection, weight: str) -> tuple[Collection, str]:
    """Returns the shortest of parallel edges, as (src, dst, length), and the type of lengths."""
    if not isinstance(weight, str):
        raise SchemaError(
            f"{what}: weight={weight!r} is not the name of a column",
            hint=f"write {what}(edges, roots, weight='km')",
        )
    ends = _ends(what, edges, weight)
    given = ends.schema.types[2]
    if given not in (*INTEGERS, *FLOATS):
        raise SchemaError(
            f"{what}: weight '{weight}' is {given}, not an integer or a double",
            hint=f"cast it: with_columns({weight}='cast({weight} as double)')",
        )
    kind = "double" if given in FLOATS else "bigint"
    lengths = ends.filter("length IS NOT NULL").with_columns(length=f"CAST(length AS {kind})")
    return lengths.group_by("src", "dst").agg(length="min(length)"), kind


def nodes_of(what: str, argument: str, edges: Collection, given: Collection) -> Collection:
    """Returns the distinct nodes of an argument; their type must be that of the edges' ends."""
    wanted = _ends(what, edges).schema.types[0]
    nodes = _columns(what, argument, given, ["node"])
    definition_of(what, nodes, session_of(edges), argument)
    if nodes.schema.types[0] != wanted:
        raise SchemaError(
            f"{what}: node is {nodes.schema.types[0]} in {argument} and {wanted} in the edges",
            hint=f"cast it: {argument}.select('cast(node as {wanted}) AS node')",
        )
    return nodes.filter("node IS NOT NULL").distinct()


def all_nodes(what: str, edges: Collection, given: Collection | None) -> Collection:
    """Returns the distinct ends of the edges, together with the nodes that were passed."""
    ends = _ends(what, edges)
    parts = [ends.select("dst AS node")]
    if given is not None:
        parts.append(nodes_of(what, "nodes", edges, given))
    return ends.select("src AS node").concat(*parts).distinct()


def named_nodes(nodes: Collection) -> Collection:
    """Returns rows (node, component) in which each node is a component by itself."""
    return nodes.select("node", "node AS component")


def _ends(what: str, edges: Collection, weight: str | None = None) -> Collection:
    """Returns the edges without a null end, as (src, dst).

    If there is a weight, it is the third column, `length`.
    """
    ends = _columns(what, "edges", edges, ["src", "dst"], weight)
    src, dst = ends.schema.types[:2]
    if src != dst:
        raise SchemaError(
            f"{what}: src is {src} and dst is {dst} in the edges",
            hint=f"cast one of them: with_columns(src='cast(src as {dst})')",
        )
    return ends.filter("src IS NOT NULL AND dst IS NOT NULL")


def _columns(
    what: str, argument: str, given: Any, wanted: list[str], weight: str | None = None
) -> Collection:
    """Returns the columns of an argument that an algorithm needs.

    Raises:
        SchemaError: if the argument is not a collection, a column is missing, or a node is a map.
    """
    further = [] if weight is None else [weight]
    shape = f"({', '.join([*wanted, *further])})"
    if not isinstance(given, Collection):
        raise SchemaError(
            f"{what}: {argument}={_short(given)} is not a collection",
            hint=f"pass an input or a stage with rows {shape}, such as session['...']",
        )
    names = {name.lower() for name in given.schema.names}
    for name in (*wanted, *further):
        if name.lower() not in names:
            named = ", ".join(f"'... AS {each}'" for each in (*wanted, *further))
            raise SchemaError(
                f"{what}: {argument} has no column '{name}', its columns are"
                f" {', '.join(given.schema.names)}",
                hint=f"rename its columns to {shape}: {argument}.select({named})",
            )
    columns = given.select(*wanted, *(f"`{name}` AS length" for name in further))
    for name, type_ in zip(wanted, columns.schema.types, strict=False):
        if "map<" in type_:
            raise SchemaError(
                f"{what}: {name} is {type_} in {argument}, and a map cannot be a node",
                hint=f"use one of its values: {argument}.with_columns({name}=\"{name}['key']\")",
            )
    return columns


def _short(given: Any) -> str:
    """Returns the `repr` of a value, shortened for a message."""
    text = repr(given)
    return text if len(text) <= 60 else f"{text[:57]}..."
