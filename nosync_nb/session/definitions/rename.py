"""Renames a stage or an input in a catalog and a graph. Pure: reads and writes nothing.

References by name follow, and earlier versions (`name@2`) are renamed as well. A name has no other
meaning, so logs, traces and fingerprints stay the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nosync_nb.collections.definition import reference_to, with_replaced_parts
from nosync_nb.dataflow.graph import Graph
from nosync_nb.dataflow.stage import Stage


def renamed_catalog(catalog: Mapping[str, Stage], old: str, new: str) -> dict[str, Stage]:
    """Returns a catalog after a rename."""
    renamed: dict[str, Stage] = {}
    for name, stage in catalog.items():
        if stage.definition is not None:
            by_id = {
                id(p): reference_to(_renamed(p.name, old, new), p.schema)
                for p in stage.definition.walk()
                if p.is_ref and _renamed(p.name, old, new) != p.name
            }
            stage = replace(stage, definition=with_replaced_parts(stage.definition, by_id))
        name = _renamed(name, old, new)
        renamed[name] = replace(stage, name=name)
    return renamed


def renamed_graph(graph: Graph, old: str, new: str) -> Graph:
    """Returns a graph after a rename."""
    nodes = (
        replace(n, name=n.name and _renamed(n.name, old, new), stage=_renamed(n.stage, old, new))
        for n in graph
    )
    return Graph(nodes, graph.numbers)


def _renamed(name: str, old: str, new: str) -> str:
    """Returns the new name of a collection or of one of its versions."""
    base, at, version = name.partition("@")
    return new + at + version if base == old else name
