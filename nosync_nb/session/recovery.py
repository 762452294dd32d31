"""Recovery: what an opening finds, as a value, and what is left to do before the first write.

What was there is read, never computed again. It comes back in two steps. The first is all that a
reader needs: the catalog, where the traces lie, the history; it costs the same whatever they hold.
The second compiles the stages, and is done when the session is written for the first time.

A catalog is believed if this user signed it, here and at its epoch, and its functions come back if
their signatures hold. A stage that another key described, or with a function that does not come
back, is stale, readable at its last epoch, until its cell is run: nothing of it is compiled. A
reader runs nothing, and judges nobody.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from nosync_nb.collections.functions import trust
from nosync_nb.dataflow.compiler import Compiler
from nosync_nb.dataflow.draft import Version
from nosync_nb.dataflow.fitting import rebased
from nosync_nb.dataflow.graph import Graph, Node
from nosync_nb.dataflow.runner import Runner
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import NosyncError
from nosync_nb.expressions import refusal
from nosync_nb.operators.specs import expressions_of
from nosync_nb.session import behind, losses, versions
from nosync_nb.session.fetching import Fetching
from nosync_nb.session.gate import Gate
from nosync_nb.session.publisher import Publisher, files_of
from nosync_nb.session.report import READ, STALE, RecoveryReport
from nosync_nb.session.upkeep import Upkeep
from nosync_nb.spark.link import Link
from nosync_nb.spark.meaning import SparkTypes
from nosync_nb.store import journal, reading, signing
from nosync_nb.store.decoding import decoding
from nosync_nb.store.deferred import needs
from nosync_nb.store.ledger import lost_after
from nosync_nb.store.reading import Described, Judged, Recovered, Said
from nosync_nb.store.store import Store

LOST_MAX = 1 << 16
"""Epochs that are told as lost at most, whatever number a former owner left."""

UNMADE = "not read"
"""The plan of nodes that remember nothing until they are made again; no operator's."""

FORM = "what it remembers is not in the form of this release: run the stage's cell"
"""Why a stage stops of which functions may give something else if they are called again."""


class Opening(NamedTuple):
    """What a session begins with.

    Attributes:
        recovered: what its log says, with the stages that cannot go on as stale ones.
        report: the same for people.
        differs: not the stages go on that the log says.
        behind: some have missed epochs and may have them.
        missing: files that are named and not there.
        memory: some stages were in memory alone.
        anew: the stages that go on and of which nothing is there, as the log begins before them.
    """

    recovered: Recovered
    report: RecoveryReport
    differs: bool = False
    behind: bool = False
    missing: frozenset[str] = frozenset()
    memory: bool = False
    anew: frozenset[str] = frozenset()

    @property
    def lacking(self) -> bool:
        """Whether stages lack something that has to be had again."""
        doubtful = losses.doubtful(self.recovered.snapshot.catalog)
        lost = self.missing or self.anew or self.recovered.store.clocks.wrong
        return self.memory or doubtful or bool(lost)


def recover(store: Store, types: SparkTypes, fetching: Fetching) -> Opening:
    """What a session begins with that opened a folder. What nobody names is deleted there.

    Args:
        fetching: is told what is named and not here, and tells what is nowhere.

    Raises:
        CorruptLogError: if what the log says makes no sense.
    """
    log = store.log
    if log.mode == "r":
        recovered = reading.recover(store)
        store.release()
        return Opening(recovered, _report(recovered, range(0)))
    describe = _Describer(log.id, types)
    recovered = reading.recover(store, describe)
    epoch, catalog = recovered.snapshot.epoch, recovered.snapshot.catalog
    lost = lost_after(log.noted, recovered.ledger.incarnation, epoch)[:LOST_MAX]
    with decoding("the log"):
        lacking = fetching.expect(store.sweep())
    report = _report(recovered, lost)
    for note in (lacking.said, *behind.scaled_told(catalog)):
        if note:
            report.note(note)
    stages = recovered.data.get("stages", ())
    differs = any(
        (each["life"]["is"] == "stale") != (catalog[each["name"]].reason is not None)
        for each in stages
    )
    anew = frozenset(describe.anew)
    return Opening(
        recovered, report, differs, describe.behind, lacking.missing, describe.memory, anew
    )


def _report(recovered: Recovered, lost: range) -> RecoveryReport:
    """Args: `lost` are epochs that are gone."""
    log, (version, _, catalog, _) = recovered.store.log, recovered.snapshot
    stages, reasons = _ways(catalog)
    return RecoveryReport(
        fresh=log.fresh,
        clean=log.clean,
        resumed_at=version.epoch,
        stages=stages,
        reasons=reasons,
        inputs=sorted(name for name, stage in catalog.items() if stage.is_input),
        lost=list(lost),
        notes=[*log.notes],
    )


def _ways(catalog: Mapping[str, Stage]) -> tuple[dict[str, str], dict[str, str]]:
    """Which stages go on and which do not, and why."""
    stages = [s for s in catalog.values() if not s.is_input and not s.frozen]
    ways = {s.name: STALE if s.reason else READ for s in stages}
    return ways, {s.name: s.reason for s in stages if s.reason}


class _Describer:
    """The stages of a catalog with their functions; decides which are stale.

    Attributes:
        behind: whether some of them could go on if they had the epochs that they missed.
        memory: whether some of them were in memory alone.
        anew: those that go on, and of which nothing is there.
    """

    def __init__(self, log_id: bytes, types: SparkTypes) -> None:
        self._log_id, self._types = log_id, types
        self.behind = self.memory = False
        self.anew: set[str] = set()

    def __call__(self, said: Said, judged: Judged, epoch: int) -> Described:
        """A catalog of another's key is marked as his."""
        signer, data = judged.origin.signer, said.catalog
        if signer is not None:
            data = journal.foreign_json(data, signer)

        def unseal(text: str, context: str, identity: str) -> Any:
            assert judged.key is not None  # it has signed the catalog
            sealed = base64.b64decode(text)
            return trust.unseal(sealed, key=judged.key, context=context, fingerprint=identity)

        catalog = journal.catalog_from_json(data, self._log_id, unseal)
        for name, stage in catalog.items():
            if stage.in_memory and stage.frozen:
                catalog[name] = stage.forgotten("", epoch)
            if stage.definition is None or stage.frozen:
                continue
            why = held = _held(stage, judged.origin)
            if why is None and stage.refused:
                why = stage.reason
            elif why is None:
                _, why = rebased(stage, catalog, self._types)
                why = why or versions.halted(stage, catalog) or _gave(stage)
            lacks = not stage.has(stage.last(epoch))
            if why is not None and (stage.in_memory or lacks):
                stage = stage.forgotten(why, epoch)
            elif why is not None:
                stage = stage.stopped(why, epoch)
            elif stage.in_memory:
                stage, self.memory = replace(stage.resumed(), gaps=()), True
            elif lacks and stage.live:
                stage = replace(stage, gaps=())
                self.anew.add(name)
            elif stage.last(epoch) == epoch:
                stage = stage.resumed()
            else:
                self.behind = True
            catalog[name] = replace(stage, held=held)
        return data, catalog


def _held(stage: Stage, origin: signing.Origin) -> str | None:
    """Why nothing of a stage may be compiled before its cell is run."""
    if stage.signer is not None:
        return origin.why or signing.foreign(stage.signer)
    assert stage.definition is not None
    for part in stage.definition.walk():
        for sql in expressions_of(part):
            why = refusal(sql)
            if why is not None:
                return f"{why}: run the stage's cell"
    return None


def _gave(stage: Stage) -> str | None:
    """Why a stage is not computed again of which nothing is written, None if it is."""
    if stage.in_memory and stage.options.nondeterministic:
        return "what its functions gave was in memory alone: run its cell"
    return None


class Resume(Protocol):
    """Writes which stages go on after a recovery; see `Definitions.resume`."""

    def __call__(self, *, extend: bool, differs: bool) -> None: ...


class Heal(Protocol):
    """Has again what lies in files that are not there; see `Healing.heal`."""

    def __call__(self, missing: AbstractSet[str], anew: AbstractSet[str]) -> bool: ...


class Completion:
    """Compiles the stages of a session that was opened, before it is written.

    Args:
        heal: has again what lies in files that are not there.
        report: told what could not be had.
        resume: writes which stages go on.
        lack: has what they lack of what they remember made before the next write that needs it.
    """

    def __init__(
        self,
        gate: Gate,
        publisher: Publisher,
        upkeep: Upkeep,
        link: Link,
        heal: Heal,
        report: RecoveryReport,
        resume: Resume,
        lack: Callable[[], None],
    ) -> None:
        self._gate = gate
        self._publisher = publisher
        self._upkeep = upkeep
        self._link = link
        self._heal = heal
        self._report = report
        self._resumes = resume
        self._lack = lack

    def begin(self, opening: Opening) -> None:
        """Has it done before the first write."""
        graph = self._publisher.snapshot.graph
        self._gate.first(lambda: self._complete(graph, opening, differs=opening.differs))

    def _complete(self, old: Graph, opening: Opening, *, differs: bool) -> None:
        """Compiles the stages and restores their state, so that they can go on.

        Failure: 1. A stage is stale, as its key is not there; epochs pass. 2. The session ends, and
        the key is back. 3. The stage is read as of now, and lacks those epochs. Hence the log says
        that a stage has stopped before the first epoch that it misses.
        """
        store, snapshot = self._publisher.store, self._publisher.snapshot
        version, catalog = snapshot.version, dict(snapshot.catalog)
        types, runner = self._link.types, None
        graph = Compiler(old, types, now=version.epoch).compile(catalog)
        if hold(catalog, graph, old, version.epoch, FORM, opening.anew):
            graph = Compiler(old, types, now=version.epoch).compile(catalog)
            self._report.restored(*_ways(catalog))
        if graph.nodes.keys() <= old.nodes.keys():
            bulk = self._link.bulk()
            runner = Runner(graph, self._link.evaluate, bulk, spill=bulk.files)
        else:
            differs = True
            nodes = [_as_held(graph.nodes.get(node.id, node), node) for node in old]
            graph = Graph(nodes, old.numbers, graph.made, memory=graph.memory)
        traces = store.restored(graph)
        traces.update((n, t) for n, t in version.traces.items() if n in traces)
        self._publisher.compiled(runner, Version(version.epoch, traces), graph, catalog)
        self._gate.first(lambda: self._resume(opening, differs=differs))
        self._gate.ready(rebuilt=False)

    def _resume(self, opening: Opening, *, differs: bool) -> None:
        """Lets stages go on that have what they need; again, if it was interrupted.

        Failure: 1. A frame after the checkpoint names a file, a later one has it no more. 2. Who
        opens the log keeps it, as the checkpoint may be gone back to, and nobody tells him to let
        it go: it stays as long as he writes. Hence what is not live is retired by now.
        """
        behind, publisher = opening.behind, self._publisher
        if not publisher.store.foreign:
            live = files_of(publisher.snapshot.version) | publisher.store.history.files()
            publisher.garbage.retire(publisher.store.named - live)
        publisher.store.release()
        if opening.lacking:
            self._heal(opening.missing, opening.anew)
        traces = self._publisher.snapshot.version.traces
        self._upkeep.plan_merges(n for n, t in traces.items() if not needs(t) & opening.missing)
        if not behind:
            if differs:
                self._lack()
            return
        try:
            self._resumes(extend=True, differs=differs)
        except NosyncError as error:
            self._report.note(f"a stage has missed epochs and stays stale: {error}")
            self._resumes(extend=False, differs=differs)


def _as_held(node: Node, old: Node) -> Node:
    """A node that was compiled again, with no more than the log has of it.

    Failure: 1. Another plan asks a collection for one more order. 2. The graph of before takes it
    for one that is there, and its number for one that was not given. 3. The definition that makes
    it gives that number to something else: two traces have one, and no log can be opened after it.

    Failure: 1. A node of the log's plan is none of this one, so what it remembers is not read. 2.
    The plan is made again, and is that of the log. 3. The node is taken for one that remembers all,
    and remembers nothing. So it has another plan from now on, under which that is made anew.
    """
    plan = UNMADE if node.operator is None and node.state else node.plan
    return replace(node, log=old.log, log_layout=old.log_layout, traces=old.traces, plan=plan)


def hold(
    catalog: dict[str, Stage],
    graph: Graph,
    old: Graph,
    epoch: int,
    why: str,
    anew: AbstractSet[str] = frozenset(),
) -> bool:
    """Stops stages of which what operators remember cannot be made again.

    What functions gave that may give something else is not had again, nor is what was remembered
    at an epoch that has passed. All others are run for it once.

    Args:
        graph: as this release plans it, `old` as it was planned.
        why: it has to be made.
        anew: the stages of which nothing is there that could be made again.

    Returns:
        whether there are some.
    """
    new = [node for node in graph if node.id not in old.nodes and node.state]
    names = [n for n in {n.stage: None for n in new} if n not in anew and _once_only(catalog[n])]
    for name in names:
        stage = catalog[name].stopped(why, epoch)
        catalog[name] = replace(stage, held=why)
        for reader in graph.dependants(name):
            catalog[reader] = catalog[reader].stopped(f"it reads '{name}', which is stale", epoch)
    return bool(names)


def _once_only(stage: Stage) -> bool:
    return stage.options.nondeterministic or not stage.live
