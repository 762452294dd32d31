"""Losses: what becomes of stages of which files are not there, decided purely.

    read        an arrangement of its rows is made again out of its log, which has them all
    extend      its log is whole up to an epoch, and runs on from there
    recompute   it is run over the logs of what it reads, from its first epoch; or only what its
                operators remember, as of now, where its log is whole
    stale       it cannot be computed again: what its functions gave is not had a second time

The others are left alone: their logs, their files and their rows stay what they are. Inputs are
computed from nothing, so they come back out of their own log or not at all.

Failure: 1. A stage lacks a file, and so does what it reads, which is run again first. 2. The plan
was made of what both had. Hence it goes by the order of the graph, and what is planned for a stage
counts for those that read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from nosync_nb.dataflow.graph import Node
from nosync_nb.dataflow.runtime.historical_inputs import HistoricalInputs
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import RefutedState, Stage
from nosync_nb.session.planning import replay
from nosync_nb.session.report import EXTEND, READ, RECOMPUTE, STALE, counted_noun
from nosync_nb.store import lazy_layer
from nosync_nb.store.provenance.check import ClockContradiction
from nosync_nb.trace.epoch_ranges import EpochRanges
from nosync_nb.trace.history.missing_files import MissingHistory

NOBODY: frozenset[int] = frozenset()


class StageDamage(NamedTuple):
    """What becomes of one stage or input.

    Attributes:
        files: those that it lacks.
        arranged: traces that are made again out of its log.
        refused: nodes that are computed anew, with all they have.
        bare: nodes of which only what they remember is.
        first: the epoch that is run first; None: only now.
        begin: its first epoch afterwards.
        why: what there is to tell: that it cannot be had, or what it takes.
    """

    name: str
    action: str
    files: frozenset[str]
    arranged: frozenset[int] = NOBODY
    refused: frozenset[int] = NOBODY
    bare: frozenset[int] = NOBODY
    first: int | None = None
    begin: int = 0
    why: str = ""


def awaits_recheck(catalog: Mapping[str, Stage]) -> bool:
    """Whether stages go on of which rows that are not believed are still to be made anew."""
    return any(stage.refuted is not None and stage.live for stage in catalog.values())


def refuted_stages(seen: Snapshot, wrong: Iterable[ClockContradiction]) -> dict[int, RefutedState]:
    """The logs of stages of which clocks contradict what is there, and of those that read them.

    One that has stopped is among them: it would go on from rows that are not believed. Those that
    the catalog says are as well: what refuted them is not there any more once it was made anew.

    Args:
        seen: compiled.
        wrong: what contradicts; what is not there any more is left out.
    """
    graph, doubts = seen.graph, dict[int, RefutedState]()
    names = {node.log: name for name, node in graph.named.items()}

    def doubt(name: str, epoch: int, why: str) -> None:
        stage, log = seen.catalog[name], graph.named[name].log
        known = doubts.get(log or 0)
        if log is None or stage.is_input or stage.frozen or epoch > stage.last(seen.epoch):
            return
        if not stage.live and (stage.in_memory or stage.refused):
            return
        if known is None or epoch < known.epoch:
            doubts[log] = RefutedState(epoch, why)

    for known, stage in seen.catalog.items():
        if stage.refuted is not None:
            doubt(known, *stage.refuted)
    for log, epoch, source in wrong:
        name = names.get(log)
        if name is None:
            continue
        what = "itself" if source == log else f"'{names.get(source, 'what is gone')}'"
        doubt(name, epoch, f"at epoch {epoch} its clock names other rows of {what} than are there")
        if not seen.catalog[name].is_input:
            for reader in graph.dependants(name):
                doubt(reader, epoch, f"it reads '{name}', which is computed again")
    return doubts


def plan_repairs(
    seen: Snapshot,
    lost: MissingHistory,
    missing: AbstractSet[str],
    doubts: Mapping[int, RefutedState] | None = None,
    apart: AbstractSet[str] = frozenset(),
) -> list[StageDamage]:
    """Decides on all that lacks something, what is read before what reads it.

    Args:
        seen: compiled, with all that operators remember.
        lost: of its history.
        missing: the files that are not there.
        doubts: the logs that are not believed; what they have is as good as lost.
        apart: those that are decided on another time, as what they read is not there yet; with
            all that reads them.
    """
    return [*_Planning(seen, lost, missing, doubts or {}).losses(apart)]


class _Planning:
    """What is known of stages while they are gone through.

    Attributes:
        readable: the epochs that a collection can be read at once what is planned is done.
        gone: of what nothing can be read now.
    """

    def __init__(
        self,
        seen: Snapshot,
        lost: MissingHistory,
        missing: AbstractSet[str],
        doubts: Mapping[int, RefutedState],
    ) -> None:
        self.seen, self.lost, self.doubts = seen, lost, doubts
        self.lacking: Mapping[int, AbstractSet[str]] = {
            number: files
            for number, trace in seen.version.traces.items()
            if (files := lazy_layer.files_needed(trace) & missing)
        }
        self.past = HistoricalInputs(seen.history, seen.epoch)
        self.readable: dict[str, EpochRanges] = {}
        self.gone: set[str] = set()
        self.had: set[int] = set()  # parts without a name that are planned for

    def losses(self, apart: AbstractSet[str]) -> Iterator[StageDamage]:
        for node in self.seen.graph:
            if node.name is None or node.name in apart:
                continue
            loss = self._of(node, self.seen.catalog[node.name])
            if loss is not None:
                yield loss

    def _of(self, node: Node, stage: Stage) -> StageDamage | None:
        """What becomes of one; None if it lacks nothing."""
        assert node.log is not None
        broken, doubt = self.lost.of(node.log, stage.begin), self.doubts.get(node.log)
        if broken is not None and broken[0] > stage.last(self.seen.epoch):
            broken = None
        if doubt is not None:
            return self._refuted(node, stage, doubt, broken)
        own = {n for n in node.traces.values() if n in self.lacking}
        parts = self._parts(node) if node.operator is not None else set()
        state = any(number in self.lacking for number in node.state)
        if broken is None and not own and not parts and not state:
            return None
        files = frozenset(self._files(node, parts)).union(() if broken is None else broken[1])
        loss = StageDamage(stage.name, READ, files, arranged=frozenset(own), begin=stage.begin)
        if broken is not None:
            return self._broken(node, stage, loss, broken[0], parts)
        if not parts and not state:
            return loss
        bare = frozenset([node.id]) if state else NOBODY
        why = self._unable(node, stage, parts | bare)
        if why is not None:
            return self._stale(loss, why)
        self.had |= parts
        return loss._replace(action=RECOMPUTE, refused=frozenset(parts), bare=bare)

    def _refuted(
        self, node: Node, stage: Stage, doubt: RefutedState, broken: tuple[int, set[str]] | None
    ) -> StageDamage:
        """What becomes of one whose log is not believed from an epoch on."""
        epoch, files = (doubt.epoch, set[str]()) if broken is None else broken
        loss = StageDamage(stage.name, STALE, frozenset(files), begin=stage.begin)
        why = self._unable(node, stage) if stage.live else "run its cell"
        if why is not None:
            return self._stale(loss, f"{doubt.why}; {why}")
        span = replay.replay_span(self.seen.graph, {node.id})
        parts = {part.id for part in span.graph if part.name is None} - self.had
        again = self._broken(node, stage, loss, min(epoch, doubt.epoch), parts)
        return again._replace(why=f"{doubt.why}: {again.why}")

    def _broken(
        self, node: Node, stage: Stage, loss: StageDamage, epoch: int, parts: AbstractSet[int]
    ) -> StageDamage:
        """What becomes of one whose log cannot be read from an epoch on."""
        now = self.seen.epoch
        whole = len(loss.arranged) < len(node.traces)
        hurt = bool(parts) or any(number in self.lacking for number in node.state)
        why = f"its rows at epochs {epoch} to {now - 1} cannot be read"
        if stage.is_input or stage.frozen or not stage.live or self._unable(node, stage):
            self._cut(stage, now)  # what is held now is read without the log
            if not whole:
                return self._stale(loss, self._unable(node, stage) or _unhad(stage))
            return self._stale(loss, why) if hurt else loss._replace(why=why)
        sources = EpochRanges.of(range(now + 1))
        for name in self._reads(node):
            sources &= self._epochs(name)
        first = sources.neighbours(stage.begin)[1]
        assert first is not None  # they can be read now
        begin = max(stage.begin, first)
        if begin > stage.begin and whole and not hurt:  # what can be read is not given up
            self._cut(stage, now)
            return loss._replace(why=why)
        last = sources.neighbours(epoch - 1)[0] if epoch else None
        refused = frozenset([node.id, *parts])
        loss = loss._replace(arranged=NOBODY, refused=refused, begin=begin)
        self.had |= parts
        if last is not None and last > stage.begin and self._tells(node, last):
            return loss._replace(
                action=EXTEND, first=last, begin=stage.begin, why=_runs(last + 1, now)
            )
        if begin > stage.begin:
            self._cut(stage, begin)
            why = f"{_runs(begin, now)}; before that what it reads cannot be read any more"
            return loss._replace(action=RECOMPUTE, first=begin, why=why)
        return loss._replace(action=RECOMPUTE, first=begin, why=_runs(begin, now))

    def _tells(self, node: Node, epoch: int) -> bool:
        """Whether the log of a node tells an epoch apart."""
        return epoch in self.past.readable([node])

    def _unable(
        self, node: Node, stage: Stage, again: AbstractSet[int] | None = None
    ) -> str | None:
        """Why a stage cannot be computed from what it reads.

        Args:
            again: the nodes of it that are run; None: all of them.
        """
        if node.operator is None:
            return _unhad(stage)
        if self._memoises({node.id} if again is None else again, all_of=again is None):
            return "its memoised results cannot be recomputed: run its cell"
        gone = next((name for name in self._reads(node) if name in self.gone), None)
        return None if gone is None else f"it reads '{gone}', which is lost"

    def _memoises(self, again: AbstractSet[int], *, all_of: bool) -> bool:
        """True if one of some nodes memoises results, or a part that is run again for them.

        Args:
            all_of: all parts below are run; else those that hold no rows.
        """
        nodes, waiting, reached = self.seen.graph.nodes, [*again], set(again)
        while waiting:
            node = nodes[waiting.pop()]
            if node.operator is not None and node.operator.memoises:
                return True
            for i in set(node.inputs) - reached:
                if nodes[i].name is None and (all_of or nodes[i].log is None):
                    waiting.append(i)
                    reached.add(i)
        return False

    def _stale(self, loss: StageDamage, why: str) -> StageDamage:
        self.gone.add(loss.name)
        return loss._replace(action=STALE, arranged=NOBODY, why=why)

    def _cut(self, stage: Stage, first: int) -> None:
        """Notes that a collection cannot be read before an epoch, however its log has it."""
        self.readable[stage.name] = EpochRanges.of(range(first, self.seen.epoch + 1))

    def _epochs(self, name: str) -> EpochRanges:
        """The epochs that a collection can be read at, once what is planned is done."""
        node = self.seen.graph.named[name]
        epochs = self.past.readable([node])
        if name in self.readable:
            epochs &= self.readable[name]
        return epochs

    def _reads(self, node: Node) -> list[str]:
        """The named collections that a node is computed from."""
        sources = replay.replay_span(self.seen.graph, {node.id}).sources
        return [each.name for each in sources if each.name is not None]

    def _parts(self, node: Node) -> set[int]:
        """The parts without a name that a stage is computed with, and that lack something."""
        span = replay.replay_span(self.seen.graph, {node.id})
        lacking = set()
        for part in span.graph:
            if part.name is None and part.id not in self.had:
                numbers = (*part.traces.values(), *part.state)
                if any(number in self.lacking for number in numbers):
                    lacking.add(part.id)
        return lacking

    def _files(self, node: Node, parts: Iterable[int]) -> set[str]:
        nodes = [node, *(self.seen.graph.nodes[i] for i in parts)]
        numbers = (n for each in nodes for n in (*each.traces.values(), *each.state))
        return {name for number in numbers for name in self.lacking.get(number, ())}


def _unhad(stage: Stage) -> str:
    if stage.is_input:
        return "nothing gives the rows of an input again: restore the file from a copy"
    return "it has stopped, and nothing gives its rows again: restore the file from a copy"


def _runs(first: int, last: int) -> str:
    """Which epochs are run."""
    return f"{counted_noun(last - first + 1, 'epoch')} from {first} on"
