"""Between: the difference of two collections that do not both go on in one session, as a dataflow.

Two hidden inputs, one for each side, and one stage over them: a graph like that of a session, run
by the same runner, but of no session and of no log. What either side has committed is taken in when
somebody reads, or, while somebody inspects, when it is committed. So nothing of it is written, an
opening finds nothing of it, and what is held goes with whoever holds the collection.

Its epochs count what came, from either side: they are numbers of neither log. It has no past.

What was taken and what follows from it are one value, which is assigned once: whatever is raised in
between, the next one takes in from where the last one ended.

Threads: any may read or take in. Sessions are read without `_lock`, under which nothing is done but
to run what was read, if nobody else has taken it in meanwhile; no function is called under it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from nosync_nb.collections.collection import Collection
from nosync_nb.collections.comparison import differing_counts
from nosync_nb.collections.definition import Definition, reference_to
from nosync_nb.collections.explain_output import ExplainOutput, PlanLine, PlanSection
from nosync_nb.collections.session_protocol import ResolvedEpoch, SessionProtocol, definition_of
from nosync_nb.dataflow.compiler import Compiler
from nosync_nb.dataflow.graph import Graph
from nosync_nb.dataflow.runtime.delta import Delta
from nosync_nb.dataflow.runtime.epoch_result import EpochResult, VersionState
from nosync_nb.dataflow.runtime.runner import Runner
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import Stage
from nosync_nb.dataflow.state_reader import collection_state
from nosync_nb.errors import StageError, TimeError
from nosync_nb.operators import Evaluate
from nosync_nb.rows import Schema
from nosync_nb.session.feed import SideFeed
from nosync_nb.session.reads.collection_host import CollectionPosition
from nosync_nb.session.reads.reader import evaluate_unnamed
from nosync_nb.session.state.subscriptions import Subscriptions
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Batch, Updates
from nosync_nb.trace.history.history import History

Seen = TypeVar("Seen")

SIDES = ("a", "b")
DIFFERENCE = "difference"


class _TakenIn(NamedTuple):
    """What was taken of both sides, and what follows.

    Attributes:
        standings: how far each side was taken.
        untold: drafts that inspectors have not heard of, with what was seen after each.
    """

    snapshot: Snapshot
    standings: tuple[CollectionPosition | None, ...]
    untold: tuple[tuple[EpochResult, Snapshot], ...] = ()


class Between:
    """The host of a difference between sessions, and of what is described over it.

    Args:
        feeds: both sides.
        schema: the columns that are compared.
        host: of the session that compares, which knows what expressions mean.
        evaluate: has Spark evaluate what only it can.

    Attributes:
        collection: the rows that differ, maintained.
    """

    def __init__(
        self, feeds: Sequence[SideFeed], schema: Schema, host: SessionProtocol, evaluate: Evaluate
    ) -> None:
        self.types = host.types
        self._host = host
        self._evaluate = evaluate
        self._feeds = feeds
        self._schema = schema
        self._lock = threading.Lock()
        self._listeners = Subscriptions(lambda hears, *what: hears(*what))
        self._stops: tuple[weakref.finalize[Any, Any], ...] = ()
        sides = [Collection(self, reference_to(name, schema)) for name in SIDES]
        made = differing_counts(*sides)
        catalog = {name: Stage(name, schema, uid=name) for name in SIDES}
        stage = Stage(DIFFERENCE, made.schema, definition_of(DIFFERENCE, made, self))
        catalog = {n: s.identified({}) for n, s in catalog.items()} | {DIFFERENCE: stage}
        graph = Compiler(Graph(), self.types).compile(catalog)
        self._runner = Runner(graph, evaluate)
        snapshot = Snapshot(VersionState(0, {}), graph, catalog, History(os.devnull))
        self._held = _TakenIn(snapshot, (None, None))
        self.collection = Collection(self, reference_to(DIFFERENCE, made.schema))

    # -- taking in ---------------------------------------------------------------------------

    def take_in(self) -> Snapshot:
        """Takes what both sides got since, all of it or nothing; tells inspectors.

        Raises:
            StageError: a session is closed, rows wait for a commit of this thread, or a side was
                dropped or has other columns.
        """
        for feed in self._feeds:
            feed.look()
        return self._take_in()

    def _take_in(self) -> Snapshot:
        while True:
            held = self._held
            taken = self._taken(held)
            if all(updates is None for _, updates in taken):
                break
            with self._lock:
                if self._held is held:
                    self._held = self._after(held, taken)
                    break
        self._tell()
        return self._held.snapshot

    def _taken(self, held: _TakenIn) -> list[tuple[CollectionPosition, Updates | None]]:
        """How both sides stand, and what came since."""
        seen = held.snapshot
        sides = zip(SIDES, self._feeds, held.standings, strict=True)
        return [
            feed.since(standing, lambda name=name: seen.contents(name).updates())  # type: ignore[misc]
            for name, feed, standing in sides
        ]

    def _after(
        self, held: _TakenIn, taken: Sequence[tuple[CollectionPosition, Updates | None]]
    ) -> _TakenIn:
        """What follows from what came."""
        snapshot, untold = held.snapshot, held.untold
        inputs = {
            snapshot.graph.named[name].id: Delta(self._schema.types, updates)
            for name, (_, updates) in zip(SIDES, taken, strict=True)
            if updates is not None and len(updates.diff)
        }
        if inputs:
            version = snapshot.version
            draft = self._runner.epoch(version, inputs, version.epoch + 1)
            snapshot = snapshot.advanced(draft.version())
            if self._listeners.heard:
                untold = (*untold, (draft, snapshot))
        return _TakenIn(snapshot, tuple(standing for standing, _ in taken), untold)

    def _tell(self) -> None:
        """Tells inspectors what they have not heard of."""
        if not self._held.untold:
            return
        with self._lock:
            untold, self._held = self._held.untold, self._held._replace(untold=())
        for draft, snapshot in untold:
            self._listeners.tell(draft, snapshot)

    def hear(self) -> None:
        """Takes in what a session has committed; nothing any more once one is closed."""
        if any(feed.host.closed for feed in self._feeds):
            self._deafen()
        else:
            self._take_in()

    def _deafen(self) -> None:
        """Hears of no commit any more."""
        stops, self._stops = self._stops, ()
        for stop in stops:
            stop()

    # -- what its collections ask ------------------------------------------------------------

    @property
    def collect_rows(self) -> int:
        """The most rows that a read gives at once."""
        return self._host.collect_rows

    def stopped(self, definition: Definition) -> None:
        """Nothing here is stale: a read says which side is."""

    def name_of(self, definition: Definition) -> str | None:
        """None: it is a stage of no session."""
        return None

    def repair(self, definition: Definition) -> str:
        """The advice where a count is below 0: the sides belong to other sessions."""
        return "call .count() of both sides: an error there gives the command that repairs it"

    def epoch(self, at: Any) -> int:
        """How often something came by now; `at` may be that alone, as it has no past."""
        return self._at(at, self._held.snapshot)

    def _at(self, at: Any, seen: Snapshot) -> int:
        if at is not None and at != seen.epoch:
            raise TimeError(
                f"a difference between sessions has no past: it was taken in {seen.epoch} times,"
                f" and {at!r:.40} is not now",
                hint="compare at epochs: session.compare(a, b, at=(5, 9))",
            )
        return seen.epoch

    def pinpoint(self, at: Any) -> ResolvedEpoch:
        """What is there now."""
        return ResolvedEpoch(self.epoch(at), 0)

    def still(self, point: ResolvedEpoch, title: str) -> int:
        """The same, if nothing came since."""
        return self.epoch(point.epoch)

    def read(self, definition: Definition, at: Any) -> Batch:
        """The consolidated rows, of both sides as they are now."""
        seen = self.take_in()
        epoch = self._at(at, seen)
        if definition.is_ref:
            return collection_state(seen, definition.name, epoch)
        return evaluate_unnamed(seen, definition, epoch, self.types, self._evaluate)

    def glance(
        self, definition: Definition, look: Callable[[Trace], Seen | None], at: Any = None
    ) -> Seen | None:
        """What a look at the layers whose sum is there gives; None of what is described over it."""
        seen = self.take_in()
        self._at(at, seen)
        return look(seen.contents(definition.name)) if definition.is_ref else None

    def changes(self, definition: Definition, after: Any, upto: Any) -> Batch:
        """Raises: it has no past."""
        raise StageError(
            "a difference between sessions has no history",
            hint="hear of its changes: .inspect(lambda n, changes: ...), or compare at two epochs",
        )

    def history(self, definition: Definition) -> list[range]:
        """Empty: it has no past."""
        return []

    def explain(self, definition: Definition) -> ExplainOutput:
        """Both sides with how far they were taken."""
        self.take_in()
        sides = zip(self._feeds, self._held.standings, strict=True)
        told = [feed.told(standing) for feed, standing in sides if standing is not None]
        return ExplainOutput("difference", [PlanSection("", [PlanLine(each) for each in told])])

    def frame(self, definition: Definition, at: Any) -> Any:
        """Raises: it is in this process alone."""
        raise StageError(
            "a difference between sessions is in this process alone",
            hint="give Spark its rows: spark.createDataFrame(collection.to_pandas())",
        )

    def inspect(self, definition: Definition, function: Callable[[int, Any], Any] | None) -> None:
        """Has a function called with the changes of the difference, after commits of both sides.

        Raises:
            StageError: it is something else over the difference, which nobody maintains.
        """
        if not definition.is_ref:
            raise StageError(
                "what is described over a difference between sessions is computed when it is read",
                hint="inspect the difference itself: session.compare(a, b).collection.inspect(...)",
            )
        self.take_in()
        self._listeners.inspect(definition, definition.name, function)
        self._deafen()
        if function is not None:
            self._stops = tuple(self._heard(feed) for feed in self._feeds if feed.live)

    def _heard(self, feed: SideFeed) -> weakref.finalize[Any, Any]:
        """Has the commits of a session heard of, as long as somebody holds this."""
        me = weakref.ref(self)

        def committed(_: int) -> None:
            between = me()
            if between is not None:
                between.hear()

        return weakref.finalize(self, feed.host.subscribe(committed))
