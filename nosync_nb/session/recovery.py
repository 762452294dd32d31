"""Recovering: a session after the last frame of its log, and a reader behind its owner.

What was there is read, never computed again. It comes back in two steps. The first is all that a
reader needs: the catalog, where the traces lie, the history; it costs the same whatever they hold.
The second compiles the stages, and is done when the session is written for the first time.

A catalog is believed if this user signed it, here and at its epoch, and its functions come back if
their signatures hold. A stage that another key described, or with a function that does not come
back, is stale, readable at its last epoch, until its cell is run: nothing of it is compiled. A
reader runs nothing, and judges nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from nosync_nb.dataflow.compiler import Compiler
from nosync_nb.dataflow.fitting import rebased
from nosync_nb.dataflow.graph import Graph
from nosync_nb.dataflow.runner import Runner, Version
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import CorruptLogError, DurabilityError, NosyncError
from nosync_nb.expressions import refusal
from nosync_nb.operators.specs import expressions_of
from nosync_nb.session import versions
from nosync_nb.session.gate import Gate
from nosync_nb.session.link import Sparks
from nosync_nb.session.loads import Repeats
from nosync_nb.session.publisher import Publisher
from nosync_nb.session.report import READ, STALE, RecoveryReport
from nosync_nb.session.sealing import Signer
from nosync_nb.session.upkeep import Upkeep
from nosync_nb.store import journal, reading, signing
from nosync_nb.store.decoding import decoding
from nosync_nb.store.ledger import Ledger
from nosync_nb.store.reading import Said
from nosync_nb.store.store import Store, Told

Read = TypeVar("Read")

FOLLOW_MAX = 8192
"""Frames after which a reader begins again at the newest checkpoint."""


LOST_MAX = 1 << 16
"""Epochs that are told as lost at most, whatever number a former owner left."""


class Resume(Protocol):
    """Writes which stages go on after a recovery; see `Definitions.resume`."""

    def __call__(self, *, extend: bool, differs: bool) -> None: ...


class Recovery:
    """Brings a session to the state after the last frame of its log, and a reader behind its owner.

    Args:
        report: told what was found.
        repeats: told from when on inserts are compared.
    """

    def __init__(
        self,
        gate: Gate,
        publisher: Publisher,
        signer: Signer,
        upkeep: Upkeep,
        link: Sparks,
        repeats: Repeats,
        report: RecoveryReport,
    ) -> None:
        self._gate = gate
        self._publisher = publisher
        self._signer = signer
        self._upkeep = upkeep
        self._link = link
        self._repeats = repeats
        self._report = report
        self._resumes: Resume | None = None

    def recover(self, resume: Resume) -> None:
        """Brings a new session to the state after the last frame of its log.

        Args:
            resume: called before the first write, or at once if a stage can have what it missed.

        Raises:
            CorruptLogError: if what it says makes no sense.
        """
        with decoding("the log"):
            self._resumes = resume
            self._recover()

    def _recover(self) -> None:
        store = self._publisher.store
        log = store.log
        report, publisher = self._report, self._publisher
        report.begin(fresh=log.fresh, clean=log.clean, notes=log.notes)
        ledger = Ledger.restored(store.epoch, store.times, store.meta)
        publisher.begin(ledger, store.position)
        epoch, said = self._told(store.tail, store.epoch, store.meta)
        data = None if said is None else self._believed(said)
        if not store.foreign:  # by what somebody else wrote nothing is deleted
            publisher.garbage.expire(store.retired)
        if log.mode == "w":
            lost = range(epoch + 1, min(log.noted, epoch + LOST_MAX) + 1)
            report.missed(lost, store.sweep())
        publisher.show(Version(epoch, {}), Graph(), {})
        if data is not None:
            self._restore(data, epoch)
        if log.mode == "w" and epoch:
            self._repeats.begin(epoch)
        report.resume(epoch)

    def _told(
        self, tail: list[Told], epoch: int, meta: Mapping[str, Any]
    ) -> tuple[int, Said | None]:
        """Takes labels, times and loads from frames; returns the last epoch and the catalog."""
        publisher = self._publisher
        return reading.told(publisher.ledger, tail, epoch, meta, publisher.store.log.durable)

    def _believed(self, said: Said) -> Mapping[str, Any]:
        """The catalog as far as it is believed: one of another's key is marked as his."""
        self._signer.heard(said)
        key, unfit, origin = reading.judged(self._publisher.store, said)
        if self._publisher.store.log.mode == "r":
            return said.catalog
        if not origin.own and unfit is not None:
            origin = origin._replace(why=unfit)
        self._signer.believed(key, origin)
        if origin.signer is None:
            return said.catalog
        return journal.foreign_json(said.catalog, origin.signer)

    def _restore(self, data: Mapping[str, Any], epoch: int) -> None:
        """Makes what a catalog names readable."""
        store = self._publisher.store
        catalog, behind = self._catalog(data, epoch)
        old = reading.restored_graph(store.tail, data)
        self._begin(data, catalog, old)
        store.remember(old, store.tail)
        version = Version(epoch, store.restored(old))
        self._publisher.show(version, old, catalog)
        if store.log.mode == "r":
            store.release()
        else:
            lives = {each["name"]: each["life"]["is"] for each in data["stages"]}
            differs = any(
                (lives[n] == "stale") != (s.reason is not None) for n, s in catalog.items()
            )
            self._gate.first(lambda: self._complete(old, differs=differs, behind=behind))
            if behind:
                self._gate.ready()

    def _complete(self, old: Graph, *, differs: bool, behind: bool) -> None:
        """Compiles the stages and restores their state, so that they can go on.

        Failure: 1. A stage is stale, as its key is not there; epochs pass. 2. The session ends, and
        the key is back. 3. The stage is read as of now, and lacks those epochs. Hence the log says
        that a stage has stopped before the first epoch that it misses.

        Args:
            differs: not the stages go on that the log says.
            behind: some have missed epochs and may have them.
        """
        store, snapshot = self._publisher.store, self._publisher.snapshot
        version, catalog = snapshot.version, dict(snapshot.catalog)
        types, runner = self._link.types, None
        graph = Compiler(old, types, now=version.epoch).compile(catalog)
        if _hold(catalog, graph, old, version.epoch):
            graph = Compiler(old, types, now=version.epoch).compile(catalog)
            self._tell(catalog)
        if graph.nodes.keys() <= old.nodes.keys():
            runner = Runner(graph, self._link.evaluate, self._link.bulk())
        else:
            differs = True
            nodes = [graph.nodes.get(node.id, node) for node in old]
            graph = Graph(nodes, old.numbers, graph.made)
        traces = store.restored(graph)
        traces.update((n, t) for n, t in version.traces.items() if n in traces)
        self._publisher.compiled(runner, Version(version.epoch, traces), graph, catalog)
        self._gate.first(lambda: self._resume(differs=differs, behind=behind))
        self._gate.ready()

    def _resume(self, *, differs: bool, behind: bool) -> None:
        """Lets stages go on that have what they need; again, if it was interrupted."""
        self._publisher.store.release()
        self._upkeep.plan_merges(self._publisher.snapshot.version.traces)
        resumes = self._resumes
        assert resumes is not None
        try:
            resumes(extend=behind, differs=differs)
        except NosyncError as error:
            if not behind:
                raise
            self._report.note(f"a stage has missed epochs and stays stale: {error}")
            resumes(extend=False, differs=differs)

    def _catalog(self, data: Mapping[str, Any], epoch: int) -> tuple[dict[str, Stage], bool]:
        """The catalog with its functions; decides which stages are stale.

        Returns: also whether some of them could go on if they had the epochs that they missed.
        """
        if self._publisher.store.log.mode == "r":
            return journal.catalog_from_json(data, b"", None), False
        behind = False
        log_id = self._publisher.store.log.id
        catalog = journal.catalog_from_json(data, log_id, self._signer.unseal)
        for name, stage in catalog.items():
            if stage.definition is None or stage.frozen:
                continue
            held = self._held(stage)
            why = held
            if why is None:
                _, why = rebased(stage, catalog, self._link.types)
                why = why or versions.halted(stage, catalog)
            if why is not None:
                stage = stage.stopped(why, epoch)
            elif stage.last(epoch) == epoch:
                stage = stage.resumed()
            else:
                behind = True
            catalog[name] = replace(stage, held=held)
        return catalog, behind

    def _held(self, stage: Stage) -> str | None:
        """Why nothing of a stage may be compiled before its cell is run."""
        if stage.signer is not None:
            return self._signer.origin.why or signing.foreign(stage.signer)
        assert stage.definition is not None
        for part in stage.definition.walk():
            for sql in expressions_of(part):
                why = refusal(sql)
                if why is not None:
                    return f"{why}: run the stage's cell"
        return None

    def _begin(self, data: Mapping[str, Any], catalog: dict[str, Stage], graph: Graph) -> None:
        """Makes a catalog that of the session, except for readers."""
        self._publisher.describes(data, catalog, graph)
        self._tell(catalog)

    def _tell(self, catalog: Mapping[str, Stage]) -> None:
        """Says which stages go on and which do not."""
        stages = [s for s in catalog.values() if not s.is_input and not s.frozen]
        self._report.restored(
            {s.name: STALE if s.reason else READ for s in stages},
            {s.name: s.reason for s in stages if s.reason},
        )

    def follow(self) -> None:
        """Takes in what the owner of the log has committed since the last look.

        If the log cannot be followed from where the reader is, as its owner was replaced, or as the
        reader has fallen far behind, the reader begins again at the newest checkpoint.
        """
        with self._gate.lock:
            store = self._publisher.store
            try:
                frames = store.log.refresh()
            except (DurabilityError, CorruptLogError):
                self.reload()
                return
            if not frames:
                return
            store.followed += len(frames)
            if store.followed > FOLLOW_MAX:
                self.reload()
                return
            with decoding("the log"):
                tail = store.decoded(frames)
                if tail:
                    self._take_in(tail)

    def _take_in(self, tail: list[Told]) -> None:
        """Makes visible to a reader what frames say."""
        store = self._publisher.store
        before = self._publisher.snapshot
        graph, catalog = before.graph, before.catalog
        epoch, said = self._told(tail, before.epoch, {})
        if said is not None:
            data = self._believed(said)
            graph = Graph(journal.restored_nodes(data), data["numbers"])
            catalog, _ = self._catalog(data, epoch)
            self._begin(data, catalog, graph)
        store.remember(graph, tail)
        traces = store.followed_by(graph, before.version, before.graph, tail)
        self._publisher.show(Version(epoch, traces), graph, catalog)

    def reload(self) -> None:
        """Begins again at the newest checkpoint."""
        with self._gate.lock:
            before = self._publisher.store
            store = Store.open(before.path, mode="r")
            before.close()
            self._publisher.reopen(store)
            with decoding("the log"):
                self._recover()

    def refresh(self) -> None:
        """With `mode="r"`, takes in what the owner has committed."""
        if self._publisher.store.log.mode == "r" and not self._gate.closing:
            self.follow()

    def following(self, read: Callable[[], Read]) -> Read:
        """Reads; with `mode="r"` what the owner has committed by now.

        A file that the owner has merged away meanwhile is no damage.
        """
        if self._publisher.store.log.mode == "w":
            return read()
        self.refresh()
        try:
            return read()
        except CorruptLogError:
            self.reload()
            return read()


def _hold(catalog: dict[str, Stage], graph: Graph, old: Graph, epoch: int) -> bool:
    """Stops stages of which what operators remember cannot be made again in another form.

    What functions gave that may give something else is not had again, nor is what was remembered
    at an epoch that has passed. All others are run for it once.

    Args:
        graph: as this release plans it, `old` as it was planned.
    """
    why = "what it remembers is not in the form of this release: run the stage's cell"
    new = [node for node in graph if node.id not in old.nodes and node.state]
    names = [n for n in {n.stage: None for n in new} if _once_only(catalog[n])]
    for name in names:
        stage = catalog[name].stopped(why, epoch)
        catalog[name] = replace(stage, held=why)
        for reader in graph.dependants(name):
            catalog[reader] = catalog[reader].stopped(f"it reads '{name}', which is stale", epoch)
    return bool(names)


def _once_only(stage: Stage) -> bool:
    return stage.options.nondeterministic or not stage.live
