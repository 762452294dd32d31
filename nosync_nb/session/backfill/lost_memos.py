"""Stops the nondeterministic stages whose memoised results are lost.

An operator that memoises results of functions cannot be run again: it would give other results than
the stage has logged, and retract rows that the stage never had. All other operators are recomputed
from their inputs. No result is lost if such an operator has no input rows at that epoch, or if its
stage is computed from scratch.

Failure: 1. Two stages of one cell share an unnamed node that memoises. 2. Its results are lost, and
the stage that it is compiled for stops. 3. The node is compiled for the other stage, and run again.
Hence every stage that a lost node feeds stops.

Failure: 1. A stage is computed from scratch on a branch, because it was defined later. 2. An input
has lost its results, so the stage stops before it has any row. 3. It is read at its last epoch, as
empty. Hence a stage that stops without rows is marked as unreadable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import NamedTuple

from nosync_nb.dataflow.graph import UNMADE, Graph, Node
from nosync_nb.dataflow.runtime.epoch_result import VersionState
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import CorruptLogError


class Compiled(NamedTuple):
    """The graph of a log, and the one that is compiled over it."""

    old: Graph
    graph: Graph


Compile = Callable[[Mapping[str, Stage]], Compiled]
"""Compiles a catalog. It is called again after a stage was stopped."""


def stop(
    catalog: dict[str, Stage], compiled: Compile, version: VersionState, absent: AbstractSet[str]
) -> Compiled:
    """Stops the stages that have lost memoised results, and their readers.

    Args:
        catalog: is changed.
        version: the traces of the old graph that the log contains.
        absent: the stages without rows in the log: they are computed from scratch.

    Returns:
        the graphs of the changed catalog; no node of the new one has lost a result.
    """
    while True:
        graphs = compiled(catalog)
        lost = _LostResults(catalog, graphs, version, absent).stages()
        for name, why in lost.items():
            stage = catalog[name].as_stale(why, version.epoch)
            catalog[name] = replace(stage, held=why)
        for name in lost:
            for reader in graphs.graph.dependants(name):
                if catalog[reader].live:
                    why = f"it reads '{name}', which is stale"
                    catalog[reader] = _stop_reader(catalog[reader], why, version.epoch, absent)
        if not lost:
            return graphs


def _stop_reader(stage: Stage, why: str, epoch: int, absent: AbstractSet[str]) -> Stage:
    if stage.name in absent:
        return replace(stage, begin=0).forgotten(why, epoch)
    return stage.as_stale(why, epoch)


class _LostResults:
    """Finds the stages that have lost results, for one compilation."""

    def __init__(
        self,
        catalog: Mapping[str, Stage],
        graphs: Compiled,
        version: VersionState,
        absent: AbstractSet[str],
    ) -> None:
        self.catalog, self.version, self.absent = catalog, version, absent
        self.old, self.graph = graphs
        self._empty_nodes: dict[int, bool] = {}

    def stages(self) -> dict[str, str]:
        """Returns why each of these stages stops."""
        stages: dict[str, str] = {}
        for node in self.graph:
            if node.id in self.old.nodes or not node.state or node.operator is None:
                continue
            if node.operator.memoises and self.catalog[node.stage].live:
                fed = [name for name in self._fed_stages(node) if name not in self.absent]
                if fed and not all(self._is_empty(self.graph.nodes[i]) for i in node.inputs):
                    stages.update((name, self._loss_reason(node)) for name in fed)
        return stages

    def _loss_reason(self, node: Node) -> str:
        """Returns why a node has lost its results: another release's plan, or a past epoch."""
        same = (each for each in self.old if each.fingerprint == node.fingerprint)
        old_node = next((each for each in same if each.name == node.name), None)
        if old_node is not None and old_node.plan not in ("", UNMADE, node.plan):
            return "its memoised results are not in the form of this release: run the stage's cell"
        epoch = self.version.epoch
        return f"its memoised results are not known at epoch {epoch}: run the stage's cell"

    def _fed_stages(self, node: Node) -> list[str]:
        """Returns the stages that a node is a part of."""
        if node.name is not None:
            return [node.name]
        reached, names = {node.id}, []
        for reader in self.graph:
            if not reached.isdisjoint(reader.inputs):
                if reader.name is None:
                    reached.add(reader.id)
                else:
                    names.append(reader.name)
        return names

    def _is_empty(self, node: Node) -> bool:
        """Returns True if a node has no rows at the epoch."""
        if node.id not in self._empty_nodes:
            self._empty_nodes[node.id] = self._check_empty(node)
        return self._empty_nodes[node.id]

    def _check_empty(self, node: Node) -> bool:
        if node.name is None:
            old_node = self.old.nodes.get(node.id)
        else:
            old_node = None if node.name in self.absent else self.old.named.get(node.name)
        if old_node is not None and old_node.traces:
            traces = (self.version.traces.get(number) for number in old_node.traces.values())
            trace = next((each for each in traces if each is not None), None)
            try:
                return trace is None or not (trace.rows_count and len(trace.consolidated()))
            except CorruptLogError:  # a file is missing, so there were rows
                return False
        if node.operator is None or node.operator.global_row:
            return False
        return all(self._is_empty(self.graph.nodes[i]) for i in node.inputs)
