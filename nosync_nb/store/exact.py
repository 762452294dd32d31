"""Exact prefixes, kept up: what a failure leaves of each stage, as stages come, go and are written.

The same greatest solution as `frontier.survivals` gives, which stays the plain version that this is
held against. Here a change is followed to what it moves, and nothing else is looked at.

Design: an upper is the least of what bounds it upstream. What falls is pushed downstream, the
lowest first. What may rise had its upper from where something rose, so it has the same one: the
readers of a stage that may rise, with its upper, may rise; the others stay. Those that may rise are
bounded again by all that cannot, the lowest first. On a cycle nothing bounds itself, as the
whole cycle is among those that may rise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush

from nosync_nb.store.durability.recovery_frontier import FailureClass, FrontierNode, SurvivingEpochs


class ExactPrefixes:
    """What one class of failure leaves of the stages of a graph, cycles allowed.

    Attributes:
        visits: how many stages were looked at, since it was made.
    """

    def __init__(self, failure: FailureClass) -> None:
        self._failure = failure
        self._nodes: dict[str, FrontierNode] = {}
        self._readers: dict[str, set[str]] = {}
        self._exact: dict[str, int] = {}
        self.visits = 0

    def survival(self, name: str) -> SurvivingEpochs:
        """What is left of a stage."""
        exact = self._exact[name]
        return SurvivingEpochs(exact, min(self._nodes[name].logged.after(self._failure), exact))

    def exact(self) -> Mapping[str, int]:
        """The exact upper of every stage."""
        return self._exact

    def move(self, changes: Mapping[str, FrontierNode | None]) -> None:
        """Takes in stages that are new or other than they were, and those that are gone (None).

        All of one change are given at once, so that each stage is looked at once: what a stage
        reads is there afterwards.

        Cost: in proportion to the stages given, those that may rise with them, those that
        fall, and what these read and feed.
        """
        rising = self._rising(changes)
        for name, node in changes.items():
            self._place(name, node)
        again = {name for name in rising if name in self._nodes}
        self.visits += len(again)
        waiting = [(self._bound(name, again), name) for name in again]
        waiting += [
            (self._bound(name, again), name)
            for name, node in changes.items()
            if node is not None and name not in again
        ]
        heapify(waiting)
        self._settle(waiting, again)

    def _rising(self, changes: Mapping[str, FrontierNode | None]) -> set[str]:
        """The stages that may have a higher upper after changes, as these stand before them."""
        waiting = []
        for name, node in changes.items():
            before = self._nodes.get(name)
            reads_less = before is None or node is None or set(before.inputs) - set(node.inputs)
            if reads_less or self._own(node) > self._own(before) == self._exact[name]:
                waiting.append(name)
        rising = set(waiting)
        while waiting:
            name = waiting.pop()
            for reader in self._readers.get(name, ()):
                if reader not in rising and self._exact[reader] == self._exact.get(name):
                    rising.add(reader)
                    waiting.append(reader)
        return rising

    def _own(self, node: FrontierNode | None) -> int:
        return 0 if node is None else node.own(self._failure)

    def _place(self, name: str, node: FrontierNode | None) -> None:
        """Puts a stage where another was, or none was, or takes it away."""
        before = self._nodes.pop(name, None)
        for source in () if before is None else before.inputs:
            self._readers[source].discard(name)
        if node is None:
            self._exact.pop(name, None)
            if not self._readers.get(name):
                self._readers.pop(name, None)
            return
        self._nodes[name] = node
        for source in node.inputs:
            self._readers.setdefault(source, set()).add(name)

    def _bound(self, name: str, again: Iterable[str]) -> int:
        """What bounds a stage but for those that are to be decided again."""
        node = self._nodes[name]
        known = [self._exact[q] for q in node.inputs if q not in again]
        return min([self._own(node), *known])

    def _settle(self, waiting: list[tuple[int, str]], again: set[str]) -> None:
        """Decides what is to be decided again, and lowers what that lowers.

        Args:
            waiting: a heap of bounds; `again` has one of each.
        """
        exact = self._exact
        while waiting:
            bound, name = heappop(waiting)
            if name in again:
                again.discard(name)
            elif exact[name] <= bound:
                continue
            else:
                self.visits += 1
            exact[name] = bound
            for reader in self._readers.get(name, ()):
                if reader in again or exact[reader] > bound:
                    heappush(waiting, (bound, reader))
