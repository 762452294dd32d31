"""Session: inputs, stages and epochs over one folder.

    import nosync_nb
    session = nosync_nb.open("flights.nosync")
    flights = session.input("flights", "carrier string, dep_delay double")
    slow = session.stage("slow", flights.filter("dep_delay > 60"))
    flights.insert([("UA", 75.0)])
    session.commit()
    slow.rows()

Commits and definitions take one lock. Readers take the current `Snapshot`, which never
changes, once, and do not wait. An epoch or a definition is computed, written to the log, checked
for ownership, and then published by one assignment; if anything before that fails, everything is as
it was.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary

from nosync_nb.collections import loops
from nosync_nb.collections.collection import Collection, iterate_together
from nosync_nb.collections.definition import Definition, check_name, reference
from nosync_nb.dataflow.graph import Graph, Stage
from nosync_nb.dataflow.runner import Runner, Version
from nosync_nb.dataflow.snapshot import Snapshot, seen
from nosync_nb.errors import (
    CorruptLogError,
    DurabilityError,
    FencedError,
    StageError,
    enough_memory,
    one_line,
    warn,
)
from nosync_nb.session import (
    commits,
    declarations,
    definitions,
    loads,
    publishing,
    recovery,
    upkeep,
)
from nosync_nb.session.host import SessionHost
from nosync_nb.session.input import Input, check_once
from nosync_nb.session.link import Sparks
from nosync_nb.session.listeners import Listeners
from nosync_nb.session.loads import Repeats
from nosync_nb.session.report import RecoveryReport
from nosync_nb.session.transactions import InputChanges, Transaction
from nosync_nb.session.worker import Worker
from nosync_nb.session.works import Works
from nosync_nb.spark.meaning import SparkTypes
from nosync_nb.store import signing
from nosync_nb.store.frontier import Frontier
from nosync_nb.store.ledger import Epochs, Ledger
from nosync_nb.store.log import Position
from nosync_nb.store.store import Store

Read = TypeVar("Read")

COLLECT_ROWS = 10_000_000


class Session:
    """One folder of collections, open for writing or for reading; made by `open`.

    Attributes:
        recovery: what opening it found.
        spark_rows: the most rows that run in this process; None: by estimated cost.
        spark_off: whether all that this process can do is done in it.
        collect_rows: the most rows that `to_arrow` and `to_pandas` give.
        replay_rows: an edited stage is replayed over the past if that is at most so many rows.
    """

    def __init__(
        self,
        store: Store,
        *,
        spark: Any = None,
        spark_rows: int | None = None,
    ) -> None:
        self._store = store
        self._lock = threading.RLock()
        self._running: int | None = None  # the thread that runs stages
        self._closing = False  # it is refused to write
        self._closed = False  # nothing is held any more
        self._ending = threading.RLock()
        self._snapshot = Snapshot(Version(0, {}), Graph(), {}, seen(store.history))
        self._catalog_now: Mapping[str, Stage] = {}  # what is being compiled, for placement
        self._runner = Runner(self._graph)
        self._numbers = 0  # of nodes and traces, that any definition here has taken
        self._named_logs: dict[int, str] = {}
        self._shared = Transaction()
        self._local = threading.local()
        self._names: WeakKeyDictionary[Definition, str] = WeakKeyDictionary()
        self._ledger = Ledger()
        self._repeats = Repeats()  # what inserts are compared with after a recovery
        self._listeners = Listeners()
        self._upkeep = upkeep.Upkeep()
        self._position: Position | None = None
        self._unfinished: publishing.Unfinished | None = None
        self._key: bytes | None = None  # signs what is defined here
        self._unsigned = False  # whether it was told that there is none
        self._origin = signing.OWN  # of the catalog as it was last read or written
        self._said: Any = None  # the catalog as it was last read, with its signature
        self._worker = Worker()
        self._unready: Callable[[], None] | None = None  # what the first write has to do before
        self._spark = Sparks(self, spark)
        self._types = SparkTypes(self._spark)
        self._host = SessionHost(self)
        self.spark_rows, self.spark_off = spark_rows, False
        self.replay_rows = 1_000_000
        self.collect_rows = COLLECT_ROWS
        self.recovery = RecoveryReport()
        self._works = Works()

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
        return declarations.input_(self, check_name(name, "input"), schema, key)

    def commit(
        self, wait: Literal["disk", "replicas"] | None = None, label: str | None = None
    ) -> int:
        """Closes the epoch: runs every stage on what is pending, and returns its number.

        After it returned, the epoch survives the death of this process; with `wait="disk"` also
        the loss of power. With nothing pending the epoch is empty.

        Raises:
            NosyncError: and nothing has changed; what was pending still is.
        """
        return commits.commit(self, self._current, wait, label)

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
        block.skipped = mark is not None and self._seen(mark)
        transaction = Transaction(label, keyed=mark is not None)
        outer = getattr(self._local, "transaction", None)
        self._local.transaction = transaction
        try:
            yield block
            if mark is not None and block.skipped:
                loads.skip(self, "epoch", once, mark, loads.loaded(transaction), stacklevel=5)
            else:
                if mark is not None:
                    transaction.once[mark] = loads.loaded(transaction)
                commits.commit(self, transaction, None, label)
        finally:
            block.number = transaction.epoch
            self._local.transaction = outer
            commits.discard(self, transaction)

    def begin(self, label: str | None = None) -> Transaction:
        """Starts a transaction that becomes the current one until it commits or is discarded.

        It is that of all threads but those inside an `epoch` block.
        """
        outer = self._shared

        def end(transaction: Transaction, commit: bool, wait: Any, name: Any) -> int:
            ended = not commit
            try:
                if not commit:
                    return commits.discard(self, transaction)
                return commits.commit(self, transaction, wait, name or transaction.label)
            finally:
                ended = ended or transaction.epoch is not None  # which stands, whatever was raised
                if ended and self._shared is transaction:
                    self._shared = outer

        self._shared = Transaction(label, ender=end)
        return self._shared

    @property
    def _current(self) -> Transaction:
        """The transaction that calls on inputs belong to: the thread's block, or the shared one."""
        own: Transaction | None = getattr(self._local, "transaction", None)
        return self._shared if own is None else own

    @property
    def pending(self) -> Mapping[str, InputChanges]:
        """The inputs with changes that wait for the next epoch."""
        return self._current.pending

    def discard(self) -> int:
        """Drops what is pending; returns the updates dropped."""
        return commits.discard(self, self._current)

    def sync(self, level: str = "disk") -> None:
        """Waits until all epochs are on disk."""
        commits.waited(self, level, None)

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
        lambda self, collections, **_: definitions.outcome_of(self, collections),
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
    ) -> list[definitions.StageReport]:
        """Defines several stages, all or none; they refer to each other by name.

        Args:
            on: where to run them: auto, local or spark.
            replay: the epoch from which a new version is computed for the past as well; a stage
                that is equal, but not readable from there on though what it reads is, is too.
            nondeterministic: what functions give is kept; see `stage`.
            again: computes them anew even if nothing changed.
        """
        options = {"on": on, "persist": persist, "nondeterministic": nondeterministic}
        return definitions.define(self, collections, options, replay=replay, again=again)

    def _demote(self, name: str) -> None:
        """Goes on with a stage as one that is not deterministic, though its cell says nothing."""
        stage = self._catalog[name]
        assert stage.definition is not None
        options = {**stage.options, "nondeterministic": True, "demoted": True}
        collections = {name: Collection(self._host, stage.definition)}
        definitions.define(self, collections, options, replay=None, again=False)

    def drop(self, *names: str, cascade: bool = False) -> None:
        """Forgets stages or inputs; with `cascade`, what reads them too."""
        definitions.drop(self, names, cascade=cascade)

    def rename(self, old: str, new: str) -> None:
        """Gives a stage or input another name; stages that read it follow."""
        definitions.rename(self, old, check_name(new, "stage"))

    def __getitem__(self, name: str) -> Collection:
        if name not in self:
            self.refresh()
        stage = self._snapshot.stage(name)
        definition = reference(name, stage.schema)
        return Input(self, definition) if stage.is_input else Collection(self._host, definition)

    def __contains__(self, name: object) -> bool:
        return name in self._catalog

    @property
    def stages(self) -> dict[str, Collection]:
        """The stages by name, without frozen versions."""
        self.refresh()
        found = [s for s in self._catalog.values() if not s.is_input and not s.frozen]
        return {s.name: Collection(self._host, reference(s.name, s.schema)) for s in found}

    @property
    def inputs(self) -> dict[str, Input]:
        """The inputs by name."""
        self.refresh()
        found = [s for s in self._catalog.values() if s.is_input]
        return {s.name: Input(self, reference(s.name, s.schema)) for s in found}

    @property
    def graph(self) -> dict[str, tuple[str, ...]]:
        """What each stage reads, by name."""
        return {
            n: s.definition.references if s.definition else () for n, s in self._catalog.items()
        }

    # -- time --------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        """The last epoch; 0 is "empty, before everything"."""
        return self._snapshot.version.epoch

    def epochs(self) -> Epochs:
        """The epochs readable for all live stages, with time and label."""
        seen = self._snapshot
        live = [s for s in seen.catalog.values() if not s.frozen and s.reason is None]
        begins = [max(s.begin, *(upper for _, upper in s.gaps), 0) for s in live]
        return self._ledger.epochs(max(begins, default=0), seen.epoch)

    @property
    def frontiers(self) -> dict[str, Frontier]:
        """For each stage and input the last epoch in memory and on disk, inclusive."""
        seen = self._snapshot
        disk = self._durable_epoch()
        return {
            n: Frontier(last, min(disk, last), None)
            for n, last in ((n, seen.last(s)) for n, s in seen.catalog.items())
        }

    def recovery_frontier(self, failure: Literal["kernel", "power", "disk"] = "kernel") -> int:
        """The epoch that a failure now would bring the session back to."""
        if failure == "kernel":
            return self.now
        if failure == "power":
            return self._durable_epoch()
        if failure == "disk":
            return 0
        raise StageError(f"unknown class of failure {failure!r}", hint="kernel, power or disk")

    def _durable_epoch(self) -> int:
        return self._ledger.durable(self._store.log.durable)

    # Parts of the snapshot, for who holds the lock: a reader who takes two may get two moments.

    @property
    def _version(self) -> Version:
        return self._snapshot.version

    @property
    def _graph(self) -> Graph:
        return self._snapshot.graph

    @property
    def _catalog(self) -> Mapping[str, Stage]:
        return self._snapshot.catalog

    # -- the rest of the public surface --------------------------------------------------------

    @property
    def path(self) -> str:
        """The session's folder."""
        return self._store.path

    @property
    def mode(self) -> str:
        """How it was opened: `w` or `r`."""
        return self._store.log.mode

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closing

    @property
    def spark(self) -> Any:
        """The Spark session in use, or None."""
        return self._spark.current

    @property
    def spark_conf(self) -> dict[str, str]:
        """Settings for a Spark session that this one has to start itself."""
        return self._spark.conf

    @property
    def fenced(self) -> bool:
        """Whether somebody else has taken the log over: nothing can be committed here any more."""
        try:
            if not self._closing and self.mode != "r":
                self._store.log.check()
        except FencedError:
            return True
        return False

    @property
    def stale(self) -> dict[str, str]:
        """The stages that have stopped, with the reason."""
        stages = self._catalog.values()
        return {s.name: str(s.reason) for s in stages if not s.frozen and s.reason is not None}

    def cancel_spark(self) -> None:
        """Cancels the Spark jobs of the running epoch."""
        self._spark.cancel()

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
        return upkeep.layers(self, name)

    def refresh(self) -> int:
        """With `mode="r"`, takes in what the owner has committed, as reading does; gives `now`."""
        if self.mode == "r" and not self._closing:
            recovery.follow(self)
        return self.now

    def tell(self) -> None:
        """Warns of removed rows that were not there, as far as a loop of commits has not yet."""
        commits.tell_absent(self)

    def settle(self) -> None:
        """Waits for background merges and checkpoints."""
        self._worker.drain()
        upkeep.raise_background(self)

    def close(self) -> None:
        """Ends the session properly: everything is on disk, the log free for others."""
        with self._lock:
            publishing.finish(self)
            if self._closed:
                return
            if self._running == threading.get_ident():
                raise StageError(
                    "close inside a stage's function is not possible", hint="close it outside"
                )
            self._closing = True
        with self._ending:
            try:
                self.tell()
            finally:
                self._end()

    def _end(self) -> None:
        """Gives back what it holds; it is closed after the last step, and each may be repeated."""
        if self._closed:  # by another thread meanwhile
            return
        self._spark.close()
        self._worker.close()
        try:
            with suppress(FencedError):  # what was committed is in the log that the new owner reads
                self._store.close()
        finally:
            if self._store.log.closed:
                self._closed = True
                atexit.unregister(self.close)
            if (error := self._worker.take_error()) and not isinstance(error, FencedError):
                warn(f"background work failed: {error}", stacklevel=2)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        names = f"at epoch {self.now}: {', '.join(self._catalog) or 'no inputs yet'}"
        return one_line(f"<nosync session {os.path.basename(self.path)} {names}>")

    # -- for reads -------------------------------------------------------------------------------

    def _following(self, read: Callable[[], Read]) -> Read:
        """Reads; with `mode="r"` what the owner has committed by now.

        A file that the owner has merged away meanwhile is no damage.
        """
        if self.mode == "w":
            return read()
        self.refresh()
        try:
            return read()
        except CorruptLogError:
            recovery.reload(self)
            return read()

    def _signed(self, epoch: int, catalog: bytes) -> list[str] | None:
        """The signature of a catalog at an epoch; None without a key."""
        if self._key is None:
            return None
        return signing.signed(self._key, self._store.log.id, epoch, catalog)

    # -- for inputs ------------------------------------------------------------------------------

    def _seen(self, mark: str) -> bool:
        return self._ledger.loaded(mark) or mark in self._current.once

    def _say(self, text: str) -> None:
        self._listeners.say(text)

    def _writable(self, what: str) -> None:
        loops.refuse_inside(what)
        if self._running == threading.get_ident():
            raise StageError(
                f"{what} inside a stage's function is not possible",
                hint="a function computes from its rows alone; change inputs and commit outside",
            )
        if getattr(self._local, "telling", False):
            raise StageError(
                f"{what} inside a function that hears of an epoch is not possible",
                hint="keep what it hears in a list, and insert that later",
            )
        if self._closing:
            raise DurabilityError(
                "the session is closed",
                hint="open it again: nosync.open(path), in a notebook nosync.session()",
            )
        if self._store.log.mode == "r":
            raise FencedError(
                f"{what}: the session is open for reading", hint='open it without mode="r"'
            )
        upkeep.raise_background(self)
        if self._unready is not None:
            self._ready()

    def _ready(self) -> None:
        """Does what is to be done before the first write, once."""
        with self._lock:
            publishing.finish(self)
            if self._unready is not None:
                self._unready()
                self._unready = None


class EpochBlock:
    """What `with session.epoch() as e` gives: `number` once committed, `skipped`."""

    number: int | None = None
    skipped: bool = False
