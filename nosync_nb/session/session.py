"""Session: inputs, stages and epochs over one folder.

    import nosync_nb
    session = nosync_nb.open("flights.nosync")
    flights = session.input("flights", "carrier string, dep_delay double")
    slow = session.stage("slow", flights.filter("dep_delay > 60"))
    flights.insert([("UA", 75.0)])
    session.commit()
    slow.rows()

The session hands each call to who does it; none of them knows the session. Commits and definitions
pass one gate. Readers take the current `Snapshot`, which never changes, once, and do not wait. An
epoch or a definition is computed, written to the log, checked for ownership, and then published by
one assignment; if anything before that fails, everything is as it was.
"""

from __future__ import annotations

import atexit
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal

from nosync_nb.collections.collection import Collection, iterate_together
from nosync_nb.collections.definition import check_name, reference
from nosync_nb.dataflow.stage import Options
from nosync_nb.errors import FencedError, StageError, enough_memory, one_line, warn
from nosync_nb.session import loads, recovery, trusting, upkeep
from nosync_nb.session.audits import Audits
from nosync_nb.session.commits import Commits
from nosync_nb.session.declarations import Declarations
from nosync_nb.session.definitions import Definitions, StageReport
from nosync_nb.session.follower import Follower
from nosync_nb.session.frames import Frames
from nosync_nb.session.garbage import Garbage
from nosync_nb.session.gate import Gate
from nosync_nb.session.host import SessionHost
from nosync_nb.session.input import Input, check_once
from nosync_nb.session.inputs import Inputs
from nosync_nb.session.installation import Installation
from nosync_nb.session.limits import Limits
from nosync_nb.session.listeners import Listeners
from nosync_nb.session.names import Names
from nosync_nb.session.publisher import Publisher
from nosync_nb.session.reader import SnapshotReader
from nosync_nb.session.recovery import Completion
from nosync_nb.session.sealing import Signer
from nosync_nb.session.transactions import InputChanges, Transaction, Transactions
from nosync_nb.session.upkeep import Upkeep
from nosync_nb.session.worker import Worker
from nosync_nb.session.works import Works
from nosync_nb.spark.link import Link
from nosync_nb.store.frontier import Frontier
from nosync_nb.store.ledger import Epochs
from nosync_nb.store.store import Store


class Session:
    """One folder of collections, open for writing or for reading; made by `open`.

    Attributes:
        recovery: what opening it found.
    """

    def __init__(
        self,
        store: Store,
        *,
        spark: Any = None,
        spark_rows: int | None = None,
    ) -> None:
        self._limits = limits = Limits(spark_rows)
        self._works = Works()
        self._listeners = listeners = Listeners()
        self._worker = Worker()
        self._gate = gate = Gate(self._worker, store.log.mode)
        self._names = names = Names(listeners)
        self._transactions = transactions = Transactions()
        garbage = Garbage()
        self._publisher = publisher = Publisher(store, gate, self._works, garbage, names)
        self._signer = signer = Signer(store.log.id)
        self._link = link = Link(
            publisher, limits, lambda: gate.closing or publisher.fenced, listeners.say, spark
        )
        types = link.types
        recovered, report, differs, behind = recovery.recover(store, types)
        publisher.show(recovered)
        signer.believe(recovered)
        self.recovery = report
        self._upkeep = Upkeep(gate, publisher, signer, self._worker)
        reads = store.log.mode == "r"
        self._follower = follower = Follower(gate, publisher, recovered if reads else None)
        reader = SnapshotReader(publisher, transactions, names, types, link.evaluate)
        frames = Frames(publisher, reader, names, link)
        self._host = SessionHost(
            publisher, reader, follower, frames, names, listeners, types, limits
        )
        installation = Installation(
            gate, publisher, link, types, signer, self._upkeep, listeners, limits
        )
        self._declarations = Declarations(gate, publisher, installation, link)
        self._definitions = Definitions(
            gate, publisher, installation, names, transactions, listeners, link, types,
            self._host, report,
        )  # fmt: skip
        self._audits = audits = Audits(publisher, self._definitions, link)
        self._commits = Commits(
            gate, publisher, transactions, link, listeners, self._upkeep, audits
        )
        self._inputs = Inputs(gate, publisher, transactions, link)
        repeats = loads.Repeats()
        self._loads = loads.Loads(repeats, publisher, transactions, listeners, link.is_frame)
        self._behind = behind
        if reads:
            return
        if report.resumed_at:
            repeats.begin(report.resumed_at)
        if not store.foreign:  # by what somebody else wrote nothing is deleted
            garbage.expire(store.retired)
        if recovered.said is not None:
            resume = self._definitions.resume
            completion = Completion(gate, publisher, self._upkeep, link, report, resume)
            completion.begin(differs=differs, behind=behind)

    # -- inputs and epochs -------------------------------------------------------------------

    def input(
        self, name: str, schema: Any = None, *, key: str | Sequence[str] | None = None
    ) -> Input:
        """An input: made, or returned if one with an equal schema is there.

        Args:
            schema: Spark DDL, an Arrow schema, or data to take the columns from (not its rows).
            key: a key column or several; makes the input keyed (upsert, delete).

        Raises:
            SchemaError: if it is there with another schema or key; quotes both.
        """
        self._declarations.declare(check_name(name, "input"), schema, key)
        return self._input(name)

    def commit(
        self, wait: Literal["disk", "replicas"] | None = None, label: str | None = None
    ) -> int:
        """Closes the epoch: runs every stage on what is pending, and returns its number.

        After it returned, the epoch survives the death of this process; with `wait="disk"` also
        the loss of power. With nothing pending the epoch is empty.

        Raises:
            NosyncError: and nothing has changed; what was pending still is.
        """
        return self._commits.commit(self._transactions.current, wait, label)

    @contextmanager
    def epoch(self, *, once: Any = None, label: str | None = None) -> Iterator[EpochBlock]:
        """A transaction of its own: commits at the end of the block, discards if it raises.

        Args:
            once: a key; if this history has recorded it, nothing in the block takes effect
                (`e.skipped`).
        """
        check_once(once, "epoch")
        block = EpochBlock()
        mark = None if once is None else f"epoch:{once}"
        block.skipped = mark is not None and self._loads.seen(mark)
        transaction = Transaction(label, keyed=mark is not None)
        try:
            with self._transactions.block(transaction):
                yield block
                if mark is not None and block.skipped:
                    load = loads.loaded(transaction)
                    self._loads.skip("epoch", once, mark, load, stacklevel=5)
                else:
                    if mark is not None:
                        transaction.once[mark] = loads.loaded(transaction)
                    self._commits.commit(transaction, None, label)
        finally:
            block.number = transaction.epoch
            self._commits.discard(transaction)

    def begin(self, label: str | None = None) -> Transaction:
        """Starts a transaction that becomes the current one until it commits or is discarded.

        It is that of all threads but those inside an `epoch` block.
        """
        return self._commits.begin(label)

    @property
    def pending(self) -> Mapping[str, InputChanges]:
        """The inputs with changes that wait for the next epoch."""
        return self._transactions.current.pending

    def discard(self) -> int:
        """Drops what is pending; returns the updates dropped."""
        return self._commits.discard(self._transactions.current)

    def sync(self, level: str = "disk") -> None:
        """Waits until all epochs are on disk."""
        self._commits.sync(level)

    # -- stages ------------------------------------------------------------------------------

    def iterate(
        self, body: Callable[..., Any], /, rounds: int | None = None, **sources: Collection
    ) -> dict[str, Collection]:
        """Several loop variables together: each may use the others (mutual recursion).

        `session.iterate(lambda even, odd: (..., ...), even=start, odd=none)` gives the last value
        of each, by name; all of them take a round at once. See `Collection.iterate`.

        Args:
            body: gets the variables by their names, and returns a tuple of their next values in
                that order, or a dict by name.
            sources: any names but `rounds`, with what they start from.
        """
        return iterate_together(self._host, body, rounds, sources)

    def stage(
        self, name: str, collection: Collection, *, nondeterministic: bool = False
    ) -> Collection:
        """Names a collection, so that it is kept, maintained, logged and readable at any epoch.

        An equal definition changes nothing; another one makes a new version, and stages that
        read it follow by name.

        Args:
            nondeterministic: its functions, or expressions as `uuid()`, may give something else
                for the same row next time; what they gave is kept, and a retraction takes back
                exactly that. In a notebook: `%%dd --nondeterministic`.
        """
        self.define({name: collection}, nondeterministic=nondeterministic)
        return self[name]

    @enough_memory(
        lambda self, collections, **_: self._definitions.outcome_of(collections),
        "define one stage a time, over fewer rows, or with Spark: %%dd --on spark",
    )
    def define(
        self,
        collections: Mapping[str, Collection],
        *,
        on: str = "auto",
        persist: str | None = None,
        replay: int | None = None,
        nondeterministic: bool = False,
        again: bool = False,
    ) -> list[StageReport]:
        """Defines several stages, all or none; they refer to each other by name.

        Args:
            on: where to run them: auto, local or spark.
            replay: the epoch from which a new version is computed for the past as well; a stage
                that is equal, but not readable from there on though what it reads is, is too.
            nondeterministic: what functions give is kept; see `stage`.
            again: computes them anew even if nothing changed.
        """
        if persist is not None:
            raise StageError(
                f"persist={persist!r}: the level at which an epoch is safe cannot be chosen yet",
                hint="leave it out, and wait where it matters: session.commit(wait='disk')",
            )
        options = Options(on, nondeterministic)
        return self._definitions.define(collections, options, replay=replay, again=again)

    def drop(self, *names: str, cascade: bool = False) -> None:
        """Forgets stages or inputs; with `cascade`, what reads them too."""
        self._definitions.drop(names, cascade=cascade)

    def rename(self, old: str, new: str) -> None:
        """Gives a stage or input another name; stages that read it follow."""
        self._definitions.rename(old, check_name(new, "stage"))

    def __getitem__(self, name: str) -> Collection:
        if name not in self:
            self.refresh()
        stage = self._publisher.snapshot.stage(name)
        if stage.is_input:
            return self._input(name)
        return Collection(self._host, reference(name, stage.schema))

    def _input(self, name: str) -> Input:
        stage = self._publisher.snapshot.stage(name)
        return Input(self._host, self._inputs, self._loads, reference(name, stage.schema))

    def __contains__(self, name: object) -> bool:
        return name in self._publisher.snapshot.catalog

    @property
    def stages(self) -> dict[str, Collection]:
        """The stages by name, without frozen versions."""
        self.refresh()
        stages = self._publisher.snapshot.catalog.values()
        found = [s for s in stages if not s.is_input and not s.frozen]
        return {s.name: Collection(self._host, reference(s.name, s.schema)) for s in found}

    @property
    def inputs(self) -> dict[str, Input]:
        """The inputs by name."""
        self.refresh()
        catalog = self._publisher.snapshot.catalog
        return {name: self._input(name) for name, stage in catalog.items() if stage.is_input}

    @property
    def graph(self) -> dict[str, tuple[str, ...]]:
        """What each stage reads, by name."""
        return {
            n: s.definition.references if s.definition else ()
            for n, s in self._publisher.snapshot.catalog.items()
        }

    # -- time --------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        """The last epoch; 0 is "empty, before everything"."""
        return self._publisher.now

    def epochs(self) -> Epochs:
        """The epochs readable for all live stages, with time and label."""
        seen = self._publisher.snapshot
        live = [s for s in seen.catalog.values() if s.live]
        begins = [max(s.begin, *(upper for _, upper in s.gaps), 0) for s in live]
        return self._publisher.ledger.epochs(max(begins, default=0), seen.epoch)

    @property
    def frontiers(self) -> dict[str, Frontier]:
        """For each stage and input the last epoch in memory and on disk, inclusive."""
        seen = self._publisher.snapshot
        disk = self._publisher.durable
        return {
            n: Frontier(last, min(disk, last), None)
            for n, last in ((n, seen.last(s)) for n, s in seen.catalog.items())
        }

    def recovery_frontier(self, failure: Literal["kernel", "power", "disk"] = "kernel") -> int:
        """The epoch that a failure now would bring the session back to."""
        if failure == "kernel":
            return self.now
        if failure == "power":
            return self._publisher.durable
        if failure == "disk":
            return 0
        raise StageError(f"unknown class of failure {failure!r}", hint="kernel, power or disk")

    # -- the rest of the public surface --------------------------------------------------------

    @property
    def path(self) -> str:
        """The session's folder."""
        return self._publisher.store.path

    @property
    def mode(self) -> str:
        """How it was opened: `w` or `r`."""
        return self._publisher.store.log.mode

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._gate.closing

    @property
    def spark(self) -> Any:
        """The Spark session in use, or None."""
        return self._link.current

    @property
    def spark_conf(self) -> dict[str, str]:
        """Settings for a Spark session that this one has to start itself."""
        return self._link.conf

    @property
    def fenced(self) -> bool:
        """Whether somebody else has taken the log over: nothing can be committed here any more."""
        return not self._gate.closing and self._publisher.fenced

    @property
    def stale(self) -> dict[str, str]:
        """The stages that have stopped, with the reason."""
        stages = self._publisher.snapshot.catalog.values()
        return {s.name: s.reason for s in stages if s.reason is not None}

    @property
    def spark_rows(self) -> int | None:
        """The most rows that run in this process; None: by estimated cost."""
        return self._limits.spark_rows

    @spark_rows.setter
    def spark_rows(self, value: int | None) -> None:
        self._limits.spark_rows = value

    @property
    def spark_off(self) -> bool:
        """Whether all that this process can do is done in it."""
        return self._limits.spark_off

    @spark_off.setter
    def spark_off(self, value: bool) -> None:
        self._limits.spark_off = value

    @property
    def collect_rows(self) -> int:
        """The most rows that `to_arrow` and `to_pandas` give."""
        return self._limits.collect_rows

    @collect_rows.setter
    def collect_rows(self, value: int) -> None:
        self._limits.collect_rows = value

    @property
    def replay_rows(self) -> int:
        """An edited stage is replayed over the past if that is at most so many rows."""
        return self._limits.replay_rows

    @replay_rows.setter
    def replay_rows(self, value: int) -> None:
        self._limits.replay_rows = value

    def cancel_spark(self) -> None:
        """Cancels the Spark jobs of the running epoch."""
        self._link.cancel()

    def subscribe(self, callback: Callable[[int], None]) -> Callable[[], None]:
        """Calls back with each epoch after it is visible; returns the way to stop that."""
        return self._listeners.subscribe(callback)

    @property
    def stats(self) -> dict[str, Any]:
        """Counters: epochs, rows touched, rows merged, merges, checkpoints, stalls, executed."""
        return self._works.counters

    @property
    def notices(self) -> deque[str]:
        """The last lines that were said to whoever uses the session."""
        return self._listeners.notices

    @property
    def on_notice(self) -> Callable[[str], None] | None:
        """What gets each notice; without it they go to the log of the program."""
        return self._listeners.on_notice

    @on_notice.setter
    def on_notice(self, hears: Callable[[str], None] | None) -> None:
        self._listeners.on_notice = hears

    def layers(self, name: str) -> list[dict[str, Any]]:
        """The layers of a stage: interval, rows, and where each is persisted."""
        return upkeep.layers(self._publisher.snapshot, name, self._publisher.durable)

    def refresh(self) -> int:
        """With `mode="r"`, takes in what the owner has committed, as reading does; gives `now`."""
        self._follower.refresh()
        return self.now

    def tell(self) -> None:
        """Warns of removed rows that were not there, as far as a loop of commits has not yet."""
        self._commits.tell_absent()

    def settle(self) -> None:
        """Waits for background merges and checkpoints."""
        self._worker.drain()
        self._worker.raise_error()

    def close(self) -> None:
        """Ends the session properly: everything is on disk, the log free for others."""
        if self._gate.close():
            with self._gate.ending:
                try:
                    self.tell()
                finally:
                    self._end()

    def _end(self) -> None:
        """Gives back what it holds; it is closed after the last step, and each may be repeated."""
        if self._gate.closed:  # by another thread meanwhile
            return
        store = self._publisher.store
        self._link.close()
        self._worker.close()
        try:
            with suppress(FencedError):  # what was committed is in the log that the new owner reads
                store.close()
        finally:
            if store.log.closed:
                self._gate.end()
                atexit.unregister(self.close)
            if (error := self._worker.take_error()) and not isinstance(error, FencedError):
                warn(f"background work failed: {error}", stacklevel=2)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        names = (
            f"at epoch {self.now}: {', '.join(self._publisher.snapshot.catalog) or 'no inputs yet'}"
        )
        return one_line(f"<nosync session {os.path.basename(self.path)} {names}>")


class EpochBlock:
    """What `with session.epoch() as e` gives: `number` once committed, `skipped`."""

    number: int | None = None
    skipped: bool = False


def resolved(session: Session, at: Any) -> int:
    """The epoch that `at` names now, for those who do not read but ask, as the magics do."""
    return session._publisher.ledger.resolve(at, session.now)


def trust_report(session: Session) -> trusting.TrustReport:
    """Tells whose key signed the log of a session, and what its stages are. Runs nothing."""
    return trusting.report(session._publisher, session._signer)


def catch_up(session: Session) -> None:
    """Brings stages to now that had stopped and can have what they missed, before it is used."""
    if session._behind:
        session._gate.ready()


def link_of(session: Session) -> Link:
    """The session's way to Spark, for who opens it."""
    return session._link


def publisher_of(session: Session) -> Publisher:
    """What a session has published, for who measures it."""
    return session._publisher
